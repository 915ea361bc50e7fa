"""Did it work? What a fitted posterior shows of the usual faults, each with what to do about it.

>>> for finding in check(posterior, data):  # doctest: +SKIP
...     print(finding)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from pyrobbb._support import checks
from pyrobbb._support.files import read_json
from pyrobbb._support.network_checks import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.evaluation import arviz_io, calibration
from pyrobbb.evaluation.diagnostics import function_draws, r_hat
from pyrobbb.evaluation.elbo_noise import gradient_signal
from pyrobbb.evaluation.importance import last_layer_k_hat
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.inference.natural_gradient import NormalByScale
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction
from pyrobbb.svi import terms_of
from pyrobbb.training.trainer import Training

# Between what sound fits of small networks show and what planted faults do (`benchmarks.planted`)
GAIN = 0.3  # nats per weight that further training may still save
SIGMA = 0.04  # the same, of what other sigmas save at the same mu
CERTAINTY = 0.1  # nats per row that other probabilities, sharper or flatter, may save
COVERAGE = 0.1  # of the central intervals, beyond its standard error times 4
R_HAT = 1.5  # between restarts, at nine of ten inputs
ROWS, POINTS = 1000, 100  # rows to evaluate F on, inputs to compare restarts at


@dataclass(frozen=True)
class Finding:
    """One check: `value` beside the `limit` that it must not exceed, None if it could not be checked."""

    name: str
    value: float | None
    limit: float
    words: str

    @property
    def passed(self) -> bool | None:
        """Whether it is within the limit; None if that is not known."""
        return None if self.value is None else self.value <= self.limit

    def __str__(self) -> str:
        sign = {True: "ok", False: "FAULT", None: "not known"}[self.passed]
        return f"{sign:9} {self.name}: {self.words}"


def check(
    posterior: Posterior, data: Dataset, *, draws: int = 100, steps: int = 400, seed: int = 0
) -> list[Finding]:
    """Look for the usual faults of a fit; nothing that is given changes.

    Args:
        posterior: The fit; several chains are compared with one another.
        data: What it was fitted to; held-out rows, validation or test, show its calibration.
        draws: Weight draws for each estimate.
        steps: Of further training, to see whether the free energy has reached its minimum.
        seed: Decides everything random.

    Returns:
        The findings: optimum, sigma (of a mean field), trivial bound, calibration, restarts.
    """
    checks.count("draws", draws)
    checks.count("steps", steps)
    return [
        *_bound(posterior.chains[0], data, draws, steps, seed),
        _calibration(posterior, data.validation or data.test, draws, seed),
        _restarts(posterior, data, draws, seed),
    ]


def recorded(folder: Path | str) -> list[Finding]:
    """What the files of a finished run show of the usual faults, without a fit: the checks that cost nothing.

    Args:
        folder: With `metrics.json`, and `posterior.nc` if the run has one.

    Returns:
        Of the findings of `check` the trivial bound and the calibration, as far as the files tell.
    """
    folder = Path(folder)
    metrics = read_json(folder / "metrics.json")
    energy, bound = metrics.get("free_energy"), metrics.get("trivial_free_energy")
    found = [] if energy is None or bound is None else [_beside_trivial(energy, bound)]
    if not (folder / "posterior.nc").exists():
        return found
    data = arviz_io.load(folder / "posterior.nc")
    if "predictions_constant_data" not in arviz_io.group_names(data):
        return found
    test = data["predictions_constant_data"]
    y = np.asarray(test["y"].values)
    if y.ndim == 1 and "probs" in test:
        probs = torch.from_numpy(np.array(test["probs"].values))
        found.append(_certainty(probs, torch.from_numpy(y.astype(np.int64))))
    elif y.ndim == 1:
        draws = np.asarray(data["predictions"]["y"].values)
        weights = metrics.get("chain_weights")
        each = None if weights is None else np.repeat(np.asarray(weights) / draws.shape[1], draws.shape[1])
        flat = draws.reshape(-1, len(y)).astype(float)
        low, high = calibration.quantiles(flat, [0.25, 0.75], each)
        expected = np.average(((low <= flat) & (flat <= high)).mean(1), weights=each)
        found.append(_inside(float(((low <= y) & (y <= high)).mean()), y.size, float(expected)))
    return found


def verdict(findings: Sequence[Finding]) -> str:
    """One sentence."""
    faults = [finding.name for finding in findings if finding.passed is False]
    unknown = [finding.name for finding in findings if finding.passed is None]
    if faults:
        return f"do not trust this posterior yet: {', '.join(faults)}"
    asked = f"; not checked: {', '.join(unknown)}" if unknown else ""
    return f"no fault found{asked}"


def notes(posterior: Posterior, data: Dataset, *, draws: int = 100, seed: int = 0) -> list[str]:
    """What is worth knowing of a fit besides its faults, a sentence each; nothing that is given changes.

    Args:
        posterior: The fit, of which the first chain is looked at.
        data: What it was fitted to.
        draws: Weight draws for each estimate.
        seed: Decides everything random.
    """
    model, guide = posterior.chains[0]
    found = [_prior_functions(model, data, draws, seed)]
    if kl_ledger(posterior, draws=2) is None:
        return found
    energy = _free_energy((model, guide), data.train, draws, seed) / len(data.train)
    signal = gradient_signal(model, guide, data.train, seed=seed)
    found.append(
        f"one draw of the weights gives the free energy to ± {float(energy.std()):.2g} nats per datum; the "
        f"signal-to-noise ratio of its gradient is {signal:.2g}, for one draw and 128 rows (0 at a minimum)"
    )
    k_hat = last_layer_k_hat(posterior, data.train, draws=max(100, 4 * draws), seed=seed)
    if k_hat is not None:
        words = "near enough to be corrected by reweighting" if k_hat < 0.7 else "too far off for reweighting"
        found.append(f"the last layer, given the others, is {words}: Pareto k-hat {k_hat:.2f}, limit 0.7")
    return found


def _prior_functions(model: BayesianNetwork, data: Dataset, draws: int, seed: int) -> str:
    """What the prior alone predicts at training inputs."""
    x = data.train.x[:: max(1, len(data.train) // POINTS)][:POINTS]
    prior = Posterior([(model, model)]).predict(x, draws=draws, seed=seed)
    if isinstance(prior, ClassPrediction):
        sure = 1 - float(prior.expected_entropy.mean()) / np.log(prior.probs.shape[-1])
        return f"before the data, a draw of the network is {100 * sure:.0f} % sure of a class"
    spread, targets = float(prior.means.std(0).mean()), float(data.train.y.double().std(0).mean())
    return f"before the data, outputs have a standard deviation of {spread:.3g}, the targets {targets:.3g}"


def _bound(
    chain: tuple[BayesianNetwork, nn.Module], data: Dataset, draws: int, steps: int, seed: int
) -> list[Finding]:
    """The optimum and the trivial bound, of a guide that has a free energy."""
    model, guide = chain
    name = type(guide).__name__
    if kl_ledger(Posterior([chain]), draws=2) is None:
        return _unknown(f"{name} holds a point or draws, not a density, so there is no free energy")
    if isinstance(guide, NormalByScale):
        guide = guide.by_rho()
    before = _free_energy((model, guide), data.train, draws, seed)
    if not bool(before.isfinite().all()):
        return _unknown(f"the free energy of {name} is not finite")
    return [*_optimum((model, guide), data, before, draws, steps, seed), _trivial(model, data, before)]


def _unknown(reason: str) -> list[Finding]:
    return [Finding("optimum", None, GAIN, reason), Finding("trivial bound", None, 0.0, reason)]


def _free_energy(chain: tuple[BayesianNetwork, nn.Module], train: Split, draws: int, seed: int) -> Tensor:
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


def _optimum(
    chain: tuple[BayesianNetwork, nn.Module], data: Dataset, before: Tensor, draws: int, steps: int, seed: int
) -> list[Finding]:
    """How much the free energy falls if training goes on, the KL and each datum counting once.

    Of a mean field also how much of that its sigmas save at the same mu. A mu that is still moving leaves
    little to them; to a sigma that was not trained, or under another KL, nearly all is left.
    """
    model, guide = deepcopy(chain)
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
    after = _free_energy((model, guide), data.train, draws, seed)
    first, last = (float(energy.mean()) / N for energy in (before, after))
    words = f"{epochs} more epochs at the full KL lower F from {first:.4g} to {last:.4g} nats per datum"
    once = "check that the KL and N count once (kl=uniform)"
    advice = f"the fit is not at its minimum; train longer or faster (rates.rho), and {once}"
    found = [_saving("optimum", (before - after) / size, GAIN, words, advice)]
    if isinstance(getattr(guide, "rho", None), nn.Parameter):
        other: Any = deepcopy(chain[1])
        other.rho.data.copy_(guide.rho)
        after = _free_energy((chain[0], other), data.train, draws, seed)
        words = "of this the sigmas save, at the same mu"
        advice = f"sigma is not at its minimum; see that it is trained, or faster (rates.rho), and {once}"
        found.append(_saving("sigma", (before - after) / size, SIGMA, words, advice))
    return found


def _saving(name: str, gain: Tensor, limit: float, words: str, advice: str) -> Finding:
    """Nats per weight that each draw would save: the mean, less its Monte Carlo error times 3."""
    mean, error = float(gain.mean()), float(gain.std() / sqrt(len(gain)))
    value = max(0.0, mean - 3 * error)
    words = f"{words}, {mean:.2g} ± {error:.1g} per weight"
    return Finding(name, value, limit, f"{words}: {advice}" if value > limit else words)


def _trivial(model: BayesianNetwork, data: Dataset, before: Tensor) -> Finding:
    """The free energy beside that of a posterior that ignores the inputs."""
    bound = trivial_free_energy(model, data.train)
    energy = float(before.mean()) / len(data.train)
    if bound is None:
        words = f"free energy {energy:.4g} nats per datum; for this prior no trivial bound is computed"
        return Finding("trivial bound", None, 0.0, words)
    return _beside_trivial(energy, bound)


def _beside_trivial(energy: float, bound: float) -> Finding:
    words = f"free energy {energy:.4g} nats per datum, ignoring the inputs {bound:.4g}"
    if energy > bound:
        words += ": the bound says nothing about this fit; a prior of the right scale, or learned, is needed"
    return Finding("trivial bound", energy - bound, 0.0, words)


def _calibration(posterior: Posterior, held: Split | None, draws: int, seed: int) -> Finding:
    """Whether held-out rows are as sure as the predictions say."""
    if held is None:
        return Finding("calibration", None, 0.0, "no held-out rows, validation or test, to measure it on")
    prediction = posterior.predict(held.x, held.y, draws=draws, sample=True, seed=seed)
    if isinstance(prediction, ClassPrediction):
        return _certainty(prediction.probs.reshape(-1, prediction.probs.shape[-1]), held.y.long().flatten())
    low, high = prediction.interval(0.5)
    share, expected = (
        float(((low <= y) & (y <= high)).double().mean())
        for y in (posterior.model.likelihood.encode(held.y).to(low), prediction.samples)
    )
    return _inside(share, low.numel(), expected)


def _inside(share: float, values: int, expected: float) -> Finding:
    """Whether 50 % intervals hold as many held-out values as expected; of counts more than half."""
    value = abs(share - expected) - 4 * 0.5 / sqrt(values)
    words = f"{100 * share:.0f} % of {values} held-out values lie in {100 * expected:.0f} % intervals"
    if value > COVERAGE:
        how = "too narrow" if share < expected else "too wide"
        words += f": they are {how}; learn the noise, choose another likelihood or a less sure posterior"
    return Finding("calibration", max(0.0, value), COVERAGE, words)


def _certainty(probs: Tensor, y: Tensor) -> Finding:
    """What the best power of the probabilities would save: the temperature of Guo et al. 2017."""
    log_probs = probs.double().clamp_min(1e-12).log()

    def losses(power: float) -> Tensor:
        return -(power * log_probs).log_softmax(-1)[torch.arange(len(y)), y]

    powers = np.exp(np.linspace(np.log(0.1), np.log(20), 107))
    best = min(powers, key=lambda power: float(losses(float(power)).mean()))
    gain = losses(1.0) - losses(float(best))
    error = float(gain.std() / sqrt(len(y)))
    value = max(0.0, float(gain.mean()) - 3 * error)
    words = (
        f"probabilities to the power {best:.2g} would save {float(gain.mean()):.2g} ± {error:.1g} nats a row"
    )
    if value > CERTAINTY:
        how = "too unsure (is softmax applied twice?)" if best > 1 else "too sure"
        words += f": they are {how}"
    return Finding("calibration", value, CERTAINTY, words)


def _restarts(posterior: Posterior, data: Dataset, draws: int, seed: int) -> Finding:
    """Whether restarts found the same functions."""
    if len(posterior.chains) < 2:
        return Finding("restarts", None, R_HAT, "one chain: fit with chains=4 to see whether restarts agree")
    held = data.test or data.validation or data.train
    x = held.x[:: max(1, len(held) // POINTS)][:POINTS]
    drawn = function_draws(posterior, x, draws=max(draws, 100), seed=seed)
    if not np.ptp(drawn, axis=1).any():
        return Finding("restarts", None, R_HAT, "each restart is a point, without draws to compare")
    values = np.nan_to_num(r_hat(drawn), nan=1.0)  # where all draws of all restarts are equal
    value = float(np.quantile(values, 0.9))
    words = (
        f"R-hat of the function between {len(posterior.chains)} restarts is {value:.2f} at nine of ten inputs"
    )
    if value > R_HAT:
        words += ": each found another mode; average them, and do not trust one alone"
    return Finding("restarts", value, R_HAT, words)
