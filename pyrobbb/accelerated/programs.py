"""The free energy of a minibatch and its gradients as one function of tensors, ready to be recorded.

A program maps `(noise, share, x, y, counts)` to a list: KL, NLL and the gradient of
F = share KL - log P(D_i | w) with respect to each of the given parameters, in their order. `share` is a
tensor without dimensions; row i of x and y counts `counts[i]` times, `(B,)`, or each once if that is None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pyro.infer import Trace_ELBO
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyrobbb.accelerated.fused_kl import gradients, log_ratio
from pyrobbb.accelerated.prior_segments import PriorSegment, score_all
from pyrobbb.accelerated.record import CannotRecordError
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.kl_weights import of_rows
from pyrobbb.svi import counted, terms_of

LossProgram = Callable[[Tensor | None, Tensor, Tensor, Tensor, Tensor | None], list[Tensor]]


def pyro_program(
    model: nn.Module, guide: nn.Module, parameters: Sequence[nn.Parameter], samples: int
) -> LossProgram:
    """What Pyro's `Trace_ELBO` runs for any model and guide; several draws are one batch.

    Its noise is one-dimensional, in the order of Pyro's draws; None lets Pyro draw it.

    Raises:
        CannotRecordError: When called, if the program scales its sites itself or samples a site that is
            not reparameterised.
    """
    elbo = Trace_ELBO(num_particles=samples, vectorize_particles=samples > 1, max_plate_nesting=1)

    def program(
        noise: Tensor | None, share: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> list[Tensor]:
        with torch.enable_grad(), Injected(noise):
            ((model_trace, guide_trace),) = elbo._get_traces(model, guide, (x, y), {})
            _check_sites(model_trace, guide_trace, model, len(x))
            kl, nll = (term / samples for term in terms_of(model_trace, guide_trace, counts))
            found = torch.autograd.grad(share * kl + nll, parameters, materialize_grads=True)
        return [kl.detach(), nll.detach(), *found]

    return program


def flat_program(
    model: BayesianNetwork,
    guide: Any,
    segments: Sequence[PriorSegment],
    parameters: Sequence[nn.Parameter],
    samples: int,
) -> LossProgram:
    """The same for a mean-field normal with flat `loc` and `rho`, without Pyro; all draws are one batch.

    Its noise has shape `(samples, D)`. The formulas are those of `pyrobbb.accelerated.fused_kl`.
    """
    loc, rho = guide.loc, guide.rho
    others = [p for p in parameters if p is not loc and p is not rho]

    def program(
        noise: Tensor | None, share: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> list[Tensor]:
        assert noise is not None
        eps = noise.reshape(samples, -1) if samples > 1 else noise.flatten()
        sigma, slope = F.softplus(rho.detach()), torch.sigmoid(rho.detach())
        w = loc.detach() + sigma * eps
        log_prior, score = score_all(segments, w)
        likelihood = model.log_likelihood
        nll, G, point = network_gradients(likelihood, guide.split, w, others, x, y, counts, samples)
        to_loc, to_rho = gradients(G, score, eps, sigma, slope, share)
        found = dict(zip([loc, rho, *others], [to_loc, to_rho, *point], strict=True))
        kl = log_ratio(log_prior, sigma, eps).sum() / samples
        return [kl, nll.sum() / samples, *(found[p] for p in parameters)]

    return program


def network_gradients(
    log_likelihood: Callable[..., Tensor],
    split: Callable[[Tensor], Mapping[str, Tensor]],
    w: Tensor,
    others: Sequence[Tensor],
    x: Tensor,
    y: Tensor,
    counts: Tensor | None = None,
    samples: int = 1,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """-log p(y_i | x_i, w) of each row, as often as it counts, (*lead, B); the gradients of its sum, divided
    by `samples`: with respect to the flat weights w, (*lead, D), and to the point parameters `others`.

    `log_likelihood(weights, x, y)` is that of each row, (*lead, B), at weights that `split` makes of w.
    """
    with torch.enable_grad():
        weights = {name: part.detach().requires_grad_() for name, part in split(w).items()}
        nll = -counted(log_likelihood(weights, x, y), counts)
        loss = nll.sum() if samples == 1 else nll.sum() / samples  # a small step is made of its calls
        parts = torch.autograd.grad(loss, [*weights.values(), *others], materialize_grads=True)
    G = torch.cat([part.reshape(*w.shape[:-1], -1) for part in parts[: len(weights)]], dim=-1)
    return nll.detach(), G, [*parts[len(weights) :]]


def point_program(model: BayesianNetwork, parameters: Sequence[nn.Parameter]) -> LossProgram:
    """The same for a model without latent weights, whose KL is 0; dropout acts."""

    def program(
        noise: Tensor | None, share: Tensor, x: Tensor, y: Tensor, counts: Tensor | None = None
    ) -> list[Tensor]:
        with torch.enable_grad():
            nll = -counted(model.log_likelihood({}, x, y), counts).sum()
            found = torch.autograd.grad(nll, parameters, materialize_grads=True)
        return [torch.zeros_like(share), nll.detach(), *found]

    return program


def _check_sites(model_trace: Any, guide_trace: Any, model: Any, rows: int) -> None:
    """CannotRecordError unless the ELBO is the plain sum that `Terms` stands for."""
    for site in [*model_trace.nodes.values(), *guide_trace.nodes.values()]:
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        expected = model.N / rows if of_rows(site) else 1.0
        scaled = isinstance(site["scale"], Tensor) or not math.isclose(site["scale"], expected, rel_tol=1e-6)
        if site["mask"] is not None or scaled:  # Pyro's scale is N/B up to rounding: it multiplies by S/S
            raise CannotRecordError(f"site {site['name']!r} is scaled or masked by the program itself")
    for name, site in guide_trace.nodes.items():
        score = site["score_parts"].score_function if "score_parts" in site else 0
        if isinstance(score, Tensor) or score != 0:
            raise CannotRecordError(f"the guide's site {name!r} is not reparameterised")
