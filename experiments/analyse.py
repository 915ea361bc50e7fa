"""Figures and a report from a run folder alone: `python -m experiments.analyse runs/mnist/default`.

Train on the cluster, look at the results at home: nothing but the files of the folder is read.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from experiments._runner.build import ConfigError, component
from experiments._runner.command import folder_command, trust_option
from experiments._runner.folder import read_config, read_metrics
from experiments._runner.trust import trusted_config
from pyrobbb import figures as draw
from pyrobbb._support.files import make_folder
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.calibration import pooled
from pyrobbb.evaluation.layer_summary import of_chain, weight_draws
from pyrobbb.evaluation.trivial_bound import compared
from pyrobbb.figures.style import verbatim
from pyrobbb.predictive import error_among
from pyrobbb.priors import Hierarchical, Prior
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
    config = trusted_config(folder, trust)
    if not (folder / "posterior.nc").exists():
        raise ConfigError(
            f"{folder} has no posterior.nc: the run is not finished, or has no Bayesian weights"
        )
    metrics = read_metrics(folder)
    data = arviz_io.load_of(folder, metrics)
    which, drawn = of_chain(metrics), dict[str, Figure]()
    variational = data["variational"]
    loc, scale = variational["loc"].values, variational["scale"].values
    if (scale > 0).all():
        drawn["signal_to_noise"] = draw.signal_to_noise(
            loc, scale, title=f"Signal-to-noise ratio of the weights{which}"
        )
    if "kl" in variational:  # not of every guide, nor in the files of earlier versions
        drawn["kl_by_layer"] = _kl_by_layer(variational, which)
    groups = arviz_io.group_names(data)
    test = data["predictions_constant_data"] if "predictions_constant_data" in groups else None
    if test is not None and "probs" in test:
        drawn |= _of_classes(test)
    elif test is not None and "mean" in data["predictions"] and test["x"].shape[1] == 1:
        drawn["predictions"] = _of_values(data, test, metrics.get("chain_weights"))
    rows = history.read_finished(folder / "history.csv", metrics)
    if rows:  # a sampler without steps has none
        drawn["learning_curves"] = _learning_curves(metrics, rows)
    # of every run, so the last: see has_figures
    prior = prior_density(config["prior"])
    drawn["weights"] = draw.weight_histogram(loc, weight_draws(variational), prior, which=which)
    target = folder / "figures"
    make_folder(target)
    paths = []
    for name, figure in drawn.items():
        paths.append(target / f"{name}.png")
        draw.save(figure, paths[-1])
    return paths


def has_figures(folder: Path | str) -> bool:
    """Whether all figures are drawn: `figures` writes this one last."""
    return (Path(folder) / "figures" / "weights.png").exists()


def _learning_curves(metrics: Mapping[str, Any], rows: Sequence[history.Epoch]) -> Figure:
    error = error_among(metrics.get("validation", metrics.get("test", {})))
    columns = ("epoch", "free_energy", "kl", "nll", "validation_error")
    return draw.learning_curves(
        *([getattr(row, name) for row in rows] for name in columns),
        chain=[row.chain for row in rows],
        trivial=metrics.get("trivial_free_energy"),
        error_label=f"validation {error.label}",
        bound="free_energy" in metrics,
    )


def _kl_by_layer(variational: Any, which: str) -> Figure:
    layers = [str(layer) for layer in variational["layer"].values]
    latents = [str(latent) for latent in variational["latent"].values] if "latent_kl" in variational else []
    none = np.full(len(latents), np.nan)  # a latent carries no information as a weight does

    def rows(name: str) -> np.ndarray:
        """Of the weights, and below them of the latents."""
        own = f"latent_{name}"
        return np.append(variational[name].values, variational[own].values if own in variational else none)

    columns = [rows(name) for name in ("kl", "kl_mcse", "size", "informative")]
    slab = rows("slab") if "slab" in variational else None
    title = f"Where the KL{which} goes: each parameter tensor in the network's order"
    title += ", then each latent" if latents else ""
    return draw.kl_by_layer([*layers, *latents], *columns, slab=slab, title=title)


def prior_density(config: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    """The density of one weight under a configuration's prior, where all weights have the same."""
    prior: Prior = component("prior", config)
    if any(isinstance(part, nn.Module | Hierarchical) for part in (prior, *prior.parts())):
        return None  # it has parameters that the fit trains, or scales that it finds
    at = torch.linspace(-1.0, 1.0, 9)
    found = []
    for name, shape in PROBES:
        try:
            base = getattr(prior.distribution(name, torch.zeros(shape)), "base_dist", None)
        except Exception:  # a prior of one's own may know the parameters of its own network alone
            return None
        if base is None:
            return None
        found.append(torch.stack([base.log_prob(torch.full(shape, float(w))).flatten()[0] for w in at]))
    if not all(torch.allclose(found[0], other) for other in found[1:]):
        return None
    one: Any = prior.distribution(PROBES[0][0], torch.zeros(1))
    return lambda w: np.exp(one.base_dist.expand(w.shape).log_prob(torch.as_tensor(w)).numpy())


def _of_classes(test: Any) -> dict[str, Figure]:
    probs, y = test["probs"].values, _first_target(test["y"].values, 1)
    drawn = {"reliability": draw.reliability(probs, y, weights=arviz_io.row_weights(test))}
    rows, images = test["shown_row"].values, arviz_io.images(test["x"].values)
    if images is not None:
        entropy = test["predictive_entropy"].values[rows]
        drawn["most_uncertain"] = draw.uncertain_examples(images, probs[rows], y[rows], entropy)
    return drawn


def _first_target(values: np.ndarray, axes: int) -> np.ndarray:
    """Of an array with `axes` axes and perhaps one for several targets, the first target."""
    return values[..., 0] if values.ndim > axes else values


def _of_values(data: Any, test: Any, chain_weights: Sequence[float] | None) -> Figure:
    x, *names = arviz_io.one_input(data)
    x_label, y_label = map(verbatim, names)
    order = np.argsort(x)
    draws, weights = pooled(_first_target(data["predictions"]["mean"].values, 3), chain_weights)
    title = "The function under the posterior, without the noise of y, and the test data"
    y = _first_target(test["y"].values, 1)
    labels = {"x_label": x_label, "y_label": y_label, "data_label": "test data"}
    return draw.regression_band(x[order], draws[:, order], x, y, weights=weights, title=title, **labels)


def report(folder: Path | str) -> str:
    """What the run found, in a few lines."""
    folder = Path(folder)
    config = read_config(folder / "config.yaml")
    lines = words(read_metrics(folder), config.get("published"), config.get("prior"))
    names = sorted(p.name for p in (folder / "figures").glob("*.png"))
    files = {"metrics.json": "", "history.csv": "", "posterior.nc": " (ArviZ)"}
    there = [name + what for name, what in files.items() if (folder / name).exists()]
    there += [f"figures/ ({', '.join(names)})"] if names else []
    return "\n".join([*lines, f"{folder}: {', '.join(there)}"])


def words(
    metrics: dict[str, Any], published: str | Mapping[str, Any] | None, prior: object = ""
) -> list[str]:
    """The scores, the bound and the published numbers, a line for each."""
    lines = []
    for part in ("test", "validation"):
        if part in metrics:
            lines.append(f"{part} {_scores(metrics[part])}")
    count = metrics["epochs"]
    epochs = f"{count} epoch{'s' * (count > 1)} " if count else ""  # a sampler has none
    what = f"{metrics['parameters']:,} weights, {epochs}in {metrics['train_seconds']:.0f} s"
    energy, trivial = metrics.get("free_energy"), metrics.get("trivial_free_energy")
    bound = "" if energy is None else f", {compared(energy, trivial, prior)}"
    lines.append(f"{what} on {metrics['device']}{bound}")
    if "code_length" in metrics:
        lines.append(_code(metrics["code_length"]))
    if published:
        lines.append(f"published: {sentence(published)}")
    return lines


def sentence(published: str | Mapping[str, Any]) -> str:
    """What others printed, in words: `test error %, 2x400: paper 1.36 (Table 1)`; a text as it is."""
    if not isinstance(published, Mapping):
        return str(published)
    try:
        score, of, rows = (published[key] for key in ("score", "of", "rows"))
        name = score.replace("error", "error %").replace("_mean_", " of the mean ")
        said = [f"{source} {value}" + "".join(f" ({n})" for n in note) for source, value, *note in rows]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "published: it is a text, or has the keys score, of and rows, each row [source, value, note]"
        ) from error
    return f"{name.replace('.', ' ')}, {of}: {', '.join(said)}"


def _scores(scores: Mapping[str, float]) -> str:
    """The error, that of the mean weights where it is another, and the other scores."""
    error = error_among(scores)
    averaged, mean = scores[error.name], scores[f"{error.name}_mean_weights"]
    beside = f" (mean weights {error.text(mean)})" if mean != averaged else ""  # as of a point estimate
    shown = {"nll": "NLL {:.4f} nats", "brier": "Brier {:.4f}", "ece": "ECE {:.4f}"}
    others = [form.format(scores[name]) for name, form in shown.items() if name in scores]
    return f"{error.name} {error.text(averaged)}{beside}, {', '.join(others)}"


def _code(code: Mapping[str, float]) -> str:
    """The code length of the training labels, in kilobits."""
    sent, plain, ratio = code["bits"] / 1000, code["plain_bits"] / 1000, code["compression"]
    how = "shorter" if ratio >= 1 else "longer"
    return (
        f"as a code for the training labels: {sent:,.1f} kbit, {max(ratio, 1 / ratio):,.1f} times {how} than "
        f"the plain {plain:,.1f} kbit"
    )


def analyse(folder: Path, trust: bool = False) -> str:
    """Draw the figures of a run folder, and report what it found."""
    figures(folder, trust=trust)
    return report(folder)


def main() -> None:
    """The command line."""
    folder_command("experiments.analyse", __doc__, analyse, trust_option)


if __name__ == "__main__":
    main()
