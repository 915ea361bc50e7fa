r"""Empirical Bayes: the parameters of a prior, fitted to the posterior's weights while it is trained.

The free energy :math:`F = \mathrm{KL}[q \| P_\eta] - E_q \log P(D \mid w)` depends on the prior's parameters
:math:`\eta` through :math:`-E_q \log P_\eta(w)` alone. `by="em"` takes the :math:`\eta` that is best for the
present q, in closed form: the M-step of expectation maximisation. Where q enters by draws, their statistics
are averaged over updates (online EM, Cappé and Moulines 2009). `by="gradient"` leaves :math:`\eta` to the
optimiser, as the paper tried in section 3.3. The bound does not pay for what is learned so: state
`num_learned` beside it, or give the parameters priors of their own (`pyrobbb.priors.hierarchical`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor, nn
from torch.distributions import transform_to

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.prior_checks import check_rebuilt
from pyrobbb.distributions import ScaleMixtureNormal, StudentT
from pyrobbb.priors.fixed import ByModule, Prior, elementwise
from pyrobbb.priors.hierarchical import Hierarchical
from pyrobbb.priors.units import PER_UNIT, unit_shape

PER = ("network", *PER_UNIT)
BY = ("em", "gradient")
ALIASES = {"sigma": "scale"}  # Pyro's name for it
FLOOR = 1e-6  # of a scale: that of weights which are all 0 would be none
FORGET = 0.1  # of the statistics of earlier draws, at each update


class Learned(nn.Module, ByModule):
    """`prior`, with parameters that are learned together with the posterior.

    >>> prior = priors.Learned(priors.Normal(sigma=0.1))  # a scale for each tensor of weights
    >>> prior = priors.Learned(priors.ScaleMixture(), learn=["pi", "sigma2"], per="network")

    Args:
        prior: Independent weights, each from a univariate distribution of Pyro. Its parameters are where the
            learned ones start.
        learn: Which parameters, by Pyro's names (`sigma` stands for `scale`); by default the scale, of the
            mixture all three.
        per: One value of each for the whole "network"; for each "layer", its weights and its biases apart;
            or for each "input" or "output" unit (channel) of a layer, whose biases then share one.
        by: "em": set in closed form every `every` steps; "gradient": trained by the optimiser,
            which may take a mixture's sigma1 below its sigma2; pi is then the share of the narrow component.
        every: Steps from one update of "em" to the next, counted anew in each fit.

    Raises:
        ValueError: If an option is outside its domain; in `BayesianNetwork`, if the distribution has no such
            parameter, or "em" no closed form for it.
    """

    def __init__(
        self,
        prior: Prior,
        learn: Sequence[str] | None = None,
        *,
        per: str = "layer",
        by: str = "em",
        every: int = 20,
    ) -> None:
        super().__init__()
        parts = prior.parts() if isinstance(prior, Prior) else [prior]
        if not all(isinstance(p, Prior) and not isinstance(p, nn.Module | Hierarchical) for p in parts):
            raise ValueError(f"prior must be one with fixed parameters, such as Normal(), got {prior!r}")
        if learn is not None and (isinstance(learn, str) or not learn):
            raise ValueError(f"learn must be a list of at least one parameter's name, got {learn!r}")
        checks.one_of("per", per, PER)
        checks.one_of("by", by, BY)
        self.prior, self.per, self.by = prior, per, by
        self.learn = None if learn is None else tuple(ALIASES.get(name, name) for name in learn)
        self.every = checks.count("every", every)
        self.groups: Any = nn.ModuleDict()  # a `_Group` each

    def __repr__(self) -> str:
        learn = None if self.learn is None else list(self.learn)
        return f"Learned({self.prior!r}, learn={learn}, per={self.per!r}, by={self.by!r}, every={self.every})"

    def parts(self) -> Sequence[Prior]:
        return (self, *self.prior.parts())

    def check(self, names: Mapping[str, Sequence[str]]) -> None:
        self.prior.check(names)

    def for_module(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistribution | None:
        start = self.prior.for_module(name, parameter, module)
        if start is None:
            return None
        base = univariate(start)
        key = "network" if self.per == "network" else name.replace(".", "/")  # no dots in a module's name
        if hasattr(nn.ModuleDict, key):  # a parameter called `values`, say
            key += "/"
        if key not in self.groups:
            learn = self._checked(name, base)
            shape = () if self.per == "network" else unit_shape(self.per, parameter, module)
            self.groups[key] = _Group(base, learn, shape, self.by == "em")
        group = self.groups[key]
        if group.kind is not type(base):
            raise ValueError(f"per='network' needs one family of priors, got {group.kind} and {type(base)}")
        group.sites[name] = None
        return elementwise(group.prior(base), parameter)

    def _checked(self, name: str, base: Any) -> tuple[str, ...]:
        """Which parameters of the prior of weight `name` are learned."""
        what = f"the prior of {name!r}, {type(base).__name__},"
        has = tuple(getattr(base, "arg_constraints", ()))
        family = FAMILIES.get(type(base))
        if base.event_shape:
            raise ValueError(f"{what} is not a product of univariate distributions, so it cannot be learned")
        if not has:  # a mixture of torch's, or a transformed distribution
            raise ValueError(f"{what} names no parameters of its own, so there are none to learn")
        if constraints.is_dependent(type(base).support):
            raise ValueError(
                f"{what} has limits that would be learned, and a guide keeps to those it began with"
            )
        check_rebuilt(what, base)
        if self.learn is None:
            return family.parameters if family else tuple(k for k in has if k == "scale") or has
        if set(self.learn) - set(has):
            raise ValueError(f"{what} has the parameters {', '.join(has)}, but learn={list(self.learn)}")
        return self.learn

    def values(self) -> dict[str, Tensor]:
        """The present value of each learned parameter, by "SITE.PARAMETER" or "network.PARAMETER"."""
        return {
            f"{key.rstrip('/').replace('/', '.')}.{name}": value.detach()
            for key, group in self.groups.items()
            for name, value in group.values().items()
        }

    @property
    def num_learned(self) -> int:
        """How many numbers are learned."""
        return sum(value.numel() for value in self.values().values())

    @torch.no_grad()
    def update(self, model: Any, guide: Any) -> None:
        """One M-step for the present q: `guide`, of the `BayesianNetwork` that this prior belongs to."""
        drawn: dict[str, Tensor] = {}
        moments = guide.loc_and_scale() if hasattr(guide, "loc_and_scale") else ({}, {})
        for group in self.groups.values():
            exact = set(group.sites) <= set(moments[0]) and group.family.quadratic
            if not exact and not drawn:
                nodes = poutine.trace(guide).get_trace().nodes
                drawn = {name: nodes[name]["value"] for name in model.sites}
            pairs = []
            for name in group.sites:
                prior = univariate(model.prior_of(name))
                if exact:  # E (w - a)^2 of a normal, without a draw
                    loc, scale = (moment[name] for moment in moments)
                    w, of_prior = prior.loc + torch.hypot(loc - prior.loc, scale), prior.loc + prior.scale
                else:
                    w, of_prior = drawn[name], prior.sample()
                # q of a padding row, of which the data say nothing, is the prior in the end
                pairs.append((prior, model.with_padding({name: w}, {name: of_prior})[name]))
            group.update(pairs, 1.0 if exact else FORGET)


class _Group(nn.Module):
    """Weights that share the learned parameters `learn` of their prior; these have shape `shape`."""

    means: Tensor  # of the statistics
    updates: Tensor

    def __init__(self, base: Any, learn: Sequence[str], shape: tuple[int, ...], em: bool) -> None:
        super().__init__()
        self.kind, self.learn, self.em = type(base), tuple(learn), em
        if em and not (self.family and set(learn) <= set(self.family.parameters)):
            raise ValueError(
                f"there is no closed form for {', '.join(learn)} of {self.kind.__name__}; learn by='gradient'"
            )
        self.sites: dict[str, None] = {}
        self.constraints = {name: base.arg_constraints[name] for name in learn}
        for name in learn:
            start = getattr(base, name).detach().mean() * torch.ones(shape).to(getattr(base, name))
            if em:
                self.register_buffer(name, start)
            else:
                self.register_parameter(name, nn.Parameter(transform_to(self.constraints[name]).inv(start)))
        if em:
            self.register_buffer("means", torch.zeros((self.family.size, *shape)).to(start))
            self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @property
    def family(self) -> Any:
        """Its M-step; a pickle cannot hold the functions."""
        return FAMILIES.get(self.kind)

    def values(self) -> dict[str, Tensor]:
        """The present values of the learned parameters."""
        if self.em:
            return {name: getattr(self, name) for name in self.learn}
        return {name: transform_to(c)(getattr(self, name)) for name, c in self.constraints.items()}

    def prior(self, base: Any) -> TorchDistribution:
        """The distribution `base` with the learned parameters in their places."""
        fixed = {name: getattr(base, name) for name in base.arg_constraints}
        return self.kind(**{**fixed, **self.values()}, validate_args=False)

    def update(self, pairs: Sequence[tuple[Any, Tensor]], forget: float) -> None:
        """The M-step for pairs of the prior and the weights of each site, both of the site's shape."""
        like = getattr(self, self.learn[0])
        sums: Any = 0.0
        count = 0
        for prior, w in pairs:
            each = self.family.statistics(prior, w)
            sums = sums + torch.stack([value.sum_to_size(like.shape) for value in each])
            count += w.numel() // like.numel()
        means = sums / count
        self.updates += 1
        forget = max(forget, 1 / int(self.updates))
        self.means = means if forget == 1 else torch.lerp(self.means, means, forget)
        names = [name for name in self.family.parameters if name not in self.learn]
        fixed = {name: torch.stack([getattr(p, name).mean() for p, _ in pairs]) for name in names}
        for name, value in self.family.maximise(*self.means, **fixed).items():
            if name in self.learn:
                getattr(self, name).copy_(value)


@dataclass(frozen=True)
class _Family:
    """A closed M-step: from the means of some statistics of the weights to the parameters.

    `maximise` is given those that are fixed by name, of each site.
    `quadratic`: the statistics are (w - loc)^2, whose mean under a normal q is known.
    """

    parameters: tuple[str, ...]
    statistics: Callable[[Any, Tensor], tuple[Tensor, ...]]
    maximise: Callable[..., dict[str, Tensor]]
    size: int = 1  # how many statistics
    quadratic: bool = False


def _scale(square: Tensor) -> dict[str, Tensor]:
    return {"scale": square.sqrt().clamp_min(FLOOR)}


def _student(prior: Any, w: Tensor) -> tuple[Tensor]:
    """A t as a mixture of normals: squares by the expected precisions (Liu and Rubin 1995)."""
    df = getattr(prior, "df", 1.0)  # a Cauchy
    square = (w - prior.loc) ** 2
    return (square * (df + 1) / (df + square / prior.scale**2),)


def _responsibilities(prior: Any, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    spike = prior.spike_probability(w)
    return 1 - spike, (1 - spike) * w**2, spike * w**2


def _mixture(wide: Tensor, wide_square: Tensor, spike_square: Tensor, **fixed: Tensor) -> dict[str, Tensor]:
    pi = wide.clamp(FLOOR, 1 - FLOOR)
    sigma2 = (spike_square / (1 - pi)).sqrt().clamp_min(FLOOR)
    if "sigma1" in fixed:
        sigma2 = torch.minimum(sigma2, fixed["sigma1"].min() / 1.001)
    least = fixed["sigma2"].max() if "sigma2" in fixed else sigma2
    sigma1 = torch.maximum((wide_square / pi).sqrt(), 1.001 * least)
    return {"pi": pi, "sigma1": sigma1, "sigma2": sigma2}


FAMILIES: dict[type, _Family] = {
    dist.Normal: _Family(("scale",), lambda p, w: ((w - p.loc) ** 2,), _scale, quadratic=True),
    dist.Laplace: _Family(
        ("scale",), lambda p, w: ((w - p.loc).abs(),), lambda mean: {"scale": mean.clamp_min(FLOOR)}
    ),
    dist.StudentT: _Family(("scale",), _student, _scale),
    StudentT: _Family(("scale",), _student, _scale),
    dist.Cauchy: _Family(("scale",), _student, _scale),
    ScaleMixtureNormal: _Family(("pi", "sigma1", "sigma2"), _responsibilities, _mixture, size=3),
}
