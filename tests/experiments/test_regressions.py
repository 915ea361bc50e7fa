"""The worked example and the two regressions: printed numbers, short forms of the targets, figures."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose, fitted
from experiments._runner.targets import verdict
from experiments.paper import regression as paper_regression
from experiments.tutorial import toy_regression
from experiments.tutorial.worked_example import NOISE, PRINTED, table, update
from pyrobbb.data import PaperCurve, ToyPoints
from pyrobbb.figures.band_grid import Curves, band_grid
from pyrobbb.training import history


def test_the_tutorial_s_nine_numbers():
    ours = update(NOISE)
    assert ours == pytest.approx(PRINTED, abs=5e-5)
    assert "4.5561" in table()
    near = update(1.907034)  # one decimal fewer: two of the nine differ in the last printed place
    assert near == pytest.approx(PRINTED, abs=1e-4)


def test_the_same_at_the_printed_noise_to_eight_decimals():
    exact = (4.55605172, -3.49194172, -11.29774216, -74.94140813, 82.74720857)
    exact += (53.45287919, 89.36961658, -0.03452879, 1.10630383)
    assert tuple(update(1.9070).values()) == pytest.approx(exact, abs=1e-7)


def test_detaching_mu_changes_its_gradient_by_noise_over_sigma():
    plain, detached = update(1.9070), update(1.9070, detach_mu=True)
    sigma = math.log1p(math.exp(2.0))
    assert detached["d loss/d mu"] == pytest.approx(plain["d loss/d mu"] - 1.9070 / sigma, abs=1e-9)
    assert detached["d loss/d mu"] == pytest.approx(52.55628091, abs=1e-7)
    assert detached["d loss/d rho"] == pytest.approx(plain["d loss/d rho"], abs=1e-9)
    assert detached["loss"] == pytest.approx(plain["loss"], abs=1e-9)


def expected(name, **options):
    """The mean of a quantity over the noise; three Gauss-Hermite nodes are exact up to eps^5."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    return sum(w * update(x, **options)[name] for x, w in zip(nodes, weights / weights.sum(), strict=True))


@pytest.mark.parametrize(("mu", "rho", "kl"), [(0.1, -3.0, 2.5305724030), (0.5, 2.0, 1.1322326917)])
def test_a4_the_mean_of_log_q_minus_log_prior_is_the_gaussian_kl(mu, rho, kl):
    found = expected("log q(w)", mu=mu, rho=rho) - expected("log P(w)", mu=mu, rho=rho)
    assert found == pytest.approx(kl, abs=1e-9)


def test_a7_detaching_mu_leaves_the_mean_gradient_as_it_is():
    plain, detached = (expected("d loss/d mu", detach_mu=detach) for detach in (False, True))
    assert detached == pytest.approx(plain, abs=1e-9)


def test_toy_points_are_the_tutorial_s():
    data = ToyPoints().load()
    expected = torch.tensor([-3.0, 0.2224, 3.0, 3.0, 0.2224, -3.0])
    torch.testing.assert_close(data.train.y[:, 0], expected, atol=1e-4, rtol=0)
    assert data.validation is None
    assert len(data.test) == 101


def test_the_paper_s_noise_is_one_draw_in_three_places():
    curve = PaperCurve(N=20_000, test=0, low=0.0, high=0.5)
    x, y = curve.load().train.x, curve.load().train.y
    torch.testing.assert_close(curve.value(x, torch.zeros_like(x)), PaperCurve(noise=0.0).truth(x))
    residual = (y - curve.truth(x))[:, 0]
    assert float(residual.mean()) == pytest.approx(0, abs=4 * float(residual.std()) / len(x) ** 0.5)
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


def test_a12_a13_toy_regression_has_the_tutorial_s_losses_and_widens_off_the_data(tmp_path):
    result = fitted(compose("toy_regression", ["draws=20"], folder=tmp_path))
    result.metrics["folder"] = str(tmp_path)
    fit = toy_regression.plain(result.data.to("cpu"), epochs=20_000)
    curve = toy_regression.squared_errors(fit)
    lines = toy_regression.targets(toy_regression.numbers(result), [curve])
    assert len(lines) == 4
    assert all(line.endswith("holds") for line in lines), lines
    losses = [6 * row.free_energy for row in history.read(tmp_path / "history.csv")]
    assert toy_regression.numbers(result, draws=10)["loss"]["first"] == pytest.approx(losses[0])
    toy_regression.figure(result, fit, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_a14_paper_regression_fits_inside_and_widens_outside(tmp_path):
    result = fitted(compose("paper_regression", ["draws=20", "data.test=50"], folder=tmp_path))
    lines = paper_regression.targets(paper_regression.numbers(result))
    assert len(lines) == 2
    assert all(line.endswith("holds") for line in lines), lines


def test_the_plain_network_beside_the_paper_regression_follows_its_overrides(tmp_path):
    changes = ["model.hidden=[7]", "optim.lr=0.02", "batch_size=50", "epochs=30", "data.N=300", "draws=5"]
    result = fitted(compose("paper_regression", [*changes, "data.noise=0.1"], folder=tmp_path))
    fit = paper_regression.plain(result)
    assert [tuple(p.shape) for p in fit.function().parameters()] == [(7, 1), (7,), (2, 7), (2,)]
    assert len(fit.history.rows) == 30
    assert fit.history.rows[-1].lr == 0.02
    assert fit.history.rows[-1].nll < fit.history.rows[0].nll
    found = paper_regression.numbers(result, draws=20)
    x = torch.tensor([[1.2]])
    assert found["truth"]["1.2"] == pytest.approx(float(PaperCurve(noise=0.1).truth(x)))
    assert found["truth"]["1.2"] != pytest.approx(float(PaperCurve().truth(x)), abs=0.01)
    paper_regression.figure(result, fit, tmp_path / "figure.png", draws=50)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="this experiment is about paper_curve, got"):
        paper_regression.main(["data=noisy_sine", f"folder={tmp_path / 'other'}"])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("value", "bounds", "line"),
    [
        (0.015, {"high": 0.04}, "x: 0.015, at most 0.04: holds"),
        (0.05, {"high": 0.04}, "x: 0.05, at most 0.04: missed"),
        (2.5, {"low": 2.5}, "x: 2.5, at least 2.5: holds"),
        (2.7, {"low": 1.9, "high": 2.6}, "x: 2.7, 1.9 to 2.6: missed"),
        (math.nan, {"high": 1.0}, "x: nan, at most 1: missed"),
    ],
)
def test_a_verdict_says_what_was_asked(value, bounds, line):
    assert verdict("x", value, **bounds) == line


def test_compose_names_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="epoch"):
        compose("toy_regression", ["epoch=3"], folder=tmp_path)
    with pytest.raises(ConfigError, match="no_such"):
        compose("no_such", [], folder=tmp_path)


def test_band_grid_draws_each_model_on_each_range():
    x, rng = np.linspace(-1, 1, 11), np.random.default_rng(0)
    many, one = Curves(x, rng.normal(size=(50, 11))), Curves(x, np.zeros((1, 11)))
    draw = partial(band_grid, x_train=[0.0], y_train=[0.0])
    figure = draw({"a": [many, many], "b": [one, one]}, y_limits=[(-1, 1), None], x_label="x (m)")
    axes = np.array(figure.axes).reshape(2, 2)
    assert [a.get_title(loc="left") for a in axes[0]] == ["a", "b"]
    assert axes[0, 1].get_ylim() == (-1, 1)
    assert axes[1, 0].get_xlabel() == "x (m)"
    assert len(axes[0, 0].collections) == 1  # the band
    assert len(axes[0, 1].collections) == 0  # a single function has none
    low = axes[0, 0].collections[0].get_paths()[0].vertices[:, 1].min()
    assert low == pytest.approx(np.quantile(many.draws, 0.025, axis=0).min())
    with pytest.raises(ValueError, match="same ranges"):
        draw({"a": [many], "b": [one, one]})
    with pytest.raises(ValueError, match=r"draws must have shape \(S, 11\)"):
        Curves(x, np.zeros((3, 4)))
