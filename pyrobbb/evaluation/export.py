"""Draws of a posterior as one plain network, for `torch.export`, ONNX and whatever runs them.

One function, `posterior.function(3)`, and the network of the mean weights,
`network_with(posterior.model, posterior.mean_weights())`, are plain networks already.

>>> rows = {0: torch.export.Dim.DYNAMIC}  # doctest: +SKIP
>>> module = exported(posterior, draws=20, average=True)  # doctest: +SKIP
>>> torch.export.export(module, (x,), dynamic_shapes=(rows,))  # doctest: +SKIP
>>> torch.onnx.export(module, (x,), "posterior.onnx", dynamic_shapes=(rows,))  # doctest: +SKIP
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.flat import strided
from pyrobbb.draws import is_point
from pyrobbb.likelihoods import Bernoulli, Categorical
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction
from pyrobbb.weight_sites import owner_of


class Functions(nn.Module):
    """S functions as one network: inputs `(B, *features)` -> outputs `(S, B, *output)`.

    Args:
        networks: The functions, of one architecture. Parameters and buffers that are equal become shared.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        first, *others = networks
        kept = {**dict(first.named_parameters()), **dict(first.named_buffers())}
        for network in others:
            for path, value in kept.items():
                module, name = owner_of(network, path)
                if torch.equal(strided(getattr(module, name)), strided(value)):
                    setattr(module, name, value)
        self.networks = nn.ModuleList(networks)
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        """All functions at `x`, one after another: exporters fix the number of rows under `torch.vmap`."""
        return torch.stack([network(x) for network in self.networks])


class Probabilities(nn.Module):
    """The mean over draws of each class's probability: `(B, *features)` -> `(B, *grid, classes)`.

    With labels that are 0 or 1 each, `(B, labels)`: the probability of 1.
    """

    def __init__(self, functions: Functions, *, binary: bool) -> None:
        super().__init__()
        self.functions, self.binary = functions, binary
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """P(c | x) = mean_s p(c | x, w_s)."""
        logits: Tensor = self.functions(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # as in `predict`
        return (logits.sigmoid() if self.binary else logits.softmax(-1)).mean(0)


def exported(posterior: Posterior, *, draws: int = 100, average: bool = False, seed: int = 0) -> nn.Module:
    """The functions that `posterior.predict(x, draws=draws, seed=seed)` averages over, as one plain network.

    What they give is the network's output: what the likelihood makes of it, such as units, is not in it. Nor
    is what a table's columns make of its rows: the inputs are those of the network.

    Args:
        posterior: Its chains give S functions altogether, as many each as in `predict`; points, such as those
            of `MAP`, one each, or as many as hold their weights.
        draws: Weight draws of each chain; if the chains have weights, the average over the chains.
        average: For class labels: the averaged probabilities, not the outputs `(S, B, width)`.
        seed: Which draws.

    Raises:
        ValueError: There is nothing to average over, predictions are those of a linearised network, or
            `average` for values or for a likelihood of one's own.
    """
    checks.count("draws", draws)
    model = posterior.model
    if not model.sites and len(posterior.chains) == 1:
        raise ValueError("the network has no Bayesian weights: posterior.function(0) is all there is")
    name, own = type(model.likelihood).__name__, type(model.likelihood).forward
    if average and not issubclass(model.likelihood.prediction, ClassPrediction):
        raise ValueError(f"average=True is for class labels, and {name} has none: use average=False")
    if average and own not in (Bernoulli.forward, Categorical.forward):
        raise ValueError(f"average=True does not know what {name} makes of the output: use average=False")
    points = all(is_point(guide) for _, guide in posterior.chains)
    shares = posterior.shares(draws, range(len(posterior.chains)), mean_weights=points)
    if any(map(posterior.is_linearised, shares)):
        raise ValueError(
            "this posterior predicts with the network linearised around a mode, which is not a network of "
            "the same layers: use Laplace(linearised=False), or export posterior.function(...) knowing that"
        )
    each = [posterior.function(s, chain=c, seed=seed) for c, count in shares.items() for s in range(count)]
    binary = own is Bernoulli.forward
    return Probabilities(Functions(each), binary=binary) if average else Functions(each)
