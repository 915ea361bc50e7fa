"""Pruning removes exactly what it says, mean and spread, in every draw; the sparse network is the same."""

from functools import partial

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import nn

from engine_fakes import values
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, network_with
from pyrobbb.compression import pruning, sparse
from pyrobbb.data import Spec, from_arrays
from pyrobbb.evaluation.arviz_export import to_groups
from pyrobbb.inference import NUTS, Laplace
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.initializers import kaiming
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.convnet import convnet
from pyrobbb.models.mlp import mlp
from pyrobbb.posterior import Posterior, moments
from pyrobbb.training.trainer import fit

SPEC = Spec(N=90, features=(4,), outputs=3, task="classification")
X = torch.linspace(-2, 2, 40).reshape(10, 4)
ORDERS = ("snr", "magnitude")


def posterior(make=None, chains=1, spec=SPEC, model=partial(mlp, hidden=[6, 5])):
    make = make or partial(MeanFieldNormal, init_loc=kaiming)
    made = []
    for seed in range(chains):
        with isolated(seed):
            net = model(spec, priors.Normal(), likelihoods.Categorical())
            guide = make(net)
            guide(torch.zeros(1, *spec.features), torch.zeros(1, dtype=torch.long))
            if isinstance(guide, MeanFieldNormal):  # magnitudes and spreads that disagree
                guide.loc.data.normal_()
                guide.rho.data.normal_(-2, 1.5)
        made.append((net, guide))
    return Posterior(made)


def total(weights):
    return torch.cat([w.flatten() for w in weights.values()])


@pytest.mark.parametrize("by", ORDERS)
@pytest.mark.parametrize("removed", [0, 0.3, 0.5, 0.98, 1.0])
def test_the_lowest_weights_of_all_layers_together_go(by, removed):
    whole = posterior()
    score = total(pruning.scores(whole.chains[0], by))
    loc, scale = (total(part) for part in moments(pruning.prune(whole, removed, by=by).chains[0]))
    gone = (loc == 0) & (scale == 0)
    count = round(removed * len(score))
    assert int(gone.sum()) == count
    assert pruning.left(pruning.prune(whole, removed, by=by)) == len(score) - count
    if 0 < count < len(score):
        assert score[gone].max() < score[~gone].min()
    before = [total(part) for part in moments(whole.chains[0])]
    assert torch.equal(loc[~gone], before[0][~gone])
    assert torch.equal(scale[~gone], before[1][~gone])


def test_signal_to_noise_is_not_magnitude():
    loc, scale = (total(part) for part in moments(posterior().chains[0]))
    chain = posterior().chains[0]
    assert torch.equal(total(pruning.scores(chain, "snr")), loc.abs() / scale)
    assert torch.equal(total(pruning.scores(chain, "magnitude")), loc.abs())
    assert float(pruning.decibel(torch.tensor(10.0))) == pytest.approx(10.0)
    by_snr, by_size = (pruning.keep(pruning.scores(chain, by), 0.5) for by in ORDERS)
    assert not torch.equal(total(by_snr), total(by_size))


def test_equal_scores_still_lose_exactly_the_share():
    masks = pruning.keep({"a": torch.zeros(7, 3), "b": torch.zeros(3)}, 0.5)
    assert int(total(masks).sum()) == 12


def test_biases_may_stay():
    chain = posterior().chains[0]
    score = pruning.scores(chain)
    masks = pruning.keep(score, 0.9, biases=False)
    assert all(bool(mask.all()) for name, mask in masks.items() if name.endswith("bias"))
    size = sum(mask.numel() for mask in masks.values() if mask.dim() > 1)
    assert sum(int((~mask).sum()) for mask in masks.values()) == round(0.9 * size)
    assert not all(bool(m.all()) for n, m in pruning.keep(score, 0.9).items() if n.endswith("bias"))


@pytest.mark.parametrize("make", [None, AutoNormal], ids=["mean field", "AutoNormal"])
def test_a_draw_is_the_same_draw_with_zeros(make):
    whole = posterior(make, chains=2)
    pruned = pruning.prune(whole, 0.6, by="magnitude")
    for chain in (0, 1):
        masks = pruned.chains[chain][1].masks
        for before, after in zip(
            whole.each_draw(3, chain=chain), pruned.each_draw(3, chain=chain), strict=True
        ):
            assert all(torch.equal(before[name] * masks[name], after[name]) for name in before)
    one, other = (total(pruned.chains[c][1].masks) for c in (0, 1))
    assert make is not None or not torch.equal(one, other)  # each chain has its own order


def test_removing_nothing_changes_no_prediction_and_removing_all_leaves_no_knowledge():
    whole = posterior()
    same = pruning.prune(whole, 0).predict(X, draws=4, seed=2).probs
    torch.testing.assert_close(same, whole.predict(X, draws=4, seed=2).probs)
    nothing = pruning.prune(whole, 1).predict(X, draws=4).probs
    torch.testing.assert_close(nothing, torch.full_like(nothing, 1 / 3))


def test_a_pruned_posterior_is_pruned_on():
    once = pruning.prune(posterior(), 0.5)
    twice = pruning.prune(once, 0.8)
    assert pruning.left(twice) == pruning.left(pruning.prune(posterior(), 0.8))
    torch.testing.assert_close(
        total(twice.mean_weights()), total(pruning.prune(posterior(), 0.8).mean_weights())
    )
    assert set(twice.chains[0][1].state_dict()) == set(once.chains[0][1].state_dict())  # which `like` reads


def test_what_is_left_of_a_point_has_no_spread():
    pruned = pruning.prune(posterior(partial(AutoDelta, init_loc_fn=kaiming)), 0.5, by="magnitude")
    count = pruned.model.num_weights
    assert pruning.left(pruned) <= count - round(0.5 * count)
    assert pruning.left(pruned) == int((total(pruned.mean_weights()) != 0).sum()) > 0


def test_what_cannot_be_pruned_is_said_by_name():
    with pytest.raises(ValueError, match=r"removed must lie in \[0, 1\], got 75"):
        pruning.prune(posterior(), 75)
    with pytest.raises(ValueError, match="by must be one of snr, magnitude"):
        pruning.prune(posterior(), 0.5, by="sigma")
    point = posterior(partial(AutoDelta, init_loc_fn=kaiming))
    next(point.chains[0][1].parameters()).data[0, 0] = 0
    with pytest.raises(ValueError, match=r"'0.weight' is a point estimate; use by='magnitude'"):
        pruning.prune(point, 0.5)
    with pytest.raises(ValueError, match="biases=False leaves nothing to prune"):
        pruning.keep({"a": torch.ones(3)}, 0.5, biases=False)


def test_a_noisy_weight_goes_before_a_small_sure_one():
    whole = posterior()
    guide = whole.chains[0][1]
    loc, rho = guide.split(guide.loc.data)["0.weight"], guide.split(guide.rho.data)["0.weight"]
    loc[:, 0], rho[:, 0] = 3.0, 3.0  # large and unknown
    loc[:, 1], rho[:, 1] = 0.1, -9.0  # small and known
    masks = pruning.prune(whole, 0.3).chains[0][1].masks["0.weight"]
    assert not masks[:, 0].any()
    assert masks[:, 1].all()


def test_a_network_with_fixed_weights_is_the_model_at_these_weights():
    whole = pruning.prune(posterior(), 0.7)
    weights = whole.mean_weights()
    network = network_with(whole.model, weights)
    assert {name for name, _ in network.named_parameters()} == set(whole.model.sites)
    torch.testing.assert_close(network(X), whole.model.apply_network(weights, X))
    with pytest.raises(ValueError, match=r"weights\['2.weight'\] must have shape \(5, 6\), got nothing"):
        network_with(whole.model, {k: v for k, v in weights.items() if k != "2.weight"})


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))[:, :3]

    whole = posterior(
        model=lambda *_: BayesianNetwork(Tied(), priors.Normal(), likelihoods.Categorical(), 90)
    )
    network = network_with(whole.model, whole.mean_weights())
    torch.testing.assert_close(network(X), whole.model.apply_network(whole.mean_weights(), X))
    assert torch.equal(network.a.weight, network.b.weight)


@pytest.mark.parametrize("removed", [0.5, 0.95, 1.0])
def test_the_sparse_network_predicts_the_same(removed):
    whole = pruning.prune(posterior(model=partial(mlp, hidden=[50, 40])), removed)
    network = network_with(whole.model, whole.mean_weights())
    lean = sparse.sparse(network)
    kinds = {type(module) for module in lean}
    assert (sparse.SparseLinear in kinds) == (removed > 0.5)
    torch.testing.assert_close(lean(X), network(X))
    torch.testing.assert_close(lean(X[0]), network(X[0]))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(lean(X).float(), network(X).float(), rtol=0.05, atol=0.05)
    assert isinstance(network[0], nn.Linear)  # the one given is left as it was


def test_layers_that_do_more_than_a_product_stay_as_they_are():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, given, output: 3 * output)
    attention = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True, dropout=0.0)
    network = nn.Sequential(Doubled(4, 4), hooked, nn.Linear(4, 4), attention).eval()
    for layer in network[:3]:
        layer.weight.data.mul_(torch.eye(4) * (torch.arange(4) == 0))
    lean = sparse.sparse(network, at_most=1.0)
    assert [type(layer) for layer in lean] == [Doubled, nn.Linear, sparse.SparseLinear, type(attention)]
    x = X[:, None]
    torch.testing.assert_close(lean(x), network(x))


def test_a_network_that_reads_a_weight_itself_predicts_the_same():
    class Tied(nn.Module):
        """Decodes by the transpose of what encodes."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x) @ self.layer.weight

    network = Tied()
    lean = sparse.sparse(network, at_most=1.0)
    assert isinstance(lean.layer, sparse.SparseLinear)
    torch.testing.assert_close(lean(X), network(X))
    assert set(lean.state_dict()) == {"layer.rows", "layer.columns", "layer.values", "layer.bias"}


def test_a_layer_under_two_names_remains_one():
    layer = nn.Linear(4, 4)
    network = nn.Sequential(layer, nn.ReLU(), nn.Sequential(layer))
    lean = sparse.sparse(network, at_most=1.0)
    assert isinstance(lean[0], sparse.SparseLinear)
    assert lean[0] is lean[2][0]
    torch.testing.assert_close(lean(X), network(X))


@pytest.mark.parametrize("bias", [True, False])
def test_more_inputs_than_one_block_of_rows(bias):
    layer = nn.Linear(4, 3, bias=bias)
    x = torch.linspace(-1, 1, 4 * 150 * 2).reshape(150, 2, 4)
    torch.testing.assert_close(sparse.SparseLinear(layer)(x), layer(x))


@pytest.mark.parametrize(("left", "kind"), [(10, sparse.SparseLinear), (11, nn.Linear)])
def test_a_layer_with_more_than_a_tenth_of_its_weights_stays_dense(left, kind):
    network = nn.Sequential(nn.Linear(10, 10))
    network[0].weight.data = (torch.arange(100.0) < left).float().reshape(10, 10)
    assert type(sparse.sparse(network)[0]) is kind


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_in_half_precision_stay_as_they_are(dtype):
    network = nn.Sequential(nn.Linear(4, 3)).to(dtype)
    x = torch.ones(2, 4, dtype=dtype)
    assert torch.equal(sparse.sparse(network, at_most=1.0)(x), network(x))


def test_half_precision_is_saved_in_single(tmp_path):
    sparse.save_sparse(nn.Linear(3, 2).to(torch.bfloat16), tmp_path / "half.npz")
    assert sparse.load_sparse(tmp_path / "half.npz")["weight"].dtype == torch.float32


def test_an_empty_tensor_is_saved_too(tmp_path):
    network = nn.Linear(3, 2)
    network.register_buffer("none", torch.zeros(0, 3))
    network.register_buffer("one", torch.tensor(0.5))
    sparse.save_sparse(network, tmp_path / "empty.npz")
    assert sparse.load_sparse(tmp_path / "empty.npz")["none"].shape == (0, 3)
    assert sparse.load_sparse(tmp_path / "empty.npz")["one"] == 0.5


@pytest.mark.parametrize(("width", "kind"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_columns_take_two_bytes_where_they_fit(width, kind, tmp_path):
    network = nn.Linear(width, 2)
    network.weight.data = torch.eye(2, width).flip(1)  # the last two columns
    sparse.save_sparse(network, tmp_path / "wide.npz")
    assert torch.equal(sparse.load_sparse(tmp_path / "wide.npz")["weight"], network.weight)
    with np.load(tmp_path / "wide.npz") as archive:
        assert archive["weight|columns"].dtype == kind


def test_what_save_sparse_has_not_written_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", weight=np.ones(3))
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "empty.npz").touch()
    for file in tmp_path.iterdir():
        with pytest.raises(ValueError, match=f"{file.name} was not written by save_sparse"):
            sparse.load_sparse(file)


def test_saved_without_zeros_and_read_back_whole(tmp_path):
    spec = Spec(N=90, features=(784,), outputs=10, task="classification")
    whole = posterior(model=partial(mlp, hidden=[60, 60]), spec=spec)
    sizes = {}
    for removed in (0.0, 0.5, 0.95):
        pruned = pruning.prune(whole, removed)
        network = network_with(pruned.model, pruned.mean_weights())
        path = tmp_path / f"{removed}.npz"
        sizes[removed] = sparse.save_sparse(network, path)
        assert sizes[removed] == path.stat().st_size
        back = sparse.load_sparse(path)
        assert back.keys() == network.state_dict().keys()
        assert all(torch.equal(back[name], value) for name, value in network.state_dict().items())
    count = whole.model.num_weights
    assert sizes[0.95] < 8 * 0.05 * count + 4000  # at most 4 + 2 bytes for each weight, and the row ends
    assert sizes[0.95] < sizes[0.5] < sizes[0.0]
    with np.load(tmp_path / "0.95.npz", allow_pickle=False) as archive:
        assert len(archive["0.weight|values"]) < 0.2 * 784 * 60


def test_a_convolutional_network_is_saved_too(tmp_path):
    spec = Spec(N=90, features=(1, 8, 8), outputs=3, task="classification")
    whole = posterior(model=partial(convnet, channels=[4], hidden=8), spec=spec)
    pruned = pruning.prune(whole, 0.9)
    network = network_with(pruned.model, pruned.mean_weights())
    sparse.save_sparse(network, tmp_path / "a.npz")
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    back = sparse.load_sparse(tmp_path / "a.npz")
    assert all(torch.equal(back[name], value) for name, value in network.state_dict().items())
    torch.testing.assert_close(sparse.sparse(network)(x), network(x))


def test_chains_keep_their_weights():
    whole = posterior(chains=2)
    whole.chain_weights = (0.75, 0.25)
    assert pruning.prune(whole, 0.5).chain_weights == (0.75, 0.25)


def test_a_pruned_posterior_stays_where_the_whole_one_is_changed():
    whole = posterior()
    pruned = pruning.prune(whole, 0.5)
    before = pruned.predict(X, draws=3).probs
    whole.model.likelihood = likelihoods.Normal(1.0)
    whole.chains[0][1].loc.data.zero_()
    assert torch.equal(pruned.predict(X, draws=3).probs, before)


def test_a_sampler_s_draws_keep_their_numbers():
    net = mlp(SPEC, priors.Normal(), likelihoods.Categorical(), hidden=[3])
    guide = EmpiricalGuide(net, 7)
    for draw in torch.randn(7, len(guide.loc), generator=torch.Generator().manual_seed(0)):
        guide.keep(draw)
    whole = Posterior([(net, guide)])
    pruned = pruning.prune(whole, 0.4)
    masks = pruned.chains[0][1].masks
    assert sum(int((~mask).sum()) for mask in masks.values()) > 0
    for name, value in pruned.draw(7).items():
        assert torch.equal(value, whole.draw(7)[name] * masks[name])


def test_a_pruned_sampler_exports_as_many_draws_as_it_kept():
    data = values()
    model = BayesianNetwork(nn.Linear(3, 2), priors.Normal(), likelihoods.Normal(0.3))
    posterior = fit(model, None, data, inference=NUTS(warmup=5, draws=7, max_tree_depth=3), progress=None)
    for each in (posterior, pruning.prune(posterior, 0.3)):
        groups, _ = to_groups(each, data, draws=20)
        assert groups["posterior"]["weight"].shape[1] == 7


def test_a_model_without_latent_weights_has_nothing_to_prune():
    model = BayesianNetwork(nn.Linear(3, 2), priors.Deterministic(), likelihoods.Normal(0.3))
    posterior = fit(model, None, values(), epochs=1, progress=None)
    with pytest.raises(ValueError, match="no Bayesian weights, so there is nothing to prune"):
        pruning.prune(posterior, 0.3)


def test_a_linearised_network_is_refused():
    data = from_arrays(X, torch.arange(10) % 3, task="classification")
    net = mlp(SPEC, priors.Normal(), likelihoods.Categorical(), hidden=[3])
    net.N = 10
    with pytest.raises(ValueError, match="linearised"):
        pruning.prune(fit(net, None, data, inference=Laplace(), epochs=1, progress=None), 0.5)


def test_a_parametrised_layer_is_refused():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    made = posterior(model=lambda _, *parts: BayesianNetwork(net, *parts, N=90))
    with pytest.raises(
        ValueError, match=r"'0.parametrizations.weight.original0' .* need not be a zero weight"
    ):
        pruning.prune(made, 0.5)


@pytest.mark.parametrize("make", [MeanFieldNormal, AutoNormal])
def test_a_pruned_posterior_is_saved_and_loaded(make, tmp_path):
    pruned = pruning.prune(posterior(make), 0.6)
    pruned.save(tmp_path)
    model = mlp(SPEC, priors.Normal(), likelihoods.Categorical(), hidden=[6, 5])
    found = Posterior.load(tmp_path, model, lambda model: pruning.PrunedGuide.like(model, make(model)))
    assert pruning.left(found) == pruning.left(pruned)
    assert torch.equal(found.predict(X, draws=5).probs, pruned.predict(X, draws=5).probs)


def test_pruned_draws_of_a_sampler_are_saved_and_loaded(tmp_path):
    net = mlp(SPEC, priors.Normal(), likelihoods.Categorical(), hidden=[3])
    guide = EmpiricalGuide(net, 7)
    for draw in torch.randn(7, len(guide.loc), generator=torch.Generator().manual_seed(0)):
        guide.keep(draw)
    pruned = pruning.prune(pruning.prune(Posterior([(net, guide)]), 0.3), 0.6)
    pruned.save(tmp_path)
    found = Posterior.load(tmp_path, net, lambda net: pruning.PrunedGuide.like(net, EmpiricalGuide(net, 7)))
    assert torch.equal(found.predict(X, draws=7).probs, pruned.predict(X, draws=7).probs)
