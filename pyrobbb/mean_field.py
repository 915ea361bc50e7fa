"""Bayes by Backprop's variational family: an independent normal for each weight."""

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import on_real_line, support_of
from pyrobbb._support.flat import split
from pyrobbb._support.network_checks import check_one_precision
from pyrobbb._support.random_state import Named
from pyrobbb._support.text import short
from pyrobbb.initializers import Constant, Initial, from_network


class MeanFieldNormal(Named):
    r"""The paper's variational posterior (section 3.2), an independent normal for each weight.

    .. math::
        q(w \mid \theta) = \prod_j N(w_j \mid \mu_j, \sigma_j^2), \quad \sigma_j = \log(1 + e^{\rho_j})

    The normal is sampled at the weight's own site, where Pyro can see it, and reparameterised as
    :math:`w = \mu + \sigma \circ \epsilon`. All sites share two flat parameters, `loc` (the paper's
    :math:`\mu`) and `rho`, each of shape `(D,)` for D weights: an optimiser sees two tensors.

    Args:
        model: A Pyro model; the guide sees it only through its trace, at the first call, which makes the
            parameters, as in Pyro's autoguides: call it before `torch.optim.Adam(guide.parameters())`.
            `guide()` without data is enough for a `BayesianNetwork`.
        init_loc: Where each :math:`\mu` starts (`pyrobbb.initializers`), but for a latent scale of the prior,
            which states its own start; by default the network's own values.
        init_rho: Where each :math:`\rho` starts: a number or an initialiser. -5 is sigma = 0.0067.

    Raises:
        ValueError: At the first call, if a prior does not live on the whole real line, the weights are of
            several precisions, or an initial value has another shape than its site.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        init_loc: Initial = from_network,
        init_rho: float | Initial = -5.0,
    ) -> None:
        super().__init__("mean_field")
        for name, given in (("model", model), ("init_loc", init_loc)):
            if not callable(given):
                raise ValueError(f"{name} must be callable, got {given!r}")
        self._model = (model,)  # a tuple, so that the model's parameters are not registered as the guide's
        self.init_loc = init_loc
        self.init_rho = init_rho if callable(init_rho) else Constant(checks.number("init_rho", init_rho))
        self.shapes: dict[str, torch.Size] = {}

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        with poutine.block(), torch.no_grad():  # an outer trace of the guide must not see this trial run
            trace = prune_subsample_sites(poutine.trace(self._model[0]).get_trace(*args, **kwargs))
            sites = [trace.nodes[name] for name in trace.stochastic_nodes]
            for site in sites:
                _check_real(site)
            check_one_precision(sites, type(self).__name__)
            # a latent scale states its own start; a weight starts where the guide says
            locs = [
                site["infer"]["start"] if "start" in site["infer"] else self.init_loc(site) for site in sites
            ]
            rhos = [self.init_rho(site) for site in sites]
        for site, loc, rho in zip(sites, locs, rhos, strict=True):
            shape = site["fn"].event_shape
            if loc.shape != shape or rho.shape != shape:
                raise ValueError(
                    f"site {site['name']!r} has shape {tuple(shape)}, but its initial loc has shape "
                    f"{tuple(loc.shape)} and rho {tuple(rho.shape)}"
                )
            self.shapes[site["name"]] = shape
        self.loc = nn.Parameter(torch.cat([loc.flatten() for loc in locs]))
        self.rho = nn.Parameter(torch.cat([rho.flatten() for rho in rhos]))

    @property
    def sigma(self) -> Tensor:
        r""":math:`\sigma` of all D weights."""
        return F.softplus(self.rho)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A vector over all D weights as one tensor per site."""
        return split(flat, self.shapes)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every latent site; arguments as the model's, used at the first call only."""
        if not self.shapes:
            self._set_up(*args, **kwargs)
        locs, scales = self.split(self.loc), self.split(self.sigma)
        return {name: self._sample(name, locs[name], scales[name]) for name in self.shapes}

    def _sample(self, name: str, loc: Tensor, scale: Tensor) -> Tensor:
        return pyro.sample(name, dist.Normal(loc, scale).to_event(len(self.shapes[name])))

    def loc_and_scale(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        r""":math:`\mu` and :math:`\sigma` of each site, without gradients.

        Raises:
            ValueError: The guide has no parameters yet.
        """
        if not self.shapes:
            raise ValueError("the guide has no parameters yet: fit it, or call it once")
        return self.split(self.loc.detach()), self.split(self.sigma.detach())


def _check_real(site: dict[str, Any]) -> None:
    """ValueError if a normal would put weights where their prior has no density."""
    if not on_real_line(site["fn"]):
        discrete = site["fn"].support.is_discrete
        maps = "that maps a normal to that support, such as pyro.infer.autoguide.AutoNormal"
        guide = "of your own that samples on that support" if discrete else maps
        raise ValueError(
            f"the prior of {site['name']!r} lives on {short(support_of(site['fn']))}, but a normal lives on "
            f"the whole real line; use svi with a guide {guide}"
        )
