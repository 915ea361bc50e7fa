"""The program of a training step whose noise lies on the layers' outputs (`local_noise`)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pyro.distributions import Normal
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyrobbb.accelerated.local_noise import LocalNoise, Take, layer_sites
from pyrobbb.accelerated.prior_segments import PriorSegment, by_segment
from pyrobbb.accelerated.replay_noise import Noise
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.svi import counted

KNOWN = ("torch", "pyro", "pyrobbb")  # whose distributions are what their classes say


class LocalProgram:
    """The free energy of a mean-field normal and its gradients: a `pyrobbb.accelerated.programs.LossProgram`.

    The KL is in closed form where torch has one (a normal or Laplace prior), else at drawn weights. Weights
    outside of linear layers and convolutions are drawn, once for all rows. The noise has one dimension;
    `used` says how much of it the last call took.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: Any,
        segments: Sequence[PriorSegment],
        parameters: Sequence[nn.Parameter],
        samples: int,
        rows: int,
    ) -> None:
        self.model, self.guide, self.segments, self.samples = model, guide, segments, samples
        self.parameters = list(parameters)
        self.layers = layer_sites(model)
        self.used = 0
        self.flipout: set[str] = set()  # the layers' sites whose noise is that, once called
        self.rows = rows  # of a full batch

    def __call__(
        self, noise: Tensor | None, share: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> list[Tensor]:
        source = Noise(noise)
        take = partial(source.take, like=self.guide.loc)
        rho = self.guide.rho.detach()
        with torch.enable_grad():
            loc = self.guide.loc.detach().requires_grad_()
            sigma = F.softplus(rho).requires_grad_()
            kl = self._kl(loc, sigma, take)
            nll = sum(self._nll(loc, sigma, x, y, counts, take) for _ in range(self.samples)) / self.samples
            own = {self.guide.loc: loc, self.guide.rho: sigma}
            found = torch.autograd.grad(
                share * kl + nll, [own.get(p, p) for p in self.parameters], materialize_grads=True
            )
        self.used = source.used
        each = zip(self.parameters, found, strict=True)
        by_rho = (g * torch.sigmoid(rho) if p is self.guide.rho else g for p, g in each)
        return [kl.detach(), nll.detach(), *by_rho]

    def _nll(
        self, loc: Tensor, sigma: Tensor, x: Tensor, y: Tensor, counts: Tensor | None, take: Take
    ) -> Any:
        """-log P(D_i | w) at one draw, in nats."""
        locs, scales = self.guide.split(loc), self.guide.split(sigma)
        for name in locs:
            if name not in self.layers:
                locs[name] = locs[name] + scales[name] * take(*locs[name].shape)
        layers = {name: locs[name] for name in self.layers}
        with LocalNoise(layers, scales, len(x), take, max(self.rows, len(x))) as noise:
            nll = -counted(self.model.log_likelihood(locs, x, y), counts).sum()
        self.flipout = noise.flipout
        return nll

    def _kl(self, loc: Tensor, sigma: Tensor, take: Take) -> Any:
        """KL[q || P], in nats."""
        total: Any = 0.0
        for segment, mean, scale in by_segment(self.segments, loc, sigma):
            q = Normal(segment.shaped(mean), segment.shaped(scale), validate_args=False)
            prior = segment.prior(loc)
            kl = _in_closed_form(q, prior)
            if kl is None:
                w = segment.shaped(mean + scale * take(self.samples, *mean.shape))
                kl = (q.log_prob(w) - prior.log_prob(w)) / self.samples
            total = total + kl.sum()
        return total


def _in_closed_form(q: Normal, prior: Any) -> Tensor | None:
    """KL[q || P] of each weight, where torch has a formula; of a class of the user's own it has another's."""
    if type(prior).__module__.partition(".")[0] not in KNOWN:
        return None
    try:
        return kl_divergence(q, prior)
    except NotImplementedError:
        return None
