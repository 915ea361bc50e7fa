"""The step of a model without latent weights: gradient descent on -log P(D_i | w), the KL being 0."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobbb._support.optim import trained
from pyrobbb.accelerated.fast_step import FastStep
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.svi import Terms


class PointStep(FastStep):
    """One step on F_i = -log p(D_i | w), summed over the minibatch; dropout acts.

    Args:
        model: Its prior leaves every weight deterministic.
        optimizer: Over its parameters.
    """

    noise_shape = (1, 0)

    def __init__(self, model: BayesianNetwork, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.parameters = trained(optimizer)
        self.share = torch.zeros_like(self.parameters[0].detach().flatten()[0])
        self.kl = torch.zeros_like(self.share)

    def compute(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Terms:
        """The terms and gradients; there is no noise."""
        loss = -self.model.log_likelihood({}, x, y).sum()
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return Terms(self.kl, loss.detach())
