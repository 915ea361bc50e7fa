"""The exact answer for small networks: Hamiltonian Monte Carlo (Pyro's NUTS) on the same model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.data.dataset import Split
from pyrobbb.priors import Learned


@dataclass(frozen=True)
class NutsSample:
    """Draws of p(w | D): `weights` of `(chains, draws, *shape)` for each site.

    `divergences` counts the draws whose trajectory left the typical set; many of them say that the
    sampler misses part of the posterior.
    """

    model: BayesianNetwork
    weights: Weights
    divergences: int

    def functions(self, x: Tensor) -> Tensor:
        """Network outputs at `x` `(G, *features)`, shape `(chains, draws, G, width)`."""
        model = _double(self.model)
        with torch.no_grad():
            return model.apply_network(self.weights, _in_double(x))


def sample_nuts(
    model: BayesianNetwork,
    data: Split,
    *,
    warmup: int = 500,
    draws: int = 500,
    chains: int = 4,
    start: float = 1.0,
    max_tree_depth: int = 7,
    seed: int = 0,
    log: Callable[[str], None] | None = None,
) -> NutsSample:
    """Draw from p(w | D) of all `data` with the No-U-Turn sampler, in double precision on the CPU.

    Each chain starts from its own w ~ N(0, start^2), away from any variational answer. A gradient costs
    a pass over all data and a draw up to 2^max_tree_depth gradients: for hundreds of weights, not more.

    Args:
        model: Every parameter of its network must be Bayesian.
        data: The training data.
        warmup: Draws that adapt step size and mass matrix, and are discarded.
        draws: Draws kept, of each chain.
        chains: Independent chains, one after another.
        start: Standard deviation of the starting weights.
        max_tree_depth: Bound on the length of a trajectory.
        seed: Decides starts and draws.
        log: Receives one line per finished chain.

    Raises:
        ValueError: If a parameter is a point estimate, or an option lies outside its domain.
    """
    if any(isinstance(module, Learned) for module in model.modules()):
        raise ValueError(
            "NUTS keeps the prior fixed: give it the values that were learned, or scales with sites"
        )
    if any(True for _ in model.parameters()):
        names = ", ".join(name for name, _ in model.named_parameters())
        raise ValueError(f"NUTS needs every parameter to be Bayesian; {names} are point estimates")
    counts = [checks.count(name, value) for name, value in (("warmup", warmup), ("draws", draws))]
    with isolated(seed):  # without validation of arguments, which costs more than the network here
        potential = potential_energy(model, data)
    found, divergences = [], 0
    for chain in range(checks.count("chains", chains)):
        with isolated(seed * 1_000_003 + chain):
            initial = {
                name: checks.positive("start", start) * torch.randn(value.shape, dtype=torch.float64)
                for name, value in model.initial().items()
            }
            kernel = NUTS(potential_fn=potential, max_tree_depth=max_tree_depth, target_accept_prob=0.8)
            run = MCMC(
                kernel,
                num_samples=counts[1],
                warmup_steps=counts[0],
                initial_params=initial,
                disable_progbar=True,
            )
            run.run()
            found.append(run.get_samples())
            divergences += sum(len(where) for where in run.diagnostics()["divergences"].values())
        if log is not None:
            log(f"NUTS chain {chain + 1} of {chains} is done, {divergences} divergences so far")
    weights = {name: torch.stack([one[name] for one in found]) for name in model.sites}
    return NutsSample(model, weights, divergences)


def potential_energy(model: BayesianNetwork, data: Split) -> Callable[[Weights], Tensor]:
    """U(w) = -log P(w) - sum_i log p(y_i | x_i, w), in nats: minus the model's log-density, in double."""
    model = _double(model)
    if set(model.latents) != set(model.sites):
        more = ", ".join(name for name in model.latents if name not in model.sites)
        raise ValueError(
            f"the model has latent sites besides its weights ({more}): use pyro.infer.NUTS(model)"
        )
    x, y = _in_double(data.x), _in_double(data.y)
    weights_of_rows = None if data.weights is None else _in_double(data.weights)
    priors = {name: model.prior_of(name) for name in model.sites}

    def potential(weights: Weights) -> Tensor:
        each = model.log_likelihood(weights, x, y)
        energy = -(each if weights_of_rows is None else weights_of_rows * each).sum()
        for name, prior in priors.items():
            energy = energy - prior.log_prob(weights[name]).sum()
        return energy

    return potential


def _double(model: BayesianNetwork) -> BayesianNetwork:
    """A copy on the CPU in double precision with dropout off: one energy for one w."""
    return deepcopy(model).cpu().double().eval()


def _in_double(values: Tensor) -> Tensor:
    values = values.cpu()
    return values.double() if values.is_floating_point() else values  # class numbers and tokens stay whole
