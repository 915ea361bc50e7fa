"""Several trainings as one batch end where each ends alone."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from architectures import Chain, last
from engine_fakes import Interrupts, Listens, StopsAt, classes, found, network, restore, values
from pyrobbb import kl_weights as kl
from pyrobbb import likelihoods, priors
from pyrobbb.accelerated.batched_step import NotBatchableError
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.experiment import Run
from pyrobbb.inference import MAP, SVI, SWAG, Inference, Laplace, MCDropout
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.batched_chains import BatchedChains
from pyrobbb.training.trainer import NonFiniteLossError, Training, train

N = 20
MIXTURES = [
    priors.ScaleMixture(),
    priors.ScaleMixture(pi=0.25, sigma1=0.5),
    priors.ScaleMixture(sigma2=0.1),
]
LAYERWISE = [
    priors.PerParameter(default=priors.Normal(sigma=s), where={"2.*": priors.Laplace(scale=1.0)})
    for s in (0.5, 1.0)
]


def double(data: Dataset) -> Dataset:
    """In double precision no rounding is large enough for Adam to make it a difference that shows."""
    parts = {
        name: Split(part.x.double(), part.y.double() if part.y.is_floating_point() else part.y)
        for name in ("train", "validation")
        if (part := getattr(data, name)) is not None
    }
    return replace(data, **parts)


def training(r: int, prior: Any = None, **options: Any) -> Training:
    data = double(options.pop("data", None) or classes(N, validation=4))
    net = options.pop("net", None) or network(seed=r)
    likelihood = options.pop("likelihood", likelihoods.Categorical())
    model = BayesianNetwork(net, prior or MIXTURES[r % 3], likelihood, N).double()
    method: Inference = options.get("inference", SVI())
    defaults: dict[str, Any] = {
        "epochs": 3, "batch_size": 6, "seed": r, "chain": r, "device": "cpu", "fast": "eager",
        "optim": partial(torch.optim.Adam, lr=0.01 * (1 + r)),
        "schedule": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=3),
    }  # fmt: skip
    return Training(model, method.guide(model, MeanFieldNormal), data, **defaults | options)


def layer(r: int) -> nn.Module:
    """A network of a single layer, which is soon compiled."""
    return nn.Sequential(network(hidden=3, seed=r)[-1])


@pytest.mark.parametrize(("fast", "samples"), [("eager", 1), ("eager", 3), ("compiled", 2)])
def test_each_ends_where_it_ends_alone(fast: str, samples: int) -> None:
    def make() -> list[Training]:
        return [training(r, samples=samples, net=layer(r) if fast == "compiled" else None) for r in range(3)]

    alone, together = make(), make()
    for run in alone:
        run.run()
    progress = together[0].progress = Listens()
    start = [found(run) for run in together]
    train(together, fast=fast)
    assert [line.startswith("compiling the training step") for line in progress.said] == [True] * (
        fast == "compiled"
    )
    for a, b, before in zip(alone, together, start, strict=True):
        assert (found(a) - before).norm() > 0.1
        torch.testing.assert_close(found(b), found(a), rtol=1e-4, atol=1e-5)  # mean 7e-8, sd 2e-7, 20 seeds
        rows = [(x, y) for x, y in zip(a.history.rows, b.history.rows, strict=True)]
        assert len(rows) == 3
        for x, y in rows:
            assert y.free_energy == pytest.approx(x.free_energy, rel=1e-4)
            assert (y.chain, y.epoch, y.lr) == (x.chain, x.epoch, x.lr)
            assert y.validation_error == x.validation_error


@pytest.mark.parametrize("method", [SVI(), MAP()])
def test_a_replayed_batch_ends_where_it_ends(method: Inference, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for part in (1e9, 1e-9):  # of what compiling costs: a recording never pays, always
        monkeypatch.setattr("pyrobbb.accelerated.compilation_cost._OF_RECORDING", part)
        together = [training(r, inference=method) for r in range(3)]
        assert (BatchedChains(together, "auto").step.run.recorded) == (part < 1)
        train(together, fast="auto")
        ends.append([found(run) for run in together])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_priors_that_differ_by_layer_and_regression_and_kl_shares() -> None:
    def make() -> list[Training]:
        return [
            training(
                r, LAYERWISE[r], data=values(N, outputs=3), likelihood=likelihoods.Normal(scale=0.5),
                kl=(kl.Geometric(), kl.Uniform())[r], rates={"rho": 10.0},
            )
            for r in range(2)
        ]  # fmt: skip

    alone, together = make(), make()
    for run in alone:
        run.run()
    train(together)
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(found(b), found(a), rtol=1e-8, atol=1e-8)


PARTLY = priors.PerParameter(default=priors.Normal(), where={"0.bias": priors.Deterministic()})


@pytest.mark.parametrize(
    ("method", "fast", "samples"),
    [(SVI(), "eager", 1), (SVI(), "eager", 3), (MAP(), "compiled", 1)],
)
def test_parameters_without_a_prior_are_each_chain_s_own(method: Inference, fast: str, samples: int) -> None:
    """A learned noise, which is the default for values, and a bias that is a point estimate."""

    def make() -> list[Training]:
        options: dict[str, Any] = {"data": values(N, outputs=3), "inference": method, "samples": samples}
        return [
            training(r, PARTLY, net=layer(r), likelihood=likelihoods.Normal(), **options) for r in range(3)
        ]

    alone, together = make(), make()
    for run in alone:
        run.run()
    progress = together[0].progress = Listens()
    train(together, fast=fast)
    assert any(line.startswith("compiling the training step") for line in progress.said) == (
        fast == "compiled"
    )
    for a, b in zip(alone, together, strict=True):
        assert len(list(a.model.parameters())) == 2
        for theirs, mine in zip(a.named.values(), b.named.values(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
    scales = {float(run.model.likelihood.scale.detach()) for run in together}
    assert len(scales) == 3


DESCENTS = {
    "map": MAP(),
    "swag": SWAG(snapshots=3, rank=2, start=0.25),
    "dropout": MCDropout(p=0.3),  # draws a mask at each step
    "laplace": Laplace(),  # has something left to do at the end
}


@pytest.mark.parametrize("task", ["classes", "values"])
@pytest.mark.parametrize("method", DESCENTS)
def test_an_interrupted_batch_of_points_ends_where_each_ends_alone(
    method: str, task: str, tmp_path: Path
) -> None:
    def make(r: int, **options: Any) -> Training:
        regression = {"data": values(N, outputs=3), "likelihood": likelihoods.Normal(scale=0.5)}
        prior = priors.Normal(sigma=(0.5, 1.0, 2.0)[r])
        return training(
            r, prior, inference=DESCENTS[method], **(regression if task == "values" else {}), **options
        )

    alone = [make(r) for r in range(3)]
    start = [found(run) for run in alone]
    for run in alone:
        run.run()
    stopped = [make(r, folder=tmp_path, callbacks=[Interrupts(at=5)][r:]) for r in range(3)]
    with pytest.raises(KeyboardInterrupt):
        train(stopped)
    together = [make(r, folder=tmp_path) for r in range(3)]
    assert all(run.resume() for run in together)
    assert [(run.epoch, run.batch) for run in together] == [(1, 1)] * 3
    train(together)
    for a, b, before in zip(alone, together, start, strict=True):
        assert (found(a) - before).norm() > 0.1
        torch.testing.assert_close(b.guide.state_dict(), a.guide.state_dict(), rtol=1e-8, atol=1e-8)
        assert len(b.history.rows) == 3
        for x, y in zip(a.history.rows, b.history.rows, strict=True):
            expected = asdict(x) | {"seconds": y.seconds}
            assert asdict(y) == pytest.approx(expected, rel=1e-8, nan_ok=True)


def test_the_last_of_a_batch_of_points_goes_on_alone() -> None:
    alone = training(1, inference=MAP())
    alone.run()
    pair = [training(0, inference=MAP(), callbacks=[StopsAt(step=1)]), training(1, inference=MAP())]
    train(pair)
    assert [(run.epoch, run.batch) for run in pair] == [(0, 1), (3, 0)]
    torch.testing.assert_close(found(pair[1]), found(alone), rtol=1e-8, atol=1e-8)


def test_the_same_training_twice_gives_the_same_twice() -> None:
    pair = [training(1), training(1)]
    train(pair)
    # exp and log of a row round differently at the end of a vector register than within: 1e-16, then Adam
    torch.testing.assert_close(found(pair[0]), found(pair[1]), rtol=1e-9, atol=1e-9)


def test_an_interrupted_batch_goes_on_exactly(tmp_path: Path) -> None:
    whole = [training(r) for r in range(2)]
    train(whole)
    stopped = [training(r, folder=tmp_path, callbacks=[Interrupts(at=5)][r:]) for r in range(2)]
    with pytest.raises(KeyboardInterrupt):
        train(stopped)
    again = [training(r, folder=tmp_path) for r in range(2)]
    for run in again:
        assert run.checkpoint_path is not None
        restore(run, run.checkpoint_path)
        assert (run.epoch, run.batch) == (1, 1)
    train(again)
    for a, b in zip(whole, again, strict=True):
        assert torch.equal(found(a), found(b))


def test_one_that_diverges_is_reported() -> None:
    bad = training(1, optim=partial(torch.optim.SGD, lr=1e20))
    with pytest.raises(NonFiniteLossError, match="not finite in epoch 1"):
        train([training(0), bad])


class Doubling(nn.Module):
    """Has weights of the same names and shapes as `network`, and does something else with them."""

    def __init__(self) -> None:
        super().__init__()
        for name, module in network().named_children():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.children()
        return 2 * c(b(a(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 5}, "different batch sizes: 6 and 5"),
        ({"epochs": 4}, "different epochs: 3 and 4"),
        ({"samples": 2}, "different draws per step: 1 and 2"),
        ({"fast": "off"}, "fast path"),
        ({"prior": priors.Normal(sigma=1.0)}, "different families"),
        ({"net": network(hidden=5)}, "different weights"),
        ({"net": Doubling()}, "a different NLL in the batch than alone"),
        ({"inference": MAP()}, "different methods: SVI and MAP"),
        (
            {"prior": priors.PerParameter(default=MIXTURES[0], where={"2.bias": priors.Deterministic()})},
            "families|weights",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_batched_is_refused_untouched(options: dict[str, Any], message: str) -> None:
    runs = [training(0), training(1, **options)]
    before = [found(run) for run in runs]
    with pytest.raises(NotBatchableError, match=message):
        train(runs)
    for run, kept in zip(runs, before, strict=True):
        assert torch.equal(found(run), kept)


def recurrent() -> nn.Module:
    """An LSTM, which torch cannot batch."""
    return Chain(nn.Unflatten(1, (1, 3)), nn.LSTM(3, 2, batch_first=True), last, nn.Linear(2, 3))


class Counting(nn.Module):
    """Counts its calls, which change its output, in a buffer or in an attribute."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        if buffer:
            self.register_buffer("calls", torch.zeros(()))
        else:
            self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * (1 + self.calls / 2000)


@pytest.mark.parametrize("buffer", [False, True])
def test_a_network_that_counts_its_calls_is_trained_alone(buffer: bool, monkeypatch: Any) -> None:
    """Recorded together its count would stand still, and only the first chain's buffers would change."""
    monkeypatch.setattr("pyrobbb.accelerated.compilation_cost._OF_RECORDING", 1e-9)
    runs = [training(r, priors.Normal(), net=Counting(buffer), epochs=50) for r in range(2)]
    before = [float(run.model.network.calls) for run in runs]
    message = "changes its buffers, which each chain has for itself" if buffer else "changes network.calls"
    with pytest.raises(NotBatchableError, match=message):
        train(runs, fast="auto")
    if buffer:
        assert [float(run.model.network.calls) for run in runs] == before


@pytest.mark.parametrize("method", [SVI(), MAP()], ids=["svi", "map"])
@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: nn.Sequential(network(), nn.Dropout(0.5)), "draws random numbers of its own"),
        (recurrent, "cannot be batched: .*lstm"),
        (lambda: network(hidden=60_000), "steps over 420,003 weights times draws are faster one at a time"),
    ],
    ids=["dropout", "lstm", "large"],
)
def test_networks_that_cannot_be_batched_are_refused_untouched(method: Any, net: Any, message: str) -> None:
    runs = [training(r, priors.Normal(), net=net(), inference=method) for r in range(2)]
    before = [(found(run), run.noise) for run in runs]
    with pytest.raises(NotBatchableError, match=message):
        train(runs)
    for run, (kept, noise) in zip(runs, before, strict=True):
        assert torch.equal(found(run), kept)
        assert all(torch.equal(run.noise[key], noise[key]) for key in noise)


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(NotBatchableError, match="no training"):
        train([])


class Made:
    def load(self) -> Dataset:
        return classes(N, validation=4)


def made(**options: Any) -> Run:
    return Run(
        data=Made(),
        model=lambda spec, prior, likelihood: BayesianNetwork(network(), prior, likelihood, spec.N),
        prior=MIXTURES[0], likelihood=likelihoods.Categorical(), guide=MeanFieldNormal,
        optim=partial(torch.optim.Adam, lr=0.01), epochs=2, batch_size=6, chains=2, draws=5, device="cpu",
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("method", [SVI(), MAP()], ids=["svi", "map"])
def test_a_run_trains_its_chains_together(method: Inference, tmp_path: Path) -> None:
    progress = Listens()
    apart = made(inference=method).execute()
    together = made(inference=method, together=True).execute(tmp_path, progress=progress)
    assert not any("one chain after the other" in line for line in progress.said)
    for (_, a), (_, b) in zip(apart.posterior.chains, together.posterior.chains, strict=True):
        torch.testing.assert_close(b.loc, a.loc, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "chain-1.pt").exists()
    again = made(inference=method, together=True).execute(tmp_path)
    for (_, a), (_, b) in zip(again.posterior.chains, together.posterior.chains, strict=True):
        assert torch.equal(a.loc, b.loc)


def test_a_run_that_cannot_says_so_and_trains_one_after_the_other() -> None:
    progress = Listens()
    result = made(together=True, fast="eager")
    result = replace(result, guide=AutoNormal).execute(progress=progress)
    assert len(result.posterior.chains) == 2
    assert any("one chain after the other: each training must take the fast path" in s for s in progress.said)
