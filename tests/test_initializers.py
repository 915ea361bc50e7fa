"""Where a guide starts: its locations, or a sigma in units of the fan-in."""

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn
from torch.distributions import biject_to

from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.initializers import (
    Constant,
    FanInRho,
    Normal,
    Uniform,
    from_network,
    kaiming,
    off_the_edge,
)
from pyrobbb.mean_field import MeanFieldNormal


def _sites(model: BayesianNetwork) -> list[dict[str, Any]]:
    nodes = poutine.trace(model).get_trace().nodes
    return [nodes[name] for name in model.sites]


def test_sigma_starts_in_units_of_the_fan_in() -> None:
    convolution = nn.Sequential(nn.Conv2d(3, 2, 5), nn.Flatten(), nn.Linear(2, 4))
    model = BayesianNetwork(convolution, priors.Normal(), likelihoods.Categorical(), 30)
    guide = MeanFieldNormal(model, init_rho=FanInRho(0.5, bias_sigma=0.02))
    guide()
    _, scales = guide.loc_and_scale()
    expected = {"0.weight": 0.5 / 75**0.5, "0.bias": 0.02, "2.weight": 0.5 / 2**0.5, "2.bias": 0.02}
    for name, sigma in expected.items():
        torch.testing.assert_close(scales[name], torch.full_like(scales[name], sigma))
    with pytest.raises(ValueError, match="gain"):
        FanInRho(0.0)


@pytest.mark.parametrize(
    "law",
    [dist.Uniform(-0.5, 0.5), dist.Uniform(0.0, 1.0), dist.HalfNormal(1.0), dist.Gamma(2.0, 1.0),
     dist.Pareto(1.0, 3.0), dist.Normal(0.0, 1.0)],
    ids=lambda law: type(law).__name__,
)  # fmt: skip
@pytest.mark.parametrize(
    "start",
    [
        from_network,
        kaiming,
        Normal(scale=2.0),
        Uniform(-3.0, 3.0),
        Constant(-3.0),
        Constant(0.0),
        Constant(1.0),
    ],
    ids=lambda start: getattr(start, "__name__", type(start).__name__),
)
def test_a_guide_can_move_every_weight_from_where_it_starts(start: Any, law: Any) -> None:
    """Its coordinate is finite, and the slope of the map from there is not 0."""
    model = BayesianNetwork(nn.Linear(3, 5), priors.IID(law), likelihoods.Categorical(), 30)
    for site in _sites(model):
        to = biject_to(site["fn"].support)
        at = to.inv(start(site)).requires_grad_()
        assert bool(at.isfinite().all())
        assert float(torch.autograd.grad(to(at).sum(), at)[0].min()) > 1e-6  # of exp, as small as the weight


def test_probabilities_start_as_such_each_row_by_itself() -> None:
    site = {"fn": dist.Dirichlet(torch.ones(3)).expand([2]).to_event(1)}
    kept = torch.tensor([0.2, 0.3, 0.5])
    vertex = torch.tensor([1.0, 0.0, 0.0])  # a probability of 0 has no finite coordinate
    for other in (torch.zeros(3), vertex):
        found = off_the_edge(site, torch.stack([kept, other]))
        assert torch.equal(found[0], kept)
        assert bool((found[1] > 0).all())


def test_the_gain_of_a_normalisation_over_two_dimensions_is_no_matrix() -> None:
    net = nn.Sequential(nn.LayerNorm([4, 3]), nn.Flatten(), nn.Linear(12, 1))
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(1.0), 30)
    gain = _sites(model)[0]
    assert torch.equal(kaiming(gain), torch.ones(4, 3))  # the network's own: at 0 nothing would pass
    assert torch.equal(
        FanInRho(bias_sigma=0.01)(gain), FanInRho(bias_sigma=0.01)(_sites(model)[3])[0].expand(4, 3)
    )
