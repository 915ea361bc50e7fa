r"""Natural-gradient mean field: variational online Newton with one gradient a step.

The guide is :math:`q(w) = N(m, \mathrm{diag}(\sigma^2))`, as in Bayes by Backprop. A step draws
:math:`w = m + \sigma\epsilon`, takes the gradient of the mean loss there, and reads the curvature from noise
times gradient (Shen et al. 2024, arXiv 2402.17641, algorithm 1, the "improved variational online Newton"
method; h stays positive by the term of Lin et al. 2020):

.. math::
    \hat g &= \nabla \bar\ell(w), \qquad \hat h = \hat g\, \epsilon / \sigma \\
    g &\leftarrow \beta_1 g + (1 - \beta_1) \hat g \\
    h &\leftarrow \beta_2 h + (1 - \beta_2) \hat h
         + \tfrac12 (1 - \beta_2)^2 (h - \hat h)^2 / (h + \delta) \\
    m &\leftarrow m - \alpha_t \frac{g / (1 - \beta_1^t) + \delta (m - c)}{h + \delta}, \qquad
    \sigma = 1 / \sqrt{N (h + \delta)}

A normal prior :math:`N(c, 1 / N\delta)` of each weight enters exactly, by its own :math:`\delta` and c. The
gradient of any other prior is taken at the drawn weight, as part of :math:`\bar\ell`, and :math:`\delta = 0`.
What is kept of h is :math:`\sigma`, for which the third line reads

.. math::
    \sigma \leftarrow \sigma / \sqrt{1 + u + u^2 / 2}, \qquad
    u = (1 - \beta_2) [N \sigma (\hat g\, \epsilon + \delta\sigma) - 1]

Every second step takes minus the noise of the one before. That is a draw from q as well, but for what the
first of the two steps moved m along it: the curvature of a normal posterior comes out
:math:`\alpha_t (1 - \beta_1) / 2` too large, 0.5 % at the defaults, and less as the rate falls. Noise for
millions of weights costs as much as their update, and what both gradients have in common drops out of the
curvature.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pyrobbb._support import checks
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.accelerated.compilation_cost import Prepare, fastest, ways
from pyrobbb.accelerated.compile import compiled_program
from pyrobbb.accelerated.prior_segments import NotElementwiseError, prior_segments
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference.method import MakeGuide, OwnStep
from pyrobbb.inference.natural_gradient_step import UNSET, NaturalGradientStep
from pyrobbb.initializers import rho_of
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import Step

logger = logging.getLogger(__name__)

CURVATURE = 5000.0  # of the whole loss, at which a mean field starts with a sigma of 0.014
LEFT = 0.3  # of the precision: sigma is a sixth too small


class NormalByScale(MeanFieldNormal):
    r"""The mean field with parameters `loc` and `scale`: the update knows :math:`\sigma`, and no rho.

    The first training sets the scale.
    """

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        super()._set_up(*args, **kwargs)
        self.scale = nn.Parameter(torch.full_like(self.loc, UNSET))
        del self.rho

    @property
    def sigma(self) -> Tensor:
        """That of all D weights."""
        return self.scale

    def by_rho(self) -> MeanFieldNormal:
        """The same normal as SVI trains it."""
        guide = MeanFieldNormal(self._model[0])
        guide()
        guide.to(self.loc)
        with torch.no_grad():
            guide.loc.copy_(self.loc)
            guide.rho.copy_(rho_of(self.scale))
        return guide


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(OwnStep):
    r"""The mean field by natural gradients; the initial sigma follows from N, the prior and `h0`.

    `optim` trains what has no prior, if anything; `schedule` acts on `lr` as well.

    Args:
        lr: :math:`\alpha`, a share of a Newton step.
        beta1: Averages the gradient.
        beta2: Averages the curvature: in t steps the start falls to :math:`\beta_2^t` of it. Where the data
            say little about a weight, that takes several times 1 / (1 - beta2) steps. Each sigma keeps a
            scatter of some 0.7 sqrt(1 - beta2) of it, which no schedule takes away. Minibatches of B of the
            N rows make that some sqrt(1 + (N / B - 1) / 4) times as much, 1.3 at B = N / 4 and 4 at N / 64;
            row weights that differ widely make it more.
        h0: :math:`h_0`, the curvature of the mean loss at the start; by default 5000 / N, so that sigma
            starts at 0.014, or below it under a narrow prior, whatever N. A first sigma that is too wide
            shrinks only as fast as beta2 lets the curvature grow: if a fit stays far from the targets, try
            a larger h0 or a smaller beta2.
        radius: No weight moves further in a step, in units of its sigma. The printed algorithm has no such
            bound, and diverges where h0 is too small.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.9995
    h0: float | None = None
    radius: float = 1.0

    bounds = True
    own_guide = False
    holds = NormalByScale
    why = "its step takes one natural gradient from one draw"

    def __post_init__(self) -> None:
        checks.positive("lr", self.lr)
        if self.h0 is not None:
            checks.positive("h0", self.h0)
        checks.positive("radius", self.radius)
        for name in ("beta1", "beta2"):
            checks.share(name, getattr(self, name), zero=True)

    def first_curvature(self, N: float) -> float:
        """h_0 of a fit to N rows."""
        return CURVATURE / N if self.h0 is None else self.h0

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        super().check(model, guide, options, ranks)
        if options.rates:
            raise ValueError("rates have no meaning for NaturalGradient: it scales each weight's step itself")

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> nn.Module:
        chosen = MeanFieldNormal(model) if make is None else make(model)
        draws = (MeanFieldNormal.forward, MeanFieldNormal.split)  # which a family of one's own may change
        if not isinstance(chosen, MeanFieldNormal) or (type(chosen).forward, type(chosen).split) != draws:
            raise ValueError(
                f"NaturalGradient knows the natural gradient of the mean field alone: use it with "
                f"MeanFieldNormal, or svi with {type(chosen).__name__}"
            )
        return NormalByScale(model, init_loc=chosen.init_loc, init_rho=chosen.init_rho)

    def step(
        self, model: BayesianNetwork, guide: Any, optimizer: Optimizer, first: Split, **options: Any
    ) -> Step:
        if options["steps"] * (1 - self.beta2) < 1:
            logger.warning(
                "NaturalGradient: %d steps are too few to forget the first curvature, h0, and with it the "
                "first sigma: train for more than 1 / (1 - beta2) = %.0f, or take a smaller beta2",
                options["steps"], 1 / (1 - self.beta2),
            )  # fmt: skip
        try:
            if model.other_latents:
                raise NotElementwiseError("the prior or likelihood has latent sites of its own")
            segments = prior_segments({name: model.prior_of(name) for name in guide.shapes})
        except NotElementwiseError as reason:
            options["log"](f"the prior's gradient is taken by Pyro: {reason}")
            return NaturalGradientStep(self, model, guide, optimizer, None)

        def make(prepare: Prepare | None) -> NaturalGradientStep:
            compiled = prepare is compiled_program
            return NaturalGradientStep(self, model, guide, optimizer, segments, compiled=compiled)

        prepares = ways(options["fast"], guide.loc.numel(), options["steps"], device=first.x.device)
        return fastest(make, prepares, options["log"])

    def warn(self, guide: Any, N: int, steps: int) -> None:
        start = N * self.first_curvature(N) * self.beta2**steps
        left = float((start * guide.sigma.detach().square()).median())
        if left > LEFT and steps * (1 - self.beta2) >= 1:  # else `step` said so
            logger.warning(
                "NaturalGradient: %.0f %% of the precision 1 / sigma^2 of half of the weights, or more, is "
                "still that of the start, not of prior and data, so sigma is too small: train for more than "
                "the %d steps, or take a smaller beta2 or h0",
                100 * left, steps,
            )  # fmt: skip
