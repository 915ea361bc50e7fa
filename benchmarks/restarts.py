"""Restarts of a small network: as one batch of steps, and one after the other."""

from time import perf_counter

import torch

from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import perceptron
from pyrobbb.training.trainer import Training, train

N, BATCH, EPOCHS = 1000, 100, 20


def restarts(count: int, hidden: int, fast: str) -> list[Training]:
    """`count` trainings of the network 1-hidden-hidden-1 on a noisy sine, from seeds 0, 1, ..."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 1, generator=generator)
    y = torch.sin(6 * x) + 0.1 * torch.randn(N, 1, generator=generator)
    data = Dataset("sine", Split(x, y), Spec(N, (1,), 1, "regression"))
    made = []
    for seed in range(count):
        model = BayesianNetwork(
            perceptron(1, (hidden, hidden), 1), priors.ScaleMixture(), likelihoods.Normal(scale=0.1), N
        )
        guide = MeanFieldNormal(model)
        made.append(
            Training(model, guide, data, epochs=EPOCHS, batch_size=BATCH, seed=seed, fast=fast, device="cpu")
        )
    return made


def measure(count: int, hidden: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of training all of them: apart and together, neither and both compiled (without compiling).

    A training's seconds are those of its history, which begin when its step has been compiled.
    """
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for fast in ("eager", "compiled"):
            apart = restarts(count, hidden, fast)
            began = perf_counter()
            for training in apart:
                training.run()
            times.setdefault(f"apart, {fast}", []).append(perf_counter() - began)
            batch = restarts(count, hidden, "eager")
            train(batch, fast=fast)
            seconds = sum(training.history.train_seconds for training in batch)
            times.setdefault(f"together, {fast}", []).append(seconds)
    return times
