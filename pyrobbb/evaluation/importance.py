r"""How near q is to the posterior in the network's last layer: the Pareto k-hat of its importance ratios.

.. math::
    r_s = \frac{P(D \mid w_s) \, P(w_s)}{q(w_s)}, \qquad w_s \sim q

in which only the last layer is drawn and all else stays at its mean (Yao et al. 2018, arXiv 1802.02538,
section 3.1, for all variables; of thousands of weights together k-hat says nothing). Below
`leave_one_out.k_limit` (0.62 of 400 draws), reweighted draws could correct q, in this layer; above, they
could not.
"""

import torch
from pyro import poutine
from pyro.distributions import Normal

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Split
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.leave_one_out import psis
from pyrobbb.posterior import Posterior

LARGEST = 5_000  # rows; a draw is a pass over all of them


def last_layer_k_hat(
    posterior: Posterior, train: Split, *, draws: int = 400, seed: int = 0, chain: int = 0
) -> float | None:
    """K-hat of the last layer given the other layers at their mean.

    Args:
        posterior: Of a guide with an independent normal for each weight.
        train: All training rows, unweighted.
        draws: Of the last layer.
        seed: Which draws.
        chain: Which restart.

    Returns:
        None where it is not computed: another guide, latents besides the weights, weighted rows or more than
        `LARGEST` of them.
    """
    checks.count("draws", draws, minimum=100)
    model, guide = posterior.chain(chain)
    if model.other_latents or len(train) > LARGEST or train.weights is not None:
        return None
    rows = train.whole().to(model.device)
    last = model.last_layer
    with torch.no_grad(), isolated(seed, device=model.device), evaluating(model):
        nodes = poutine.trace(guide).get_trace().nodes
        if not all(name in nodes and isinstance(univariate(nodes[name]["fn"]), Normal) for name in last):
            return None
        with isolated(seed + 1, device=model.device):
            again = poutine.trace(guide).get_trace().nodes
        for name in last:
            one, other = (univariate(trace[name]["fn"]) for trace in (nodes, again))
            if not (torch.equal(one.loc, other.loc) and torch.equal(one.scale, other.scale)):
                return None  # given the other weights it is normal, but not by itself
        weights = posterior.mean_weights(chain)
        ratios = []
        for _ in range(draws):
            drawn = {name: nodes[name]["fn"].sample() for name in last}
            ratio = model.log_likelihood({**weights, **drawn}, rows.x, rows.y).double().sum()
            for name, value in drawn.items():
                ratio += model.prior_of(name).log_prob(value).sum() - nodes[name]["fn"].log_prob(value).sum()
            ratios.append(ratio)
    return _k_hat(torch.stack(ratios).cpu())


def _k_hat(log_ratios: torch.Tensor) -> float:
    """The shape of the generalised Pareto fitted to the upper tail, by `az.loo` of one made observation."""
    values = -(log_ratios - log_ratios.max()).numpy()  # LOO's ratios are 1 / p(y_i | w)
    made = arviz_io.to_arviz({"log_likelihood": {"y": values[None, :, None]}}, dims={"y": ("one",)})
    return float(psis(made, reff=1.0).pareto_k.values[0])
