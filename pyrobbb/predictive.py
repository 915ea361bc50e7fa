"""What a posterior predicts: averages over weight draws of the likelihood's distribution of y."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import log
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import draw_from, in_double, moment, own_tensor, unmasked
from pyrobbb._support.quantiles import mixture_quantile, sample_quantiles
from pyrobbb.data.arrays import row_weights
from pyrobbb.data.columns import class_numbers
from pyrobbb.data.frames import by_target
from pyrobbb.distributions import Affine
from pyrobbb.evaluation.metrics import (
    as_tensor,
    classification_metrics,
    entropy,
    regression_metrics,
    row_mean,
)

SMALLEST = 1e-12  # level above 0
Encode = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class ErrorMetric:
    """The one number by which predictions are compared: its key in `metrics`, and its format."""

    name: str
    unit: str
    format: str

    @property
    def label(self) -> str:
        """As an axis says it."""
        return f"error ({self.unit})" if self.unit else f"{self.name} (units of y)"

    def text(self, value: float) -> str:
        """`value` with its unit, such as `1.32 %`."""
        return self.format.format(value)


@dataclass(frozen=True, repr=False)
class Prediction:
    """What the posterior predicts for M inputs, from S weight draws.

    `log_likelihood` is log p(y | x, w_s), shape `(S, M)`, if y was given; `samples` are draws from
    p(y | x, w_s), shape `(S, M)` or `(S, M, *K)`, if requested, where one output, and the one label of
    `Bernoulli`, has K = 1; `y` are the targets, if given.
    """

    log_likelihood: Tensor | None
    samples: Tensor | None
    y: Tensor | None = field(default=None, kw_only=True)

    error: ClassVar[ErrorMetric]

    def __repr__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        shapes = [f"{k} {tuple(v.shape)}" for k, v in given.items() if isinstance(v, Tensor)]
        return f"{type(self).__name__}({', '.join(shapes)})"

    @property
    def log_predictive(self) -> Tensor:
        """Log p(y | x) = log mean_s p(y | x, w_s), in nats, shape `(M,)`.

        Raises:
            ValueError: `predict` was given no `y`.
        """
        if self.log_likelihood is None:
            raise ValueError("the log-likelihood needs y: call predict(x, y)")
        return self.log_likelihood.logsumexp(0) - log(self.log_likelihood.shape[0])

    @classmethod
    def of(cls, batches: Iterable[Any], y: Tensor | None, encode: Encode, *, sample: bool = False) -> Self:
        """The average over draws.

        Args:
            batches: Distributions of y of batch shape `(S_i, M)`, for some of the draws each.
            y: Targets, to have their log-likelihood too.
            encode: `y` as such a distribution takes it.
            sample: Draw a y for each weight draw, too.
        """
        log_likelihood, samples = [], []

        def seen() -> Iterable[Any]:
            for distribution in batches:
                if y is not None:
                    log_likelihood.append(distribution.log_prob(encode(distribution, y)))
                if sample:
                    samples.append(draw_from(distribution))
                yield distribution

        parts = cls._average(seen())
        return cls(_cat(log_likelihood), _cat(samples), y=y, **parts)

    @classmethod
    def _average(cls, distributions: Iterable[Any]) -> dict[str, Any]:
        """The fields of this kind of prediction."""
        raise NotImplementedError

    def losses(self, y: Tensor) -> Tensor:
        """Each row's contribution to the error, shape `(M,)`; the error is `error_of` of their mean."""
        raise NotImplementedError

    @staticmethod
    def error_of(mean: float) -> float:
        """The error, from the mean of `losses`."""
        return mean

    def metrics(self, y: Tensor, weights: Any = None) -> dict[str, float]:
        """All scores against the targets; the one called `error.name` is the error.

        `weights`, `(M,)`, say how often each row counts, as those of a `Split` do; None is once.
        """
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class ClassPrediction(Prediction):
    """p(c | x) = mean_s p(c | x, w_s), shape `(M, *grid, C)`, and its entropies, in nats.

    `predictive_entropy` is H(mean_s p_s), `expected_entropy` mean_s H(p_s), both of shape `(M, *grid)`;
    `classes` are the names of the classes, if the data have names for them.
    """

    probs: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    classes: tuple[str, ...] = ()

    error: ClassVar[ErrorMetric] = ErrorMetric("error", "%", "{:.2f} %")

    @property
    def mutual_information(self) -> Tensor:
        """I(y; w | x), predictive minus expected entropy, in nats; what the draws disagree about."""
        return (self.predictive_entropy - self.expected_entropy).clamp_min(0)

    @staticmethod
    def log_probs(distribution: Any) -> Tensor:
        """Log p(c | x, w_s) of each class, the classes last."""
        return distribution.logits.log_softmax(-1)

    @classmethod
    def _average(cls, distributions: Iterable[Any]) -> dict[str, Any]:
        probs: Any = 0.0
        expected: Any = 0.0
        total = 0
        for distribution in distributions:
            log_probs = cls.log_probs(unmasked(distribution))
            p = log_probs.exp()
            probs = probs + p.sum(0)
            nats = torch.where(p > 0, p * log_probs, 0.0)  # a class that is ruled out has the logit -inf
            expected = expected - nats.sum((0, -1))
            total += len(p)
        probs = probs / total
        return {"probs": probs, "predictive_entropy": entropy(probs), "expected_entropy": expected / total}

    def labels(self, y: Any) -> Tensor:
        """Labels as numbers from 0, as a tensor holds them; anything else holds classes by name, if any.

        Raises:
            ValueError: One is no whole number, no class of that name, or there are not as many classes.
        """
        y = by_target("y", y, ())
        if self.classes and not isinstance(y, Tensor):
            return class_numbers(self.classes, "y", y)
        labels = as_tensor(y)
        if labels.is_floating_point() and bool((wrong := labels != labels.round()).any()):  # and so NaN
            raise ValueError(f"y must hold labels, which are whole numbers, got {float(labels[wrong][0]):g}")
        least, most = (int(labels.min()), int(labels.max())) if labels.numel() else (0, 0)
        if least < 0 or most >= self.probs.shape[-1]:
            raise ValueError(f"y must hold labels from 0 to {self.probs.shape[-1] - 1}, got {least}..{most}")
        return labels

    def losses(self, y: Any) -> Tensor:
        """The share of wrong labels, in percent."""
        labels = _shaped(self.labels(y).to(self.probs.device), self.probs.shape[:-1])
        wrong = self.probs.argmax(-1) != labels
        return 100 * wrong.double().reshape(len(wrong), -1).mean(1)

    def metrics(self, y: Any, weights: Any = None) -> dict[str, float]:
        """Error in percent, NLL, Brier score, calibration error and mutual information, over all labels.

        The NLL is of `log_predictive` if `y` was given to `predict`, else of the probabilities, which are
        rounded (`classification_metrics`). Where a row has several labels, such as those of pixels, it is of
        each by itself, in nats per label, and of the probabilities: `log_predictive` is of all labels of a
        row together, which share a draw of the weights.
        """
        labels = self.labels(y).long().flatten()
        of_rows = row_weights("weights", weights, self.probs)
        each = of_rows.repeat_interleave(self.probs.shape[1:-1].numel())
        scores = classification_metrics(self.probs.reshape(-1, self.probs.shape[-1]), labels, each)
        given = None if self.y is None or self.probs.dim() > 2 else self.labels(self.y).flatten()
        if given is not None and torch.equal(given, labels.to(given)):
            scores["nll"] = 0.0 - row_mean(self.log_predictive, weights)
        return {**scores, "mutual_information": row_mean(self.mutual_information.flatten(), each)}


@dataclass(frozen=True, repr=False)
class LabelPrediction(ClassPrediction):
    """p(0 | x) and p(1 | x), shape `(M, 2)`, or for each of K labels, `(M, K, 2)`."""

    @staticmethod
    def log_probs(distribution: Any) -> Tensor:
        """Log p(0) and log p(1)."""
        both = torch.stack([F.logsigmoid(-distribution.logits), F.logsigmoid(distribution.logits)], -1)
        return both[..., 0, :] if both.shape[-2] == 1 else both


@dataclass(frozen=True, repr=False)
class ValuePrediction(Prediction):
    """The distribution of a numeric y: an equal mixture of one distribution per weight draw.

    `components` are these distributions without their masks, univariate and of batch shape `(S_i, M, *K)`, or
    of vectors, and of event shape K then; `names` those of the targets of a table.
    """

    components: tuple[Any, ...]
    names: tuple[str, ...] = ()

    error: ClassVar[ErrorMetric] = ErrorMetric("rmse", "", "{:.4g}")

    @classmethod
    def _average(cls, distributions: Iterable[Any]) -> dict[str, Any]:
        return {"components": tuple(unmasked(distribution) for distribution in distributions)}

    def __repr__(self) -> str:
        shapes = [tuple(part.batch_shape) for part in self.components]
        of = f" of y {shapes[0][1:]}" if shapes else ""
        return f"{type(self).__name__}({sum(shape[0] for shape in shapes)} draws{of})"

    @cached_property
    def means(self) -> Tensor:
        """E[y | x, w_s] for each draw, shape `(S, M, *K)`; the median where y has no mean (Cauchy)."""
        return torch.cat([_centre(part) for part in self.components])

    @property
    def mean(self) -> Tensor:
        """E[y | x], shape `(M, *K)`.

        Raises:
            ValueError: If y has no mean, as under a Cauchy distribution.
        """
        means = torch.cat([moment(part, "mean") for part in self.components])
        if bool(means.isnan().any()):
            raise ValueError(f"{self._name} has no mean: use median, or interval(0.95)")
        return means.mean(0)

    @property
    def noise(self) -> Tensor:
        """mean_s Var[y | x, w_s], shape `(M, *K)`.

        Raises:
            ValueError: If y has no variance.
        """
        return self._noise.to(self.means.dtype)

    @property
    def noise_std(self) -> Tensor:
        """The root of `noise`, also where that is beyond single precision."""
        return self._noise.sqrt().to(self.means.dtype)

    @property
    def variance(self) -> Tensor:
        """Var[y | x], the spread of the means over draws plus the mean noise variance."""
        return self._variance.to(self.means.dtype)

    @property
    def std(self) -> Tensor:
        """The standard deviation of y given x, also where its square is beyond single precision."""
        return self._variance.sqrt().to(self.means.dtype)

    @property
    def _noise(self) -> Tensor:
        total = torch.stack(
            [moment(part, "stddev").double().square().sum(0) for part in self.components]
        ).sum(0)
        if bool(total.isnan().any()):
            raise ValueError(f"{self._name} has no variance: use interval(0.95)")
        return total / len(self.means)

    @property
    def _variance(self) -> Tensor:
        return self.means.double().var(0, unbiased=False) + self._noise

    @property
    def median(self) -> Tensor:
        """The value that y is below and above with equal probability, shape `(M, *K)`."""
        return self.predictive_quantiles([0.5])[0]

    def interval(self, level: float = 0.95) -> Tensor:
        """Ends of the central interval containing y with probability `level`, shape `(2, M, *K)`."""
        return self.predictive_quantiles(_tails(level))

    def function_interval(self, level: float = 0.95) -> Tensor:
        """Ends of the central band containing E[y | x, w] with probability `level`, `(2, M, *K)`.

        It shows how certain the model is of the function. Observations also have noise: see `interval`.
        """
        return self.function_quantiles(_tails(level))

    def predictive_quantiles(self, levels: Sequence[float] | Tensor) -> Tensor:
        """Quantiles of y under the mixture over weight draws, shape `(len(levels), M, *K)`.

        They are found in double precision: in single, a normal's is infinite at a level of 1e-8.

        Raises:
            ValueError: `levels` is not a list or is empty, or a level lies outside [0, 1], or between 0 and
                1e-12.
        """
        wanted = _checked(levels)
        if small := [level for level in wanted if 0 < level < SMALLEST]:
            raise ValueError(f"levels must be 0 or at least {SMALLEST:g}, got {small[0]:g}")
        precise = [in_double(part) for part in self.components]
        like = own_tensor(self.components[0])
        try:
            precisely = torch.tensor(wanted, dtype=torch.float64, device=like.device)
            found = torch.stack([mixture_quantile(precise, level) for level in precisely])
        except NotImplementedError:  # no cdf
            return sample_quantiles(self.components, wanted, like.device)
        return found.to(like.dtype)

    def function_quantiles(self, levels: Sequence[float] | Tensor) -> Tensor:
        """Quantiles of the function value E[y | x, w] over draws, shape `(len(levels), M, *K)`."""
        return self.means.quantile(self.means.new_tensor(_checked(levels)), dim=0)

    def targets(self, y: Any) -> Tensor:
        """`y`, a tensor or what becomes one, in the prediction's own shape `(M, *K)`.

        Raises:
            ValueError: It has another number of values.
        """
        first = self.components[0]
        y = as_tensor(by_target("y", y, self.names)).to(own_tensor(first).device)
        return _shaped(y, torch.Size((*first.batch_shape[1:], *first.event_shape)))

    def losses(self, y: Any) -> Tensor:
        """Squared error of the mean (the median where there is no mean), averaged over outputs."""
        squares = self._squares(y)
        return squares.reshape(len(squares), -1).mean(1)

    def _squares(self, y: Any) -> Tensor:
        return (self._point.double() - self.targets(y).double()).square()

    @staticmethod
    def error_of(mean: float) -> float:
        """The root of the mean squared error."""
        return mean**0.5

    def rmse(self, y: Any, weights: Any = None) -> Tensor:
        """Root mean squared error of each target by itself, in its own units, shape `(*K)`.

        With `weights` each row as often as it counts.
        """
        squares = self._squares(y)
        counts = row_weights("weights", weights, squares)
        there = counts > 0  # where it is not, y may be missing
        return (torch.tensordot(counts[there], squares[there], 1) / counts.sum()).sqrt()

    def metrics(self, y: Any, weights: Any = None) -> dict[str, float]:
        """Root mean squared error, in units of y, and NLL in nats per row, each as often as it counts.

        Of several targets both are over all of them. The one in the largest units counts most in the error
        (`rmse` has that of each); to the NLL other units add a constant, so it ranks fits as before.

        Raises:
            ValueError: `predict` was given no `y`, or another one than this: the NLL is that of the `y` it
                was given.
        """
        mean, y = (part.reshape(len(part), -1) for part in (self._point, self.targets(y)))
        if self.y is not None and not torch.equal(self.targets(self.y).reshape(y.shape), y.to(self.y)):
            raise ValueError(
                "y differs from the y passed to predict(x, y), for which the NLL was computed: pass this y "
                "to predict() too"
            )
        return regression_metrics(mean, self.log_predictive, y, weights)

    @property
    def _point(self) -> Tensor:
        has_mean = not any(bool(moment(part, "mean").isnan().any()) for part in self.components)
        return self.mean if has_mean else self.median

    @property
    def _name(self) -> str:
        return type(self.components[0]).__name__


def error_among(scores: Mapping[str, float]) -> ErrorMetric:
    """The metric that is the error among scores by name: the percentage of wrong labels, else the RMSE."""
    kinds = (ClassPrediction.error, ValuePrediction.error)
    return next((error for error in kinds if error.name in scores), kinds[1])


def _shaped(y: Tensor, shape: torch.Size) -> Tensor:
    """`y` in this shape; ValueError if it has another number of rows, or of values."""
    if y.numel() != shape.numel() or y.shape[:1] != shape[:1]:
        raise ValueError(f"y must have the shape of the prediction, {tuple(shape)}, got {tuple(y.shape)}")
    return y.reshape(shape)


def _tails(level: float) -> list[float]:
    tail = (1 - checks.between("level", level, 0, 1)) / 2
    return [tail, 1 - tail]


def _checked(levels: Any) -> list[float]:
    given = levels.tolist() if hasattr(levels, "tolist") else levels
    if not isinstance(given, Iterable):
        raise ValueError(f"levels must be a list, such as [0.5], got {levels!r}")
    found = [checks.between("levels", level, 0, 1) for level in given]
    if not found:
        raise ValueError("levels must name at least one quantile")
    return found


def _centre(distribution: Any) -> Tensor:
    mean = moment(distribution, "mean")
    if not bool(mean.isnan().any()):
        return mean
    if isinstance(distribution, Affine):
        return distribution.loc + distribution.scale * _centre(distribution.base_dist)
    try:
        return distribution.icdf(torch.full_like(mean, 0.5))
    except NotImplementedError:  # a symmetric one, such as Student's t
        if not isinstance(getattr(distribution, "loc", None), Tensor):
            name = type(distribution).__name__
            raise ValueError(f"{name} states neither a mean nor quantiles: define mean or icdf") from None
        return distribution.loc.expand(mean.shape)


def _cat(parts: Sequence[Tensor]) -> Tensor | None:
    return torch.cat(list(parts)) if parts else None
