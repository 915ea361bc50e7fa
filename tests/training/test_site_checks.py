"""A guide that does not sample the model's weights is refused before training, in one message."""

from collections.abc import Callable
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import autoguide
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from engine_fakes import classes, nothing_changes
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.site_checks import check_latents, check_sites
from pyrobbb.training.trainer import Training

DATA = classes()
MODEL = BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical(), 12)


class Plain(nn.Module):
    """A guide with sites of the given shapes, and parameters that Pyro does not know."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, f"loc_{name}", nn.Parameter(torch.zeros(shape)))
        self.names = tuple(shapes)

    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> None:
        for name in self.names:
            loc = getattr(self, f"loc_{name}")
            pyro.sample(name, dist.Normal(loc, 0.1).to_event(loc.dim()))


class Handmade(Plain, PyroModule):
    """The same, its parameters known to Pyro."""


class Plated(Handmade):
    """The same, with the units in a plate."""

    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> None:
        with pyro.plate("units", 3):
            for name in self.names:
                loc = getattr(self, f"loc_{name}")
                pyro.sample(name, dist.Normal(loc, 0.1).to_event(loc.dim() - 1))


@pytest.mark.parametrize(
    "make",
    [
        MeanFieldNormal, autoguide.AutoNormal, autoguide.AutoDelta, autoguide.AutoMultivariateNormal,
        autoguide.AutoDiagonalNormal, autoguide.AutoLaplaceApproximation,
        lambda model: Handmade(bias=(3,), weight=(3, 3)), lambda model: Plated(bias=(3,), weight=(3, 3)),
    ],
)  # fmt: skip
def test_guides_that_fit(make: Callable[[Any], nn.Module]) -> None:
    with isolated(0):
        check_sites(MODEL, make(MODEL), DATA.train.head(1))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"weight": (3, 3)}, r"the guide has no site 'bias' \(to hold"),
        ({"weight": (3, 3), "bias": (3,), "more": (2,)}, "has site 'more', which the model lacks$"),
        ({"weight": (3, 2), "bias": (3,)}, r"has site 'weight' of shape \(3, 2\) instead of \(3, 3\)$"),
        ({"wieght": (3, 3), "bias": (3,)}, "has no site 'weight' .*; site 'wieght', which the model lacks$"),
    ],
)
def test_guides_that_do_not_fit(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with nothing_changes(), pytest.raises(ValueError, match=message):
        Training(MODEL, Handmade(**shapes), DATA, epochs=1, batch_size=6, device="cpu")


def test_a_guide_that_starts_outside_the_support() -> None:
    model = BayesianNetwork(nn.Linear(3, 3), priors.IID(dist.HalfNormal(1.0)), likelihoods.Categorical(), 12)
    guide = autoguide.AutoNormal(model, init_loc_fn=lambda site: -torch.ones(site["fn"].event_shape))
    with (
        isolated(0),
        pytest.raises(ValueError, match="the guide draws NaN or an infinite value for 'weight'"),
    ):
        check_sites(model, guide, DATA.train.head(1))


def test_a_guide_whose_parameters_pyro_cannot_see() -> None:
    """Pyro would take no gradient and train nothing, without a word."""
    with pytest.raises(ValueError, match=r"Pyro does not see .* loc_weight, .*derive Plain from"):
        Training(MODEL, Plain(weight=(3, 3), bias=(3,)), DATA, epochs=1, batch_size=6, device="cpu")


class Loose(Handmade):
    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> None:
        pyro.param("free_scale", torch.ones(1))
        super().forward(x, y)


def test_a_parameter_of_pyros_store_alone() -> None:
    message = "'free_scale' is not registered on its module, .* or the module that holds it, an attribute"
    with nothing_changes(), pytest.raises(ValueError, match=message):
        Training(MODEL, Loose(weight=(3, 3), bias=(3,)), DATA, epochs=1, batch_size=6, device="cpu")


class Fixing(BayesianNetwork):
    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> Tensor | None:
        with poutine.condition(data={"bias": torch.zeros(3)}):
            return super().forward(x, y)


class OfEachRow(BayesianNetwork):
    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> Tensor | None:
        sampled = self.sample_weights()
        if x is None:
            return None
        with pyro.plate("data", self.N, subsample=x):
            shift = pyro.sample("z", dist.Normal(0.0, 1.0))
            output = self.apply_network(sampled, x) + shift[..., None]
            return pyro.sample("y", self.observation(output, sampled), obs=y)


class Local(likelihoods.Categorical):
    def forward(self, output: Tensor) -> Any:
        return dist.Categorical(logits=output + pyro.sample("z", dist.Normal(0.0, 1.0)))


class OutOfOrder(likelihoods.Categorical):
    def __init__(self) -> None:
        super().__init__()
        self.off = PyroSample(lambda self: dist.Normal(0.0, self.tau))
        self.tau = PyroSample(dist.LogNormal(0.0, 1.0))

    def forward(self, output: Tensor) -> Any:
        return dist.Categorical(logits=output + self.off)


class Nested(likelihoods.Categorical):
    def __init__(self) -> None:
        super().__init__()
        self.inner = OutOfOrder()

    def forward(self, output: Tensor) -> Any:
        return self.inner(output)


class NoPlate(BayesianNetwork):
    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> Tensor | None:
        sampled = self.sample_weights()
        if x is None:
            return None
        distribution = self.observation(self.apply_network(sampled, x), sampled).to_event(1)
        return pyro.sample("label", distribution, obs=y)


@pytest.mark.parametrize(
    ("kind", "likelihood", "message"),
    [
        (Fixing, likelihoods.Categorical, "does not sample its site 'bias': a handler in forward"),
        (OfEachRow, likelihoods.Categorical, "samples 'z', .* latent variable of each row is not supported"),
        (BayesianNetwork, Local, "samples 'z', .* make it an attribute of the likelihood or prior"),
        (BayesianNetwork, Nested, "define the attribute 'tau' before those that depend on it"),
        (BayesianNetwork, OutOfOrder, "define the attribute 'tau' before those that depend on it"),
        (NoPlate, likelihoods.Categorical, 'must observe y in the plate "data"'),
    ],
)
@pytest.mark.parametrize("guide", [MeanFieldNormal, autoguide.AutoNormal])
def test_programs_that_predictions_could_not_follow(
    kind: Any, likelihood: Any, message: str, guide: Any
) -> None:
    model = kind(nn.Linear(3, 3), priors.Normal(), likelihood(), 12)
    with nothing_changes(), pytest.raises(ValueError, match=message):
        Training(model, guide(model), DATA, epochs=1, batch_size=6, device="cpu")


def test_frozen_parameters_are_refused_for_pyro_would_train_them() -> None:
    guide = Handmade(weight=(3, 3), bias=(3,))
    guide.loc_bias.requires_grad_(False)
    with pytest.raises(ValueError, match="'loc_bias' of the guide is frozen"):
        Training(MODEL, guide, DATA, epochs=1, batch_size=6, device="cpu")
    some = priors.PerParameter(where={"bias": priors.Deterministic()}, default=priors.Normal())
    model = BayesianNetwork(nn.Linear(3, 3), some, likelihoods.Categorical(), 12)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'network.bias' of the model is frozen; freeze it in the network"):
        Training(model, MeanFieldNormal(model), DATA, epochs=1, batch_size=6, device="cpu")


class Unsaid(dist.TorchDistribution):  # type: ignore[misc]
    """A distribution of a user's own: what it needs to be a prior, and no `support`."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(event_shape=shape, validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return torch.randn(*sample_shape, *self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * value.square().flatten(-len(self.event_shape)).sum(-1)


class OfUnsaid(priors.Prior):
    def distribution(self, name: str, parameter: Tensor) -> Any:
        return Unsaid(parameter.shape)


def test_a_prior_that_does_not_say_where_it_lives_is_taken() -> None:
    with pytest.raises(NotImplementedError):
        _ = Unsaid(torch.Size([3])).support
    model = BayesianNetwork(nn.Linear(3, 3), OfUnsaid(), likelihoods.Categorical(), 12)
    training = Training(model, MeanFieldNormal(model), DATA, epochs=1, batch_size=6, device="cpu")
    training.run()
    assert training.history.rows[-1].kl > 0


class Elsewhere(priors.Prior):
    """A prior whose constants stay where they were made, as on the CPU beside a model on a GPU."""

    device = "cpu"

    def distribution(self, name: str, parameter: Tensor) -> Any:
        loc, scale = torch.tensor([0.0, 1.0], device=self.device)
        return priors.elementwise(dist.Normal(loc, scale, validate_args=False), parameter)


def test_a_prior_on_another_device_is_named_before_the_training() -> None:
    model = BayesianNetwork(nn.Linear(3, 3), Elsewhere(), likelihoods.Categorical(), 12)
    model.prior.device = "meta"
    with pytest.raises(ValueError, match=r"prior of 'weight' draws weights on meta, but the model .* on cpu"):
        check_latents(model, DATA.train)
