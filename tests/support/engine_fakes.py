"""Small data, networks and models for the tests of the engine, and how laws are checked on random inputs."""

import os
import pickle
import random
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from hypothesis import settings
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn

from pyrobbb import likelihoods, priors
from pyrobbb._support import checkpoint
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import Terms
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.history import Epoch
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import Training

# Without a deadline, for the first call of a torch function takes long; the same examples each time.
law = settings(deadline=None, max_examples=50, derandomize=True)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers from a generator of their own."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def classes(
    N: int = 12, *, features: int = 3, outputs: int = 3, validation: int = 0, seed: int = 0
) -> Dataset:
    """Class labels that depend on the inputs."""
    x = normal(N + validation, features, seed=seed)
    y = (x @ normal(features, outputs, seed=seed + 1)).argmax(-1)
    part = Split(x[N:], y[N:]) if validation else None
    return Dataset("classes", Split(x[:N], y[:N]), Spec(N, (features,), outputs, "classification"), part)


def values(
    N: int = 12, *, features: int = 3, outputs: int = 2, binary: bool = False, seed: int = 0
) -> Dataset:
    """Real (or 0/1) targets that depend on the inputs."""
    x = normal(N, features, seed=seed)
    y = x @ normal(features, outputs, seed=seed + 1) + 0.1 * normal(N, outputs, seed=seed + 2)
    y = (y > 0).float() if binary else y
    return Dataset("values", Split(x, y), Spec(N, (features,), outputs, "regression"))


def network(features: int = 3, hidden: int = 4, width: int = 3, seed: int = 0) -> nn.Sequential:
    """A perceptron with one hidden layer, its weights from a seed of their own."""
    net = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, width))
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * normal(*parameter.shape, seed=seed * 100 + i))
    return net


def classifier(data: Dataset, **options: Any) -> tuple[BayesianNetwork, MeanFieldNormal]:
    """A small network's model of class labels, and our mean-field guide for it."""
    net = network(data.spec.features[0], width=data.spec.outputs)
    model = BayesianNetwork(
        net, options.pop("prior", priors.ScaleMixture()), likelihoods.Categorical(), data.spec.N
    )
    return model, MeanFieldNormal(model, **options)


class Undefined(nn.Linear):
    """Its output is NaN where the first input is far from 0."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).where(x[:, :1] < 9, torch.nan)


def found(run: Training) -> Tensor:
    """The parameters of a training's guide, end to end."""
    return torch.cat([p.detach().flatten() for p in run.guide.parameters()])


def restore(run: Training, path: Path) -> None:
    run.load_state_dict(checkpoint.load(path), path)


class Listens(Silent):
    """Keeps the lines that a training logs."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, message: str) -> None:
        self.said.append(message)


class Interrupts(Callback):
    """Sends the process a signal while step `at` is under way."""

    def __init__(self, at: int, number: int = signal.SIGINT) -> None:
        self.left, self.number = at, number

    def on_step(self, view: View, terms: Terms) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


class StopsAt(Callback):
    """Stops the training after a step or an epoch, counted from its start."""

    def __init__(self, step: int | None = None, epoch: int | None = None) -> None:
        self.step, self.epoch = step, epoch

    def on_step(self, view: View, terms: Terms) -> None:
        if view.epoch * view.M + view.batch == self.step:
            view.stop("that is enough")

    def on_epoch(self, view: View, row: Epoch) -> None:
        if row.epoch == self.epoch:
            view.stop("that is enough")


@contextmanager
def nothing_changes() -> Iterator[None]:
    """Fail if the body leaves a global state other than it was: random, Pyro's, torch's, signal handlers."""
    before = _global_state()
    yield
    for name, value in _global_state().items():
        assert value == before[name], f"{name} changed"


def _global_state() -> dict[str, Any]:
    return {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "numpy's random state": pickle.dumps(np.random.get_state()),  # noqa: NPY002
        "Python's random state": random.getstate(),
        "the param store": {k: v.detach().numpy().tobytes() for k, v in pyro.get_param_store().items()},
        "Pyro's settings": str(pyro.settings.get()),
        "validation": (
            pyro.distributions.is_validation_enabled(),
            torch.distributions.Distribution._validate_args,
        ),
        "Pyro's handlers": list(_PYRO_STACK),
        "gradients": torch.is_grad_enabled(),
        "precision": (torch.get_default_dtype(), torch.get_float32_matmul_precision()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "handlers": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
        "warning filters": list(warnings.filters),
    }
