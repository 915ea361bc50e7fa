r"""Where the KL goes: what each parameter tensor costs in nats and bits, and how many weights it is spent on.

For each latent site, by draws of the guide,

.. math::
    \mathrm{KL}_s = E_q[\log q(w_s) - \log P(w_s)]

in which P is the prior given the latents that it depends on, so that the rows add up to KL[q || P].
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from pyro import poutine

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import in_double, univariate
from pyrobbb._support.random_state import isolated
from pyrobbb.distributions import ScaleMixtureNormal
from pyrobbb.draws import has_density, nodes_of
from pyrobbb.posterior import Posterior, moments

JOINT = "all weights"  # the one row of a guide whose density does not split into sites


@dataclass(frozen=True)
class Entry:
    r"""What one site costs.

    Args:
        weights: Number of weights.
        nats: Their KL.
        mcse: Monte Carlo standard error of `nats`, over the draws.
        informative: How many weights have :math:`|\mu| > \sigma`, that is a signal-to-noise ratio above 1;
            the paper prunes by this ratio (section 5.1), after Graves 2011. None for a latent that is not a
            weight.
        slab: Under a scale mixture, the expected share of the weights that its wide component has drawn, by
            the components' posterior probabilities (responsibilities) at the draws; 1 less this is the
            spike's. None under other priors.
        slab_mcse: Monte Carlo standard error of `slab`.
    """

    weights: int
    nats: float
    mcse: float
    informative: int | None = None
    slab: float | None = None
    slab_mcse: float | None = None

    @property
    def bits_per_weight(self) -> float:
        """KL in bits for each weight."""
        return self.nats / math.log(2) / self.weights


def kl_ledger(
    posterior: Posterior, *, chain: int | None = None, draws: int = 20, seed: int = 0
) -> dict[str, Entry] | None:
    """The KL of one chain, by site.

    Args:
        posterior: A fitted posterior of any guide.
        chain: Which restart; by default `posterior.main_chain`.
        draws: Weight draws to average over.
        seed: Which draws.

    Returns:
        An entry for each latent site in the model's order; a single one, `"all weights"`, of a guide with one
        density for all sites together, such as AutoMultivariateNormal. None of a guide without a density
        (`has_density`).
    """
    checks.count("draws", draws, minimum=2)
    model, guide = posterior.chain(posterior.main_chain if chain is None else chain)
    if not has_density((model, guide)):
        return None
    nats: dict[str, list[float]] = {}
    slab: dict[str, list[float]] = {}
    with torch.no_grad(), isolated(seed, device=model.device), poutine.block():
        for _ in range(draws):
            trace = poutine.trace(guide).get_trace()
            prior = poutine.trace(poutine.replay(model, trace=trace)).get_trace().nodes
            rows = _rows(trace.nodes, model.latents)
            for row, (drawn, latents) in rows.items():
                kl = _log_prob(trace.nodes, drawn) - _log_prob(prior, latents)
                nats.setdefault(row, []).append(kl)
            for name in model.sites:
                base = univariate(prior[name]["fn"])
                if isinstance(base, ScaleMixtureNormal):
                    spike = base.spike_probability(prior[name]["value"])
                    wide = torch.where(base.sigma1 < base.sigma2, spike, 1 - spike)  # learned past the other
                    slab.setdefault(name, []).append(float(wide.mean()))
    loc, scale = moments((model, guide))
    signal = {name: int((loc[name].abs() > scale[name]).sum()) for name in model.sites}
    return {
        row: Entry(
            weights=sum(prior[name]["value"].numel() for name in latents),
            nats=fmean(nats[row]),
            mcse=_mcse(nats[row]),
            informative=sum(signal[name] for name in latents if name in signal)
            if signal.keys() & latents
            else None,
            slab=fmean(slab[row]) if row in slab else None,
            slab_mcse=_mcse(slab[row]) if row in slab else None,
        )
        for row, (_, latents) in rows.items()
    }


def _mcse(draws: Sequence[float]) -> float:
    """The standard error of the mean of independent draws."""
    return float(torch.tensor(draws, dtype=torch.float64).std()) / len(draws) ** 0.5


def _rows(nodes: Mapping[str, Any], latents: Sequence[str]) -> dict[str, tuple[list[str], Sequence[str]]]:
    """The nodes of a guide's trace, and the latents, of each row of the ledger."""
    own, joint = nodes_of(nodes, latents)
    if joint:
        return {JOINT: ([name for name, site in nodes.items() if site["type"] == "sample"], latents)}
    return {name: (names, [name]) for name, names in own.items()}


def _log_prob(nodes: Mapping[str, Any], names: Sequence[str]) -> float:
    """Of the values of these nodes; in half precision the sum of many would overflow."""
    total = 0.0
    for distribution, value in ((nodes[name]["fn"], nodes[name]["value"]) for name in names):
        if value.dtype in (torch.float16, torch.bfloat16):
            distribution, value = in_double(distribution), value.double()
        total += float(distribution.log_prob(value).double().sum())
    return total
