r"""Noise on outputs instead of weights: the same expectation, a gradient of much less variance.

A linear layer with independent normal weights has, for each row, independent normal outputs (the local
reparameterisation, Kingma et al. 2015):

.. math::
    y = x\mu^T + \sqrt{x^2 (\sigma^2)^T} \circ \epsilon

Where a weight meets a row more than once (convolutions, sequences) the outputs of a row are dependent; there
one perturbation of the weights is shared by all rows, each with signs of its own (flipout, Wen et al. 2018):

.. math::
    y = x * \mu + ((x \circ r) * (\sigma \circ \epsilon)) \circ s

Both are unbiased; local reparameterisation of a convolution, with independent noise at each place, is not.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pyrobbb.accelerated.fast_step import NotFastError
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.weight_sites import owner_of

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip

Take = Callable[..., Tensor]  # standard normals of a given shape


def layer_sites(model: BayesianNetwork) -> tuple[str, ...]:
    """The sites that are weights and biases of linear layers and convolutions, and of nothing else."""
    network = model.network
    paths = Counter(id(tensor) for _, tensor in network.named_buffers(remove_duplicate=False))

    def belongs(name: str) -> bool:
        module, attribute = owner_of(network, name)
        tied = paths[id(network.get_buffer(name))] > 1
        return type(module) in LAYERS and attribute in ("weight", "bias") and not tied

    return tuple(name for name in model.sites if belongs(name))


class LocalNoise(TorchFunctionMode):
    """While active, layers called with a loc as their weight compute outputs with noise.

    Args:
        locs: The loc of each weight, the very tensors that the layers will be called with.
        scales: Their standard deviations.
        rows: Rows of the batch: the first dimension of every layer's input.
        take: Gives standard normals.
        full: Rows of a full batch, which this one may begin: it takes the noise of all, so that the same
            rows have the same noise where the batch is filled up.

    Raises:
        NotFastError: On the way, if a weight is used twice, not on the batch, or in no layer.
    """

    def __init__(
        self, locs: Mapping[str, Tensor], scales: Mapping[str, Tensor], rows: int, take: Take, full: int
    ) -> None:
        super().__init__()
        self.names = {id(loc): name for name, loc in locs.items()}
        self.scales, self.rows, self.take, self.full = scales, rows, take, full
        self.used: set[str] = set()
        self.flipout: set[str] = set()  # those of them whose noise is that

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))  # also in a list, as torch.cat takes them
        ours = [self.names[id(part)] for part in given if id(part) in self.names]
        if not ours:
            return func(*args, **kwargs)
        if func is F.linear or func in CONVOLUTIONS:
            named = {"x" if name == "input" else name: value for name, value in kwargs.items()}
            return self._layer(func, ours, *args, **named)
        result = func(*args, **kwargs)
        # without a gradient, too: a norm of the loc is not that of a draw
        if any(isinstance(part, Tensor) and part.is_floating_point() for part in tree_leaves(result)):
            name = getattr(func, "__name__", func)
            if name == "__get__":  # of a property, such as T
                name = func.__self__.__name__
            raise NotFastError(f"the network uses {ours[0]!r} in {name}")
        return result

    def _layer(
        self,
        func: Any,
        ours: list[str],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *how: Any,
        **options: Any,
    ) -> Tensor:
        again = self.used & set(ours)
        if again:
            raise NotFastError(f"the network uses {min(again)!r} more than once")
        if len(x) != self.rows:
            raise NotFastError(f"the layer of {ours[0]!r} is called on {len(x)} rows instead of {self.rows}")
        self.used |= set(ours)
        scale, bias_scale = (self.scales.get(self.names.get(id(part), "")) for part in (weight, bias))
        if func is F.linear and x.dim() == 2:
            return self._local(x, weight, bias, scale, bias_scale)
        self.flipout |= set(ours)
        mean = func(x, weight, bias, *how, **options)
        channel = mean.dim() - 1 if func is F.linear else 1
        if scale is not None:
            r = self._signs(x, x.dim() - 1 if func is F.linear else 1)
            perturbed = func(x * r, scale * self.take(*scale.shape), None, *how, **options)
            mean = mean + perturbed * self._signs(mean, channel)
        if bias_scale is not None:
            shape = _along(mean, channel)
            mean = mean + bias_scale.reshape(1, *shape[1:]) * self._of_rows(*shape[1:])
        return mean

    def _local(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, bias_scale: Tensor | None
    ) -> Tensor:
        mean = F.linear(x, weight, bias)
        variance: Any = 0.0 if bias_scale is None else bias_scale.square()
        if scale is not None:
            variance = variance + F.linear(x.square(), scale.square())
        tiny = torch.finfo(mean.dtype).tiny  # the root has a slope at 0 as well
        return mean + (variance + tiny).sqrt() * self._of_rows(*mean.shape[1:])

    def _of_rows(self, *shape: int) -> Tensor:
        """Normals of this shape for each row."""
        return self.take(self.full, *shape)[: self.rows]

    def _signs(self, like: Tensor, channel: int) -> Tensor:
        """A random sign for each row and channel."""
        noise = self._of_rows(*_along(like, channel)[1:])
        return torch.where(noise < 0, -1.0, 1.0).to(like)


def _along(like: Tensor, channel: int) -> tuple[int, ...]:
    """The shape of one value for each row and channel."""
    return tuple(size if dim in (0, channel) else 1 for dim, size in enumerate(like.shape))
