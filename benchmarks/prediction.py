"""Predictions of 10,000 images, draw after draw, beside the matrix products that they cannot do without."""

import torch
from torch import Tensor

from benchmarks.steps import INPUTS, N, network, rows
from benchmarks.timing import Work
from pyrobbb._support.random_state import isolated
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior

IMAGES, DRAWS = 10_000, 100
_BLOCK = 1000  # rows at a time: `predict`'s own, and faster than all at once


def images(count: int = IMAGES) -> Tensor:
    """Made images."""
    return torch.rand(count, INPUTS, generator=torch.Generator().manual_seed(1))


def posterior(width: int) -> Posterior:
    """An untrained posterior over the network 784-width-width-10."""
    with isolated(0):
        model = network(width, N)
        guide = MeanFieldNormal(model)
        guide(*rows(2))
    return Posterior([(model, guide)])


def works(width: int, draws: int) -> dict[str, Work]:
    """`predict` with so many draws, and its matrix products alone: into buffers that are there already."""
    fitted, x = posterior(width), images()
    matrices = [w.T for w in fitted.mean_weights().values() if w.dim() == 2]
    outputs = [torch.empty(_BLOCK, w.shape[1]) for w in matrices]

    def products() -> None:
        for _ in range(draws):
            for block in x.split(_BLOCK):
                h = block
                for w, out in zip(matrices, outputs, strict=True):
                    h = torch.mm(h, w, out=out)

    return {"predict": lambda: fitted.predict(x, draws=draws), "products": products}
