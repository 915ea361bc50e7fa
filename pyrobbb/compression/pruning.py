r"""Removing the weights that carry more noise than signal (section 5.1 of the paper, Table 2 and Fig. 4).

The paper orders the weights by :math:`|\mu_j| / \sigma_j` and replaces the posterior of the lowest by a
constant zero: mean and spread are both gone, in the mean network and in every draw.
"""

from __future__ import annotations

from typing import Literal

import torch
from pyro import poutine
from torch import Tensor, nn

from pyrobbb._support import checks
from pyrobbb._support.copies import own_pair
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.draws import FittedChain, sample_points
from pyrobbb.moments import moments, signal_to_noise
from pyrobbb.posterior import Posterior

By = Literal["snr", "magnitude"]
Masks = dict[str, Tensor]


def decibel(ratio: Tensor) -> Tensor:
    """10 log10 of `ratio` itself, in dB; -inf at 0. The paper does not say which convention it uses."""
    return 10.0 * ratio.log10()


def scores(chain: FittedChain, by: By = "snr") -> Weights:
    r"""What the weights of one chain are ordered by: :math:`|\mu| / \sigma`, or :math:`|\mu|`.

    A weight that is a constant zero has signal-to-noise ratio 0, so that a pruned posterior can be pruned on.

    Raises:
        ValueError: By `snr`, if a weight that is not 0 has no spread (a point estimate).
    """
    checks.one_of("by", by, ("snr", "magnitude"))
    loc, scale = moments(chain)
    if by == "magnitude":
        return {name: mu.abs() for name, mu in loc.items()}
    for name, mu in loc.items():
        if bool(((scale[name] == 0) & (mu != 0)).any()):
            raise ValueError(f"by='snr' needs a spread, but {name!r} is a point estimate; use by='magnitude'")
    return {name: signal_to_noise(mu, scale[name]) for name, mu in loc.items()}


def keep(score: Weights, removed: float, *, biases: bool = True) -> Masks:
    """True for the weights that stay when the share `removed` with the lowest score goes.

    One threshold for all layers together. Exactly `round(removed * count)` weights go, also where scores
    are equal.

    Args:
        score: Of each weight, by site.
        removed: Share of the weights to remove, from 0 to 1.
        biases: Count parameters of one dimension (biases, gains of normalisation layers) as weights, as
            the paper's 2.4 million do; else they all stay, and `removed` is a share of the others.
    """
    checks.between("removed", removed, 0, 1)
    names = [name for name, value in score.items() if biases or value.dim() > 1]
    if not score:
        raise ValueError("the model has no Bayesian weights, so there is nothing to prune")
    if not names:
        raise ValueError(f"biases=False leaves nothing to prune; the parameters are {', '.join(score)}")
    flat = torch.cat([score[name].flatten() for name in names])
    count = round(removed * len(flat))
    stays = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    stays[flat.topk(count, largest=False, sorted=False).indices] = False
    masks = {name: torch.ones_like(value, dtype=torch.bool) for name, value in score.items()}
    parts = stays.split([score[name].numel() for name in names])
    masks |= {name: part.reshape(score[name].shape) for name, part in zip(names, parts, strict=True)}
    return masks


class PrunedGuide(nn.Module):
    """A fitted guide whose masked weights are a constant zero, for prediction and analysis.

    A draw is the fitted guide's own draw times the mask, at sites of the same names. It is not meant to
    be trained: a constant zero has no density, and so no finite free energy.

    Args:
        chain: The model whose sites they are, and the fitted guide; shared, not copied.
        masks: True for the weights that stay.
    """

    def __init__(self, chain: FittedChain, masks: Masks) -> None:
        super().__init__()
        self._model = (chain[0],)  # a tuple, so that the model does not become part of the guide
        self.guide = chain[1]
        self.sites = tuple(masks)
        for i, mask in enumerate(masks.values()):
            self.register_buffer(f"mask_{i}", mask)

    @classmethod
    def like(cls, model: BayesianNetwork, guide: nn.Module) -> PrunedGuide:
        """One that leaves all weights, for `Posterior.load` to read what is left into."""
        masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in model.initial().items()}
        return cls.of((model, guide), masks)

    @staticmethod
    def of(chain: FittedChain, masks: Masks) -> PrunedGuide:
        """That of a fitted guide, of one with a sampler's draws, or of one pruned before, by both masks."""
        model, guide = chain
        if isinstance(guide, PrunedGuide):
            both = {name: kept & masks[name] for name, kept in guide.masks.items()}
            return PrunedGuide.of((model, guide.guide), both)
        kind = PrunedDraws if hasattr(guide, "stored_draw") else PrunedGuide
        return kind(chain, masks)

    @property
    def masks(self) -> Masks:
        """True for the weights that stay."""
        return {name: self.get_buffer(f"mask_{i}") for i, name in enumerate(self.sites)}

    def forward(self, *args: object, **kwargs: object) -> Weights:
        """Sample every latent site."""
        with poutine.block():
            nodes = poutine.trace(self.guide).get_trace(*args, **kwargs).nodes
        values = {name: nodes[name]["value"] for name in self._model[0].latents}
        values |= {name: values[name] * mask for name, mask in self.masks.items()}
        return sample_points(values)

    def loc_and_scale(self) -> tuple[Weights, Weights]:
        r""":math:`\mu` and :math:`\sigma`, both 0 for a weight that is gone."""
        loc, scale = moments((self._model[0], self.guide))
        masks = self.masks
        return {k: v * masks[k] for k, v in loc.items()}, {k: v * masks[k] for k, v in scale.items()}


class PrunedDraws(PrunedGuide):
    """The same of a guide that holds a sampler's draws, in their order."""

    @property
    def kept(self) -> Tensor:
        """How many draws there are."""
        return self.guide.kept  # type: ignore[return-value]

    @property
    def diverging(self) -> Tensor:
        """Which of them diverged, if the sampler says so."""
        return self.guide.diverging  # type: ignore[return-value]

    def stored_draw(self, number: int, seed: int) -> Weights:
        """The sampler's own, with zeros."""
        values: Weights = self.guide.stored_draw(number, seed)  # type: ignore[operator]
        return values | {name: values[name] * mask for name, mask in self.masks.items()}

    def place(self, number: int, seed: int) -> int:
        """Where that draw is in the sampler's chain."""
        return self.guide.place(number, seed)  # type: ignore[operator]


def prune(posterior: Posterior, removed: float, *, by: By = "snr", biases: bool = True) -> Posterior:
    """The posterior without the share `removed` of its weights, each chain by its own order.

    Draw s of the result is draw s of `posterior` with zeros in place of what was removed.

    Args:
        posterior: A fitted posterior of any guide.
        removed: Share of the weights to remove, from 0 to 1.
        by: `snr`, the paper's order, or `magnitude`.
        biases: Whether biases count as weights and may go (see `keep`).

    Raises:
        ValueError: An option outside its domain, an order that the guide cannot give, or a parametrisation.
    """
    made = [name for name in posterior.model.sites if "parametrizations." in name]
    if made:
        raise ValueError(
            f"{made[0]!r} is a part of which torch makes a weight, so that a zero there need not be a zero "
            f"weight; train the network without its parametrisation"
        )
    chains = []
    for c, chain in enumerate(posterior.chains):
        if posterior.is_linearised(c):
            raise ValueError(
                "this posterior predicts with the network linearised around a mode, which pruning would "
                "leave: use Laplace(linearised=False)"
            )
        masks = keep(scores(chain, by), removed, biases=biases)
        own = own_pair(*chain)  # else a change to one posterior's model changes the other's
        chains.append((own[0], PrunedGuide.of(own, masks)))
    pruned = posterior.with_chains(chains)
    pruned.beside = {name: {**content, "pruned": True} for name, content in posterior.beside.items()}
    return pruned


def left(posterior: Posterior, chain: int = 0) -> int:
    """How many weights of a chain are not a constant zero."""
    loc, scale = moments(posterior.chain(chain))
    return sum(int(((loc[name] != 0) | (scale[name] != 0)).sum()) for name in loc)
