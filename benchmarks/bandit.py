"""The mushroom bandit at its own settings: interactions and small updates per second."""

from time import process_time

from experiments.paper.bandit import configuration, make_agent
from pyrobbb._support.device import threads
from pyrobbb.bandits import Mushroom, Play


def measure(runs: int, rounds: int) -> dict[str, list[float]]:
    """Interactions and updates per processor second of Thompson sampling, `runs` games side by side.

    A round is a choice by each game, and as many updates of its network as the settings say. It runs on one
    thread, so its processor time is what it takes alone, whatever else the machine does; compilation and the
    first two rounds are not counted.
    """
    config = configuration([f"seeds={list(range(1, runs + 1))}"])
    environment = Mushroom()
    agent, seeds = make_agent("thompson", config, environment)
    seconds: list[float] = []
    last = process_time()

    def progress(games: object) -> None:
        nonlocal last
        now = process_time()
        seconds.append(now - last)
        last = now

    with threads(config.threads):
        Play(environment, agent, rounds + 2, seeds).run(progress)
    return {
        "interactions": [runs / s for s in seconds[2:]],
        "updates": [runs * config.updates / s for s in seconds[2:]],
    }
