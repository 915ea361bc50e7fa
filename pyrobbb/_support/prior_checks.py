"""What a prior must be for a model to be built with it."""

from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Delta, ImproperUniform, TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor

from pyrobbb._support.distribution_parts import own_tensor, univariate
from pyrobbb._support.random_state import isolated

UNFIT: dict[type, str] = {  # as priors, and why
    torch.distributions.VonMises: "it is normalised on a circle, not on the real line",
    Delta: "it has no width; Deterministic() leaves a weight without a prior",
    ImproperUniform: "it cannot be drawn from; as flat, and drawn from, is "
    "dist.Normal(torch.zeros_like(parameter), 1.0).mask(False).to_event(parameter.dim())",
}


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
