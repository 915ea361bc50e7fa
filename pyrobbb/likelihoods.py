"""Network output -> distribution of y. A likelihood never knows N: the model's plate does the scaling.

Each likelihood says how wide the network's last layer must be (`width`) and turns the output, of shape
`(*draws, B, width)`, into a distribution of batch shape `(*draws, B)`. To add one, imitate `Bernoulli`.
"""

from __future__ import annotations

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.distributions import TorchDistribution, constraints
from pyro.nn import PyroModule, PyroParam
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.dataset import Task


class Likelihood(PyroModule):
    """p(y | f) for a network output f."""

    task: Task

    def width(self, outputs: int) -> int:
        """Width of the network's last layer for `outputs` classes or regression targets."""
        return outputs

    def forward(self, output: Tensor) -> TorchDistribution:
        """The distribution of y given the network's output, batch shape `output.shape[:-1]`."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, output)")

    def check(self, output: Tensor, y: Tensor | None) -> None:
        """Raise ValueError if the network's output or `y` does not fit this likelihood."""
        if output.dim() < 2:
            raise ValueError(
                f"{type(self).__name__} needs a network output of shape (B, width), got {tuple(output.shape)}"
            )
        if y is not None and y.shape[0] != output.shape[-2]:
            raise ValueError(
                f"x and y differ in length: the network gave {output.shape[-2]} rows, y has {y.shape[0]}"
            )

    def check_domain(self, width: int, y: Tensor) -> None:
        """Raise ValueError if a value of `y` has no likelihood; looked at once, before training."""
        if not bool(y.isfinite().all()):
            raise ValueError(f"y has {int((~y.isfinite()).sum())} values that are not finite")

    def _check_targets(self, output: Tensor, y: Tensor | None, targets: int) -> None:
        if y is not None and y.shape[1:] != (targets,):
            raise ValueError(
                f"{type(self).__name__}: the network's output of width {output.shape[-1]} fits y of shape "
                f"({output.shape[-2]}, {targets}), got {tuple(y.shape)}"
            )


class Categorical(Likelihood):
    """p(y = c | f) = softmax(f)_c; `y` holds class numbers, shape `(B,)`. f are logits: no softmax layer."""

    task: Task = "classification"

    def forward(self, output: Tensor) -> TorchDistribution:
        return dist.Categorical(logits=output)

    def check(self, output: Tensor, y: Tensor | None) -> None:
        super().check(output, y)
        if output.shape[-1] < 2:
            raise ValueError("Categorical needs at least 2 classes, got an output of width 1; see Bernoulli")
        if y is None:
            return
        if y.dim() != 1 or y.is_floating_point():
            raise ValueError(
                f"Categorical needs integer labels of shape (B,), got {y.dtype} {tuple(y.shape)}"
            )

    def check_domain(self, width: int, y: Tensor) -> None:
        if int(y.min()) < 0 or int(y.max()) >= width:
            raise ValueError(
                f"labels must lie in 0..{width - 1} for a network output of width {width}, "
                f"got {int(y.min())}..{int(y.max())}"
            )


class Bernoulli(Likelihood):
    """p(y = 1 | f) = sigmoid(f), independently for each output; `y` is 0 or 1, shape `(B, outputs)`."""

    task: Task = "regression"

    def forward(self, output: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=output).to_event(1)

    def check_domain(self, width: int, y: Tensor) -> None:
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError("Bernoulli needs targets that are 0 or 1")

    def check(self, output: Tensor, y: Tensor | None) -> None:
        super().check(output, y)
        self._check_targets(output, y, output.shape[-1])


class Normal(Likelihood):
    r"""p(y | f) = N(y | f, scale^2), independently for each output; `y` has shape `(B, outputs)`.

    Args:
        scale: Standard deviation of the noise, in units of y.
        learn_scale: Train the standard deviation to a point, starting from `scale`.
    """

    task: Task = "regression"

    def __init__(self, scale: float = 0.1, learn_scale: bool = False) -> None:
        super().__init__()
        checks.positive("scale", scale)
        if learn_scale:
            self.scale = PyroParam(torch.tensor(float(scale)), constraint=constraints.softplus_positive)
        else:
            self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, output: Tensor) -> TorchDistribution:
        return dist.Normal(output, self.scale.to(output.dtype)).to_event(1)

    def check(self, output: Tensor, y: Tensor | None) -> None:
        super().check(output, y)
        self._check_targets(output, y, output.shape[-1])


class HeteroscedasticNormal(Likelihood):
    r"""p(y | f) = N(y | f_{1..K}, softplus(f_{K+1..2K})^2): the network gives the noise as well.

    Args:
        least_scale: Added to the standard deviation, in units of y, so that no datum is fitted exactly.
    """

    task: Task = "regression"

    def __init__(self, least_scale: float = 1e-3) -> None:
        super().__init__()
        self.least_scale = checks.positive("least_scale", least_scale)

    def width(self, outputs: int) -> int:
        return 2 * outputs

    def forward(self, output: Tensor) -> TorchDistribution:
        loc, raw = output.chunk(2, dim=-1)
        return dist.Normal(loc, F.softplus(raw) + self.least_scale).to_event(1)

    def check(self, output: Tensor, y: Tensor | None) -> None:
        super().check(output, y)
        if output.shape[-1] % 2:
            raise ValueError(
                f"HeteroscedasticNormal needs a network output of even width (mean and noise), "
                f"got {output.shape[-1]}"
            )
        self._check_targets(output, y, output.shape[-1] // 2)
