"""The fitted posterior: draws of the weights, and predictions that average probabilities over them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import log, sqrt
from types import NoneType
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn

from pyrobbb import checks
from pyrobbb.admission import check_finite, check_kinds, first_output
from pyrobbb.bnn import BayesianNetwork, evaluating
from pyrobbb.isolation import isolated
from pyrobbb.memory import out_of_memory
from pyrobbb.sparse import network_with

Weights = dict[str, Tensor]
logger = logging.getLogger(__name__)


@dataclass
class Block:
    """How much is computed at a time: at most so many rows and draws, in so much room for activations."""

    rows: int
    megabytes: float
    draws: int = sys.maxsize
    told: bool = False

    def shrink(self, rows: int, draws: int) -> bool:
        """Allow half of what was too much; False if it was one row and one draw."""
        if not self.told:
            logger.warning("out of memory for %d rows and %d draws at a time; taking fewer", rows, draws)
        self.told = True
        if rows > 1:
            self.rows = rows // 2
        elif draws > 1:
            self.draws = draws // 2
        return rows > 1 or draws > 1


_LARGE = 50_000  # weights; from here on one draw keeps the processor busy


@dataclass(frozen=True)
class Prediction:
    """What the posterior says of M inputs, from S weight draws.

    `log_likelihood` is log p(y | x, w_s), shape `(S, M)`, if y was given; `samples` are draws from
    p(y | x, w_s), shape `(S, M)` or `(S, M, K)`, if they were asked for.
    """

    log_likelihood: Tensor | None
    samples: Tensor | None

    @property
    def log_predictive(self) -> Tensor:
        """Log p(y | x) = log mean_s p(y | x, w_s), in nats, shape `(M,)`."""
        if self.log_likelihood is None:
            raise ValueError("give y to predict() to have its log-likelihood")
        return self.log_likelihood.logsumexp(0) - log(self.log_likelihood.shape[0])


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """p(c | x) = mean_s p(c | x, w_s), shape `(M, C)`, and its entropies, in nats.

    `predictive_entropy` is H(mean_s p_s), `expected_entropy` mean_s H(p_s), both of shape `(M,)`.
    """

    probs: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor

    @property
    def mutual_information(self) -> Tensor:
        """I(y; w | x) = predictive minus expected entropy: what the draws disagree about, in nats."""
        return (self.predictive_entropy - self.expected_entropy).clamp_min(0)


@dataclass(frozen=True)
class ValuePrediction(Prediction):
    """Mean and variance of y for real-valued targets.

    `means` are E[y | x, w_s], shape `(S, M, K)`; `noise` is mean_s Var[y | x, w_s], shape `(M, K)`.
    """

    means: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:
        """E[y | x], shape `(M, K)`."""
        return self.means.mean(0)

    @property
    def variance(self) -> Tensor:
        """Var[y | x]: spread of the means over draws, plus the mean noise variance."""
        return self.means.var(0, unbiased=False) + self.noise

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles of the function value E[y | x, w] over draws, shape `(len(levels), M, K)`."""
        levels = [checks.between("levels", level, 0, 1) for level in levels]
        if not levels:
            raise ValueError("levels must name at least one quantile")
        return self.means.quantile(
            torch.tensor(levels, dtype=self.means.dtype, device=self.means.device), dim=0
        )


class Posterior:
    """Independent restarts (chains) of one fit, each a model and its guide.

    Args:
        chains: Pairs of the Pyro model p(y, w | x) and the fitted guide q(w).
    """

    def __init__(self, chains: Sequence[tuple[BayesianNetwork, nn.Module]]) -> None:
        if not chains:
            raise ValueError("a posterior needs at least one chain (a fitted model and guide)")
        for pair in chains:
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], BayesianNetwork):
                raise ValueError(f"each chain must be a pair (model, guide), got {type(pair).__name__}")
        self.chains = tuple(chains)

    @property
    def model(self) -> BayesianNetwork:
        """The model of the first chain."""
        return self.chains[0][0]

    def each_draw(self, draws: int, *, chain: int = 0, seed: int = 0) -> Iterator[Weights]:
        """One weight draw after another; draw s is the same however many are asked for.

        Each draw maps a site's name to a value of the parameter's own shape.
        """
        for s in range(checks.count("draws", draws)):
            yield self._draw(s, chain, seed)

    def _draw(self, s: int, chain: int, seed: int) -> Weights:
        model, guide = self._fitted(chain)
        device = model.initial()[model.sites[0]].device
        with isolated(_mix(seed, chain, s), device=device), torch.no_grad():
            trace = poutine.trace(guide).get_trace()
        return {name: trace.nodes[name]["value"] for name in model.sites}

    def draw(self, draws: int, *, chain: int = 0, seed: int = 0) -> Weights:
        """Weight draws stacked: `(draws, *shape)` for each site."""
        return _stack(list(self.each_draw(draws, chain=chain, seed=seed)))

    def function(self, draw: int = 0, *, chain: int = 0, seed: int = 0) -> nn.Module:
        """One function from the posterior: a plain network with the weights of draw number `draw`.

        It is a module of the kind that the model was made of, independent of this posterior, to be kept,
        called with any inputs, saved or exported.
        """
        weights = self._draw(checks.count("draw", draw, least=0), chain, seed)
        return network_with(self.chains[chain][0], weights)  # _draw has checked the chain

    def mean_weights(self, chain: int = 0) -> Weights:
        """The posterior mean of every weight (the median, for guides that give no mean)."""
        return moments(self._fitted(chain))[0]

    def _fitted(self, chain: int) -> tuple[BayesianNetwork, nn.Module]:
        if checks.count("chain", chain, least=0) >= len(self.chains):
            raise ValueError(f"chain must be less than {len(self.chains)}, the number of chains, got {chain}")
        return _fitted(self.chains[chain])

    def predict(
        self,
        x: Tensor,
        y: Tensor | None = None,
        *,
        draws: int = 100,
        mean_weights: bool = False,
        sample: bool = False,
        chains: Sequence[int] | None = None,
        seed: int = 0,
        rows: int = 1000,
        megabytes: float = 128.0,
    ) -> ClassPrediction | ValuePrediction:
        """The posterior predictive of y at `x`, averaging probabilities over weight draws.

        Draws are made and used a few at a time, and `x` in blocks of `rows`, so memory does not grow
        with their number.

        Args:
            x: Inputs `(M, *features)`.
            y: Targets, to have their log-likelihood too.
            draws: Weight draws of each chain.
            mean_weights: Use the posterior mean of the weights as the one draw instead.
            sample: Draw a y for each weight draw, too (the posterior predictive sample).
            chains: Which chains to average over; by default all.
            seed: Which draws.
            rows: Rows of `x` at a time, at most; fewer where memory does not suffice, which the log tells.
            megabytes: Room for the weights drawn at a time, and as much again for the activations.

        Raises:
            ValueError: If y does not fit, an option is outside its domain, or the guide was never fitted.
        """
        device = self.model.initial()[self.model.sites[0]].device
        x, y = self._checked(x, y, device)
        checks.count("rows", rows)
        checks.positive("megabytes", megabytes)
        chains = range(len(self.chains)) if chains is None else chains
        if not isinstance(chains, Sequence) or not chains:
            raise ValueError(f"chains must be a list of at least one chain's number, got {chains!r}")
        groups: list[Iterator[tuple[BayesianNetwork, Weights]]] = []
        for chain in chains:
            model, _ = self._fitted(chain)
            if mean_weights:
                groups.append(iter([(model, _stack([self.mean_weights(chain)]))]))
            else:
                size = max(1, int(megabytes * 2**20 / (4 * model.num_weights)))
                size = size if model.num_weights < _LARGE else 1
                groups.append(self._batches(draws, chain, seed, size))
        batches = (batch for group in groups for batch in group)
        mixed = _mix(checks.seed("seed", seed), -1, 0)
        with torch.no_grad(), isolated(mixed, device=x.device), ExitStack() as stack:
            for model, _ in self.chains:
                stack.enter_context(evaluating(model))
            block = Block(rows, megabytes)
            if self.model.likelihood.task == "classification":
                return _predict_classes(batches, x, y, block, sample)
            return _predict_values(batches, x, y, block, sample)

    def _checked(self, x: Tensor, y: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Both on `device`, if the network takes `x` and the likelihood `y`."""
        check_kinds(x=(x, Tensor), y=(y, (Tensor, NoneType)))
        x, y = x.to(device), None if y is None else y.to(device)
        check_finite("x", x)
        output = first_output(self.model, "x", x)
        if y is not None and len(x):
            self.model.likelihood.check(output.expand(len(x), -1), y)
            self.model.likelihood.check_domain(output.shape[-1], y)
        return x, y

    def _batches(
        self, draws: int, chain: int, seed: int, size: int
    ) -> Iterator[tuple[BayesianNetwork, Weights]]:
        waiting: list[Weights] = []
        for weights in self.each_draw(draws, chain=chain, seed=seed):
            waiting.append(weights)
            if len(waiting) == size:
                yield self.chains[chain][0], _stack(waiting)
                waiting = []
        if waiting:
            yield self.chains[chain][0], _stack(waiting)


def moments(chain: tuple[BayesianNetwork, nn.Module]) -> tuple[Weights, Weights]:
    """Location and scale of q for each weight: exact where the guide knows them.

    A guide's own `loc_and_scale()` is used if it has one; else its quantiles (Pyro's normal autoguides),
    else its median with scale 0 (Pyro's AutoDelta).
    """
    model, guide = _fitted(chain)
    with torch.no_grad(), isolated():
        if hasattr(guide, "loc_and_scale"):
            return guide.loc_and_scale()  # type: ignore[operator]
        if hasattr(guide, "quantiles"):
            one_sd = 0.5 * (1 + torch.erf(torch.tensor(1 / sqrt(2))).item())
            quantiles: Callable[..., Any] = guide.quantiles  # type: ignore[assignment]
            both = quantiles([0.5, one_sd])
            locs = {name: both[name][0] for name in model.sites}
            return locs, {name: both[name][1] - both[name][0] for name in model.sites}
        median: Callable[..., Any] = guide.median  # type: ignore[assignment]
        locs = {name: value for name, value in median().items() if name in model.sites}
        return locs, {name: torch.zeros_like(value) for name, value in locs.items()}


def _fitted(chain: tuple[BayesianNetwork, nn.Module]) -> tuple[BayesianNetwork, nn.Module]:
    """The chain, if its guide has parameters: guides make them when they first see data."""
    if not any(True for _ in chain[1].parameters()):
        raise ValueError(f"the guide {type(chain[1]).__name__} has no parameters yet; fit it first")
    return chain


def _predict_classes(
    batches: Iterator[tuple[BayesianNetwork, Weights]],
    x: Tensor,
    y: Tensor | None,
    block: Block,
    sample: bool,
) -> ClassPrediction:
    probs: Any = 0.0
    entropy: Any = 0.0
    log_likelihood, samples, total = [], [], 0
    for model, weights in batches:
        logits = _outputs(model, weights, x, block)
        log_probs = logits.log_softmax(-1)
        if y is not None:
            model.likelihood.check(logits, y)
            index = y.expand(log_probs.shape[0], -1)[..., None]
            log_likelihood.append(log_probs.gather(-1, index)[..., 0])
        if sample:
            samples.append(model.likelihood(logits).sample())
        p = log_probs.exp()
        probs = probs + p.sum(0)
        entropy = entropy - (p * log_probs).sum((0, -1))
        total += logits.shape[0]
    probs, entropy = probs / total, entropy / total
    predictive = -torch.special.xlogy(probs, probs).sum(-1)
    return ClassPrediction(_cat(log_likelihood), _cat(samples), probs, predictive, entropy)


def _predict_values(
    batches: Iterator[tuple[BayesianNetwork, Weights]],
    x: Tensor,
    y: Tensor | None,
    block: Block,
    sample: bool,
) -> ValuePrediction:
    log_likelihood, samples, means, noise, total = [], [], [], 0.0, 0
    for model, weights in batches:
        output = _outputs(model, weights, x, block)
        law = model.likelihood(output)
        if y is not None:
            model.likelihood.check(output, y)
            log_likelihood.append(law.log_prob(y))
        if sample:
            samples.append(law.sample())
        means.append(law.mean)
        noise = noise + law.variance.sum(0)
        total += law.mean.shape[0]
    return ValuePrediction(
        _cat(log_likelihood), _cat(samples), torch.cat(means), torch.as_tensor(noise) / total
    )


def _cat(parts: Sequence[Tensor]) -> Tensor | None:
    return torch.cat(list(parts)) if parts else None


def _outputs(model: BayesianNetwork, weights: Weights, x: Tensor, block: Block) -> Tensor:
    """Network outputs `(S, M, width)`, computed block by block over the rows of `x`.

    The draws of a large network go one after another, so that a layer's values stay in the cache. Where
    memory does not suffice, the blocks become smaller; the draws are the same.
    """
    S = weights[model.sites[0]].shape[0]
    large = model.num_weights >= _LARGE
    draws = 1 if large else min(S, block.draws)
    fitting = int(block.megabytes * 2**20 / (draws * _activations(model, weights, x)))
    rows = max(1, min(block.rows, fitting, len(x)))
    parts = x.split(rows)
    try:
        if large:
            each = ({name: value[s] for name, value in weights.items()} for s in range(S))
            return torch.stack([torch.cat([model.apply_network(w, part) for part in parts]) for w in each])
        groups = ({name: value[s : s + draws] for name, value in weights.items()} for s in range(0, S, draws))
        return torch.cat([torch.cat([model.apply_network(w, part) for part in parts], dim=1) for w in groups])
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error) or not block.shrink(rows, draws):
            raise
    return _outputs(model, weights, x, block)  # here, where the error no longer holds on to what it had


def _activations(model: BayesianNetwork, weights: Weights, x: Tensor) -> int:
    """Bytes that two of the largest layer outputs take for one row and one draw, found by trying a row."""
    sizes = [1]

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    hooks = [module.register_forward_hook(note) for module in model.network.modules()]
    try:
        model.apply_network({name: w[0] for name, w in weights.items()}, x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return 2 * max(sizes)


def _stack(draws: Sequence[Weights]) -> Weights:
    if len(draws) == 1:
        return {name: value[None] for name, value in draws[0].items()}
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def _mix(seed: int, chain: int, draw: int) -> int:
    """A seed for one draw of one chain."""
    return (seed * 1_000_003 + chain) * 1_000_003 + draw & 0x7FFF_FFFF_FFFF_FFFF
