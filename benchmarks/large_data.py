"""Training on a file larger than the memory allowed: `python -m benchmarks.large_data --megabytes 4096`.

Writes a `.npy` file of 784 bytes per row, then lets the system refuse (RLIMIT_DATA, Linux) more than
`--allowed` megabytes of memory beyond what the process has before it opens the file. Pages of a mapped file
do not count, for the system can drop them at any time. First it tries to read the whole file, which must
fail, then it trains a 784-400-400-10 network on it.
"""

import argparse
import json
import resource
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.small_run import status
from pyrobbb import likelihoods, priors
from pyrobbb.data import OnDisk
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp
from pyrobbb.svi import Terms
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.trainer import Training

FEATURES = 784
MB = 2**20


def write(folder: Path, megabytes: int) -> int:
    """Images of noise, a class's pixel brighter than the others, and their labels; returns their number."""
    N = megabytes * MB // FEATURES
    generator = np.random.default_rng(0)
    y = generator.integers(10, size=N)
    np.save(folder / "y.npy", y.astype(np.uint8))
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (N, FEATURES))
    block = generator.integers(128, size=(8192, FEATURES), dtype=np.uint8)
    for begin in range(0, N, len(block)):
        rows = y[begin : begin + len(block)]
        part = block[: len(rows)].copy()
        part[np.arange(len(rows)), rows * 70] = 255
        x[begin : begin + len(rows)] = part
    x.flush()
    return N


class Watch(Callback):
    """Ends the training after some steps; remembers the most anonymous memory of the process."""

    def __init__(self, steps: int) -> None:
        self.left, self.peak, self.began = steps, 0, perf_counter()

    def on_step(self, view: View, terms: Terms) -> None:
        self.left -= 1
        self.peak = max(self.peak, status("RssAnon"))
        if self.left == 0:
            view.stop("enough steps")


def train(source: OnDisk, steps: int) -> tuple[Training, Watch]:
    """Some steps of one epoch."""
    data = source.load()
    model = mlp(data.spec, priors.ScaleMixture(), likelihoods.Categorical(), hidden=[400, 400])
    watch = Watch(steps)
    training = Training(
        model, MeanFieldNormal(model), data, epochs=1, fast="eager", callbacks=[watch],
        optim=partial(torch.optim.Adam, lr=1e-3), device="cpu",
    )  # fmt: skip
    watch.began = perf_counter()
    training.run()
    return training, watch


def main() -> None:
    """Write, limit, fail, train, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_data", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=4096, help="size of the file")
    parser.add_argument("--allowed", type=int, default=512, help="memory allowed beyond the start, megabytes")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder by default")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with TemporaryDirectory(dir=arguments.folder) as folder:
        N = write(Path(folder), arguments.megabytes)
        paths = {name: str(Path(folder) / f"{name}.npy") for name in ("x", "y")}
        small = Path(folder) / "small"
        small.mkdir()
        write(small, 1)  # a first training, so that what torch itself needs is there before
        train(OnDisk(x=str(small / "x.npy"), y=str(small / "y.npy"), scale=126.0), 3)
        before, limit = status("RssAnon"), status("VmData") + arguments.allowed * MB
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        seen: dict[str, Any] = {"megabytes": arguments.megabytes, "allowed": arguments.allowed, "rows": N}
        try:
            np.load(paths["x"])
            seen["whole"] = "fits"
        except MemoryError as error:
            seen["whole"] = type(error).__name__
        training, watch = train(OnDisk(**paths, scale=126.0), arguments.steps)
        seconds = perf_counter() - watch.began
        nll = float(training.sums[1]) / (training.batch * training.batch_size)
        seen |= {
            "steps": training.batch,
            "megabytes_added": round((watch.peak - before) / MB, 1),
            "megabytes_of_shuffle": round(8 * N / MB, 1),
            "milliseconds_per_step": round(1e3 * seconds / training.batch, 2),
            "nll_per_row": round(nll, 4),
        }
    print(json.dumps(seen) if arguments.json else "\n".join(f"{k}: {v}" for k, v in seen.items()))


if __name__ == "__main__":
    main()
