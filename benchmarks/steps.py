"""One training step of this library, of a plain network and of Pyro as usually written.

A step is noise, loss, gradient and optimiser on a made minibatch of 784 inputs a row; the network has two
hidden layers, the data set N = 50,000 rows, the prior is the paper's mixture.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from benchmarks.timing import Work
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.distributions import ScaleMixtureNormal
from pyrobbb.inference import Inference
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import perceptron
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import Training

N, BATCH, INPUTS, CLASSES = 50_000, 128, 784, 10


class Told(Silent):
    """Prints what a training says, such as a fallback to a slower path, and keeps it for the record."""

    def __init__(self, name: str = "") -> None:
        self.name, self.lines = name, list[str]()

    def log(self, message: str) -> None:
        self.lines.append(message)
        print(f"{self.name}: {message}" if self.name else message, flush=True)


def rows(batch: int = BATCH, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """A made minibatch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, INPUTS, generator=generator)
    return x.to(device), torch.randint(0, CLASSES, (batch,), generator=generator).to(device)


def plain(width: int, batch: int = BATCH, device: str = "cpu") -> Work:
    """An ordinary network with fused Adam: the floor."""
    net = perceptron(INPUTS, (width, width), CLASSES).to(device)
    x, y = rows(batch, device)
    return descent(net.parameters(), lambda: F.cross_entropy(net(x), y))


def descent(parameters: Iterable[Tensor], loss: Callable[[], Tensor]) -> Work:
    """A step of fused Adam down `loss()`."""
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def network(width: int, N: int = N, prior: priors.Prior | None = None) -> BayesianNetwork:
    """This library's model; the prior is the paper's mixture if no other is given."""
    net = perceptron(INPUTS, (width, width), CLASSES)
    return BayesianNetwork(net, prior or priors.ScaleMixture(), likelihoods.Categorical(), N)


def training(
    width: int,
    fast: str,
    *,
    batch: int = BATCH,
    device: str = "cpu",
    prior: priors.Prior | None = None,
    guide: Callable[..., nn.Module] = MeanFieldNormal,
    inference: Inference | None = None,
    told: Told | None = None,
    **options: Any,
) -> tuple[Training, Tensor, Tensor]:
    """This library's training, and a minibatch for it; `told` receives its log lines."""
    x, y = rows(batch, device)
    data = Dataset("made", Split(x, y), Spec(batch, (INPUTS,), CLASSES, "classification"))
    model = network(width, batch, prior)
    adam = partial(torch.optim.Adam, lr=1e-3)
    q = guide(model) if inference is None else inference.guide(model, guide)
    made = Training(
        model, q, data, inference=inference, epochs=1, batch_size=batch, optim=adam, fast=fast, device=device,
        progress=told or Told(f"{width} wide, fast={fast}"), **options,
    )  # fmt: skip
    return made, x, y


def ours(width: int, fast: str = "compiled", *, batch: int = BATCH, **options: Any) -> Work:
    """This library's step; `fast` is "compiled", "eager" or "off", which is Pyro's own SVI."""
    made, x, y = training(width, fast, batch=batch, **options)
    return partial(made.step, x, y, batch / N, batch / N)


class _Layer(PyroModule):
    def __init__(self, inputs: int, outputs: int, device: str) -> None:
        super().__init__()
        numbers = (torch.tensor(v, device=device) for v in (0.5, 1.0, 0.0025))
        mixture = ScaleMixtureNormal(*numbers)
        self.weight = PyroSample(mixture.expand([outputs, inputs]).to_event(2))
        self.bias = PyroSample(mixture.expand([outputs]).to_event(1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Usual(PyroModule):
    def __init__(self, width: int, device: str) -> None:
        super().__init__()
        self.a, self.b = _Layer(INPUTS, width, device), _Layer(width, width, device)
        self.c = _Layer(width, CLASSES, device)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = self.c(F.relu(self.b(F.relu(self.a(x)))))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        return logits


def usual(width: int, batch: int = BATCH, device: str = "cpu", *, validate: bool = True) -> Work:
    """Pyro as usually written: PyroSample, AutoNormal, Trace_ELBO, pyro.optim.Adam.

    Its validation of arguments is on by default, as it is for whoever does not switch it off. The mixture's
    density is this library's own, to Pyro's advantage: MixtureSameFamily would be slower.
    """
    model = _Usual(width, device)
    guide = AutoNormal(model, init_scale=0.0067)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    x, y = rows(batch, device)

    def step() -> None:
        with pyro.validation_enabled(validate):
            svi.step(x, y)

    return step
