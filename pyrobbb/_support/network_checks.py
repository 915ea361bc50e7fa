"""What networks and priors must be for a model to be built from them; what a call leaves on a network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Delta, ImproperUniform, TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from pyrobbb._support.copies import own_copy, wrapped
from pyrobbb._support.distribution_parts import own_tensor, univariate
from pyrobbb._support.flat import strided
from pyrobbb._support.random_state import isolated
from pyrobbb._support.settings import own_modules

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
DROPOUT = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
NORMALISATIONS = (nn.LayerNorm, nn.RMSNorm)  # whose gains may have more than one dimension
NOT_OF_EMBEDDINGS = {  # options, and why not
    "max_norm": "it changes the drawn weights in place, so they are no longer draws; leave it out, since the "
    "prior keeps the weights small",
    "sparse": "the posterior of every row changes at each step; use sparse=False",
    "scale_grad_by_freq": "its gradients are not those of the free energy; leave it out",
}
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
LEAVES_WEIGHTS = {  # torch's hooks, and what takes their place
    WeightNorm: "torch.nn.utils.parametrizations.weight_norm is its new form",
    SpectralNorm: "torch.nn.utils.parametrizations.spectral_norm is its new form",
    BasePruningMethod: "torch.nn.utils.prune.remove(layer, name) makes it an ordinary weight",
}

UNFIT: dict[type, str] = {  # as priors, and why
    torch.distributions.VonMises: "it is normalised on a circle, not on the real line",
    Delta: "it has no width; Deterministic() leaves a weight without a prior",
    ImproperUniform: "it cannot be drawn from; as flat, and drawn from, is "
    "dist.Normal(torch.zeros_like(parameter), 1.0).mask(False).to_event(parameter.dim())",
}


def check_values(name: str, parameter: Tensor) -> None:
    """Raise ValueError unless a parameter has values, finite ones of floating point."""
    if nn.parameter.is_lazy(parameter):
        raise ValueError(f"parameter {name!r} has no shape yet; call the network once on a batch")
    if not parameter.is_floating_point():
        raise ValueError(f"parameter {name!r} is {parameter.dtype}; weights must be floating point")
    if parameter.is_meta:
        raise ValueError(f"parameter {name!r} is on the device meta, where it has no values")
    if not parameter.numel():
        raise ValueError(
            f"parameter {name!r} of shape {tuple(parameter.shape)} has no values; leave its layer out"
        )
    if not bool(parameter.isfinite().all()):
        raise ValueError(f"parameter {name!r} holds values that are not finite")


def is_vector(parameter: Tensor, module: nn.Module | None) -> bool:
    """Whether a parameter of `module` is no weight matrix: a bias, or what a normalisation multiplies by."""
    return parameter.dim() < 2 or isinstance(module, NORMALISATIONS)


def check_rows_stay_apart(network: nn.Module) -> None:
    """Raise ValueError for batch normalisation, which mixes rows, and for running statistics in training."""
    for name, module in network.named_modules():
        tracks = getattr(module, "track_running_stats", False)
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if (tracks and module.training) or (batch_norm and not tracks):
            advice = "call network.eval() or " if tracks else ""
            fault = "mixes the rows of a batch" if batch_norm else "changes its running statistics"
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) {fault} in training mode, so it has no likelihood "
                f"per datum; {advice}use LayerNorm or GroupNorm"
            )


def dropping(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each layer that drops values in training, by its path: some do besides those of dropout alone."""
    for path, layer in network.named_modules():
        own = "p" if isinstance(layer, nn.modules.dropout._DropoutNd) else "dropout"
        if isinstance(layer, DROPOUT) and layer.training and getattr(layer, own) > 0:
            yield path, layer


def check_layers(network: nn.Module) -> None:
    """Raise ValueError for a layer of which no copy with drawn weights can be made, or none that is right.

    That is a scripted one, one for several devices, one without a shape yet, one that samples a weight
    itself, one with a weight that a hook of torch's makes at each call and leaves there, and an embedding
    that changes its weights as it is called, or has other gradients.
    """
    for name, module in network.named_modules():
        what = f"layer {name!r}" if name else "network"
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{what} is a scripted module, whose parameters cannot be drawn; give its original"
            )
        if isinstance(module, WRAPPERS):
            raise ValueError(
                f"{what} is a {type(module).__name__}, which runs its layers on several devices; give its "
                f".module"
            )
        for key in getattr(module, "_pyro_samples", ()):
            raise ValueError(
                f"{what} has a PyroSample {key!r}, which would have no posterior in predictions: make it an "
                f"nn.Parameter, prior= says how it is distributed"
            )
        for key, buffer in module._buffers.items():  # of a parameter `check_values` says so
            if buffer is not None and nn.parameter.is_lazy(buffer):
                raise ValueError(
                    f"the buffer {key!r} of layer {name!r} has no shape yet; call the network once on a batch"
                )
        trained = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        for hook in module._forward_pre_hooks.values() if trained else ():
            for kind, instead in LEAVES_WEIGHTS.items():
                if isinstance(hook, kind):
                    raise ValueError(
                        f"layer {name!r} ({type(module).__name__}) has a weight that {kind.__name__} makes "
                        f"at each call and leaves there, where a draw must not stay: {instead}"
                    )
        embedding = isinstance(module, EMBEDDINGS) and module.weight.requires_grad
        for option, why in NOT_OF_EMBEDDINGS.items() if embedding else ():
            value = getattr(module, option)
            if value is not None and value is not False:
                raise ValueError(f"layer {name!r} ({type(module).__name__}) has {option}={value}, but {why}")


def copied(network: nn.Module) -> nn.Module:
    """A deep copy; of a graph that an earlier call left on a layer, the values.

    Buffers have memory of their own for each element, where an expanded one could not be written.
    """
    made = own_copy(network)
    for module in made.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not nn.parameter.is_lazy(buffer) and buffer.layout is torch.strided:
                module._buffers[name] = buffer.contiguous()
    return made


@contextmanager
def nothing_left(network: nn.Module) -> Iterator[None]:
    """What the body makes of drawn weights and keeps on the network's own layers is taken away at the end.

    Such as features kept for a look at them: they are parts of a graph, or of a `torch.func` that has ended,
    which nothing can copy or save. Other attributes stay as the body leaves them.
    """
    own = list(own_modules(network).values())
    before = [dict(vars(module)) for module in own]
    try:
        yield
    finally:
        for module, kept in zip(own, before, strict=True):
            now = vars(module)
            for key in [key for key, value in now.items() if value is not kept.get(key)]:
                held = (value for value in tree_leaves(now[key]) if isinstance(value, Tensor))
                if any(value.grad_fn is not None or wrapped(value) for value in held):
                    del now[key]
                    now.update({key: kept[key]} if key in kept else {})


def take_padding(network: nn.Module) -> dict[str, int]:
    """The padding row of each embedding, by the name of its weights; of other look-ups it is taken away.

    Of weights that another layer trains as well, such as an output layer that is tied to the embedding, no
    row is padding: torch would leave out the gradient that comes through the embedding, and train the row
    all the same. What the look-up computes stays as it was.
    """
    rows: dict[Tensor, set[int | None]] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            row = (
                module.padding_idx if isinstance(module, EMBEDDINGS) and parameter is module.weight else None
            )
            rows.setdefault(parameter, set()).add(row)
    for module in network.modules():
        if isinstance(module, nn.Embedding) and rows.get(module.weight) != {module.padding_idx}:
            module.padding_idx = None
    return {
        name: row
        for name, parameter in network.named_parameters()
        for row in rows[parameter]
        if row is not None and len(rows[parameter]) == 1
    }


def check_one_precision(sites: Iterable[Mapping[str, Any]], guide: str) -> None:
    """Raise ValueError for weights of several precisions: `guide` holds them in one vector."""
    found = {site["infer"]["init"].dtype: site["name"] for site in sites if "init" in site["infer"]}
    if len(found) > 1:
        each = " and ".join(f"{name!r} is {dtype}" for dtype, name in found.items())
        raise ValueError(
            f"{guide} holds all weights in one vector, of one precision, but {each}: cast the network, as by "
            f"network.float(), or take pyro.infer.autoguide.AutoNormal"
        )


def sample_of(module: PyroModule, attribute: str) -> TorchDistribution:
    """The distribution of a `PyroSample`, which may be given as a function of its module."""
    given = module._pyro_samples[attribute]
    return given if hasattr(given, "sample") else given(module)


def check_event(module: PyroModule, attribute: str) -> None:
    """Raise ValueError unless the distribution of a `PyroSample` is one event."""
    with isolated(), poutine.block():
        prior = sample_of(module, attribute)
    if prior.batch_shape:
        raise ValueError(
            f"the prior of {type(module).__name__}.{attribute} has batch shape {tuple(prior.batch_shape)}; "
            f"end it with .to_event({len(prior.batch_shape)})"
        )


def check_prior(name: str, prior: TorchDistribution, parameter: Tensor, *, trained: bool) -> None:
    """Raise ValueError unless `prior` is a proper prior of the weight `name`: one event of its shape.

    `trained` says whether the optimiser is given the prior's own parameters, if it has any.
    NotImplementedError, if torch does not draw it in half precision.
    """
    base = univariate(prior)
    for kind, reason in UNFIT.items():
        if isinstance(base, kind):
            raise ValueError(f"{type(base).__name__} cannot be the prior of {name!r}: {reason}")
    if prior.batch_shape or prior.event_shape != parameter.shape:
        raise ValueError(
            f"the prior of {name!r} has batch shape {tuple(prior.batch_shape)} and event shape "
            f"{tuple(prior.event_shape)}, the parameter has shape {tuple(parameter.shape)}; end it with "
            f".expand(parameter.shape).to_event(parameter.dim())"
        )
    if parameter.dtype.itemsize < 4:
        prior.sample()  # torch draws no gamma there
    scale, values = getattr(base, "scale", None), vars(base).values()
    if isinstance(scale, Tensor) and not bool((scale > 0).all()):
        raise ValueError(
            f"the prior of {name!r} has a scale of {float(scale.min()):g}, which must be positive; a prior "
            f"made from a posterior needs a posterior with a spread, and a point estimate has none"
        )
    if not trained and any(value.requires_grad for value in values if isinstance(value, Tensor)):
        raise ValueError(
            f"the prior of {name!r} has a parameter that would not be trained; derive the prior from "
            f"pyro.nn.PyroModule or nn.Module as well, and make the parameter its attribute"
        )


def check_rebuilt(what: str, prior: Any) -> None:
    """Raise ValueError unless a prior that is made anew from its parameters has the same density.

    Args:
        what: It is, in the message.
        prior: A univariate one, which names its parameters in `arg_constraints`.
    """
    given = {name: getattr(prior, name) for name in prior.arg_constraints}
    try:
        made = type(prior)(**given, validate_args=False)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be rebuilt from its parameters: {error}") from error
    with isolated(device=own_tensor(prior).device), torch.no_grad():
        try:
            w = prior.sample()
        except NotImplementedError:  # torch draws no gamma of half precision; a half is in most supports
            w = torch.full(prior.batch_shape, 0.5).to(own_tensor(prior))
        densities = made.log_prob(w), prior.log_prob(w)
    # a parameter may be computed, and rounded, from what the prior holds
    if not torch.allclose(*densities, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            f"{what} cannot be rebuilt from its parameters {', '.join(given)}: its density depends on "
            f"something else as well, which must be a parameter in its arg_constraints"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every layer of `model` in evaluation mode (dropout off); each is restored at the end."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[list[str]]:
    """What the body does to the buffers of `model`, and to plain tensors, is undone at the end.

    The list then has the names of buffers in whose place the body put another tensor, which a recording of it
    does not see. The initial values of weights are buffers too, but a network is called with others.
    """
    replaced: list[str] = []
    found = [
        (held, name, f"{path}.{name}" if held is part._buffers else None, value, value.detach().clone())
        for path, part in model.named_modules()
        for held in (part._buffers, vars(part))
        for name, value in held.items()
        if isinstance(value, Tensor)
    ]
    try:
        yield replaced
    finally:
        for held, name, buffer, value, before in found:
            if held.get(name) is not value:
                held[name] = value
                replaced += [] if buffer is None else [buffer.removeprefix("network.")]
            if not torch.equal(strided(value), strided(before)):
                value.detach().copy_(before)


def says_replaced(names: Sequence[str]) -> str:
    """Why a step of a network that puts other tensors in the place of its buffers cannot be recorded."""
    return (
        f"the network puts another tensor in the place of its buffer {names[0]!r} when it is called; one "
        f"that is changed in place, as by copy_(), can be recorded"
    )
