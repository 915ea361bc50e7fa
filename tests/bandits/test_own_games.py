"""Bandits of a user's own: networks, environments and seeds that are not the paper's."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobbb import likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb.bandits import (
    Environment,
    EpsilonGreedy,
    MeanFieldLearner,
    Play,
    PointLearner,
    Round,
    ThompsonSampling,
)
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.mean_field import MeanFieldNormal

WIDTH = 2 + 3


class Lines(Environment):
    """Rewards that are linear in the context."""

    features, actions = 2, 3

    def __init__(self, pay: tuple[float, ...] = (1.0, -1.0, 0.5)) -> None:
        self.pay = pay
        self._gap = 0.1

    def draw(self, random: torch.Generator) -> Round:
        context = torch.randn(2, generator=random)
        expected = torch.tensor(self.pay) * context.sum()
        return Round(context, expected, expected + self._gap * torch.randn(3, generator=random))


def learner(
    seeds: Any = (0, 1), rho: float = -1.0, network: nn.Module | None = None, prior: Any = None
) -> MeanFieldLearner:
    torch.manual_seed(0)
    network = network or nn.Linear(WIDTH, 1)
    model = BayesianNetwork(network, prior or priors.Normal(), likelihoods.Normal(0.3), 50)
    guides = [MeanFieldNormal(model, init_rho=rho) for _ in range(len(seeds))]
    return MeanFieldLearner(model, guides, seeds, width=WIDTH, compiled=False)


def agent(kind: Any = ThompsonSampling, seeds: Any = (0, 1), **options: Any) -> Any:
    return kind(learner(seeds), 2, 3, seeds, batch_size=4, updates=1, **options)


class Scaled(nn.Module):
    """A network with a fixed part of its own, as a randomised prior function has."""

    def __init__(self, scale: float, power: float = 1.0) -> None:
        super().__init__()
        self.f = nn.Linear(WIDTH, 1)
        self.register_buffer("scale", torch.tensor(scale))
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x * self.scale) * self.power


def point(*networks: nn.Module, likelihood: Any = None) -> PointLearner:
    return PointLearner(networks, likelihood or likelihoods.Normal(scale=1.0), compiled=False)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (Scaled(1.0), Scaled(2.0), "buffers"),
        (Scaled(1.0), Scaled(1.0, power=2.0), "constants of the network"),
        (nn.Sequential(nn.Linear(5, 1), nn.ReLU()), nn.Sequential(nn.Linear(5, 1), nn.Tanh()), "network"),
    ],
)
def test_plain_networks_differ_in_their_weights_alone(one: nn.Module, other: nn.Module, what: str) -> None:
    """All runs take the first one's `forward` and buffers."""
    with pytest.raises(ValueError, match=f"{what} of network 1 is another than of network 0"):
        point(one, other)
    assert point(one, deepcopy(one)).runs == 2


@pytest.mark.parametrize("train", [False, True])
def test_a_plain_network_gives_one_mean_for_each_row(train: bool) -> None:
    """One output for each action, an easy slip, would be trained to one reward, and its first taken."""
    wide = point(nn.Linear(WIDTH, 3))
    with pytest.raises(ValueError, match=r"one mean for each row of a network's output of shape \(3,\)"):
        wide.train(torch.zeros(1, 4, WIDTH), torch.zeros(1, 4, 1)) if train else wide.predict(
            torch.zeros(1, 3, WIDTH)
        )
    for network, likelihood in (
        (nn.Linear(WIDTH, 6), likelihoods.HeteroscedasticNormal()),
        (nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0)), likelihoods.Normal(scale=1.0)),
        (nn.Linear(WIDTH, 2), likelihoods.Categorical()),
    ):
        with pytest.raises(ValueError, match="does not give one mean for each row"):
            point(network, likelihood=likelihood).predict(torch.zeros(1, 3, WIDTH))
    assert point(nn.Linear(WIDTH, 2), likelihood=likelihoods.HeteroscedasticNormal()).predict(
        torch.zeros(1, 3, WIDTH)
    ).shape == (1, 3)  # fmt: skip


class Drifting(Lines):
    """Turns its rewards round after a while, by a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def draw(self, random: torch.Generator) -> Round:
        self.rounds += 1
        return super().draw(random)


def test_an_environment_that_a_round_changes_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Drifting.draw changed Drifting.rounds, .* give no path"):
        Play(Drifting(), agent(), 3, [0, 1], path=tmp_path / "game.pt").run()
    assert Play(Drifting(), agent(), 3, [0, 1]).run().rounds == 3


class Wider(Lines):
    """Has a fourth action from its third round on."""

    rounds = 0

    def draw(self, random: torch.Generator) -> Round:
        Wider.rounds += 1
        context, expected, rewards = super().draw(random)
        more = torch.full((1,), 100.0) if Wider.rounds > 2 else torch.zeros(0)
        return Round(context, torch.cat([expected, more]), rewards)


class Tuples(Lines):
    def draw(self, random: torch.Generator) -> Round:
        return tuple(super().draw(random))  # type: ignore[return-value]


class OfArrays(Lines):
    def draw(self, random: torch.Generator) -> Round:
        return Round(*(part.numpy() for part in super().draw(random)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (Wider, r"Wider.draw: expected must be a tensor of shape \(3,\), got \(4,\)"),
        (OfArrays, "OfArrays.draw: context must be a tensor"),
        (Tuples, r"Tuples.draw must return a Round, got \(tensor"),
    ],
)
def test_every_round_is_checked(environment: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Play(environment(), agent(), 5, [0, 1]).run()


@pytest.mark.parametrize("changed", ["pay", "_gap", "scale", "power", "plain"])
def test_a_game_is_resumed_with_what_it_was_played(changed: str, tmp_path: Path) -> None:
    def played(new: bool, steps: int) -> None:
        environment = Lines((1.0, 1.0, 1.0) if new and changed == "pay" else (1.0, -1.0, 0.5))
        environment._gap = 5.0 if new and changed == "_gap" else 0.1
        network = Scaled(
            5.0 if new and changed == "scale" else 1.0, 5.0 if new and changed in ("power", "plain") else 1.0
        )
        made = ThompsonSampling(learner([0], network=network), 2, 3, [0])
        if changed == "plain":
            torch.manual_seed(0)
            made = EpsilonGreedy(point(network), 2, 3, [0])
        Play(environment, made, steps, [0], path=tmp_path / "game.pt").run()

    played(False, 2)
    with pytest.raises(CheckpointError, match=r"game.pt"):
        played(True, 4)
    played(False, 4)


def test_a_game_resumes_whatever_weights_the_network_began_with(tmp_path: Path) -> None:
    """Unless the prior is centred on them."""

    def played(start: float, steps: int, name: str, prior: Any = None) -> Tensor:
        network = nn.Linear(WIDTH, 1)
        nn.init.constant_(network.weight, start)
        mine = learner([0], network=network, prior=prior)
        made = ThompsonSampling(mine, 2, 3, [0], batch_size=4, updates=1)
        Play(Lines(), made, steps, [0], path=tmp_path / name).run()
        return mine.update.loc

    played(0.0, 2, "game.pt")
    assert torch.equal(played(1.0, 4, "game.pt"), played(0.0, 4, "whole.pt"))
    played(0.0, 2, "centred.pt", priors.Centred())
    with pytest.raises(CheckpointError, match="made with trained weights"):
        played(1.0, 4, "centred.pt", priors.Centred())


def test_a_state_is_a_copy() -> None:
    """What is learnt after it does not change it."""
    mine, environment = agent(), Lines()

    def rounds(count: int) -> Tensor:
        random = torch.Generator().manual_seed(1)
        for _ in range(count):
            context, _, rewards = environment.draw(random)
            contexts = context.expand(2, -1)
            mine.learn(contexts, actions := mine.act(contexts), rewards[actions])
        return mine.learner.update.loc.clone()

    rounds(5)
    state = mine.state_dict()
    first = rounds(5)
    mine.load_state_dict(state)
    assert torch.equal(rounds(5), first)


def test_greedy_takes_the_action_of_the_greatest_expectation() -> None:
    """Of a posterior, and not of one draw from it."""
    runs = range(20)
    mine = EpsilonGreedy(learner(runs), 2, 3, runs, epsilon=0.0, draws=600)
    mine.learner.update.loc[:, :WIDTH] = torch.tensor([0.0, 0.0, 0.0, 0.3, 0.0])  # of the second action more
    # 16 standard deviations of what 600 draws leave of a difference between two actions; one draw has 0.45
    assert {*mine.act(torch.ones(20, 2)).tolist()} == {1}


def test_actions_are_pulled_in_turn_though_rewards_come_later() -> None:
    mine = agent(pulls=2)
    assert [int(mine.act(torch.zeros(2, 2))[0]) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("seeds", [np.arange(2), torch.arange(2), [np.int64(0), np.int64(1)], range(2)])
def test_seeds_may_be_an_array(seeds: Any) -> None:
    games = Play(Lines(), agent(seeds=seeds), 3, seeds).run()
    assert torch.equal(games.actions, Play(Lines(), agent(seeds=[0, 1]), 3, [0, 1]).run().actions)


@pytest.mark.parametrize("bayesian", [False, True])
def test_rewards_may_be_zeros_and_ones(bayesian: bool) -> None:
    class Clicks(Lines):
        def draw(self, random: torch.Generator) -> Round:
            context, expected, _ = super().draw(random)
            chance = expected.sigmoid()
            return Round(context, chance, (torch.rand(3, generator=random) < chance).float())

    network, likelihood = nn.Linear(WIDTH, 1), likelihoods.Bernoulli()
    model = BayesianNetwork(network, priors.Normal(), likelihood, 50)
    mine: Any = point(network, likelihood=likelihood)
    if bayesian:
        mine = MeanFieldLearner(model, [MeanFieldNormal(model)], [0], width=WIDTH, compiled=False)
    games = Play(Clicks(), EpsilonGreedy(mine, 2, 3, [0], batch_size=4, updates=1), 20, [0]).run()
    assert games.rounds == 20


def test_what_differs_in_nothing_is_not_refused() -> None:
    """A number that equals nothing, not even itself; dropout that is off; a seed below 0."""
    network = nn.Sequential(nn.Linear(WIDTH, 3), nn.Dropout(0.5), nn.Linear(3, 1)).eval()
    network.start = float("nan")  # type: ignore[assignment]
    mine = point(network, deepcopy(network))
    assert Play(Lines(), EpsilonGreedy(mine, 2, 3, [-1, 4]), 2, [-1, 4]).run().rounds == 2


def test_no_finite_mean_is_named() -> None:
    cauchy = point(nn.Linear(WIDTH, 1), likelihood=likelihoods.StudentT(df=1.0, scale=1.0))
    with pytest.raises(ValueError, match="rewards have no finite mean under StudentT"):
        cauchy.predict(torch.zeros(1, 3, WIDTH))


class Lazy(Lines):
    """Keeps what its first round has found, and a log of all of them."""

    def __init__(self, log: bool) -> None:
        super().__init__()
        self.ready, self.best, self.log = False, float("nan"), [] if log else None

    def draw(self, random: torch.Generator) -> Round:
        self.ready = True
        if self.log is not None:
            self.log.append(1)
        return super().draw(random)


def test_what_the_first_round_keeps_for_the_others_is_no_state(tmp_path: Path) -> None:
    for steps in (3, 6):
        Play(Lazy(log=False), agent(), steps, [0, 1], path=tmp_path / "game.pt").run()
    with pytest.raises(ValueError, match=r"changed Lazy.log"):
        Play(Lazy(log=True), agent(), 3, [0, 1], path=tmp_path / "other.pt").run()
    assert not (tmp_path / "other.pt").exists()


class Holding(Lines):
    """Has something of its own, which may turn its rewards round."""

    def __init__(self, own: Any, read: Callable[[Any], Any] = lambda own: None) -> None:
        super().__init__()
        self.own, self.read = own, read

    def draw(self, random: torch.Generator) -> Round:
        self.read(self.own)
        return super().draw(random)


def plain_agent(kind: Any = EpsilonGreedy) -> Any:
    return kind(point(nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)), 2, 3, [0, 1], batch_size=4, updates=1)


def net(bias: float) -> nn.Linear:
    made = nn.Linear(2, 1)
    nn.init.constant_(made.weight, 1.0)
    nn.init.constant_(made.bias, bias)
    return made


GENERATORS: list[tuple[Any, Any]] = [
    (lambda seed: torch.Generator().manual_seed(seed), lambda own: torch.rand(1, generator=own)),
    (np.random.default_rng, lambda own: own.normal()),
    (np.random.RandomState, lambda own: own.normal()),
    (Random, lambda own: own.random()),
]


@pytest.mark.parametrize("make", [net, *(make for make, _ in GENERATORS)])
def test_what_an_environment_holds_is_the_same_when_a_game_is_resumed(make: Any, tmp_path: Path) -> None:
    def played(seed: int, steps: int) -> None:
        Play(Holding(make(seed)), plain_agent(), steps, [0, 1], path=tmp_path / "game.pt").run()

    played(0, 2)
    played(0, 3)
    with pytest.raises(CheckpointError, match=r"game.pt was made with environment own"):
        played(1, 4)


@pytest.mark.parametrize(("make", "read"), GENERATORS)
def test_a_game_in_an_environment_with_its_own_generator_is_not_resumed(
    make: Any, read: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"Holding.draw changed Holding.own"):
        Play(Holding(make(0), read), plain_agent(), 3, [0, 1], path=tmp_path / "game.pt").run()


def test_no_graph_is_kept_of_a_round() -> None:
    class Differentiable(Lines):
        def draw(self, random: torch.Generator) -> Round:
            context, expected, rewards = super().draw(random)
            weight = torch.ones((), requires_grad=True)
            return Round(context * weight, expected * weight, rewards * weight)

    mine = plain_agent()
    games = Play(Differentiable(), mine, 3, [0, 1]).run()
    mine.learn(torch.ones(2, 2, requires_grad=True), torch.tensor([0, 1]), torch.ones(2, requires_grad=True))
    for kept in (games.expected, games.realised, mine.replay.x, mine.replay.y):
        assert not kept.requires_grad


class Always(ThompsonSampling):
    """Takes these actions."""

    given: Any

    def choose(self, rows: Tensor) -> Tensor:
        return self.given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.tensor([0, 3]), r"whole numbers from 0 to 2, got \[0, 3\]"),
        (torch.tensor([-1, 0]), r"whole numbers from 0 to 2, got \[-1, 0\]"),
        (torch.tensor([0.0, 1.0]), r"whole numbers from 0 to 2, got \[0.0, 1.0\]"),
        (torch.tensor([True, False]), "whole numbers from 0 to 2"),
        (torch.tensor([[0], [1]]), r"a tensor of shape \(2,\), got \(2, 1\)"),
        (torch.tensor([0]), r"a tensor of shape \(2,\), got \(1,\)"),
        ([0, 1], r"a tensor of shape \(2,\), got \[0, 1\]"),
    ],
)
def test_an_own_rule_chooses_an_action_for_each_run(given: Any, said: str) -> None:
    mine = plain_agent(Always)
    mine.given = given
    with pytest.raises(ValueError, match=f"^Always.choose: actions must be {said}"):
        Play(Lines(), mine, 1, [0, 1]).run()
    mine.given = torch.tensor([0, 2], dtype=torch.int32)
    assert Play(Lines(), mine, 1, [0, 1]).run().actions.tolist() == [[0], [2]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"contexts": torch.zeros(1, 2)}, r"contexts must be a tensor of shape \(2, 2\), got \(1, 2\)"),
        ({"rewards": torch.zeros(1)}, r"rewards must be a tensor of shape \(2,\), got \(1,\)"),
        ({"rewards": torch.tensor([0.0, float("nan")])}, r"contexts and rewards must be finite, got .*nan"),
        ({"actions": torch.tensor([0, 7])}, r"actions must be whole numbers from 0 to 2, got \[0, 7\]"),
    ],
)
def test_an_outcome_is_one_of_each_run(changed: dict[str, Tensor], said: str) -> None:
    mine = plain_agent()
    given = {"contexts": torch.zeros(2, 2), "actions": torch.tensor([0, 1]), "rewards": torch.zeros(2)}
    with pytest.raises(ValueError, match=f"^{said}"):
        mine.learn(**{**given, **changed})
    assert mine.replay.seen == 0
    with pytest.raises(ValueError, match=r"^contexts must be a tensor of shape \(2, 2\), got \(2, 5\)"):
        mine.act(torch.zeros(2, 5))


@pytest.mark.parametrize(
    "make",
    [
        lambda network: learner([0], network=network),
        lambda network: point(nn.Linear(WIDTH, 1), network),
    ],
    ids=["Bayesian", "plain"],
)
def test_another_precision_is_refused(make: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(ValueError, match=r"'weight' is torch.float64, but a bandit's networks are float32"):
        make(nn.Linear(WIDTH, 1).double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_contexts_are_of_any_real_type(dtype: torch.dtype) -> None:
    contexts = torch.tensor([[1.0, 2.0], [-3.0, 0.0]])
    assert torch.equal(agent().act(contexts.to(dtype)), agent().act(contexts))
