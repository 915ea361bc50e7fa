"""What other posteriors cost: the step of richer guides, and that of the last layer of a trained network."""

from collections.abc import Callable
from functools import partial

import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import Tensor, nn

from benchmarks.replaying import step_of
from benchmarks.timing import Work
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.data.images.torchvision_compat import import_torchvision
from pyrobbb.from_trained import partly_bayesian
from pyrobbb.low_rank import LowRankNormal
from pyrobbb.matrix_normal import MatrixNormal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import perceptron

CLASSES, N = 10, 50_000
STEPS = 5_000  # to come, which decide what pays
WIDTHS = {"64-50-50-10": (64, 50, 50), "784-400-400-10": (784, 400, 400)}
GUIDES: dict[str, Callable[..., nn.Module]] = {
    "mean field": MeanFieldNormal,
    "low rank, 10": partial(LowRankNormal, rank=10, init_scale=0.01),
    "low rank, 10, of Pyro": partial(AutoLowRankMultivariateNormal, rank=10, init_scale=0.01),
    "matrix normal": MatrixNormal,
}
# a trained network, its last layer, and the shape of its rows
TRAINED: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...]]] = {
    "784-1200-1200-10": (lambda: perceptron(784, (1200, 1200), CLASSES), "4.*", (128, 784)),
    "ResNet-18": (lambda: import_torchvision().models.resnet18(num_classes=CLASSES), "fc.*", (32, 3, 64, 64)),
}


def by_guide(network: str) -> dict[str, Work]:
    """A step of each guide on one network."""
    features, *hidden = WIDTHS[network]
    rows = _rows((128, features))

    def step(guide: Callable[..., nn.Module]) -> Work:
        net = perceptron(features, hidden, CLASSES)
        model = BayesianNetwork(net, priors.Normal(sigma=0.1), likelihoods.Categorical(), N)
        return step_of(model, guide, rows, steps=STEPS)

    return {name: step(guide) for name, guide in GUIDES.items()}


def of_last_layer(network: str) -> dict[str, Work]:
    """The forward pass of a trained network, and a step of its last layer's mean field."""
    make, last, shape = TRAINED[network]
    net, rows = make().eval(), _rows(shape)

    @torch.no_grad()
    def forward() -> Tensor:
        return net(rows.x)

    model = partly_bayesian(net, last, likelihoods.Categorical(), N=N)
    return {"forward": forward, "step": step_of(model, MeanFieldNormal, rows, steps=STEPS)}


def _rows(shape: tuple[int, ...]) -> Split:
    draw = torch.Generator().manual_seed(0)
    return Split(torch.rand(shape, generator=draw), torch.randint(0, CLASSES, shape[:1], generator=draw))
