"""What is worth knowing of a fit besides its faults."""

import numpy as np

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup.optimum import free_energy
from pyrobbb.data.dataset import Dataset, scattered
from pyrobbb.draws import has_density
from pyrobbb.evaluation.elbo_noise import gradient_signal
from pyrobbb.evaluation.importance import last_layer_k_hat
from pyrobbb.evaluation.leave_one_out import k_limit
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction

POINTS = 100  # inputs to draw the prior's functions at
ROWS = 5000  # whose targets are looked at, at most
BATCH = 128  # rows of a gradient, at most


def notes(posterior: Posterior, data: Dataset, *, draws: int = 100, seed: int = 0) -> list[str]:
    """What is worth knowing of a fit besides its faults, a sentence each; nothing that is given changes.

    Args:
        posterior: The fit, of which the main chain is looked at.
        data: What it was fitted to.
        draws: Weight draws for each estimate.
        seed: Decides everything random.
    """
    chain = posterior.main_chain
    model, guide = posterior.chains[chain]
    found = [_prior_functions(model, data, draws, seed)]
    if not has_density((model, guide)):
        return found
    energy = free_energy((model, guide), data.train, draws, seed).by_draw / len(data.train)
    batch = min(BATCH, len(data.train))
    signal = gradient_signal(model, guide, data.train, batch=batch, seed=seed)
    found.append(
        f"one draw of the weights gives the free energy to ± {_short(float(energy.std()))} nats per datum; "
        f"the signal-to-noise ratio of its gradient is {_short(signal)}, for one draw and {batch} rows "
        f"(0 at a minimum)"
    )
    many = max(100, 4 * draws)
    k_hat = last_layer_k_hat(posterior, data.train, draws=many, seed=seed, chain=chain)
    if k_hat is not None:
        limit = k_limit(many)
        near = k_hat < limit
        words = "near enough to be corrected by reweighting" if near else "too far off for reweighting"
        found.append(
            f"the last layer, given the others, is {words}: Pareto k-hat {k_hat:.2f}, limit {limit:.2f}"
        )
    return found


def _short(value: float) -> str:
    """With two digits, and 120 not as 1.2e+02."""
    return f"{float(f'{value:.2g}'):g}"


def _prior_functions(model: BayesianNetwork, data: Dataset, draws: int, seed: int) -> str:
    """What the prior alone predicts at training inputs."""
    device = data.train.x.device
    x = data.train.x[scattered(len(data.train), POINTS).to(device)]
    prior = Posterior([(model, model)]).predict(x, draws=draws, seed=seed)
    if isinstance(prior, ClassPrediction):
        sure = 1 - float(prior.expected_entropy.mean()) / np.log(prior.probs.shape[-1])
        return f"before the data, a draw of the network is {100 * sure:.0f} % sure of a class"
    y = data.train.y[scattered(len(data.train), ROWS).to(device)]
    outputs, targets = float(prior.means.std(0).mean()), float(y.double().std(0).mean())
    if not np.isfinite(outputs):
        return "before the data, some outputs are too large for a number: take a narrower prior"
    return f"before the data, outputs have a standard deviation of {outputs:.3g}, the targets {targets:.3g}"
