"""What changes while a training runs, or is another thing than it seems, is seen by each path or refused."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cuda_fakes import FakeCuda
from engine_fakes import Listens, normal
from pyrobbb import MeanFieldNormal, Posterior, fit, likelihoods, priors
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.accelerated import GraphStep, dispatch
from pyrobbb.accelerated.fixed_batch import FixedBatch
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.inference import MAP, SGHMC, SVI, Inference, NaturalGradient, energy
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.trainer import Training

X, Y = normal(24, 4), normal(24, 2, seed=1)
DATA = from_arrays(X, Y, task="regression")


class Scaled(nn.Module):
    """A linear map times an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.t = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.t


class Buffered(nn.Module):
    """The same with a buffer."""

    t: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("t", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.t


class Does(Callback):
    """Calls a function with the training at the end of epoch 3."""

    def __init__(self, what: Callable[[Any], None]) -> None:
        self.what = what

    def on_epoch(self, view: Any, row: Any) -> None:
        if row.epoch == 3:
            self.what(view)


@pytest.fixture
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording pays from the first step on."""
    monkeypatch.setattr("pyrobbb.accelerated.compilation_cost._OF_RECORDING", 1e-9)


def trained(network: Callable[[], nn.Module] = Scaled, prior: Any = None, **options: Any) -> Posterior:
    given: dict[str, Any] = {
        "epochs": 10, "batch_size": 12, "seed": 1, "device": "cpu", "fast": "eager", "progress": None,
    }  # fmt: skip
    guide = options.pop("guide", MeanFieldNormal)
    model = lambda: BayesianNetwork(network(), prior or priors.Normal(), likelihoods.Normal(0.5))  # noqa: E731
    return fit(model, guide, DATA, **{**given, **options})


def cooler(view: Any) -> None:
    view.model.network.t = 0.1


def cooler_in_one(view: Any) -> None:
    if view.chain == 1:
        view.model.network.t.fill_(0.1)


def test_chains_trained_together_are_told_of_a_changed_attribute() -> None:
    """A recording of their step had kept it, in silence."""
    trained(chains=2, callbacks=[Does(cooler)])  # without a recording the step sees it
    with pytest.raises(ValueError, match="the network of chain 0 changed in training, and the step of all"):
        trained(chains=2, callbacks=[Does(cooler)], epochs=4000, fast="auto")


class Stops(nn.Module):
    """A network whose first layer gets no gradient once a callback says so; its output stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.stop = nn.Linear(4, 3), nn.Linear(3, 2), False

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h.detach() if self.stop else h)


@pytest.mark.parametrize("only", [None, 0, 1])
def test_of_chains_trained_together_not_one_alone_may_change(only: int | None) -> None:
    def stop(view: Any) -> None:
        view.model.network.stop = only is None or view.chain == only

    said = r"the network of chain 1 changed in training, and the step of all chains did not see it"
    with nullcontext() if only is None else pytest.raises(ValueError, match=said):
        trained(Stops, chains=2, callbacks=[Does(stop)])


class Flips(Callback):
    """Changes an attribute for one epoch, at whose end no check is due by itself."""

    def on_epoch(self, view: Any, row: Any) -> None:
        view.model.network.t = 0.1 if row.epoch == 5 else 1.0
        if row.epoch == 7:
            view.stop("nothing was seen")


@pytest.mark.parametrize("chains", [1, 2])
def test_a_change_that_is_undone_is_seen_too(chains: int) -> None:
    with pytest.raises(ValueError, match="changed in training, and"):
        trained(chains=chains, callbacks=[Flips()], epochs=4000, fast="auto")


def freeze(view: Any) -> None:
    view.guide.rho.requires_grad_(False)


@pytest.mark.parametrize("fast", ["off", "eager"])
def test_a_parameter_that_a_callback_freezes_is_refused(fast: str) -> None:
    """The fast path had trained it on, in silence. After the last epoch nothing would."""
    trained(callbacks=[Does(freeze)], epochs=3, fast=fast)
    with pytest.raises(ValueError, match="a callback froze the parameter 'rho': to stop it"):
        trained(callbacks=[Does(freeze)], epochs=4, fast=fast)


def test_a_sampler_is_told_of_a_changed_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recording had kept it, in silence."""
    monkeypatch.setattr(energy, "GRADIENT", {"cpu": (0.1, 0.0, 10.0)})  # of 20 steps a recording pays
    method = SGHMC(cycles=1, draws=4)
    trained(guide=None, inference=method, callbacks=[Does(cooler)])
    with pytest.raises(ValueError, match="the network changed in training, and its step did not see it"):
        trained(guide=None, inference=method, callbacks=[Does(cooler)], fast="auto")


def test_chains_trained_together_have_one_network() -> None:
    with pytest.raises(ValueError, match="the network of chain 1 changed in training, and the step of all"):
        trained(Buffered, chains=2, callbacks=[Does(cooler_in_one)])
    trained(Buffered, chains=2, callbacks=[Does(cooler_in_one)], together=False)


class Annealed(nn.Module, priors.Prior):
    """A prior whose scale a callback changes; `live` says whether as a buffer that the distribution has."""

    scale: Tensor
    log_scale: Tensor

    def __init__(self, live: bool) -> None:
        super().__init__()
        self.live = live
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("log_scale", torch.zeros(()))

    def distribution(self, name: str, parameter: Tensor) -> dist.TorchDistribution:
        scale = self.scale if self.live else self.log_scale.exp()
        return priors.elementwise(dist.Normal(torch.zeros_like(scale), scale), parameter)


def narrower(view: Any) -> None:
    view.model.prior.scale.fill_(0.01)
    view.model.prior.log_scale.fill_(math.log(0.01))


def test_a_prior_that_changes_is_followed_or_refused() -> None:
    with pytest.raises(
        ValueError, match="changed in training, and the steps did not see it: train with fast"
    ):
        trained(prior=Annealed(False), callbacks=[Does(narrower)])
    kl = {
        live: [
            row.kl
            for row in trained(prior=Annealed(live), fast=fast, callbacks=[Does(narrower)]).history.rows
        ]
        for live, fast in ((True, "eager"), (False, "off"))
    }
    assert all(
        each[3] > 2 * each[2] for each in kl.values()
    )  # mean weights of some 0.3, under a hundredth of the width


@pytest.mark.parametrize(
    "method", [MAP(), NaturalGradient(), SVI()], ids=lambda method: type(method).__name__
)
def test_a_method_that_keeps_the_prior_says_so(method: Inference) -> None:
    guide = MeanFieldNormal if isinstance(method, SVI) else None
    with pytest.raises(ValueError, match=r"the prior's layer\.weight\.scale changed in training"):
        trained(prior=Annealed(False), guide=guide, inference=method, callbacks=[Does(narrower)])


class OfTwo(nn.Module, priors.Prior):
    """A mixture, whose distribution names no parameters of its own, with its scales in a buffer."""

    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.tensor([0.5, 1.0]))

    def distribution(self, name: str, parameter: Tensor) -> dist.TorchDistribution:
        zeros = torch.zeros(*parameter.shape, 2)
        each = dist.Normal(zeros, self.scales.expand(zeros.shape) * 1.0)
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=zeros), each)
        return mixture.to_event(parameter.dim())


def test_a_mixture_that_changes_is_refused_too() -> None:
    def narrow(view: Any) -> None:
        view.model.prior.scales.mul_(0.01)

    with pytest.raises(ValueError, match=r"the prior's layer\.weight\.\d changed in training"):
        trained(prior=OfTwo(), guide=None, inference=MAP(), callbacks=[Does(narrow)])


def test_pyros_own_guides_follow_a_prior_that_changes() -> None:
    posterior = trained(prior=Annealed(False), guide=AutoNormal, fast="auto", callbacks=[Does(narrower)])
    kl = [row.kl for row in posterior.history.rows]
    assert kl[3] > 2 * kl[2]


class Notes(Buffered):
    """Keeps what it saw last, and a buffer of nothing as yet."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("note", torch.tensor(math.nan))
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows = len(x)
        return super().forward(x)


def best(view: Any) -> None:
    view.model.network.best = float(view.chain)


@pytest.mark.usefixtures("recorded_at_once")
@pytest.mark.parametrize("chains", [1, 2])
def test_what_a_network_notes_is_no_change(chains: int) -> None:
    heard = Listens()
    trained(Notes, chains=chains, fast="auto", callbacks=[Does(best)], progress=heard)
    assert not any("without a recording" in line for line in heard.said)


class Counts(Scaled):
    """Counts its calls, as a schedule of its own might."""

    def forward(self, x: Tensor) -> Tensor:
        self.t += 1.0
        return self.layer(x) * (1.0 + 1e-4 * self.t)  # as little as rounding: its steps agree


@pytest.mark.usefixtures("recorded_at_once")
@pytest.mark.parametrize("graph", [False, True])
def test_a_network_that_counts_its_calls_is_not_recorded(
    graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it captured, as on CUDA any fast step is."""
    if graph:
        FakeCuda(monkeypatch)
        monkeypatch.setattr(dispatch, "as_graph", lambda step, model, first, log: GraphStep(step, first, log))
    said = "without a recording: the network changes network.t when it is called"
    for fast, told in (("eager", graph), ("auto", True)):  # eagerly each step calls it, but for a graph
        heard = Listens()
        trained(Counts, progress=heard, fast=fast, epochs=2)
        assert any(line.endswith(said) for line in heard.said) is told


class Floor(MeanFieldNormal):
    """A guide that is never sure."""

    @property
    def sigma(self) -> Tensor:
        return F.softplus(self.rho).clamp(min=0.3)


def test_a_guide_that_changes_the_mean_field_is_taken_as_it_is() -> None:
    """The formula of the mean field had been trained, whose sigma has no floor."""
    guide, heard = partial(Floor, init_rho=0.5), Listens()
    ends = [trained(guide=guide, progress=heard, fast=fast).chains[0][1] for fast in ("eager", "off")]
    assert any("the guide Floor has a sigma of its own" in line for line in heard.said)
    assert torch.equal(ends[0].loc, ends[1].loc)
    assert torch.equal(ends[0].rho, ends[1].rho)


class Sum(nn.Module):
    """Two parameters of which the gradient is one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.a, self.b = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + (self.a + self.b))


@pytest.mark.parametrize(("small", "chains"), [(0, 1), (10**9, 1), (10**9, 2)])
def test_a_shared_gradient_is_clipped_once(small: int, chains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_SMALL", small)
    where = dict.fromkeys(("a", "b"), priors.Deterministic())
    prior = priors.PerParameter(default=priors.Normal(), where=where)
    norms = []

    class Measures(Callback):
        def on_step(self, view: Any, terms: Any) -> None:
            pass

        def on_start(self, view: Any) -> None:
            def note(optimizer: Any, args: Any, kwargs: Any) -> None:
                own = [p.grad for group in optimizer.param_groups for p in group["params"]]
                norms.append(float(torch.stack([g.norm() for g in own if g is not None]).norm()))

            view.optimizer.register_step_pre_hook(note)  # after that which clips

    trained(Sum, prior=prior, chains=chains, epochs=1, clip_norm=1e-3, callbacks=[Measures()],
            optim=partial(torch.optim.SGD, lr=0.1))  # fmt: skip
    assert norms == pytest.approx([1e-3] * len(norms), rel=1e-3)
    assert len(norms) == 2 * chains


def test_parameters_in_other_memory_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`vector_to_parameters` gives them other memory, as optimisers of one's own may."""
    monkeypatch.setattr(dispatch, "_SMALL", 0)

    def moves(view: Any) -> None:
        own = [*view.guide.parameters()]
        vector_to_parameters(parameters_to_vector(own).detach().clone(), own)

    plain, moved = trained(), trained(callbacks=[Does(moves)])
    assert torch.equal(plain.chains[0][1].loc, moved.chains[0][1].loc)


class Normed(nn.Module):
    """Divides by a weight's norm, without its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            norm = self.layer.weight.norm()
        return self.layer(x) / norm


def test_noise_on_the_outputs_is_refused_where_a_draw_is_read_otherwise() -> None:
    with pytest.raises(ValueError, match=r"uses 'layer\.weight' in norm; take 'weights'"):
        trained(Normed, estimator="local")


class Tilted(dist.Normal):
    """A normal's density times exp(-|w|), which torch's table of divergences takes for the normal's."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) - value.abs()


class TiltedPrior(priors.Prior):
    def distribution(self, name: str, parameter: Tensor) -> dist.TorchDistribution:
        return priors.elementwise(Tilted(torch.zeros(()), torch.ones(())), parameter)


@pytest.mark.parametrize("estimator", ["weights", "local"])
def test_a_density_that_derives_from_a_normal_is_its_own(estimator: str) -> None:
    """KL[N(0, s^2) || P] of each weight is log(1 / s) + s^2 / 2 - 1/2 + s sqrt(2 / pi)."""
    guide = partial(MeanFieldNormal, init_loc=lambda site: torch.zeros(site["fn"].event_shape), init_rho=0.0)
    still = partial(torch.optim.SGD, lr=0.0)
    posterior = trained(
        prior=TiltedPrior(), guide=guide, estimator=estimator, optim=still, epochs=100, batch_size=24
    )
    found = torch.tensor([row.kl for row in posterior.history.rows], dtype=torch.float64) * len(X) / 10
    s = math.log(2)
    exact = -math.log(s) + s * s / 2 - 0.5 + s * math.sqrt(2 / math.pi)
    assert float(found.mean()) == pytest.approx(exact, abs=5 * float(found.std()) / 10)


class Shift(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


@pytest.mark.parametrize("estimator", ["weights", "local"])
def test_a_learned_prior_of_a_single_number_takes_the_fast_path(estimator: str) -> None:
    heard = Listens()
    trained(Shift, prior=priors.Learned(priors.Normal()), estimator=estimator, progress=heard)
    assert not any("SVI" in line for line in heard.said)


def test_batches_are_laid_out_as_the_program_was_made_for() -> None:
    x, y = torch.randn(6, 3, 4, 4), torch.randn(6, 2)
    other = FixedBatch(x.to(memory_format=torch.channels_last), y.T.contiguous().T, torch.float32)
    assert [part.is_contiguous() for part in other.example] == [True] * 3
    fixed = FixedBatch(x, y, torch.float32)
    for rows in (6, 4):
        given = fixed(x[:rows].to(memory_format=torch.channels_last), y[:rows])
        assert given is not None
        assert given[0].stride() == x.stride()
        torch.testing.assert_close(given[0][:rows], x[:rows])


class Two(ProcessGroup):
    """The first of two processes, the other of which does the same."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def sum_(self, values: Tensor) -> None:
        values *= 2

    def any(self, *flags: bool) -> list[bool]:
        return list(flags)

    def broadcast_(self, values: Tensor) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def from_main(self, value: Any) -> Any:
        return value


@pytest.mark.usefixtures("recorded_at_once")
def test_several_processes_are_told_of_a_changed_network_too() -> None:
    with pytest.raises(ValueError, match="the network changed in training, and its step did not see it"):
        trained(callbacks=[Does(cooler)], ranks=Two(), fast="auto")


def test_all_processes_check_what_a_callback_in_another_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a CUDA graph sums over the processes: alone in it, one would wait for the others."""

    class Other(Two):
        def any(self, *flags: bool) -> list[bool]:
            return [True] * len(flags)

    checked = []
    monkeypatch.setattr(Training, "_check_recording", lambda own: checked.append(own.epoch))
    model = BayesianNetwork(Scaled(), priors.Normal(), likelihoods.Normal(0.5))
    training = Training(
        model, MeanFieldNormal(model), DATA, epochs=4, ranks=Other(), fast="off", device="cpu"
    )
    training.begin_epoch()
    training.end_epoch()
    assert checked == [1]
