"""The paper's regression, Fig. 5: median and interquartile range, a Bayesian network beside a plain one.

`python -m experiments.paper_regression [key=value ...]` fits the declared Bayesian network (the keys are
those of `experiments.run`) and a plain network of the same size, and leaves `metrics.json` and `figure.png`.
The plain network minimises the squared error, which is the Gaussian loss with a fixed variance: it says one
function and no interval.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.compose import command_line, compose, fitted
from models.mlp import perceptron
from pyrobbb.data import Dataset, PaperCurve
from pyrobbb.figures import save
from pyrobbb.figures.band_grid import Curves, band_grid
from pyrobbb.files import write_text
from pyrobbb.isolation import isolated
from pyrobbb.plain import PlainFit, fit_plain
from pyrobbb.posterior import Posterior
from pyrobbb.prediction import ValuePrediction
from pyrobbb.run import Result

AT = (-0.3, 0.8, 1.2)  # off the data, which lie in [0, 0.5]
GRID = torch.linspace(-0.4, 1.2, 321)[:, None]
INSIDE = torch.linspace(0.0, 0.5, 101)[:, None]


def plain(data: Dataset, epochs: int, seed: int = 0, folder: Path | None = None) -> PlainFit:
    """A plain network with the Bayesian one's layers, minibatches and optimiser."""
    with isolated(seed):
        network = perceptron(1, [100, 100], 1, "relu")
    adam = partial(torch.optim.Adam, lr=3e-3)
    return fit_plain(
        network, data, epochs=epochs, optim=adam, batch_size=100, loss="mse", device="cpu", folder=folder
    )


def quartiles(posterior: Posterior, x: Tensor, draws: int = 1000, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Median and interquartile range of the function draws at `x` `(G, 1)`, both `(G,)`."""
    prediction = posterior.predict(x, draws=draws, seed=seed)
    assert isinstance(prediction, ValuePrediction)
    first, median, third = prediction.quantiles([0.25, 0.5, 0.75])[..., 0]
    return median, third - first


def numbers(result: Result, draws: int = 1000) -> dict[str, Any]:
    """Error of the median against E[y | x] on the data's range, and how the interquartile range widens."""
    device = result.data.train.x.device
    curve = result.run.data
    truth = curve.truth(INSIDE) if isinstance(curve, PaperCurve) else PaperCurve().truth(INSIDE)
    median, width = quartiles(result.posterior, INSIDE.to(device), draws)
    _, off = quartiles(result.posterior, torch.tensor(AT)[:, None].to(device), draws)
    inside = float(width.mean())
    return {
        "rmse inside": float((median.cpu() - truth[:, 0]).square().mean().sqrt()),
        "IQR inside": inside,
        "IQR": dict(zip(map(str, AT), off.tolist(), strict=True)),
        "IQR(1.2) / IQR inside": float(off[-1]) / inside,
        "test": result.metrics["test"],
        "seconds": result.metrics["train_seconds"],
    }


def figure(result: Result, fit: PlainFit, path: Path, draws: int = 1000) -> None:
    """The paper's Fig. 5: both networks on [-0.4, 1.2]."""
    prediction = result.posterior.predict(GRID.to(result.data.train.x.device), draws=draws, seed=1)
    assert isinstance(prediction, ValuePrediction)
    x, train = GRID[:, 0].numpy(), result.data.train.to("cpu")
    drawn = band_grid(
        {
            "Bayes by Backprop": [Curves(x, prediction.means[..., 0].cpu().numpy())],
            "plain network, same layers": [Curves(x, fit.predict(GRID).T.numpy())],
        },
        train.x[:, 0].numpy(),
        train.y[:, 0].numpy(),
        centre="median",
        truth=[PaperCurve().truth(GRID[:, 0]).numpy()],
        y_limits=[(-0.9, 1.6)],
        title="Fig. 5: the Bayesian interval widens off the data, the plain network has none",
    )
    save(drawn, path)


def main(folder: Path, overrides: list[str]) -> None:
    """Fit both, print the numbers beside the calibration's, draw the figure."""
    config = compose("paper_regression", overrides, folder=folder / "bayesian")
    result = fitted(config)
    found = numbers(result)
    data = result.data.to("cpu")
    fits = [plain(data, config.epochs, seed, folder / f"plain-{seed}") for seed in range(3)]
    truth = PaperCurve().truth(INSIDE)
    errors = [float((fit.predict(INSIDE) - truth).square().mean().sqrt()) for fit in fits]
    far = [fit.predict(torch.tensor(AT)[:, None])[:, 0].tolist() for fit in fits]
    found["plain"] = {"rmse inside": errors, "value": [dict(zip(map(str, AT), v, strict=True)) for v in far]}
    print("The paper prints no number here; beside ours: another implementation, two seeds")
    print(f"median's rmse against E[y|x] on [0, 0.5]   {found['rmse inside']:.3f}   (0.018, 0.021)")
    print(f"mean IQR on [0, 0.5]                       {found['IQR inside']:.3f}   (0.047, 0.050)")
    for x, others in zip(AT, ("0.165, 0.172", "-", "0.207, 0.211"), strict=True):
        print(f"IQR at x = {x:<4g}                            {found['IQR'][str(x)]:.3f}   ({others})")
    print(f"IQR at 1.2 / mean IQR inside               {found['IQR(1.2) / IQR inside']:.2f}    (4.2, 4.4)")
    print("plain network, weights of three seeds: no interval")
    print("  rmse inside " + ", ".join(f"{e:.3f}" for e in errors))
    for i, x in enumerate(AT):
        print(f"  value at x = {x:<4g} " + ", ".join(f"{v[i]:.2f}" for v in far))
    figure(result, fits[0], folder / "figure.png")
    write_text(folder / "metrics.json", json.dumps(found, indent=2) + "\n")
    print(f"{folder}: metrics.json, figure.png; the Bayesian run is in {folder / 'bayesian'}")


if __name__ == "__main__":
    command_line("experiments.paper_regression", main, __doc__)
