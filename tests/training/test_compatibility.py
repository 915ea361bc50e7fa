"""A checkpoint of another training is refused, in one message that names what differs."""

import logging
import re
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributions import AffineTransform, ExpTransform
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    MultiplicativeLR,
    MultiStepLR,
    SequentialLR,
)

from engine_fakes import Interrupts, classes, network, values
from pyrobbb import kl_weights as kl
from pyrobbb import likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.device import tf32_products, uses_tf32
from pyrobbb._support.random_state import isolated
from pyrobbb._support.settings import values as plain_values
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset
from pyrobbb.from_trained import partly_bayesian
from pyrobbb.inference import SVI, Inference, NaturalGradient
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.training import compatibility as made_with
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.trainer import Training, fit

DATA = values(N=200)


def training(folder: Path, data: Dataset = DATA, **changes: Any) -> Training:
    prior, scale = changes.pop("prior", priors.Normal()), changes.pop("scale", 0.1)
    model = BayesianNetwork(network(width=2), prior, likelihoods.Normal(scale=scale), N=200)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 50, "device": "cpu", "fast": "eager"}
    return Training(model, MeanFieldNormal(model), data, folder=folder, **{**options, **changes})


COSINE = partial(CosineAnnealingLR, T_max=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior": priors.Normal(sigma=2.0)}, "made with prior Normal(sigma=1.0), this is Normal(sigma=2.0)"),
        ({"prior": priors.Laplace()}, "made with prior Normal(sigma=1.0), this is Laplace(scale=1.0)"),
        ({"scale": 5.0}, "made with likelihood scale 0.1"),
        ({"kl": kl.Geometric()}, "made with kl Uniform(), this is Geometric()"),
        ({"seed": 7}, "made with seed 0, this is 7"),
        ({"samples": 2}, "made with samples 1, this is 2"),
        ({"batch_size": 40}, "made with batch_size 50, this is 40"),
        ({"optim": partial(Adam, lr=0.5)}, "made with optim lr [0.001], this is [0.5]"),
        ({"optim": partial(SGD, lr=1e-3)}, "made with optimizer Adam, this is SGD"),
        ({"rates": {"rho": 2.0}}, "made with optim lr [0.001], this is [0.001, 0.002]"),
        ({"schedule": COSINE}, "made with schedule kind none, this is CosineAnnealingLR"),
        ({"epochs": 1}, "is at epoch 2, but this training ends after 1"),
        ({"optim": partial(Adam, lr=1e-3, betas=(0.5, 0.9))}, "made with optim betas [0.9, 0.999], this is"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    training(tmp_path).run()
    other = training(tmp_path, **changes)
    before = {k: v.clone() for k, v in other.guide.state_dict().items()}
    with pytest.raises(CheckpointError, match=re.escape(message)):
        other.resume()
    assert all(torch.equal(v, before[k]) for k, v in other.guide.state_dict().items())


def with_betas(beta: float) -> Any:
    """Adam with betas that its groups name, not its defaults."""
    return lambda groups: Adam([{**group, "betas": (beta, 0.999)} for group in groups], lr=1e-3)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"rates": {"rho": 10.0}},
            {"rates": {"loc": 10.0}},
            "made with parameter groups ['guide.loc', 'guide.rho'], this is ['guide.rho', 'guide.loc']",
        ),
        (
            {"optim": with_betas(0.5)},
            {"optim": with_betas(0.9)},
            "made with parameter groups ['betas=[0.5, 0.999]']",
        ),
    ],
)
def test_groups_of_other_parameters_or_options(
    first: dict[str, Any], second: dict[str, Any], message: str, tmp_path: Path
) -> None:
    training(tmp_path, **first).run()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        training(tmp_path, **second).resume()
    assert training(tmp_path, **first).resume()


def test_a_checkpoint_within_an_epoch_after_the_last_is_beyond_the_end(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path, callbacks=[Interrupts(at=6)]).run()  # of four in an epoch
    with pytest.raises(CheckpointError, match="is within epoch 2, but this training ends after 1"):
        training(tmp_path, epochs=1).resume()


def switched(gamma: float, after: int) -> Any:
    def make(optimizer: torch.optim.Optimizer) -> SequentialLR:
        parts = [ConstantLR(optimizer, factor=1.0, total_iters=1), ExponentialLR(optimizer, gamma=gamma)]
        return SequentialLR(optimizer, parts, milestones=[after])

    return make


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            partial(MultiStepLR, milestones=[8]),
            partial(MultiStepLR, milestones=[3]),
            "milestones [8], this is [3]",
        ),
        (switched(0.5, 2), switched(0.9, 2), "'gamma': 0.5}], this is"),
        (switched(0.5, 2), switched(0.5, 3), "milestones [2], this is [3]"),
        (
            partial(LambdaLR, lr_lambda=lambda epoch: 0.5**epoch),
            partial(LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
            "was made with factors [1.0, 0.5, 0.25,",
        ),
        (
            partial(MultiplicativeLR, lr_lambda=lambda epoch: 1.0),
            partial(MultiplicativeLR, lr_lambda=lambda epoch: 0.1),
            "was made with factors [1.0, 1.0,",
        ),
    ],
)
def test_another_schedule_of_the_same_kind(first: Any, second: Any, message: str, tmp_path: Path) -> None:
    training(tmp_path, schedule=first).run()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        training(tmp_path, schedule=second, epochs=4).resume()
    assert training(tmp_path, schedule=first, epochs=4).resume()


def test_another_network_of_the_same_shapes(tmp_path: Path) -> None:
    training(tmp_path).run()
    model = BayesianNetwork(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        priors.Normal(),
        likelihoods.Normal(scale=0.1),
        200,
    )
    guide = MeanFieldNormal(model)
    other = Training(model, guide, DATA, epochs=2, batch_size=50, device="cpu", fast="eager", folder=tmp_path)
    with pytest.raises(
        CheckpointError, match=r"another network: \(1\): Tanh\(\) there, \(1\): ReLU\(\) here"
    ):
        other.resume()


def test_a_rate_of_32_bits_is_the_same_rate() -> None:
    """On CUDA the rates are tensors of 32 bits."""
    group = {"params": [nn.Parameter(torch.zeros(1))]}
    double, single = (Adam([dict(group)], lr=0.001) for _ in range(2))
    single.param_groups[0]["lr"] = torch.tensor(0.001)
    assert made_with.optimizer(single)["lr"] == made_with.optimizer(double)["lr"] == [0.001]
    schedules = [ExponentialLR(made, gamma=0.5) for made in (double, single)]
    assert made_with.schedule(schedules[0]) == made_with.schedule(schedules[1])


def test_products_in_tf32_are_recorded(tmp_path: Path) -> None:
    """On CUDA, whether the option or the user asked for them; on the CPU there are none."""
    first = training(tmp_path, tf32=True)
    assert first.made_with["tf32"] is False
    first.made_with["tf32"] = True  # as on CUDA
    first.run()
    with pytest.raises(CheckpointError, match="made with tf32 True, this is False"):
        training(tmp_path).resume()
    assert torch.get_float32_matmul_precision() == "highest"
    with tf32_products(True):
        assert uses_tf32(torch.device("cuda"))
        assert not uses_tf32(torch.device("cpu"))
    assert not uses_tf32(torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch 2.8 has the older names alone"
)
def test_tf32_may_be_chosen_by_the_names_of_newer_torch() -> None:
    """After which the older names, which are for all backends, cannot be read."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        for asked in (False, True):
            with tf32_products(asked):
                assert uses_tf32(torch.device("cuda"))
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


def test_another_kind_of_device_goes_on_with_new_noise(tmp_path: Path) -> None:
    first = training(tmp_path)
    first.noise["cuda"] = torch.zeros(16, dtype=torch.uint8)  # as a training on CUDA leaves it
    state = first.state_dict()
    said: list[str] = []
    again = training(tmp_path / "other")
    again.progress.log = said.append  # type: ignore[method-assign]
    before = again.noise["cpu"].clone()
    again.load_state_dict(state, "there.pt")
    assert said == ["there.pt was made on another kind of device; it resumes with new noise"]
    assert not torch.equal(again.noise["cpu"], before)
    assert set(again.noise) == {"cpu"}


def test_a_longer_schedule_is_another_one(tmp_path: Path) -> None:
    training(tmp_path, schedule=COSINE, epochs=4).run()
    with pytest.raises(CheckpointError, match="schedule T_max 4, this is 8"):
        training(tmp_path, schedule=partial(CosineAnnealingLR, T_max=8), epochs=8).resume()
    more = training(tmp_path, schedule=COSINE, epochs=5)
    assert more.resume()
    assert more.epoch == 4


@pytest.mark.parametrize("part", ["x", "y"])
def test_one_other_number_is_other_data(part: str, tmp_path: Path) -> None:
    training(tmp_path).run()
    changed = getattr(DATA.train, part).clone()
    changed[1, 0] += 1.0  # no row of the 64 that an earlier version looked at
    with pytest.raises(CheckpointError, match="other training data"):
        training(tmp_path, data=replace(DATA, train=replace(DATA.train, **{part: changed}))).resume()


@pytest.mark.parametrize("part", ["x", "y"])
def test_other_validation_rows_are_refused(part: str, tmp_path: Path) -> None:
    """The history would go on with errors of other rows, and a callback that keeps the best compare them."""
    held = values(N=100, seed=7).train
    training(tmp_path, validation=held).run()
    changed = getattr(held, part).clone()
    changed[1, 0] += 1.0
    with pytest.raises(CheckpointError, match="made with other validation data"):
        training(tmp_path, validation=replace(held, **{part: changed})).resume()
    assert training(tmp_path, validation=held).resume()
    assert training(tmp_path).resume()  # a posterior does not depend on them


def test_a_prior_around_other_trained_weights_is_another_prior(tmp_path: Path) -> None:
    def around(seed: int) -> BayesianNetwork:
        return partly_bayesian(network(seed=seed), "2.*", likelihoods.Categorical(), sigma=0.1)

    options: dict[str, Any] = {"epochs": 1, "folder": tmp_path, "progress": None}
    fit(around(0), MeanFieldNormal, classes(), **options)
    with pytest.raises(CheckpointError, match="made with trained weights"):
        fit(around(1), MeanFieldNormal, classes(), **options)
    fit(around(0), MeanFieldNormal, classes(), **options)


def test_another_frozen_backbone_is_another_network(tmp_path: Path) -> None:
    """A checkpoint holds the frozen weights: they had taken the place of those given, without a word."""

    def before(seed: int) -> BayesianNetwork:
        net = network(seed=seed)
        net[0].requires_grad_(False)
        return BayesianNetwork(net, priors.Normal(), likelihoods.Categorical())

    options: dict[str, Any] = {"folder": tmp_path, "progress": None}
    fit(before(0), MeanFieldNormal, classes(), epochs=1, **options)
    with pytest.raises(CheckpointError, match="made with frozen weights"):
        fit(before(1), MeanFieldNormal, classes(), epochs=2, **options)
    fit(before(0), MeanFieldNormal, classes(), epochs=2, **options)


class Shifted(nn.Module):
    """Subtracts a constant, a buffer; counts its rows in another."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((3,), mean))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
        return self.linear(x - self.mean)


class Plainly(nn.Module):
    """Subtracts a tensor that is no buffer; remembers another from the last batch."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean, self.last = torch.full((3,), mean), torch.zeros(3)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x[-1].detach()
        return self.linear(x - self.mean)


def test_constants_that_are_plain_tensors_are_compared(tmp_path: Path) -> None:
    def fitted(mean: float, epochs: int) -> None:
        model = BayesianNetwork(Plainly(mean), priors.Normal(), likelihoods.Normal(0.1), N=200)
        fit(model, MeanFieldNormal, DATA, epochs=epochs, batch_size=50, progress=None, folder=tmp_path)

    fitted(0.0, 1)
    fitted(0.0, 2)
    with pytest.raises(CheckpointError, match=r"other values of the tensor network\.mean; give"):
        fitted(0.5, 3)


class Running(nn.Module):
    """Subtracts the running mean of its inputs, which is no buffer."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.mean, self.linear = in_place, torch.zeros(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            now = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.mean = self.mean.copy_(now) if self.in_place else now
        return self.linear(x - self.mean)


@pytest.mark.parametrize(
    ("fast", "in_place", "method"),
    [("auto", True, SVI()), ("off", True, SVI()), ("off", False, SVI()), ("off", True, NaturalGradient())],
)
def test_plain_tensors_that_training_changes_are_resumed(
    fast: str, in_place: bool, method: Inference, tmp_path: Path
) -> None:
    ends = []
    for epochs, folder in ((4, "whole"), (2, "parts"), (4, "parts")):
        with isolated(0):
            network = Running(in_place=in_place)
        model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.1), N=200)
        posterior = fit(
            model, MeanFieldNormal, DATA, inference=method,
            epochs=epochs, batch_size=50, progress=None, folder=tmp_path / folder, fast=fast,
        )  # fmt: skip
        [(model, guide)] = posterior.chains
        ends.append([model.network.mean, *guide.parameters()])
    torch.testing.assert_close(ends[2], ends[0], rtol=0, atol=0)
    assert not torch.equal(ends[1][0], ends[0][0])


class Counting(nn.Module):
    """Divides by a number that grows with its calls in training."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.dropout, self.linear = 0, nn.Dropout(0.5), nn.Linear(3, 2)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        self.seen += [len(x)] * self.training
        return self.linear(self.dropout(x)) / (1 + 0.01 * self.calls)


class EndsDropout(Callback):
    def on_epoch(self, view: Any, row: Any) -> None:
        if row.epoch == 1:
            view.model.network.dropout.eval()


def test_numbers_and_modes_that_training_changes_are_resumed(tmp_path: Path) -> None:
    ends = []
    for epochs, folder in ((4, "whole"), (2, "parts"), (4, "parts"), (4, "parts")):  # the last trains no more
        with isolated(0):
            model = BayesianNetwork(Counting(), priors.Normal(), likelihoods.Normal(0.1), N=200)
        guide = MeanFieldNormal(model)
        fit(
            model, guide, DATA, callbacks=[EndsDropout()],
            epochs=epochs, batch_size=50, progress=None, folder=tmp_path / folder, fast="eager",
        )  # fmt: skip
        assert not model.network.dropout.training
        ends.append([model.network.calls, model.network.seen, *guide.parameters()])
    torch.testing.assert_close(ends[2:], [ends[0], ends[0]], rtol=0, atol=0)
    assert ends[1][0] < ends[0][0]


class OwnBuffer(priors.Prior, nn.Module):
    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.register_buffer("sigma", torch.tensor(sigma))

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.sigma), parameter)


@pytest.mark.parametrize(("mean", "sigma", "which"), [(0.5, 1.0, "network.mean"), (0.0, 2.0, "prior.sigma")])
def test_constants_that_are_buffers_are_compared(
    mean: float, sigma: float, which: str, tmp_path: Path
) -> None:
    """The checkpoint's had taken the place of those given; what training changes comes from there."""

    def model(mean: float = 0.0, sigma: float = 1.0) -> BayesianNetwork:
        return BayesianNetwork(Shifted(mean), OwnBuffer(sigma), likelihoods.Normal(0.1), N=200)

    def fitted(made: BayesianNetwork, epochs: int) -> int:
        options: dict[str, Any] = {"batch_size": 50, "fast": "off", "progress": None, "folder": tmp_path}
        return int(fit(made, MeanFieldNormal, DATA, epochs=epochs, **options).model.network.seen)

    one, other = fitted(model(), 1), fitted(fresh := model(), 2)
    assert other >= one + 200 > 200
    assert fitted(fresh, 3) >= other + 200  # the same model again, whose count is not 0 any more
    with pytest.raises(CheckpointError, match=f"made with other values of the tensor {which}; give another"):
        fitted(model(mean, sigma), 4)


class Own(priors.Prior):
    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.sigma), parameter)


class OwnModule(priors.Prior, nn.Module):
    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.sigma), parameter)


class OwnScale(priors.Prior, PyroModule):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = PyroSample(dist.HalfNormal(scale))

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, priors.beside(self.scale, parameter)), parameter)


class OwnTensors(priors.Prior):
    """As one made from a posterior."""

    def __init__(self, sigma: float) -> None:
        self.every, self.scale = torch.full((500,), sigma), {"2.weight": torch.full((2, 4), sigma)}

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.every[0]), parameter)


class OwnTable(Own):
    """Of numbers that numpy holds."""

    def __init__(self, sigma: float) -> None:
        super().__init__(1.0)
        self.table = np.array([sigma, 1.0], np.float32)


class OwnNoise(likelihoods.Likelihood):
    def __init__(self, sd: float) -> None:
        super().__init__()
        self.sd = torch.tensor(sd)

    def forward(self, output: torch.Tensor) -> Any:
        return dist.Normal(output, self.sd).to_event(1)


class OwnWeight(kl.KLWeight):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        return self.factor * batch_fraction


def within(prior: priors.Prior) -> priors.PerParameter:
    return priors.PerParameter(default=priors.Normal(), where={"2.*": prior})


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"prior": Own(1.0)}, {"prior": Own(0.05)}, "sigma"),
        ({"prior": OwnModule(1.0)}, {"prior": OwnModule(0.05)}, "value of the prior sigma 1.0, this is 0.05"),
        ({"prior": OwnScale(1.0)}, {"prior": OwnScale(0.05)}, "value of the prior scale.scale 1.0, this is"),
        ({"prior": within(Own(1.0))}, {"prior": within(Own(0.05))}, "value of the prior where.2.*.sigma 1.0"),
        (
            {"prior": OwnTensors(1.0)},
            {"prior": OwnTensors(0.05)},
            "sizes of the weights' prior 0.weight 1 ",
        ),
        ({"prior": OwnTable(1.0)}, {"prior": OwnTable(0.5)}, "other values of the tensor prior.table"),
        (
            {"prior": within(OwnTensors(1.0))},
            {"prior": within(OwnTensors(0.05))},
            "sizes of the weights' prior 2.weight ",
        ),
        (
            {"likelihood": OwnNoise(0.5)},
            {"likelihood": OwnNoise(0.25)},
            "other values of the tensor likelihood.sd",
        ),
        (
            {"likelihood": likelihoods.Rescaled(likelihoods.StudentT(df=2.5), [5.0], [5.0])},
            {"likelihood": likelihoods.Rescaled(likelihoods.StudentT(df=50.0), [5.0], [5.0])},
            "value of the likelihood",
        ),
        (
            {"likelihood": likelihoods.Normal(dist.HalfNormal(1.0))},
            {"likelihood": likelihoods.Normal(dist.HalfNormal(0.01))},
            "value of the likelihood scale.scale 1.0, this is",
        ),
        (
            {"kl": kl.WarmUp(epochs=2, then=OwnWeight(1.0))},
            {"kl": kl.WarmUp(epochs=2, then=OwnWeight(2.0))},
            "value of the kl then.factor 1.0, this is 2.0",
        ),
    ],
)
def test_what_a_part_of_ones_own_holds_is_compared(
    first: Any, second: Any, message: str, tmp_path: Path
) -> None:
    """On resumption, and in a saved posterior; the same again is not refused."""

    def made(changes: Any) -> BayesianNetwork:
        prior = changes.get("prior", priors.Normal())
        likelihood = changes.get("likelihood", likelihoods.Normal(0.1))
        return BayesianNetwork(network(width=2), deepcopy(prior), deepcopy(likelihood), N=200)

    def fitted(changes: Any, epochs: int) -> Posterior:
        return fit(
            made(changes), AutoNormal, values(N=200), kl=changes.get("kl"), folder=tmp_path, epochs=epochs,
            batch_size=50, fast="off", progress=None,
        )  # fmt: skip

    fitted(first, 1)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        fitted(second, 2)
    fitted(first, 2).save(tmp_path / "saved")
    assert Posterior.load(tmp_path / "saved", made(first), AutoNormal(made(first))).chains
    if "kl" not in first:  # which a posterior does not have
        with pytest.raises(CheckpointError, match=r"was made with (another|other values of the tensor)"):
            Posterior.load(tmp_path / "saved", made(second), AutoNormal(made(second)))


def test_the_last_digit_of_a_tensor_may_differ_as_between_processors(tmp_path: Path) -> None:
    """Such as a prior's that is made from a posterior, in a saved posterior too."""
    every = []
    for epochs, sigma in ((1, 1.0), (2, 1.0000001)):
        model = BayesianNetwork(network(width=2), OwnTensors(sigma), likelihoods.Normal(0.1), N=200)
        posterior = fit(
            model, MeanFieldNormal, DATA, epochs=epochs, batch_size=50, folder=tmp_path, fast="eager",
            progress=None,
        )  # fmt: skip
        every.append(model.prior.every)
        posterior.save(tmp_path)
    assert not torch.equal(*every)
    model = BayesianNetwork(network(width=2), OwnTensors(1.0), likelihoods.Normal(0.1), N=200)
    assert Posterior.load(tmp_path, model, MeanFieldNormal(model)).chains


class Kind(Enum):
    NARROW = "narrow"
    WIDE = "wide"


class Odd(priors.Prior):
    """Attributes of every kind that Python has."""

    def __init__(self, kind: Kind = Kind.NARROW, middle: torch.Tensor | None = None) -> None:
        self.kind, self.log, self.own, self.missing = kind, logging.getLogger("odd"), self, float("nan")
        self.function, self.many, self.array = max, list(range(1000)), np.ones(3)
        middle = torch.zeros(500) if middle is None else middle
        self.of_yesterday = {"0.weight": dist.Normal(middle, 1.0).to_event(1)}

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, 1.0 if self.kind is Kind.WIDE else 0.5), parameter)


def test_what_no_checkpoint_can_hold_is_told_apart_all_the_same(tmp_path: Path) -> None:
    """Enumerations, cycles, NaN, functions; long lists and tensors by a digest."""
    options: dict[str, Any] = {"batch_size": 50, "fast": "eager", "progress": None, "folder": tmp_path}

    def again(prior: priors.Prior, epochs: int) -> None:
        model = BayesianNetwork(network(width=2), prior, likelihoods.Normal(0.1), N=200)
        fit(model, MeanFieldNormal, DATA, epochs=epochs, **options)

    again(Odd(), 1)
    again(Odd(), 2)
    with pytest.raises(CheckpointError, match="value of the prior kind NARROW, this is WIDE"):
        again(Odd(Kind.WIDE), 3)
    with pytest.raises(
        CheckpointError, match=r"value of the prior of_yesterday\..*shape \(500,\)"
    ) as refused:
        again(Odd(middle=torch.full((500,), 1e-6)), 3)
    assert len(str(refused.value)) < 1500
    assert (tmp_path / "chain-0.pt").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dist.TransformedDistribution(dist.Normal(0.0, 1.0), [AffineTransform(0.0, 2.0)]),
         dist.TransformedDistribution(dist.Normal(0.0, 1.0), [AffineTransform(0.0, 3.0)])),
        (dist.TransformedDistribution(dist.Normal(0.0, 1.0), [ExpTransform()]),
         dist.TransformedDistribution(dist.Normal(0.0, 2.0), [ExpTransform()])),
        (dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), 1.0)),
         dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.ones(2), 1.0))),
        (dist.MultivariateNormal(torch.zeros(2), torch.eye(2)),
         dist.MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))),
        (partial(max, key=1.0), partial(max, key=2.0)),
    ],
)  # fmt: skip
def test_distributions_are_told_apart_by_all_that_they_are(one: Any, other: Any) -> None:
    assert plain_values(one) == plain_values(deepcopy(one)) != plain_values(other)


class AsWide(priors.Prior):
    """As wide as the network's own value of each weight."""

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return dist.Normal(0.0, parameter.detach().abs() + 0.1).to_event(parameter.dim())


class _Within(priors.Prior):
    """A normal whose scale lies where nobody looks, as in an earlier posterior."""

    def __init__(self, scale: float) -> None:
        self._found = [scale]

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self._found[0]), parameter)


def test_a_prior_of_ones_own_is_told_by_what_it_gives(tmp_path: Path) -> None:
    def fitted(scale: float) -> None:
        model = BayesianNetwork(nn.Linear(1, 1), _Within(scale), likelihoods.Normal(0.5))
        rows = from_arrays(torch.ones(4, 1), torch.ones(4, 1), task="regression")
        fit(model, MeanFieldNormal(model), rows, epochs=1, folder=tmp_path, progress=None)

    fitted(0.3)
    fitted(0.3)
    with pytest.raises(
        CheckpointError, match=r"made with sizes of the weights' prior weight \d 0\.\d+, this is 0"
    ):
        fitted(0.4)


class _InBuffers(priors.Prior, nn.Module):
    """A prior of one's own whose numbers are a module's, and may change."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("own", torch.zeros(shape))

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, 1.0), parameter)


class _Drawing(priors.Prior):
    """A prior that draws its scale whenever it is asked."""

    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, torch.rand(()) + 0.1), parameter)


@pytest.mark.parametrize("prior", [_InBuffers(()), _InBuffers((0,)), _InBuffers((2,)), _Drawing()])
def test_what_a_prior_keeps_in_buffers_or_draws_is_not_compared(prior: priors.Prior) -> None:
    made = BayesianNetwork(nn.Linear(1, 1), prior, likelihoods.Normal(0.5))
    before = torch.get_rng_state()
    assert not [key for key in made_with.model(made) if "sizes" in key]
    assert torch.equal(torch.get_rng_state(), before)


def test_sizes_tell_order_and_sign_and_not_the_last_digit() -> None:
    v = torch.tensor([0.5, -1.0, 0.5, 2.0, -2.0])
    size = made_with._size
    assert size(v) == size(v * (1 + 1e-6)) == size(v.double())
    assert len({size(v), size(-v), size(v.flip(0)), size(2 * v)}) == 4
    assert len({size(torch.tensor(one)) for one in (-2.0, -1.0, 0.0, 1.0, 2.0)}) == 5


@pytest.mark.parametrize("own", [priors.Learned(priors.Centred()), AsWide()])
def test_a_prior_that_reads_other_weights_is_another_prior(own: priors.Prior, tmp_path: Path) -> None:
    def around(seed: int) -> BayesianNetwork:
        prior = within(deepcopy(own))
        return BayesianNetwork(network(seed=seed), prior, likelihoods.Categorical())

    options: dict[str, Any] = {"folder": tmp_path, "progress": None}
    fit(around(0), MeanFieldNormal, classes(), epochs=1, **options)
    with pytest.raises(CheckpointError, match="made with trained weights"):
        fit(around(1), MeanFieldNormal, classes(), epochs=2, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "seed 0, this is 5"),
        ({"batch_size": 5}, "batch_size 6, this is 5"),
        ({"optim": partial(SGD, lr=0.1)}, "optimizer Adam, this is SGD"),
        ({"epochs": 1}, "is at epoch 2"),
        ({"data": classes(seed=3)}, "other training data"),
    ],
)
def test_point_estimates_too(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    def losses(**changes: Any) -> list[float]:
        options: dict[str, Any] = {"data": classes(), "epochs": 2, "batch_size": 6, "folder": tmp_path}
        model = BayesianNetwork(network(), priors.Deterministic(), likelihoods.Categorical())
        return [row.nll for row in fit(model, None, progress=None, **{**options, **changes}).history.rows]

    first = losses()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        losses(**changes)
    assert losses() == first
