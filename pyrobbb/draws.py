"""Draws of the weights from one chain, a model and its fitted guide."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.random_state import Named, isolated, mixed_seed, seed_generators
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.mean_field import MeanFieldNormal

FittedChain = tuple[BayesianNetwork, nn.Module]
Key = tuple[int, int, int]  # of a draw: the seed, the number of the chain, and its own
UNCONSTRAINED = "_unconstrained"  # what Pyro's AutoNormal adds to the name of the site it transforms


class NoWeights(Named):
    """The guide of a model without latent weights: a point estimate has nothing to draw."""

    def __init__(self) -> None:
        super().__init__("no_weights")

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """No site."""
        return {}


def fitted(chain: FittedChain) -> FittedChain:
    """The chain, if its guide has parameters: guides create them when first called."""
    guide = chain[1]
    if isinstance(guide, AutoLaplaceApproximation):
        raise ValueError(
            "AutoLaplaceApproximation is only the mode until its curvature is computed: predict with "
            "Posterior([(model, guide.laplace_approximation(x, y))]), x and y being all training data"
        )
    if chain[0].sites and not any(True for _ in (*guide.parameters(), *guide.buffers())):
        raise ValueError(
            f"the guide {type(guide).__name__} has no parameters of its own yet: fit it first; if it "
            f"calls pyro.param, make those parameters attributes instead (nn.Parameter or PyroParam)"
        )
    return chain


def check_own(module: nn.Module, trace: Any, what: str) -> None:
    """Raise ValueError if Pyro knows a parameter that is not one of the module's, which holds what is fitted.

    Args:
        module: The guide or the model.
        trace: The trace of a call of `module`.
        what: What the message calls it, "guide" or "model".
    """
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "param"}
    own = {id(parameter) for parameter in module.parameters()}
    loose = [name for name, site in sites.items() if id(stored_leaf(site["value"])) not in own]
    strided = [name for name, parameter in module.named_parameters() if not parameter.is_contiguous()]
    if loose and strided:
        raise ValueError(
            f"Pyro would train a copy of the {what}'s parameter {strided[0]!r}, which is not contiguous: "
            f"create it from value.contiguous()"
        )
    if loose:
        raise ValueError(
            f"the {what}'s parameter {loose[0]!r} is not registered on its module, so its trained value "
            f"would be lost; make it (nn.Parameter or PyroParam), or the module that holds it, an attribute "
            f"there, instead of calling pyro.param or pyro.module"
        )


def refuse_sites(wrong: Sequence[str]) -> None:
    """Raise ValueError if something is wrong with a guide's sites."""
    if wrong:
        raise ValueError(f"the guide's sites do not match the model's; the guide has {'; '.join(wrong)}")


def lacking(names: Iterable[str], given: Container[str]) -> list[str]:
    """What `refuse_sites` says of the sites `names` to which a guide gives no value."""
    gone = ", ".join(repr(name) for name in names if name not in given)
    advice = "(to hold a weight fixed, give it the prior Deterministic by PerParameter)"
    return [f"no site {gone} {advice}"] if gone else []


def stored_leaf(value: Tensor) -> Tensor:
    """What is stored for a parameter: the unconstrained one, if it has a constraint."""
    unconstrained = getattr(value, "unconstrained", None)
    return value if unconstrained is None else unconstrained()


def sample_points(values: Weights) -> Weights:
    """Sample each site of a guide at the value that it has here, a point."""
    return {name: pyro.sample(name, dist.Delta(w, event_dim=w.dim())) for name, w in values.items()}


def one_draw(chain: FittedChain, key: Key) -> Weights:
    """A value of each latent site, in memory of its own."""
    (drawn,) = some_draws(chain, [key])
    if hasattr(chain[1], "stored_draw"):  # else it is its own already
        return {name: value.clone() for name, value in drawn.items()}
    return drawn


def some_draws(chain: FittedChain, keys: Iterable[Key]) -> list[Weights]:
    """One draw after another, each from its own seed.

    The user's random state is saved once for all of them, since saving it costs as much as a draw.
    """
    model, guide = fitted(chain)
    stored: Any = getattr(guide, "stored_draw", None)
    found: list[Weights] = []
    normals: dict[str, Any] = {}  # of a mean field, the same for all draws: Pyro is asked for them once
    with isolated(device=model.device), torch.no_grad():
        if stored is not None:  # a sampler's
            return [model.with_padding(stored(number, seed)) for seed, _, number in keys]
        for key in keys:
            seed_generators(mixed_seed(*key), model.device)
            if normals:
                values = {name: normal() for name, normal in normals.items()}
            else:
                trace = poutine.trace(guide).get_trace()
                if not found:
                    check_own(guide, trace, "guide")
                    refuse_sites(lacking(model.latents, trace.nodes))
                    if type(guide) is MeanFieldNormal and not am_i_wrapped():
                        normals = {name: trace.nodes[name]["fn"] for name in guide.shapes}
                values = {name: trace.nodes[name]["value"] for name in model.latents}
            # a point estimate's are the guide's parameters, which a draw must not share
            own = {name: v.detach().clone() if v.requires_grad else v for name, v in values.items()}
            found.append(model.with_padding(own))
    return found


def is_point(guide: nn.Module) -> bool:
    """Whether every draw of a guide is the same."""
    return isinstance(guide, AutoDelta) or bool(getattr(guide, "is_point", False))


def has_density(chain: FittedChain) -> bool:
    """Whether q has a density, and so a finite KL: not where a latent is a point or one of a set of draws."""
    model, guide = chain
    with torch.no_grad(), isolated(0, device=model.device), poutine.block():
        first, *others = (poutine.trace(guide).get_trace().nodes for _ in range(3))
    refuse_sites(lacking(model.latents, first))
    own, joint = nodes_of(first, model.latents)
    for name, names in own.items():
        if not isinstance(univariate(first[names[-1]]["fn"]), dist.Delta):
            continue
        # a Delta is also what a joint draw is split into, which differs from draw to draw
        still = all(torch.equal(first[name]["value"], other[name]["value"]) for other in others)
        if still or not joint:
            return False
    return bool(own)  # without weights there is no q


def nodes_of(nodes: Mapping[str, Any], latents: Sequence[str]) -> tuple[dict[str, list[str]], bool]:
    """Each latent's own nodes in a guide's trace; and whether there are others, of several sites together."""
    own = {name: [n for n in (name, name + UNCONSTRAINED) if n in nodes] for name in latents}
    drawn = {name for name, site in nodes.items() if site["type"] == "sample"}
    return own, not drawn <= {n for names in own.values() for n in names}


def distinct(chains: Iterable[FittedChain], draws: int) -> int:
    """How many draws to take of each chain so that none repeats: `draws`, or as many as a sampler kept."""
    kept = (int(getattr(guide, "kept", 0)) for _, guide in chains)
    return min([draws, *filter(None, kept)])


def order(chain: FittedChain, draws: int, seed: int = 0) -> list[int] | None:
    """The numbers of the first `draws` draws in the order of a sampler's chain; None if independent."""
    guide: Any = chain[1]
    if not hasattr(guide, "stored_draw"):
        return None
    return sorted(range(draws), key=lambda draw: guide.place(draw, seed))


def stacked(draws: Sequence[Weights]) -> Weights:
    """Several draws as one, with a leading dimension."""
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
