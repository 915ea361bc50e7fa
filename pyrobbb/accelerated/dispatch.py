"""Choose the step of a training: the fastest that fits model and guide, logging what was lost."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyrobbb._support import text
from pyrobbb._support.network_state import buffers_kept, evaluating, says_replaced
from pyrobbb._support.optim import trained
from pyrobbb._support.process_group import SINGLE, ProcessGroup
from pyrobbb.accelerated.agreement import difference, gradients
from pyrobbb.accelerated.compilation_cost import (
    LOCAL,
    MEAN_FIELD,
    POINT,
    PYRO,
    Prepare,
    Savings,
    fastest,
    ways,
)
from pyrobbb.accelerated.compile import CannotCompileError, compiled_program
from pyrobbb.accelerated.cuda_graph import GraphStep, capturable, lost_by
from pyrobbb.accelerated.distributed_step import SummedReference, SummedStep
from pyrobbb.accelerated.fast_step import FastStep, NotFastError
from pyrobbb.accelerated.local_program import LocalProgram
from pyrobbb.accelerated.mean_field_step import MeanFieldStep
from pyrobbb.accelerated.prior_segments import PriorSegment, prior_segments
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.programs import LossProgram, flat_program, point_program, pyro_program
from pyrobbb.accelerated.record import CannotRecordError
from pyrobbb.accelerated.replay_noise import Injected, NoiseUsedUpError
from pyrobbb.accelerated.updates import Update
from pyrobbb.accelerated.whole_step import WholeStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep, Step, is_default

ESTIMATORS = ("weights", "local")
DRAWS = ("forward", "sigma", "split", "_sample")  # of MeanFieldNormal, which the fast path takes for granted

_SMALL = 100_000  # weights times draws; below it a step is bound by calls and not by memory
_LARGE = 100_000_000  # the same on CUDA; above it, all draws of a step as one batch would fill the memory


def make_step(
    model: nn.Module,
    guide: nn.Module,
    optimizer: torch.optim.Optimizer,
    first: Split,
    *,
    samples: int = 1,
    estimator: str = "weights",
    vectorize: bool = False,
    elbo: Any = None,
    fast: str = "auto",
    steps: int = 0,
    log: Callable[[str], None] = lambda message: None,
    ranks: ProcessGroup = SINGLE,
) -> Step:
    """The step that trains `guide`: fast and compiled, fast, or Pyro's own `ReferenceStep`.

    The choice depends only on the arguments, so that a resumed run makes the same one. A run with
    many more steps may compile, or another machine lack a compiler: the noise then has another stream.

    Args:
        model: The Pyro model, on its device.
        guide: The Pyro guide, with its parameters made.
        optimizer: Over the parameters of both.
        first: A batch of full size, to record with and to compare both paths on.
        samples: Weight draws per step.
        estimator: "local" lays the noise on the layers' outputs (`local_noise`), for mean-field normals.
        vectorize: Let the reference path evaluate these draws as one batch.
        elbo: One of Pyro's ELBOs, which only the reference path supports; None is `Trace_ELBO`.
        fast: "auto"; "compiled" or "eager" to decide about compilation; "off" for the reference path.
        steps: Steps that the whole training will take; a short one is not worth a compilation.
        log: Receives one line on what was lost, and how long a compilation took.
        ranks: The processes whose gradients are summed.

    Raises:
        ValueError: If the noise cannot lie on the outputs.
    """
    reference = ReferenceStep(model, guide, optimizer, samples=samples, vectorize=vectorize, elbo=elbo)
    alone = ranks.size == 1
    if fast == "off" or not is_default(elbo):
        if estimator == "local":
            raise ValueError(
                "estimator='local' needs the fast path, which cannot be used here; use 'weights'"
            )
        if fast != "off":
            log(f"training with Pyro's own SVI: the fast path does not apply to elbo {reference.name}")
        return reference if alone else SummedReference(reference, ranks)
    case = _Case(model, guide, optimizer, first, samples, fast, steps, alone, log)
    try:
        with buffers_kept(model) as replaced:
            step = _fast_step(case, estimator)
        if replaced:
            raise NotFastError(says_replaced(replaced))
        if estimator == "weights" or case.point:
            _check(step, case)
    except NotFastError as reason:
        if estimator == "local":
            raise ValueError(f"estimator='local' does not fit: {reason}; take 'weights'") from reason
        log(f"training with Pyro's own SVI, several times slower than the fast path: {reason}")
        return reference if alone else SummedReference(reference, ranks)
    return as_graph(step if alone else SummedStep(step, ranks), model, first, log)


def as_graph(
    step: FastStep, model: nn.Module, first: Split, log: Callable[[str], None]
) -> FastStep | GraphStep:
    """On CUDA, `step` as a graph if it can be one; otherwise `log` says why not."""
    if not first.x.is_cuda:
        return step
    own: Any = step.step if isinstance(step, SummedStep) else step
    with buffers_kept(model):
        lost = lost_by(own, first.x, first.y)
    if lost is not None:
        log(f"training without a CUDA graph, bound by launches: {lost}")
        return step
    return GraphStep(step, first, log)


class _Case(NamedTuple):
    """What a step is made for; see `make_step`."""

    model: Any
    guide: Any
    optimizer: torch.optim.Optimizer
    first: Split
    samples: int
    fast: str
    steps: int
    alone: bool
    log: Callable[[str], None]

    @property
    def point(self) -> bool:
        """Whether the model has no latent weights."""
        return isinstance(self.model, BayesianNetwork) and not self.model.sites

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a batch of full size."""
        return self.first.x, self.first.y

    def step(
        self, program: LossProgram, noise_shape: tuple[int, ...], prepare: Prepare | None
    ) -> ProgramStep:
        """The step of a program, prepared for a batch of full size."""
        return ProgramStep(program, self.optimizer, noise_shape, self.batch, prepare)

    def ways(self, savings: Savings) -> list[Prepare | None]:
        """What may pay to do with its program, best first."""
        size = sum(p.numel() for p in self.guide.parameters()) * self.samples // 2
        if self.point:
            size = sum(p.numel() for p in trained(self.optimizer))
        return ways(self.fast, size, self.steps, savings, device=self.first.x.device)

    def forked(self) -> AbstractContextManager[None]:
        """Keep the random state of the body from what follows."""
        return torch.random.fork_rng([self.first.x.device] if self.first.x.is_cuda else [])


def _fast_step(case: _Case, estimator: str) -> MeanFieldStep | ProgramStep:
    """The step without Pyro, or with all that Pyro runs as one program."""
    if case.point:
        program = point_program(case.model, trained(case.optimizer))
        return fastest(lambda how: case.step(program, (1, 0), how), case.ways(POINT), case.log)
    try:
        segments = element_wise(case.model, case.guide, case.first)
    except NotFastError as reason:
        if estimator == "local":
            raise
        return _pyro(case, reason)
    if estimator == "local":
        _check_sampled(case._replace(samples=1, fast="eager"), segments)
        return _local(case, segments)
    step = _mean_field(case, segments)
    if not isinstance(case.guide, MeanFieldNormal):
        with _widened(case.guide):  # where rho is low, exp and softplus are alike
            _check(step, case)
    return step


def _mean_field(case: _Case, segments: list[PriorSegment]) -> MeanFieldStep | ProgramStep:
    model, guide, optimizer, first, samples, *_ = case
    size, cuda = guide.loc.numel(), first.x.is_cuda

    def make(prepare: Prepare | None) -> MeanFieldStep | ProgramStep:
        compiled = prepare is compiled_program
        fixed = all(segment.shape is None for segment in segments)  # a learned prior changes at each step
        whole = cuda and compiled and case.alone and fixed and size * samples <= _LARGE
        if whole and capturable(optimizer) and Update.supported(optimizer):
            return WholeStep(model, guide, optimizer, segments, samples, case.batch)
        if size * samples > (_LARGE if cuda else _SMALL):
            return MeanFieldStep(model, guide, optimizer, segments, samples=samples, compiled=compiled)
        program = flat_program(model, guide, segments, trained(optimizer), samples)
        return case.step(program, (samples, size), prepare)

    return fastest(make, case.ways(MEAN_FIELD), case.log)


def _local(case: _Case, segments: list[PriorSegment]) -> ProgramStep:
    model, parameters = case.model, trained(case.optimizer)
    program = LocalProgram(model, case.guide, segments, parameters, case.samples, len(case.first))
    share = case.guide.loc.detach().new_ones(())
    x, y = case.batch
    with case.forked():
        program(None, share, x, y, None)
        used = program.used
        # with a row more, what has as many rows by chance, such as the steps of a sequence, has not
        program(None, share, torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), None)
    drawn = [name for name in model.sites if name not in program.layers]
    flipout = len(program.flipout)
    kinds = {"local reparameterisation": len(program.layers) - flipout, "flipout": flipout}
    said = ", ".join(f"{kind} of {count} weights and biases" for kind, count in kinds.items() if count)
    others = f"; {', '.join(drawn)} are drawn as weights" if drawn else ""
    case.log(f"{said}{others}")
    return fastest(lambda how: case.step(program, (used,), how), case.ways(LOCAL), case.log)


def _pyro(case: _Case, reason: Exception) -> ProgramStep:
    # As it is it gains nothing on the CPU; on CUDA it can still become a graph.
    each = [how for how in case.ways(PYRO) if how is not None or case.first.x.is_cuda]
    if not each:
        raise NotFastError(f"{reason}, and this run is too short for a recording of its program to pay")
    program = pyro_program(case.model, case.guide, every := trained(case.optimizer), case.samples)
    try:
        if case.samples > 1 and isinstance(case.model, BayesianNetwork):
            case.model.check_draws()
        with case.forked(), Injected(None) as counting:
            program(None, every[0].detach().new_ones(()), *case.batch, None)
        step = fastest(
            lambda how: case.step(program, (counting.used,), how), each, case.log, "Pyro's program"
        )
    except (CannotCompileError, CannotRecordError) as other:
        raise NotFastError(f"{reason}, and its program cannot be compiled or recorded: {other}") from other
    except (RuntimeError, ValueError) as other:  # of a prior or guide for one draw at a time
        if case.samples == 1:
            raise
        raise NotFastError(f"{reason}, and it takes its draws one by one: {text.reason(other)}") from other
    step.keeps_prior = False
    return step


def element_wise(model: nn.Module, guide: Any, first: Split) -> list[PriorSegment]:
    """The prior, weight by weight in the guide's order; NotFastError for another kind of guide."""
    if not isinstance(model, BayesianNetwork):
        raise NotFastError(f"the model is a {type(model).__name__}, not a BayesianNetwork")
    if not (hasattr(guide, "split") and hasattr(guide, "shapes")) or {
        name for name, p in guide.named_parameters() if p.dim() == 1
    } != {"loc", "rho"}:
        raise NotFastError(
            f"the guide {type(guide).__name__} is not a mean-field normal with flat loc and rho"
        )
    changed = [name for name in DRAWS if getattr(type(guide), name, None) is not vars(MeanFieldNormal)[name]]
    if isinstance(guide, MeanFieldNormal) and changed:
        raise NotFastError(f"the guide {type(guide).__name__} has a {changed[0]} of its own")
    if model.other_latents:
        raise NotFastError("the prior or likelihood has latent sites of its own")
    if guide.loc.dtype not in (torch.float32, torch.float64):
        raise NotFastError(f"the weights are {guide.loc.dtype}")
    with torch.enable_grad():  # a parameter of the prior that is trained by gradients shows itself
        trace: Any = poutine.trace(model).get_trace(first.x, first.y)
    drawn = {name for name, site in trace.nodes.items() if _counts(site)}
    if others := sorted(drawn - {*guide.shapes, "y"}):  # such as a measurement, or a factor
        raise NotFastError(f"the model has a sample site of its own, {others[0]!r}")
    try:
        priors = {name: trace.nodes[name]["fn"] for name in guide.shapes}
        return prior_segments(priors, model.prior_buffers)
    except KeyError as reason:
        raise NotFastError(str(reason)) from reason


def _counts(site: dict[str, Any]) -> bool:
    """Whether a site has a density that counts: not a plate, or what `pyro.deterministic` notes."""
    sampled = site["type"] == "sample" and not site_is_subsample(site)
    return sampled and not site["infer"].get("_deterministic")


@contextmanager
def _widened(guide: Any) -> Iterator[None]:
    """With rho 0 for a while."""
    before = guide.rho.detach().clone()
    guide.rho.data.zero_()
    try:
        yield
    finally:
        guide.rho.data.copy_(before)


def _check(step: MeanFieldStep | ProgramStep, case: _Case) -> None:
    """NotFastError unless the step and Pyro's see the same terms and gradients on the same noise."""
    model, guide, optimizer, first, samples, *_ = case
    flat = len(step.noise_shape) == 2  # draw after draw, else in the order of Pyro's vectorised draws
    reference = ReferenceStep(model, guide, optimizer, samples=samples, vectorize=not flat)
    noise = torch.randn(step.noise_shape, dtype=step.share.dtype).to(step.share.device)
    with case.forked(), buffers_kept(model):
        ours = gradients(step, first, noise)
    try:
        with case.forked(), buffers_kept(model):
            theirs = gradients(reference, first, noise, N=model.N)
    except NoiseUsedUpError as reason:
        raise NotFastError("the network draws normal noise of its own in forward") from reason
    found = difference(ours, theirs)
    if found is not None:
        raise NotFastError(
            f"its {found.name} differs from Pyro's on the first rows ({_size(found.ours):g}, not "
            f"{_size(found.theirs):g}); does the model or guide do more than sample its weights, or is a "
            f"sigma so small that Pyro's rounds?"
        )


def _check_sampled(case: _Case, segments: list[PriorSegment]) -> None:
    """NotFastError unless model and guide do no more than sample weights, apart from noise in the network."""
    with case.forked(), evaluating(case.model):
        try:
            _check(_mean_field(case, segments), case)
        except NotFastError as reason:
            if not isinstance(reason.__cause__, NoiseUsedUpError):
                raise


def _size(value: Tensor) -> float:
    return float(value) if value.dim() == 0 else float(value.norm())
