r"""Laplace's approximation around a mode: a normal with the curvature of the log posterior there.

.. math::
    q(w) = N(\hat w, H^{-1}), \qquad H = \sum_i J_i^T \Lambda_i J_i + \Sigma_P^{-1}

with the generalised Gauss-Newton curvature of `curvature.py` (MacKay 1992; Daxberger et al. 2021, arXiv
2106.14806), for a normal prior of covariance :math:`\Sigma_P`. Predictions are those of the network
linearised at the mode, for which this is the exact posterior up to the likelihood's curvature (Immer et al.
2021, arXiv 2008.08216):

.. math::
    f(x, w) \approx f(x, \hat w) + J(x) (w - \hat w)

The marginal likelihood, by which a prior's scale can be chosen, is

.. math::
    \log p(D) \approx \log p(D \mid \hat w) + \log P(\hat w) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |H|

The prior that finds a good mode is often wider than the one under which its neighbourhood predicts well:
`prior_scale` narrows the second alone (the prior precision is "tuned post hoc" in Daxberger et al. 2021).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pyrobbb._support import checks, text
from pyrobbb._support.chunking import out_of_memory
from pyrobbb._support.copies import own_copy
from pyrobbb._support.device import in_full
from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.flat import split
from pyrobbb._support.model_inputs import check_rows
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.data.arrays import row_weights
from pyrobbb.data.dataset import Dataset, Split, evenly_spaced
from pyrobbb.data.torch_data import TorchRows
from pyrobbb.evaluation.residuals import warn_of_noise
from pyrobbb.inference.curvature import (
    Curvature,
    Diagonal,
    Full,
    Mode,
    check_curved,
    log_likelihood,
    log_likelihood_and_slope,
)
from pyrobbb.inference.energy import check_density
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.inference.kronecker import Kronecker
from pyrobbb.inference.method import Log, MakeGuide, Rows
from pyrobbb.inference.point import MAP, Descent, DescentStep, refuse_bounded, refuse_latents
from pyrobbb.kl_weights import Uniform, WarmUp
from pyrobbb.posterior import Posterior
from pyrobbb.svi import Step

logger = logging.getLogger(__name__)

TURNS = 3  # directions that are searched for a mode
LENGTHS = [4.0**k for k in range(3, -11, -1)]  # along each, in Newton steps, until a shorter one gains less
NATS, SHARE = 3.0, 0.2  # at a mode they gain at most 3, or 0.2 for each weight that the data determine
KEPT = "Laplace().around keeps the noise as it is; give its scale=, or learn it in a fit first"
STRUCTURES: dict[str, Callable[..., Curvature]] = {"full": Full, "diagonal": Diagonal, "kronecker": Kronecker}


class LaplaceGuide(FlatGuide):
    """A normal around `loc`; a point until `fit` has taken the curvature.

    `log_evidence` is the log marginal likelihood, in nats; of the chosen layers, given the others. It takes
    log p(D, w) where a few steps from `loc` lead, towards the mode under the scaled prior, and the curvature
    of the log-likelihood at `loc`.
    """

    gathers = "the curvature that is taken after the last step"

    where: Tensor
    fitted: Tensor
    log_evidence: Tensor

    def __init__(self, method: Laplace, model: BayesianNetwork) -> None:
        super().__init__(model, method.init_loc)
        self.method = method
        self.names = model.last_layer if method.layers == "last" else list(model.sites)
        shapes = {name: self.shapes[name] for name in self.names}
        self.curvature = STRUCTURES[method.structure](shapes, self.loc.detach())
        sizes = [torch.full(shape, float(name in shapes)).flatten() for name, shape in self.shapes.items()]
        self.register_buffer("where", torch.cat(sizes).nonzero()[:, 0])
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self.register_buffer("log_evidence", self.loc.new_full((), math.nan))

    @property
    def settings(self) -> dict[str, Any]:
        return {"linearised": self.method.linearised}

    @property
    def form(self) -> dict[str, Any]:
        return {"structure": self.method.structure, "layers": self.method.layers}

    def check(self, model: BayesianNetwork, rows: Split) -> None:
        """ValueError if the curvature or a linearised prediction is impossible, tried on the first rows."""
        row = rows.head(1)
        weights = {name: value.detach().clone() for name, value in self.split(self.loc).items()}
        with isolated(device=self.loc.device), evaluating(model):
            with torch.enable_grad():
                self._check_used(model, weights, row.x)
                check_curved(model, model.apply_network(weights, rows.take(evenly_spaced(len(rows), 20)).x))
            if self.method.layers == "last" and self._other_last(model, weights, row.x):
                logger.warning(
                    "layers='last' takes %s, of the layer that the network registers last, but another "
                    "one is applied last: register that one last",
                    ", ".join(self.names),
                )
            self.curvature.check(Mode(model, weights, self.names, row), prior_precision(model, self.names))
            if self.method.linearised:
                self._check_linearised(model, weights, row.x)

    def _check_used(self, model: BayesianNetwork, weights: Weights, x: Tensor) -> None:
        """ValueError if the output depends on none of the weights whose curvature is taken."""
        own = {name: weights[name].clone().requires_grad_() for name in self.names}
        output = model.apply_network(weights | own, x)
        parts = [*own.values()] if output.requires_grad else []
        slopes = torch.autograd.grad(output.sum(), parts, allow_unused=True) if parts else ()
        if all(slope is None for slope in slopes):
            raise ValueError(
                f"the network's output does not depend on {', '.join(self.names)}: take layers='all'"
            )

    def _check_linearised(self, model: BayesianNetwork, weights: Weights, x: Tensor) -> None:
        """ValueError if torch cannot give the output of the linearised network, for several draws at once."""
        drawn = {name: value.expand(2, *value.shape) for name, value in weights.items()}
        try:
            with torch.no_grad():
                linearised(model, weights, self.names).apply_network(drawn, x)
        except RuntimeError as error:  # of torch, for an LSTM or weight_norm, say
            if out_of_memory(error):
                raise
            fewer = "" if set(self.names) <= set(model.last_layer) else ", or layers='last'"
            raise ValueError(
                f"torch cannot linearise this network ({text.one_line(error, 100)}): take "
                f"Laplace(linearised=False), on the command line inference.linearised=false, which "
                f"predicts with the network itself{fewer}"
            ) from error

    def _other_last(self, model: BayesianNetwork, weights: Weights, x: Tensor) -> bool:
        """Whether another module with Bayesian weights is called last, those that hold others left aside."""
        called: list[nn.Module] = []
        every = {model.owner(name) for name in model.sites}
        owners = {owner for owner in every if not every & {*owner.modules()} - {owner}}
        hooks = [owner.register_forward_hook(lambda module, *_: called.append(module)) for owner in owners]
        try:
            model.apply_network(weights, x)
        finally:
            for hook in hooks:
                hook.remove()
        mine = {model.owner(name) for name in self.names}
        return bool(mine & {*called}) and called[-1] not in mine

    def fit(self, model: BayesianNetwork, data: Split) -> None:
        """Take the curvature of all `data` at `loc`."""
        weights = {name: value.detach().clone() for name, value in self.split(self.loc).items()}
        scale = self.method.prior_scale
        found_by = prior_precision(model, self.names)
        precision = found_by / scale**2
        priors = {name: univariate(model.prior_of(name)) for name in self.names}
        modes = {name: one.loc for name, one in priors.items()}
        weights |= model.with_padding({name: weights[name] for name in self.names}, modes)
        away = torch.cat([(weights[name] - one.loc).flatten() for name, one in priors.items()]).double()
        with evaluating(model), in_full(self.loc):
            mode = Mode(model, weights, self.names, data)
            self.curvature.fit(mode, precision)
            score, slope = log_likelihood_and_slope(mode)
            with torch.no_grad():
                gain = self._gain(mode, away, found_by, score, slope)
                determined = float((1 - precision * self.curvature.variance()).double().sum())
                if gain > max(NATS, SHARE * determined):
                    self._warn_of_slope(gain)
                if scale != 1:
                    gain = self._gain(mode, away, precision, score, slope)
                volume = precision.double().log().sum() - self.curvature.log_det()
                self.log_evidence.copy_(score + gain + 0.5 * (volume - (precision * away.square()).sum()))
        self.fitted.fill_(True)

    def _gain(self, mode: Mode, away: Tensor, precision: Tensor, score: Tensor, slope: Tensor) -> float:
        """What a few steps of conjugate gradients gain of log p(D, w), in nats, preconditioned by H.

        H alone does not tell: it may lack what couples the weights, and the curvature further on.

        Args:
            mode: Where the steps start.
            away: From the prior's mean.
            precision: Of the prior.
            score: The log-likelihood at the start.
            slope: Its derivative.
        """
        shapes = {name: self.shapes[name] for name in self.names}

        def moved(by: Tensor) -> Mode:
            parts = split(by.to(self.loc), shapes)
            return mode._replace(weights=mode.weights | {n: mode.weights[n] + p for n, p in parts.items()})

        def gain(by: Tensor) -> float:
            prior = 0.5 * (precision * ((away + by).square() - away.square())).sum()
            found = float(log_likelihood(moved(by)) - score - prior)
            return found if math.isfinite(found) else -math.inf

        best, at, along = 0.0, torch.zeros_like(away), torch.zeros_like(away)
        before: tuple[Tensor, Tensor] | None = None
        for turn in range(TURNS):
            if turn:
                slope = log_likelihood_and_slope(moved(at))[1]
            slope = slope - precision * (away + at)
            newton = self.curvature.solve(slope.to(self.loc)).double()
            if before is not None:  # Polak and Ribiere's
                along = along * ((slope - before[0]) @ newton / before[1]).clamp_min(0)
            along, before = newton + along, (slope, slope @ newton)
            if not along @ slope > 0:  # after too long a step
                along = newton
            reached, start = best, at
            for length in LENGTHS:
                now = gain(start + length * along)
                if now > best:
                    best, at = now, start + length * along
                elif best > reached:
                    break
            if best == reached:
                break
        return best

    def _warn_of_slope(self, gain: float) -> None:
        """Log that `loc` is not a mode: a few steps from there gain many nats."""
        linear = " unless the network is linear in them" if isinstance(self.curvature, Full) else ""
        logger.warning(
            "the weights are not at a mode of log p(D, w): steps towards one gain %.3g nats. "
            "log_evidence is not to be trusted%s; train to a mode under this prior first",
            gain, linear,
        )  # fmt: skip

    def draw(self) -> Tensor:
        """The mode, plus a deviation once the curvature is known."""
        if not bool(self.fitted):
            return self.loc
        with in_full(self.loc):
            return self.loc.index_add(0, self.where, self.curvature.draw())

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        """The mode, and the standard deviation of each weight."""
        scale = torch.zeros_like(self.loc)
        if bool(self.fitted):
            scale[self.where] = self.curvature.variance().sqrt()
        return self.split(self.loc.detach()), self.split(scale.detach())

    def linearised(self, model: BayesianNetwork) -> BayesianNetwork:
        """The model with its network expanded to first order around the mode."""
        if not self.method.linearised or not bool(self.fitted):
            return model
        return linearised(model, self.split(self.loc.detach()), self.names)


class LaplaceStep(DescentStep):
    """A step of the descent, which leads away from where the curvature may have been taken."""

    def optimise(self) -> None:
        super().optimise()
        self.guide.fitted.fill_(False)


@dataclass(frozen=True, kw_only=True)
class Laplace(Descent):
    """The curvature at the maximum a posteriori, which is found first as `MAP` does.

    Where -log p(y | f) is not convex in the outputs f, as under `StudentT` and `HeteroscedasticNormal`, its
    curvature is cut at 0 row by row: the posterior is then a little too sure, and `log_evidence` should not
    rank such noises.

    Args:
        structure: `full` covariance, `diagonal`, or `kronecker` products by layer.
        layers: `all`; or `last`: the module with Bayesian weights that the network registers last, which
            should be the one that it applies last; the others stay at the mode.
        linearised: Predict with the linearised network; else with the network itself at the drawn weights.
        prior_scale: Of the prior around the mode, in units of the prior that found it: a factor on its
            standard deviations, to be chosen by held-out rows or by `log_evidence`. This takes steps towards
            the mode under each, while q stays around the old one: train to that of the chosen prior.
        init_loc: Where the weights start (`pyrobbb.initializers`).

    Raises:
        ValueError: In `fit`, if a prior of the chosen weights is not normal, the model has latents besides
            the weights, the KL does not end at its whole weight, or the network has no curvature or
            linearisation.
    """

    structure: str = "kronecker"
    layers: str = "all"
    linearised: bool = True
    prior_scale: float = field(default=1.0, repr=False)  # a key of its own in checkpoints

    takes = LaplaceStep
    holds = LaplaceGuide
    why = "it finds a point estimate first"

    def __post_init__(self) -> None:
        checks.one_of("structure", self.structure, STRUCTURES)
        checks.one_of("layers", self.layers, ("all", "last"))
        checks.check_kinds(linearised=(self.linearised, bool))
        checks.positive("prior_scale", self.prior_scale)

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        self._check_priors(model, guide)
        kl = options.kl
        warm = isinstance(kl, WarmUp) and kl.epochs <= options.epochs and isinstance(kl.then, Uniform)
        if not warm and not isinstance(kl, Uniform):
            raise ValueError(
                "Laplace takes the curvature of the posterior itself, in which prior and data count once, so "
                "the KL must end at its whole weight: use kl=uniform, or a warm-up shorter than the training"
            )

    def _check_priors(self, model: BayesianNetwork, guide: Any) -> None:
        """ValueError unless the priors are normal where the curvature is taken, and on the line elsewhere."""
        prior_precision(model, guide.names)
        refuse_bounded(self, model, guide)

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> LaplaceGuide:
        return LaplaceGuide(self, model)

    def step(
        self, model: BayesianNetwork, guide: Any, optimizer: Optimizer, first: Split, **options: Any
    ) -> Step:
        guide.check(model, first)
        return super().step(model, guide, optimizer, first, **options)

    def finish(self, model: BayesianNetwork, guide: LaplaceGuide, rows: Rows, log: Log) -> bool:
        if bool(guide.fitted):
            return False
        guide.fit(model, rows())
        log(f"Laplace's log marginal likelihood is {float(guide.log_evidence):.6g} nats")
        return True

    def around(
        self,
        posterior: Posterior | BayesianNetwork,
        data: Dataset | Split | TorchDataset[Any] | DataLoader[Any],
    ) -> Posterior:
        """The approximation around the mean weights of each chain of a fitted posterior, whatever fitted it.

        Nothing else is fitted here: a learned noise stays as it is.

        >>> model = BayesianNetwork(network, priors.Normal(), likelihoods.Categorical())  # doctest: +SKIP
        >>> posterior = Laplace().around(model, data)  # doctest: +SKIP

        Args:
            posterior: Of any method; its mean weights take the place of the mode. Or a model, for the weights
                of its network as they were given to it: one that was trained elsewhere.
            data: All training data; a torch `Dataset` or `DataLoader` is read once.

        Raises:
            ValueError: If a prior is not normal, these are not the rows that the fit counted, a fit would
                refuse them, or there is no curvature or linearised prediction.
        """
        if isinstance(data, TorchDataset | DataLoader):
            data = TorchRows(data).whole()
        checks.check_kinds(posterior=(posterior, (Posterior, BayesianNetwork)), data=(data, (Dataset, Split)))
        columns = getattr(posterior, "columns", None) or getattr(data, "columns", None)
        data = data.train if isinstance(data, Dataset) else data
        if isinstance(posterior, BayesianNetwork):
            posterior = Posterior([(posterior, MAP().guide(posterior, None))])
        found = posterior.with_chains(
            [self._around(posterior, c, data) for c in range(len(posterior.chains))]
        )
        found.columns = columns
        return found

    def _around(self, posterior: Posterior, chain: int, data: Split) -> tuple[BayesianNetwork, LaplaceGuide]:
        """A copy of one chain's model, and the approximation around the chain's mean weights."""
        model = own_copy(posterior.chain(chain)[0])  # else a change to one posterior's changes the other's
        model.N = len(data) if model.N is None else model.N
        model.input_dtype = data.x.dtype
        if not model.sites:
            raise ValueError("the model has no Bayesian weights to take the curvature of")
        if len(data) != model.N:
            raise ValueError(f"data must be all N={model.N} training rows, got {len(data)}")
        refuse_latents(self, model)
        with isolated(device=model.device):  # of what the model trains, nothing is left in Pyro's store
            guide = LaplaceGuide(self, model).to(model.device)
            self._check_priors(model, guide)
            mean = posterior.mean_weights(chain)
            guide.loc.data.copy_(torch.cat([mean[name].flatten() for name in guide.shapes]))
            rows = data.to(model.device)
            check_rows(model, "", rows.x, rows.y)
            if rows.weights is not None:
                row_weights("weights", rows.weights, rows.x)
            check_density(model, guide, rows.head(1), type(self).__name__)
            guide.check(model, rows)
            warn_of_noise(model, guide, rows, KEPT)
            guide.fit(model, rows)
        return model, guide


def linearised(model: BayesianNetwork, centre: Weights, names: Sequence[str]) -> BayesianNetwork:
    """A view of `model` whose network is expanded to first order around `centre` in the weights `names`.

    The others keep their values at the centre, so that what lies before the first of `names` is computed
    once for all draws.
    """
    _quiet_jvp()
    view = copy(model)
    exact = model.apply_network
    moved = {name: centre[name] for name in names}

    def apply_network(weights: Weights, x: Tensor) -> Tensor:
        draws = model.draws_of(weights)
        flat = {n: (weights[n] - c).reshape(draws.numel(), *c.shape) for n, c in moved.items()}

        def expanded(deviation: Weights) -> Tensor:
            value, slope, *_ = jvp(lambda w: exact({**centre, **w}, x), (moved,), (deviation,))
            return value + slope

        with _plain_attention():
            if not draws:
                return expanded({name: deviation[0] for name, deviation in flat.items()})
            output = vmap(expanded)(flat)
        return output.reshape(*draws, *output.shape[1:])

    object.__setattr__(view, "apply_network", apply_network)
    return view


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention by matrix products: torch's fused kernels have no derivative in forward mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@cache
def _quiet_jvp() -> None:
    """The first `jvp` of a process compiles rules of torch's own, with a warning about how."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a DeprecationWarning, or since torch 2.14 a FutureWarning
        jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))


def prior_precision(model: BayesianNetwork, names: Any) -> Tensor:
    """1 / variance of each weight in `names`, end to end, `(d,)`; ValueError unless priors are normal."""
    parts = []
    for name in names:
        base = univariate(model.prior_of(name))
        if type(base) is not dist.Normal:
            raise ValueError(
                f"Laplace needs normal priors, whose curvature is the same everywhere and positive; that of "
                f"{name!r} is {type(base).__name__}; take prior=normal or fan_in_normal"
            )
        parts.append((base.scale**-2).expand(model.initial()[name].shape).flatten())
    return torch.cat(parts).detach()
