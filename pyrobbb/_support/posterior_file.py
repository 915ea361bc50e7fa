"""`posterior.pt`: a posterior's chains as tensors and plain values, and what must match to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyro.infer.autoguide import (
    AutoGaussian,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
    AutoStructured,
)
from torch import Tensor, nn

from pyrobbb._support import checkpoint
from pyrobbb._support.copies import own_pair
from pyrobbb._support.files import make_folder
from pyrobbb._support.random_state import isolated
from pyrobbb._support.settings import (
    alike,
    component,
    constants,
    first_difference,
    network_constants,
    network_tensors,
    own_constants,
    tensors_of_parts,
    values,
)

if TYPE_CHECKING:
    from pyrobbb.bnn import BayesianNetwork
    from pyrobbb.draws import FittedChain

NAME = "posterior.pt"


def write(folder: Path | str, chains: Sequence[FittedChain], content: Mapping[str, Any]) -> Path:
    """Write the chains, and plain values beside them.

    Raises:
        ValueError: If the guide has parameters whose shapes or names are the training data's.
    """
    for _, guide in chains:
        if isinstance(guide, AutoGaussian | AutoStructured):
            raise ValueError(
                f"{type(guide).__name__} takes its parameters from the training data, which the file does "
                f"not hold, so that it could not be loaded: keep the training with fit(..., folder=) instead"
            )
    stored: list[dict[str, Any]] = [
        {
            "model": model.state_dict(),
            "guide": guide.state_dict(),
            "N": model.N,
            "input_dtype": model.input_dtype,
            "padding": model.padding(),
            "of": _structure(model, guide),
            "tensors": _tensors(model),
            "centres": model.centres(),
        }
        for model, guide in chains
    ]
    for what, first in stored[0]["of"].items():
        if other := next((each["of"][what] for each in stored if each["of"][what] != first), None):
            raise ValueError(
                f"a file holds chains built alike, but these differ in their {what}: "
                f"{' and '.join(first_difference(first, other))}; save them apart"
            )
    path = Path(folder) / NAME
    make_folder(path.parent)
    checkpoint.save(path, {**content, "chains": stored})
    return path


def read(
    folder: Path | str, model: BayesianNetwork, guide: nn.Module
) -> tuple[list[FittedChain], dict[str, Any]]:
    """The chains that `write` wrote, in copies of `model` and `guide`; and all of the file's content."""
    path = Path(folder) / NAME
    content = checkpoint.load(path)
    if not isinstance(content.get("chains"), list):
        raise checkpoint.CheckpointError(f"{path} is not a saved posterior")
    with isolated(), torch.no_grad():
        if isinstance(guide, AutoLaplaceApproximation):
            guide = _curved(guide)
        guide()  # makes its parameters
        mine, held = _structure(model, guide), _tensors(model)
        chains = [own_pair(model, guide) for _ in content["chains"]]
    with checkpoint.expected_structure(path):
        for stored, (one, other) in zip(content["chains"], chains, strict=True):
            _check_same(stored, mine, held, path)
            one.N, one.input_dtype = stored["N"], stored.get("input_dtype")  # not in earlier files
            for kind, places in (("padding", one.padding()), ("centres", one.centres())):
                for name, place in places.items():
                    place.copy_(stored.get(kind, {}).get(name, place))  # nor these
            checkpoint.load_module(one, stored["model"], "model", path)
            checkpoint.load_module(other, stored["guide"], "guide", path)
    return chains, content


def _check_same(
    stored: Mapping[str, Any], structure: Mapping[str, str], tensors: Mapping[str, Tensor], path: Path
) -> None:
    """CheckpointError if a stored chain differs from this model and guide in what is not loaded from it."""
    for what, theirs in stored["of"].items():
        if theirs != structure[what]:
            there, here = first_difference(theirs, structure[what])
            raise checkpoint.CheckpointError(
                f"{path} was made with another {what}: {there} there, {here} here"
            )
    for name, theirs in stored.get("tensors", {}).items():
        ours = tensors.get(name, theirs)  # one that a call makes is not there yet
        if theirs.shape == ours.shape and not alike(theirs, ours.to(theirs.dtype)):
            raise checkpoint.CheckpointError(
                f"{path} was made with other values of the tensor {name!r}, which is in no state_dict, so "
                f"that it is not loaded: give it those values before this call; or, if training changes "
                f"it, make it a buffer by register_buffer and train again"
            )


def _curved(guide: AutoLaplaceApproximation) -> AutoMultivariateNormal:
    """What `guide.laplace_approximation` returns, a normal whose parameters are buffers."""
    made = AutoMultivariateNormal(guide.model)
    made()
    for name in ("loc", "scale", "scale_tril"):
        value = getattr(made, name).detach().clone()
        delattr(made, name)
        made.register_buffer(name, value)
    return made


def _tensors(model: BayesianNetwork) -> dict[str, Tensor]:
    """Those of the network, the prior and the likelihood that are in no `state_dict`, by path."""
    own = {name: value.cpu() for name, value in tensors_of_parts(model).items()}
    return network_tensors(model.network, model.every_weight) | own


def _structure(model: BayesianNetwork, guide: nn.Module) -> dict[str, str]:
    """What must match for a saved posterior to be loaded, besides names and shapes."""
    return {
        "network": str(model.network),
        "likelihood": str(model.likelihood),
        "set of constants in the likelihood": str(constants(model.likelihood)),
        "guide": type(guide).__name__,
        "latent sites": ", ".join(model.latents),
        "set of constants in the network": str(network_constants(model.network)),
        "prior": component(model.prior),
        "set of values in the prior": str(values(model.prior)),
        "set of values in the likelihood": str(values(model.likelihood)),
        "form of the guide": str(_told(guide, "form", {})),
        "setting of the guide": str(_told(guide, "settings", own_constants(guide))),
    }


def _told(guide: nn.Module, name: str, otherwise: Any) -> Any:
    """What one of our guides says by the property `name`; a user's may have a parameter of that name."""
    return getattr(guide, name) if isinstance(getattr(type(guide), name, None), property) else otherwise
