"""Dropout at test time: which inputs it masks."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from architectures import Chain, last
from engine_fakes import normal
from exact_models import softmax
from pyrobbb import likelihoods, priors
from pyrobbb._support.network_checks import dropping
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.inference import MCDropout
from pyrobbb.inference.dropout import DropoutGuide
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import fit


def test_dropout_masks_the_inputs_of_hidden_layers_alone():
    model, _ = softmax()
    guide = MCDropout(p=0.25).guide(model, None)
    with isolated(0), torch.no_grad():
        drawn = [guide.split(guide.draw()) for _ in range(4000)]
    assert all(torch.equal(one["0.weight"], guide.split(guide.loc)["0.weight"]) for one in drawn[:10])
    kept = torch.stack([one["2.weight"] for one in drawn]) != 0
    assert bool((kept == kept[:, :1]).all())  # one mask for all outputs
    assert abs(float(kept.float().mean()) - 0.75) < 5 * (0.75 * 0.25 / 16000) ** 0.5
    loc, scale = guide.loc_and_scale()
    every = torch.stack([one["2.weight"] for one in drawn])
    error = scale["2.weight"] / math.sqrt(4000)
    assert bool(((every.mean(0) - loc["2.weight"]).abs() <= 5 * error + 1e-6).all())
    torch.testing.assert_close(every.std(0), scale["2.weight"], rtol=0.1, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dropout_in_any_precision(dtype: torch.dtype):
    net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1)).to(dtype)
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(), N=5)
    guide = MCDropout(p=0.1).guide(model, None)
    M, draw = guide.split(guide.loc)["2.weight"], guide.split(guide.draw())["2.weight"]
    kept = draw[draw != 0] / M[draw != 0]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.9), rtol=4 * eps, atol=0.0)
    assert Posterior([(model, guide)]).predict(torch.ones(3, 2, dtype=dtype), draws=3).mean.shape == (3, 1)


class _Positions(nn.Module):
    """Two layers after a buffer with two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.zeros(3, 2))
        self.l, self.o = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.relu(self.l(x + self.positions[0])))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_layer_whose_inputs_dropout_leaves_is_the_first_weight_matrix(frozen: bool):
    """A buffer of the network's own is no weight; a frozen layer is one."""
    net = nn.Sequential(nn.Linear(2, 2), _Positions()) if frozen else _Positions()
    if frozen:
        net[0].requires_grad_(False)
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal())
    guide = MCDropout().guide(model, None)
    assert list(guide.masked) == (["1.l.weight", "1.o.weight"] if frozen else ["o.weight"])


class _Tokens(nn.Module):
    """A token of its own before what the data become."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)
        self.token = nn.Parameter(torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + self.token)


def test_a_token_is_no_matrix_whose_inputs_are_dropped():
    """By the order of parameters it is the first, and the layer that takes the data would have a mask."""
    guide = MCDropout().guide(BayesianNetwork(_Tokens(), priors.Normal(), likelihoods.Normal()), None)
    assert list(guide.masked) == ["last.weight"]


class _Dense(nn.Module):
    """A layer of one's own, with its activation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix, self.act = nn.Parameter(torch.randn(outputs, inputs)), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x @ self.matrix.T)


def test_a_layer_of_ones_own_has_a_matrix_whose_inputs_are_dropped():
    net = nn.Sequential(_Dense(2, 3), _Dense(3, 4), nn.Linear(4, 1))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    assert list(guide.masked) == ["1.matrix", "2.weight"]


class _Adapted(nn.Module):
    """A frozen layer with an addition of low rank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(1, inputs)), nn.Parameter(torch.randn(outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


@pytest.mark.parametrize("more", [False, True])
def test_matrices_without_masks_are_named(more: bool, caplog: pytest.LogCaptureFixture):
    """In the error, if there are no others."""
    net = nn.Sequential(_Adapted(2, 3), nn.Linear(3, 1) if more else nn.Tanh())
    data = from_arrays(normal(8, 2), normal(8, 1 if more else 3, seed=1), task="regression")
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal())
    words = "MCDropout has no mask for 0.A, 0.B: in a module that holds layers"
    with nullcontext() if more else pytest.raises(ValueError, match=words):
        fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)
    assert (words in caplog.text) is more


def test_dropout_leaves_the_data_in_both_directions():
    net = nn.GRU(3, 4, num_layers=2, bidirectional=True)
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    inputs = [name for name in guide.masked if "weight_ih" in name]
    assert inputs == ["weight_ih_l1", "weight_ih_l1_reverse"]


def test_dropout_masks_the_inputs_where_they_come_first_and_no_parametrised_matrix():
    net = nn.Sequential(nn.Conv1d(2, 6, 1), nn.ConvTranspose1d(6, 5, 2))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    assert guide.masked == {"1.weight": (6, 1, 1)}
    wrapped = nn.Sequential(nn.Linear(2, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)))
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    model = BayesianNetwork(wrapped, priors.Normal(), likelihoods.Normal())
    with pytest.raises(ValueError, match="original0 is a part of which torch makes"):
        fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)


def test_dropout_masks_each_input_of_a_grouped_convolution():
    """Of a depthwise one a single mask had dropped all channels at once."""
    net = nn.Sequential(nn.Linear(1, 1), nn.Conv1d(4, 8, 1, groups=2))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.split(guide.draw())["1.weight"] for _ in range(2000)])[..., 0] != 0
    inputs = drawn.unflatten(1, (2, 4))  # (draws, groups, outputs, inputs of a group)
    assert bool((inputs == inputs[:, :, :1]).all())
    together = torch.corrcoef(inputs[:, :, 0].flatten(1).T.float()) - torch.eye(4)
    assert float(together.abs().max()) < 5 / 2000**0.5


@pytest.mark.parametrize("p", [0.2, 0.0])
def test_dropout_of_the_network_s_own_would_act_in_training_alone(p: float):
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(p), nn.Linear(3, 1))
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    for given in (net, copy.deepcopy(net).eval()):
        model = BayesianNetwork(given, priors.Normal(), likelihoods.Normal())
        refused = given.training and p > 0
        with pytest.raises(ValueError, match=r"layer '1' \(Dropout\)") if refused else nullcontext():
            fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)


def test_dropout_within_a_layer_would_act_in_training_alone_too():
    """It is no layer of its own there, but a number."""
    within = [nn.LSTM(2, 2, 2, dropout=0.1, batch_first=True), nn.MultiheadAttention(2, 1, dropout=0.1)]
    assert [path for path, _ in dropping(nn.Sequential(nn.LSTM(2, 2), *within))] == ["1", "2"]
    data = from_arrays(normal(8, 3, 2), normal(8, 1, seed=1), task="regression")
    model = BayesianNetwork(Chain(within[0], last, nn.Linear(2, 1)), priors.Normal(), likelihoods.Normal())
    with pytest.raises(ValueError, match=r"layer 'modules_.0' \(LSTM\) would drop"):
        fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)


def test_no_gain_of_a_normalisation_is_a_matrix_whose_inputs_are_dropped():
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm([4, 3]), nn.Linear(3, 1))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    assert list(guide.masked) == ["2.weight"]


def test_a_step_takes_the_masks_of_the_guide_s_own_draw():
    class Undropped(DropoutGuide):
        def draw(self) -> torch.Tensor:
            return self.loc

    guide = Undropped(BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal()), 0.5)
    assert guide.at() is guide.loc
