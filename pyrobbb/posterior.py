"""The fitted posterior: draws of the weights, and predictions that average probabilities over them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pyrobbb._support import checkpoint, checks, posterior_file, text
from pyrobbb._support.chunking import Block, is_large, outputs
from pyrobbb._support.files import write_json
from pyrobbb._support.model_inputs import (
    NonFiniteOutputError,
    check_finite,
    check_targets,
    first_output,
)
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated, mixed_seed
from pyrobbb.bnn import BayesianNetwork, Weights, network_with
from pyrobbb.data.arrays import ArrayLike
from pyrobbb.data.columns import Columns, Names, from_plain
from pyrobbb.data.new_rows import new_rows
from pyrobbb.data.torch_data import TorchRows
from pyrobbb.draws import (
    FittedChain,
    NoWeights,
    check_own,
    fitted,
    is_point,
    one_draw,
    some_draws,
    stacked,
)
from pyrobbb.moments import moments
from pyrobbb.training import history
from pyrobbb.training.history import History

__all__ = ["Posterior", "moments"]

ROWS = 1000  # of inputs at a time, on the CPU
BEYOND = 20.0  # times the largest training input: x is on another scale
SHARES = 100  # draws of a chain that is a point, so that they can be in proportion to the chains' weights

logger = logging.getLogger(__name__)

NAMES = {"classes": "classes", "names": "targets"}  # of a prediction, and what a table calls them


class Posterior:
    r"""Independent restarts (chains) of one fit, each a model and its guide.

    Args:
        chains: Pairs of the Pyro model p(y, w | x) and the fitted guide q(w).
        histories: The course of each chain's fit, saved with the posterior.
        chain_weights: The weight of each chain in the mixture that predicts, such as `stacking_weights`
            gives; None weighs all alike. Each chain then gives draws in proportion to its weight.
        columns: How new rows become inputs, if they come by name: the `columns` of the data.
        reach: The largest \|x\| of the training rows: far larger inputs cause a warning; None: not known.

    Raises:
        ValueError: There is no chain, one is not such a pair, or `chain_weights` do not fit them.
    """

    _told = False  # that inputs were on another scale
    _told_of_function = False  # that it is not of those that predict

    def __init__(
        self,
        chains: Sequence[FittedChain],
        histories: Sequence[History] = (),
        chain_weights: Sequence[float] | None = None,
        columns: Columns | Names | None = None,
        reach: float | None = None,
    ) -> None:
        if not chains:
            raise ValueError("a posterior needs at least one chain (a fitted model and guide)")
        for pair in chains:
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], BayesianNetwork):
                raise ValueError(f"each chain must be a pair (model, guide), got {type(pair).__name__}")
            if not isinstance(pair[1], nn.Module):
                raise ValueError(
                    f"the guide must be a module that holds its parameters, such as a PyroModule, got "
                    f"{text.short(pair[1])}"
                )
        if len({model.dtype for model, _ in chains}) > 1:
            each = ", ".join(str(model.dtype) for model, _ in chains)
            raise ValueError(f"all chains must have weights of one precision, got {each}")
        self.chains = tuple(chains)
        self.histories = tuple(histories)
        self.chain_weights = chain_weights
        self.columns = columns
        self.reach = reach
        self.beside: dict[str, Any] = {}  # JSON files that `save` leaves in the folder as well, by name

    def __repr__(self) -> str:
        count = len(self.chains)
        chains = "one chain" if count == 1 else f"{count} chains"
        return (
            f"{type(self).__name__} of {chains}: {type(self.chains[0][1]).__name__} over "
            f"{self.model.num_weights:,} weights, N={self.model.N}"
        )

    def with_chains(self, chains: Sequence[FittedChain]) -> Posterior:
        """A posterior of other chains, such as pruned ones, fitted to the same data."""
        return Posterior(chains, (), self.chain_weights, self.columns, self.reach)

    @property
    def history(self) -> History:
        """The course of the first chain's fit; empty if it was not recorded."""
        return self.histories[0] if self.histories else History()

    @property
    def chain_weights(self) -> tuple[float, ...] | None:
        """The weight of each chain in the mixture; they sum to 1. None weighs all alike."""
        return self._chain_weights

    @chain_weights.setter
    def chain_weights(self, given: Sequence[float] | None) -> None:
        if given is None:
            self._chain_weights = None
            return
        values = [checks.number("chain_weights", w) for w in given]
        if len(values) != len(self.chains) or min(values) < 0 or not 0 < sum(values) < inf:
            raise ValueError(
                f"chain_weights must be one number for each of the {len(self.chains)} chains, none below 0 "
                f"and not all 0, got {given!r}"
            )
        self._chain_weights = tuple(w / sum(values) for w in values)

    @property
    def main_chain(self) -> int:
        """The chain that stands for all where one must, of the largest weight; the first if alike."""
        return self._chain_weights.index(max(self._chain_weights)) if self._chain_weights else 0

    @property
    def model(self) -> BayesianNetwork:
        """The model of the first chain."""
        return self.chains[0][0]

    def each_draw(self, draws: int, *, chain: int = 0, seed: int = 0) -> Iterator[Weights]:
        """One weight draw after another; draw s does not depend on how many are requested.

        Each draw maps a site's name to a value of the site's own shape; latent sites of prior and likelihood
        are among them.

        Raises:
            ValueError: An argument is outside its domain, or the guide was never fitted.
        """
        seed = checks.whole("seed", seed)
        for s in range(checks.count("draws", draws)):
            yield one_draw(self._fitted(chain), (seed, chain, s))

    def draw(self, draws: int, *, chain: int = 0, seed: int = 0) -> Weights:
        """Weight draws stacked: `(draws, *shape)` for each site."""
        seed = checks.whole("seed", seed)
        keys = [(seed, chain, s) for s in range(checks.count("draws", draws))]
        return stacked(some_draws(self._fitted(chain), keys))

    def function(self, draw: int = 0, *, chain: int = 0, seed: int = 0) -> nn.Module:
        """One function from the posterior: a plain network with the weights of draw number `draw`.

        It is a module of the same class as the model's network, independent of this posterior; it can be
        called with any inputs, kept, saved or exported. Where predictions are those of a linearised network,
        as by default after `Laplace`, it is none of those that they average over: a warning says so.
        """
        model, guide = self._fitted(chain)
        if self.is_linearised(chain) and not self._told_of_function:
            self._told_of_function = True
            logger.warning(
                "this posterior predicts with the network linearised around a mode, which is not a network "
                "of the same layers: a drawn function may be far wider; use Laplace(linearised=False)"
            )
        key = (checks.whole("seed", seed), chain, checks.count("draw", draw, minimum=0))
        weights = one_draw((model, guide), key)
        return network_with(model, weights)

    def mean_weights(self, chain: int = 0) -> Weights:
        """The posterior mean of every latent site, as `moments` finds it (a normal's median is its mean)."""
        model, guide = self._fitted(chain)
        with isolated(device=model.device):
            return model.with_padding(moments((model, guide), latents=True)[0])

    def _fitted(self, chain: int) -> FittedChain:
        return fitted(self.chain(chain))

    def chain(self, number: int) -> FittedChain:
        """The model and the guide of chain `number`, counted from 0."""
        return self.chains[self._number(number)]

    def _number(self, chain: int) -> int:
        number = checks.count("chain", chain, minimum=0)
        if number >= len(self.chains):
            raise ValueError(f"chain must be less than {len(self.chains)}, the number of chains, got {chain}")
        return number

    def predict(
        self,
        x: ArrayLike | TorchDataset[Any] | DataLoader[Any],
        y: ArrayLike | None = None,
        *,
        draws: int = 100,
        mean_weights: bool = False,
        sample: bool = False,
        chains: Iterable[int] | None = None,
        seed: int = 0,
        rows: int | None = None,
        megabytes: float = 128.0,
    ) -> Any:
        """The posterior predictive of y at `x`, averaging probabilities over weight draws.

        Draws are made and used a few at a time, and `x` in blocks of `rows`. What is returned per
        draw does grow with their number: `log_likelihood`, `samples`, and the `components` of a regression.

        Args:
            x: Inputs `(M, *features)`: a tensor, or what `from_arrays` takes; after a fit to a table a tensor
                of inputs, or new rows as they stand in the table; or a torch `Dataset` or `DataLoader` of
                pairs (x, y), read as a whole, for both.
            y: Targets, to have their log-likelihood too; after a fit to a table classes by name, as they
                stand in it, or a tensor of their numbers.
            draws: Weight draws of each chain; if the chains have weights, the average over the chains.
            mean_weights: Use the posterior mean of each chain's weights in place of all its draws.
            sample: Draw a y for each weight draw, too (the posterior predictive sample).
            chains: Which chains to average over; by default all.
            seed: Which draws.
            rows: Rows of `x` at a time, at most; fewer if memory runs out, which is logged. By default 1000
                on the CPU, whose caches then hold them, and on CUDA as many as `megabytes` allow.
            megabytes: Memory for the weights drawn at a time, as much again for the activations, and for
                each of a few copies of the outputs. Another value may draw y with other random numbers.

        Returns:
            A `ClassPrediction` of classes, a `LabelPrediction` under `Bernoulli`, else a `ValuePrediction`;
            rows come first in each field but those per draw.

        Raises:
            ValueError: If y does not fit, the network's output is NaN, an option is outside its domain, or
                the guide was never fitted.
        """
        device = self.model.device
        # isolated, as a data set's transforms draw, and a learned noise scale would be left in Pyro's
        # parameter store
        with isolated(device=device):
            if isinstance(x, TorchDataset | DataLoader):
                held = TorchRows(x).whole()
                x, y = held.x, held.y if y is None else y
            with torch.no_grad():
                x, y, width = self._checked(x, y, device)
        rows = checks.count("rows", (ROWS if device.type == "cpu" else len(x)) if rows is None else rows)
        checks.positive("megabytes", megabytes)
        given = range(len(self.chains)) if chains is None else chains
        chains = [*map(self._number, given)] if isinstance(given, Iterable) else []
        if not chains:
            raise ValueError(f"chains must be a list of at least one chain's number, got {given!r}")
        each = self.shares(draws, chains, mean_weights=mean_weights)
        own = mixed_seed(checks.seed("seed", seed), -1, chains[0])  # noise of each chain's own samples
        with torch.no_grad(), isolated(own, device=x.device), ExitStack() as stack:
            for model, _ in self.chains:
                stack.enter_context(evaluating(model))
            observed = self._observed(
                x, each, width=width, mean_weights=mean_weights, seed=seed, block=Block(rows, megabytes)
            )
            encode = partial(self.model.encoded, draws=1)
            found: Any = self.model.likelihood.prediction.of(observed, y, encode, sample=sample)
            known = {
                name: getattr(self.columns, of, ()) for name, of in NAMES.items() if hasattr(found, name)
            }
            return replace(found, **known) if any(known.values()) else found

    def _observed(
        self, x: Tensor, each: Mapping[int, int], *, width: int, mean_weights: bool, seed: int, block: Block
    ) -> Iterator[TorchDistribution]:
        """The distribution of y at x, `width` outputs a row, for the draws of each chain, a few at a time.

        A chain whose draws are all alike is computed once, and repeated.
        """
        for chain, count in each.items():
            model, guide = self._fitted(chain)
            predicting = self.predicting_model(chain)
            alike = mean_weights or not predicting.latents or is_point(guide)
            numbers = max(model.num_weights, len(x) * width)  # of a draw's weights, or of its outputs
            size = max(1, int(block.megabytes * 2**20 / (model.dtype.itemsize * numbers)))
            repeats = [min(size, count - done) for done in range(0, count, size)] if alike else [1]
            step = 1 if is_large(model) or not model.sites else size
            keys = [(seed, chain, s) for s in range(1 if alike else count)]
            drawn = (some_draws((model, guide), keys[s : s + step]) for s in range(0, len(keys), step))
            for weights in map(stacked, [[self.mean_weights(chain)]] if mean_weights else drawn):
                output = outputs(predicting, weights, x, block)
                if bool((lost := output.isnan()).any()):
                    row = int(lost.movedim(1, 0).flatten(1).any(1).int().argmax())
                    raise NonFiniteOutputError(
                        f"the network's output is NaN for row {row} of x, counted from 0"
                    )
                output = output.to(torch.promote_types(output.dtype, torch.float32))  # sums in half are poor
                for repeat in repeats:
                    some = output.expand(repeat, *output.shape[1:]) if alike else output
                    # scoped, else chains of one name share a learned noise
                    with pyro.get_param_store().scope(), poutine.trace() as seen:
                        distribution = predicting.observation(some, weights, draws=1)
                    check_own(predicting, seen.trace, "model")
                    yield distribution

    def predicting_model(self, chain: int = 0) -> BayesianNetwork:
        """The model as the predictions of a chain take it: with another network if the guide says so."""
        model, guide = self.chain(chain)
        linearised: Callable[[BayesianNetwork], BayesianNetwork] | None = getattr(guide, "linearised", None)
        return model if linearised is None else linearised(model)

    def is_linearised(self, chain: int = 0) -> bool:
        """Whether the predictions of a chain are those of its network linearised around a mode."""
        return self.predicting_model(chain) is not self.chains[chain][0]

    def shares(self, draws: int, chains: Sequence[int], *, mean_weights: bool = False) -> dict[int, int]:
        """How many draws each of some chains gives; in proportion to their weights, by largest remainders.

        Chains that are points, as with `mean_weights`, give one draw each, or as many as hold their weights.

        Raises:
            ValueError: All of `chains` have weight 0.
        """
        chains = list(dict.fromkeys(map(self._number, chains)))
        if mean_weights or not any(self.chains[chain][0].latents for chain in chains):
            # a point estimate has nothing to average over; weights need shares that can hold them
            draws = 1 if self.chain_weights is None or len(chains) == 1 else max(draws, SHARES)
        draws = checks.count("draws", draws)
        if self.chain_weights is None or len(chains) == 1:
            return dict.fromkeys(chains, draws)
        weights = [self.chain_weights[chain] for chain in chains]
        if not any(weights):
            raise ValueError(f"chains {chains} have weight 0 in the mixture, so there is nothing to average")
        exact = [w / sum(weights) * draws * len(chains) for w in weights]
        counts = [int(e) for e in exact]
        rest = draws * len(chains) - sum(counts)
        for i in sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])[:rest]:
            counts[i] += 1
        return {chain: count for chain, count in zip(chains, counts, strict=True) if count}

    def save(self, folder: Path | str) -> Path:
        """Write `posterior.pt` to `folder`: tensors and plain values, without any data.

        Raises:
            OSError: If it cannot be written; an existing file stays.
        """
        columns = None if self.columns is None else self.columns.plain()
        content = {
            "histories": [asdict(history) for history in self.histories],
            "weights": self.chain_weights,
            "columns": columns,
            "reach": self.reach,
        }
        with isolated():  # a prediction in another thread puts draws in the place of weights
            path = posterior_file.write(folder, [fitted(chain) for chain in self.chains], content)
        for name, beside in self.beside.items():
            write_json(path.parent / name, beside)
        return path

    @classmethod
    def load(
        cls,
        folder: Path | str,
        model: BayesianNetwork | Callable[[], BayesianNetwork],
        guide: nn.Module | Callable[[BayesianNetwork], nn.Module] | None = None,
        *,
        inference: Any = None,
    ) -> Posterior:
        """The posterior that `save` wrote, for a model and a guide built as they were before the fit.

        As to `fit`, either may be given as what makes it. A method that makes its own guide is given as
        `inference`, with the options of the fit, and no guide.

        The file holds no code, only numbers; your program says what they belong to. An
        `AutoLaplaceApproximation` stands for the normal that its `laplace_approximation` made.

        >>> model = BayesianNetwork(network, Normal(), likelihoods.Normal())  # doctest: +SKIP
        >>> posterior = Posterior.load("fitted", model, MeanFieldNormal(model))  # doctest: +SKIP
        >>> posterior.predict(x).interval(0.95)  # doctest: +SKIP
        >>> posterior = Posterior.load("sharp", model, inference=Laplace())  # doctest: +SKIP

        Raises:
            CheckpointError: If the file is missing, damaged, or of another network, likelihood or guide.
            ValueError: If there is neither a guide nor a method that makes one.
        """
        if inference is not None and (isinstance(inference, type) or not hasattr(inference, "guide")):
            raise ValueError(f"inference must be a method with its options, got {text.short(inference)}")
        if inference is not None and isinstance(guide, nn.Module):
            raise ValueError("pass either guide or inference, not both")
        with isolated():
            made: Any = model() if callable(model) and not isinstance(model, nn.Module) else model
            checks.check_kinds(model=(made, BayesianNetwork))
            if inference is not None and made.sites:
                guide = inference.guide(made, guide)
            elif not made.sites:
                guide = NoWeights()  # there is nothing to draw
            elif callable(guide) and not isinstance(guide, nn.Module):
                guide = guide(made)
        if not isinstance(guide, nn.Module):
            raise ValueError(
                f"a guide that holds the posterior is needed, got {text.short(guide)}: pass the guide "
                f"that was fitted, such as MeanFieldNormal, or inference=Laplace() if the method made its "
                f"own guide"
            )
        chains, content = posterior_file.read(folder, made, guide)
        with checkpoint.expected_structure(Path(folder) / posterior_file.NAME):
            histories = history.from_plain(content.get("histories") or content.get("history") or ())
            columns = from_plain(content.get("columns"))
            return cls(chains, histories, content.get("weights"), columns, content.get("reach"))

    def _checked(
        self, x: ArrayLike, y: ArrayLike | None, device: torch.device
    ) -> tuple[Tensor, Tensor | None, int]:
        """Both as tensors on `device`, if the model takes them; and the values of an output's row."""
        x, y = new_rows(self.model, self.columns, x, y, beyond=BEYOND * (self.reach or inf))
        for name, value in (("x", x), ("y", y)):
            if value is not None:
                checks.dense(name, value)
        if not len(x):
            raise ValueError(f"x has no rows: its shape is {tuple(x.shape)}")
        x, y = x.to(device), None if y is None else y.to(device)
        check_finite("x", x)
        self._warn_of_scale(x)
        output = first_output(self.model, "x", x)
        if y is not None:
            if len(x) != len(y):
                raise ValueError(f"x and y differ in length: x has {len(x)} rows, y has {len(y)}")
            check_targets(self.model, "y", output, y)
        return x, y, output[0].numel()

    def _warn_of_scale(self, x: Tensor) -> None:
        """Log a likely mistake: inputs on another scale than the training rows (tables: `new_rows`)."""
        if not self.reach or not x.is_floating_point() or isinstance(self.columns, Columns) or self._told:
            return
        if (most := float(x.abs().max())) > BEYOND * self.reach:
            self._told = True
            logger.warning(
                "x holds values up to %.3g, but the training rows reach only %.3g: scale x as they were "
                "scaled (for example, divide pixels by 255)",
                most, self.reach,
            )  # fmt: skip
