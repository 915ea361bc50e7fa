"""Figures and a report from a run folder alone: `python -m experiments.analyse runs/mnist/default`.

Train on the cluster, look at home: nothing but the files of the folder is read.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments._runner.build import ConfigError, component
from experiments._runner.command import folder_command
from experiments._runner.folder import read_config, read_metrics
from experiments._runner.trust import check_trusted
from pyrobbb import figures as draw
from pyrobbb.evaluation import arviz_io
from pyrobbb.priors import Prior
from pyrobbb.training import history

# parameters unlike each other in name and fan-in: a prior that treats them alike treats all alike
PROBES = (("0.weight", (2, 3)), ("2.weight", (2, 7)), ("4.bias", (2,)))


def figures(folder: Path | str, *, trust: bool = False) -> list[Path]:
    """Draw every figure that the run folder has the numbers for, into `figures/`.

    Args:
        folder: As `experiments.run` leaves it.
        trust: Call the prior that `config.yaml` names, whatever it is; otherwise only the library's own.

    Raises:
        ConfigError: If `config.yaml` names a prior that is not trusted.
        ValueError, OSError: If a file is damaged or absent.
    """
    folder = Path(folder)
    config = read_config(folder / "config.yaml")
    if not isinstance(config.get("prior"), dict):
        raise ConfigError(f"{folder / 'config.yaml'} is not a configuration of a run: it lacks prior")
    if not trust:
        check_trusted(config, folder / "config.yaml")
    data = arviz_io.load(folder / "posterior.nc")
    drawn = {}
    variational = data["variational"]
    loc, scale = variational["loc"].values, variational["scale"].values
    noise = np.random.default_rng(0).standard_normal(loc.shape)
    drawn["weights"] = draw.weight_histogram(loc, loc + scale * noise, _prior_density(config["prior"]))
    if (scale > 0).all():
        drawn["signal_to_noise"] = draw.signal_to_noise(loc, scale)
    test = data["predictions_constant_data"] if "predictions_constant_data" in _groups(data) else None
    if test is not None and "probs" in test:
        drawn |= _of_classes(test)
    elif test is not None and test["x"].shape[1] == 1:
        drawn["predictions"] = _of_values(data, test)
    drawn["learning_curves"] = _learning_curves(folder)  # the last, see has_figures
    target = folder / "figures"
    target.mkdir(exist_ok=True)
    paths = []
    for name, figure in drawn.items():
        paths.append(target / f"{name}.png")
        draw.save(figure, paths[-1])
    return paths


def has_figures(folder: Path | str) -> bool:
    """Whether all figures are drawn: `figures` writes this one last."""
    return (Path(folder) / "figures" / "learning_curves.png").exists()


def _groups(data: Any) -> list[str]:
    return list(data.children) if hasattr(data, "children") else list(data.groups())


def _learning_curves(folder: Path) -> Figure:
    rows = history.read(folder / "history.csv")
    metrics = read_metrics(folder)
    classes = "error" in metrics.get("validation", metrics.get("test", {}))
    columns = ("epoch", "free_energy", "kl", "nll", "validation_error")
    return draw.learning_curves(
        *([getattr(row, name) for row in rows] for name in columns),
        chain=[row.chain for row in rows],
        error_label="validation error (%)" if classes else "validation error (rmse, units of y)",
    )


def _prior_density(config: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    """The density of one weight, where all weights have the same prior."""
    prior: Prior = component("prior", config)
    at = torch.linspace(-1.0, 1.0, 9)
    found = []
    for name, shape in PROBES:
        law = getattr(prior.distribution(name, torch.zeros(shape)), "base_dist", None)
        if law is None:
            return None
        found.append(torch.stack([law.log_prob(torch.full(shape, float(w))).flatten()[0] for w in at]))
    if not all(torch.allclose(found[0], other) for other in found[1:]):
        return None
    one: Any = prior.distribution("weight", torch.zeros(1))
    return lambda w: np.exp(one.base_dist.expand(w.shape).log_prob(torch.as_tensor(w)).numpy())


def _of_classes(test: Any) -> dict[str, Figure]:
    probs, y = test["probs"].values, test["y"].values[:, 0]
    drawn = {"reliability": draw.reliability(probs, y)}
    pixels, rows = test["x"].values, test["shown_row"].values
    side = round(pixels.shape[1] ** 0.5)
    if side > 4 and side * side == pixels.shape[1]:
        images = pixels.reshape(-1, side, side)
        entropy = test["predictive_entropy"].values[rows]
        drawn["most_uncertain"] = draw.uncertain_examples(images, probs[rows], y[rows], entropy)
    return drawn


def _of_values(data: Any, test: Any) -> Figure:
    x = test["x"].values[:, 0]
    order = np.argsort(x)
    means = data["predictions"]["mean"].values[..., 0]
    draws = means.reshape(-1, means.shape[-1])
    title = "Predictions of the posterior at the test inputs, and the test data"
    y = test["y"].values[:, 0]
    return draw.regression_band(x[order], draws[:, order], x, y, title=title, data_label="test data")


def report(folder: Path | str) -> str:
    """What the run found, in a few lines."""
    folder = Path(folder)
    metrics, published = read_metrics(folder), read_config(folder / "config.yaml").get("published")
    lines = []
    for part in ("test", "validation"):
        if "error" in metrics.get(part, {}):
            m = metrics[part]
            lines.append(
                f"{part} error {m['error']:.2f} % (mean weights {m['error_mean_weights']:.2f} %), "
                f"NLL {m['nll']:.4f} nats, Brier {m['brier']:.4f}, ECE {m['ece']:.4f}"
            )
        elif "rmse" in metrics.get(part, {}):
            m = metrics[part]
            lines.append(
                f"{part} rmse {m['rmse']:.4g} (mean weights {m['rmse_mean_weights']:.4g}), "
                f"NLL {m['nll']:.4g} nats"
            )
    lines.append(
        f"{metrics['parameters']:,} weights, {metrics['epochs']} epochs in {metrics['train_seconds']:.0f} s "
        f"on {metrics['device']}, free energy {metrics['free_energy']:.4g} nats per datum"
    )
    if published:
        lines.append(f"published: {published}")
    names = sorted(p.name for p in (folder / "figures").glob("*.png"))
    files = {"metrics.json": "", "history.csv": "", "posterior.nc": " (ArviZ)"}
    there = [name + what for name, what in files.items() if (folder / name).exists()]
    there.append(f"figures/ ({', '.join(names)})")
    lines.append(f"{folder}: {', '.join(there)}")
    return "\n".join(lines)


def analyse(folder: Path, trust: bool = False) -> str:
    """Draw the figures of a run folder, and say what it found."""
    figures(folder, trust=trust)
    return report(folder)


def options(parser: ArgumentParser) -> None:
    """What can be asked of `analyse`."""
    parser.add_argument("--trust", action="store_true", help="call whatever prior config.yaml names")


if __name__ == "__main__":
    folder_command("experiments.analyse", __doc__, analyse, options)
