"""Priors whose parameters are learned: M-steps against closed forms, on every path of training."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoNormal
from scipy import stats
from torch import Tensor, nn

from engine_fakes import Interrupts, classes, classifier, network, normal, values
from pyrobbb import Posterior, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.agreement import difference, gradients
from pyrobbb.accelerated.dispatch import make_step
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.inference import NUTS
from pyrobbb.initializers import Normal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.non_centred import NonCentredNormal
from pyrobbb.svi import ReferenceStep
from pyrobbb.training.trainer import Training

GAUSS = likelihoods.Normal(scale=0.5)


def learned(model: BayesianNetwork) -> dict[str, float]:
    """The learned values of a model's prior, by the last part of their names."""
    assert isinstance(model.prior, priors.Learned)
    return {name.rpartition(".")[2]: float(value) for name, value in model.prior.values().items()}


def known_weights(prior: priors.Prior, w: Tensor) -> BayesianNetwork:
    """A model of len(w) weights, whose prior has been fitted to a posterior that knows them to be w."""
    model = BayesianNetwork(nn.Linear(len(w), 1, bias=False), prior, GAUSS, 12)
    guide = MeanFieldNormal(model, init_loc=lambda site: w[None], init_rho=-16.0)
    guide()
    assert isinstance(model.prior, priors.Learned)
    with isolated(0):
        for _ in range(300):
            model.prior.update(model, guide)
    return model


def drawn(law: Any, N: int = 4000) -> Tensor:
    """Draws by their quantiles: as a sample, but without its noise."""
    return torch.tensor(law.ppf((torch.arange(N).double() + 0.5) / N), dtype=torch.float32)


@pytest.mark.parametrize(("learn", "law"), [("sigma1", stats.norm(0, 0.05)), ("sigma2", stats.norm(0, 3.0))])
def test_a_component_that_layers_share_keeps_its_place_beside_each_of_theirs(learn: str, law: Any) -> None:
    """Whichever comes first: the wide component is above every spike, the spike below every wide one."""
    one, other = priors.ScaleMixture(sigma1=1.0, sigma2=0.1), priors.ScaleMixture(sigma1=0.9, sigma2=0.2)
    w = drawn(law, 200)
    for first, second in ((one, other), (other, one)):
        prior = priors.Learned(
            priors.PerParameter(default=first, where={"1.*": second}), learn=[learn], per="network"
        )
        net = nn.Sequential(nn.Linear(200, 1, bias=False), nn.Linear(1, 200, bias=False))
        model = BayesianNetwork(net, prior, GAUSS, 12)
        guide = MeanFieldNormal(
            model, init_loc=lambda site: w.reshape(site["fn"].event_shape), init_rho=-16.0
        )
        guide()
        with isolated(0):
            for _ in range(30):
                model.learned[0].update(model, guide)
        found = learned(model)[learn]
        assert found == pytest.approx(0.2 if learn == "sigma1" else 0.9, rel=0.002)
        assert found > 0.2 if learn == "sigma1" else found < 0.9


@pytest.mark.parametrize(
    ("prior", "law", "truth"),
    [
        (priors.Normal(sigma=3.0), stats.norm(0, 0.2), {"scale": 0.2}),
        (priors.IID(dist.Normal(1.0, 1.0)), stats.norm(1, 0.4), {"scale": 0.4}),
        (priors.Laplace(scale=1.0), stats.laplace(0, 0.3), {"scale": 0.3}),
        (priors.StudentT(df=4.0, scale=1.0), stats.t(4, 0, 0.1), {"scale": 0.1}),
        (priors.IID(dist.Cauchy(0.0, 1.0)), stats.cauchy(0, 0.1), {"scale": 0.1}),
    ],
)
def test_a_learned_scale_is_that_of_the_weights(
    prior: priors.Prior, law: Any, truth: dict[str, float]
) -> None:
    model = known_weights(priors.Learned(prior), drawn(law))
    assert learned(model) == pytest.approx(truth, rel=0.01)


def test_a_learned_mixture_is_that_of_the_weights() -> None:
    wide, spike = drawn(stats.norm(0, 0.5), 1500), drawn(stats.norm(0, 0.01), 3500)
    model = known_weights(priors.Learned(priors.ScaleMixture()), torch.cat([wide, spike]))
    assert learned(model) == pytest.approx({"pi": 0.3, "sigma1": 0.5, "sigma2": 0.01}, rel=0.03)


@pytest.mark.parametrize(
    ("learn", "law", "bound"), [("sigma1", stats.norm(0, 0.05), 0.1), ("sigma2", stats.norm(0, 3.0), 1.0)]
)
def test_a_learned_component_of_a_mixture_keeps_its_place_beside_a_fixed_one(
    learn: str, law: Any, bound: float
) -> None:
    """Where the weights would have the wide component narrower than the spike, they are all but equal."""
    prior = priors.Learned(priors.ScaleMixture(sigma1=1.0, sigma2=0.1), learn=[learn])
    found = learned(known_weights(prior, drawn(law, 1000)))[learn]
    assert found == pytest.approx(bound, rel=0.002)
    assert found > bound if learn == "sigma1" else found < bound


@pytest.mark.parametrize(
    ("prior", "law", "truth"),
    [
        (priors.Normal(sigma=3.0), stats.norm(0, 0.2), {"scale": 0.2}),
        (priors.Laplace(scale=1.0), stats.laplace(0, 0.3), {"scale": 0.3}),
    ],
)
def test_a_padding_row_teaches_the_prior_nothing(
    prior: priors.Prior, law: Any, truth: dict[str, float]
) -> None:
    """Its q starts at 0, and nothing but the KL moves it."""
    rows = torch.stack([torch.zeros(5000), drawn(law, 5000)])
    table = nn.Embedding(2, 5000, padding_idx=0)
    model = BayesianNetwork(table, priors.Learned(prior), GAUSS, 12)
    guide = MeanFieldNormal(model, init_loc=lambda site: rows, init_rho=-16.0)
    guide()
    assert isinstance(model.prior, priors.Learned)
    with isolated(0):
        for _ in range(300):
            model.prior.update(model, guide)
    assert learned(model) == pytest.approx(truth, rel=0.03)


def test_only_what_is_asked_for_is_learned() -> None:
    prior = priors.Learned(priors.ScaleMixture(sigma1=0.5), learn=["pi"])
    wide, spike = drawn(stats.norm(0, 0.5), 1500), drawn(stats.norm(0, 0.0025), 3500)
    assert learned(known_weights(prior, torch.cat([wide, spike]))) == pytest.approx({"pi": 0.3}, rel=0.02)


@pytest.mark.parametrize("by", ["em", "gradient"])
@pytest.mark.parametrize(
    "guide", [partial(MeanFieldNormal, init_loc=Normal(scale=0.5), init_rho=-1.0), AutoNormal]
)
def test_empirical_bayes_finds_the_greatest_marginal_likelihood(by: str, guide: Any) -> None:
    """y_i = w_i + noise: the mean field is exact, log p(y | s) is greatest at s^2 = mean y^2 - noise^2."""
    with isolated(3):
        y = 0.8 * torch.randn(200, 1)
        y *= (0.89 / y.square().mean()).sqrt()  # 0.89 = 0.8^2 + 0.5^2
        data = from_arrays(torch.eye(200), y, task="regression")
        prior = priors.Learned(priors.Normal(sigma=0.3), by=by, every=2)
        model = BayesianNetwork(nn.Linear(200, 1, bias=False), prior, GAUSS)
    posterior = fit(
        model, guide(model), data, epochs=400, batch_size=200, device="cpu", progress=None,
        optim=partial(torch.optim.Adam, lr=0.1), rates={"groups": 0.3} if by == "gradient" else None,
        schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=400), record_every=400,
        samples=4,
    )  # fmt: skip
    drawn = by == "em" and guide is AutoNormal  # whose moments are of draws: over eight seeds 0.801, sd 0.005
    assert learned(posterior.model) == pytest.approx({"scale": 0.8}, rel=0.06 if drawn else 0.03)


@pytest.mark.parametrize(
    ("per", "module", "shape"),
    [
        ("network", nn.Linear(5, 7), ()),
        ("layer", nn.Linear(5, 7), (1, 1)),
        ("input", nn.Linear(5, 7), (1, 5)),
        ("output", nn.Linear(5, 7), (7, 1)),
        ("input", nn.Conv2d(3, 4, 2), (1, 3, 1, 1)),
        ("output", nn.Conv2d(3, 4, 2), (4, 1, 1, 1)),
        ("input", nn.ConvTranspose1d(3, 4, 2), (3, 1, 1)),
        ("input", nn.Embedding(9, 2), (9, 1)),
        ("output", nn.Embedding(9, 2), (1, 2)),
        ("input", nn.LayerNorm([4, 3]), (1, 1)),
    ],
)
def test_groups(per: str, module: nn.Module, shape: tuple[int, ...]) -> None:
    prior = priors.Learned(priors.Normal(), per=per)
    distribution: Any = prior.for_module("weight", module.weight, module)
    assert distribution.event_shape == module.weight.shape
    (value,) = prior.values().values()
    assert value.shape == shape
    if hasattr(module, "bias"):
        prior.for_module("bias", module.bias, module)
    assert prior.num_learned == value.numel() + (hasattr(module, "bias") and per != "network")


@pytest.mark.parametrize(
    ("per", "module"),
    [("input", nn.Conv1d(4, 4, 1, groups=2)), ("output", nn.ConvTranspose1d(4, 4, 1, groups=2))],
)
def test_channels_that_each_group_counts_anew_share_no_scale(per: str, module: nn.Module) -> None:
    other = "output" if per == "input" else "input"
    for kind in (lambda per: priors.Learned(priors.Normal(), per=per), lambda per: priors.ARD(per=per)):
        kind(other).for_module("weight", module.weight, module)
        with pytest.raises(ValueError, match=f"per='{per}'.*groups=2.*take per='{other}'"):
            kind(per).for_module("weight", module.weight, module)


@pytest.mark.parametrize("per", ["network", "layer", "input", "output"])
@pytest.mark.parametrize("base", [priors.Normal(sigma=0.3), priors.ScaleMixture(), priors.FanInNormal()])
@pytest.mark.parametrize("hidden", [4, 400])
def test_the_fast_step_follows_the_prior_as_it_changes(per: str, base: priors.Prior, hidden: int) -> None:
    """Both of its programs: before and after an update it sees what Pyro's SVI sees on the same noise."""
    net = nn.Sequential(nn.Linear(300, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    data = classes(12, features=300)
    model = BayesianNetwork(net, priors.Learned(base, per=per), likelihoods.Categorical(), 12)
    guide = MeanFieldNormal(model)
    guide()
    optimizer = torch.optim.SGD([*guide.parameters()], lr=0.1)
    step: Any = make_step(model, guide, optimizer, data.train.head(6), fast="eager")
    assert not isinstance(step, ReferenceStep)
    prior = model.prior
    assert isinstance(prior, priors.Learned)
    for _ in range(2):
        noise = normal(*step.noise_shape)
        reference = ReferenceStep(model, guide, optimizer)
        rows = data.train.head(6)
        assert difference(gradients(step, rows, noise), gradients(reference, rows, noise, N=12)) is None
        before = {name: value.clone() for name, value in prior.values().items()}
        with torch.no_grad():
            guide.loc *= 1.1
        prior.update(model, guide)
        assert any(not torch.equal(value, before[name]) for name, value in prior.values().items())


@pytest.mark.parametrize(
    ("by", "fast"),
    [("em", "off"), ("em", "eager"), ("gradient", "off"), ("gradient", "eager")],
)
def test_resuming_within_an_epoch_is_exact(by: str, fast: str, tmp_path: Path) -> None:
    data = classes(30)

    def training(folder: Path, **others: Any) -> Training:
        prior = priors.Learned(priors.ScaleMixture(), by=by, every=2)
        model, guide = classifier(data, prior=prior)
        return Training(
            model, guide, data, epochs=3, batch_size=6, device="cpu", folder=folder, fast=fast, **others
        )

    whole = training(tmp_path / "whole")
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "parts", callbacks=[Interrupts(at=8)]).run()
    resumed = training(tmp_path / "parts")
    assert resumed.resume()
    assert resumed.batch == 3
    resumed.run()
    states = [t.model.state_dict() | t.guide.state_dict() for t in (whole, resumed)]
    assert any("means" in name for name in states[0]) == (by == "em")
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_a_saved_posterior_keeps_its_prior(tmp_path: Path) -> None:
    data = classes(30)
    model, guide = classifier(data, prior=priors.Learned(priors.Normal(), every=1))
    posterior = fit(model, guide, data, epochs=1, batch_size=6, device="cpu", progress=None)
    posterior.save(tmp_path)
    fresh = classifier(data, prior=priors.Learned(priors.Normal(), every=1))
    loaded = Posterior.load(tmp_path, *fresh)
    assert isinstance(loaded.model.prior, priors.Learned)
    assert isinstance(posterior.model.prior, priors.Learned)
    for name, value in posterior.model.prior.values().items():
        assert torch.equal(loaded.model.prior.values()[name], value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learn": ["tau"]}, r"has the parameters loc, scale, but learn=\['tau'\]"),
        ({"learn": ["loc"]}, "no closed form for loc of Normal; learn by='gradient'"),
        ({"learn": "scale"}, "learn must be a list"),
        ({"per": "weight"}, "per must be one of network, layer, input, output"),
        ({"by": "sampling"}, "by must be one of em, gradient"),
        ({"every": 0}, "every must be"),
    ],
)
def test_what_cannot_be_learned_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianNetwork(nn.Linear(2, 1), priors.Learned(priors.Normal(), **options), GAUSS, 12)


def test_a_mixture_of_torchs_names_nothing_to_learn() -> None:
    each = dist.Normal(torch.zeros(2), torch.tensor([0.1, 1.0]))
    mixture = priors.IID(dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), each))
    with pytest.raises(ValueError, match="MixtureSameFamily, names no parameters of its own"):
        BayesianNetwork(nn.Linear(2, 1), priors.Learned(mixture), GAUSS, 12)


def test_an_option_beside_the_parameters_is_not_lost() -> None:
    law = dist.StableWithLogProb(1.5, 0.9, 1.0, 0.0, coords="S")
    prior = priors.Learned(priors.IID(law), learn=["scale"], by="gradient")
    with pytest.raises(ValueError, match=r"StableWithLogProb, cannot be rebuilt from .* loc: its density"):
        BayesianNetwork(nn.Linear(2, 1), prior, GAUSS, 12)


def test_a_point_estimate_a_sampler_and_a_bandit_refuse_it() -> None:
    data = classes(12)
    model, _ = classifier(data, prior=priors.Learned(priors.Normal()))
    with pytest.raises(ValueError, match="would shrink together"):
        fit(model, AutoDelta(model), data, epochs=1, progress=None)
    with pytest.raises(ValueError, match="NUTS keeps the prior fixed"):
        fit(model, None, data, inference=NUTS(), progress=None)
    with pytest.raises(ValueError, match="fixed parameters"):
        priors.Learned(priors.Learned(priors.Normal()))


def test_it_stands_beside_a_hierarchical_prior_whose_guide_knows_no_moments() -> None:
    """Of weights without moments the statistics come from draws."""
    where = {"0.weight": priors.Horseshoe()}
    prior = priors.PerParameter(default=priors.Learned(priors.Normal(), every=1), where=where)
    model = BayesianNetwork(network(width=2), prior, likelihoods.Normal(0.3))
    posterior = fit(model, NonCentredNormal, values(), epochs=5, progress=None)
    learned = posterior.model.learned[0].values()
    assert {"0.bias.scale", "2.weight.scale", "2.bias.scale"} == set(learned)
    assert all(float(value) != 1.0 for value in learned.values())


@pytest.mark.parametrize("epochs", [9, 10])
def test_a_fit_of_fewer_steps_than_an_update_takes_says_so(epochs: int, caplog) -> None:
    data = classes(12)
    prior = priors.Learned(priors.Normal(sigma=5.0), every=20)
    made = classifier(data, prior=prior)
    posterior = fit(*made, data, epochs=epochs, batch_size=6, device="cpu", progress=None)
    said = "the prior was not learned: it is updated every 20 steps, and the fit had 18"
    assert (said in caplog.text) == (epochs == 9)
    assert all((value == 5.0) == (epochs == 9) for value in learned(posterior.model).values())


def test_restarts_learn_their_own_priors() -> None:
    """Chains with learned priors are not batched: each ends as it would alone."""
    data = classes(12)
    make = partial(fit, epochs=2, batch_size=6, device="cpu", progress=None, fast="eager")

    def model() -> BayesianNetwork:
        return classifier(data, prior=priors.Learned(priors.Normal(), every=1))[0]

    both = make(model, MeanFieldNormal, data, chains=2, seed=5)
    alone = make(model, MeanFieldNormal, data, seed=6)
    assert learned(both.chains[1][0]) == learned(alone.model)
    assert learned(both.chains[0][0]) != learned(alone.model)


@pytest.mark.parametrize("by", ["em", "gradient"])
def test_a_posterior_with_a_learned_prior_comes_out_of_a_pickle_as_it_was(by: str) -> None:
    data = classes(12)
    model, guide = classifier(data, prior=priors.Learned(priors.Laplace(), every=1, by=by))
    posterior = fit(model, guide, data, epochs=1, batch_size=6, device="cpu", progress=None)
    again = pickle.loads(pickle.dumps(posterior))
    for one in (posterior, again):  # it is trained further in the same way
        fit(*one.chains[0], data, epochs=1, batch_size=6, device="cpu", progress=None)
    expected = posterior.model.state_dict()
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("law", [dist.Uniform(-1.0, 1.0), dist.Pareto(1.0, 2.0)])
def test_limits_are_not_learned(law: Any) -> None:
    with pytest.raises(ValueError, match="has limits that would be learned"):
        BayesianNetwork(nn.Linear(2, 1), priors.Learned(priors.IID(law), by="gradient"), GAUSS, 12)
