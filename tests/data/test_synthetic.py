"""The paper's curve as data: where its noise enters, and what is refused; and the tutorial's six points."""

import pytest
import torch

from pyrobbb.data import PaperCurve, ToyPoints


def test_the_paper_s_noise_is_one_draw_in_three_places():
    curve = PaperCurve(N=20_000, test=0, low=0.0, high=0.5)
    x, y = curve.load().train.x, curve.load().train.y
    torch.testing.assert_close(curve.value(x, torch.zeros_like(x)), PaperCurve(noise=0.0).truth(x))
    residual = (y - curve.truth(x))[:, 0]
    assert float(residual.mean()) == pytest.approx(0, abs=5 * float(residual.std()) / len(x) ** 0.5)
    # its spread is noise times the slope 1 + 0.6 pi cos(2 pi x) + 1.2 pi cos(4 pi x), 6.65 at x = 0
    assert float(residual[x[:, 0] < 0.02].std()) == pytest.approx(0.129, abs=0.01)
    assert float(residual.std()) == pytest.approx(0.062, abs=0.004)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"high": 0.0}, "high must be greater"), ({"noise": -1}, "noise"), ({"N": 0}, "N must")],
)
def test_a_wrong_curve_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        PaperCurve(**wrong)


def test_toy_points_are_the_tutorial_s():
    data = ToyPoints().load()
    expected = torch.tensor([-3.0, 0.2224, 3.0, 3.0, 0.2224, -3.0])
    torch.testing.assert_close(data.train.y[:, 0], expected, atol=1e-4, rtol=0)
    assert data.validation is None
    assert len(data.test) == 101
