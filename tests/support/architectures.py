"""Forty small networks of the kinds that users bring, each with inputs and the likelihood that fits it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from pyrobbb import likelihoods, priors
from pyrobbb.data.images.torchvision_compat import import_torchvision

ROWS = 6
Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """A network, the shape of an input row (or the number of token kinds besides), and what its output is."""

    make: Make
    features: tuple[int, ...] = (4,)
    tokens: int = 0
    grid: tuple[int, ...] = ()
    outputs: int = 2
    likelihood: Callable[[], likelihoods.Likelihood] = likelihoods.Normal
    prior: priors.Prior = field(default_factory=partial(priors.Normal, sigma=0.3))
    dtype: torch.dtype = torch.float32

    def rows(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        generator = torch.Generator().manual_seed(seed)
        shape = (ROWS, *self.features)
        x = torch.randint(self.tokens, shape, generator=generator) if self.tokens else None
        x = torch.randn(shape, generator=generator).to(self.dtype) if x is None else x
        y_shape = (ROWS, *self.grid)
        if self.likelihood().task == "classification":
            return x, torch.randint(self.outputs, y_shape, generator=generator)
        y = torch.randn((*y_shape, self.outputs), generator=generator).to(self.dtype)
        return x, y.abs().round() if self.likelihood is likelihoods.Poisson else y


class Chain(nn.Module):
    """Modules and plain functions, one after another."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.order = [part if not isinstance(part, nn.Module) else None for part in parts]

    def forward(self, x: Any) -> Any:
        modules = iter(self.modules_)
        for part in self.order:
            x = next(modules)(x) if part is None else part(x)
        return x


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Attention(nn.Module):
    """Self-attention over a sequence, its mean read out."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    """The same square weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Remembers(nn.Module):
    """Keeps what is inside it for a look at it: as it is, and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.features = torch.tanh(self.first(x))
        self.every = [x, self.features]
        return self.out(self.features)


class LanguageModel(nn.Module):
    """Token by token the logits of the next, read out by the embedding's own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(5, 4), nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.mix(self.table(x))[0], self.table.weight)


class Mixed(nn.Module):
    """Category codes in the first column, numbers in the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(3, 2), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.table(x[:, 0].abs().long().clamp(max=2)), x[:, 1:]], 1))


class Bilinear(nn.Module):
    """A product of the two halves of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Bilinear(2, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x[:, :2], x[:, 2:])


class Scalar(nn.Module):
    """A parameter without dimensions beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.out = nn.Parameter(torch.tensor(1.0)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.out(x)


class Shared(nn.Module):
    """One set of weights for each row of the input, then a sum (a deep set)."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.each(x)).sum(1))


class UNet(nn.Module):
    """Down, up, and a connection that skips both; an output for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.out = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([x, self.up(torch.relu(self.down(x)))], 1)
        return self.out(joined).permute(0, 2, 3, 1)


def last(x: tuple[Tensor, Any]) -> Tensor:
    """The last output of a recurrent layer."""
    return x[0][:, -1]


def block(channels: int) -> nn.Module:
    """A residual block with group norm."""
    return Residual(
        nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
    )  # fmt: skip


def mlp(activation: Make = nn.ReLU, norm: Make | None = None) -> nn.Module:
    """One hidden layer of 5."""
    return nn.Sequential(nn.Linear(4, 5), *([norm()] if norm else []), activation(), nn.Linear(5, 2))


def encoder() -> nn.Module:
    """A transformer's encoder of one layer, with dropout."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return Chain(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), _mean, nn.Linear(4, 2))


def resnet18() -> nn.Module:
    """torchvision's, its batch normalisation fixed."""
    return import_torchvision().models.resnet18(num_classes=2).eval()


def half_resnet18() -> nn.Module:
    """Its first two stages of four, with 0.7 of its 11 million weights."""
    net = resnet18()
    net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 2)
    return net


def _mean(x: Tensor) -> Tensor:
    return x.mean(1)


def _pooled(x: Tensor) -> Tensor:
    return x.mean((2, 3))


IMAGE, SEQUENCE = (1, 6, 6), (5, 4)
LAST_LAYER = priors.PerParameter(default=priors.Deterministic(), where={"fc.*": priors.Normal(sigma=0.3)})
CASES: dict[str, Case] = {
    "linear": Case(lambda: nn.Linear(4, 2)),
    "mlp": Case(mlp),
    "mlp of classes": Case(mlp, likelihood=likelihoods.Categorical),
    "deep mlp": Case(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), mlp(), nn.ReLU(), nn.Linear(2, 2))),
    "residual mlp": Case(lambda: nn.Sequential(Residual(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))),
    "layer norm": Case(lambda: mlp(norm=lambda: nn.LayerNorm(5))),
    "batch norm, evaluating": Case(lambda: mlp(norm=lambda: nn.BatchNorm1d(5)).eval()),
    "dropout": Case(lambda: mlp(norm=lambda: nn.Dropout(0.2))),
    "prelu": Case(lambda: mlp(nn.PReLU)),
    "a graph of torch.fx": Case(lambda: torch.fx.symbolic_trace(mlp())),
    "gated linear unit": Case(lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.Linear(3, 2))),
    "bilinear": Case(Bilinear),
    "tied weights": Case(Tied),
    "weight norm": Case(lambda: parametrizations.weight_norm(nn.Linear(4, 2))),
    "spectral norm": Case(lambda: parametrizations.spectral_norm(nn.Linear(4, 2)).eval()),
    "a parameter without dimensions": Case(Scalar),
    "keeps its features": Case(Remembers),
    "no bias": Case(lambda: nn.Linear(4, 2, bias=False)),
    "float64": Case(lambda: mlp().double(), dtype=torch.float64),
    "bfloat16": Case(lambda: mlp().bfloat16(), dtype=torch.bfloat16),
    "partly frozen": Case(lambda: nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))),
    "noise of its own for each row": Case(
        lambda: nn.Linear(4, 4), likelihood=likelihoods.HeteroscedasticNormal
    ),
    "counts": Case(lambda: nn.Linear(4, 2), likelihood=likelihoods.Poisson),
    "embedding": Case(lambda: Chain(nn.Embedding(7, 3), _mean, nn.Linear(3, 2)), (5,), tokens=7),
    "embedding with padding": Case(
        lambda: Chain(nn.Embedding(7, 3, padding_idx=0), _mean, nn.Linear(3, 2)), (5,), tokens=7
    ),
    "embedding bag": Case(lambda: Chain(nn.EmbeddingBag(7, 3), nn.Linear(3, 2)), (5,), tokens=7),
    "embedding beside numbers": Case(Mixed),
    "convolution": Case(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)),
        IMAGE, likelihood=likelihoods.Categorical,
    ),
    "convolution in one dimension": Case(
        lambda: nn.Sequential(nn.Conv1d(5, 2, 3), nn.Flatten(), nn.Linear(4, 2)), SEQUENCE
    ),
    "convolution in three": Case(
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 2)), (1, 3, 3, 3)
    ),
    "depthwise convolution": Case(
        lambda: Chain(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 3, 1), _pooled, nn.Linear(3, 2)), (2, 5, 5)
    ),
    "dilated convolution": Case(lambda: Chain(nn.Conv2d(1, 2, 3, dilation=2), _pooled), IMAGE),
    "transposed convolution": Case(
        lambda: Chain(nn.ConvTranspose2d(1, 2, 3, stride=2), _pooled), (1, 3, 3)
    ),
    "residual blocks": Case(
        lambda: Chain(nn.Conv2d(1, 4, 3), block(4), nn.ReLU(), _pooled, nn.Linear(4, 2)), IMAGE
    ),
    "pixels": Case(UNet, IMAGE, grid=(6, 6)),
    "lstm": Case(lambda: Chain(nn.LSTM(4, 3, batch_first=True), last, nn.Linear(3, 2)), SEQUENCE),
    "gru, both ways": Case(
        lambda: Chain(nn.GRU(4, 3, batch_first=True, bidirectional=True), last, nn.Linear(6, 2)), SEQUENCE
    ),
    "plain recurrence": Case(lambda: Chain(nn.RNN(4, 3, batch_first=True), last, nn.Linear(3, 2)), SEQUENCE),
    "attention": Case(Attention, SEQUENCE),
    "transformer encoder": Case(encoder, SEQUENCE),
    "deep set": Case(Shared, (5, 3)),
    "values on a grid": Case(lambda: nn.Linear(4, 2), (5, 4), grid=(5,)),
    "language model": Case(
        LanguageModel, (3,), tokens=5, grid=(3,), outputs=5, likelihood=likelihoods.Categorical
    ),
    "half of resnet18": Case(half_resnet18, (3, 16, 16), likelihood=likelihoods.Categorical),
    "resnet18's last layer": Case(
        resnet18, (3, 16, 16), likelihood=likelihoods.Categorical, prior=LAST_LAYER
    ),
}  # fmt: skip
