"""`fit`: history, several chains, point estimates, torch's data, Pyro's ELBOs; each against an oracle."""

import math
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import RenyiELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data import Dataset as TorchDataset

from engine_fakes import Interrupts, Listens, classes, classifier, network, nothing_changes, values
from pyrobbb import Posterior, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import Blobs, NoisySine, from_arrays
from pyrobbb.data.dataset import Split
from pyrobbb.experiment import evaluate
from pyrobbb.inference import MAP, NUTS, Laplace, MCDropout
from pyrobbb.initializers import Constant, kaiming
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import perceptron
from pyrobbb.predictive import ClassPrediction
from pyrobbb.training.callbacks import EarlyStopping
from pyrobbb.training.history import History
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import NonFiniteLossError, Training, fit

DATA = classes(20, validation=8)
QUIET: dict[str, Any] = {"device": "cpu", "progress": None}
ADAM = partial(torch.optim.Adam, lr=0.02)


def found(posterior: Posterior, chain: int = 0) -> Tensor:
    model, guide = posterior.chains[chain]
    return torch.cat([p.detach().flatten() for part in (guide, model) for p in part.parameters()])


def bayesian(prior: priors.Prior | None = None) -> BayesianNetwork:
    return BayesianNetwork(network(), prior or priors.ScaleMixture(), likelihoods.Categorical())


# History, N, progress


def test_the_posterior_has_its_history_and_the_model_its_n() -> None:
    model = bayesian()
    assert model.N is None
    posterior = fit(model, MeanFieldNormal, DATA, epochs=2, **QUIET)  # a batch of 128 is all of 20 rows
    assert model.N == 20
    assert isinstance(posterior.history, History)
    assert [row.epoch for row in posterior.history.rows] == [1, 2]
    with pytest.raises(ValueError, match="made for N=20 data, the training set has 12"):
        fit(model, MeanFieldNormal, classes(12), epochs=1, **QUIET)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": nn.Sequential(nn.Linear(3, 3))}, "model must be a BayesianNetwork, got Sequential"),
        ({"model": PyroModule()}, "got PyroModule.*: make one of a network.* or trained by pyro.infer.SVI"),
        ({"model": lambda: None}, "model must be a BayesianNetwork, or make one .* <lambda> returned None"),
        ({"model": lambda x: None}, "<lambda> cannot be called like that: missing a required argument: 'x'"),
        ({"guide": "mean_field"}, "guide must be a Module or a Callable or nothing, got 'mean_field'"),
        ({"guide": lambda x=None, y=None: None}, "guide must be a Module, or make one when .* returned None"),
        ({"inference": "laplace"}, r"method of pyrobbb.inference, such as Laplace\(\), got 'laplace'"),
        ({"inference": Laplace}, r"a method with its options: write Laplace\(\)"),
        ({"callbacks": EarlyStopping()}, "callbacks must be a Sequence"),
        ({"progress": "bar"}, "progress must be a Progress or a bool or nothing, got 'bar'"),
        ({"together": "no"}, "together must be a bool, got 'no'"),
    ],
)
def test_an_argument_of_another_kind_is_named(given: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": bayesian, "guide": MeanFieldNormal, "data": DATA, "epochs": 1}
    with pytest.raises(ValueError, match=message):
        fit(**{**arguments, **QUIET, **given})


def test_whole_numbers_may_be_numpys() -> None:
    def fitted(whole: Callable[[int], Any]) -> Tensor:
        sizes = {"seed": whole(3), "chains": whole(2), "epochs": whole(2), "batch_size": whole(7)}
        posterior = fit(bayesian, MeanFieldNormal, DATA, **sizes, **QUIET)
        return posterior.predict(DATA.train.x, draws=whole(3), seed=whole(5)).probs

    assert torch.equal(fitted(np.int64), fitted(int))
    assert torch.equal(fitted(np.int32), fitted(int))


@pytest.mark.parametrize("fast", ["auto", "off"])
@pytest.mark.parametrize("chains", [1, 2])
def test_it_trains_where_the_caller_has_switched_gradients_off(fast: str, chains: int) -> None:
    options: dict[str, Any] = {"epochs": 2, "fast": fast, "chains": chains, **QUIET}
    expected = fit(bayesian, MeanFieldNormal, DATA, **options)
    with torch.no_grad():
        posterior = fit(bayesian, MeanFieldNormal, DATA, **options)
        assert not torch.is_grad_enabled()
    for chain in range(chains):
        assert torch.equal(found(posterior, chain), found(expected, chain))
    with torch.inference_mode(), pytest.raises(ValueError, match=r"leave torch.inference_mode\(\)"):
        fit(bayesian, MeanFieldNormal, DATA, **options)


@pytest.mark.parametrize("handler", [pyro.plate("ensemble", 5), poutine.scale(scale=3.0), poutine.trace()])
def test_a_handler_around_a_training_is_refused(handler: Any) -> None:
    with handler, pytest.raises(ValueError, match="training inside a handler of Pyro's, such as"):
        fit(bayesian, MeanFieldNormal, DATA, epochs=1, device="cpu", progress=None)


@pytest.mark.parametrize(
    ("progress", "shown"), [(True, True), (None, False), (False, False), (Silent(), False)]
)
def test_progress_is_shown_unless_it_is_turned_off(
    progress: Any, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(bayesian(), MeanFieldNormal, DATA, epochs=1, device="cpu", progress=progress)
    lines = capsys.readouterr().err
    assert ("epoch 1/1: free energy" in lines) == shown
    assert ("(ignoring the inputs: " in lines) == shown


def test_a_point_has_a_loss_and_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    fit(bayesian(), AutoDelta, DATA, epochs=1, device="cpu")
    lines = capsys.readouterr().err
    assert re.search(r"epoch 1/1: loss \S+ = prior \S+ \+ NLL", lines)
    assert "free energy" not in lines
    assert "ignoring the inputs" not in lines


def test_other_validation_rows_than_the_datas_own() -> None:
    rows = fit(bayesian(), MeanFieldNormal, DATA, validation=DATA.train, epochs=1, **QUIET).history.rows
    posterior = fit(
        bayesian(), MeanFieldNormal, DATA, validation=DATA.train, epochs=1, validation_draws=0, **QUIET
    )
    prediction: Any = posterior.predict(DATA.train.x, DATA.train.y, mean_weights=True)
    assert rows[0].kl == posterior.history.rows[0].kl
    assert posterior.history.rows[0].validation_nll == pytest.approx(-float(prediction.log_predictive.mean()))


def test_validation_rows_count_by_their_weights() -> None:
    """As if each had been repeated: after each epoch, and in the final scores."""
    x, y, counts = *(part[:9] for part in (DATA.train.x, DATA.train.y)), torch.arange(9) % 3
    held = Split(x, y, counts.float())
    repeated = Split(x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    scores = []
    for part in (held, repeated):
        posterior = fit(bayesian(), MeanFieldNormal, DATA, validation=part, epochs=1, **QUIET)
        row, found = posterior.history.rows[0], evaluate(posterior, part, draws=2)
        scores.append([row.validation_error, row.validation_nll, found["error"], found["nll"]])
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    with pytest.raises(ValueError, match="validation weights: the weights are all 0, so that no row counts"):
        fit(bayesian(), MeanFieldNormal, DATA, validation=Split(x, y, 0 * counts), epochs=1, **QUIET)


@pytest.mark.parametrize(("batch_size", "where"), [(9, "step 1 of 1, before"), (1, "step [2-9] of 9: ")])
def test_a_fill_value_in_a_row_that_does_not_count_is_named_as_a_cause(batch_size: int, where: str) -> None:
    """0 times an infinite log-likelihood is not a number: such a row is to be left out."""
    rows = values(9).train
    y, weights = rows.y.clone(), torch.ones(9)
    y[2], weights[2] = 1e20, 0.0
    data = from_arrays(rows.x, y, task="regression", weights=weights)
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(scale=0.5))
    with pytest.raises(
        NonFiniteLossError, match=f"{where}.* NLL nan.*1e20, even in a row of weight 0: leave"
    ):
        fit(model, MeanFieldNormal, data, epochs=1, batch_size=batch_size, **QUIET)


def test_a_prediction_of_ones_own_needs_no_weights_to_score_rows_that_have_none() -> None:
    class Own(ClassPrediction):
        def metrics(self, y: Any) -> dict[str, float]:
            return super().metrics(y)

    class Labels(likelihoods.Categorical):
        prediction = Own

    model = BayesianNetwork(network(), priors.ScaleMixture(), Labels())
    posterior = fit(model, MeanFieldNormal, DATA, epochs=1, **QUIET)
    assert "error_mean_weights" in evaluate(posterior, DATA.validation, draws=1)


# Chains


@pytest.mark.parametrize("together", [False, True])
def test_chains_are_separate_fits(together: bool) -> None:
    options = {"epochs": 3, "batch_size": 6, "optim": ADAM, "fast": "eager", **QUIET}
    posterior = fit(bayesian, MeanFieldNormal, DATA, chains=3, seed=5, together=together, **options)
    assert [len(history.rows) for history in posterior.histories] == [3, 3, 3]
    for chain in range(3):
        alone = fit(bayesian, MeanFieldNormal, DATA, seed=5 + chain, **options)
        torch.testing.assert_close(found(posterior, chain), found(alone), rtol=1e-4, atol=1e-5)
        if not together:
            assert torch.equal(found(posterior, chain), found(alone))


def test_chains_that_start_at_one_place_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def apart() -> BayesianNetwork:
        layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        return BayesianNetwork(layers, priors.Normal(), likelihoods.Categorical())

    def warned(model: Any, guide: Any = None, **options: Any) -> int:
        caplog.clear()
        fit(model, guide, DATA, **{"chains": 3, "epochs": 1, "fast": "eager", **QUIET, **options})
        return caplog.text.count("all 3 chains start from the same weights")

    assert warned(apart(), MeanFieldNormal, folder=tmp_path) == 1
    assert warned(apart(), MeanFieldNormal, folder=tmp_path, epochs=2) == 0  # it resumes
    assert warned(apart, MeanFieldNormal) == 0
    assert warned(apart(), partial(MeanFieldNormal, init_loc=kaiming)) == 0
    assert warned(apart, partial(MeanFieldNormal, init_loc=Constant())) == 1
    assert warned(bayesian(priors.Deterministic())) == 1
    for method in (MAP(), MCDropout()):  # one batch, and one after the other
        assert (warned(apart(), inference=method), warned(apart, inference=method)) == (1, 0)
    assert warned(apart(), inference=NUTS(warmup=1, draws=4, max_tree_depth=1)) == 0  # it draws its start


def test_chains_need_a_guide_each() -> None:
    model = bayesian()
    said = r"chains=2 need one guide each: .* MeanFieldNormal, or partial\(MeanFieldNormal, \.\.\.\) with the"
    with pytest.raises(ValueError, match=said):
        fit(model, MeanFieldNormal(model), DATA, chains=2, epochs=1, **QUIET)


def test_chains_resume_from_their_folder(tmp_path: Path) -> None:
    options = {"chains": 2, "batch_size": 6, "optim": ADAM, **QUIET}
    fit(bayesian, MeanFieldNormal, DATA, epochs=2, folder=tmp_path, **options)
    resumed = fit(bayesian, MeanFieldNormal, DATA, epochs=4, folder=tmp_path, **options)
    whole = fit(bayesian, MeanFieldNormal, DATA, epochs=4, **options)
    for chain in range(2):
        assert torch.equal(found(resumed, chain), found(whole, chain))


def test_each_chain_of_a_sampler_is_kept_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, finish = [], NUTS.finish

    def watched(*args: Any) -> bool:
        kept.append(len(list(tmp_path.glob("chain-*.pt"))))
        return finish(*args)

    monkeypatch.setattr(NUTS, "finish", watched)
    method = NUTS(warmup=1, draws=4, max_tree_depth=1)
    fit(bayesian, None, DATA, inference=method, chains=2, folder=tmp_path, **QUIET)
    assert kept == [0, 1]


# Point estimates: models whose prior leaves every weight deterministic


def dropout_net(features: int = 2, p: float = 0.5) -> nn.Module:
    with isolated(0):
        return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 3))


def point(net: nn.Module, data: Any, likelihood: Any = None, **options: Any) -> Posterior:
    model = BayesianNetwork(net, priors.Deterministic(), likelihood or likelihoods.Categorical())
    return fit(model, None, data, **{**QUIET, **options})


def test_a_classifier_learns_and_the_network_given_is_left_alone() -> None:
    data, given = Blobs(features=16, separation=1.0, noise=0.1).load(), dropout_net(features=16)
    before = [p.clone() for p in given.parameters()]
    with nothing_changes():
        posterior = point(given, data, epochs=20, optim=partial(torch.optim.SGD, lr=0.1 / 32), batch_size=32)
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))
    first, last = posterior.history.rows[0], posterior.history.rows[-1]
    assert last.nll < 0.5 * first.nll  # the ratio's log: mean -3.30, sd 0.27 over 20 seeds
    assert last.kl == 0
    assert data.validation is not None
    prediction: Any = posterior.predict(data.validation.x)
    error = 100 * float((prediction.probs.argmax(-1) != data.validation.y).double().mean())
    assert error == pytest.approx(last.validation_error)


@pytest.mark.parametrize("fast", ["auto", "off"])
def test_full_batch_descent_is_the_textbook_loop(fast: str) -> None:
    """Half the sum of squares of six points: lr 0.1 on their mean square is 0.1 / 3 on it."""
    data = NoisySine(N=6, validation=0, test=0).load()
    with isolated(0):
        start = perceptron(1, [16, 16], 1, "sigmoid")
    posterior = point(
        start, data, likelihoods.Normal(scale=1.0), epochs=50, record_every=20, fast=fast,
        optim=partial(torch.optim.SGD, lr=0.1 / 3),
    )  # fmt: skip
    assert [row.epoch for row in posterior.history.rows] == [20, 40, 50]
    optimizer = torch.optim.SGD(start.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        loss = ((start(data.train.x) - data.train.y) ** 2).mean()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(posterior.function().state_dict(), start.state_dict())
    expected = 0.5 * float(loss.detach()) + 0.5 * math.log(2 * math.pi)
    assert posterior.history.rows[-1].nll == pytest.approx(expected)


@pytest.mark.parametrize("fast", ["auto", "off"])
def test_dropout_acts_in_training_alone(fast: str) -> None:
    data = Blobs().load()
    assert data.test is not None
    with_it, without = (point(dropout_net(p=p), data, epochs=1, fast=fast) for p in (0.5, 0.0))
    one, other = (with_it.predict(data.test.x, seed=seed) for seed in (0, 1))
    assert torch.equal(one.probs, other.probs)  # type: ignore[union-attr]
    assert not torch.equal(found(with_it), found(without))
    by_hand = with_it.function()(data.test.x).softmax(-1)
    torch.testing.assert_close(one.probs, by_hand, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]


def test_a_network_with_a_noise_output_finds_the_noise() -> None:
    """Against the residuals' own standard deviation, which maximum likelihood is for a constant."""
    data = NoisySine(noise=0.3, N=2000).load()
    with isolated(0):
        start = perceptron(1, [32], 2)
    likelihood = likelihoods.HeteroscedasticNormal()
    posterior = point(
        start, data, likelihood, epochs=60, optim=partial(torch.optim.Adam, lr=0.01), batch_size=200
    )
    prediction: Any = posterior.predict(data.train.x)
    residual = prediction.mean - data.train.y
    assert float(prediction.noise.sqrt().mean()) == pytest.approx(
        float(residual.std()),
        rel=0.25,  # their ratio: mean 1.002, sd 0.041 over 20 seeds
    )


def test_point_estimates_resume_exactly_within_an_epoch(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "optim": partial(torch.optim.SGD, lr=1e-3, momentum=0.9), "batch_size": 64, "seed": 3, "epochs": 4,
        "schedule": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=4),
    }  # fmt: skip
    data = Blobs().load()
    with pytest.raises(KeyboardInterrupt):
        point(dropout_net(), data, folder=tmp_path, callbacks=[Interrupts(7)], **options)
    resumed = point(dropout_net(), data, folder=tmp_path, **options)
    assert torch.equal(found(resumed), found(point(dropout_net(), data, **options)))


@pytest.mark.parametrize(("lr", "epochs"), [(1e6, 50), (1e18, 50), (1e36, 1)])
@pytest.mark.parametrize("start", range(3))
def test_a_point_estimate_that_diverges_says_so_wherever_it_is_noticed(
    lr: float, epochs: int, start: int
) -> None:
    """In a step, or only where its output is measured after the last one."""
    with isolated(start):
        network = perceptron(1, [8], 1)
    data, optim = NoisySine(N=8).load(), partial(torch.optim.SGD, lr=lr)
    with pytest.raises(NonFiniteLossError, match=r"is not finite|output is NaN"):
        point(network, data, likelihoods.Normal(0.1), epochs=epochs, optim=optim)


def test_what_cannot_be_a_point_estimate() -> None:
    with pytest.raises(ValueError, match="SVI needs a guide, such as MeanFieldNormal; got None"):
        fit(bayesian(), None, DATA, epochs=1, **QUIET)
    flat = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    with pytest.raises(ValueError, match="needs a network output of shape"):
        point(flat, NoisySine(N=6, validation=0, test=0).load(), likelihoods.Normal(0.1), epochs=1)


# Torch's data


DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "python": random.random,
    "numpy": np.random.random,
}
everywhere = pytest.mark.parametrize("kind", DRAWS)


class Noisy(TorchDataset[Any]):
    """Rows with a transform that draws a random number at each look, from one of three global generators."""

    def __init__(self, scale: float, kind: str = "torch") -> None:
        self.scale, self.kind = scale, kind

    def __len__(self) -> int:
        return len(DATA.train)

    def __getitem__(self, i: int) -> Any:
        x = DATA.train.x[i]
        return x + self.scale * DRAWS[self.kind]() if self.scale else x, int(DATA.train.y[i])


def fitted(data: Any, **options: Any) -> Posterior:
    given: dict[str, Any] = {"epochs": 3, "batch_size": 6, "optim": ADAM, "fast": "eager", **QUIET}
    return fit(bayesian(), MeanFieldNormal, data, **{**given, **options})


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDataset(DATA.train.x, DATA.train.y),
        lambda: DataLoader(TensorDataset(DATA.train.x, DATA.train.y), batch_size=6, shuffle=True),
        lambda: DataLoader(TensorDataset(DATA.train.x, DATA.train.y), batch_size=None),
        lambda: Noisy(0.0),
        lambda: TensorDataset(DATA.train.x.clone().requires_grad_(), DATA.train.y),
    ],
    ids=["dataset", "loader", "rows one by one", "transform", "part of a graph"],
)
def test_torchs_data_are_tensors_bit_for_bit(make: Callable[[], Any]) -> None:
    tensors = fitted(DATA)
    held = TensorDataset(DATA.validation.x, DATA.validation.y)  # type: ignore[union-attr]
    posterior = fitted(make(), validation=held)
    assert posterior.model.N == 20
    assert torch.equal(found(posterior), found(tensors))
    one, other = posterior.history.rows[-1], tensors.history.rows[-1]
    assert (one.free_energy, one.validation_nll) == (other.free_energy, other.validation_nll)


def twice(rows: list[Any]) -> Any:
    return default_collate([*rows, *rows])


class Cut(Noisy):
    def __init__(self) -> None:
        super().__init__(0.0)

    def __getitem__(self, i: int) -> Any:
        if i == 11:
            raise OSError("image file is truncated")
        return super().__getitem__(i)


class Objects(Noisy):
    """Rows as images come without a transform."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def __getitem__(self, i: int) -> Any:
        return object(), 0


def batched(sampler: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(0.0), batch_sampler=BatchSampler(sampler, 6, False))


@pytest.mark.parametrize(
    "make", [lambda: DataLoader(Noisy(0.0), batch_size=6), lambda: batched(RandomSampler(range(20)))]
)
def test_a_loaders_batch_size_is_taken(make: Callable[[], Any]) -> None:
    assert torch.equal(found(fitted(make(), batch_size=None)), found(fitted(DATA)))


@everywhere
def test_a_transform_is_seen_again_by_a_resumed_training_and_by_workers(kind: str, tmp_path: Path) -> None:
    rows = Noisy(0.5, kind)
    whole = fitted(rows)
    assert not torch.equal(found(whole), found(fitted(Noisy(0.0))))
    with pytest.raises(KeyboardInterrupt):
        fitted(rows, folder=tmp_path, callbacks=[Interrupts(6)])
    assert torch.equal(found(fitted(rows, folder=tmp_path)), found(whole))
    workers = DataLoader(rows, batch_size=6, num_workers=2)
    assert torch.equal(found(fitted(workers)), found(whole))


def test_transforms_leave_the_states_of_python_and_numpy_alone() -> None:
    before = random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    for kind in DRAWS:
        fitted(Noisy(0.5, kind), epochs=1)
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


@everywhere
def test_a_transform_draws_anew_in_each_epoch(kind: str) -> None:
    seen: list[Tensor] = []

    class Sees(Noisy):
        def __getitem__(self, i: int) -> Any:
            x, y = super().__getitem__(i)
            if i == 0:
                seen.append(x)
            return x, y

    run = Training(*classifier(DATA), Sees(0.5, kind), epochs=3, batch_size=6, device="cpu", fast="eager")
    del seen[:]  # what the checks looked at
    run.run()
    assert len({tuple(x.tolist()) for x in seen}) == len(seen) == 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(3), 0)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Stream, "Stream is a stream without a length: the posterior needs the number of rows, N"),
        (lambda: DataLoader(Stream()), "Stream is a stream without a length"),
        (
            lambda: DataLoader(Noisy(0.0), sampler=WeightedRandomSampler([1.0] * 20, 20)),
            "rows with WeightedRandomSampler; .*: to count rows more or less often, give .* weights=",
        ),
        (lambda: batched(WeightedRandomSampler([1.0] * 20, 20)), "its rows with WeightedRandomSampler"),
        (lambda: DataLoader(Noisy(0.0), batch_sampler=[[0, 1], [2]]), "its rows with list"),
        (
            lambda: DataLoader(Noisy(0.0), sampler=RandomSampler(range(20), replacement=True)),
            "its rows with replacement=True",
        ),
        (
            lambda: DataLoader(Noisy(0.0), sampler=RandomSampler(range(20), num_samples=10)),
            "its rows with RandomSampler, which gives 10 of 20 rows",
        ),
        (
            lambda: DataLoader(Noisy(0.0), sampler=RandomSampler(range(30), num_samples=20)),
            "its rows with RandomSampler, which chooses among 30 rows, though there are 20;",
        ),
        (
            lambda: batched(SequentialSampler(range(5))),
            "its rows with SequentialSampler, which gives 5 of 20",
        ),
        (lambda: TensorDataset(DATA.train.x[:0], DATA.train.y[:0]), "TensorDataset has no rows"),
        (
            lambda: TensorDataset(DATA.train.x, DATA.train.x, DATA.train.y),
            r"must give pairs \(x, y\) of tensors, got list; make them in a collate_fn, several inputs side",
        ),
        (
            lambda: DataLoader([{"x": torch.zeros(3), "y": 0}] * 12),
            r"got dict; make them in a collate_fn, .*; weights of rows go to from_arrays\(weights=\)",
        ),
        (
            lambda: DataLoader(Noisy(0.0), collate_fn=lambda rows: ([rows], torch.zeros(len(rows)))),
            "must give pairs .* of tensors, got list and Tensor; several inputs go side by side into one x",
        ),
        (
            lambda: DataLoader(Noisy(0.0), batch_size=6, collate_fn=twice),
            "collate_fn made 2 rows of the dataset's 1",
        ),
        (
            lambda: DataLoader(Noisy(0.0), batch_size=6, collate_fn=lambda rows: default_collate(rows[:1])),
            "collate_fn made 1 rows of the dataset's 6, .*: exclude unreadable rows",
        ),
        (
            lambda: DataLoader([(torch.zeros(3), 0)] * 11 + [None]),
            "the dataset returned None for row 11: exclude unreadable rows",
        ),
        (
            Cut,
            r"row 11 of the dataset cannot be read \(OSError: image file is truncated\): mend or exclude it",
        ),
        (
            Objects,
            r"of tensors, arrays or numbers, as images are after torchvision's ToTensor\(\)",
        ),
        (
            lambda: DataLoader([(torch.zeros(n), 0) for n in range(1, 13)]),
            "the dataset's rows differ in shape: .* a collate_fn that pads: stack expects",
        ),
        (
            lambda: DataLoader([(torch.zeros(3 + (i == 79)), 0) for i in range(80)]),
            r"differ in shape: .*, but got (\[3\] at row \d+ and \[4\] at row 79"  # as they are shuffled
            r"|\[4\] at row 79 and \[3\] at row \d+)$",
        ),
        (lambda: [1, 2], r"data must be what from_arrays\(x, y, task=...\) makes, or a torch Dataset"),
    ],
    ids=[
        "stream",
        "stream in a loader",
        "sampler",
        "batches of a sampler",
        "own batches",
        "replacement",
        "fewer draws",
        "other rows",
        "fewer rows",
        "no rows",
        "no pairs",
        "rows by name",
        "inputs of several parts",
        "two views",
        "a row left out",
        "a row that is None",
        "a file cut short",
        "what torch cannot batch",
        "rows of two lengths",
        "a row of another length",
        "a list",
    ],
)
def test_data_that_make_no_posterior(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(make())


# Pyro's ELBOs


@pytest.mark.parametrize(
    "elbo", [None, TraceMeanField_ELBO, partial(RenyiELBO, alpha=0.9)], ids=["trace", "mean field", "renyi"]
)
def test_the_posterior_of_one_weight(elbo: Any) -> None:
    """y = w x with one x: the posterior is a normal, which each finds, up to the last steps' noise."""
    x, y = torch.full((40, 1), 0.5), values(40, outputs=1).train.y + 1.0
    precision = 1.0 + 40 * 0.25
    mean, sd = float((x * y).sum()) / precision, precision**-0.5
    model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.Normal(scale=1.0))
    guide = MeanFieldNormal(model.double(), init_loc=Constant(1.5), init_rho=-1.5)
    data = TensorDataset(x.double(), y.double())
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.98)
    posterior = fit(
        model, guide, data, epochs=300, samples=10, vectorize=True, elbo=elbo, schedule=schedule,
        optim=partial(torch.optim.Adam, lr=0.05), **QUIET,
    )  # fmt: skip
    loc, scale = guide.loc_and_scale()
    assert float(loc["weight"]) == pytest.approx(mean, abs=0.25 * sd)  # 8 seeds: mean 0.01, sd 0.04
    assert float(scale["weight"]) == pytest.approx(sd, rel=0.15)  # mean 0.01, sd 0.013
    assert posterior.model.N == 40


def test_another_elbo_says_that_the_fast_path_does_not_apply() -> None:
    heard = Listens()
    fitted(DATA, elbo=TraceMeanField_ELBO, fast="auto", progress=heard, epochs=1)
    assert heard.said[0].endswith("SVI: the fast path does not apply to elbo TraceMeanField_ELBO")


@pytest.mark.parametrize("fast", ["eager", "off"])
def test_every_row_of_a_dataset_is_checked(fast: str) -> None:
    """Not the first minibatch alone: a label of -1 would train to a likelihood above 1."""
    x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.ones(40, 1)
    label, value = y.clone(), x.clone()
    label[33], value[35, 1] = -1, math.nan

    def trained_on(x: Tensor, y: Tensor) -> Posterior:
        model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Bernoulli())
        rows = TensorDataset(x, y)
        return fit(model, MeanFieldNormal, rows, epochs=2, batch_size=8, fast=fast, progress=None, seed=1)

    assert len(trained_on(x, y).history.rows) == 2
    with pytest.raises(ValueError, match="y of a minibatch: Bernoulli needs targets that are 0 or 1"):
        trained_on(x, label)
    with pytest.raises(ValueError, match="x holds nan in row 35;"):
        trained_on(value, y)
