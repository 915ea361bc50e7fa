"""A saved posterior: predicted with in another process, and refused for another network."""

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoStructured,
)
from pyro.nn import PyroModule
from torch import Tensor, nn

import seeds
from commands import command
from engine_fakes import network, normal, values
from pyrobbb import BayesianNetwork, Posterior, fit, likelihoods, priors
from pyrobbb._support import checkpoint
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb._support.settings import first_difference
from pyrobbb.data import from_arrays
from pyrobbb.inference import NUTS, SWAG, Inference, Laplace, MCDropout
from pyrobbb.low_rank import LowRankNormal
from pyrobbb.matrix_normal import MatrixNormal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import moments
from pyrobbb.training.history import Epoch, History

X = normal(5, 3)


def made(
    make: Callable[..., nn.Module] = MeanFieldNormal, likelihood: Any = None, width: int = 2, seed: int = 0
) -> tuple[BayesianNetwork, nn.Module]:
    net = network(width=width, seed=seed)
    net.insert(1, nn.BatchNorm1d(4).eval())
    model = BayesianNetwork(net, priors.Normal(), likelihood or likelihoods.Normal(learn_scale=True))
    return model, make(model)


def trained(*arguments: Any, **options: Any) -> Posterior:
    model, guide = made(*arguments, **options)
    model.N = 12
    return fit(model, guide, values(), epochs=2, batch_size=6, device="cpu")


def test_a_guide_that_needs_the_data_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="AutoStructured takes its parameters from the training data"):
        trained(AutoStructured).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_chains_of_different_guides_are_not_saved(tmp_path: Path) -> None:
    model, guide = trained().chains[0]
    other = AutoNormal(model)
    other(X)
    with pytest.raises(ValueError, match=r"differ in their guide: MeanFieldNormal and AutoNormal"):
        Posterior([(model, guide), (model, other)]).save(tmp_path)
    assert not list(tmp_path.iterdir())


class Narrow(MeanFieldNormal):
    """With a number of its own."""

    def __init__(self, model: BayesianNetwork, factor: float = 0.5) -> None:
        super().__init__(model)
        self.factor = factor

    @property
    def sigma(self) -> Tensor:
        return self.factor * super().sigma


def test_a_guide_of_ones_own_has_its_own_numbers(tmp_path: Path) -> None:
    trained(Narrow).save(tmp_path / "file")
    model, _ = made()
    Posterior.load(tmp_path / "file", model, Narrow)
    with pytest.raises(CheckpointError, match=r"another setting of the guide: {'factor': 0\.5}"):
        Posterior.load(tmp_path / "file", model, partial(Narrow, factor=2.0))
    options = {"epochs": 1, "progress": None, "folder": tmp_path / "run", "fast": "off"}
    fit(made()[0], Narrow, values(), **options)
    with pytest.raises(CheckpointError, match=r"constants of the guide factor 0\.5, this is 2\.0"):
        fit(made()[0], partial(Narrow, factor=2.0), values(), **options)


class Inside(PyroModule):
    """A guide with one of ones own in it."""

    def __init__(self, model: BayesianNetwork, factor: float = 0.5) -> None:
        super().__init__()
        self.inner, self.calls = Narrow(model, factor), 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1  # a count is no setting
        return self.inner(*args, **kwargs)


def test_the_numbers_of_a_guide_s_parts_are_its_own(tmp_path: Path) -> None:
    trained(Inside).save(tmp_path)
    Posterior.load(tmp_path, made()[0], Inside)
    with pytest.raises(CheckpointError, match=r"another setting of the guide: {'inner.factor': 0\.5}"):
        Posterior.load(tmp_path, made()[0], partial(Inside, factor=2.0))


def test_another_precision_is_refused(tmp_path: Path) -> None:
    trained().save(tmp_path)
    model, _ = made()
    model.double()
    with pytest.raises(CheckpointError, match=r"in torch.float32, the model here has torch.float64: .*to\("):
        Posterior.load(tmp_path, model, MeanFieldNormal(model))


@pytest.mark.parametrize(
    "make", [MeanFieldNormal, MatrixNormal, AutoNormal, AutoLowRankMultivariateNormal, LowRankNormal]
)
def test_it_predicts_as_before(make: Callable[..., nn.Module], tmp_path: Path) -> None:
    before = trained(make)
    before.save(tmp_path)
    model, guide = made(make, seed=9)  # other initial values, which do not count
    after = Posterior.load(tmp_path, model, guide)
    assert after.model.N == 12
    for draws in (before.draw(3), after.draw(3)):
        assert set(draws) == set(before.model.sites)
    for name, value in before.draw(3).items():
        assert torch.equal(after.draw(3)[name], value)
    assert torch.equal(after.predict(X, draws=3).mean, before.predict(X, draws=3).mean)
    assert torch.equal(after.predict(X, draws=3).noise, before.predict(X, draws=3).noise)


def test_every_chain_and_the_history_are_kept(tmp_path: Path) -> None:
    chains = [trained().chains[0], trained(seed=1).chains[0]]
    history = History([Epoch(0, 1, 3.0, 1.0, 2.0, 0.5, 1.5, 1e-3, 0.1)])
    Posterior(chains, [history, history]).save(tmp_path)
    after = Posterior.load(tmp_path, *made())
    assert len(after.chains) == 2
    for chain in (0, 1):
        for name, value in Posterior(chains).draw(2, chain=chain).items():
            assert torch.equal(after.draw(2, chain=chain)[name], value)
    assert after.history == history
    after.save(tmp_path / "again")
    assert Posterior.load(tmp_path / "again", *made()).histories == (history, history)


def test_histories_of_earlier_files_are_read(tmp_path: Path) -> None:
    row = Epoch(0, 1, 3.0, 1.0, 2.0, 0.5, 1.5, 1e-3, 0.1)
    posterior = trained()
    for earlier in ([asdict(row)], [asdict(History([row]))]):
        posterior.save(tmp_path)
        content = torch.load(tmp_path / "posterior.pt")
        del content["histories"]
        torch.save(content | {"history": earlier}, tmp_path / "posterior.pt")
        assert Posterior.load(tmp_path, *made()).history == History([row])


SECOND = """
import sys
import torch
from torch import nn
from pyrobbb import BayesianNetwork, Posterior, likelihoods, priors
from pyrobbb.mean_field import MeanFieldNormal

net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.1))
posterior = Posterior.load(sys.argv[1], model, MeanFieldNormal(model))
print(posterior.predict(torch.ones(1, 3), draws=5).mean.tolist())
"""


@pytest.mark.parametrize("make", [MeanFieldNormal, AutoNormal])
def test_every_chain_keeps_the_noise_that_it_learned(make: Callable[..., nn.Module], tmp_path: Path) -> None:
    before = Posterior([trained(make, seed=seed).chains[0] for seed in range(3)])
    with torch.no_grad():
        for chain, (model, _) in enumerate(before.chains):
            model.likelihood.scale = torch.tensor(0.1 + chain)
    before.save(tmp_path)
    after = Posterior.load(tmp_path, *made(make))
    found = after.predict(X, draws=3)
    assert torch.equal(found.noise, before.predict(X, draws=3).noise)
    scales = torch.tensor([0.1, 1.1, 2.1])
    torch.testing.assert_close(torch.stack([model.likelihood.scale for model, _ in after.chains]), scales)
    for model, guide in after.chains:  # in one parameter store, as a user's own loop has them
        guide(X)
        model(X)
    torch.testing.assert_close(torch.stack([model.likelihood.scale for model, _ in after.chains]), scales)


def called(part: PyroModule, name: str) -> None:
    """Give a module and all within it the name."""
    before = part._pyro_name
    for module in part.modules():
        if isinstance(module, PyroModule):
            module._pyro_name = name + module._pyro_name.removeprefix(before)


def test_chains_of_one_name_do_not_share_a_noise() -> None:
    chain = trained().chains[0]
    copy = pickle.loads(pickle.dumps(chain))
    called(copy[0], chain[0]._pyro_name)
    with torch.no_grad():
        copy[0].likelihood.scale = torch.tensor(7.0)
    posterior = Posterior([chain, copy])
    posterior.predict(X, draws=2)
    assert float(copy[0].likelihood.scale.detach()) == pytest.approx(7.0)


def test_a_second_process_predicts_without_the_data(tmp_path: Path) -> None:
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.1), 12)
    posterior = fit(model, MeanFieldNormal(model), values(), epochs=1, batch_size=6, device="cpu")
    posterior.save(tmp_path)
    (tmp_path / "second.py").write_text(SECOND)
    done = command(tmp_path, "second", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with seeds.unshifted():  # as the other process
        expected = posterior.predict(torch.ones(1, 3), draws=5).mean[0].tolist()
    assert json.loads(done.stdout)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: made(width=4, likelihood=likelihoods.HeteroscedasticNormal()), "another network"),
        (lambda: made(AutoNormal), "another guide"),
        (lambda: made(likelihood=likelihoods.StudentT(learn_scale=True)), "another likelihood"),
    ],
)
def test_another_model_is_refused(other: Any, message: str, tmp_path: Path) -> None:
    trained().save(tmp_path)
    with pytest.raises(CheckpointError, match=f"was made with {message}"):
        Posterior.load(tmp_path, *other())


def test_the_layer_in_which_a_long_network_differs_is_named(tmp_path: Path) -> None:
    def model(classes: int) -> BayesianNetwork:
        layers = [nn.Linear(3, 3) for _ in range(30)]
        net = nn.Sequential(*layers, nn.Linear(3, classes))
        return BayesianNetwork(net, priors.Normal(), likelihoods.Normal(1.0), 12)

    saved = model(2)
    guide = MeanFieldNormal(saved)
    guide()
    Posterior([(saved, guide)]).save(tmp_path)
    line = r"\(30\): Linear\(in_features=3, out_features={}, bias=True\)"
    with pytest.raises(CheckpointError, match=f"network: {line.format(2)} there, {line.format(4)} here$"):
        Posterior.load(tmp_path, model(4), MeanFieldNormal)


def test_texts_that_differ_in_their_line_endings_alone_are_shown() -> None:
    assert first_difference("a\nb", "a\r\nb") == ("a\nb", "a\r\nb")


class Power(nn.Module):
    def __init__(self, power: int) -> None:
        super().__init__()
        self.linear, self.power = nn.Linear(3, 2), power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) ** self.power


@pytest.mark.parametrize(
    ("power", "prior", "inference", "message"),
    [
        (2, priors.Normal(), MCDropout(p=0.5), "another set of constants in the network: {'1.power': 1}"),
        (1, priors.Normal(sigma=2.0), MCDropout(p=0.5), r"another prior: Normal\(sigma=1.0\)"),
        (1, priors.Normal(), MCDropout(p=0.1), "another setting of the guide: {'p': 0.5}"),
    ],
)
def test_what_no_tensor_tells_must_be_the_same(
    power: int, prior: priors.Prior, inference: Inference, message: str, tmp_path: Path
) -> None:
    def model(power: int, prior: priors.Prior) -> BayesianNetwork:
        net = nn.Sequential(nn.Linear(3, 3), Power(power))
        return BayesianNetwork(net, prior, likelihoods.Normal(), 12)

    first = model(1, priors.Normal())
    guide = MCDropout(p=0.5).guide(first, None)
    Posterior([(first, guide)]).save(tmp_path)
    Posterior.load(tmp_path, first, guide)
    other = model(power, prior)
    with pytest.raises(CheckpointError, match=message):
        Posterior.load(tmp_path, other, inference.guide(other, None))


class Masked(nn.Module):
    """With tensors in no state_dict: a mask, a constant, and what the last call left."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.scale = torch.full((3,), scale)
        self.register_buffer("mask", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.detach()
        return self.linear(x * self.scale * self.mask)


@pytest.mark.parametrize("changed", ["nothing", "scale", "mask"])
def test_tensors_in_no_state_dict_must_be_the_same(changed: str, tmp_path: Path) -> None:
    def made_with(scale: float) -> tuple[BayesianNetwork, nn.Module]:
        model = BayesianNetwork(Masked(scale), priors.Normal(), likelihoods.Normal(0.1), N=12)
        return model, MeanFieldNormal(model)

    model, guide = made_with(1.0)
    guide()
    Posterior([(model, guide)]).save(tmp_path)
    other = made_with(2.0 if changed == "scale" else 1.0)
    other[0].network.seen = torch.zeros(1)
    if changed == "nothing":
        Posterior.load(tmp_path, *other)
        return
    if changed == "mask":
        other[0].network.mask[0] = 0.0
    with pytest.raises(CheckpointError, match=f"of the tensor '{changed}', .* by register_buffer"):
        Posterior.load(tmp_path, *other)


def test_an_expanded_buffer_is_loaded(tmp_path: Path) -> None:
    """Its elements share one place in memory, where torch copies nothing."""

    def made_with(mean: float) -> tuple[BayesianNetwork, nn.Module]:
        net = network()
        net.register_buffer("mean", torch.tensor([mean]).expand(3))
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Categorical(), N=12)
        return model, MeanFieldNormal(model)

    model, guide = made_with(3.0)
    guide()
    Posterior([(model, guide)]).save(tmp_path)
    found = Posterior.load(tmp_path, *made_with(0.0))
    assert found.model.network.mean.tolist() == [3.0] * 3


def test_a_linearised_prediction_is_loaded_as_one(tmp_path: Path) -> None:
    model, _ = made()
    posterior = fit(model, None, values(), inference=Laplace(structure="diagonal"), epochs=1, progress=None)
    posterior.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"another setting of the guide: \{'linearised': True\}"):
        Posterior.load(tmp_path, model, Laplace(structure="diagonal", linearised=False).guide(model, None))


def test_a_file_that_is_missing_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        Posterior.load(tmp_path, *made())
    torch.save({"format": 1}, tmp_path / "posterior.pt")
    with pytest.raises(CheckpointError, match="is not a saved posterior"):
        Posterior.load(tmp_path, *made())
    with pytest.raises(CheckpointError, match=r"not a readable checkpoint \(Not a directory\)"):
        Posterior.load(tmp_path / "posterior.pt", *made())
    with pytest.raises(NotADirectoryError, match=r"posterior\.pt is a file or a broken link, not a folder"):
        trained().save(tmp_path / "posterior.pt")


def test_a_file_of_another_structure_is_refused(tmp_path: Path) -> None:
    posterior = trained()
    path = posterior.save(tmp_path)
    whole = checkpoint.load(path)
    chain, rows = whole["chains"][0], whole["histories"][0]["rows"]
    of = chain["of"]
    changes: list[dict[str, Any]] = [
        *({"chains": [{k: v for k, v in chain.items() if k != key}]} for key in ("N", "of", "guide")),
        {"chains": [{**chain, "of": {**of, "colour": "blue"}}]},
        {"chains": [3]},
        {"histories": [{"rows": [{**rows[0], "colour": 3}]}]},
        {"histories": [{"rows": [{k: v for k, v in rows[0].items() if k != "lr"}]}]},
        {"columns": {"colour": 3}},
        {"weights": 3},
    ]
    for change in changes:
        checkpoint.save(path, whole | change)
        with pytest.raises(
            CheckpointError, match=r"posterior\.pt does not hold what this version of pyrobbb"
        ):
            Posterior.load(tmp_path, *made())


def test_laplaces_approximation_is_asked_for_its_curvature(tmp_path: Path) -> None:
    """On a linear model with known noise it is the exact posterior; the guide alone is only its mode."""
    x, noise = normal(30, 2), 0.5
    y = x @ torch.tensor([[1.0], [-1.0]]) + noise * normal(30, 1, seed=1)
    with isolated(0):
        net = nn.Linear(2, 1, bias=False)
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=noise), 30)
        guide = AutoLaplaceApproximation(model)
        guide(x, y)
        precision = x.T @ x / noise**2 + torch.eye(2)
        with torch.no_grad():
            guide.loc.copy_(torch.linalg.solve(precision, x.T @ y / noise**2)[:, 0])
        with pytest.raises(ValueError, match=r"only the mode .* guide.laplace_approximation\(x, y\)"):
            Posterior([(model, guide)]).predict(x)
        curved = guide.laplace_approximation(x, y)
    posterior = Posterior([(model, curved)])
    loc, scale = moments(posterior.chains[0])
    torch.testing.assert_close(loc["weight"][0], guide.loc.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scale["weight"][0], precision.inverse().diagonal().sqrt(), rtol=1e-3, atol=0)
    draws = posterior.draw(2000)["weight"][:, 0]
    torch.testing.assert_close(draws.T.cov(), precision.inverse(), rtol=0.2, atol=2e-3)
    posterior.save(tmp_path)
    model = BayesianNetwork(nn.Linear(2, 1, bias=False), priors.Normal(), likelihoods.Normal(scale=noise))
    after = Posterior.load(tmp_path, model, AutoLaplaceApproximation(model))
    assert torch.equal(after.draw(3)["weight"], posterior.draw(3)["weight"])
    assert torch.equal(after.predict(x, draws=3).mean, posterior.predict(x, draws=3).mean)
    with pytest.raises(CheckpointError):
        Posterior.load(tmp_path, model, AutoMultivariateNormal(model))


def test_a_latent_noise_scale_is_saved_too(tmp_path: Path) -> None:
    prior = likelihoods.Normal(scale=dist.HalfNormal(1.0))
    before = trained(AutoNormal, prior)
    before.save(tmp_path)
    after = Posterior.load(tmp_path, *made(AutoNormal, prior))
    assert torch.equal(after.draw(2)["likelihood.scale"], before.draw(2)["likelihood.scale"])
    assert torch.equal(after.predict(X, draws=3).noise, before.predict(X, draws=3).noise)


def test_pickles_of_two_processes_do_not_share_what_they_learned(tmp_path: Path) -> None:
    """Each process counts its names from the start, so both pickles bring the same ones."""
    x = torch.linspace(-1, 1, 40)[:, None]
    fits = []
    for noise in (0.1, 2.0):
        model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(noise, learn_scale=True))
        data = from_arrays(x, x.sin(), task="regression")
        posterior = fit(model, MeanFieldNormal, data, epochs=1, progress=None, seed=1)
        for part, name in zip(posterior.chains[0], ("model_0", "mean_field_0"), strict=True):
            called(part, name)
        fits.append((pickle.loads(pickle.dumps(posterior)), data.train))
    names = [part._pyro_name for posterior, _ in fits for part in posterior.chains[0]]
    assert len(set(names)) == 4
    spread = [posterior.predict(x, draws=200).std.mean() for posterior, _ in fits]
    kept = set(pyro.get_param_store().keys())
    for posterior, rows in fits:
        Laplace(structure="full").around(posterior, rows)
    assert set(pyro.get_param_store().keys()) == kept
    for posterior, _ in fits:
        posterior.model.log_likelihood(posterior.mean_weights(), x, x)
    after = [posterior.predict(x, draws=200).std.mean() for posterior, _ in fits]
    assert after == spread
    assert after[1] > 5 * after[0]


class Around(priors.Prior):
    """As `Centred`, of one's own."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return dist.Normal(parameter.detach(), 0.1).to_event(parameter.dim())


@pytest.mark.parametrize("centred", [priors.Centred(sigma=0.1), Around()])
def test_each_chain_keeps_the_centre_of_its_prior(centred: priors.Prior, tmp_path: Path) -> None:
    """The network's own values, which are in no state: each chain of a factory has others."""
    data = values()

    def make() -> BayesianNetwork:
        prior = priors.PerParameter(default=priors.Normal(), where={"2.*": centred})
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        return BayesianNetwork(net, prior, likelihoods.Normal(0.3))

    posterior = fit(make, MeanFieldNormal, data, chains=2, epochs=1, progress=None)
    posterior.save(tmp_path)
    model = make()
    again = Posterior.load(tmp_path, model, MeanFieldNormal(model))
    centres = []
    for (one, _), (other, _) in zip(posterior.chains, again.chains, strict=True):
        centres.append(one.prior_of("2.weight").base_dist.loc)
        assert torch.equal(other.prior_of("2.weight").base_dist.loc, centres[-1])
    assert not torch.equal(*centres)


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has no centres, padding rows or type of the inputs, and compares less."""
    model = BayesianNetwork(network(width=2), priors.Centred(sigma=0.1), likelihoods.Normal(0.3))
    posterior = fit(model, MeanFieldNormal, values(), epochs=1, progress=None)
    path = posterior.save(tmp_path)
    content = checkpoint.load(path)
    for chain in content["chains"]:
        for later in ("centres", "padding", "tensors", "input_dtype"):
            del chain[later]
        for later in ("set of values in the prior", "set of values in the likelihood", "form of the guide"):
            del chain["of"][later]
    checkpoint.save(path, content)
    same = BayesianNetwork(network(width=2), priors.Centred(sigma=0.1), likelihoods.Normal(0.3))
    again = Posterior.load(tmp_path, same, MeanFieldNormal(same))
    assert torch.equal(again.predict(X, draws=5).mean, posterior.predict(X, draws=5).mean)


def test_it_is_loaded_by_what_makes_model_and_guide_too(tmp_path: Path) -> None:
    data = values()

    def make() -> BayesianNetwork:
        return BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.3))

    for inference, guide in ((None, MeanFieldNormal), (Laplace(structure="diagonal"), None)):
        posterior = fit(make, guide, data, inference=inference, epochs=1, progress=None)
        posterior.save(tmp_path)
        for model in (make, make()):
            again = Posterior.load(tmp_path, model, guide, inference=inference)
            assert torch.equal(again.predict(X, draws=5).mean, posterior.predict(X, draws=5).mean)
    with pytest.raises(CheckpointError, match="was made with another guide"):
        Posterior.load(tmp_path, make, inference=MCDropout())

    def plain() -> BayesianNetwork:
        return BayesianNetwork(network(width=2), priors.Deterministic(), likelihoods.Normal())

    points = fit(plain, None, data, epochs=1, progress=None)
    points.save(tmp_path / "points")
    again = Posterior.load(tmp_path / "points", plain)
    assert torch.equal(again.predict(X).mean, points.predict(X).mean)
    for given in (network(), network):
        with pytest.raises(ValueError, match="model must be a BayesianNetwork"):
            Posterior.load(tmp_path, given)  # type: ignore[arg-type]
    for method in (Laplace, 3):
        with pytest.raises(ValueError, match="inference must be a method with its options"):
            Posterior.load(tmp_path, make, inference=method)
    with pytest.raises(ValueError, match="not both"):
        Posterior.load(tmp_path, make, MeanFieldNormal(make()), inference=Laplace())
    for wrong in (None, Laplace()):
        with pytest.raises(ValueError, match=r"pass the guide that was fitted.*or inference=Laplace\(\)"):
            Posterior.load(tmp_path, make, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "other", "message"),
    [
        (Laplace(), Laplace(structure="full"), "{'structure': 'kronecker', .* there, {'structure': 'full', "),
        (Laplace(), Laplace(layers="last"), "'layers': 'all'} there, .*'layers': 'last'} here"),
        (NUTS(draws=4), NUTS(draws=5), "{'draws in all': 4} there, {'draws in all': 5} here"),
        (SWAG(rank=3), SWAG(rank=2), "{'rank': 3} there, {'rank': 2} here"),
    ],
    ids=str,
)
def test_another_option_of_a_method_is_named(method: Any, other: Any, message: str, tmp_path: Path) -> None:
    """And not the tensors that only one of the two has, or that have other shapes."""
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.3), 12)
    Posterior([(model, method.guide(model, None))]).save(tmp_path)
    with pytest.raises(CheckpointError, match=f"was made with another form of the guide: .*{message}"):
        Posterior.load(tmp_path, model, inference=other)


class Named(MeanFieldNormal):
    """Its parameters are called what our own guides' options are."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__(model)
        self.form, self.settings = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))


def test_a_guide_of_ones_own_may_call_its_parameters_what_it_likes(tmp_path: Path) -> None:
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.3), 12)
    guide = Named(model)
    guide()
    Posterior([(model, guide)]).save(tmp_path)
    loaded: Any = Posterior.load(tmp_path, model, Named).chain(0)[1]
    assert torch.equal(loaded.form, guide.form)
    assert torch.equal(loaded.settings, guide.settings)


def test_the_padding_row_of_an_embedding_is_kept(tmp_path: Path) -> None:
    """It is not a weight, and whoever initialises all matrices has filled it, in each process differently."""

    def words(seed: int) -> BayesianNetwork:
        with isolated(seed):
            embedding = nn.Embedding(5, 3, padding_idx=0)
            nn.init.xavier_uniform_(embedding.weight)
            return BayesianNetwork(
                nn.Sequential(embedding, nn.Flatten(), nn.Linear(6, 1)), likelihood=likelihoods.Normal(0.3)
            )

    x = torch.arange(40).reshape(20, 2) % 5
    data = from_arrays(x, x[:, :1].float(), task="regression", dtype=torch.long)
    posterior = fit(words(1), MeanFieldNormal, data, epochs=1, progress=None, seed=1, device="cpu")
    posterior.save(tmp_path)
    fresh = words(2)
    again = Posterior.load(tmp_path, fresh, MeanFieldNormal(fresh))
    assert torch.equal(again.predict(x, draws=5).mean, posterior.predict(x, draws=5).mean)
    assert not torch.equal(fresh.padding()["0.weight"], posterior.model.padding()["0.weight"])
