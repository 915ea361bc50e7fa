"""Table 2 and Fig. 4: what remains of a network when its noisiest weights are removed.

`python -m experiments.paper.pruning runs/mnist/default` reads a finished run folder of any network and guide
that has a spread, and leaves `pruning/` there: `record.json`, `signal_to_noise.png`, `error.png`, and the
pruned networks of mean weights, saved sparse, as `removed-95.npz`. A `report.html` there is made again.
"""

from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Sequence
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks
from torch import Tensor, nn

from experiments._runner.command import folder_command, trust_option
from experiments._runner.record import command_line
from experiments._runner.reopen import reopen
from experiments._runner.study import Outputs
from experiments.paper.pruning_report import ORDERS, error_figure, network, report
from experiments.report import renew
from experiments.reproductions.controls import with_rho_zero
from pyrobbb.bnn import network_with
from pyrobbb.compression import pruning
from pyrobbb.compression.sparse import save_sparse, sparse
from pyrobbb.data.dataset import Split
from pyrobbb.figures import signal_to_noise
from pyrobbb.posterior import Posterior, moments
from pyrobbb.predictive import ClassPrediction

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
DRAWS = 10  # over which errors are averaged
STEP = 0.1  # dB, of the density
LEAST = -60.0  # dB, where it begins at the earliest


def error(posterior: Posterior, part: Split, **options: Any) -> float:
    """Error of the predictions in percent, by the rows' weights; options are those of `Posterior.predict`."""
    prediction = posterior.predict(part.x, part.y, **options)
    if not isinstance(prediction, ClassPrediction):
        raise ValueError("the run is not a classification: pruning is measured by the share of wrong classes")
    return prediction.metrics(part.y, part.weights)["error"]


def errors(
    posterior: Posterior,
    part: Split,
    shares: Sequence[float] = SHARES,
    *,
    draws: int = DRAWS,
    biases: bool = True,
) -> list[dict[str, Any]]:
    """Error after removing each share, by each order, of the mean weights and averaged over draws.

    `draws=0` leaves the draws out. "rho = 0" is a negative control, `with_rho_zero`, by signal-to-noise.
    """
    rows = []
    for removed in shares:
        row: dict[str, Any] = {"removed": removed}
        for by in ORDERS:
            if by == "magnitude" and removed == 0:
                row[by] = row["snr"]  # nothing is removed: one posterior
                continue
            pruned = pruning.prune(posterior, removed, by=by, biases=biases)
            row["left"] = pruning.left(pruned)
            row[by] = {"mean": error(pruned, part, mean_weights=True)}
            if draws:
                row[by]["draws"] = error(pruned, part, draws=draws)
            if draws and removed and by == "snr":
                row["rho = 0"] = error(with_rho_zero(pruned), part, draws=draws)
        rows.append(row)
    return rows


def sizes(posterior: Posterior, x: Tensor, share: float, path: Path, *, biases: bool) -> dict[str, float]:
    """Bytes on disk, and milliseconds for all of `x` and for one row, dense against sparse, on the CPU."""
    pruned = pruning.prune(posterior, share, biases=biases)
    chain = pruned.main_chain
    network = network_with(pruned.chains[chain][0], pruned.mean_weights(chain)).cpu()
    lean, x = sparse(network), x.cpu()
    return {
        "bytes": save_sparse(network, path),
        "dense_ms": milliseconds(network, x, rows=1000),
        "sparse_ms": milliseconds(lean, x, rows=1000),
        "dense_one_ms": milliseconds(network, x[:1], rows=1),
        "sparse_one_ms": milliseconds(lean, x[:1], rows=1),
    }


def milliseconds(network: nn.Module, x: Tensor, rows: int) -> float:
    """The minimum time to predict `x`, in blocks of `rows`."""
    with torch.no_grad():
        _, *times = repeat(lambda: [network(block) for block in x.split(rows)], number=1, repeat=4)
    return 1e3 * min(times)  # without the first, which warms up


def density_of(decibel: Tensor | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The signal-to-noise density at evenly spaced dB: the histogram smoothed by 0.5 dB.

    Weights below `LEAST` count, but are not shown: behind pixels that are always black a learned prior leaves
    means of nothing but rounding.
    """
    values = np.asarray(decibel, dtype=float)
    values = values[np.isfinite(values)]
    low, high = max(np.quantile(values, 0.001) - 3, LEAST), values.max() + 3
    counts, edges = np.histogram(values, np.arange(low, high + STEP, STEP))
    return edges[:-1] + STEP / 2, gaussian_filter1d(counts / (len(values) * STEP), 0.5 / STEP)


def modes(at: np.ndarray, density: np.ndarray) -> list[tuple[float, float]]:
    """Modes of the signal-to-noise density: (dB, density), in order.

    A mode stands at least a tenth of the highest one above the valley beside it.
    """
    places, _ = find_peaks(density, prominence=0.1 * density.max())
    return [(float(at[i]), float(density[i])) for i in places]


def valley(at: np.ndarray, density: np.ndarray) -> float | None:
    """The lowest point, in dB, between the first two modes; None with a single mode."""
    found = [place for place, _ in modes(at, density)]
    if len(found) < 2:
        return None
    between = (at > found[0]) & (at < found[1])
    return float(at[between][density[between].argmin()])


def analyse(
    folder: Path,
    shares: Sequence[float] = SHARES,
    *,
    draws: int = DRAWS,
    biases: bool = True,
    trust: bool = False,
) -> dict[str, Any]:
    """Measure, draw and save everything for one run folder; returns what `record.json` holds."""
    run = reopen(folder, trust=trust)
    part = run.data.test
    if part is None:
        raise ValueError(f"folder: {folder} has no test data to measure the error on")
    words = [str(folder)]
    if draws != DRAWS:
        words.append(f"--draws={draws}")
    if not biases:
        words.append("--no-biases")
    if trust:
        words.append("--trust")
    if list(shares) != list(SHARES):
        words += ["--removed", *(repr(share).removesuffix(".0") for share in shares)]
    out = Outputs(folder, "pruning", command_line("experiments.paper.pruning", words))
    chain = run.posterior.main_chain
    of_chain = moments(run.posterior.chains[chain])
    mu, sigma = (torch.cat([v.flatten().cpu() for v in part.values()]) for part in of_chain)
    decibel = pruning.decibel(mu.abs() / sigma)
    rows = errors(run.posterior, part, shares, draws=draws, biases=biases)
    for row in rows:
        file = out.path(f"removed-{100 * row['removed']:g}.npz")
        row |= sizes(run.posterior, part.x, row["removed"], file, biases=biases)
    places, density = density_of(decibel)
    found = {
        "seed": run.run.seed,
        "chain": chain,  # that the density, its modes and the saved networks are of
        "temperature": getattr(run.run.kl, "temperature", 1.0),
        "folder": str(folder),
        "epochs": run.epoch,
        "biases_count": biases,
        "draws": draws,
        "weights": len(mu),
        "modes": modes(places, density),
        "valley": valley(places, density),
        "density": {"dB": places[::2].round(2).tolist(), "per dB": density[::2].round(5).tolist()},
        "cut_75": float(decibel.sort().values[round(0.75 * len(mu)) - 1]),
        "rows": rows,
    }
    out.record(found)
    for earlier in set(out.folder.glob("removed-*.npz")) - {out.folder / name for name in out.names}:
        earlier.unlink()  # of other shares
    which = f", chain {chain}" if run.run.chains > 1 else ""
    title = f"Signal-to-noise ratio of {network(found)}{which}, and the cut that removes 75 %"
    out.figure("signal_to_noise.png", signal_to_noise(mu.numpy(), sigma.numpy(), title=title))
    out.figure("error.png", error_figure(found))
    renew(folder, trust=trust)
    return found


def options(parser: ArgumentParser) -> None:
    """The options of `analyse`."""
    parser.add_argument("--draws", type=int, default=DRAWS, help="weight draws to average over; 0: none")
    parser.add_argument(
        "--biases", action=BooleanOptionalAction, default=True, help="biases count as weights"
    )
    trust_option(parser)
    parser.add_argument(
        "--removed", dest="shares", type=float, nargs="+", default=list(SHARES), help="shares, 0 to 1"
    )


if __name__ == "__main__":
    folder_command("experiments.paper.pruning", __doc__, lambda *a, **k: report(analyse(*a, **k)), options)
