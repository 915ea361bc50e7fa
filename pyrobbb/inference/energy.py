r"""The two parts of :math:`-\log p(y, w \mid x)` as functions of one flat vector."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.compilation_cost import GRADIENT, Prepare, fastest, ways
from pyrobbb.accelerated.fixed_batch import FixedProgram
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.data.dataset import Split
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.kl_weights import of_rows
from pyrobbb.svi import counted

Priors = Mapping[str, TorchDistribution]


def log_prior(priors: Priors, values: Weights) -> Tensor:
    """Log P, in nats, of a value of each latent, given its prior."""
    found: Any = sum(prior.log_prob(values[name]).sum() for name, prior in priors.items())
    return found


def check_density(model: BayesianNetwork, guide: nn.Module, first: Split, method: str) -> None:
    """Raise ValueError if the model's density is not prior times likelihood, which is all a method sees.

    That is so where a class of the user's own scales the model, or adds a factor.
    """
    with torch.no_grad(), evaluating(model), poutine.block():
        with isolated(0, device=first.x.device):
            drawn = poutine.trace(guide).get_trace().nodes
        values = {name: drawn[name]["value"] for name in model.latents}
        with isolated(0, device=first.x.device):
            given = poutine.condition(model, data=values)
            trace = poutine.trace(given).get_trace(first.x, first.y)
            whole = trace.log_prob_sum()
        with isolated(0, device=first.x.device):
            nll = -model.N / len(first) * model.log_likelihood(values, first.x, first.y).sum()
            prior = log_prior(model.priors_given(values), values)
    parts = prior - nll
    observed = [name for name in trace.observation_nodes if name not in values]
    if beside := [name for name in observed if not of_rows(trace.nodes[name])]:
        raise ValueError(
            f"{method} assumes the model is its prior times its likelihood, but {type(model).__name__} also "
            f"observes {beside[0]!r}: use svi, which runs the model itself"
        )
    if float((whole - parts).abs()) > 1e-2 * float(prior.abs() + nll.abs()):
        raise ValueError(
            f"{method} assumes the model is its prior times its likelihood, but {type(model).__name__} has a "
            f"different density, {float(whole):.6g} instead of {float(parts):.6g} nats on {len(first)} rows: "
            f"use svi, which runs the model itself"
        )


class Energy:
    r""":math:`-\log P(z)` and :math:`-\log P(D_i \mid z)` of a minibatch, at coordinates z of a `FlatGuide`.

    Priors without parameters or latents of their own are looked up once.
    """

    def __init__(self, model: BayesianNetwork, guide: FlatGuide, *, jacobian: bool = True) -> None:
        self.model, self.guide, self.jacobian = model, guide, jacobian
        fixed = not model.prior_parameters and not model.other_latents
        self.priors = {name: model.prior_of(name) for name in model.sites} if fixed else None
        self.size = guide.loc.numel()

    def __call__(
        self, z: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Minus the log prior density of z, and minus the minibatch's log-likelihood, in nats.

        `counts`, `(B,)`, says how often each row counts; None is once.
        """
        values = self.guide.values(z)
        prior = log_prior(self.priors or self.model.priors_given(values), values)
        if self.jacobian and self.guide.bounded:
            prior = prior + self.guide.log_jacobian(self.guide.split(z))
        return -prior, -counted(self.model.log_likelihood(values, x, y), counts).sum()

    def whole(self, z: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Tensor:
        """The coordinates of all latents, of a draw z given the rows."""
        return z

    def gradient(
        self, z: Tensor, x: Tensor, y: Tensor, share: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The two energies, and the gradient of prior energy + NLL / share with respect to z."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            prior, nll = self(z, x, y, counts)
            (found,) = torch.autograd.grad(prior + nll / share, z)
        return prior.detach(), nll.detach(), found

    def prepared(
        self, z: Tensor, x: Tensor, y: Tensor, calls: int, log: Callable[[str], None], fast: str = "auto"
    ) -> FixedProgram:
        """`gradient`, compiled or replayed for inputs of these shapes if that pays for so many calls.

        It takes `(z, share, x, y, counts)`.
        """

        def program(z: Tensor, share: Tensor, x: Tensor, y: Tensor, counts: Tensor | None) -> Any:
            return self.gradient(z, x, y, share, counts)

        def make(prepare: Prepare | None) -> FixedProgram:
            return FixedProgram(program, [z.detach(), z.new_ones(())], (x, y), prepare)

        prepares = ways(fast, z.numel(), calls, GRADIENT, device=z.device)
        return fastest(make, prepares, log, "the sampler's gradient")
