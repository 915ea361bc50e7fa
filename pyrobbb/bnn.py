"""A plain network, a prior and a likelihood make the Pyro model p(y, w | x)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import count
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Distribution

from pyrobbb._support import checks, text
from pyrobbb._support.distribution_parts import applied, draw_from, own_tensors
from pyrobbb._support.flat import without_expansion
from pyrobbb._support.network_checks import check_layers
from pyrobbb._support.prior_checks import check_event, sample_of
from pyrobbb._support.random_state import isolated, seed_generators
from pyrobbb.functional_network import FunctionalNetwork, Weights, network_with
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import FanInNormal, Learned, Prior

__all__ = ["BayesianNetwork", "Weights", "network_with"]

MIXED_UP = (
    "the prior cannot take several draws of its latents at once: in its distribution(name, parameter) write "
    "priors.beside(self.NAME, parameter), which keeps draws apart from a weight's rows; of a vector of "
    "scales, one for each group of inputs, self.NAME[..., None, groups]"
)


class BayesianNetwork(FunctionalNetwork):
    r"""The Pyro model :math:`p(y, w \mid x) = \prod_j P(w_j) \prod_i P(y_i \mid f_w(x_i))`.

    One sample site per named parameter of `network`, under the parameter's own name; one
    `pyro.plate("data", N, subsample=x)`, so that a minibatch of B rows counts N/B times; the
    observation is site `"y"`. `model()` without data samples the weights alone. `network` itself is copied
    and left as it was. Its initial values travel in `infer["init"]` of each site, where a guide may start
    from them. Frozen parameters (`requires_grad=False`) stay as they are: they have no sites and are not
    trained. The padding row of an embedding also keeps its value; its KL is charged until q equals the prior
    there. Where another layer shares the embedding's weights, no row is padding: the copy's `padding_idx` is
    None. Dropout is active only in training.

    Its base `FunctionalNetwork` has what belongs to the network alone, such as `apply_network`, `initial` and
    `num_weights`.

    The prior and likelihood may have latent sites of their own, sampled once and outside the plate: a
    `PyroSample` attribute of either is the site `prior.NAME` or `likelihood.NAME`, and a prior may call
    `pyro.sample` in `distribution`.

    Args:
        network: Any `nn.Module` that maps `(B, *features)` to `(B, *grid, width)`; tied weights are one site,
            under the first of their names.
        prior: Which distribution each parameter has; those for which it has none are point estimates. By
            default `FanInNormal`, under which the size of the output does not depend on the widths.
        likelihood: Required, though it follows an optional argument: what `y` is, given the network's
            output; values on a grid are independent given the output.
        N: Number of training data; None until `fit` reads it from the data.

    Raises:
        ValueError: If the likelihood is missing, an argument has the wrong type, the network has no
            parameter, a parameter is empty or has no floating-point values, a layer mixes the rows of a batch
            or keeps a weight that a hook made, or the prior names absent parameters, does not fit their
            shapes or would not be trained.
    """

    def __init__(
        self,
        network: nn.Module,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        N: int | None = None,
    ) -> None:
        super().__init__("model")
        prior = FanInNormal() if prior is None else prior
        for name, value, kind in (
            ("network", network, nn.Module),
            ("prior", prior, Prior),
            ("likelihood", likelihood, Likelihood),
        ):
            if not isinstance(value, kind):
                raise ValueError(
                    f"{name} must be a {kind.__module__}.{kind.__name__}, got {text.short(value)}"
                )
        assert likelihood is not None
        check_layers(network)
        self.N: Any = None if N is None else checks.count("N", N)
        self.input_dtype: torch.dtype | None = None  # of the rows that it was fitted to
        self.prior = deepcopy(prior)
        self._priors = ["prior"] if isinstance(prior, nn.Module) else []
        for i, part in enumerate(self.prior.parts()):
            if part is not self.prior and isinstance(part, nn.Module):  # within another prior, a plain one
                self._priors.append(f"prior_{i}")
                setattr(self, self._priors[-1], part)
        self.likelihood = deepcopy(likelihood)
        hyper = self._hold(network, self.prior, [getattr(self, part) for part in self._priors])
        for _, module, attribute in self._own_latents(*self._priors, "likelihood"):
            check_event(module, attribute)
        self.prior_sites = tuple(site for site, _, _ in self._own_latents(*self._priors))
        self.likelihood_sites = tuple(site for site, _, _ in self._own_latents("likelihood"))
        self.other_latents = (*self.prior_sites, *self.likelihood_sites, *hyper)
        if twice := {*self.sites} & {*self.other_latents}:
            raise ValueError(
                f"a parameter may not be named {min(twice)!r}: a latent of the model has that name"
            )
        self.latents = (*self.sites, *self.other_latents)
        self.to(self.device)  # prior and likelihood follow a network that lies on a GPU

    def forward(self, x: Tensor | None = None, y: Tensor | None = None) -> Tensor | None:
        """One draw of p(y, w | x); with `y`, y is observed. Its log-likelihood counts N/B times.

        Without `y` the site still reads as observed, at a value drawn from the likelihood: an autoguide
        that sees this trace must never take the prediction for a latent variable. There may then be more
        rows than N, which count once. Without `x` only the weights are sampled, which is all a guide needs
        to set itself up.
        """
        if x is not None and y is not None and len(x) > self._size():
            raise ValueError(f"a batch of {len(x)} rows is larger than the data set, N={self.N}")
        sampled = self.sample_weights()
        if x is None:
            return None
        lead = len(self.draws_of(sampled))
        if lead and all(w.shape[lead - 1] == 1 for w in sampled.values()):
            # particles: Pyro left room for the data plate, one dimension of size 1; Predictive leaves none
            sampled = {name: w.squeeze(lead - 1) for name, w in sampled.items()}
            lead -= 1
        distribution = self.observation(self.apply_network(sampled, x), sampled, draws=lead)
        # a handler may give y too, as `condition` does: N counts without y as well
        N = max(len(x), self.N or 0) if y is None else self._size()
        with pyro.plate("data", N, subsample=x):  # Pyro takes the length alone of what stands for indices
            with torch.no_grad():
                value = draw_from(distribution) if y is None else self.encoded(distribution, y, lead)
            return pyro.sample("y", distribution, obs=value)

    def sample_weights(self) -> Weights:
        """Sample every weight, each of shape `(*draws, *parameter.shape)`, and each `PyroSample`.

        What a prior samples in `distribution` is in the trace alone.
        """
        sampled, events = {}, {}
        with self._pyro_context:
            for part in self._priors:
                getattr(self, part)  # so that Pyro registers its parameters
            for name, module, attribute in self._own_latents(*self._priors, "likelihood"):
                distribution = sample_of(module, attribute)
                sampled[name], events[name] = pyro.sample(name, distribution), distribution.event_shape
                self._pyro_context.set(module._pyro_get_fullname(attribute), sampled[name])
            for name in self.sites:
                initial = self._buffer(name)
                told = {"init": initial, "module": self.owner(name)}
                sampled[name] = pyro.sample(name, self.prior_of(name), infer=told)
                events[name] = initial.shape
        return _same_draws(sampled, events)

    def prior_of(self, name: str) -> TorchDistribution:
        """The prior of the weight site `name`; a draw of it, if it has latent sites of its own."""
        parameter = self._buffer(name)
        distribution = self.prior.for_module(name, parameter, self.owner(name))
        assert distribution is not None
        if distribution.event_shape != parameter.shape:  # of several draws, since one was checked
            raise ValueError(MIXED_UP)
        return distribution

    def observation(
        self, output: Tensor, latents: Mapping[str, Tensor] | None = None, *, draws: int = 0
    ) -> TorchDistribution:
        """p(y | f) for network outputs `(*draws, B, *grid, width)`, with batch shape `(*draws, B)`.

        Args:
            output: The network's output.
            latents: A value `(*draws, *event)` of each latent site of the likelihood, which sees it with
                the shape `(*draws, 1, ..., *event)`, to broadcast with the output.
            draws: Number of dimensions before the rows.

        Raises:
            ValueError: If the likelihood's distribution has another batch shape, or the likelihood would mix
                up the draws of a latent.
        """
        likelihood = self.likelihood
        if output.dim() < draws + 2:
            name, shape = type(likelihood).__name__, tuple(output.shape[draws:])
            raise ValueError(f"{name} needs a network output of shape (B, width), got {shape}")
        own = {name: (latents or {})[name] for name in self.likelihood_sites}
        if own and draws and len(output) in output.shape[1:]:
            # draws may pass for rows where there are as many: try it with a number that no dimension has
            more = next(n for n in count(len(output) + 1) if n not in output.shape[1:])
            again = torch.arange(more, device=output.device) % len(output)
            other = {n: value.expand(len(output), *value.shape[1:])[again] for n, value in own.items()}
            with poutine.block():
                self._observation(output[again], other, draws)
        return self._observation(output, own, draws)

    def encoded(self, distribution: TorchDistribution, y: Tensor, draws: int = 0) -> Tensor:
        """`y` as `distribution` takes it; ValueError if its shape is another."""
        y = self.likelihood.encode(y)
        rows, event = distribution.batch_shape[draws], tuple(distribution.event_shape)
        if len(y) != rows:
            raise ValueError(f"x and y differ in length: the network gave {rows} rows, y has {len(y)}")
        if y.shape[1:] != event:
            advice = "; an output on a grid has its width last, (B, *grid, width)" if len(event) > 1 else ""
            if (*y.shape[1:], 1) == event:
                advice = "; give y[..., None]"
            raise ValueError(
                f"{type(self.likelihood).__name__}: the network's output fits y of shape "
                f"{(rows, *event)}, got {tuple(y.shape)}{advice}"
            )
        return y

    def log_likelihood(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Log p(y_i | x_i, w) in nats, shape `(*draws, B)`; `weights` holds the likelihood's latents, too.

        Raises:
            ValueError: If x, y and the likelihood do not fit one another.
        """
        draws = len(self.draws_of(weights))
        distribution = self.observation(self.apply_network(weights, x), weights, draws=draws)
        return distribution.log_prob(self.encoded(distribution, y, draws))

    def prior_draw(self) -> Weights:
        """What `sample_weights` draws, from the prior.

        Random state and outer traces are left as they were, so a second call returns the same draw.
        """
        with isolated(device=self.device), poutine.block(), torch.no_grad(), self._pyro_context:
            return self.sample_weights()

    def priors_given(self, values: Mapping[str, Tensor]) -> dict[str, TorchDistribution]:
        """The prior of each latent, given a value of every one."""
        with poutine.block(), poutine.condition(data=dict(values)):
            nodes = poutine.trace(self).get_trace().nodes
        return {name: nodes[name]["fn"] for name in self.latents}

    @property
    def learned(self) -> list[Learned]:
        """The priors that are learned with the posterior."""
        return [module for module in self.modules() if isinstance(module, Learned)]

    @property
    def prior_parameters(self) -> list[nn.Parameter]:
        """The prior's own parameters."""
        return [parameter for part in self._priors for parameter in self._modules[part].parameters()]

    @property
    def prior_buffers(self) -> list[Tensor]:
        """The prior's buffers, which may change in training, such as what is learned in closed form."""
        return [buffer for part in self._priors for buffer in self._modules[part].buffers()]

    def centres(self) -> dict[str, Tensor]:
        """The initial value of each weight whose prior depends on it, as `Centred` does.

        No `state_dict` holds these values, so a saved posterior keeps them apart.
        """
        with isolated(device=self.device), poutine.block(), torch.no_grad():
            return {name: value for name, value in self.initial().items() if self._prior_reads(name, value)}

    def _prior_reads(self, name: str, value: Tensor) -> bool:
        """Whether the prior of a weight depends on its value: asked again, for other numbers throughout."""
        parts = []
        for each in (value, value.abs().mul_(2).add_(1)):
            seed_generators(0, value.device)  # a prior may draw
            distribution = self.prior.for_module(name, each, self.owner(name))
            parts.append([without_expansion(part) for part in own_tensors(distribution)])
        given, other = parts
        return len(given) != len(other) or not all(map(torch.equal, given, other))

    def check_draws(self) -> None:
        """Raise ValueError if the prior would take several draws of its latents for a weight's rows."""
        if not self.other_latents:
            return
        # draws pass for rows where there are as many: try it with a number that no dimension has
        dims = {n for name in self.sites for n in self._buffer(name).shape}
        many = next(n for n in count(2) if n not in dims)
        with isolated(device=self.device), poutine.block(), torch.no_grad(), self._pyro_context:
            try:
                with poutine.trace() as seen, pyro.plate("draws", many, dim=-2):  # where Pyro puts particles
                    self.sample_weights()
            except Exception as error:  # torch cannot broadcast or index them
                raise ValueError(MIXED_UP) from error
        if any(seen.trace.nodes[name]["fn"].batch_shape != (many, 1) for name in self.sites):
            raise ValueError(MIXED_UP)

    def _own_latents(self, *parts: str) -> Iterator[tuple[str, PyroModule, str]]:
        """Each `PyroSample` of these parts, prior or likelihood: its site, its module and its attribute.

        The sites are named here because Pyro's names begin with the model's, which differs between processes.
        """
        # `_modules[...]`, here and below: reading `self.network` has Pyro register its parameters
        for part in parts:
            for path, module in self._modules[part].named_modules(prefix=part):
                for attribute in getattr(module, "_pyro_samples", ()):
                    yield f"{path}.{attribute}", module, attribute

    def _observation(self, output: Tensor, latents: Mapping[str, Tensor], draws: int) -> TorchDistribution:
        likelihood, seen = self.likelihood, dict(latents)
        if draws:  # room for the rows, so that they broadcast with the output
            for name, value in latents.items():
                room = (1,) * max(output.dim() - value.dim(), 1)
                seen[name] = value.reshape(value.shape[:draws] + room + value.shape[draws:])
        with self._pyro_context:
            for site, module, attribute in self._own_latents("likelihood"):
                self._pyro_context.set(module._pyro_get_fullname(attribute), seen[site])
            try:
                distribution = likelihood(output)
            except RuntimeError as error:
                if not (seen and draws and re.search("size|shape", str(error))):
                    raise
                shapes = " and ".join(f"{name} {tuple(value.shape)}" for name, value in seen.items())
                raise ValueError(
                    f"{type(likelihood).__name__} must take all draws at once, here an output of shape "
                    f"{tuple(output.shape)} and {shapes}: {text.reason(error)}"
                ) from error
        if not isinstance(distribution, TorchDistributionMixin):
            kind = f"{type(distribution).__module__}.{type(distribution).__name__}"
            raise ValueError(
                f"{type(likelihood).__name__} must return a distribution of pyro.distributions, got {kind}"
            )
        given, rows = distribution.batch_shape, output.shape[: draws + 1]
        if given[: draws + 1] != rows or given != output.shape[: min(len(given), output.dim() - 1)]:
            raise ValueError(
                f"{type(likelihood).__name__} gave a distribution of batch shape {tuple(given)} for an "
                f"output of shape {tuple(output.shape)}; it must be {tuple(output.shape[:-1])}, one "
                f"observation per row: end forward with .to_event(1) if outputs are independent"
            )
        grid = len(given) - len(rows)
        return distribution.to_event(grid) if grid else distribution

    def _size(self) -> int:
        if self.N is None:
            raise ValueError(
                "the number of training rows is unknown: pass N= to BayesianNetwork, or call fit"
            )
        return self.N

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("prior", "likelihood") or "latents" not in vars(self):
            super().__setattr__(name, value)
            return
        given = {"prior": self.prior, "likelihood": self.likelihood, name: value}
        other = BayesianNetwork(network_with(self, self.initial()), **given)
        differ = ", ".join(sorted({*self.latents} ^ {*other.latents}))
        # torch puts a module in the place of another, but not the modules of which a prior is made
        replaced = name != "prior" or self._priors == other._priors in ([], ["prior"])
        if differ or not replaced:
            what = f"sites (they differ in {differ})" if differ else "modules"
            raise ValueError(
                f"the model's {what} were made for another {name}: build a new BayesianNetwork with it"
            )
        super().__setattr__(name, value if value is given[name] is getattr(self, name) else deepcopy(value))
        self.to(self.device)

    def __copy__(self) -> BayesianNetwork:
        """A shallow copy is a view of the same model: its parts, and their names, are shared."""
        view = type(self).__new__(type(self))
        view.__dict__.update(self.__dict__)
        return view

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BayesianNetwork:
        """Move or cast everything, the distributions of latents and the dtype of the inputs with it."""
        super()._apply(fn, recurse)
        if self.input_dtype is not None:
            self.input_dtype = fn(torch.empty(0, dtype=self.input_dtype)).dtype
        for module in self.modules():  # Pyro leaves the distribution of a `PyroSample` where it is
            own = getattr(module, "_pyro_samples", {})
            own.update({k: applied(fn, v) for k, v in own.items() if isinstance(v, Distribution)})
        return self


def _same_draws(sampled: Weights, events: Mapping[str, torch.Size]) -> Weights:
    """Each value `(*draws, *event)` with the same draws: a handler may have fixed some, as `condition` does.

    Draws come first: `Predictive` leaves room for the data plate after those of a few values only.
    """
    for name, event in events.items():
        if sampled[name].shape[max(0, sampled[name].dim() - len(event)) :] != event:
            raise ValueError(
                f"the site {name!r} was given a value of shape {tuple(sampled[name].shape)}, which must end "
                f"in {tuple(event)}; if another guide has parameters of this name, call "
                f"pyro.clear_param_store()"
            )
    own = {name: value.shape[: value.dim() - len(events[name])] for name, value in sampled.items()}
    if len(set(own.values())) <= 1:
        return sampled
    most = max(map(len, own.values()))
    own = {name: torch.Size([*shape, *[1] * (most - len(shape))]) for name, shape in own.items()}
    draws = torch.broadcast_shapes(*own.values())
    return {
        name: value.reshape(own[name] + events[name]).expand(draws + events[name])
        for name, value in sampled.items()
    }
