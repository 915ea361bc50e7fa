"""What holds parts of a graph is copied by its values."""

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import vmap

from pyrobbb import BayesianNetwork, MeanFieldNormal, fit, likelihoods, priors
from pyrobbb._support.copies import own_copy, own_pair
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import network_with
from pyrobbb.data import from_arrays


def test_parts_of_a_graph_are_copied_by_their_values() -> None:
    leaf = nn.Parameter(torch.ones(2))
    copy = own_copy({"leaf": leaf, "part": 2 * leaf, "both": [leaf]})
    assert copy["leaf"] is copy["both"][0] is not leaf
    assert isinstance(copy["leaf"], nn.Parameter)
    assert copy["part"].tolist() == [2, 2]
    assert copy["part"].is_leaf


def test_what_a_hook_has_kept_of_a_torch_func_is_copied_by_its_values() -> None:
    """Also at a network's prediction, of which the function has ended."""
    seen: list[Tensor] = []

    def double(w: Tensor) -> Tensor:
        seen.append(2 * w)
        return seen[-1]

    vmap(double)(torch.ones(3, 2, requires_grad=True))
    assert own_copy(seen)[0].tolist() == [[2.0, 2.0]] * 3


class _Keeps(nn.Linear):
    """Appends its outputs to a list of its own, by a hook."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.seen: list[Tensor] = []
        self.register_forward_hook(lambda module, given, output: module.seen.append(output))


@pytest.mark.parametrize("fast", ["off", "eager"])
def test_a_network_whose_hook_keeps_its_outputs_is_fitted(fast: str) -> None:
    network = _Keeps()
    network(torch.zeros(1, 2))
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal())
    data = from_arrays(torch.randn(8, 2), torch.randn(8), task="regression")
    posterior = fit(model, MeanFieldNormal, data, epochs=2, fast=fast, progress=None)
    posterior.predict(data.train.x, draws=3)
    network_with(posterior.model, posterior.mean_weights())


def test_pyro_s_guides_keep_the_model_that_they_were_made_for() -> None:
    """And their trace of the prior, whose scale is trained by gradients."""
    with isolated(0):
        prior = priors.Learned(priors.Normal(), by="gradient")
        model = BayesianNetwork(nn.Linear(2, 1), prior, likelihoods.Normal(0.5), 4)
        guide = AutoNormal(model)
        guide()
        made_for = guide.model
        assert made_for is not None
        one, other = own_pair(model, guide)
        assert one is not model
        assert guide.model is other.model is made_for  # which Pyro takes from what it copies
        assert other.locs.weight is not guide.locs.weight
        assert torch.equal(other.locs.weight, guide.locs.weight)
