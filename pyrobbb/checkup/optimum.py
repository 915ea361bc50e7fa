"""Whether the free energy of a fit is at its minimum, and below that of ignoring the inputs."""

import math
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from pyrobbb._support.copies import own_copy, own_pair
from pyrobbb._support.model_inputs import check_rows
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup.finding import Finding
from pyrobbb.checkup.held_out import standard_error
from pyrobbb.data.dataset import Dataset, Split, scattered
from pyrobbb.draws import FittedChain, has_density
from pyrobbb.evaluation.metrics import row_mean
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.inference.natural_gradient import NormalByScale
from pyrobbb.posterior import Posterior
from pyrobbb.svi import kl_of, nll_of
from pyrobbb.training.trainer import Training

GAIN = 0.3  # nats per weight that further training may still save
SIGMA = 0.04  # the same, of what other sigmas save at the same mu
ROWS, MOST = 1000, 100_000  # to evaluate F on, where there are more; of small networks up to MOST,
PRODUCTS = 10**8  # as long as rows times weights are no more than this
EPOCHS = 4  # of further training at least, over which the rate falls
LONGER = (
    "train longer or faster (+rates.rho=10, in Python rates={'rho': 10}), or let the rate fall at the end "
    "(schedule=cosine, in Python schedule=)"
)


def optimum(chain: FittedChain, data: Dataset, draws: int, steps: int, seed: int) -> list[Finding]:
    """The optimum and the trivial bound, of a guide that has a free energy."""
    model, guide = chain
    name = type(guide).__name__
    first = data.train.head(1).to(model.device)
    with isolated(seed, device=model.device):
        check_rows(model, "", first.x, first.y)  # other data than it was fitted to, told before Pyro fails
    if not has_density(chain):
        return _unknown(f"the density of {name} is not known, as for a point or draws: no free energy")
    if isinstance(guide, NormalByScale):
        guide = guide.by_rho()
    before = free_energy((model, guide), data.train, draws, seed)
    if not bool(before.by_draw.isfinite().all()):
        return _unknown(f"the free energy of {name} is not finite", math.nan)
    return [*_further((model, guide), data, before, draws, steps, seed), _trivial(model, data, before)]


def _unknown(reason: str, value: float | None = None) -> list[Finding]:
    return [Finding("optimum", value, GAIN, reason), Finding("trivial bound", value, 0.0, reason)]


@dataclass(frozen=True)
class Energy:
    """F at temperature 1 in nats, estimated by some draws and rows, or a difference of two such estimates."""

    by_draw: Tensor  # F, (draws,)
    by_row: Tensor  # -E log p(y_i | x_i, w) of each row that was read, (rows,)
    N: int

    def __sub__(self, other: "Energy") -> "Energy":
        return Energy(self.by_draw - other.by_draw, self.by_row - other.by_row, self.N)

    @property
    def mean(self) -> float:
        """Over the draws."""
        return float(self.by_draw.mean())

    @property
    def error_of_rows(self) -> float:
        """The standard error that is due to the rows that were not read."""
        read = len(self.by_row)
        return self.N * float(self.by_row.std()) * sqrt(1 / read - 1 / self.N) if read < self.N else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean, due to draws and rows."""
        return math.hypot(float(self.by_draw.std()) / sqrt(len(self.by_draw)), self.error_of_rows)


def free_energy(chain: FittedChain, train: Split, draws: int, seed: int) -> Energy:
    """F at temperature 1, from some of the rows; the same rows and draws each time."""
    model, guide = chain
    N, most = len(train), min(MOST, max(ROWS, PRODUCTS // model.num_weights))
    rows = train.take(scattered(N, most).to(train.x.device)).to(model.device)
    by_draw, by_row = [], torch.zeros(len(rows), dtype=torch.double, device=model.device)
    with torch.no_grad(), isolated(seed, device=model.device), evaluating(model):
        for _ in range(draws):
            q = poutine.trace(guide).get_trace(rows.x, rows.y)
            p = poutine.trace(poutine.replay(model, q)).get_trace(rows.x, rows.y)
            q.compute_log_prob()
            p.compute_log_prob()
            nll = nll_of(p, rows.weights)
            by_draw.append(kl_of(p, q) + nll.sum() * (N / len(rows)))
            by_row += nll / draws
    return Energy(torch.stack(by_draw).double(), by_row, N)


def _further(
    chain: FittedChain, data: Dataset, before: Energy, draws: int, steps: int, seed: int
) -> list[Finding]:
    """How much the free energy falls if training continues, the KL and each datum counting once.

    Of a mean field also how much of that its sigmas save at the same mu. A mu that is still moving leaves
    little to them; to a sigma that was not trained, or under another KL, nearly all is left.
    """
    model, guide = own_pair(*chain)
    size, N = model.num_weights, len(data.train)
    batch = min(N, max(256, -(-EPOCHS * N // steps)))
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
    first, last = before.mean / N, after.mean / N
    words = f"{epochs} more epochs at the full KL lower F from {first:.4g} to {last:.4g} nats per datum"
    once = "check that the KL and N count once (kl=uniform)"
    advice = f"the fit is not at its minimum; {LONGER}, and {once}"
    found = [_saving("optimum", before - after, size, GAIN, words, advice)]
    if isinstance(getattr(guide, "rho", None), nn.Parameter):
        other: Any = own_copy(chain[1])
        other.rho.data.copy_(guide.rho)
        after = free_energy((chain[0], other), data.train, draws, seed)
        words = "of this the sigmas save, at the same mu"
        advice = f"sigma is not at its minimum; see that it is trained, {LONGER}, and {once}"
        found.append(_saving("sigma", before - after, size, SIGMA, words, advice))
    faults = [i for i, finding in enumerate(found) if finding.passed is False]
    held = data.validation or data.test
    if faults and held is not None:
        said = _held_out(chain, (model, guide), held, draws, seed)
        found[faults[-1]] = replace(found[faults[-1]], words=found[faults[-1]].words + said)
    return found


def _held_out(now: FittedChain, then: FittedChain, held: Split, draws: int, seed: int) -> str:
    """How held-out rows are predicted before and after further training: a lower F may predict worse."""
    counting = held.counts.nonzero()[:, 0]
    rows = held.take(counting[scattered(len(counting), ROWS).to(counting.device)])
    first, last = (
        -Posterior([chain]).predict(rows.x, rows.y, draws=draws, seed=seed).log_predictive.double()
        for chain in (now, then)
    )
    before, after, change = (row_mean(each, rows.weights) for each in (first, last, last - first))
    words = f". The NLL of {len(rows)} held-out rows is {before:.4g} now, {after:.4g} then"
    worse = change > 3 * standard_error(last - first, rows.counts)
    how = "predicts worse here" if worse else "may predict worse"
    return f"{words}. A lower F {how}: compare posteriors and priors on held-out rows"


def _saving(name: str, gain: Energy, size: int, limit: float, words: str, advice: str) -> Finding:
    """Nats per weight that would be saved, less its standard error times 3; not known from too few rows."""
    mean, error, unread = gain.mean / size, gain.error / size, gain.error_of_rows / size
    value = max(mean - 3 * error, 0.0)  # NaN stays NaN, which is not a sound fit
    words = f"{words}, {mean:.2g} ± {error:.1g} per weight"
    if value > limit:
        words += f": {advice}"
    elif 3 * unread > limit and mean + 3 * unread > limit:
        return Finding(name, None, limit, f"{words}: {len(gain.by_row)} rows are too few to tell")
    return Finding(name, value, limit, words)


def _trivial(model: BayesianNetwork, data: Dataset, before: Energy) -> Finding:
    """The free energy beside that of a posterior that ignores the inputs."""
    bound = trivial_free_energy(model, data.train)
    energy = before.mean / before.N
    if bound is None:
        words = f"free energy {energy:.4g} nats per datum; for this model no trivial bound is computed"
        return Finding("trivial bound", None, 0.0, words)
    return beside_trivial(energy, bound, before.error / before.N)


def beside_trivial(energy: float, bound: float, error: float = 0.0) -> Finding:
    """Whether the free energy, less its standard error times 3, is below that of ignoring the inputs."""
    estimate = f"{energy:.4g} ± {error:.1g}" if error else f"{energy:.4g}"
    words = f"free energy {estimate} nats per datum, ignoring the inputs {bound:.4g}"
    value = energy - 3 * error - bound
    if value > 0:
        words += (
            ": the bound says nothing about this fit; where the fit is at its minimum, it takes a prior of "
            "the right scale, or a learned one"
        )
    return Finding("trivial bound", value, 0.0, words)
