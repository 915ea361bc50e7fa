"""The mushroom bandit at its own settings: interactions and small updates per second."""

from __future__ import annotations

from time import perf_counter

import torch

from experiments.paper.bandit import configuration, make_agent
from pyrobbb.bandits import Mushroom, Play


def measure(runs: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per round of Thompson sampling, `runs` games side by side; compilation is not counted.

    A round is a choice by each game, and as many updates of its network as the settings say.
    """
    config = configuration([f"seeds={list(range(1, runs + 1))}"])
    environment = Mushroom()
    agent, seeds = make_agent("thompson", config, environment)
    seconds: list[float] = []
    last = perf_counter()

    def progress(games: object) -> None:
        nonlocal last
        now = perf_counter()
        seconds.append(now - last)
        last = now

    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        Play(environment, agent, rounds + 2, seeds).run(progress)
    finally:
        torch.set_num_threads(before)
    return {
        "interactions": [runs / s for s in seconds[2:]],
        "updates": [runs * config.updates / s for s in seconds[2:]],
    }
