"""Agents against an environment: the loop, its regret, and how to resume after an interruption."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic, process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobbb._support import checkpoint, checks
from pyrobbb._support.settings import changes, is_plain
from pyrobbb._support.signals import Interrupt
from pyrobbb.bandits.agent import Agent
from pyrobbb.bandits.environment import Environment
from pyrobbb.data.dataset import digest_of
from pyrobbb.training.compatibility import check_same, plain_network

EACH_ROUND = ("expected", "realised", "actions")
GENERATORS = (np.random.Generator, np.random.RandomState, Random)


@dataclass
class Games:
    r"""What happened in T rounds of R runs; each tensor has shape (R, T).

    `expected` is the expected regret of each round, :math:`\max_a E[r \mid x, a] - E[r \mid x, a_t]`;
    `realised` puts the reward received in place of the second term, so it can fall below 0.

    `rounds` is how many have been played, `seconds` the time they took, `cpu_seconds` the processor's.
    """

    expected: Tensor
    realised: Tensor
    actions: Tensor
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rounds: int = 0

    @classmethod
    def empty(cls, runs: int, steps: int) -> Games:
        """Room for `steps` rounds of `runs` runs."""
        return cls(
            torch.zeros(runs, steps), torch.zeros(runs, steps), torch.zeros(runs, steps, dtype=torch.int32)
        )

    def cumulative(self, realised: bool = False) -> Tensor:
        """Cumulative regret after each round played, float64 of shape (R, rounds)."""
        regret = self.realised if realised else self.expected
        return regret[:, : self.rounds].double().cumsum(dim=1)


class Play:
    """R runs of one agent in an environment, round by round, resumable.

    Two agents with the same `seeds` see the same contexts and have the same luck.

    Args:
        environment: Where the rounds come from.
        agent: Who plays.
        steps: Rounds to be played in all.
        seeds: One for each run.
        path: The checkpoint; if the file is there, the play resumes from it. None keeps nothing.
        checkpoint_seconds: Minimum time between two checkpoints.

    Raises:
        ValueError: The environment does not fit the agent.
        CheckpointError: The file at `path` is damaged or of another game.
    """

    def __init__(
        self,
        environment: Environment,
        agent: Agent,
        steps: int,
        seeds: Sequence[int],
        *,
        path: Path | str | None = None,
        checkpoint_seconds: float = 120.0,
    ) -> None:
        if (environment.features, environment.actions) != (agent.features, agent.actions):
            raise ValueError(
                f"{type(environment).__name__} has {environment.features} features and "
                f"{environment.actions} actions, the agent was made for {agent.features} and {agent.actions}"
            )
        self.seeds = checks.seeds(seeds, agent.learner.runs)
        self.environment, self.agent, self.steps = environment, agent, checks.count("steps", steps)
        self.kind = _kind(environment)
        self.after: dict[str, Any] | None = None
        self.path = None if path is None else Path(path)
        self.checkpoint_seconds = checkpoint_seconds
        self.randoms = [torch.Generator().manual_seed(seed + 1_000_003) for seed in self.seeds]
        self.games = Games.empty(len(self.seeds), steps)
        if self.path is not None:
            self._resume(self.path)

    def run(self, progress: Callable[[Games], None] = lambda games: None) -> Games:
        """Play to the last round; Ctrl-C and SIGTERM end it after a round, with a checkpoint.

        Args:
            progress: Called with the games after each round.
        """
        saved_at = monotonic()
        with Interrupt() as interrupt:
            while self.games.rounds < self.steps:
                began, cpu = monotonic(), process_time()
                self._round()
                self.games.seconds += monotonic() - began
                self.games.cpu_seconds += process_time() - cpu
                progress(self.games)
                if interrupt.noted or monotonic() - saved_at >= self.checkpoint_seconds:
                    self._save()
                    saved_at = monotonic()
                interrupt.check()
        self._save()
        return self.games

    def _round(self) -> None:
        rounds = [self.environment.check(self.environment.draw(random)) for random in self.randoms]
        contexts, expected, rewards = (
            torch.stack(part).detach().to(self.agent.codes) for part in zip(*rounds, strict=True)
        )
        for name, part in (("context", contexts), ("expected", expected), ("rewards", rewards)):
            if not bool(part.isfinite().all()):
                kind, t = type(self.environment).__name__, self.games.rounds
                raise ValueError(f"{kind}.draw: {name} of round {t} is not finite")
        actions = self.agent.act(contexts)
        received = rewards.gather(1, actions[:, None])[:, 0]
        best = expected.amax(dim=1)
        t, games = self.games.rounds, self.games
        games.expected[:, t] = best - expected.gather(1, actions[:, None])[:, 0]
        games.realised[:, t] = best - received
        games.actions[:, t] = actions.to(torch.int32)
        games.rounds += 1
        self.agent.learn(contexts, actions, received)
        if self.path is not None and self.after is None:
            self.after = _kind(self.environment)  # with what its first round keeps for the others
        elif games.rounds == 2:
            self._refuse_state()

    def _refuse_state(self) -> None:
        """Raise ValueError if a round changed the environment, which a checkpoint does not hold."""
        if self.after is None:  # no path, or no round was played
            return
        now = _kind(self.environment)
        if changed := changes(self.after, {key: now[key] for key in self.after if key in now}):
            name = type(self.environment).__name__
            raise ValueError(
                f"{name}.draw changed {name}.{changed[0].key}, but a resumed game would begin with a new "
                f"environment: let it depend on `random` alone, or give no path"
            )

    def _made_with(self) -> dict[str, Any]:
        """What a resumed game must share."""
        return {**self.agent.made_with(), "environment": self.kind}

    def _save(self) -> None:
        if self.path is None:
            return
        self._refuse_state()
        games = self.games
        checkpoint.save(
            self.path,
            {
                "agent": self.agent.state_dict(),
                "environment": [random.get_state() for random in self.randoms],
                **{name: getattr(games, name)[:, : games.rounds].clone() for name in EACH_ROUND},
                "rounds": games.rounds,
                "seeds": self.seeds,
                "made_with": self._made_with(),
                "seconds": games.seconds,
                "cpu_seconds": games.cpu_seconds,
            },
        )

    def _resume(self, path: Path) -> None:
        found = checkpoint.load_newest(path, repair=True)
        if found is None:
            return
        state, file = found
        done, runs = state["rounds"], state["expected"].shape[0]
        if runs != len(self.randoms) or done > self.steps:
            raise checkpoint.CheckpointError(
                f"{file} holds {runs} runs of {done} rounds; {len(self.randoms)} runs of {self.steps} "
                f"were requested"
            )
        if state["seeds"] != self.seeds:
            raise checkpoint.CheckpointError(f"{file} holds runs of seeds {state['seeds']}, not {self.seeds}")
        check_same(self._made_with(), state["made_with"], file)
        self.agent.load_state_dict(state["agent"])
        for random, given in zip(self.randoms, state["environment"], strict=True):
            random.set_state(given)
        for name in EACH_ROUND:
            getattr(self.games, name)[:, :done] = state[name]
        self.games.rounds = done
        self.games.seconds, self.games.cpu_seconds = state["seconds"], state["cpu_seconds"]


def _kind(environment: Environment) -> dict[str, Any]:
    """Its class, plain values, and digests of its tensors, arrays, networks and generators, by name."""
    found: dict[str, Any] = {"kind": type(environment).__name__}
    for name, value in vars(environment).items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.from_numpy(value.astype(np.float64))
        elif isinstance(value, torch.Generator):
            value = value.get_state()
        if isinstance(value, Tensor):
            found[name] = digest_of(value)
        elif isinstance(value, nn.Module):
            found[name] = plain_network(value) | {k: digest_of(p) for k, p in value.named_parameters()}
        elif isinstance(value, GENERATORS):
            found[name] = sha256(pickle.dumps(value)).hexdigest()[:16]
        elif is_plain(plain := list(value) if isinstance(value, tuple) else value):
            found[name] = deepcopy(plain)
    return found
