"""Where a compiled step's time goes: noise, element-wise pass, network, gradients, optimiser."""

from typing import Any

import torch

from benchmarks.steps import BATCH, N, training
from benchmarks.timing import Work
from pyrobbb.accelerated.mean_field_step import MeanFieldStep


def works(width: int, samples: int, fast: str = "compiled") -> dict[str, Work]:
    """The whole step, and its parts alone; with several samples "noise" to "gradients" are of one draw."""
    made, x, y = training(width, fast, samples=samples)
    step = made.step
    assert isinstance(step, MeanFieldStep)
    leaves: Any = list(step.weights.values())

    def network() -> Any:
        output = step.model.apply_network(step.weights, x)
        return torch.autograd.grad(-step.model.likelihood(output).log_prob(y).sum(), leaves)

    def once(passes: Any) -> None:
        with torch.no_grad():
            for one in passes:
                one()

    step(x, y, BATCH / N, BATCH / N)
    given = network()
    return {
        "step": lambda: step(x, y, BATCH / N, BATCH / N),
        "noise": step.normals.draw,
        "pass": lambda: once(step.draws),
        "network": network,
        "gradients": lambda: step._add(given),
        "optimiser": step.optimizer.step,
    }
