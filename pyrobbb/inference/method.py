"""The seam: what a way of finding a posterior gives to the one training loop.

A method is one file with the same parts in the same order: a docstring with the equation and its source;
the guide that holds its posterior; a frozen dataclass of its options, checked, that derives from `OwnStep`;
its step; and what is left to do after the last step. All methods yield guides, so that draws, predictions,
files and figures are the same for all. To add one, imitate `sghmc.py`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from pyrobbb._support import text
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.kl_weights import Geometric, KLWeight, WarmUp, within
from pyrobbb.svi import Step, Terms

logger = logging.getLogger(__name__)

MakeGuide = Callable[[BayesianNetwork], nn.Module]
Rows = Callable[[], Split]  # all training data, read when they are asked for
Log = Callable[[str], None]


class FunctionStep(Step):
    """A function as a step, such as a method of one's own may give."""

    def __init__(self, take: Callable[..., Terms]) -> None:
        self.take = take

    def __call__(self, *batch: Any) -> Terms:
        return self.take(*batch)


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How a posterior is found; the base of every method, whose flags say what kind it is."""

    steps: ClassVar[bool] = True  #: in minibatches; a sampler of all data at once does everything in `finish`
    bounds: ClassVar[bool] = False  #: its loss is a variational free energy, for a guide with a density
    planned: ClassVar[bool] = False  #: draws are laid out over all steps: a longer training is another one
    own_guide: ClassVar[bool] = False  #: it takes no guide of the user's
    descends: ClassVar[bool] = False  #: the optimiser takes its steps, so that a weight decay would act
    samples: ClassVar[bool] = False  #: it draws every parameter, so that none may be without a prior

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        """Raise ValueError, with the reason, if the method cannot give a posterior of this training."""

    def guide(self, model: BayesianNetwork, make: MakeGuide | None) -> nn.Module:
        """The guide that will hold the posterior; `make` is the user's own choice of guide."""
        raise NotImplementedError(f"{type(self).__name__} must define guide(self, model, make)")

    def step(
        self, model: BayesianNetwork, guide: Any, optimizer: Optimizer, first: Split, **options: Any
    ) -> Step | Callable[..., Terms]:
        """One step of the training loop; the arguments are those of `accelerated.make_step`."""
        raise NotImplementedError(f"{type(self).__name__} must define step(self, model, guide, ...)")

    def finish(self, model: BayesianNetwork, guide: Any, rows: Rows, log: Log) -> bool:
        """What remains to be done once, after the last step; whether it changed the guide.

        `rows` gives all training data, reading them if it must.

        It is called again when a finished training is resumed, and must then leave the guide as it is.
        """
        return False

    def warn(self, guide: Any, N: int, steps: int) -> None:
        """Log what the fit to N rows that has ended, after `steps` steps, shows of a likely mistake."""


@dataclass(frozen=True, kw_only=True)
class OwnStep(Inference):
    """A method whose steps are not the ELBO's, and so refuse what belongs to the ELBO alone.

    `holds` is the family of the guide that keeps its posterior; `why` ends its messages.
    """

    own_guide = True
    holds: ClassVar[type[nn.Module]]
    why: ClassVar[str]

    def check(self, model: BayesianNetwork, guide: nn.Module, options: Any, ranks: ProcessGroup) -> None:
        name = type(self).__name__
        if not isinstance(guide, self.holds):
            raise ValueError(
                f"{name} keeps its posterior in {self.holds.__name__}, not in {type(guide).__name__}: pass "
                f"guide=None, or inference.guide(model, None)"
            )
        if model.learned:
            raise ValueError(f"{name} keeps the prior fixed: {self.why}; learn it with svi")
        for key, plain in (("elbo", None), ("clip_norm", None), ("samples", 1), ("estimator", "weights")):
            if getattr(options, key) != plain:
                raise ValueError(f"{key} has no meaning for {name}: {self.why}")
        points = [key for key, _ in model.named_parameters()] if self.samples else []
        if points:
            raise ValueError(
                f"{name} draws every parameter from the posterior, but these have no prior: "
                f"{', '.join(points)}; give them one (a noise scale=HalfNormal(1.0), in YAML "
                f"{{_target_: pyro.distributions.HalfNormal, scale: 1.0}}, a concentration=LogNormal(0.0, "
                f"1.0)), or freeze the network's before BayesianNetwork takes it"
            )
        if ranks.size > 1:
            raise ValueError(f"{name} trains in one process, got {ranks.size}: {self.why}")
        if any(isinstance(kl, Geometric) for kl in within(options.kl)):
            raise ValueError(
                f"kl=geometric weighs prior and data differently in each minibatch, so {name} would "
                f"follow another target in each; use kl=uniform"
            )


def check_method(value: Any) -> None:
    """Raise ValueError unless `value` is a method, with its options."""
    if isinstance(value, type) and issubclass(value, Inference):
        raise ValueError(f"inference must be a method with its options: write {value.__name__}()")
    if not isinstance(value, Inference):
        raise ValueError(
            f"inference must be a method of pyrobbb.inference, such as Laplace(), got {text.short(value)}"
        )


def check_warm_up(method: Inference, kl: KLWeight, until: float) -> None:
    """Raise ValueError if the KL still warms up when a method keeps its first draw, after `until` epochs."""
    most = max(1, int(round(until, 9)))  # a warm-up of one epoch is none
    for each in within(kl):
        if isinstance(each, WarmUp) and each.epochs > most:
            name = type(method).__name__
            short = f", or a warm-up of at most {most} of its epochs" if most > 1 else ""
            raise ValueError(
                f"{name} keeps draws while the KL warms up, which are of another posterior: use kl=uniform"
                f"{short}"
            )


def check_gathered(method: Inference, what: str, got: int, asked: int) -> None:
    """Log a warning if a callback stopped a training before all was gathered, ValueError if a point is left.

    Args:
        method: The method.
        what: What it gathers on the way.
        got: How many it has.
        asked: How many it was to have.
    """
    if got >= asked:
        return
    stopped = f"{type(method).__name__} was stopped with {got} of its {asked} {what}, which are taken late"
    if got < 2:
        raise ValueError(f"{stopped}: that is a point, not a posterior; train without stopping, or take svi")
    logger.warning("%s: the posterior is made of these alone", stopped)
