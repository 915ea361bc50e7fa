"""A plain network, a prior and a likelihood make the Pyro model p(y, w | x)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pyrobbb._support import checks
from pyrobbb._support.memory import out_of_memory
from pyrobbb._support.random_state import unique_name
from pyrobbb.likelihoods import Likelihood
from pyrobbb.priors import Prior

Weights = dict[str, Tensor]  # a value for each site


class BayesianNetwork(PyroModule):
    r"""The Pyro model :math:`p(y, w \mid x) = \prod_j P(w_j) \prod_i P(y_i \mid f_w(x_i))`.

    One sample site per named parameter of `network`, under the parameter's own name; one
    `pyro.plate("data", N, subsample=x)`, so that a minibatch of B rows counts N/B times; the
    observation is site `"y"`. `network` itself is copied and left as it was. Its initial values travel
    in `infer["init"]` of each site, where a guide may start from them. Frozen parameters
    (`requires_grad=False`) stay as they are: no sites, and not trained. Dropout acts in training alone.

    Args:
        network: Any `nn.Module` that maps `(B, *features)` to `(B, width)`; tied weights are one site,
            under the first of their names.
        prior: Which distribution each parameter has; those for which it has none are point estimates.
        likelihood: What `y` is, given the network's output.
        N: Number of training data; None is filled in by `fit`.

    Raises:
        ValueError: If an argument is of another kind, the network has no parameter, a parameter has no
            floating-point values, a layer mixes the rows of a batch, or the prior names absent parameters.
    """

    def __init__(
        self, network: nn.Module, prior: Prior, likelihood: Likelihood, N: int | None = None
    ) -> None:
        super().__init__(unique_name("model"))
        for name, value, kind in (
            ("network", network, nn.Module),
            ("prior", prior, Prior),
            ("likelihood", likelihood, Likelihood),
        ):
            if not isinstance(value, kind):
                raise ValueError(f"{name} must be a {kind.__module__}.{kind.__name__}, got {value!r}")
        if isinstance(network, torch.jit.ScriptModule):
            raise ValueError(
                "network is a scripted module, whose parameters cannot be drawn; give its original"
            )
        self.N: Any = None if N is None else checks.count("N", N)
        self.prior = prior
        self.likelihood = deepcopy(likelihood)
        self.network = deepcopy(network)
        self.batched = True  # until torch.vmap cannot take the network
        self.sites = self._make_room(self.network)

    def _make_room(self, network: nn.Module) -> tuple[str, ...]:
        """Turn each Bayesian parameter of `network` into a buffer that holds its initial value."""
        for name, parameter in network.named_parameters():
            _check_values(name, parameter)
        names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
        taken = {"y", "data"} & set(names)
        if taken:
            raise ValueError(
                f"a parameter may not be named {taken.pop()!r}: the model has a site of that name"
            )
        if not names:
            frozen = any(True for _ in network.parameters())
            why = "every parameter of the network is frozen (requires_grad=False)"
            raise ValueError(why if frozen else f"the network has no parameters: {type(network).__name__}")
        check_rows_stay_apart(network)
        self._check_prior(network, names)
        trained = {name: network.get_parameter(name).detach() for name in names}
        sites = [name for name, value in trained.items() if self.prior.distribution(name, value) is not None]
        shared: dict[int, Tensor] = {id(p): p.detach() for p in network.parameters()}
        bayesian = {id(network.get_parameter(name)) for name in sites}
        for path, parameter in list(network.named_parameters(remove_duplicate=False)):
            if id(parameter) in bayesian or not parameter.requires_grad:
                owner, _, attribute = path.rpartition(".")
                module = network.get_submodule(owner)
                delattr(module, attribute)  # tied weights share one buffer, as they shared one parameter
                frozen = (
                    not parameter.requires_grad
                )  # these belong to the model's state, initial values do not
                module.register_buffer(attribute, shared[id(parameter)], persistent=frozen)
        return tuple(sites)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BayesianNetwork:
        """Move or cast everything; torch keeps tied parameters together, and tied buffers we must."""
        network = self._modules["network"]
        first: dict[int, str] = {}  # the path at which each buffer was met first
        every = network.named_buffers(remove_duplicate=False)
        names = {path: first.setdefault(id(buffer), path) for path, buffer in every}
        super()._apply(fn, recurse)
        for path, name in names.items():
            if path != name:
                owner, _, attribute = path.rpartition(".")
                setattr(network.get_submodule(owner), attribute, network.get_buffer(name))
        return self

    def _check_prior(self, network: nn.Module, names: list[str]) -> None:
        """Raise ValueError if the prior names absent parameters; tied weights go by their first name."""
        first = {id(parameter): name for name, parameter in network.named_parameters()}
        every = network.named_parameters(remove_duplicate=False)
        tied = {name: first[id(p)] for name, p in every if name != first[id(p)]}
        try:
            self.prior.check(names)
        except ValueError as error:
            also = ", ".join(f"{other} is {name}" for other, name in tied.items())
            raise ValueError(
                f"{error}; of tied weights the first name counts: {also}" if tied else error
            ) from error

    @property
    def device(self) -> torch.device:
        """Where its parameters and buffers are."""
        module = self._modules["network"]
        return next(tensor.device for part in (module.parameters(), module.buffers()) for tensor in part)

    @property
    def num_weights(self) -> int:
        """Number of Bayesian weights."""
        return sum(value.numel() for value in self.initial().values())

    def initial(self) -> Weights:
        """The network's own initial value of each Bayesian parameter."""
        return {name: self._buffer(name) for name in self.sites}

    def _buffer(self, name: str) -> Tensor:
        owner, _, attribute = name.rpartition(".")
        value = getattr(self._modules["network"].get_submodule(owner), attribute)
        assert isinstance(value, Tensor)
        return value

    def sample_weights(self) -> Weights:
        """Sample every weight site; each value has shape `(*draws, *parameter.shape)`."""
        weights = {}
        for name in self.sites:
            initial = self._buffer(name)
            law = self.prior.distribution(name, initial)
            weights[name] = pyro.sample(name, law, infer={"init": initial})
            assert weights[name].shape[weights[name].dim() - initial.dim() :] == initial.shape
        return weights

    def apply_network(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The network's output for given weights.

        Shapes: weights `(*draws, *parameter.shape)` with the same `draws` for each site, `x` of
        `(B, *features)`; returns `(*draws, B, width)`, computed by `torch.vmap` when there are draws
        and the network allows it, draw by draw otherwise.

        Raises:
            ValueError: If the network does not return one row per row of `x`.
        """
        network = self.network  # here and not within vmap, for Pyro registers its parameters on the way
        if not self.sites:
            return _call(network, {}, x)
        first = self.sites[0]
        draws = weights[first].shape[: weights[first].dim() - self._buffer(first).dim()]
        if not draws:
            return _call(network, weights, x)
        flat = {name: w.reshape(prod(draws), *w.shape[len(draws) :]) for name, w in weights.items()}
        if self.batched:
            try:
                output = vmap(lambda w: _call(network, w, x), randomness="different")(flat)
                return output.reshape(*draws, *output.shape[1:])
            except RuntimeError as error:  # a module that torch cannot batch, an LSTM for one
                if out_of_memory(error):
                    raise
        each = zip(*(w.unbind() for w in flat.values()), strict=True)
        output = torch.stack([_call(network, dict(zip(flat, w, strict=True)), x) for w in each])
        self.batched = False  # one by one it went
        return output.reshape(*draws, *output.shape[1:])

    def log_likelihood(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Log p(y_i | x_i, w) of each row, shape `(*draws, B)`; weights as `apply_network` takes them."""
        output = self.apply_network(weights, x)
        self.likelihood.check(output, y)
        return self.likelihood(output).log_prob(y)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """One draw of p(y, w | x); with `y`, y is observed and its log-likelihood counts N/B times.

        Without `y` the site still reads as observed, at a value drawn from the likelihood: an autoguide
        that sees this trace must never take the prediction for a latent variable.
        """
        B = x.shape[0]
        if y is not None and self.N is not None and B > self.N:
            raise ValueError(f"a batch of {B} rows is larger than the data set, N={self.N}")
        weights = self.sample_weights()
        lead = weights[self.sites[0]].dim() - self._buffer(self.sites[0]).dim() if self.sites else 0
        if lead:  # particles: Pyro left room for the data plate, one dimension of size 1
            weights = {name: w.squeeze(lead - 1) for name, w in weights.items()}
        output = self.apply_network(weights, x)
        self.likelihood.check(output, y)
        with pyro.plate("data", (self.N or B) if y is not None else B, subsample=x):
            law = self.likelihood(output)
            with torch.no_grad():
                value = law.sample() if y is None else y
            return pyro.sample("y", law, obs=value)


def _check_values(name: str, parameter: Tensor) -> None:
    if nn.parameter.is_lazy(parameter):
        raise ValueError(f"parameter {name!r} has no shape yet; call the network once on a batch")
    if not parameter.is_floating_point():
        raise ValueError(f"parameter {name!r} is {parameter.dtype}; weights must be floating point")
    if parameter.is_meta:
        raise ValueError(f"parameter {name!r} is on the device meta, where it has no values")
    if not bool(parameter.isfinite().all()):
        raise ValueError(f"parameter {name!r} holds values that are not finite")


def check_rows_stay_apart(network: nn.Module) -> None:
    """Raise ValueError if a layer is batch normalisation that looks at the other rows of the batch."""
    for name, module in network.named_modules():
        tracks = getattr(module, "track_running_stats", False)
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if (tracks and module.training) or (batch_norm and not tracks):
            advice = (
                "call network.eval() or use LayerNorm or GroupNorm"
                if tracks
                else "use LayerNorm or GroupNorm"
            )
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) mixes the rows of a batch in training mode, "
                f"so it has no likelihood per datum; {advice}"
            )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every layer of `model` in evaluation mode (dropout off); at the end each is as it was."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _call(network: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    output = functional_call(network, dict(weights), (x,)) if weights else network(x)
    if not isinstance(output, Tensor) or output.shape[:1] != x.shape[:1]:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"the network must map (B, *features) to (B, width), got {what} for B={len(x)}")
    return output
