"""The tutorial's two networks on digits, noise, clothes and odd pictures: entropies in bits."""

import math

import numpy as np
import torch
from torch import Tensor

from experiments._runner.fit_points import Result
from experiments.tutorial.odd_images import SIDE, pictures
from pyrobbb._support.network_state import evaluating
from pyrobbb.data.dataset import Dataset
from pyrobbb.evaluation.metrics import entropy
from pyrobbb.evaluation.ood import auroc
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction

BITS = 1 / math.log(2)
NOISE, UNIFORM, FASHION, DIGITS = "noise N(0, 1)", "noise U(0, 1)", "Fashion-MNIST", "MNIST test"
SCORES = {"MLP entropy": "mlp", "BNN entropy": "entropy", "BNN mutual information": "information"}


@torch.no_grad()
def draw_log_probs(posterior: Posterior, x: Tensor, draws: int, seed: int = 0) -> Tensor:
    """Log p(c | x, w_s) for each weight draw, `(S, M, C)`, on the CPU."""
    model = posterior.model
    x = x.to(model.device)
    with evaluating(model):
        every = posterior.each_draw(draws, seed=seed)
        found = [model.apply_network(w, x).log_softmax(-1).cpu() for w in every]
    return torch.stack(found)


def uncertainty(log_probs: Tensor) -> dict[str, np.ndarray]:
    """The draws' uncertainty about each input, entropies in bits, all `(M,)` but `probs` `(M, C)`.

    `probs` is the posterior predictive mean_s p_s; `entropy` its entropy, `expected` mean_s H(p_s),
    `information` their difference. `geometric` is the entropy of exp(mean_s log p_s) made to sum to 1;
    `printed` is the tutorial's formula, which leaves that out, and `geometric_sum` what the vector sums to.
    """
    log_probs = log_probs.double()
    probs, mean = log_probs.exp().mean(0), log_probs.mean(0).exp()
    expected = entropy(log_probs.exp()).mean(0)
    found = {
        "probs": probs,
        "entropy": entropy(probs) * BITS,
        "expected": expected * BITS,
        "information": (entropy(probs) - expected) * BITS,
        "geometric_sum": mean.sum(-1),
        "geometric": entropy(mean / mean.sum(-1, keepdim=True)) * BITS,
        "printed": tutorial_entropy(mean),
    }
    return {name: value.numpy() for name, value in found.items()}


def tutorial_entropy(vector: Tensor) -> Tensor:
    """The tutorial's `compute_entropy`, row by row: an entropy in bits only if the rows sum to 1."""
    return -(torch.log2(vector + 1e-10) * vector).sum(-1)


def noise_images(rows: int, features: int, seed: int, uniform: bool = False) -> Tensor:
    """Images of independent pixels: N(0, 1), as in the tutorial, or U(0, 1), the range of real pixels."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand if uniform else torch.randn
    return draw(rows, features, generator=generator)


def questions(data: Dataset, fashion: Dataset, seed: int) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """The sets to be measured, and a few images of each to be shown with their names."""
    assert data.test is not None
    assert fashion.test is not None
    features = data.spec.features[0]
    sets = {
        DIGITS: data.test.x,
        FASHION: fashion.test.x,
        NOISE: noise_images(1000, features, seed),
        UNIFORM: noise_images(1000, features, seed, uniform=True),
    }
    four = int((data.test.y == 4).nonzero()[0])
    odd = pictures(data.test.x[four].reshape(SIDE, SIDE).numpy())
    drawn = torch.tensor(np.stack(list(odd.values())), dtype=torch.float32).flatten(1)
    parts = {"": drawn, NOISE: sets[NOISE][:3], UNIFORM: sets[UNIFORM][:1], FASHION: sets[FASHION][:3]}
    return sets, torch.cat(list(parts.values())), [*odd, *[NOISE] * 3, UNIFORM, *[FASHION] * 3]


def probabilities(mlp: Posterior, x: Tensor) -> Tensor:
    """The class probabilities of a plain network, `(M, C)`."""
    prediction = mlp.predict(x)
    assert isinstance(prediction, ClassPrediction)
    return prediction.probs


def ask(
    posterior: Posterior, mlp: Posterior, sets: dict[str, Tensor], draws: int, seed: int
) -> tuple[Result, dict[str, np.ndarray]]:
    """Mean uncertainties on each set, and how well each uncertainty tells Fashion-MNIST from MNIST."""
    rows: dict[str, dict[str, float]] = {}
    each: dict[str, dict[str, np.ndarray]] = {}
    for name, x in sets.items():
        found = uncertainty(draw_log_probs(posterior, x, draws, seed))
        found["mlp"] = (entropy(probabilities(mlp, x).double()) * BITS).numpy()
        each[name] = {k: v for k, v in found.items() if v.ndim == 1}
        rows[name] = {k: float(v.mean()) for k, v in each[name].items()}
    areas = {name: auroc(each[DIGITS][k], each[FASHION][k]) for name, k in SCORES.items()}
    arrays = {
        f"{name}/{k}": each[name][k].astype(np.float32) for name in (DIGITS, FASHION) for k in SCORES.values()
    }
    return {"uncertainty": rows, "auroc": areas}, arrays
