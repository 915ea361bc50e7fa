"""What every agent does each round, whatever its rule of choice: predict, choose, remember, train."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyrobbb._support import checks, text
from pyrobbb.bandits.learner import Learner
from pyrobbb.bandits.replay import Replay

KL_OVER = ("held", "capacity")


class Agent(ABC):
    r"""R runs side by side, each with its replay buffer; the rule of choice is the subclass's.

    A row of the learner's input is the context followed by the action in one-hot code (the paper's
    section 5.3); its output is the expected reward. After every `every` interactions the learner takes
    `updates` steps on minibatches of `batch_size` rows drawn with replacement from the buffer.

    The KL's share of a minibatch of B rows is B/n. With `kl_over="held"` n counts the rows that the
    buffer holds now, so that every update follows the free energy of the data at hand,
    :math:`KL - \sum_{i=1}^n \log P(y_i \mid x_i, w)`, times B/n. With `kl_over="capacity"` n is the full
    buffer from the start (the paper's 64 of 4096): a young buffer's data then count several times each,
    which understates the uncertainty just when exploring needs it. Once the buffer is full they agree.

    Args:
        learner: Predicts rewards; rows of length `features + actions`.
        features: Length of a context.
        actions: Number of actions.
        seeds: One for each run.
        capacity: Interactions the buffer holds.
        batch_size: Rows of a minibatch, B.
        updates: Updates in each training; 0 never trains.
        every: Interactions between two trainings.
        pulls: How often each action is taken, in turn, before the learner is used.
        kl_over: "held" or "capacity", see above.
        draws: Weight draws over which the expected rewards behind a choice are averaged.
    """

    def __init__(
        self,
        learner: Learner,
        features: int,
        actions: int,
        seeds: Sequence[int],
        *,
        capacity: int = 4096,
        batch_size: int = 64,
        updates: int = 64,
        every: int = 1,
        pulls: int = 0,
        kl_over: str = "held",
        draws: int = 2,
    ) -> None:
        self.learner, self.seeds = learner, checks.seeds(seeds, learner.runs)
        self.features, self.actions = checks.count("features", features), checks.count("actions", actions)
        self.batch_size = checks.count("batch_size", batch_size)
        self.updates = checks.count("updates", updates, minimum=0)
        self.every = checks.count("every", every)
        self.pulls = checks.count("pulls", pulls, minimum=0)
        self.kl_over = checks.one_of("kl_over", kl_over, KL_OVER)
        self.draws = checks.count("draws", draws)
        self.replay = Replay(learner.runs, features + actions, capacity)
        self.randoms = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        self.acted = 0  # rounds in which an action was taken; rewards may come later
        self.codes = torch.eye(actions).expand(learner.runs, actions, actions)

    @abstractmethod
    def choose(self, rows: Tensor) -> Tensor:
        """Each run's action, whole numbers (R,) from 0 to K - 1, from the rows (R, K, width) of its K."""

    def act(self, contexts: Tensor) -> Tensor:
        """Each run's action in its context: `contexts` (R, features) to actions (R,).

        Raises:
            ValueError: Contexts of another shape, or `choose` does not return one action for each run.
        """
        checks.shaped("contexts", contexts, (self.learner.runs, self.features))
        self.acted += 1
        if self.acted <= self.pulls * self.actions:
            return torch.full((self.learner.runs,), (self.acted - 1) % self.actions)
        wide = contexts.to(self.codes)[:, None].expand(-1, self.actions, -1)
        chosen = self.choose(torch.cat([wide, self.codes], dim=2))
        return self._indices(f"{type(self).__name__}.choose: actions", chosen)

    def learn(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Store the outcome, and train when it is time.

        Raises:
            ValueError: A part of another shape, no such action, or a value that is not finite.
        """
        checks.shaped("contexts", contexts, (self.learner.runs, self.features))
        checks.shaped("rewards", rewards, (self.learner.runs,))
        actions = self._indices("actions", actions)
        if not bool(torch.cat([contexts, rewards[:, None]], dim=1).isfinite().all()):
            got = f"{text.short(contexts)} and {text.short(rewards)}"
            raise ValueError(f"contexts and rewards must be finite, got {got}")
        self.replay.add(torch.cat([contexts, one_hot(actions, self.actions).float()], dim=1), rewards)
        if self.updates == 0 or self.replay.seen % self.every:
            return
        n = len(self.replay) if self.kl_over == "held" else self.replay.capacity
        for indices in self.replay.indices(self.updates, self.batch_size, self.randoms):
            self.learner.train(*self.replay.batch(indices), share=self.batch_size / n)

    def _indices(self, name: str, actions: Tensor) -> Tensor:
        """The actions as indices, or a ValueError unless there is one of each run."""
        each = checks.shaped(name, actions, (self.learner.runs,)).tolist()
        if not all(type(a) is int and 0 <= a < self.actions for a in each):
            raise ValueError(
                f"{name} must be whole numbers from 0 to {self.actions - 1}, got {text.short(each)}"
            )
        return actions.long()

    def made_with(self) -> dict[str, Any]:
        """The settings that a resumed game must share, as plain values."""
        own = ("batch_size", "updates", "every", "pulls", "kl_over", "draws")
        return {
            "agent": type(self).__name__,
            "learner": type(self.learner).__name__,
            **self.learner.made_with(),
            "seeds": self.seeds,
            "capacity": self.replay.capacity,
            **{name: getattr(self, name) for name in own},
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly."""
        return {
            "learner": self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "randoms": [random.get_state() for random in self.randoms],
            "acted": self.acted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave."""
        self.learner.load_state_dict(state["learner"])
        self.replay.load_state_dict(state["replay"])
        for random, given in zip(self.randoms, state["randoms"], strict=True):
            random.set_state(given)
        self.acted = state.get("acted", self.replay.seen)  # which earlier states lack
