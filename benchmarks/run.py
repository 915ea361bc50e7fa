"""Training steps side by side, in one process and in turn: `python -m benchmarks.run [--json FILE]`.

A step is noise, loss, gradient and optimiser on a made minibatch of 128 rows of 784 inputs. Ratios are
medians of the ratios taken round by round, so that a machine whose speed drifts does not decide them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample

from guides.mean_field import MeanFieldNormal
from models.mlp import perceptron
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.distributions import ScaleMixtureNormal
from pyrobbb.inference import Training
from pyrobbb.isolation import isolated

N, B = 50_000, 128
Step = Callable[[], Any]


def plain(width: int) -> Step:
    """An ordinary network with fused Adam: the floor."""
    net = perceptron(784, (width, width), 10)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    x, y = rows()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def ours(width: int, fast: str, samples: int = 1) -> Step:
    """This library, mixture prior."""
    x, y = rows()
    data = Dataset("made", Split(x, y), Spec(B, (784,), 10, "classification"))
    net = perceptron(784, (width, width), 10)
    model = BayesianNetwork(net, priors.ScaleMixture(), likelihoods.Categorical(), B)
    adam = partial(torch.optim.Adam, lr=1e-3, fused=True)
    guide = MeanFieldNormal(model)
    training = Training(
        model, guide, data, epochs=1, batch_size=B, optim=adam, fast=fast, samples=samples, device="cpu"
    )

    def step() -> None:
        with isolated():
            training.step(x, y, B / N, B / N)

    return step


class _Layer(PyroModule):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        mixture = ScaleMixtureNormal(0.5, 1.0, 0.0025)
        self.weight = PyroSample(mixture.expand([outputs, inputs]).to_event(2))
        self.bias = PyroSample(mixture.expand([outputs]).to_event(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class _Usual(PyroModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.c = _Layer(784, width), _Layer(width, width), _Layer(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.c(F.relu(self.b(F.relu(self.a(x)))))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        return logits


def usual(width: int) -> Step:
    """Pyro as usually written: PyroSample, AutoNormal, Trace_ELBO, pyro.optim.Adam."""
    model = _Usual(width)
    guide = AutoNormal(model, init_scale=0.0067)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    x, y = rows()
    return lambda: svi.step(x, y)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """A made minibatch."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(B, 784, generator=generator), torch.randint(0, 10, (B,), generator=generator)


def measure(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each step, `rounds` times, all in turn; the first three rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 3):
        for name, step in steps.items():
            began = perf_counter()
            step()
            if i >= 3:
                times[name].append(1e3 * (perf_counter() - began))
    return times


def ratio(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Median and quartiles of a/b, round by round."""
    low, middle, high = quantiles([p / q for p, q in zip(a, b, strict=True)], n=4)
    return low, middle, high


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--widths", type=int, nargs="+", default=[400, 1200])
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {B}, mixture prior")
    figures: dict[str, Any] = {}
    for width in options.widths:
        with isolated(0):  # an empty parameter store for each: Pyro's own guides share names
            steps = {
                "plain": plain(width),
                "ours": ours(width, "compiled"),
                "ours_10_samples": ours(width, "compiled", samples=10),
                "reference": ours(width, "off"),
                "pyro": usual(width),
            }
            times = measure(steps, options.rounds)
            table: dict[str, Any] = {f"ms_{name}": median(values) for name, values in times.items()}
            print(f"\n784-{width}-{width}-10, ms per step (median of {options.rounds})")
            print("\n".join(f"  {name:16} {median(values):8.2f}" for name, values in times.items()))
            for key, a, b in (
                ("ratio_to_plain", "ours", "plain"),
                ("ratio_to_pyro", "ours", "pyro"),
                ("ratio_to_reference", "ours", "reference"),
                ("ratio_of_10_samples", "ours_10_samples", "ours"),
            ):
                low, middle, high = ratio(times[a], times[b])
                table[key] = middle
                print(f"  {key:20} {middle:6.3f}  (quartiles {low:.3f}-{high:.3f})")
            figures[f"2x{width}"] = table
    if options.json:
        Path(options.json).write_text(json.dumps({"step": figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
