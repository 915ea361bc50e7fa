"""What a checkpoint holds of a chain, and how the chain resumes from it."""

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

from torch import Tensor

from pyrobbb._support import checkpoint as checkpoints
from pyrobbb._support.checkpoint import CheckpointError, check_shapes, load_module
from pyrobbb._support.optim import load_state
from pyrobbb._support.process_group import noise_of
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import GraphStep
from pyrobbb.accelerated.whole_step import WholeStep
from pyrobbb.data.dataset import digest_of
from pyrobbb.training import compatibility
from pyrobbb.training.chain import Chain
from pyrobbb.training.history import Epoch


class Resumable(Chain):
    """A chain with its checkpoints, which hold all of its state but the data and the options."""

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the data and of frozen weights, for checkpoints; each is read once for them."""
        frozen = self.model.frozen.values()
        weights = {"frozen weights": digest_of(*frozen)} if frozen else {}
        return compatibility.data(self.train, self.validation) | weights

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return monotonic() - self.saved_at >= self.options.checkpoint_seconds

    def save(self) -> None:
        """Write a checkpoint; one that is not finite is left to the next step to report."""
        path = self.checkpoint_path
        if path is None or not self.finite():
            return
        state = self.state_dict()
        if self.writes:
            checkpoints.save(path, state)
        self.saved_at = monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly from here, as tensors and plain values.

        All processes must call this together, because it holds the noise of each.
        """
        model, held = self.model.state_dict(), compatibility.held(self.model)
        return {
            "guide": self.guide.state_dict(),
            "model": model,
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "noise": self.ranks.gather(self.noise),
            "order": self.order.get_state(),
            "epoch": self.epoch,
            "batch": self.batch,
            "sums": self.sums,
            "spent": self.spent,
            "history": [asdict(row) for row in self.history.rows],
            "stopped": self.history.stopped,
            "finishing": self.history.finishing,
            "callbacks": [[kind, c.state_dict()] for kind, c in self.kinds_of_callbacks],
            "made_with": self._made_with(),
            "constant buffers": compatibility.unchanged(self.held, held),
            "attributes": {name: value for name, value in held.items() if name not in model},
        }

    def load_state_dict(self, state: dict[str, Any], path: Path | str) -> None:
        """Resume from what `state_dict` gave, with however many processes; `path` is for messages.

        As many processes as made it resume exactly. On another number the parameters, the optimiser and the
        order of the data are kept, and the noise comes from streams that were not used before.

        Raises:
            CheckpointError: If it belongs to another network or guide, or is not a training state.
        """
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise CheckpointError(
                f"{path} is not a training checkpoint of this version: it lacks {', '.join(missing)}; give "
                f"another folder"
            )
        try:
            theirs, mine = state["made_with"], self._made_with()
            check_shapes(mine.pop("sites"), theirs["sites"], "network", path)
            compatibility.check_same(mine, theirs, path)
            compatibility.check_held(self.held, state, path)
            if (state["epoch"], state["batch"]) > (self.epochs, 0):
                epoch = state["epoch"]
                where = f"within epoch {epoch + 1}" if state["batch"] else f"at epoch {epoch}"
                raise CheckpointError(
                    f"{path} is {where}, but this training ends after {self.epochs}; give another folder"
                )
            self._load(state, path)
        except CheckpointError:
            raise
        except Exception as error:  # parts of another kind than `state_dict` gives: somebody else's file
            raise CheckpointError(f"{path} does not hold what a training needs ({error!r:.120})") from error

    def resume(self) -> bool:
        """Resume from the newest whole checkpoint of the folder; False if there is none.

        A damaged one is kept under the name `chain-0.damaged.pt`, and the previous one used instead.
        """
        path = self.checkpoint_path
        found = None
        if path is not None and self.writes:
            device = self.device if self.ranks.size == 1 else "cpu"  # where it can be sent to the others
            found = checkpoints.load_newest(path, device, repair=True)
        found = self.ranks.from_main(found)
        if found is not None:
            self.load_state_dict(*found)
        return found is not None

    def _made_with(self) -> dict[str, Any]:
        """What must match for a checkpoint to be resumed, besides names and shapes."""
        sites = {name: list(value.shape) for name, value in self.model.initial().items()}
        return {**self.made_with, **self.digests, "sites": sites}

    def _load(self, state: dict[str, Any], path: Path | str) -> None:
        load_module(self.guide, state["guide"], "guide", path)
        load_module(self.model, state["model"], "model", path)
        changed = compatibility.changed_in(state)
        compatibility.restore_attributes(self.model, changed)
        if changed:
            with isolated(self.seed, device=self.device):
                self.step = self._made_step(self.options.fast)  # the old step held the previous values
            plain = {name: value for name, value in changed.items() if not isinstance(value, Tensor)}
            compatibility.restore_attributes(self.model, plain)  # of a network that counts its calls
        load_state(self.optimizer, state["optimizer"])  # after the step, whose making may begin it
        if isinstance(self.step, GraphStep | WholeStep):
            self.step.reset()
        if self.schedule is not None and state["schedule"] is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.order.set_state(state["order"].cpu())
        self.epoch, self.batch, self.spent = state["epoch"], state["batch"], state["spent"]
        self._load_noise(state["noise"], path)
        self.sums = state["sums"].to(self.device)
        self.history.finishing = state["finishing"]
        self.history.rows = [Epoch(**row) for row in state["history"]]
        self._load_callbacks(state["callbacks"], state["stopped"])

    def _load_callbacks(self, states: list[Any], stopped: str | None) -> None:
        """Callbacks of the same kind and options resume, others start afresh.

        Where one of those that were there is not, the training counts as not stopped.
        """
        left, fresh = list(states), []
        for kind, callback in self.kinds_of_callbacks:
            known = (i for i, (name, _) in enumerate(left) if name == kind)
            if (place := next(known, None)) is None:
                fresh.append(kind)
            else:
                callback.load_state_dict(left.pop(place)[1])
        if fresh and states:
            self.log(f"the checkpoint was made with other callbacks: {', '.join(fresh)} starts afresh")
        self.history.stopped = None if left else stopped

    def _load_noise(self, noise: Any, path: Path | str) -> None:
        """As many processes, on the same kind of device, resume their noise; others draw unused noise."""
        streams = [one.keys() for one in noise]
        if len(noise) == self.ranks.size and streams[self.ranks.rank] == self.noise.keys():
            self.noise = {k: v.cpu() for k, v in noise[self.ranks.rank].items()}
            return
        steps = self.epoch * self.M + self.batch
        self.noise = noise_of(self.ranks, self.device, self.seed, steps)
        if len(noise) != self.ranks.size:
            self.log(f"{len(noise)} processes made {path}, {self.ranks.size} resume it, with new noise")
        else:
            self.log(f"{path} was made on another kind of device; it resumes with new noise")
