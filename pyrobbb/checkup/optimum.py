"""Whether the free energy of a fit is at its minimum, and below that of ignoring the inputs."""

import math
from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from pyrobbb._support.copies import own_copy, own_pair
from pyrobbb._support.network_checks import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup.finding import Finding
from pyrobbb.data.dataset import Dataset, Split, evenly_spaced
from pyrobbb.draws import FittedChain
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.inference.natural_gradient import NormalByScale
from pyrobbb.posterior import Posterior
from pyrobbb.svi import terms_of
from pyrobbb.training.trainer import Training

GAIN = 0.3  # nats per weight that further training may still save
SIGMA = 0.04  # the same, of what other sigmas save at the same mu
ROWS = 1000  # to evaluate F on
FASTER = "+rates.rho=10, in Python rates={'rho': 10}"


def optimum(chain: FittedChain, data: Dataset, draws: int, steps: int, seed: int) -> list[Finding]:
    """The optimum and the trivial bound, of a guide that has a free energy."""
    model, guide = chain
    name = type(guide).__name__
    if kl_ledger(Posterior([chain]), draws=2) is None:
        return _unknown(f"{name} holds a point or draws, not a density, so there is no free energy")
    if isinstance(guide, NormalByScale):
        guide = guide.by_rho()
    before = free_energy((model, guide), data.train, draws, seed)
    if not bool(before.isfinite().all()):
        return _unknown(f"the free energy of {name} is not finite", math.nan)
    return [*_further((model, guide), data, before, draws, steps, seed), _trivial(model, data, before)]


def _unknown(reason: str, value: float | None = None) -> list[Finding]:
    return [Finding("optimum", value, GAIN, reason), Finding("trivial bound", value, 0.0, reason)]


def free_energy(chain: FittedChain, train: Split, draws: int, seed: int) -> Tensor:
    """F at temperature 1 of each draw, in nats, from about `ROWS` rows; the same draws each time."""
    model, guide = chain
    N, every = len(train), max(1, len(train) // ROWS)
    rows = train.take(torch.arange(0, N, every)).to(model.device)
    found = []
    with torch.no_grad(), isolated(seed, device=model.device), evaluating(model):
        for _ in range(draws):
            q = poutine.trace(guide).get_trace(rows.x, rows.y)
            p = poutine.trace(poutine.replay(model, q)).get_trace(rows.x, rows.y)
            q.compute_log_prob()
            p.compute_log_prob()
            terms = terms_of(p, q, rows.weights)
            found.append(terms.kl + terms.nll * (N / len(rows)))
    return torch.stack(found).double()


def _further(
    chain: FittedChain, data: Dataset, before: Tensor, draws: int, steps: int, seed: int
) -> list[Finding]:
    """How much the free energy falls if training goes on, the KL and each datum counting once.

    Of a mean field also how much of that its sigmas save at the same mu. A mu that is still moving leaves
    little to them; to a sigma that was not trained, or under another KL, nearly all is left.
    """
    model, guide = own_pair(*chain)
    size, N = model.num_weights, len(data.train)
    batch = min(N, 256)
    epochs = max(1, steps // -(-N // batch))
    for parameter in (*model.parameters(), *guide.parameters()):
        parameter.requires_grad_()
    again = Training(
        model, guide, data, epochs=epochs, batch_size=batch, validation_draws=0, record_every=epochs,
        optim=partial(torch.optim.Adam, lr=0.01 if size < 10_000 else 0.001), seed=seed,
        schedule=partial(CosineAnnealingLR, T_max=epochs), device=str(model.device),
        fast="eager" if N * size < 10**7 else "auto",
    )  # fmt: skip
    again.run()
    after = free_energy((model, guide), data.train, draws, seed)
    first, last = (float(energy.mean()) / N for energy in (before, after))
    words = f"{epochs} more epochs at the full KL lower F from {first:.4g} to {last:.4g} nats per datum"
    once = "check that the KL and N count once (kl=uniform)"
    advice = f"the fit is not at its minimum; train longer or faster ({FASTER}), and {once}"
    found = [_saving("optimum", (before - after) / size, GAIN, words, advice)]
    if isinstance(getattr(guide, "rho", None), nn.Parameter):
        other: Any = own_copy(chain[1])
        other.rho.data.copy_(guide.rho)
        after = free_energy((chain[0], other), data.train, draws, seed)
        words = "of this the sigmas save, at the same mu"
        advice = f"sigma is not at its minimum; see that it is trained, or faster ({FASTER}), and {once}"
        found.append(_saving("sigma", (before - after) / size, SIGMA, words, advice))
    faults = [i for i, finding in enumerate(found) if finding.passed is False]
    held = data.validation or data.test
    if faults and held is not None:
        said = _held_out(chain, (model, guide), held, draws, seed)
        found[faults[-1]] = replace(found[faults[-1]], words=found[faults[-1]].words + said)
    return found


def _held_out(now: FittedChain, then: FittedChain, held: Split, draws: int, seed: int) -> str:
    """How held-out rows are predicted before and after further training: a lower F may predict worse."""
    rows = held.take(evenly_spaced(len(held), ROWS).to(held.x.device))
    first, last = (
        Posterior([chain]).predict(rows.x, rows.y, draws=draws, seed=seed).log_predictive.double()
        for chain in (now, then)
    )
    change = first - last
    words = f". The NLL of {len(rows)} held-out rows is {-first.mean():.4g} now, {-last.mean():.4g} then"
    worse = float(change.mean()) > 3 * float(change.std()) / sqrt(len(rows))
    how = "predicts worse here" if worse else "may predict worse"
    return f"{words}. A lower F {how}: compare posteriors and priors on held-out rows"


def _saving(name: str, gain: Tensor, limit: float, words: str, advice: str) -> Finding:
    """Nats per weight that each draw would save: the mean, less its Monte Carlo error times 3."""
    mean, error = float(gain.mean()), float(gain.std() / sqrt(len(gain)))
    value = max(mean - 3 * error, 0.0)  # NaN stays NaN, which is not a sound fit
    words = f"{words}, {mean:.2g} ± {error:.1g} per weight"
    return Finding(name, value, limit, f"{words}: {advice}" if value > limit else words)


def _trivial(model: BayesianNetwork, data: Dataset, before: Tensor) -> Finding:
    """The free energy beside that of a posterior that ignores the inputs."""
    bound = trivial_free_energy(model, data.train)
    energy = float(before.mean()) / len(data.train)
    if bound is None:
        words = f"free energy {energy:.4g} nats per datum; for this model no trivial bound is computed"
        return Finding("trivial bound", None, 0.0, words)
    return beside_trivial(energy, bound)


def beside_trivial(energy: float, bound: float) -> Finding:
    words = f"free energy {energy:.4g} nats per datum, ignoring the inputs {bound:.4g}"
    if energy > bound:
        words += (
            ": the bound says nothing about this fit; where the fit is at its minimum, it takes a prior of "
            "the right scale, or a learned one"
        )
    return Finding("trivial bound", energy - bound, 0.0, words)
