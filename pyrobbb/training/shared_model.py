"""One model in two fits: what it learns itself, such as the noise, stays what it was for the first."""

from __future__ import annotations

import logging
from copy import deepcopy
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.draws import Chain
from pyrobbb.posterior import Posterior

logger = logging.getLogger(__name__)
_holders: WeakKeyDictionary[nn.Module, tuple[ReferenceType[Posterior], int | None]] = WeakKeyDictionary()


def held(posterior: Posterior) -> Posterior:
    """The posterior, whose models are its own from now on, for as long as somebody keeps it."""
    for model, _ in posterior.chains:
        _holders[model] = ref(posterior), model.N
    return posterior


def own_model(model: BayesianNetwork, guide: object) -> BayesianNetwork:
    """The model; or, where training it would change a posterior that is still in use, a copy.

    A model whose N was set to None, for other rows, is trained itself, and the earlier posterior has the
    copy.

    A guide that was made for the model cannot go with a copy: then what will happen is logged. The same
    guide again means to train on.
    """
    holder, N = _holders.get(model, (None, None))
    earlier = None if holder is None else holder()
    learns = bool(model.learned) or any(True for _ in model.parameters())
    if earlier is not None and any(guide is other for _, other in earlier.chains):
        logger.warning(
            "the guide belongs to the posterior of an earlier fit, which changes with it: to keep that one, "
            "make a guide for each fit, or pass a factory, such as %s", type(guide).__name__,
        )  # fmt: skip
        return model
    if earlier is not None and model.N is None:  # for other rows than the earlier posterior saw
        earlier.chains = tuple(_copied(chain, N) if chain[0] is model else chain for chain in earlier.chains)
        return model
    if earlier is None or not learns:
        return model
    if not isinstance(guide, nn.Module):
        logger.info("the model belongs to the posterior of an earlier fit: a copy is trained")
        return deepcopy(model)
    logger.warning(
        "the model belongs to the posterior of an earlier fit, and what it learns itself (%s) will change in "
        "that one too: build a model for each fit, or pass a factory of guides, such as %s",
        ", ".join([*(name for name, _ in model.named_parameters()), *(["prior"] if model.learned else [])]),
        type(guide).__name__,
    )
    return model


def _copied(chain: Chain, N: int | None) -> Chain:
    """A chain by itself, of a model for N rows."""
    model, guide = deepcopy(chain)
    model.N = N
    return model, guide
