"""One training step of three other libraries, each in the faster of the ways that its own pages show.

torchbnn and bayesian-torch have a Gaussian prior and a closed-form KL, an easier objective than the
mixture's; BLiTZ has the mixture. All are given fused Adam. `make_peers` leaves out what is not installed:
`pip install -e ".[bench]"`, or each by name with `--no-deps`.
"""

import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.steps import CLASSES, INPUTS, N, descent, rows
from benchmarks.timing import Work


def torchbnn(width: int) -> Work:
    """`BayesLinear` and `BKLLoss`; its KL is a sum, so that the share 1/N makes the free energy."""
    import torchbnn as bnn

    def layer(inputs: int, outputs: int) -> nn.Module:
        return bnn.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=inputs, out_features=outputs)

    net = nn.Sequential(
        layer(INPUTS, width), nn.ReLU(), layer(width, width), nn.ReLU(), layer(width, CLASSES)
    )
    divergence = bnn.BKLLoss(reduction="sum")
    x, y = rows()
    return descent(net.parameters(), lambda: F.cross_entropy(net(x), y) + divergence(net) / N)


def bayesian_torch(width: int) -> Work:
    """`LinearReparameterization`, whose forward returns the KL: `get_kl_loss` would compute sigma again."""
    from bayesian_torch.layers import LinearReparameterization as Linear

    layers = nn.ModuleList([Linear(INPUTS, width), Linear(width, width), Linear(width, CLASSES)])
    x, y = rows()

    def loss() -> torch.Tensor:
        h, kl = layers[0](x)
        for layer in list(layers)[1:]:
            h, more = layer(F.relu(h))
            kl = kl + more
        return F.cross_entropy(h, y) + kl / N

    return descent(layers.parameters(), loss)


def blitz(width: int) -> Work:
    """`BayesianLinear` with the mixture prior, and `sample_elbo` with one sample."""
    from blitz.modules import BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            mixture = {"prior_pi": 0.5, "prior_sigma_1": 1.0, "prior_sigma_2": 0.0025}
            self.a = BayesianLinear(INPUTS, width, **mixture)
            self.b = BayesianLinear(width, width, **mixture)
            self.c = BayesianLinear(width, CLASSES, **mixture)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(F.relu(self.b(F.relu(self.a(x)))))

    net = Network()
    x, y = rows()
    options = {"criterion": nn.CrossEntropyLoss(), "sample_nbr": 1, "complexity_cost_weight": 1 / N}
    return descent(net.parameters(), lambda: net.sample_elbo(inputs=x, labels=y, **options))


PEERS: dict[str, tuple[str, Callable[[int], Work]]] = {
    "torchbnn": ("torchbnn", torchbnn),
    "bayesian-torch": ("bayesian-torch", bayesian_torch),
    "BLiTZ": ("blitz-bayesian-pytorch", blitz),
}


def make_peers(width: int) -> tuple[dict[str, Work], dict[str, str]]:
    """The steps of the peers that are there; and for each peer its version, or why it is left out."""
    works, notes = {}, {}
    for name, (package, make) in PEERS.items():
        try:
            notes[name] = version(package)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecations of torch that are theirs to mend
                works[name] = make(width)
        except PackageNotFoundError:
            notes[name] = f"not installed (pip install --no-deps {package})"
        except Exception as error:
            notes[name] = f"does not run: {type(error).__name__}: {error}"
    return works, notes
