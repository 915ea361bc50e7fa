"""How a training starts: one chain, several together or one after the other, or by `fit`."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from inspect import signature
from pathlib import Path
from statistics import fmean
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support import checks, text
from pyrobbb._support.copies import own_copy, own_pair
from pyrobbb._support.device import best_device
from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.columns import Columns, Names
from pyrobbb.data.dataset import Dataset
from pyrobbb.evaluation.trivial_bound import compared
from pyrobbb.inference import SVI
from pyrobbb.inference.method import MakeGuide, check_method
from pyrobbb.posterior import Posterior
from pyrobbb.training import compatibility
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.divergence import NonFiniteLossError
from pyrobbb.training.history import History, final_mean
from pyrobbb.training.loop import Loop
from pyrobbb.training.progress import Guarded, Progress, Silent
from pyrobbb.training.resumption import Resumable

logger = logging.getLogger(__name__)

__all__ = ["NonFiniteLossError", "Training", "fit", "train", "train_all"]

MakeModel = Callable[[], BayesianNetwork]


class Training(Resumable):
    """A chain that is trained by itself; the arguments are those of `Chain`."""

    def run(self) -> History:
        """Train to the last epoch, from where a checkpoint or an interruption left off.

        Ctrl-C and SIGTERM end it after the current step, with a checkpoint.

        Raises:
            NonFiniteLossError: If the loss becomes infinite or NaN.
            LostProcessError: If another process that trains with this one ended.
            BlockingIOError: If another training writes to the same folder.
            OSError: If a checkpoint cannot be written; earlier ones stay.
        """
        train([self])
        return self.history


@torch.enable_grad()
def train(chains: Sequence[Resumable], *, fast: str = "auto") -> None:
    """Train every chain to its end, one step of each at a time.

    Several chains of the same number of data, epochs and batch size step together. On the CPU they take one
    batched step: of the same network, likelihood and draws per step, with mean-field guides or all by one
    method that finds a point estimate (`MAP`, `SWAG`, ...). Seeds, the priors' parameters, optimisers and
    weights of the KL may differ. Each ends as it would alone, up to rounding. Make them with `fast="eager"`:
    their own steps then serve for noise and comparison only. On CUDA each takes its own step, side by side
    with the others'.

    Args:
        chains: All at the same epoch and batch.
        fast: "auto", "compiled" or "eager": the batched step, as in `Options`.

    Raises:
        NotBatchableError: If several cannot step together; nothing has been trained then.
        NonFiniteLossError: If the free energy of one of them becomes infinite or NaN.
    """
    if not chains:
        raise NotBatchableError("there is no training to run")
    loop = Loop(chains, fast)
    with ExitStack() as stack:
        for chain in chains:
            stack.enter_context(chain.locked())
        loop.run()


def train_all(
    make: Callable[[int, str], Training],
    chains: int,
    *,
    fast: str = "auto",
    together: bool = False,
    device: str | None = None,
) -> list[Training]:
    """Train chains 0, 1, ... to their ends, together if asked and possible, or one after the other.

    Args:
        make: Makes the training of a chain, from its number and `fast`; a checkpoint of it is resumed.
        chains: How many.
        fast: As in `Options`.
        together: Let them step together (`train`).
        device: As in `Options`.
    """

    def made(fast: str) -> list[Training]:
        found = [make(chain, fast) for chain in range(chains)]
        for training in found:
            if training.resume():
                where = f"epoch {training.epoch} of {training.epochs} ({training.folder})"
                training.log(f"chain {training.chain}: resuming at {where}")
        return found

    together = together and chains > 1 and fast != "off"
    as_one = together and best_device(device).type != "cuda"
    trainings = made("eager" if as_one else fast)
    _warn_of_one_start(trainings)
    if together:
        try:
            train(trainings, fast=fast)
            return trainings
        except NotBatchableError as reason:
            trainings[0].log(f"training one chain after the other: {reason}")
            trainings = made(fast) if as_one else trainings
    for training in trainings:
        training.run()
    return trainings


def _warn_of_one_start(trainings: Sequence[Training]) -> None:
    """Log a warning if several chains start from the same weights, as copies of one model do."""
    if len(trainings) == 1 or not trainings[0].writes:
        return
    if any(t.epoch or t.batch or t.done for t in trainings):  # resumed, or NUTS, which draws its own start
        return
    states = [nn.ModuleList([t.model, t.guide]).state_dict() for t in trainings]
    first, *others = ({k: v for k, v in state.items() if isinstance(v, Tensor)} for state in states)
    if all(len(compatibility.unchanged(first, other)) == len(first) for other in others):
        logger.warning(
            "all %d chains start from the same weights, so that they agree (R-hat) says little: for "
            "independent restarts pass a function that makes the model, not a model, and let the guide start "
            "from its network or from a draw",
            len(trainings),
        )


def posterior_of(trained: Sequence[Training], columns: Columns | Names | None = None) -> Posterior:
    """The posterior of chains that are trained, whose rows may come by the names of `columns`."""
    return Posterior(
        [(training.model, training.guide) for training in trained],
        [training.history for training in trained],
        columns=columns,
        reach=trained[0].reach,
    )


def fit(
    model: BayesianNetwork | MakeModel,
    guide: nn.Module | MakeGuide | None,
    data: Any,
    *,
    validation: Any = None,
    chains: int = 1,
    together: bool = True,
    seed: int = 0,
    fast: str = "auto",
    folder: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | bool | None = True,
    ranks: ProcessGroup = SINGLE,
    **options: Any,
) -> Posterior:
    """Fit q(w) to p(w | data) and return the posterior, with the `history` of the fit.

    >>> posterior = fit(model, MeanFieldNormal, data, epochs=10)
    >>> posterior = fit(lambda: make_model(), MeanFieldNormal, data, chains=4)

    With `folder=` it resumes from the checkpoint found there. A model and a guide that are given, not made,
    are trained in place, and another `fit` of the same two trains them further; the posterior holds copies of
    them as they are at the end, which no later fit changes.

    Args:
        model: The Pyro model, or a function without arguments that makes it: each chain then has a network
            of its own, initialised from the chain's seed. Of a model, chains 1, 2, ... train copies, which
            start from the same weights unless the guide draws its start; a warning says so.
        guide: The Pyro guide, or a factory of it, such as `MeanFieldNormal`, called with the model; several
            chains need a factory. None if the method makes its own, as all but `SVI` do (`NaturalGradient`
            takes a `MeanFieldNormal` to start from, too), or if the prior leaves every weight deterministic.
        data: A `Dataset`; or a torch `Dataset` or `DataLoader` of pairs (x, y), read at each batch, with
            its transforms. N is their number of rows.
        validation: Takes the place of the data's own validation rows: a `Split`, or of torch's.
        chains: Restarts, from seeds seed, seed + 1, ...; independent if `model` is a function.
        together: Train several chains of a small network as one batch, where that can be done; on CUDA of
            any, side by side.
        seed: See `Options`.
        fast: See `Options`.
        folder: Where checkpoints and history go; None keeps nothing.
        callbacks: Called after each step and epoch; of several chains each has copies of its own.
        progress: Progress callback; True shows a bar on a terminal and lines elsewhere, None nothing.
        ranks: The processes that train together.
        options: See `Options`: epochs, batch_size, optim, ...

    Returns:
        The posterior; `posterior.histories` has the course of each chain, `posterior.history` of the first.

    Raises:
        CheckpointError: If the checkpoint belongs to another network, guide or data set.
        NonFiniteLossError: If the loss becomes infinite or NaN.
        TypeError: If there is no option of that name.
        ValueError: If an option, the data, the model or the guide does not fit.
        BlockingIOError: If another training writes to the same folder.
        OSError: If a checkpoint cannot be written; earlier ones stay.
        LostProcessError: If another process that trains with this one ended.
    """
    if isinstance(model, nn.Module) and not isinstance(model, BayesianNetwork):
        raise ValueError(
            f"model must be a BayesianNetwork, got {text.short(model)}: make one of a network, a prior and a "
            f"likelihood; a Pyro model of your own is translated into these, or trained by pyro.infer.SVI"
        )
    checks.check_kinds(
        model=(model, Callable),
        guide=(guide, (nn.Module, Callable, NoneType)),
        callbacks=(callbacks, Sequence),
        progress=(progress, (Progress, bool, NoneType)),
        together=(together, bool),
    )
    inference = options.get("inference") or SVI()
    check_method(inference)
    chains, seed = checks.count("chains", chains), checks.seed("seed", seed)
    if chains > 1 and isinstance(guide, nn.Module):
        name = type(guide).__name__
        raise ValueError(
            f"chains={chains} need one guide each: pass a factory, such as {name}, or "
            f"partial({name}, ...) with the options of this one"
        )
    if inference.own_guide and guide is not None and not isinstance(guide, nn.Module):
        name = type(inference).__name__
        raise ValueError(f"{name} makes its own guide: pass None as the guide, not {text.short(guide)}")
    show = Guarded.of(progress)

    def make(chain: int, fast: str) -> Training:
        with isolated(seed + chain):
            own: Any = model
            if not isinstance(model, nn.Module):
                own = _made("model", model, BayesianNetwork)
            elif chain:
                own = own_copy(model)
            q: Any = guide
            if not isinstance(guide, nn.Module):
                make_guide = None if guide is None else partial(_made, "guide", guide, nn.Module)
                if own.sites:
                    q = inference.guide(own, make_guide)
                elif make_guide is not None:
                    q = make_guide(own)
        return Training(
            own, q, data, validation=validation, folder=folder, chain=chain, progress=show, ranks=ranks,
            callbacks=callbacks if chains == 1 else deepcopy(callbacks), seed=seed + chain, fast=fast,
            **options,
        )  # fmt: skip

    trained = train_all(make, chains, fast=fast, together=together, device=options.get("device"))
    if isinstance(model, nn.Module):  # it, and what refers to it, is the user's to train further
        trained[0].model, trained[0].guide = own_pair(trained[0].model, trained[0].guide)
    columns = data.columns if isinstance(data, Dataset) else None
    posterior = posterior_of(trained, columns)
    if ranks.is_main and type(show.shown) is not Silent and trained[0].has_bound:
        ends = [final_mean(rows) for training in trained if (rows := training.history.rows)]
        if ends:  # a callback may stop all before the first is recorded
            show.log(compared(fmean(ends), trained[0].trivial, posterior.model.prior))
    return posterior


def _made(what: str, make: Callable[..., Any], kind: type, *given: BayesianNetwork) -> Any:
    """What a factory of the user's makes; ValueError if that is of another kind."""
    name = getattr(make, "__name__", type(make).__name__)
    called = "with the model" if given else "without arguments"
    wanted = f"{what} must be a {kind.__name__}, or make one when called {called}"
    try:
        signature(make).bind(*given)
    except TypeError as error:
        raise ValueError(f"{wanted}; {name} cannot be called like that: {error}") from None
    try:
        made = make(*given)
    except (TypeError, AttributeError) as error:
        if given or not signature(make).parameters:
            raise
        # as a Pyro model raises that is called without its data
        raise ValueError(f"{wanted}; {name} raised {type(error).__name__}: {text.reason(error)}") from error
    if not isinstance(made, kind):
        raise ValueError(f"{wanted}; {name} returned {text.short(made)}")
    return made
