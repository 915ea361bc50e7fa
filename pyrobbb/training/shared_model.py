"""One model in two fits: what it learns itself, such as the noise, stays what it was for the first."""

from __future__ import annotations

import logging
from copy import deepcopy
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.posterior import Posterior

logger = logging.getLogger(__name__)
_fitted: WeakKeyDictionary[nn.Module, tuple[ReferenceType[Posterior], int | None]] = WeakKeyDictionary()


def held(posterior: Posterior) -> Posterior:
    """The posterior, whose models are its own from now on."""
    for model, _ in posterior.chains:
        _fitted[model] = ref(posterior), model.N
    return posterior


def own_model(model: BayesianNetwork, guide: object) -> BayesianNetwork:
    """The model to train: a copy, if an earlier fit trained it, whose posterior this would change.

    A guide that was made for the model cannot go with a copy: then what will happen to an earlier posterior
    that is still in use is logged. The same guide again means to train on.
    """
    if model not in _fitted:
        return model
    posterior, N = _fitted[model]
    if not isinstance(guide, nn.Module):
        logger.info("the model was trained by an earlier fit: a copy is trained")
        copy = deepcopy(model)
        model.N = N  # None asked to read it anew
        return copy
    changing = [*(name for name, _ in model.named_parameters()), *(["prior"] if model.learned else [])]
    changing += ["N"] if model.N is None else []
    if (earlier := posterior()) is None:
        return model
    if any(guide is other for _, other in earlier.chains):
        logger.warning(
            "the guide belongs to the posterior of an earlier fit, which changes with it: to keep that one, "
            "make a guide for each fit, or pass a factory, such as %s", type(guide).__name__,
        )  # fmt: skip
    elif changing:
        logger.warning(
            "the model belongs to the posterior of an earlier fit, and what changes in it (%s) will change "
            "in that one too: build a model for each fit, or pass a factory of guides, such as %s",
            ", ".join(changing), type(guide).__name__,
        )  # fmt: skip
    return model
