r"""The noise of the free energy's gradient, and whether a signal is left in it.

With g_r the gradient of F at one draw and one minibatch, and R of them,

.. math::
    \mathrm{SNR}^2 = \frac{\| \bar g \|^2 - \tfrac1R \sum_j s_j^2}{\sum_j s_j^2}

in which :math:`s_j` is the standard deviation of parameter j's gradient. It is near 0 at a minimum: steps of
any size then wander about it, and only a lower rate, more draws or larger batches bring q nearer.
"""

import torch
from pyro.infer import Trace_ELBO
from torch import nn

from pyrobbb._support import checks
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.kl_weights import Weighted


def gradient_signal(
    model: BayesianNetwork,
    guide: nn.Module,
    train: Split,
    *,
    batch: int = 128,
    repeats: int = 30,
    seed: int = 0,
) -> float:
    """The signal-to-noise ratio of the gradient of F; 0 where no signal is seen.

    Args:
        model: The Pyro model.
        guide: A guide with a density, initialised.
        train: The training rows.
        batch: Rows of a minibatch.
        repeats: R, at least 2.
        seed: Which draws and minibatches.
    """
    checks.count("repeats", repeats, minimum=2)
    parameters = [p for p in guide.parameters() if p.requires_grad]
    first = second = torch.zeros((), dtype=torch.double)
    with isolated(seed, device=model.device):
        for _ in range(repeats):
            rows = train.take(torch.randperm(len(train))[:batch]).to(model.device)
            with Weighted(counts=rows.weights):
                loss = Trace_ELBO().differentiable_loss(model, guide, rows.x, rows.y)
            parts = torch.autograd.grad(loss, parameters, allow_unused=True)
            g = torch.cat([part.flatten() for part in parts if part is not None]).double().cpu()
            first, second = first + g / repeats, second + g.square() / repeats
    noise = float((second - first.square()).sum()) * repeats / (repeats - 1)
    signal = float(first.square().sum()) - noise / repeats
    return max(0.0, signal / noise) ** 0.5 if noise > 0 else 0.0
