"""The low-rank guide: its density and gradients, which are those of Pyro's guide of the same family."""

import copy
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import Tensor, nn

from pyrobbb import BayesianNetwork, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.low_rank import LowRankMultivariateNormal, LowRankNormal
from pyrobbb.posterior import moments

D, R, N, B = 7, 3, 20, 5
Made = tuple[BayesianNetwork, AutoLowRankMultivariateNormal]


def parts(requires_grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    with isolated(0):
        loc, scale, factor = torch.randn(D), torch.rand(D) + 0.3, torch.randn(R, D)
    return tuple(part.double().requires_grad_(requires_grad) for part in (loc, scale, factor))  # type: ignore[return-value]


def made(make_guide: Callable[..., AutoLowRankMultivariateNormal], scale: float = 0.3) -> Made:
    with isolated(1):
        network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        model = BayesianNetwork(network, priors.Normal(sigma=0.7), likelihoods.Normal(0.3), N)
        guide = make_guide(model, init_scale=scale, rank=R)
        guide()
    return model, guide


def rows() -> tuple[Tensor, Tensor]:
    with isolated(2):
        return torch.randn(B, 2).double(), torch.randn(B, 1).double()


def test_its_density_is_that_of_a_multivariate_normal() -> None:
    """Of a draw, which is found with it, of several, and of any other value."""
    loc, scale, factor = parts()
    found = LowRankMultivariateNormal(loc, scale, factor)
    expected = dist.LowRankMultivariateNormal(loc, (scale * factor).mT, scale**2)
    for shape in (torch.Size(), torch.Size([2, 4])):
        with isolated(1):
            draws = found.rsample(shape)
        assert draws.shape == (*shape, D)
        torch.testing.assert_close(found.log_prob(draws), expected.log_prob(draws))
        torch.testing.assert_close(found.log_prob(draws.clone()), expected.log_prob(draws))
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


@pytest.mark.parametrize("again", [False, True])
def test_its_gradients_are_those_of_differences(again: bool) -> None:
    """Of the draw and its density together, as they are written out, and of any value's density."""

    def both(*given: Tensor) -> tuple[Tensor, Tensor]:
        found = LowRankMultivariateNormal(*given)
        with isolated(3):
            draws = found.rsample(torch.Size([2]))
        return draws, found.log_prob(draws.clone() if again else draws)

    assert torch.autograd.gradcheck(both, parts(requires_grad=True))


def test_a_second_derivative_is_refused() -> None:
    loc, scale, factor = parts(requires_grad=True)
    found = LowRankMultivariateNormal(loc, scale, factor)
    (by_factor,) = torch.autograd.grad(found.log_prob(found.rsample()), factor, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        by_factor.sum().backward()


@pytest.mark.parametrize("together", [False, True])
def test_a_step_is_that_of_pyro_s_guide(together: bool) -> None:
    """One seed gives both the same start and the same draws: the loss and every gradient agree."""
    elbo = Trace_ELBO(num_particles=3, vectorize_particles=together, max_plate_nesting=1)
    found = []
    for make in (AutoLowRankMultivariateNormal, LowRankNormal):
        model, guide = made(make)
        with isolated(4):
            loss = elbo.loss_and_grads(model, guide, *rows())
        grads = {name: value.grad for name, value in guide.named_parameters()}
        found.append((loss, grads))
    (loss, grads), (own, own_grads) = found
    assert own == pytest.approx(loss, rel=1e-10)
    assert grads["cov_factor"] is not None
    torch.testing.assert_close(own_grads, grads | {"cov_factor": grads["cov_factor"].mT})


def test_a_draw_changed_in_place_has_the_density_of_what_it_became() -> None:
    posterior = LowRankMultivariateNormal(*parts(requires_grad=True))
    w = posterior.rsample()
    before = posterior.log_prob(w)
    w.detach().add_(0.5)
    torch.testing.assert_close(posterior.log_prob(w), posterior.log_prob(w.clone()))
    assert not torch.equal(posterior.log_prob(w), before)


def test_its_density_and_gradients_are_the_same_under_autocast() -> None:
    found = []
    for enabled in (False, True):
        parameters = [part.detach().float().requires_grad_() for part in parts()]
        with isolated(1), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            posterior = LowRankMultivariateNormal(*parameters)
            w = posterior.rsample()
            log_q = posterior.log_prob(w)
            log_q.backward()
        found.append([w, log_q, posterior.log_prob(w.clone()), *(p.grad for p in parameters)])
    for plain, cast in zip(*found, strict=True):
        torch.testing.assert_close(cast, plain)


def test_its_moments_are_those_of_pyro_s_guide() -> None:
    pairs = [made(make, scale=1.0) for make in (AutoLowRankMultivariateNormal, LowRankNormal)]
    torch.testing.assert_close(*(moments(pair) for pair in pairs))
    torch.testing.assert_close(*(guide.quantiles([0.1, 0.9]) for _, guide in pairs))
    with isolated(5), torch.no_grad():
        one = pairs[0][1]()
    with isolated(5), torch.no_grad():
        torch.testing.assert_close(pairs[1][1](), one)


def test_a_second_guide_has_parameters_of_its_own() -> None:
    """Pyro's store is global, and keyed by name."""
    with pyro.get_param_store().scope():
        made(LowRankNormal)
        _, guide = made(LowRankNormal, scale=0.1)
        twin = copy.deepcopy(guide)
        twin.cov_factor.data.zero_()
        twin()
        assert guide.cov_factor.shape == (R, 13)
        assert not torch.equal(guide.cov_factor, twin.cov_factor)


def test_it_fits_in_half_precision() -> None:
    """Its density is that of single precision, up to rounding."""
    loc, scale, factor = (part.float() for part in parts())
    full = LowRankMultivariateNormal(loc, scale, factor)
    half = LowRankMultivariateNormal(*(part.bfloat16().requires_grad_() for part in (loc, scale, factor)))
    draw = half.rsample()
    half.log_prob(draw).backward()
    assert draw.dtype == torch.bfloat16
    expected = full.log_prob(draw.float())
    torch.testing.assert_close(half.log_prob(draw.clone()).float(), expected, rtol=0.1, atol=0.3)


def test_it_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="rank > 0 but got 0"):
        LowRankNormal(made(LowRankNormal)[0], rank=0)
