"""Each prior against SciPy: its density, event, precision and domain, and the choice by parameter name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats

from engine_fakes import normal
from pyrobbb import priors


def mixture_density(w: Any) -> Any:
    return math.log(0.25 * stats.norm(0, 2.0).pdf(w) + 0.75 * stats.norm(0, 0.1).pdf(w))


TABLE: dict[str, tuple[priors.Prior, Callable[[Any], Any]]] = {
    "scale_mixture": (priors.ScaleMixture(pi=0.25, sigma1=2.0, sigma2=0.1), mixture_density),
    "normal": (priors.Normal(sigma=0.3), stats.norm(0, 0.3).logpdf),
    "laplace": (priors.Laplace(scale=0.3), stats.laplace(0, 0.3).logpdf),
    "student_t": (priors.StudentT(df=4.0, scale=0.3), stats.t(4, 0, 0.3).logpdf),
    "fan_in": (priors.FanInNormal(gain=2.0), stats.norm(0, 2.0 / 15**0.5).logpdf),  # 5 * 3 inputs a unit
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distribution_of_a_whole_parameter(name: str, dtype: torch.dtype) -> None:
    prior, log_density = TABLE[name]
    w = normal(2, 5, 3, dtype=dtype)
    d = prior.distribution("0.weight", w)
    assert d is not None
    assert d.batch_shape == ()
    assert d.event_shape == (2, 5, 3)
    value = d.log_prob(w)
    assert value.dtype == dtype
    assert float(value) == pytest.approx(sum(log_density(v) for v in w.flatten().tolist()), rel=1e-5)
    draw = d.sample()
    assert draw.shape == w.shape
    assert draw.dtype == dtype
    assert not draw.requires_grad


def test_defaults_are_the_papers() -> None:
    prior = priors.ScaleMixture()
    assert (prior.pi, prior.sigma1) == (0.5, 1.0)
    assert prior.sigma2 == pytest.approx(math.exp(-6), rel=1e-15)


@pytest.mark.parametrize(
    ("shape", "sigma"), [((8, 50), 2 / 50**0.5), ((8, 3, 5, 5), 2 / 75**0.5), ((8,), 0.7), ((), 0.7)]
)
def test_fan_in_is_the_number_of_inputs_of_a_unit(shape: tuple[int, ...], sigma: float) -> None:
    distribution = priors.FanInNormal(gain=2.0, bias_sigma=0.7).distribution("w", torch.zeros(shape))
    assert distribution.event_shape == shape
    torch.testing.assert_close(distribution.variance.sqrt(), torch.full(shape, sigma))


def test_deterministic_parameters_have_no_distribution() -> None:
    assert priors.Deterministic().distribution("0.weight", torch.zeros(2)) is None


def test_priors_take_names_only() -> None:
    with pytest.raises(TypeError):
        priors.Normal(1.0)  # type: ignore[misc]


def test_the_first_pattern_that_fits_decides() -> None:
    prior = priors.PerParameter(
        default=priors.Normal(sigma=1.0),
        where={"2.bias": priors.Normal(sigma=2.0), "*.bias": priors.Laplace(), "4.*": priors.Deterministic()},
    )
    names = ["0.weight", "0.bias", "2.bias", "4.weight", "4.bias"]
    distributions = {name: prior.distribution(name, torch.zeros(3)) for name in names}
    prior.check(names)
    assert float(distributions["0.weight"].variance[0]) == 1.0  # type: ignore[union-attr]
    assert float(distributions["2.bias"].variance[0]) == 4.0  # type: ignore[union-attr]
    assert type(distributions["0.bias"].base_dist).__name__ == "Laplace"  # type: ignore[union-attr]
    assert distributions["4.weight"] is None
    assert type(distributions["4.bias"].base_dist).__name__ == "Laplace"  # type: ignore[union-attr]


def test_a_pattern_within_a_pattern_is_checked_too() -> None:
    inner = priors.PerParameter(default=priors.Normal(), where={"*.bais": priors.Laplace()})
    for prior in (
        priors.PerParameter(default=inner),
        priors.PerParameter(default=priors.Normal(), where={"0.*": inner}),
    ):
        with pytest.raises(ValueError, match="bais"):
            prior.check(["0.weight", "0.bias"])
