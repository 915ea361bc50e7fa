"""The fast path computes Pyro's Trace_ELBO: same noise in, same terms and gradients out."""

from functools import partial
from typing import Any

import pyro
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyro.distributions import Normal
from pyro.infer.autoguide import (
    AutoNormal,
)
from pyro.nn import PyroModule
from torch import Tensor, nn

from own_priors import Correlated
from pyrobbb import likelihoods, priors
from pyrobbb._support.flat import split
from pyrobbb._support.optim import trained
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import dispatch as choose
from pyrobbb.accelerated.compilation_cost import ways
from pyrobbb.accelerated.compile import compile, compiled_program
from pyrobbb.accelerated.fast_step import NotFastError
from pyrobbb.accelerated.fused_kl import draw
from pyrobbb.accelerated.mean_field_step import MeanFieldStep
from pyrobbb.accelerated.prior_segments import PriorSegment
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.programs import pyro_program
from pyrobbb.accelerated.record import CannotRecordError, record, replay
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep
from step_cases import AUTOGUIDES, LIKELIHOODS, PRIORS, SHARES, B, Case, Looking, N, flat_guide

# of compiled programs in single precision: where the mixture's components meet its slope loses digits, and
# the compiler orders sums as it likes (up to 5e-5 over 16 shifts of the seeds)
SINGLE = 1e-3
KINDS = {"passes": (MeanFieldStep, 0), "program": (ProgramStep, 10**9)}  # and the size up to which "small"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    chosen, small = KINDS[request.param]
    monkeypatch.setattr(choose, "_SMALL", small)
    return chosen


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS)
def test_same_noise_same_terms_and_gradients(prior: str, likelihood: str, kind: type) -> None:
    case = Case(PRIORS[prior], likelihood)
    step = case.step(fast="eager")
    assert type(step) is kind
    assert not case.said
    for share in SHARES.values():
        case.assert_close(step, share=share)


# a Latin square: of guide, prior and likelihood any two meet
SQUARE = [
    (guide, prior, likelihood)
    for i, guide in enumerate(AUTOGUIDES)
    for j, prior in enumerate(PRIORS)
    for k, likelihood in enumerate(LIKELIHOODS)
    if (i + j + k) % len(LIKELIHOODS) == 0
]


@pytest.mark.parametrize(("guide", "prior", "likelihood"), SQUARE)
def test_pyros_program_is_pyros_program(guide: str, prior: str, likelihood: str) -> None:
    case = Case(PRIORS[prior], likelihood, AUTOGUIDES[guide])
    program = pyro_program(case.model, case.guide, trained(case.optimizer), 1)
    with isolated(0):
        with Injected(None) as counting:
            program(None, torch.ones(()), case.data.x, case.data.y)
        step = ProgramStep(program, case.optimizer, (counting.used,))
        for share in SHARES.values():
            case.assert_close(step, share=share)


@pytest.mark.parametrize("prior", PRIORS)
def test_same_in_double_precision(prior: str, kind: type) -> None:
    case = Case(PRIORS[prior], "normal_learnt", dtype=torch.float64)
    case.assert_close(case.step(fast="eager"), rtol=1e-12)


@pytest.mark.parametrize("samples", [2, 5])
def test_several_draws_average_as_in_pyro(samples: int, kind: type) -> None:
    case = Case(PRIORS["per_parameter"], "normal_learnt")
    step = case.step(fast="eager", samples=samples)
    assert step.noise_shape == (samples, case.guide.loc.numel())
    case.assert_close(step, samples=samples)


def test_compiled_passes_agree_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass for each family of priors: a mixture, scales that differ, heavy tails."""
    monkeypatch.setattr(choose, "_SMALL", 0)
    own = {
        "0.bias": PRIORS["student_t"],
        "2.weight": PRIORS["fan_in"],
        "2.bias": PRIORS["laplace"],
    }
    case = Case(priors.PerParameter(default=priors.ScaleMixture(), where=own))
    step = case.step(fast="compiled")
    assert type(step) is MeanFieldStep, case.said
    assert len(case.said) == 1
    assert "compiling" in case.said[0]
    case.assert_close(step, rtol=SINGLE)


def test_compiled_programs_agree_too() -> None:
    """Of one layer, soon compiled. One draw, and Pyro's program: tests/accelerated/test_program_step.py."""
    case = Case(PRIORS["mixture"], "normal_learnt", network=nn.Sequential(nn.Linear(4, 3)))
    step = case.step(fast="compiled", samples=3)
    assert type(step) is ProgramStep, case.said
    case.assert_close(step, samples=3, rtol=SINGLE)


def test_a_network_with_dropout_uses_the_same_masks(kind: type) -> None:
    case = Case(PRIORS["normal"])
    case.model.network.append(nn.Dropout(0.5))
    assert type(case.step(fast="eager")) is kind


class Wider(MeanFieldNormal):
    """A guide that says it is a flat mean field, but samples something else."""

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().split(1.5 * flat)


class OtherGuide(MeanFieldNormal):
    """A mean field with one more parameter."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__(model)
        self.extra = nn.Parameter(torch.zeros(3))


class ScaledTwice(BayesianNetwork):
    """A model that tempers itself."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        with pyro.poutine.scale(scale=0.5):
            return super().forward(x, y)


class Pinned(BayesianNetwork):
    """A network of which one value was measured too, as near as makes no difference at the start."""

    def sample_weights(self) -> Any:
        weights = super().sample_weights()
        value = self.apply_network(weights, torch.zeros(1, *self.features))[..., 0, 0]
        pyro.sample("pin", Normal(value.detach(), 1e3), obs=torch.zeros(()))
        return weights

    features: tuple[int, ...] = ()


class Exponential(PyroModule):
    """A mean field of one's own with sigma = e^rho, which is softplus where rho is low."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__("exponential")
        values = model.initial()
        self.shapes = {name: value.shape for name, value in values.items()}
        self.loc = nn.Parameter(torch.cat([value.flatten() for value in values.values()]))
        self.rho = nn.Parameter(torch.full_like(self.loc, -9.0))

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return split(flat, self.shapes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        locs, scales = self.split(self.loc), self.split(self.rho.exp())
        return {
            name: pyro.sample(name, Normal(loc, scales[name]).to_event(loc.dim()))
            for name, loc in locs.items()
        }


class Noted(likelihoods.Normal):
    """Notes something that has no density."""

    def forward(self, output: torch.Tensor) -> Any:
        pyro.deterministic("noted", output.detach())
        with pyro.plate("mine", 3):
            pass
        return super().forward(output)


def test_what_has_no_density_may_be_noted() -> None:
    case = Case(PRIORS["normal"], "normal")
    case.model.likelihood = Noted(0.5)
    assert choose.element_wise(case.model, case.guide, case.data)


def test_another_sample_site_is_not_left_out() -> None:
    """However little it differs at the start."""
    case = Case(PRIORS["normal"])
    case.model.__class__, Pinned.features = Pinned, tuple(case.data.x.shape[1:])
    with pytest.raises(NotFastError, match="a sample site of its own, 'pin'"):
        choose.element_wise(case.model, case.guide, case.data)


@pytest.mark.parametrize(
    ("make_guide", "prior", "why"),
    [
        (Exponential, PRIORS["normal"], "its KL differs from Pyro's"),
        (AutoNormal, PRIORS["normal"], "AutoNormal is not a mean-field normal"),
        (OtherGuide, PRIORS["normal"], "OtherGuide is not a mean-field normal"),
        (Wider, PRIORS["normal"], "the guide Wider has a split of its own"),
        (MeanFieldNormal, Correlated(), "TransformedDistribution"),
    ],
)
def test_what_it_cannot_do_runs_the_reference_and_says_why(make_guide: Any, prior: Any, why: str) -> None:
    case = Case(prior, make_guide=make_guide)
    step = case.step()
    assert type(step) is ReferenceStep
    with isolated(1):
        step(case.data.x, case.data.y, 0.2, B / N)
    assert len(case.said) == 1
    assert "Pyro's own SVI" in case.said[0]
    assert why in case.said[0]


def test_rounding_at_tiny_sigmas_is_named() -> None:
    """Pyro's path divides the rounding of w - mu by sigma squared; ours has no such difference."""
    case = Case(PRIORS["normal"], make_guide=partial(MeanFieldNormal, init_rho=-20.0))
    assert type(case.step(fast="eager")) is ReferenceStep
    assert "is a sigma so small that Pyro's rounds?" in case.said[0]


@pytest.mark.parametrize(("at_first", "then"), [(1, 2), (2, 1)])
def test_a_program_is_right_on_another_number_of_threads(at_first: int, then: int) -> None:
    """Code that inductor makes for one thread sums wrongly on two."""
    rho = torch.linspace(-9, 1, 200_000)
    inputs = [torch.tensor(0.1), torch.zeros_like(rho), rho, *(torch.zeros_like(rho) for _ in range(4))]
    segment = PriorSegment(Normal, {"loc": 0.0, "scale": 1.0}, {}, len(rho))
    program = partial(draw, segment)
    expected = float(program(*inputs))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(at_first)
        compiled = compile(record(program, inputs), inputs)
        for threads in (at_first, then):
            torch.set_num_threads(threads)
            assert float(compiled(*inputs)) == pytest.approx(expected, rel=1e-5)
    finally:
        torch.set_num_threads(before)


def test_a_recording_can_be_kept_on_disk() -> None:
    """Inductor cannot name a recording whose globals hold a program's annotations, and keeps nothing then."""

    class Program:
        def scaled(self, x: Tensor, by: Tensor) -> list[Tensor]:
            return [x * by]

    graph = record(Program().scaled, [torch.ones(3), torch.ones(())])
    assert torch.equal(graph(torch.ones(3), torch.tensor(2.0))[0], torch.full((3,), 2.0))
    assert not [name for name, value in graph.recompile().globals.items() if isinstance(value, str)]


def test_a_program_that_scales_its_own_sites_is_not_recorded() -> None:
    case = Case(PRIORS["normal"], make_guide=AutoNormal)
    case.model.__class__ = ScaledTwice
    program = pyro_program(case.model, case.guide, trained(case.optimizer), 1)
    with isolated(0), pytest.raises(CannotRecordError, match="scaled or masked"):
        program(None, torch.ones(()), case.data.x, case.data.y)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(2, 400), st.integers(1, 64), st.integers(1, 9))
@example(150, 32, 3)
def test_the_plates_scale_is_that_of_the_data_for_any_sizes(N: int, B: int, S: int) -> None:
    """Pyro computes it as (N/B) S/S, which rounding keeps from being N/B."""
    B = min(N, B)
    with isolated(0):
        model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal(0.1), N)
        guide = AutoNormal(model)
        x, y = torch.randn(B, 2), torch.randn(B, 1)
        guide(x, y)
        _, nll, *_ = pyro_program(model, guide, list(guide.parameters()), S)(None, torch.ones(()), x, y)
    assert torch.isfinite(nll)


class Noisy(nn.Module):
    """A layer that draws noise of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x)


def test_a_network_that_draws_noise_runs_the_reference(kind: type) -> None:
    case = Case(PRIORS["normal"])
    case.model.network.append(Noisy())
    assert type(case.step()) is ReferenceStep
    (said,) = case.said
    assert "Pyro's own SVI" in said
    assert "the network draws normal noise of its own in forward" in said


class Scaled(nn.Module):
    """A layer with a parameter that has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.by * x


@pytest.mark.parametrize("samples", [1, 3])
def test_a_parameter_without_dimensions(kind: type, samples: int) -> None:
    case = Case(PRIORS["normal"], network=nn.Sequential(nn.Linear(4, 3), Scaled()))
    step = case.step(fast="eager", samples=samples)
    assert type(step) is kind, case.said
    case.assert_close(step, samples=samples)


def test_a_network_that_looks_at_values_runs_the_reference() -> None:
    case = Case(PRIORS["normal"], make_guide=AutoNormal)
    case.model.network.append(Looking())
    step = case.step(fast="compiled")
    assert type(step) is ReferenceStep
    assert len(case.said) == 2
    assert "cannot be compiled" in case.said[1]


@pytest.mark.parametrize("make_guide", [flat_guide, AutoNormal])
def test_no_compiler_still_trains_and_says_so(
    make_guide: Any, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    def absent(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr("torch._inductor.standalone_compile", absent)
    monkeypatch.setattr("pyrobbb.accelerated.compile._COMPILED", {})  # nothing compiled before helps
    case = Case(PRIORS["mixture"], make_guide=make_guide)
    step = case.step(fast="compiled")
    assert type(step) is (kind if make_guide is flat_guide else ReferenceStep)
    before = [p.detach().clone() for p in case.guide.parameters()]
    with isolated(1):
        terms = step(case.data.x, case.data.y, 0.2, B / N)
    assert torch.isfinite(terms.kl + terms.nll)
    assert not any(torch.equal(a, b) for a, b in zip(before, case.guide.parameters(), strict=True))
    assert len(case.said) == 2
    assert "no C++ compiler" in case.said[1]


def test_a_short_run_is_not_compiled(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("torch._inductor.standalone_compile", refuse)
    case = Case(PRIORS["mixture"])
    assert type(case.step(steps=1000)) is kind
    assert not case.said


def test_off_is_pyros_own() -> None:
    case = Case(PRIORS["mixture"])
    assert type(case.step(fast="off")) is ReferenceStep
    assert not case.said


def test_point_parameters_train_alike(kind: type) -> None:
    """Two steps: gradients of parameters without a prior do not add up from step to step."""
    ends = []
    for fast in ("eager", "off"):
        case = Case(PRIORS["partly_deterministic"], "normal_learnt")
        step = case.step(fast=fast)
        with isolated(0):
            noise = torch.randn(2, 1, case.guide.loc.numel())
        with isolated():
            for row in noise:
                if fast == "off":
                    with Injected(row.flatten()):
                        step(case.data.x, case.data.y, 0.2, B / N)
                else:
                    step.evaluate(case.data.x, case.data.y, 0.2, row)
                    step.optimise()
        ends.append({k: v.detach().clone() for k, v in case.model.named_parameters()})
    assert ends[0]
    for name in ends[0]:
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=1e-5, atol=1e-7)


def test_what_pays_depends_on_the_device() -> None:
    """2x400 compiles from about a thousand steps on two cores; on CUDA a step is a hundred times shorter."""

    def pays(*given: Any, **device: Any) -> bool:
        return compiled_program in ways(*given, **device)

    size, cuda = 478_410, torch.device("cuda")
    assert [pays("auto", size, steps) for steps in (900, 1100)] == [False, True]
    assert [pays("auto", size, steps, device=cuda) for steps in (1100, 10**6)] == [False, True]
    assert pays("compiled", size, 1, device=cuda)
    assert not pays("eager", size, 10**9, device=cuda)
    assert [ways("auto", size, steps) for steps in (300, 900)] == [[None], [replay, None]]
    assert ways("auto", size, 1100) == [compiled_program, replay, None]
    assert ways("auto", size, 10**6, device=cuda) == [compiled_program, None]
    assert ways("compiled", size, 1) == [compiled_program, None]
    assert ways("eager", size, 10**9) == ways("off", size, 10**9) == [None]
