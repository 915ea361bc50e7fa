"""The paper's regression, Fig. 5: five Bayesian networks, five plain ones, and NUTS on a smaller network.

`python -m experiments.paper.regression [priors=[...]] [key=value ...]` fits networks that all say a mean and
a noise for each x, from five seeds: Bayesian ones under each prior, and plain ones that minimise the same
conditional Gaussian loss, as the paper's does. The prior is chosen by held-out log score, of networks that
see x <= 0.4 on rows with x > 0.4, and where seeds do not tell scores apart by prior predictive (`choose`).
Under that prior NUTS draws from the posterior of one hidden layer of 50, which the mean field fits too.
Inputs are taken as they are. Writes `record.json` and `figure.png`; what is finished is not run again.

priors=[mixture,wide_mixture,gaussian,fan_in]    which priors
part=choice      the prior predictive and the choice alone, into the record of an earlier run in that folder
nuts_chains=4 nuts_warmup=500 nuts_draws=500 nuts_depth=8    NUTS: a quarter of an hour
Other arguments are for every network, as in `experiments.run`: data.noise=0.1414 epochs=100; model.hidden
leaves NUTS' network as it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from experiments._runner.build import ConfigError, build
from experiments._runner.command import command
from experiments._runner.compose import compose, fitted
from experiments._runner.record import provenance
from experiments._runner.study import Outputs, Study
from experiments._runner.tables import verdict
from experiments.paper.regression_report import figure, report
from pyrobbb import priors
from pyrobbb._support.files import read_json, write_json
from pyrobbb._support.random_state import isolated
from pyrobbb.data import PaperCurve
from pyrobbb.evaluation.diagnostics import function_draws, r_hat
from pyrobbb.experiment import Result
from pyrobbb.likelihoods import HeteroscedasticNormal
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction
from pyrobbb.training.trainer import fit

PRIORS = {
    "mixture": ["prior=scale_mixture"],  # the paper's, (1/2, 1, e^-6)
    "wide_mixture": ["prior=scale_mixture", "prior.sigma2=${exp:-3}"],
    "gaussian": ["prior=normal"],  # sd 1
    "fan_in": ["prior=fan_in_normal"],
}
NETWORKS = 5  # seeds of each kind
DRAWS = 1000  # of each, for what is measured
SMALLER = "model.hidden=[50]"  # the network of NUTS, its own whatever the others have
SEEN = 0.4  # held-out rows lie beyond
AT = (-0.3, 0.8, 1.2)  # off the data, which lie in [0, 0.5]
BEFORE = (-0.3, 0.25, 1.2)  # where the prior predictive is looked at: the second is amid the data
GRID = torch.linspace(-0.4, 1.2, 81)[:, None]
INSIDE = torch.linspace(0.0, 0.5, 101)[:, None]
LEVELS = [0.025, 0.25, 0.5, 0.75, 0.975]
Numbers = dict[str, Any]


@dataclass
class Settings:
    """Which priors are compared, and how much work NUTS does."""

    priors: list[str] = field(default_factory=lambda: list(PRIORS))
    part: str = "all"
    nuts_chains: int = 4
    nuts_warmup: int = 500
    nuts_draws: int = 500
    nuts_depth: int = 8


STUDY = Study(
    "experiments.paper.regression",
    "paper_regression",
    Settings,
    sets=("prior", "likelihood", "chains", "together", "seed", "inference"),
    instead="say priors=[...] or nuts_...; the seeds are 1 to 5, and all networks say a mean and a noise",
    parts=("priors",),
    choices={"priors": PRIORS, "part": ("all", "choice")},
)


def bayesian(prior: str, overrides: Sequence[str], folder: Path) -> Result:
    """Five networks of one prior, trained side by side."""
    batch = [f"chains={NETWORKS}", "together=true", "likelihood=heteroscedastic_normal"]
    config = compose("paper_regression", [*batch, *PRIORS[prior], *overrides], folder=folder)
    return fitted(config)


def held_out(prior: str, overrides: Sequence[str], folder: Path, curve: PaperCurve) -> list[float]:
    """Mean log-density of rows with x > 0.4, in nats, by each network that has seen x <= 0.4 alone."""
    rows = round(curve.N * (SEEN - curve.low) / (curve.high - curve.low))
    result = bayesian(prior, [*overrides, f"data.high={SEEN}", f"data.N={rows}"], folder)
    beyond = replace(curve, low=SEEN, N=200, seed=curve.seed + 1).load().train
    predict = partial(result.posterior.predict, beyond.x, beyond.y, draws=DRAWS, seed=1)
    return [float(predict(chains=[c]).log_predictive.mean()) for c in range(NETWORKS)]


def prior_predictive(names: Sequence[str], overrides: Sequence[str]) -> Numbers:
    """Interquartile range of E[y | x, w] at `BEFORE`, w from each prior, and that of y in training rows."""
    found = {}
    for name in names:
        run = build(compose("paper_regression", [*PRIORS[name], *overrides], folder="none"))
        data = run.data.load()
        with isolated(run.seed):
            model = run.model(data.spec, run.prior, HeteroscedasticNormal())
        prior = Posterior([(model, model)])  # without data the model samples from the prior
        _, first, _, third, _ = quantiles(prior, torch.tensor(BEFORE)[:, None])
        found[name] = (third - first).tolist()
    first, third = data.train.y.quantile(torch.tensor([0.25, 0.75]))
    return {"at": BEFORE, "IQR": found, "IQR of y": float(third - first)}


def choose(scores: Mapping[str, Sequence[float]], believed: Numbers) -> str:
    """The prior whose prior predictive fits the data best, among those whose score may be the best.

    Scores, paired by seed, leave out a prior when the 95 % interval of its distance from the best mean lies
    above 0. Of the others the one is taken whose range amid the data is nearest that of y, as a ratio.

    Args:
        scores: Held-out log scores of each prior, by seed.
        believed: Of `prior_predictive`.
    """
    best = max(scores.values(), key=fmean)
    behind = {name: [b - a for a, b in zip(own, best, strict=True)] for name, own in scores.items()}
    level = [name for name, gaps in behind.items() if verdict(gaps) != "holds"]
    return min(level, key=lambda name: abs(math.log(believed["IQR"][name][1] / believed["IQR of y"])))


def quantiles(posterior: Posterior, x: Tensor, chains: Sequence[int] | None = None) -> Tensor:
    """2.5, 25, 50, 75 and 97.5 % of E[y | x, w] over many draws of w at `x` `(G, 1)`, `(5, G)`.

    The noise of an observation is not in them.
    """
    prediction = posterior.predict(x, draws=DRAWS, chains=chains, seed=1)
    assert isinstance(prediction, ValuePrediction)
    return prediction.function_quantiles(LEVELS)[..., 0].cpu()


def numbers(inside: Tensor, outside: Tensor, curve: PaperCurve) -> Numbers:
    """Error of the median on the data's range, and interquartile ranges there and at `AT`; of `quantiles`."""
    truth = curve.truth(torch.tensor(AT)).tolist()
    iqr, at = float((inside[3] - inside[1]).mean()), outside.T.tolist()
    return {
        "rmse inside": float((inside[2] - curve.truth(INSIDE)[:, 0]).square().mean().sqrt()),
        "IQR inside": iqr,
        "IQR": [q[3] - q[1] for q in at],
        "ratio": [(q[3] - q[1]) / iqr for q in at],
        "median": [q[2] for q in at],
        "95 % band": [[q[0], q[4]] for q in at],
        "truth within": [q[0] <= value <= q[4] for q, value in zip(at, truth, strict=True)],
    }


def of_posterior(posterior: Posterior, curve: PaperCurve, chains: Sequence[int] | None = None) -> Numbers:
    """`numbers` of a posterior, or of one of its restarts."""
    both = quantiles(posterior, torch.cat([INSIDE, torch.tensor(AT)[:, None]]), chains)
    return numbers(both[:, : len(INSIDE)], both[:, len(INSIDE) :], curve)


def plain(result: Result, seed: int = 0, folder: Path | None = None) -> Posterior:
    """A plain network with the Bayesian one's layers, minibatches, optimiser, schedule and epochs.

    As of a Bayesian one, a single seed decides how it begins and in which order it sees the rows.
    """
    run, data = result.run, result.data.to("cpu")
    with isolated(seed):
        model = run.model(data.spec, priors.Deterministic(), HeteroscedasticNormal())
    return fit(
        model, None, data, epochs=run.epochs, optim=run.optim, schedule=run.schedule,
        batch_size=run.batch_size, seed=seed, device="cpu", folder=folder, progress=None,
    )  # fmt: skip


def said(fit: Posterior, x: Tensor) -> Tensor:
    """The same quantiles of the Gaussian that a plain network says at `x`: noise and nothing else."""
    prediction = fit.predict(x)
    assert isinstance(prediction, ValuePrediction)
    return prediction.predictive_quantiles(LEVELS)[..., 0]


def nuts(prior: str, overrides: Sequence[str], folder: Path, chosen: Settings) -> Result:
    """NUTS on 1-50-2 (mean and noise) under that prior, a few chains."""
    words = ["inference=nuts", f"chains={chosen.nuts_chains}"]
    words += [f"inference.warmup={chosen.nuts_warmup}", f"inference.draws={chosen.nuts_draws}"]
    words += [f"inference.max_tree_depth={chosen.nuts_depth}", "likelihood=heteroscedastic_normal"]
    words += [*PRIORS[prior], *overrides, SMALLER]
    return fitted(compose("paper_regression", words, folder=folder))


def chosen_again(out: Outputs, overrides: Sequence[str]) -> Numbers:
    """The record of an earlier run with its prior predictive and its choice made anew; its fits stay.

    Raises:
        ConfigError: There is no earlier record.
    """
    path = out.fits / "record.json"
    found = read_json(path)
    if not found:
        raise ConfigError(f"part: part=choice needs the record of an earlier run, {path}")
    found["nuts"].setdefault("prior", found["chosen"])  # earlier records do not say under which it drew
    believed = prior_predictive(list(found["bayesian"]), overrides)
    found |= {"prior predictive": believed | provenance(out.command)}
    found["chosen"] = choose(found["held-out log score"], believed)
    write_json(out.path(path.name), found)
    out.figure("figure.png", figure(found))
    out.end(report(found))
    return found


def main(arguments: Sequence[str]) -> Numbers:
    """Fit what is missing, choose the prior, print, draw."""
    chosen, overrides, out = STUDY.begin(arguments)
    config = compose("paper_regression", overrides, folder=out.fits)
    curve = build(config).data
    if not isinstance(curve, PaperCurve):
        raise ConfigError(f"data: this experiment is about paper_curve, got {config.data._target_}")
    if chosen.part == "choice":
        if chosen.priors != list(PRIORS):
            raise ConfigError("priors: part=choice takes those of the earlier record")
        return chosen_again(out, overrides)
    scores = {p: held_out(p, overrides, out.fits / "held_out" / p, curve) for p in chosen.priors}
    believed = prior_predictive(chosen.priors, overrides)
    best = choose(scores, believed)
    fits = {p: bayesian(p, overrides, out.fits / p) for p in chosen.priors}
    each = range(NETWORKS)
    seeds = [fits[best].run.seed + c for c in each]
    others = [plain(fits[best], seed, out.fits / f"plain-{seed}") for seed in seeds]
    smaller = bayesian(best, [*overrides, SMALLER], out.fits / f"smaller-{best}")
    sampled = nuts(best, overrides, out.fits / f"nuts-{best}", chosen)
    off, train = torch.tensor(AT)[:, None], fits[best].data.train
    agreement = r_hat(function_draws(sampled.posterior, off, draws=sampled.run.draws))[:, 0]
    found = {
        "settings": asdict(chosen),
        "seeds": seeds,
        "at": AT,
        "truth": curve.truth(off)[:, 0].tolist(),
        "held-out log score": scores,
        "prior predictive": believed,
        "chosen": best,
        "bayesian": {p: [of_posterior(r.posterior, curve, [c]) for c in each] for p, r in fits.items()},
        "plain": [numbers(said(fit, INSIDE), said(fit, off), curve) for fit in others],
        "smaller": [of_posterior(smaller.posterior, curve, [c]) for c in each],
        "nuts": of_posterior(sampled.posterior, curve) | {"R-hat": agreement.tolist(), "prior": best},
        "curves": {
            "x": _rounded(GRID[:, 0]),
            "truth": _rounded(curve.truth(GRID)[:, 0]),
            "bayesian": {
                p: [_rounded(quantiles(r.posterior, GRID, [c])[1:4]) for c in range(3)]
                for p, r in fits.items()
            },
            "plain": [_rounded(said(fit, GRID)[1:4]) for fit in others[:3]],
            "smaller": _rounded(quantiles(smaller.posterior, GRID, [0])[1:4]),
            "nuts": _rounded(quantiles(sampled.posterior, GRID)[1:4]),
        },
        "data": [_rounded(part[:100, 0].cpu()) for part in (train.x, train.y)],
    }  # fmt: skip
    out.record(found)
    out.figure("figure.png", figure(found))
    out.end(report(found), f"; the fits are in {out.fits}")
    return found


def _rounded(values: Tensor) -> Any:
    return values.double().round(decimals=4).tolist()


if __name__ == "__main__":
    command(main, __doc__)
