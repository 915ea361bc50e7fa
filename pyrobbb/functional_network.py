"""A network as a function of its weights: f_w(x) for any weights, or for many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from pyrobbb._support.chunking import out_of_memory
from pyrobbb._support.copies import own_copy, wrapped
from pyrobbb._support.model_inputs import OutputShapeError
from pyrobbb._support.network_state import copied, nothing_left, take_padding
from pyrobbb._support.random_state import Named, isolated
from pyrobbb.priors import Prior
from pyrobbb.weight_sites import make_room, owner_of, places, tie, tied_buffers, weights_in_order

Weights = dict[str, Tensor]  # a value for each site


class FunctionalNetwork(Named):
    r"""A network :math:`f_w(x)` whose Bayesian weights :math:`w` are inputs.

    The base of `BayesianNetwork`. `sites` are the names of these weights; `places`, each place of the network
    that holds one, and its site, as tied weights lie at several. `initial()` returns the values that the
    network came with.
    """

    network: nn.Module
    sites: tuple[str, ...]
    places: dict[str, str]
    _recurs = False  # of a model that an earlier version pickled

    def _hold(self, network: nn.Module, prior: Prior, prior_modules: Sequence[nn.Module]) -> list[str]:
        """Take a copy of `network`, without its Bayesian weights; the sites that the prior samples itself.

        Called when prior and likelihood are set: the order of a model's parameters is that of checkpoints.
        """
        self.network = copied(network)
        self.batched = True  # until torch.vmap fails on the network
        modules = [*self.network.modules()]
        self._attends = any(isinstance(module, nn.MultiheadAttention) for module in modules)
        self._recurs = any(isinstance(module, nn.RNNBase) for module in modules)
        self._padding = take_padding(self.network)  # which row of each embedding pads, by the weights' name
        # `_buffered`: the paths of the parameters, Bayesian or frozen, that are buffers now; the network may
        # have others, such as running means, which are not weights
        self.sites, hyper, self._buffered = make_room(self.network, prior, prior_modules)
        # a site and its number of dimensions: a value has those of the draws before them (`draws_of`)
        self._first = next(((name, self._buffer(name).dim()) for name in self.sites), ("", 0))
        self.places = places(self.network, self.sites)
        return hyper

    def apply_network(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The network's output for given weights.

        Shapes: weights `(*draws, *parameter.shape)` with the same `draws` for each site, `x` of
        `(B, *features)`; returns `(*draws, B, *grid, width)`, computed by `torch.vmap` when there are draws
        and the network allows it, draw by draw otherwise.

        Raises:
            ValueError: If the network does not return one row per row of `x`.
        """
        network = self.network  # outside vmap: Pyro registers its parameters on the way
        weights = self.with_padding({name: weights[name] for name in self.sites})
        draws = self.draws_of(weights)
        weights = {path: weights[name] for path, name in self.places.items()}
        if not draws:
            return self._call(network, weights, x)
        flat = {name: w.reshape(prod(draws), *w.shape[len(draws) :]) for name, w in weights.items()}
        if self.batched:
            try:
                with Unfused() if self._attends else nullcontext():
                    output = vmap(lambda w: self._call(network, w, x), randomness="different")(flat)
                return output.reshape(*draws, *output.shape[1:])
            except RuntimeError as error:  # a module that torch cannot batch, such as an LSTM
                if out_of_memory(error):
                    raise
        each = zip(*(w.unbind() for w in flat.values()), strict=True)
        output = torch.stack([self._call(network, dict(zip(flat, w, strict=True)), x) for w in each])
        self.batched = False  # vmap unsupported: loop over draws from now on
        return output.reshape(*draws, *output.shape[1:])

    def _call(self, network: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        # `places` names each tensor once; with `tie_weights` torch fills a module that has two paths twice,
        # and leaves it filled
        with nothing_left(network), _differentiable(network) if self._recurs else nullcontext():
            output = (
                functional_call(network, dict(weights), (x,), tie_weights=False) if weights else network(x)
            )
        if not isinstance(output, Tensor) or output.shape[:1] != x.shape[:1]:
            what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            advice = (
                "" if isinstance(output, Tensor) else ": return one tensor, with all outputs side by side"
            )
            raise OutputShapeError(
                f"the network must map (B, *features) to (B, *grid, width), got {what} for B={len(x)}{advice}"
            )
        if output.requires_grad and not torch.is_grad_enabled() and not wrapped(output):
            return output.detach()  # of a network that takes a gradient itself
        return output

    def draws_of(self, weights: Mapping[str, Tensor]) -> torch.Size:
        """The leading dimensions of `weights`, before the parameters' own."""
        if not self.sites:
            return torch.Size()
        name, dims = self._first
        return weights[name].shape[: weights[name].dim() - dims]

    def with_padding(self, weights: Weights, values: Weights | None = None) -> Weights:
        """`weights` with the padding rows of embeddings from `values`, by default the initial ones."""
        for name, row in self._padding.items():
            if name in weights:
                value = self._buffer(name) if values is None else values[name]
                kept = torch.arange(len(self._buffer(name)), device=value.device) == row
                weights = {**weights, name: torch.where(kept[:, None], value, weights[name])}
        return weights

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move or cast everything; torch keeps tied parameters tied, but not tied buffers."""
        network = self._modules["network"]
        tied = tied_buffers(network)
        super()._apply(fn, recurse)
        tie(network, tied)
        return self

    @property
    def device(self) -> torch.device:
        """The device of its parameters and buffers."""
        return next(self._tensors()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's first parameter or buffer that is of floating point."""
        return next(tensor.dtype for tensor in self._tensors() if tensor.is_floating_point())

    @property
    def num_weights(self) -> int:
        """Number of Bayesian weights."""
        return sum(value.numel() for value in self.initial().values())

    @property
    def last_layer(self) -> list[str]:
        """The sites of the last layer that has any, tied ones included."""
        owner = [*self.places][-1].rpartition(".")[0]
        there = {name for path, name in self.places.items() if path.rpartition(".")[0] == owner}
        return [name for name in self.sites if name in there]

    @property
    def every_weight(self) -> Weights:
        """Each weight that lies in the network now, in order, be it Bayesian, frozen or a point estimate."""
        return dict(weights_in_order(self._modules["network"], self._buffered))

    @property
    def frozen(self) -> Weights:
        """The network's frozen weights, which stay as they are."""
        return {
            name: value
            for name, value in self.every_weight.items()
            if not isinstance(value, nn.Parameter) and name not in self.places
        }

    def initial(self) -> Weights:
        """The network's own initial value of each Bayesian parameter."""
        return {name: self._buffer(name) for name in self.sites}

    def owner(self, name: str) -> nn.Module:
        """The module of the network that the parameter `name` belongs to."""
        return owner_of(self._modules["network"], name)[0]

    def padding(self) -> dict[str, Tensor]:
        """The padding row of each Bayesian embedding: fixed, where the network's own value lies."""
        return {name: self._buffer(name)[row] for name, row in self._padding.items() if name in self.sites}

    def _tensors(self) -> Iterator[Tensor]:
        module = self._modules["network"]
        return chain(module.parameters(), module.buffers())

    def _buffer(self, name: str) -> Tensor:
        return self._modules["network"].get_buffer(name)


def network_with(model: FunctionalNetwork, weights: Mapping[str, Tensor]) -> nn.Module:
    """An ordinary network, in evaluation mode, with the given weights as its parameters.

    To train it, call `.train()`, without which its dropout stays off.

    Args:
        model: Whose architecture to use.
        weights: One value of each site, such as `posterior.mean_weights()`, of the parameter's own shape.

    Raises:
        ValueError: If a site is missing, or a value has another shape.
    """
    with isolated():  # a prediction in another thread puts draws in the place of weights
        network = own_copy(model.network)
    made: dict[str, nn.Parameter] = {}  # tied weights are one parameter again
    for path, name in model.places.items():
        module, attribute = owner_of(network, path)
        shape = getattr(module, attribute).shape
        if name not in weights or weights[name].shape != shape:
            got = tuple(weights[name].shape) if name in weights else "nothing"
            raise ValueError(f"weights[{name!r}] must have shape {tuple(shape)}, got {got}")
        delattr(module, attribute)
        parameter = made.setdefault(name, nn.Parameter(weights[name].detach().clone()))
        module.register_parameter(attribute, parameter)
    return network.eval()


class Unfused(TorchFunctionMode):
    """Changes nothing, but while a mode is on, torch's attention does without its kernel for evaluation.

    That has no gradient, and within `vmap` it is not seen that one is wanted.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def _differentiable(network: nn.Module) -> Iterator[None]:
    """Without cuDNN where its recurrent layers would have no gradient: in evaluation mode."""
    cudnn = torch.backends.cudnn  # its setting is the whole process's: read and written only where it matters
    without = torch.is_grad_enabled() and any(
        isinstance(module, nn.RNNBase) and not module.training for module in network.modules()
    )
    if not (without and cudnn.enabled):
        yield
        return
    cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = True
