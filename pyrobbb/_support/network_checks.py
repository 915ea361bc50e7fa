"""What a network must be for a model to be built from it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

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
    """Whether a parameter of `module` is not a weight matrix but a bias, or a normalisation's factor."""
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


def check_one_precision(sites: Iterable[Mapping[str, Any]], guide: str) -> None:
    """Raise ValueError for weights of several precisions: `guide` holds them in one vector."""
    found = {site["infer"]["init"].dtype: site["name"] for site in sites if "init" in site["infer"]}
    if len(found) > 1:
        each = " and ".join(f"{name!r} is {dtype}" for dtype, name in found.items())
        raise ValueError(
            f"{guide} holds all weights in one vector, of one precision, but {each}: cast the network, as by "
            f"network.float(), or take pyro.infer.autoguide.AutoNormal"
        )
