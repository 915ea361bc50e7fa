"""A guide for hierarchical priors: the weights' normals widen and narrow with their scales."""

from collections.abc import Iterable
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyrobbb._support.distribution_parts import univariate
from pyrobbb.initializers import rho_of
from pyrobbb.mean_field import MeanFieldNormal


def prior_given(model: Any, latents: dict[str, Tensor], name: str) -> tuple[Any, list[str]]:
    """The prior of the weights `name`, given latents, and which of these it samples."""
    with poutine.block(), poutine.trace() as seen, poutine.condition(data=latents):
        prior = univariate(model.prior_of(name))
    return prior, seen.trace.observation_nodes


def units_of(model: Any, latents: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The prior's scale of each of these weights whose prior samples latents, given them.

    Other scales may be learned, by M-steps for a fixed q, which must not move with them.
    """
    units = {}
    for name in names:
        prior, sampled = prior_given(model, latents, name)
        if sampled and hasattr(prior, "scale"):
            units[name] = prior.scale
    return units


class NonCentredNormal(MeanFieldNormal):
    r"""A normal for each latent of the prior, and one for each weight in units of its scale.

    .. math::
        q(u) = \prod_k N(u_k \mid \mu_k, \sigma_k^2), \qquad
        q(w \mid u) = \prod_j N(w_j \mid s_j(u)\,\mu_j, s_j(u)^2 \sigma_j^2)

    for a prior :math:`w_j \sim N(0, s_j(u)^2)`: the same as independent normals over u and
    :math:`z = w / s(u)`, the non-centred parametrisation (Papaspiliopoulos et al. 2007), in which shrinking a
    scale shrinks its weights with it. The KL of the weights then does not depend on u. A weight whose prior
    samples no latents has a plain normal, s = 1.

    Args:
        model: A `BayesianNetwork` whose prior gives weights a normal with scales of its own
            (`pyrobbb.priors.Hierarchical`).
        init_loc: Where each weight starts, not in units of its scale.
        init_rho: Where the rho of each weight starts, not in units of its scale.

    Raises:
        ValueError: At the first call, if the prior has no latent sites, or has a `PyroSample`.
    """

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        model: Any = self._model[0]
        weights = set(getattr(model, "sites", ()))
        self.hyper = [name for name in getattr(model, "latents", ()) if name not in weights]
        unnamed = getattr(model, "prior_sites", ())
        if not self.hyper or unnamed:
            has = f"a PyroSample, {unnamed[0]!r}" if unnamed else "no latent scale"
            raise ValueError(
                f"NonCentredNormal needs a prior that samples its scales in `log_scale` or `distribution`, "
                f"such as pyrobbb.priors.Horseshoe; this one has {has}: use MeanFieldNormal or AutoNormal"
            )
        super()._set_up(*args, **kwargs)
        with torch.no_grad():  # the initial values were given in the weights' own units
            sigma = self.sigma
            locs, scales = self.split(self.loc), self.split(sigma)  # views of both
            units = units_of(model, {name: locs[name] for name in self.hyper}, model.sites)
            self.scaled = [*units]
            if own := weights - set(units):
                # earlier files, in which these may be in units of a fixed or learned scale, lack it
                self.register_buffer("weights_in_own_units", torch.tensor(len(own), device=self.loc.device))
            for name, unit in units.items():
                locs[name] /= unit
                scales[name] /= unit
            self.rho.copy_(rho_of(sigma))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample the latents of the prior, then every weight; arguments are used at the first call only."""
        if not self.shapes:
            self._set_up(*args, **kwargs)
        locs, scales = self.split(self.loc), self.split(self.sigma)
        sampled = {name: self._sample(name, locs[name], scales[name]) for name in self.hyper}
        units = units_of(self._model[0], sampled, self.scaled)
        for name in self.shapes:
            if name not in sampled:
                unit = units.get(name, 1.0)
                sampled[name] = self._sample(name, unit * locs[name], unit * scales[name])
        return sampled

    def loc_and_scale(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        r""":math:`\mu` and :math:`\sigma` of the prior's latents; a weight of random scale is not normal."""
        locs, scales = super().loc_and_scale()
        return {name: locs[name] for name in self.hyper}, {name: scales[name] for name in self.hyper}
