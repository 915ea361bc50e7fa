"""Methods beside a KL that warms up, and the steps that their settings name."""

from typing import Any

import pytest

from engine_fakes import StopsAt
from exact_models import D, N, linear, made_step
from pyrobbb.data.dataset import Dataset, Spec
from pyrobbb.inference import MAP, SGHMC, SWAG, Laplace
from pyrobbb.inference.method import check_warm_up
from pyrobbb.kl_weights import Full, Tempered, WarmUp
from pyrobbb.training.trainer import fit


@pytest.mark.parametrize(
    ("method", "most"), [(SGHMC(cycles=1, draws=5), 0), (SWAG(snapshots=5, rank=2, start=0.5), 5)]
)
def test_no_draw_is_kept_while_the_kl_warms_up(method: Any, most: int):
    model, data, *_ = linear()
    split = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    options: dict[str, Any] = {"inference": method, "epochs": 10, "batch_size": 5, "progress": None}
    late = Tempered(temperature=1.0, then=WarmUp(epochs=max(2, most + 1)))
    with pytest.raises(ValueError, match="draws while the KL warms up"):
        fit(model, None, split, kl=late, **options)
    for epochs in {1, max(1, most)}:  # a warm-up of one epoch is none
        fit(model, None, split, kl=WarmUp(epochs=epochs), **options)


def test_a_share_of_the_epochs_is_not_rounded_down():
    check_warm_up(SWAG(), WarmUp(epochs=29), 0.29 * 100)
    with pytest.raises(ValueError, match="at most 29 of its epochs"):
        check_warm_up(SWAG(), WarmUp(epochs=30), 0.29 * 100)


@pytest.mark.parametrize(
    ("method", "kl", "at"),
    [
        (Laplace(), WarmUp(epochs=5), {"epoch": 2}),
        (MAP(), WarmUp(epochs=5), {"epoch": 2}),
        (MAP(), Tempered(temperature=1.0, then=WarmUp(epochs=5)), {"step": 15}),  # of ten an epoch
    ],
    ids=["laplace", "map", "within an epoch of a warm-up within"],
)
def test_a_training_that_stops_within_its_warm_up_says_so(
    method: Any, kl: Any, at: dict[str, int], caplog: pytest.LogCaptureFixture
):
    model, data, *_ = linear()
    split = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    options: dict[str, Any] = {"batch_size": 5, "epochs": 5, "progress": None}
    fit(model, None, split, inference=method, kl=kl, callbacks=[StopsAt(**at)], **options)
    assert (
        "only 0.4 of its full weight at the end: the warm-up takes 5 epochs and the fit had 2" in caplog.text
    )


@pytest.mark.parametrize(
    "kl",
    [
        Tempered(temperature=20.0),
        Full(),
        WarmUp(epochs=9),
        WarmUp(epochs=2, then=Tempered(temperature=20.0)),
    ],
)
def test_laplace_refuses_a_kl_that_does_not_count_once(kl: Any):
    """Its mode would be that of one target, and its curvature another's."""
    model, data, *_ = linear()
    split = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    with pytest.raises(ValueError, match="Laplace takes the curvature of the posterior itself"):
        fit(model, None, split, inference=Laplace(), kl=kl, epochs=3, progress=None)
    fit(model, None, split, inference=Laplace(), kl=WarmUp(epochs=2), epochs=3, progress=None)


def test_settings_that_fit_exactly_are_not_rounded_away():
    model, data, *_ = linear()
    assert made_step(SWAG(start=0.9, snapshots=10, rank=2), model, data, 100)[1].due == set(range(91, 101))
    _, step = made_step(SGHMC(exploring=0.55, draws=45, cycles=1), model, data, 100)
    assert step.keeps == [set(range(55, 100))]
    assert step.quiet == 55
