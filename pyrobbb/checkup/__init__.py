"""Did it work? What a fitted posterior shows of the usual faults, each with what to do about it.

>>> for finding in check(posterior, data):  # doctest: +SKIP
...     print(finding)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pyrobbb._support import checks
from pyrobbb._support.files import read_json
from pyrobbb.checkup.finding import Finding, verdict
from pyrobbb.checkup.held_out import calibration, certainty, inside
from pyrobbb.checkup.optimum import beside_trivial, optimum
from pyrobbb.checkup.remarks import notes
from pyrobbb.data.dataset import Dataset, scattered
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.calibration import pooled, quantiles
from pyrobbb.evaluation.diagnostics import function_draws, r_hat
from pyrobbb.posterior import Posterior

__all__ = ["Finding", "check", "notes", "recorded", "verdict"]

# The limits here and in the files of the checks lie between what sound fits of small networks show and what
# planted faults do (`benchmarks.planted`)
R_HAT = 1.5  # between restarts, at nine of ten inputs
SAMPLED = 1.1  # the same of a sampler's chains, which should all have one distribution
MANY_DRAWS = 100  # of each, from which on that limit holds: of fewer, sound but dependent ones exceed it
POINTS = 100  # inputs to compare restarts at
LEAST_DRAWS = 20  # whose quantiles tell how often a new value lies between them
UNUSED = 1e-3  # of the largest chain's weight, at most: of such a chain little is predicted


def check(
    posterior: Posterior, data: Dataset, *, draws: int = 100, steps: int = 400, seed: int = 0
) -> list[Finding]:
    """Look for the usual faults of a fit; nothing that is given changes.

    Args:
        posterior: The fit; several chains are compared with one another, and of what is found of each by
            itself the worst counts. Chains that stacking gives less than a thousandth of the largest
            weight are left out.
        data: What it was fitted to; held-out rows, validation or test, show its calibration.
        draws: Weight draws for each estimate.
        steps: Of further training, to see whether the free energy has reached its minimum; that of another
            bound, such as one of `RenyiELBO`, lies elsewhere.
        seed: Decides everything random.

    Returns:
        The findings: optimum and sigma (of a mean field) in nats per weight, trivial bound in nats per row,
        calibration, and R-hat between restarts.

    Raises:
        ValueError: Fewer than 2 draws, or no steps.
    """
    checks.check_kinds(posterior=(posterior, Posterior), data=(data, Dataset))
    checks.count("draws", draws, minimum=2)
    checks.count("steps", steps)
    weights = posterior.chain_weights or [1.0] * len(posterior.chains)
    taken = [c for c, weight in enumerate(weights) if weight > UNUSED * max(weights)]
    each = {c: optimum(posterior.chains[c], data, draws, steps, seed) for c in taken}
    several = len(posterior.chains) > 1
    if several and len(taken) == 1:
        words = f"stacking uses one of {len(weights)} chains, so there is none to compare it with"
        restarts = Finding("restarts", None, R_HAT, words)
    else:
        restarts = _restarts(Posterior([posterior.chains[c] for c in taken]), data, draws, seed)
    held = data.validation or data.test
    return [*_worst(each, several), calibration(posterior, held, draws, seed), restarts]


def _worst(chains: Mapping[int, Sequence[Finding]], several: bool) -> list[Finding]:
    """Of each finding that of the chain that exceeds the limit by most, or comes nearest to it."""
    found = []
    for name in dict.fromkeys(finding.name for findings in chains.values() for finding in findings):
        own = [(chain, one) for chain, findings in chains.items() for one in findings if one.name == name]
        chain, worst = max(own, key=lambda each: _badness(each[1]))
        words = f"chain {chain}: {worst.words}" if several else worst.words
        found.append(replace(worst, words=words))
    return found


def _badness(finding: Finding) -> tuple[int, float]:
    """A fault is worse than what is not known, and that than what is in order."""
    beyond = 0.0 if finding.value is None else finding.value - finding.limit
    return {True: 0, None: 1, False: 2}[finding.passed], math.inf if math.isnan(beyond) else beyond


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
    found = [] if energy is None or bound is None else [beside_trivial(energy, bound)]
    if not (folder / "posterior.nc").exists():
        return found
    data = arviz_io.load_of(folder, metrics)
    if "predictions_constant_data" not in arviz_io.group_names(data):
        return found
    test = data["predictions_constant_data"]
    y, given = np.asarray(test["y"].values), arviz_io.row_weights(test)
    counts = torch.ones(len(y)) if given is None else torch.from_numpy(given)
    if y.ndim == 1 and "probs" in test:
        probs = torch.from_numpy(np.array(test["probs"].values))
        found.append(certainty(probs, torch.from_numpy(y.astype(np.int64)), counts))
    elif y.ndim == 1:
        draws, weights = pooled(data["predictions"]["y"].values.astype(float), metrics.get("chain_weights"))
        if len(draws) < LEAST_DRAWS:
            words = f"{len(draws)} draws are too few to tell"
            return [*found, Finding("calibration", None, 0.0, words)]
        low, high = quantiles(draws, [0.25, 0.75], weights)
        drawn = np.average((low <= draws) & (draws <= high), axis=0, weights=weights)
        there = ((low <= y) & (y <= high)).astype(float)
        found.append(inside(torch.from_numpy(there)[:, None], torch.from_numpy(drawn)[:, None], counts))
    return found


def _restarts(posterior: Posterior, data: Dataset, draws: int, seed: int) -> Finding:
    """Whether restarts found the same functions."""
    if len(posterior.chains) < 2:
        again = "fit again with chains=4 (in Python fit(make_model, ..., chains=4))"
        return Finding("restarts", None, R_HAT, f"one chain: {again} to see whether restarts agree")
    held = data.test or data.validation or data.train
    x = held.x[scattered(len(held), POINTS).to(held.x.device)]
    drawn = function_draws(posterior, x, draws=max(draws, 100), seed=seed)
    sampled = all(hasattr(guide, "stored_draw") for _, guide in posterior.chains)
    limit = SAMPLED if sampled and drawn.shape[1] >= MANY_DRAWS else R_HAT
    if drawn.shape[1] < LEAST_DRAWS:
        words = f"a sampler's chain of {drawn.shape[1]} draws is too short to compare restarts"
        return Finding("restarts", None, limit, words)
    if not sampled and not np.ptp(drawn, axis=1).any():  # a sampler's chain is stuck then
        return Finding("restarts", None, limit, "each restart is a point, without draws to compare")
    values = np.where(np.ptp(drawn, axis=(0, 1)) == 0, 1.0, r_hat(drawn))  # of equal draws there is none
    value = float(np.quantile(values, 0.9)) if not np.isnan(values).any() else float("nan")
    words = (
        f"R-hat of the function between {len(posterior.chains)} restarts is {value:.3g} at nine of ten inputs"
    )
    if value > limit:
        found = (
            "have not mixed; let them run for longer" if sampled else "found different modes; average them"
        )
        words += f": they {found}, and trust none alone"
    return Finding("restarts", value, limit, words)
