"""The tutorial's six points: a Bayesian network beside a plain one, near the data and far from it.

`python -m experiments.tutorial.toy_regression [key=value ...]` fits the declared Bayesian network (the keys
are those of `experiments.run`) and the tutorial's plain one, and leaves `record.json` and `figure.png`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from experiments._runner.command import command
from experiments._runner.compose import compose, fitted
from experiments._runner.study import NoSettings, Study
from experiments._runner.tables import Writer, table
from experiments.paper.figures import band_grid
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import Dataset, ToyPoints
from pyrobbb.experiment import Result
from pyrobbb.models.mlp import perceptron
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ValuePrediction
from pyrobbb.training.trainer import fit

STUDY = Study("experiments.tutorial.toy_regression", "toy_regression", NoSettings)
RANGES = (2, 5, 100)
Y_LIMITS = ((-5.0, 5.0), (-17.0, 6.0), (-17.0, 6.0))
PLAIN_EPOCHS = 30_000
TUTORIAL_PLAIN = {
    0: 6.1186, 5_000: 0.5939, 10_000: 0.15990, 15_000: 0.014006, 20_000: 7.41e-4, 25_000: 4.19e-5,
}  # fmt: skip
AT = (0.0, 1.5, 5.0, 100.0)
OTHERS = """\
Twelve runs of another implementation: first loss 2478 to 5713, median of the last 100 272 to 334;
sd of f at these x 0.12 to 0.16, 0.18 to 0.26, 0.58 to 0.80, 1.0 to 2.0."""


def plain_network(seed: int) -> nn.Module:
    """The tutorial's standard network, 1-16-16-1, before its training."""
    with isolated(seed):
        return perceptron(1, [16, 16], 1, "sigmoid")


def plain(
    data: Dataset, seed: int = 0, epochs: int = PLAIN_EPOCHS, every: int = 1000, folder: Path | None = None
) -> Posterior:
    """That network trained as there: squared error, full-batch SGD at 0.01.

    The training points are the validation data, too: they have the squared error after each epoch.
    """
    model = BayesianNetwork(plain_network(seed), priors.Deterministic(), likelihoods.Normal(scale=1.0))
    rate = 0.01 * 2 / len(data.train)  # of the mean squared error, for half the sum of squares
    return fit(
        model, None, data, validation=data.train, epochs=epochs, optim=partial(torch.optim.SGD, lr=rate),
        record_every=every, device="cpu", folder=folder, progress=None,
    )  # fmt: skip


def squared_errors(fit: Posterior) -> dict[int, float]:
    """Mean squared error after the epochs that the history has."""
    return {row.epoch: row.validation_error**2 for row in fit.history.rows}


def untrained(data: Dataset, seed: int) -> float:
    """The plain network's squared error before its training."""
    with torch.no_grad():
        return float((plain_network(seed)(data.train.x) - data.train.y).square().mean())


def values(posterior: Posterior, x: torch.Tensor, draws: int = 100) -> torch.Tensor:
    """Draws of the function at `x` `(G, 1)`, shape `(S, G)`."""
    prediction = posterior.predict(x, draws=draws, seed=1)
    assert isinstance(prediction, ValuePrediction)
    return prediction.means[..., 0]


def numbers(result: Result) -> dict[str, Any]:
    """Losses as the tutorial prints them (nats, whole data set), and the spread of the function draws."""
    losses = [row.free_energy * result.data.spec.N for row in result.posterior.history.rows]
    x = torch.tensor(AT)[:, None].to(result.data.train.x.device)
    spread = values(result.posterior, x, draws=1000).std(0).tolist()
    return {
        "loss": {
            "first": losses[0],
            "median of last 100": median(losses[-100:]),
            "mean of last 100": mean(losses[-100:]),
        },
        "sd of the draws": dict(zip(map(str, AT), spread, strict=True)),
        "test rmse": result.metrics["test"]["rmse"],
    }


def report(record: Mapping[str, Any], write: Writer = table) -> str:
    """Both networks beside the tutorial's, a column for each seed."""
    each = record.get("each", [record])
    given = {"first": ("loss", "3808.87"), "median of last 100": ("losses", "278.11 (step 1991 alone)")}
    rows = [
        [f"{name} {what}", theirs, *(f"{one['loss'][name]:.0f}" for one in each)]
        for name, (what, theirs) in given.items()
    ]
    for x in AT:
        spreads = (f"{one['sd of the draws'][str(x)]:.3f}" for one in each)
        rows.append([f"sd of f at x = {x:g}", "-", *spreads])
    above = write(["", "tutorial", *(f"ours, seed {one['seed']}" for one in each)], rows)
    plain = each[0]["plain"]
    rows = [
        [f"after {epoch:,} epochs", f"{error:.3g}", *(f"{one[str(epoch)]:.3g}" for one in plain["mse"])]
        for epoch, error in TUTORIAL_PLAIN.items()
    ]
    rows.append(["prediction at x = 100", "-13", *(f"{value:.1f}" for value in plain["at 100"])])
    seeds = (f"ours, weights of seed {seed}" for seed in range(len(plain["mse"])))
    return f"{above}\n\n{write(['plain network, squared error', 'tutorial', *seeds], rows)}"


def figure(result: Result, fit: Posterior) -> Figure:
    """Both networks on +-2, +-5 and +-100."""
    device = result.data.train.x.device
    grids = [torch.linspace(-1.05 * reach, 1.05 * reach, 421)[:, None] for reach in RANGES]
    bayesian = [(g[:, 0].numpy(), values(result.posterior, g.to(device)).cpu().numpy()) for g in grids]
    point = [(g[:, 0].numpy(), values(fit, g).numpy()) for g in grids]
    train = result.data.train.to("cpu")
    layers = (m for m in result.posterior.model.network.modules() if isinstance(m, nn.Linear))
    units = [str(layer.out_features) for layer in layers]
    return band_grid(
        {f"Bayesian network, 1-{'-'.join(units)}": bayesian, "plain network, 1-16-16-1": point},
        train.x[:, 0].numpy(),
        train.y[:, 0].numpy(),
        truth=[ToyPoints().truth(g[:, 0]).numpy() for g in grids],
        y_limits=Y_LIMITS,
        title="Six points: what a Bayesian and a plain network say near the data and far from them",
    )


def main(arguments: Sequence[str]) -> None:
    """Fit both, print the numbers next to the tutorial's, draw the figure."""
    _, overrides, out = STUDY.begin(arguments)
    folder = out.fits
    result = fitted(compose("toy_regression", overrides, folder=folder / "bayesian"))
    data = result.data.to("cpu")
    fits = [plain(data, seed, folder=folder / f"plain-{seed}") for seed in range(3)]
    errors = [{0: untrained(data, seed)} | squared_errors(fit) for seed, fit in enumerate(fits)]
    plain_fits = {
        "mse": [{str(epoch): error for epoch, error in one.items()} for one in errors],
        "at 100": [float(values(fit, torch.tensor([[100.0]]))) for fit in fits],
    }
    record = {"seed": result.run.seed, **numbers(result), "plain": plain_fits}
    best = min(fits, key=lambda fit: fit.history.rows[-1].validation_error)
    out.record(record)
    out.figure("figure.png", figure(result, best))
    out.end(f"{report(record)}\n\n{OTHERS}", f"; the Bayesian run is in {folder / 'bayesian'}")


if __name__ == "__main__":
    command(main, __doc__)
