"""What holds parts of a graph is copied by its values."""

import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyrobbb import BayesianNetwork, likelihoods, priors
from pyrobbb._support.copies import own_copy, own_pair
from pyrobbb._support.random_state import isolated


def test_parts_of_a_graph_are_copied_by_their_values() -> None:
    leaf = nn.Parameter(torch.ones(2))
    copy = own_copy({"leaf": leaf, "part": 2 * leaf, "both": [leaf]})
    assert copy["leaf"] is copy["both"][0] is not leaf
    assert isinstance(copy["leaf"], nn.Parameter)
    assert copy["part"].tolist() == [2, 2]
    assert copy["part"].is_leaf


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
