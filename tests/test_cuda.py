"""Training on a CUDA device: a graph takes the steps that are taken without it. Skipped without a device."""

import signal
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
import torch.distributed as dist
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from torch import Tensor, nn

from architectures import Chain, last
from engine_fakes import Listens
from pyrobbb import fit, likelihoods, priors
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.optim import fused, load_state, on_device
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb.accelerated import GraphStep, make_step
from pyrobbb.accelerated.distributed_step import SummedStep
from pyrobbb.accelerated.whole_step import WholeStep
from pyrobbb.bandits import Environment, EpsilonGreedy, Play, PointLearner, Round
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup.held_out import certainty
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation.arviz_export import to_arviz
from pyrobbb.evaluation.ood import auroc
from pyrobbb.inference import MAP, SVI, Laplace
from pyrobbb.inference.method import Inference
from pyrobbb.initializers import Constant
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.predictive import ClassPrediction
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import Training
from step_cases import Synchronises

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

B, N, DEVICE = 8, 64, "cuda"
ADAM = partial(torch.optim.Adam, lr=1e-2)
SGD = partial(torch.optim.SGD, lr=1e-4, momentum=0.9)  # in the spike a larger rate multiplies rounding


class Made:
    """A model, its guide, an optimiser and a batch on the device."""

    def __init__(
        self,
        make_guide: Callable[[Any], nn.Module] = partial(MeanFieldNormal, init_rho=-2.0),
        optim: Any = ADAM,
        hidden: int = 16,
        seed: int = 0,
        prior: priors.Prior | None = None,
    ) -> None:
        with isolated(seed, device=DEVICE):
            network = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Dropout(0.2), nn.Linear(hidden, 2))
            likelihood = likelihoods.Normal(0.5, learn_scale=seed == 0)
            self.model = BayesianNetwork(network, prior or priors.ScaleMixture(), likelihood, N).to(DEVICE)
            self.guide = make_guide(self.model)
            self.rows = Split(torch.randn(B, 4, device=DEVICE), torch.randn(B, 2, device=DEVICE))
            self.guide(self.rows.x, self.rows.y)
            self.guide.to(DEVICE)
        self.parameters = [*self.guide.parameters(), *self.model.parameters()]
        self.optimizer = fused(optim, DEVICE)([{"params": self.parameters}])
        on_device(self.optimizer, DEVICE)
        self.said: list[str] = []

    def step(self, fast: str = "eager", **options: Any) -> Any:
        with isolated(3, device=DEVICE):
            return make_step(
                self.model, self.guide, self.optimizer, self.rows, fast=fast, log=self.said.append, **options
            )

    def take(
        self, step: Any, steps: int, begin: int = 0, between: Callable[[int], None] | None = None
    ) -> Tensor:
        """The terms of each step, (steps, 2); every fifth batch is short."""
        terms = []
        for i in range(begin, begin + steps):
            part = Split(self.rows.x + 0.1 * i, self.rows.y).head(5 if i % 5 == 4 else B)
            kl, nll = step(part.x, part.y, 0.1 + 0.01 * i, len(part) / N)
            terms.append(torch.stack([kl, nll]).clone())
            if between is not None:
                between(i)
        return torch.stack(terms)


def agree(one: Made, other: Made, exactly: bool = False) -> None:
    for a, b in zip(one.parameters, other.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0 if exactly else 1e-5, atol=0 if exactly else 1e-5)


@pytest.mark.parametrize("optim", [ADAM, SGD])
@pytest.mark.parametrize("hidden", [16, 20_000])
@pytest.mark.parametrize("fast", ["eager", "compiled"])
def test_the_graph_takes_the_steps_that_are_taken_without_it(fast: str, hidden: int, optim: Any) -> None:
    """Dropout, short batches, point parameters and all: 12 steps from one random state."""
    made = [Made(optim=optim, hidden=hidden) for _ in range(2)]
    graph, plain = made[0].step(fast), made[1].step(fast).step
    assert isinstance(graph, GraphStep), made[0].said
    seen = []
    for one, step in zip(made, (graph, plain), strict=True):
        with isolated(7, device=DEVICE):
            seen.append(one.take(step, 12))
    assert graph.one is not None
    torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-5)
    agree(*made)


@pytest.mark.parametrize("optim", [ADAM, SGD])
def test_one_program_with_the_optimiser_is_torchs_step(optim: Any) -> None:
    """Compiled and captured, beside torch's own optimiser on the same gradients, uncompiled."""
    made = [Made(optim=optim) for _ in range(2)]
    whole, plain = made[0].step("compiled"), made[1].step("eager").step
    assert isinstance(whole.step, WholeStep), made[0].said
    seen = []
    for one, step in zip(made, (whole, plain), strict=True):
        with isolated(7, device=DEVICE):
            seen.append(one.take(step, 12))
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)
    for a, b in zip(made[0].parameters, made[1].parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def small_training(**options: Any) -> Training:
    """Eleven minibatches and a short one, four epochs, and a schedule."""
    with isolated(1):
        network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        model = BayesianNetwork(network, priors.ScaleMixture(), likelihoods.Normal(0.5))
        rows = Split(torch.randn(11 * B + 3, 4), torch.randn(11 * B + 3, 2))
        data = Dataset("made", rows, Spec(len(rows), (4,), 2, "regression"))
    return Training(
        model, MeanFieldNormal(model), data, epochs=4, batch_size=B, optim=ADAM, device=DEVICE,
        schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5), **options,
    )  # fmt: skip


@pytest.mark.parametrize("fast", ["eager", "compiled"])
@pytest.mark.parametrize("tf32", [False, True])
def test_many_steps_per_launch_are_the_same_steps(
    fast: str, tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole trainings, with a short last batch and a schedule, bit for bit."""
    before = torch.get_float32_matmul_precision()
    ends = []
    monkeypatch.setattr(GraphStep, "MANY", 4)
    for many in (True, False):
        if not many:
            monkeypatch.setattr(GraphStep, "capture_many", lambda step: False)
        training = small_training(fast=fast, tf32=tf32)
        assert training.made_with["tf32"] is tf32
        training.run()
        assert isinstance(training.step, GraphStep)
        assert (training.step.many is not None) == many
        losses = torch.tensor([[row.kl, row.nll] for row in training.history.rows])
        ends.append([losses, *(p.detach().cpu() for p in training.named.values())])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("fast", ["eager", "compiled"])
def test_a_training_resumes_where_it_was_interrupted(
    fast: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its second epoch, from its checkpoint, with graphs of four steps before and after."""
    monkeypatch.setattr(GraphStep, "MANY", 4)
    whole = small_training(fast=fast)
    whole.run()
    stopped = small_training(fast=fast, folder=tmp_path, progress=InterruptsLate(17))
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    resumed = small_training(fast=fast, folder=tmp_path)
    assert resumed.resume()
    resumed.run()
    for a, b in zip(whole.named.values(), resumed.named.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class InterruptsLate(Silent):
    """Interrupts the training as Ctrl-C does once it hears of step `at`."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


def test_a_model_is_made_without_a_draw_from_the_device() -> None:
    before = torch.cuda.get_rng_state()
    for network, prior in ((nn.Linear(4, 2), priors.Horseshoe()), (nn.Linear(4, 2).half(), priors.Normal())):
        BayesianNetwork(network.to(DEVICE), prior, likelihoods.Normal(0.5), N)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_the_sum_over_processes_is_part_of_the_graph(group: None) -> None:
    """NCCL sums over its one process, which takes itself for the first of two."""
    made = [Made() for _ in range(2)]
    for one, graph in zip(made, (True, False), strict=True):
        step = one.step(ranks=ProcessGroup(0, 2))
        assert isinstance(step, GraphStep), one.said
        assert isinstance(step.step, SummedStep)
        with isolated(7, device=DEVICE):
            one.take(step if graph else step.step, 12)
        assert (step.one is not None) == graph
    agree(*made)
    assert made[0].said == []


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """The process group that `torchrun` leads to on GPUs, of this process alone."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_each_replay_has_fresh_noise() -> None:
    made = Made()
    step = made.step()
    kls = []
    with isolated(0, device=DEVICE):
        made.take(step, 4)
        for group in made.optimizer.param_groups:
            group["lr"].zero_()
        for _ in range(6):
            kls.append(float(step(made.rows.x, made.rows.y, 0.1, B / N).kl))
    assert step.one is not None
    assert len(set(kls)) == 6


def test_a_validation_between_replays_changes_nothing() -> None:
    made = [Made() for _ in range(2)]

    def validate(i: int) -> None:
        state = random_state(DEVICE)
        with torch.no_grad(), evaluating(made[0].model):
            made[0].guide(made[0].rows.x)
            float(made[0].model.apply_network(made[0].guide(made[0].rows.x), made[0].rows.x).sum())
        set_random_state(state, DEVICE)

    for one, between in zip(made, (validate, None), strict=True):
        with isolated(7, device=DEVICE):
            one.take(one.step(), 10, between=between)
    agree(*made, exactly=True)


def test_a_changed_rate_is_followed() -> None:
    made = [Made() for _ in range(2)]
    for one, graph in zip(made, (True, False), strict=True):
        step = one.step()
        schedule = torch.optim.lr_scheduler.StepLR(one.optimizer, step_size=3, gamma=0.3)
        with isolated(7, device=DEVICE):
            one.take(step if graph else step.step, 12, between=lambda i, s=schedule: s.step())
    agree(*made)


def test_a_schedule_of_the_betas_takes_no_graph() -> None:
    made = [Made() for _ in range(2)]
    for one, graph in zip(made, (True, False), strict=True):
        step = one.step()
        schedule = torch.optim.lr_scheduler.OneCycleLR(one.optimizer, max_lr=0.05, total_steps=30)
        with isolated(7, device=DEVICE):
            one.take(step if graph else step.step, 20, between=lambda i, s=schedule: s.step())
        assert not graph or step.one is None
    agree(*made)


@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("fast", ["eager", "compiled"])
def test_a_training_resumes_within_an_epoch(fast: str, anew: bool) -> None:
    """Seven steps, and seven in another process's place, are fourteen; bit for bit if captured `anew`."""
    whole, first, second = (Made() for _ in range(3))
    with isolated(7, device=DEVICE):
        step = whole.step(fast)
        whole.take(step, 7)
        if anew:
            step.reset()
        whole.take(step, 7, begin=7)
    with isolated(7, device=DEVICE):
        first.take(first.step(fast), 7)
        random = random_state(DEVICE)
        state = deepcopy(first.optimizer.state_dict())
    with isolated(0, device=DEVICE):
        step = second.step(fast)
        with torch.no_grad():
            for own, given in zip(second.parameters, first.parameters, strict=True):
                own.copy_(given)
        load_state(second.optimizer, state)
        step.reset()
        set_random_state(random, DEVICE)
        second.take(step, 7, begin=7)
    agree(whole, second, exactly=anew)


@pytest.mark.parametrize("make_guide", [partial(AutoLowRankMultivariateNormal, rank=2), AutoNormal])
def test_a_guide_that_cannot_be_captured_trains_and_says_so(make_guide: Any) -> None:
    made = Made(make_guide)
    step = made.step()
    with isolated(7, device=DEVICE):
        terms = made.take(step, 8)
    assert bool(terms.isfinite().all())
    assert (isinstance(step, GraphStep) and not step.failed) or made.said


@pytest.mark.parametrize("prior", [priors.StudentT(), priors.ARD(), priors.Horseshoe()])
def test_densities_of_torch_become_graphs(prior: priors.Prior) -> None:
    made = Made(prior=prior)
    step = made.step()
    with isolated(7, device=DEVICE):
        terms = made.take(step, 8)
    assert bool(terms.isfinite().all())
    assert isinstance(step, GraphStep)
    assert step.one is not None
    assert made.said == []


@pytest.mark.parametrize("fast", ["eager", "compiled"])
def test_a_graph_is_told_of_a_network_that_changed(fast: str) -> None:
    made = Made()
    step = made.step(fast)
    assert isinstance(step, GraphStep), made.said
    with isolated(7, device=DEVICE):
        made.take(step, 12)
        before = deepcopy([made.guide.state_dict(), made.optimizer.state_dict(), random_state(DEVICE)])
        step.check_still(made.rows, made.model)
        after = [made.guide.state_dict(), made.optimizer.state_dict(), random_state(DEVICE)]
        torch.testing.assert_close(after, before, rtol=0, atol=0)
        made.model.network[2].p = 0.9
        with pytest.raises(ValueError, match="the network changed in training"):
            step.check_still(made.rows, made.model)


def test_a_network_that_synchronises_trains_without_a_graph() -> None:
    made = Made()
    made.model.network.append(Synchronises())
    step = made.step()
    assert not isinstance(step, GraphStep)
    (said,) = made.said
    assert said.startswith("training without a CUDA graph")


def test_a_failed_capture_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobbb.accelerated.dispatch.lost_by", lambda *args: None)
    made = [Made() for _ in range(2)]
    for one in made:
        one.model.network.append(Synchronises())
    for one, graph in zip(made, (True, False), strict=True):
        step = one.step()
        with isolated(7, device=DEVICE):
            one.take(step if graph else step.step, 10)
    assert len(made[0].said) == 1
    agree(*made, exactly=True)


@pytest.mark.parametrize("fast", ["eager", "compiled"])
@pytest.mark.parametrize("inference", [SVI(), MAP()])
def test_chains_side_by_side_end_as_one_after_the_other(
    fast: str, inference: Inference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five chains with graphs of four steps and a short last batch, bit for bit."""
    monkeypatch.setattr(GraphStep, "MANY", 4)
    with isolated(1):
        data = from_arrays(torch.randn(11 * B + 3, 4), torch.randn(11 * B + 3, 2), task="regression")

    def made() -> BayesianNetwork:
        network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        return BayesianNetwork(network, priors.ScaleMixture(), likelihoods.Normal(0.5))

    ends = []
    for together in (True, False):
        heard = Listens()
        posterior = fit(
            made, MeanFieldNormal if isinstance(inference, SVI) else None, data,
            chains=5, together=together, epochs=4, batch_size=B, optim=ADAM, fast=fast, seed=1,
            inference=inference, progress=heard,
        )  # fmt: skip
        assert not [line for line in heard.said if line.startswith(("training", "the chains"))]
        ends.append([p.detach() for _, guide in posterior.chains for p in guide.parameters()])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class Sides(Environment):
    features, actions = 2, 2

    def draw(self, random: torch.Generator) -> Round:
        pay = torch.eye(2)[int(torch.randint(2, (), generator=random))]
        return Round(context=pay, expected=pay, rewards=pay)


def test_a_bandit_plays_as_on_a_machine_without_a_device() -> None:
    with isolated(0):
        learner = PointLearner([nn.Linear(4, 1)], likelihoods.Normal(0.5), lr=0.05, compiled=False)
    agent = EpsilonGreedy(learner, 2, 2, [1], batch_size=8, updates=4)
    games = Play(Sides(), agent, 10, [1]).run()
    assert games.rounds == 10
    assert learner.update.loc.device.type == "cpu"


@pytest.mark.parametrize("fast", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("prior", "likelihood"),
    [
        (priors.Learned(priors.Normal()), likelihoods.Normal(0.5)),
        (priors.Learned(priors.Normal(), per="input"), likelihoods.Normal(0.5)),
        (priors.Normal(), likelihoods.Normal(pyro.distributions.HalfNormal(1.0))),
    ],
)
def test_learned_scales_and_latent_noise_train(
    prior: priors.Prior, likelihood: likelihoods.Likelihood, fast: str
) -> None:
    with isolated(0):
        x = torch.randn(64, 4)
        data = from_arrays(x, 3 * x[:, :2].tanh(), task="regression")
        model = BayesianNetwork(nn.Linear(4, 2), prior, likelihood)
    adagrad = partial(torch.optim.Adagrad, lr=0.1)  # which torch has no fused form of on the device
    from_zero = partial(MeanFieldNormal, init_loc=Constant(0.0))  # else the first epoch turns on the network
    guide = AutoNormal if "likelihood.scale" in model.latents else from_zero
    posterior = fit(model, guide, data, epochs=30, batch_size=16, optim=adagrad, fast=fast, seed=1)
    assert posterior.model.device.type == DEVICE
    energies = [row.free_energy for row in posterior.history.rows]
    assert energies[-1] < energies[0]


def test_what_follows_a_fit_takes_data_of_the_cpu_and_scores_of_the_device() -> None:
    with isolated(0):
        x = torch.randn(96, 4)
        y = (x[:, 0] > 0).long()
        data = from_arrays(x, y, task="classification", test=(x[:24], y[:24]))
        model = BayesianNetwork(nn.Linear(4, 2), priors.Normal(), likelihoods.Categorical())
    posterior = fit(model, MeanFieldNormal, data, epochs=2, batch_size=24, seed=1)
    assert to_arviz(posterior, data)["predictions_constant_data"]["x"].shape == (24, 4)
    prediction = posterior.predict(x[:24], draws=20)
    assert isinstance(prediction, ClassPrediction)
    assert prediction.predictive_entropy.device.type == DEVICE
    assert 0 <= auroc(prediction.predictive_entropy, prediction.predictive_entropy + 1) <= 1
    confident = certainty(prediction.probs.cpu(), y[:24].to(DEVICE), torch.ones(24, device=DEVICE))
    assert confident == certainty(prediction.probs, y[:24], torch.ones(24))


def test_a_network_that_lies_on_the_device_takes_prior_and_likelihood_along() -> None:
    with isolated(0):
        rows = Split(torch.randn(24, 4), torch.randn(24, 2))
        network = nn.Linear(4, 2).to(DEVICE)
    posterior = Laplace().around(BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.5)), rows)
    posterior.model.likelihood = likelihoods.Normal(0.3)
    assert posterior.predict(rows.x, rows.y).log_likelihood.device.type == DEVICE


@pytest.mark.filterwarnings("ignore::UserWarning")  # cuDNN's, of weights that do not lie side by side
@pytest.mark.parametrize("inference", [SVI(), Laplace(structure="full", linearised=False)])
def test_a_recurrent_network_trains(inference: Inference) -> None:
    with isolated(0):
        data = from_arrays(torch.randn(24, 5, 4), torch.randn(24, 4), task="regression")
        network = Chain(nn.GRU(4, 4, batch_first=True), last)
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.5))
    guide = MeanFieldNormal if isinstance(inference, SVI) else None
    posterior = fit(model, guide, data, epochs=2, inference=inference)
    assert bool(posterior.predict(data.train.x).mean.isfinite().all())
