r"""The last layer of a regression integrated out: the energy of all other latents, in closed form.

Let u be all other latents and :math:`v \sim N(0, I)` the last layer's weights, in units of their prior. Where
y is normal and its mean affine in v, :math:`y = m(u) + A(u)\, v + N(0, \sigma^2)`, and row i counts
:math:`c_i` times, with :math:`\tau_i = c_i / \sigma_i^2`, :math:`r = y - m`, :math:`G = I + A^T \tau A` and
:math:`b = A^T \tau r`

.. math::
    -\log p(y \mid u) = \sum_i \tfrac{c_i}{2} \log 2 \pi \sigma_i^2
        + \tfrac12 \left(r^T \tau\, r - b^T G^{-1} b + \log \det G\right), \qquad
    v \mid y, u \sim N(G^{-1} b, G^{-1})

(Bishop 2006, eqs 3.53, 3.54 and 3.86). What is left has none of the last layer's narrow ridges.
"""

import math

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.func import vmap

from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.flat import split
from pyrobbb._support.text import one_line
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.distributions import Affine
from pyrobbb.inference.energy import Energy, Priors, log_prior
from pyrobbb.inference.flat_guide import FlatGuide

LOG_2PI = math.log(2 * math.pi)


class Collapsed(Energy):
    r""":math:`-\log P(z)` and :math:`-\log p(y \mid z)`, at coordinates `(size,)` of all but the last layer.

    Args:
        model: A regression with normal noise, whose last layer has a normal prior.
        guide: Whose coordinates they are.
        x: Inputs, at which the output is tried.

    Raises:
        ValueError: The last layer cannot be integrated out; the message says why.
    """

    def __init__(self, model: BayesianNetwork, guide: FlatGuide, x: Tensor) -> None:
        super().__init__(model, guide)
        self.last = {name: guide.shapes[name] for name in model.last_layer}
        self.others = {name: shape for name, shape in guide.shapes.items() if name not in self.last}
        self.size, self.width = (sum(s.numel() for s in part.values()) for part in (self.others, self.last))
        self._check(x)

    def __call__(
        self, z: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Minus the log prior density of z, and minus the log-likelihood of the rows, in nats."""
        values, priors = self._given(z)
        prior = log_prior({name: priors[name] for name in self.others}, values)
        prior = prior + self.guide.log_jacobian(split(z, self.others))
        return -prior, self._regression(values, priors, x, y, counts)[2]

    def whole(self, z: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Tensor:
        """Coordinates `(D,)` of all latents: the last layer's are drawn, given z."""
        values, priors = self._given(z)
        mean, factor, _ = self._regression(values, priors, x, y, counts)
        noise = torch.randn_like(mean)[:, None]
        v = mean + torch.linalg.solve_triangular(factor.mT, noise, upper=True)[:, 0]
        parts = self._weights(priors, v) | split(z, self.others)
        return torch.cat([parts[name].flatten() for name in self.guide.shapes])

    def _given(self, z: Tensor) -> tuple[Weights, Priors]:
        """The values of all but the last layer, and the prior of each latent given these."""
        values = {name: self.guide.transforms[name](part) for name, part in split(z, self.others).items()}
        if self.priors is not None:
            return values, self.priors
        last = {name: z.new_zeros(shape) for name, shape in self.last.items()}
        return values, self.model.priors_given(values | last)

    def _weights(self, priors: Priors, v: Tensor) -> Weights:
        """The last layer's weights, of v `(D,)`."""
        units = {name: univariate(priors[name]) for name in self.last}
        return {
            name: units[name].loc + units[name].scale * part for name, part in split(v, self.last).items()
        }

    def _observed(self, values: Weights, priors: Priors, v: Tensor, x: Tensor) -> TorchDistribution:
        """The distribution of y, given all weights."""
        output = self.model.apply_network(values | self._weights(priors, v), x)
        return self.model.observation(output, values)

    def _design(self, values: Weights, priors: Priors, x: Tensor) -> tuple[TorchDistribution, Tensor]:
        """The distribution of y at v = 0, and A, `(N * outputs, D)`."""
        units = torch.eye(self.width).to(next(iter(values.values())))

        def mean(v: Tensor) -> Tensor:
            return univariate(self._observed(values, priors, v, x)).mean.flatten()

        observed = self._observed(values, priors, torch.zeros_like(units[0]), x)
        return observed, (vmap(mean)(units) - univariate(observed).mean.flatten()).mT

    def _regression(
        self, values: Weights, priors: Priors, x: Tensor, y: Tensor, counts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The mean `(D,)` of v, the Cholesky factor `(D, D)` of its precision G, and minus log p(y | u)."""
        observed, A = self._design(values, priors, x)
        each = univariate(observed)
        sigma = each.stddev.flatten()
        assert A.shape == (len(sigma), self.width)
        each_row = len(sigma) // len(x)  # its outputs
        times = torch.ones_like(sigma) if counts is None else counts.repeat_interleave(each_row)
        tau = times / sigma**2
        r = (self.model.encoded(observed, y) - each.mean).flatten()
        G = torch.eye(A.shape[1], dtype=A.dtype, device=A.device) + A.mT @ (tau[:, None] * A)
        b = A.mT @ (tau * r)
        factor = torch.linalg.cholesky(G)
        mean = torch.cholesky_solve(b[:, None], factor)[:, 0]
        constant = (times * (sigma.log() + 0.5 * LOG_2PI)).sum()
        nll = constant + 0.5 * ((tau * r * r).sum() - b @ mean) + factor.diagonal().log().sum()
        return mean, factor, nll

    def _check(self, x: Tensor) -> None:
        """ValueError unless y is normal, its mean affine in v and its spread free of v."""
        if not self.size:
            raise ValueError(
                f"collapsed: the last layer ({', '.join(self.last)}) has all the weights that are Bayesian; "
                f"without it nothing is left to draw"
            )
        values, priors = self._given(torch.randn(self.size).to(self.guide.loc))
        for name, prior in ((name, univariate(priors[name])) for name in self.last):
            if not isinstance(prior, dist.Normal):
                raise ValueError(
                    f"collapsed: the prior of the last layer must be normal, that of {name!r} is "
                    f"{type(prior).__name__}"
                )
        v = torch.randn(self.width).to(self.guide.loc)
        there = univariate(self._observed(values, priors, v, x))
        if not isinstance(there.base_dist if isinstance(there, Affine) else there, dist.Normal):
            raise ValueError(
                f"collapsed: y must be normal given the weights, as under likelihoods.Normal; under "
                f"{type(self.model.likelihood).__name__} it is {type(there).__name__}"
            )
        try:
            observed, A = self._design(values, priors, x)
        except RuntimeError as reason:
            raise ValueError(
                f"collapsed: torch.vmap cannot batch the network over the weights of its last layer: take "
                f"collapsed=False, or change the network ({one_line(reason, 120)})"
            ) from reason
        here = univariate(observed)
        for at in (v, -100 * v):  # on both sides of 0, and far out: an output may be cut off at some value
            there = univariate(self._observed(values, priors, at, x))
            error = (there.mean - here.mean).flatten() - A @ at
            size = here.mean.abs().flatten() + A.abs() @ at.abs()
            lost = ~there.mean.flatten().isfinite()  # of inputs that are too large: no sign of either
            linear = bool(((error.abs() <= 1e-6 * size) | lost).all())  # not so where only 0 has no number
            if not linear or not torch.allclose(there.stddev, here.stddev, atol=0.0):
                raise ValueError(
                    f"collapsed: the mean of y must be linear in the weights of the last layer, which is "
                    f"the last one with Bayesian weights ({', '.join(self.last)}), and the noise must not "
                    f"depend on them"
                )
