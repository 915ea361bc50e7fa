"""The paper's regression, Fig. 5: median and interquartile range, a Bayesian network against a plain one.

`python -m experiments.paper.regression [key=value ...]` fits the declared Bayesian network (the keys are
those of `experiments.run`) and a plain network of the same size, and leaves `metrics.json` and `figure.png`.
The plain network minimises a conditional Gaussian loss, as the paper's does: it gives a mean and a noise for
each x, but no uncertainty of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments._runner.build import ConfigError, build
from experiments._runner.command import command
from experiments._runner.compose import compose, fitted
from experiments._runner.study import NoSettings, Study
from pyrobbb import priors
from pyrobbb._support.random_state import isolated
from pyrobbb.data import PaperCurve
from pyrobbb.experiment import Result
from pyrobbb.figures.band_grid import Curves, band_grid
from pyrobbb.likelihoods import HeteroscedasticNormal
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction
from pyrobbb.training.trainer import fit

STUDY = Study("paper_regression", NoSettings)
AT = (-0.3, 0.8, 1.2)  # off the data, which lie in [0, 0.5]
GRID = torch.linspace(-0.4, 1.2, 321)[:, None]
NORMAL_IQR = 1.349  # interquartile range of N(0, 1)
INSIDE = torch.linspace(0.0, 0.5, 101)[:, None]


def plain(result: Result, seed: int = 0, folder: Path | None = None) -> Posterior:
    """A plain network with the Bayesian one's layers, minibatches, optimiser, schedule and epochs.

    It has a second output, the noise.
    """
    run, data = result.run, result.data.to("cpu")
    with isolated(seed):
        model = run.model(data.spec, priors.Deterministic(), HeteroscedasticNormal())
    return fit(
        model, None, data, epochs=run.epochs, optim=run.optim, schedule=run.schedule,
        batch_size=run.batch_size, device="cpu", folder=folder, progress=None,
    )  # fmt: skip


def mean_and_noise(fit: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of y that a plain network predicts at `x` `(G, 1)`, both `(G,)`."""
    prediction = fit.predict(x)
    assert isinstance(prediction, ValuePrediction)
    return prediction.mean[:, 0], prediction.noise[:, 0].sqrt()


def curve_of(result: Result) -> PaperCurve:
    """The curve whose truth the numbers are measured against."""
    assert isinstance(result.run.data, PaperCurve)
    return result.run.data


def quartiles(posterior: Posterior, x: Tensor, draws: int = 1000, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Median and interquartile range of the function draws at `x` `(G, 1)`, both `(G,)`.

    They are of E[y | x, w] over draws of w: the noise of an observation is not in them.
    """
    prediction = posterior.predict(x, draws=draws, seed=seed)
    assert isinstance(prediction, ValuePrediction)
    first, median, third = prediction.function_quantiles([0.25, 0.5, 0.75])[..., 0]
    return median, third - first


def numbers(result: Result, draws: int = 1000) -> dict[str, Any]:
    """Error of the median against E[y | x] on the data's range, and how the interquartile range widens."""
    device = result.data.train.x.device
    truth = curve_of(result).truth(INSIDE)
    median, width = quartiles(result.posterior, INSIDE.to(device), draws)
    outside = torch.tensor(AT)[:, None]
    centre, off = quartiles(result.posterior, outside.to(device), draws)
    inside = float(width.mean())
    return {
        "rmse inside": float((median.cpu() - truth[:, 0]).square().mean().sqrt()),
        "IQR inside": inside,
        "IQR": dict(zip(map(str, AT), off.tolist(), strict=True)),
        "median": dict(zip(map(str, AT), centre.tolist(), strict=True)),
        "truth": dict(zip(map(str, AT), curve_of(result).truth(outside)[:, 0].tolist(), strict=True)),
        "IQR(1.2) / IQR inside": float(off[-1]) / inside,
        "test": result.metrics["test"],
        "seconds": result.metrics["train_seconds"],
    }


def figure(result: Result, fit: Posterior, draws: int = 1000) -> Figure:
    """The paper's Fig. 5: both networks on [-0.4, 1.2]."""
    prediction = result.posterior.predict(GRID.to(result.data.train.x.device), draws=draws, seed=1)
    assert isinstance(prediction, ValuePrediction)
    x, train = GRID[:, 0].numpy(), result.data.train.to("cpu")
    loc, scale = mean_and_noise(fit, GRID)
    normal = torch.special.ndtri(torch.linspace(0, 1, 202)[1:-1])[:, None]  # standing for draws of y
    return band_grid(
        {
            "Bayes by Backprop": [Curves(x, prediction.means[..., 0].cpu().numpy(), "the function's draws")],
            "plain network, same layers": [Curves(x, (loc + scale * normal).numpy(), "its Gaussian")],
        },
        train.x[:, 0].numpy(),
        train.y[:, 0].numpy(),
        centre="median",
        truth=[curve_of(result).truth(GRID[:, 0]).numpy()],
        y_limits=[(-0.9, 1.6)],
        title="Fig. 5: a Bayesian network, and a plain one that minimises a conditional Gaussian loss",
    )


def plain_lines(found: dict[str, Any]) -> list[str]:
    """The plain networks' predictions on the data and off them."""
    lines = [
        "plain networks, weights of three seeds; IQR is that of the Gaussian they say, noise and nothing else"
    ]
    for name in ("rmse inside", "IQR inside"):
        lines.append(f"  {name:15} " + ", ".join(f"{value:.3f}" for value in found[name]))
    for x in map(str, AT):
        said = zip(found["value"], found["IQR"], strict=True)
        lines.append(f"  at x = {x:8} " + ", ".join(f"{v[x]:.2f} (IQR {w[x]:.3f})" for v, w in said))
    return lines


def main(arguments: Sequence[str]) -> None:
    """Fit both, print the numbers next to the calibration's, draw the figure."""
    _, overrides, out = STUDY.begin(arguments)
    folder = out.fits
    config = compose("paper_regression", overrides, folder=folder / "bayesian")
    if not isinstance(build(config).data, PaperCurve):
        raise ConfigError(f"data: this experiment is about paper_curve, got {config.data._target_}")
    result = fitted(config)
    found = numbers(result)
    fits = [plain(result, seed, folder / f"gaussian-{seed}") for seed in range(3)]
    truth = curve_of(result).truth(INSIDE)
    inside = [mean_and_noise(fit, INSIDE) for fit in fits]
    far = [mean_and_noise(fit, torch.tensor(AT)[:, None]) for fit in fits]
    found["plain"] = {
        "rmse inside": [float((loc - truth[:, 0]).square().mean().sqrt()) for loc, _ in inside],
        "IQR inside": [NORMAL_IQR * float(scale.mean()) for _, scale in inside],
        "value": [dict(zip(map(str, AT), loc.tolist(), strict=True)) for loc, _ in far],
        "IQR": [dict(zip(map(str, AT), (NORMAL_IQR * scale).tolist(), strict=True)) for _, scale in far],
    }
    lines = [
        "The paper prints no number here; next to ours: another implementation, two seeds.",
        "IQR is the function's interquartile range over weight draws, without the noise of an observation.",
        f"median's rmse against E[y|x] on [0, 0.5]   {found['rmse inside']:.3f}   (0.018, 0.021)",
        f"mean IQR on [0, 0.5]                       {found['IQR inside']:.3f}   (0.047, 0.050)",
    ]
    for x, others in zip(AT, ("0.165, 0.172", "-", "0.207, 0.211"), strict=True):
        iqr, median, truth = (found[name][str(x)] for name in ("IQR", "median", "truth"))
        at = f"IQR at x = {x:<4g}                            {iqr:.3f}   ({others})"
        lines.append(f"{at}   median {median:.2f}, truth {truth:.2f}")
    ratio = found["IQR(1.2) / IQR inside"]
    lines.append(f"IQR at 1.2 / mean IQR inside               {ratio:.2f}    (4.2, 4.4)")
    out.json("metrics.json", found, indent=2)
    out.figure("figure.png", figure(result, fits[0]))
    words = "\n".join([*lines, *plain_lines(found["plain"])])
    out.end(words, f"; the Bayesian run is in {folder / 'bayesian'}")


if __name__ == "__main__":
    command(main, __doc__)
