"""The mushroom bandit: its table and rewards, the buffer, the agents, and the batched update."""

import json
import math
from functools import partial
from importlib import resources

import numpy as np
import pytest
import torch
from torch import nn

from experiments._runner.build import ConfigError
from experiments.paper import bandit, regret
from paths import ROOT
from pyrobbb import likelihoods, priors
from pyrobbb._support import checkpoint
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.bandits import (
    Environment,
    EpsilonGreedy,
    Games,
    HeadPerAction,
    MeanFieldLearner,
    Mushroom,
    Play,
    PointLearner,
    Replay,
    Round,
    ThompsonSampling,
)
from pyrobbb.bandits.mushroom import EAT, LEAVE, table
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.initializers import kaiming
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import perceptron
from pyrobbb.svi import ReferenceStep


class Sides(Environment):
    """Two arms; the context says which one pays 1, the other pays 0."""

    features, actions = 2, 2

    def draw(self, random):
        side = int(torch.randint(2, (), generator=random))
        pay = torch.eye(2)[side]
        return Round(context=pay, expected=pay, rewards=pay)


def bayesian(seeds, *, width=4, hidden=(8,), prior=None, scale=0.2, N=64, lr=1e-2, init_rho=-3.0):
    with isolated(0):
        net = perceptron(width, list(hidden), 1)
    model = BayesianNetwork(net, prior or priors.ScaleMixture(), likelihoods.Normal(scale), N)
    guides = [MeanFieldNormal(model, init_loc=kaiming, init_rho=init_rho) for _ in seeds]
    return MeanFieldLearner(model, guides, seeds, width=width, lr=lr, compiled=False)


def plain(seeds, *, width=4, hidden=(8,), lr=1e-2, lr_decay=0.0):
    nets = []
    for seed in seeds:
        with isolated(seed):
            nets.append(perceptron(width, list(hidden), 1))
    return PointLearner(nets, likelihoods.Normal(0.5), lr=lr, lr_decay=lr_decay, compiled=False)


# ---- A21: the environment


def test_the_table_has_the_counts_of_uci():
    contexts, edible = table()
    assert contexts.shape == (8124, 117)
    assert (int(edible.sum()), int((~edible).sum())) == (4208, 3916)
    assert torch.equal(contexts.sum(1), torch.full((8124,), 22.0))  # one level of each attribute
    assert set(contexts.unique().tolist()) == {0.0, 1.0}
    assert 2480.0 in contexts.sum(0).tolist()  # stalk-root unknown, a level of its own
    assert Mushroom().features + Mushroom().actions == 119


@pytest.mark.parametrize(
    ("behaviour", "per_step"), [("uniform", 4.9101), ("never", 2.5899), ("always", 7.2304)]
)
def test_expected_regret_per_step_is_the_analytic_one(behaviour, per_step):
    environment, random = Mushroom(), torch.Generator().manual_seed(5)
    regrets = []
    for _ in range(6000):
        given = environment.draw(random)
        if behaviour == "uniform":
            regrets.append(float(given.expected.max() - given.expected.mean()))
        else:
            action = EAT if behaviour == "always" else LEAVE
            regrets.append(float(given.expected.max() - given.expected[action]))
    regrets = torch.tensor(regrets)
    standard_error = float(regrets.std() / math.sqrt(len(regrets)))
    assert abs(float(regrets.mean()) - per_step) < 5 * standard_error


def test_rewards_are_those_of_the_paper():
    environment, random = Mushroom(), torch.Generator().manual_seed(3)
    rounds = [environment.check(environment.draw(random)) for _ in range(4000)]
    assert all(float(one.rewards[LEAVE]) == 0 == float(one.expected[LEAVE]) for one in rounds)
    edible = [float(one.rewards[EAT]) for one in rounds if one.expected[EAT] == 5]
    poisonous = torch.tensor([float(one.rewards[EAT]) for one in rounds if one.expected[EAT] == -15])
    assert set(edible) == {5.0}
    assert set(poisonous.tolist()) == {5.0, -35.0}
    assert len(edible) + len(poisonous) == 4000
    assert abs(float(poisonous.mean()) + 15) < 5 * 20 / math.sqrt(len(poisonous))
    random.manual_seed(3)
    for one in rounds[:20]:  # of the seed alone
        assert all(map(torch.equal, one, environment.draw(random)))


# ---- the buffer


def test_the_buffer_keeps_the_last_interactions_of_each_run_apart():
    replay = Replay(2, 1, capacity=3)
    with pytest.raises(ValueError, match="nothing to draw from"):
        replay.indices(1, 1, [torch.Generator()] * 2)
    for t in range(5):
        replay.add(torch.tensor([[float(t)], [10.0 + t]]), torch.tensor([0.1 * t, 1 + 0.1 * t]))
    randoms = [torch.Generator().manual_seed(s) for s in (0, 1)]
    indices = replay.indices(1, 200, randoms)[0]
    for drawn, seed in zip(indices, (0, 1), strict=True):
        assert torch.equal(drawn, torch.randint(3, (200,), generator=torch.Generator().manual_seed(seed)))
    x, y = replay.batch(indices)
    assert len(replay) == 3
    assert x.shape == y.shape == (2, 200, 1)
    assert set(x[0].flatten().tolist()) == {2.0, 3.0, 4.0}
    assert set(x[1].flatten().tolist()) == {12.0, 13.0, 14.0}
    assert torch.allclose(y, x * 0.1)


# ---- the batched update is Pyro's


@pytest.mark.parametrize(
    "prior",
    [priors.ScaleMixture(), priors.Normal(sigma=0.3), priors.FanInNormal()],
    ids=["mixture", "normal", "fan_in"],
)
def test_the_batched_update_is_the_step_of_trace_elbo_on_the_same_noise(prior):
    seeds, width, B, N = [3, 4, 5], 6, 16, 64
    learner = bayesian(seeds, width=width, hidden=(7, 5), prior=prior, scale=2.0, N=N, lr=1e-3)
    size = learner.update.loc.shape[1]
    noise, share = torch.randn(4, len(seeds), size), 0.7
    x = torch.randn(4, len(seeds), B, width)
    y = 3 * torch.randn(4, len(seeds), B, 1)
    references = []
    for r in range(len(seeds)):
        guide = MeanFieldNormal(learner.model, init_rho=-3.0)
        with isolated(0):
            guide(x[0, 0])
        with torch.no_grad():
            guide.loc.copy_(learner.guides[r].loc)
            guide.rho.copy_(learner.guides[r].rho)
        optimizer = torch.optim.Adam([guide.loc, guide.rho], lr=1e-3)
        references.append((guide, ReferenceStep(learner.model, guide, optimizer)))
    before = learner.update.loc.clone()
    for t in range(4):
        learner.update(x[t], y[t], share, noise[t])
        for r, (_, step) in enumerate(references):
            with isolated(), Injected(noise[t, r]):
                step(x[t, r], y[t, r], share, B / N)
    learner.write_back()
    for r, (guide, _) in enumerate(references):
        assert (learner.guides[r].loc - guide.loc).abs().max() < 1e-5
        assert (learner.guides[r].rho - guide.rho).abs().max() < 1e-5
    assert (learner.update.loc - before).abs().max() > 2e-3  # and it did move


def test_a_run_does_not_depend_on_the_others_in_its_batch():
    together, alone = bayesian([7, 8]), bayesian([8])
    assert torch.equal(together.update.loc[1], alone.update.loc[0])
    x, y = torch.randn(2, 16, 4), torch.randn(2, 16, 1)
    for _ in range(3):
        together.train(x, y, 0.1)
        alone.train(x[1:], y[1:], 0.1)
    assert torch.allclose(together.update.loc[1], alone.update.loc[0], atol=1e-6)
    assert not torch.allclose(together.update.loc[1], together.update.loc[0], atol=1e-2)


def test_the_noise_of_a_run_is_standard_normal_and_never_the_same_twice():
    learner = bayesian([1, 2], width=60, hidden=(100,))
    drawn = [
        values.clone()
        for noise, time in ((learner.noise, 0), (learner.noise, 1), (learner.choice_noise, 0))
        for values in noise.draw(time)
    ]
    noise = torch.stack(drawn).double()
    n = noise.shape[1]
    assert (noise.mean(1).abs() < 5 / math.sqrt(n)).all()
    assert ((noise.var(1) - 1).abs() < 5 * math.sqrt(2 / n)).all()
    correlation = torch.corrcoef(noise) - torch.eye(len(noise), dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(n)
    assert torch.equal(learner.noise.draw(0), noise[:2].float())  # a function of seed and time


@pytest.mark.parametrize("lr_decay", [0.0, 0.5])
def test_plain_networks_follow_torch_adam(lr_decay):
    learner = plain([1, 2], lr_decay=lr_decay)
    nets = []
    for seed in (1, 2):
        with isolated(seed):
            nets.append(perceptron(4, [8], 1))
    x, y = torch.randn(2, 16, 4), torch.randn(2, 16, 1)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in nets]
    for t in range(3):
        learner.train(x, y)
        for r, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + lr_decay * t)
            optimizer.zero_grad()
            (0.5 * ((net(x[r]) - y[r]) / 0.5).square().sum()).backward()
            optimizer.step()
    for r, net in enumerate(nets):
        flat = torch.cat([p.detach().flatten() for p in net.parameters()])
        assert torch.allclose(learner.update.loc[r], flat, atol=1e-6)


def test_write_back_gives_guides_that_predict_as_the_learner():
    learner = bayesian([1], init_rho=-30.0)
    x, y = torch.randn(1, 16, 4), torch.randn(1, 16, 1)
    for _ in range(5):
        learner.train(x, y, 0.1)
    (guide,) = learner.write_back()
    loc, _ = guide.loc_and_scale()
    expected = learner.model.apply_network(loc, x[0])[:, 0]
    assert torch.allclose(learner.predict(x, 3)[0], expected, atol=1e-4)


def test_each_prediction_averages_over_draws_of_its_own():
    learner = bayesian([1, 2], init_rho=-1.0)
    rows = torch.linspace(-1, 1, 2 * 5 * 4).reshape(2, 5, 4)
    for times in ((0, 1, 2), (3,)):
        for run, guide in enumerate(learner.guides):
            sigma = torch.nn.functional.softplus(guide.rho)
            draws = [guide.loc + sigma * learner.choice_noise.draw(t)[run] for t in times]
            outputs = [learner.model.apply_network(guide.split(w), rows[run])[:, 0] for w in draws]
            expected = torch.stack(outputs).mean(0)
            learner.choices = times[0]
            assert torch.allclose(learner.predict(rows, len(times))[run], expected, atol=1e-5)
        assert learner.choices == times[-1] + 1


# ---- agents


def sides(make, seeds, steps, updates, path=None):
    learner = make(seeds, lr=0.03, hidden=(16,))
    options = {"capacity": 64, "batch_size": 16, "updates": updates, "pulls": 3}
    if make is bayesian:
        agent = ThompsonSampling(learner, 2, 2, seeds, **options)
    else:
        agent = EpsilonGreedy(learner, 2, 2, seeds, epsilon=[0.05] * len(seeds), **options)
    return Play(Sides(), agent, steps, seeds, path=path).run()


@pytest.mark.parametrize("make", [bayesian, plain], ids=["thompson", "greedy"])
def test_agents_learn_a_simple_bandit(make):
    games = sides(make, list(range(40)), 80, 10)
    assert games.actions[:, :6].tolist() == [[0, 1] * 3] * 40  # each action three times before it chooses
    # by chance 0.5; a run in ten fails: over four sets of 40 0.05, sd 0.02 (Thompson), 0.07, sd 0.02 (greedy)
    assert games.expected[:, 40:].mean() < 0.25
    assert torch.equal(games.cumulative()[:, -1], games.expected.double().sum(1))
    assert torch.equal(games.expected, games.realised)  # nothing is left to luck here


def test_regret_is_what_the_best_expectation_is_above_the_action_or_its_reward():
    class Fixed(Environment):
        features, actions = 1, 3

        def draw(self, random):
            return Round(torch.ones(1), torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.5, 2.0, 9.0]))

    agent = EpsilonGreedy(plain([1]), 1, 3, [1], pulls=1)  # plays one action after the other
    games = Play(Fixed(), agent, 3, [1]).run()
    assert games.expected.tolist() == [[2, 0, 1]]
    assert games.realised.tolist() == [[2.5, 1, -6]]
    assert games.cumulative().tolist() == [[2, 2, 3]]
    assert games.cumulative(realised=True).tolist() == [[2.5, 3.5, -2.5]]
    assert games.actions.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("make", [bayesian, plain], ids=["thompson", "greedy"])
def test_an_interrupted_play_resumes_exactly(make, tmp_path):
    whole = sides(make, [1, 2], 14, 3, tmp_path / "whole.pt")
    sides(make, [1, 2], 9, 3, tmp_path / "half.pt")
    resumed = sides(make, [1, 2], 14, 3, tmp_path / "half.pt")
    assert resumed.rounds == 14
    assert torch.equal(whole.actions, resumed.actions)
    assert torch.equal(whole.expected, resumed.expected)
    one, other = (checkpoint.load(tmp_path / name)["agent"]["learner"] for name in ("whole.pt", "half.pt"))
    one, other = (state.get("update", state) for state in (one, other))
    for a, b in zip(one["moments"], other["moments"], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(sides(make, [1, 2], 14, 3, tmp_path / "half.pt").actions, whole.actions)  # it was over
    with pytest.raises(CheckpointError, match="2 runs of 14 rounds; 2 runs of 10"):
        sides(make, [1, 2], 10, 3, tmp_path / "half.pt")


def test_epsilon_is_the_share_of_random_actions():
    learner = plain([1, 2, 3])
    agent = EpsilonGreedy(learner, 2, 2, [1, 2, 3], epsilon=[0.0, 0.5, 1.0], updates=0)
    games = Play(Sides(), agent, 300, [1, 1, 1]).run()
    best = games.actions[0]  # the same contexts for all three, and nobody learns
    rows = torch.eye(2)
    greedy = [int(agent.act(rows[c].expand(3, 2))[0]) for c in (0, 1)]
    assert set(best.tolist()) <= set(greedy)
    agent.learner.update.loc[:] = agent.learner.update.loc[0]
    games = Play(Sides(), agent, 300, [1, 1, 1]).run()
    other = (games.actions != games.actions[0]).double().mean(1)
    assert abs(float(other[1]) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 300)
    assert abs(float(other[2]) - 0.5) < 5 * math.sqrt(0.25 / 300)


def test_the_time_played_is_counted_and_decides_when_to_save(tmp_path, monkeypatch):
    path, now, saved = tmp_path / "game.pt", [100.0], []

    class Slow(Sides):
        def draw(self, random):
            now[0] += 2
            return super().draw(random)

    def played(steps):
        agent = EpsilonGreedy(plain([1]), 2, 2, [1], updates=0)
        game = Play(Slow(), agent, steps, [1], path=path, checkpoint_seconds=4)
        return game.run(lambda _: saved.append(checkpoint.load(path)["rounds"] if path.exists() else 0))

    monkeypatch.setattr("pyrobbb.bandits.play.monotonic", lambda: now[0])
    monkeypatch.setattr("pyrobbb.bandits.play.process_time", lambda: now[0] / 4)
    games = played(7)
    assert saved == [0, 0, 2, 2, 4, 4, 6]  # before each round's own
    assert (games.seconds, games.cpu_seconds) == (14, 3.5)
    games = played(8)
    assert saved[7:] == [7]
    assert (games.seconds, games.cpu_seconds) == (16, 4)


@pytest.mark.parametrize("rule", [ThompsonSampling, partial(EpsilonGreedy, epsilon=0.0)])
def test_the_first_of_the_best_actions_is_taken_on_average_over_the_draws(rule):
    class Known(PointLearner):
        def predict(self, rows, draws=1):
            assert draws == 7
            return torch.tensor([[0.0, 2.0, 1.0], [2.0, 0.0, 2.0]])

    known = Known([perceptron(4, [], 1)] * 2, likelihoods.Normal(1.0), compiled=False)
    assert rule(known, 1, 3, [1, 2], draws=7).act(torch.zeros(2, 1)).tolist() == [1, 0]


def test_random_actions_are_drawn_from_the_seeds_of_the_runs():
    agent = EpsilonGreedy(plain([1, 2]), 2, 2, [8, 9], epsilon=1.0)
    randoms = [torch.Generator().manual_seed(seed) for seed in (8, 9)]
    for _ in range(20):
        for random in randoms:
            torch.rand((), generator=random)  # whether it explores
        expected = [int(torch.randint(2, (), generator=random)) for random in randoms]
        assert agent.act(torch.zeros(2, 2)).tolist() == expected


def test_the_share_of_the_kl_follows_the_buffer_or_its_capacity():
    class Spy(PointLearner):
        def train(self, x, y, share=0.0):
            self.seen.append(share)

    def shares(kl_over):
        spy = Spy([perceptron(4, [3], 1)], likelihoods.Normal(0.1), compiled=False)
        spy.seen = []
        agent = EpsilonGreedy(spy, 2, 2, [1], capacity=8, batch_size=4, updates=2, kl_over=kl_over)
        Play(Sides(), agent, 10, [1]).run()
        return spy.seen[::2]

    assert shares("held") == [4.0, 2.0, 4 / 3, 1.0, 0.8, 4 / 6, 4 / 7, 0.5, 0.5, 0.5]
    assert shares("capacity") == [0.5] * 10


def test_training_comes_every_so_many_interactions():
    learner = plain([1])
    agent = EpsilonGreedy(learner, 2, 2, [1], every=5, updates=3)
    Play(Sides(), agent, 14, [1]).run()
    assert learner.update.steps == 2 * 3


def test_a_head_per_action_sees_the_context_alone():
    body = torch.nn.Linear(3, 2)
    head = HeadPerAction(body, 2)
    x = torch.tensor([[1.0, 2.0, 3.0, 0.0, 1.0]])
    assert torch.allclose(head(x)[0, 0], body(x[:, :3])[0, 1])
    assert torch.equal(head(x[None]), head(x)[None])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpsilonGreedy(plain([1]), 2, 2, [1], epsilon=1.5), r"epsilon must lie in \[0, 1\]"),
        (lambda: EpsilonGreedy(plain([1]), 2, 2, [1], epsilon=[0.1, 0.2]), "one value per run"),
        (lambda: ThompsonSampling(bayesian([1]), 2, 2, [1], draws=0), "draws must be a whole number"),
        (lambda: ThompsonSampling(bayesian([1]), 2, 2, [1], kl_over="all"), "kl_over must be one of held"),
        (
            lambda: ThompsonSampling(bayesian([1]), 2, 2, [1, 2]),
            "seeds must be one for each of 1 runs",
        ),
        (
            lambda: Play(Sides(), EpsilonGreedy(plain([1]), 2, 2, [1]), 5, [2**64 - 1]),
            r"seeds must lie between -2\^63 and 2\^63, got \[18446744073709551615\]",
        ),
        (lambda: bayesian([]), "each run needs a guide and a seed"),
        (lambda: Play(Mushroom(), EpsilonGreedy(plain([1]), 2, 2, [1]), 5, [1]), "Mushroom has 117 features"),
        (lambda: Replay(1, 3, capacity=0), "capacity must be a whole number of at least 1"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- A22


def test_what_is_said_of_the_first_choices_is_what_was_played(tmp_path):
    words = ["steps=12", "seeds=[1,2]", "hidden=[4]", "updates=1", "compiled=false", "arms=[thompson]"]
    config = bandit.configuration([*words, f"folder={tmp_path}"])
    bandit.play("thompson", config, tmp_path)
    found, _ = regret.agents(config, tmp_path)
    (games,) = found.values()
    (played,) = regret.summary(found, at_random=4.9101).values()
    assert played["eaten in the first 50"] == games.actions[:, :50].sum(1).tolist()


# ---- the figure


def games(runs):
    """Three of every ten rounds cost nothing, four leave an edible mushroom, three eat a poisonous one."""
    expected = torch.tensor([0.0, 5.0, 15.0, 5.0, 0.0, 5.0, 15.0, 5.0, 0.0, 15.0]).repeat(runs, 50)
    return Games(expected, expected, torch.ones_like(expected).to(torch.int8), rounds=500)


@pytest.mark.parametrize("steps", [6, 79, 80, 500])
def test_the_course_of_regret_begins_at_the_first_step(steps):
    ones = torch.ones(1, steps)
    played = Games(ones, ones, ones.to(torch.int8), rounds=steps)
    (found,) = regret.summary({"a": played}, at_random=4.9101).values()
    at = found["course"]["step"]
    assert (at[0], at[-1]) == (1, steps)
    assert found["course"]["expected"] == [at]  # 1 is lost at each step


def test_late_regret_is_split_into_what_was_eaten_and_what_was_left():
    (found,) = regret.summary({"a": games(2)}, at_random=4.9101).values()
    eaten, left = (found[f"{what} in the last fifth"] for what in ("poisonous eaten", "edible left"))
    assert (eaten, left) == ([30, 30], [40, 40])
    assert found["expected in the last fifth"] == [15 * 30 + 5 * 40] * 2


def test_figure_of_regrets_has_a_log_axis_and_every_run():
    agents = regret.summary({"a": games(3), "b": games(1)}, at_random=4.9101)
    per_step = {"never eat": 2.59, "at random": 4.91}
    record = {
        "agents": agents,
        "per step": per_step,
        "setting": "paper",
        "swapped": False,
        "seeds": [1, 2, 3],
    }
    titles = [regret.cumulative_regret(record, name).get_suptitle() for name in ("", "noise")]
    assert ["the paper's setting: 3 runs" in title for title in titles] == [True, False]
    assert "noise: 3 runs" in titles[1]
    (axes,) = regret.cumulative_regret(record).axes
    assert axes.get_yscale() == "log"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["a", "b"]
    medians = [line for line in axes.get_lines() if line.get_label() in "ab"]
    assert [line.get_ydata()[-1] for line in medians] == [50 * 65.0] * 2
    assert len(axes.get_lines()) == 2 + 3 + 2  # medians, runs of the first, references


def test_the_median_of_regrets_is_that_of_all_runs():
    course = {"step": [1, 2, 3], "expected": [[0.0, 0.0, 5.0], [0.0, 5.0, 20.0], [5.0, 20.0, 25.0]]}
    record = {
        "agents": {"a": {"steps": 3, "course": course}},
        "per step": {"never eat": 2.59, "at random": 4.91},
        "setting": "paper",
        "swapped": False,
        "seeds": [1, 2, 3],
    }
    (axes,) = regret.cumulative_regret(record).axes
    median = axes.get_lines()[0].get_ydata()
    assert [None if value != value else value for value in median.tolist()] == [None, 5.0, 20.0]


# ---- the experiment


def test_the_experiment_runs_resumes_and_reports(tmp_path, capsys):
    small = ["steps=6", "seeds=[1,2]", "hidden=[4]", "updates=1", "compiled=false", f"folder={tmp_path}/run"]
    bandit.main(small)
    first = capsys.readouterr().out
    bandit.main([*small, "report=true"])  # from the checkpoints alone
    assert capsys.readouterr().out == first
    for word in (
        "Bayes by Backprop: 6 steps, 2 runs",
        "5 % greedy",
        "saxena-mayur",
        "interactions per second",
    ):
        assert word in first
    metrics = json.loads((tmp_path / "run" / "record.json").read_text())
    command = " ".join(["python -m experiments.paper.bandit", *small[:-1]])
    assert metrics["command"] == command
    assert set(metrics["agents"]) == {"Bayes by Backprop", "greedy", "1 % greedy", "5 % greedy"}
    bandit.main([*small, "arms=[thompson]"])
    again = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (again["agents"], again["command"]) == (metrics["agents"], command)  # which plays both arms
    (tmp_path / "run" / "greedy.pt").unlink()
    bandit.main([*small, "report=true"])
    alone = json.loads((tmp_path / "run" / "record.json").read_text())
    assert alone["command"] == f"{command} arms=[thompson]"
    assert len(metrics["agents"]["greedy"]["expected"]["6"]) == 2
    assert (tmp_path / "run" / "regret.png").stat().st_size > 5000
    with pytest.raises(ConfigError, match="updates: 1 -> 2"):
        bandit.main([*small, "updates=2"])


def test_a_game_resumes_with_the_agent_that_began_it_alone(tmp_path):
    small = ["seeds=[1]", "hidden=[4]", "updates=1", "compiled=false", "arms=[thompson]"]

    def play(*changes):
        config = bandit.configuration([*small, f"folder={tmp_path}", *changes])
        bandit.play("thompson", config, tmp_path)

    play("steps=2")
    for change, words in [
        ("draws=3", "made with draws 2, this is 3"),
        ("lr.thompson=0.5", "made with lr 0.0001, this is 0.5"),
        ("lr_decay=0.1", "made with lr_decay 0.0, this is 0.1"),
        ("kl_over=capacity", "made with kl_over held, this is capacity"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            play("steps=3", change)
    play("steps=3")


def test_a_game_is_not_resumed_in_another_environment_or_under_another_model(tmp_path):
    class Others(Sides):
        """The same shapes, another game."""

    def play(steps, environment=Sides, **options):
        learner = bayesian([1], **options)
        agent = ThompsonSampling(learner, 2, 2, [1], batch_size=8, updates=1)
        Play(environment(), agent, steps, [1], path=tmp_path / "game.pt").run()

    play(2)
    for change, words in (
        ({"environment": Others}, "made with environment kind Sides, this is Others"),
        ({"scale": 3.0}, "made with likelihood scale 0.2"),
        ({"prior": priors.Normal()}, "made with prior ScaleMixture"),
        ({"hidden": (9,)}, "made with another network"),
    ):
        with pytest.raises(CheckpointError, match=words):
            play(3, **change)
    play(3)


def test_the_control_with_swapped_labels_is_played_by_name(tmp_path, capsys):
    small = ["steps=40", "seeds=[1]", "hidden=[4]", "updates=1", "compiled=false", "arms=[thompson]"]
    bandit.main([*small, "swapped=true", f"folder={tmp_path}/swapped"])
    said = capsys.readouterr().out
    assert "never eat 2.4101; at random 5.0899; always eat 7.7696" in said
    assert "edible and poisonous are swapped, a control" in said
    assert "holds" not in said
    assert "missed" not in said
    assert regret.fixed_rates(Mushroom())["always eat"] == pytest.approx(7.230428, abs=1e-6)
    first = {}
    for name in ("truth", "swapped"):
        config = bandit.configuration([*small, f"swapped={str(name == 'swapped').lower()}"])
        given = regret.environment(config).draw(torch.Generator().manual_seed(0))
        first[name] = float(given.expected[1])
    assert sorted(first.values()) == [-15.0, 5.0]


def test_the_showdown_setting_runs(tmp_path, capsys):
    small = ["steps=6", "every=3", "updates=1", "batch_size=4", "seeds=[1]", "hidden=[4]", "compiled=false"]
    bandit.main(["setting=showdown", "arms=[thompson]", *small, f"folder={tmp_path}/run"])
    assert "% of the regret at random: BBB 26.9" in capsys.readouterr().out


def test_declarations_say_how_they_are_run_and_the_table_says_whose_it_is():
    folder = ROOT / "experiments"
    for name in bandit.CONFIGS.values():
        text = (folder / f"{name}.yaml").read_text()
        assert all(word in text for word in ("# Command:", "# Recorded:", "experiments.paper.bandit"))
    licence = resources.files("pyrobbb.bandits").joinpath("mushroom.LICENSE.txt").read_text()
    assert "CC BY 4.0" in licence
    assert "10.24432/C5959T" in licence
    assert "CC BY 4.0" in Mushroom.__doc__


def test_dropout_is_refused():
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 1))
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.5), 10)
    refused = pytest.raises(
        ValueError, match=r"layer '1' \(Dropout\) has dropout, but a bandit's networks have none"
    )
    with refused:
        MeanFieldLearner(model, [MeanFieldNormal(model)], [1], width=4)
    with refused:
        PointLearner([network], likelihoods.Normal(0.5))


def test_an_action_is_judged_apart_from_the_others():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm1d\) mixes the rows of a batch"):
        PointLearner([network], likelihoods.Normal(0.5))
    assert PointLearner([network.eval()], likelihoods.Normal(0.5), compiled=False).runs == 1


def test_plain_learners_refuse_what_they_would_not_train():
    with pytest.raises(ValueError, match="Normal has parameters, which are not trained here"):
        PointLearner([perceptron(3, [4], 1)], likelihoods.Normal(learn_scale=True))
    net = perceptron(3, [4], 1)
    next(net.parameters()).requires_grad_(False)
    with pytest.raises(ValueError, match="is frozen, but all are trained here"):
        PointLearner([net], likelihoods.Normal(0.1))


class Weighed(Environment):
    """Rewards by a matrix of its own."""

    features, actions = 2, 2

    def __init__(self, scale=1.0):
        self.matrix = scale * torch.eye(2)
        self.names = np.array(["left", "right"])

    def draw(self, random):
        context = torch.randn(2, generator=random)
        return Round(context, self.matrix @ context, self.matrix @ context)


def test_a_game_resumes_in_its_own_environment_with_its_own_seeds(tmp_path):
    path = tmp_path / "game.pt"

    def play(environment, seeds, steps, agents=(1,)):
        agent = ThompsonSampling(bayesian(seeds), 2, 2, agents, updates=1)
        return Play(environment, agent, steps, [1], path=path).run()

    play(Weighed(), [1], 3)
    with pytest.raises(CheckpointError, match=r"was made with environment matrix"):
        play(Weighed(2.0), [1], 4)
    with pytest.raises(CheckpointError, match=r"was made with seeds \[1\], this is \[5\]"):
        play(Weighed(), [1], 4, agents=[5])
    with pytest.raises(CheckpointError, match=r"was made with seeds of the learner \[1\], this is \[5\]"):
        play(Weighed(), [5], 4, agents=[1])
    assert play(Weighed(), [1], 4).rounds == 4


def test_rounds_are_of_any_real_type_and_finite():
    class Doubled(Weighed):
        def draw(self, random):
            return Round(*(part.double() for part in super().draw(random)))

    agent = ThompsonSampling(bayesian([1]), 2, 2, [1], updates=1)
    assert Play(Doubled(), agent, 3, [1]).run().rounds == 3
    broken = Weighed()
    broken.matrix[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"Weighed\.draw: expected of round 0 is not finite"):
        Play(broken, ThompsonSampling(bayesian([1]), 2, 2, [1]), 3, [1]).run()


def test_what_an_agent_cannot_use_is_refused():
    with pytest.raises(
        ValueError, match=r"body must map \(B, 2\) to \(B, 2\), one for each action, got \(3, 1\)"
    ):
        HeadPerAction(torch.nn.Linear(2, 1), 2)(torch.ones(3, 4))
    model = BayesianNetwork(torch.nn.Linear(4, 1), priors.Normal(), likelihoods.Normal(1.0), 4)
    guide = MeanFieldNormal(model)
    with pytest.raises(ValueError, match="a guide of its own, but one is given twice"):
        MeanFieldLearner(model, [guide, guide], [1, 2], width=4, compiled=False)
    labels = BayesianNetwork(torch.nn.Linear(4, 3), priors.Normal(), likelihoods.Categorical(), 4)
    with pytest.raises(ValueError, match="Categorical does not give one mean for each row"):
        MeanFieldLearner(labels, [MeanFieldNormal(labels)], [1], width=4, compiled=False)


def test_one_epsilon_is_that_of_all_runs():
    for epsilon in (0.25, np.float32(0.25)):
        agent = EpsilonGreedy(plain([1, 2]), 2, 2, [1, 2], epsilon=epsilon)
        assert agent.epsilon.tolist() == [0.25, 0.25]
