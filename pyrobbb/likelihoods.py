"""Network output -> distribution of y. A likelihood never knows N: the model's plate does the scaling.

Each likelihood says how wide the network's last layer must be (`width`), turns the output, of shape
`(*draws, B, *grid, width)`, into a distribution of batch shape `(*draws, B, *grid)`, and names the kind of
prediction that averages such distributions over draws and scores them. To add one, imitate `Poisson`.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.distributions import TorchDistribution, constraints
from pyro.nn import PyroParam, PyroSample
from torch import Tensor
from torch.distributions import Distribution

from pyrobbb import distributions
from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import on_real_line, own_tensor, rebased, univariate, unmasked
from pyrobbb._support.random_state import Named, isolated
from pyrobbb.data.dataset import Spec, Task
from pyrobbb.distributions import Affine, of_pyro
from pyrobbb.predictive import ClassPrediction, LabelPrediction, Prediction, ValuePrediction

Scale = float | Sequence[float] | Tensor | Distribution


class Likelihood(Named):
    """p(y | f) for a network output f.

    A likelihood of your own needs `forward`, and `width` if the distribution has several parameters:

    >>> class Exponential(Likelihood):
    ...     def forward(self, output):
    ...         return dist.Exponential(output.exp()).to_event(1)

    A latent parameter, such as a noise scale with a prior of its own, is a `PyroSample` attribute; it is
    one more site, `likelihood.NAME`, sampled once for all data.
    """

    task: Task = "regression"
    prediction: ClassVar[type[Prediction]] = ValuePrediction
    draws_together: ClassVar[bool] = False  # whether it depends on all of a step's draws at once

    def __init__(self, name: str = "likelihood") -> None:
        super().__init__(name)

    def width(self, outputs: int) -> int:
        """Width of the network's last layer for `outputs` classes or regression targets."""
        return outputs

    def forward(self, output: Tensor) -> TorchDistribution:
        """The distribution of y given the network's output, batch shape `output.shape[:-1]`."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, output)")

    def encode(self, y: Tensor) -> Tensor:
        """Targets as given in the data, in the shape and type that the distribution expects."""
        return y

    def check_domain(self, distribution: TorchDistribution, y: Tensor) -> None:
        """Raise ValueError if a value of `y` has no likelihood; called once, before training.

        `VonMises` takes angles of any turn: its density repeats, though a draw lies in [-pi, pi).

        Args:
            distribution: p(y | f) for some row.
            y: Targets, as `encode` gives them.
        """
        if bool((lost := ~y.isfinite()).any()):
            few = f"{n} values are" if (n := int(lost.sum())) > 1 else "1 value is"
            raise ValueError(
                f"{few} not finite, the first in row {lost.nonzero()[0][0]}: drop such rows, or mask what is "
                "missing, by a likelihood of your own"
            )
        base = univariate(distribution)
        support = type(base).support
        if not isinstance(support, constraints.Constraint) or constraints.is_dependent(support):
            return  # it is not stated, or depends on the parameters, and so on the row
        wrong = ~support.check(y)
        if bool(wrong.any()):
            first = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{float(y[tuple(first)]):g} in row {first[0]} is outside the support of "
                f"{type(self).__name__}: {support}"
            )


class Categorical(Likelihood):
    """p(y = c | f) = softmax(f)_c; `y` holds class numbers, shape `(B, *grid)`.

    f holds logits, so the network ends without a softmax layer.
    """

    task: Task = "classification"
    prediction = ClassPrediction

    def forward(self, output: Tensor) -> TorchDistribution:
        if output.shape[-1] < 2:
            raise ValueError("Categorical needs at least 2 classes, got an output of width 1; see Bernoulli")
        return dist.Categorical(logits=output)

    def encode(self, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise ValueError(
                f"Categorical needs integer labels of shape (B, *grid), got {y.dtype} {tuple(y.shape)}"
            )
        return y.long()

    def check_domain(self, distribution: TorchDistribution, y: Tensor) -> None:
        width = unmasked(distribution).logits.shape[-1]
        if int(y.min()) < 0 or int(y.max()) >= width:
            raise ValueError(
                f"labels must lie in 0..{width - 1} for a network output of width {width}, "
                f"got {int(y.min())}..{int(y.max())}"
            )


class Bernoulli(Likelihood):
    """p(y = 1 | f) = sigmoid(f): two classes from one output, or several labels that may occur together.

    `y` is 0 or 1, of shape `(B,)` or `(B, labels)`.

    Args:
        multilabel: Each output is a separate label, and the data have task regression, with one column for
            each label; else there are two classes, and the network's width is 1.
    """

    task: Task = "classification"
    prediction = LabelPrediction

    def __init__(self, multilabel: bool = False) -> None:
        super().__init__()
        self.multilabel = multilabel
        if multilabel:
            self.task = "regression"

    def width(self, outputs: int) -> int:
        if not self.multilabel and outputs > 2:
            raise ValueError(
                f"Bernoulli is for two classes, got {outputs}; see Categorical, or multilabel=True"
            )
        return outputs if self.multilabel else 1

    def forward(self, output: Tensor) -> TorchDistribution:
        return dist.Bernoulli(logits=output).to_event(1)

    def encode(self, y: Tensor) -> Tensor:
        y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        return y[:, None] if y.dim() == 1 else y

    def check_domain(self, distribution: TorchDistribution, y: Tensor) -> None:
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError("Bernoulli needs targets that are 0 or 1")


class _Scaled(Likelihood):
    """A likelihood with a scale: a constant, a parameter or a latent site."""

    def __init__(self, scale: Scale | None = None, learn_scale: bool = False) -> None:
        super().__init__()
        if scale is None:  # whatever number were fixed here would be wrong for most data
            scale, learn_scale = 1.0, True
        if isinstance(scale, Distribution):
            if learn_scale:
                raise ValueError("a scale with a prior is latent; learn_scale=True is for a number")
            self.scale = _latent("scale", scale)
            return
        given: Any = scale.tolist() if isinstance(scale, Tensor | np.ndarray) else scale
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = [checks.positive(f"scale[{i}]", each) for i, each in enumerate(given)]
        else:
            given = checks.positive("scale", given)
        if learn_scale:
            self.scale = PyroParam(torch.tensor(given), constraint=constraints.softplus_positive)
        else:  # in double precision, so that it is exact in networks of any
            self.register_buffer("scale", torch.tensor(given, dtype=torch.double))

    def scale_of(self, output: Tensor) -> Tensor:
        """The scale, which broadcasts with `output`."""
        scale: Tensor = self.scale.to(output.dtype)
        if scale.shape[-1:] not in ((), (1,), output.shape[-1:]):
            raise ValueError(
                f"{type(self).__name__} has {scale.shape[-1]} scales for {output.shape[-1]} outputs: give "
                f"one for all, or one for each"
            )
        return scale


class Normal(_Scaled):
    r"""p(y | f) = N(y | f, scale^2), independently for each output; `y` has shape `(B, outputs)`.

    Args:
        scale: Standard deviation of the noise, in units of y, a number for all outputs or a list with one for
            each; or its prior, a Pyro distribution on positive numbers such as `dist.HalfNormal(1.0)`, for a
            latent noise scale. By default one number is learned.
        learn_scale: Train the standard deviation to a point estimate, starting from `scale` or from 1.
    """

    def forward(self, output: Tensor) -> TorchDistribution:
        return dist.Normal(output, self.scale_of(output)).to_event(1)


class StudentT(_Scaled):
    r"""Noise with heavy tails, for targets with outliers: :math:`y = f + s\,t_\nu`; `y` is `(B, outputs)`.

    Args:
        df: Degrees of freedom :math:`\nu`; the mean exists above 1, the variance above 2.
        scale: s, in units of y; or its prior, or nothing, as for `Normal`.
        learn_scale: Train s to a point estimate, starting from `scale` or from 1.
    """

    def __init__(self, df: float = 4.0, scale: Scale | None = None, learn_scale: bool = False) -> None:
        super().__init__(scale, learn_scale)
        self.df = checks.positive("df", df)

    def forward(self, output: Tensor) -> TorchDistribution:
        df = output.new_full((), self.df)
        return distributions.StudentT(df, output, self.scale_of(output)).to_event(1)


def _latent(name: str, prior: Distribution) -> PyroSample:
    """A latent site with this prior; ValueError unless it is one of positive numbers."""
    negative = -own_tensor(prior).new_ones(prior.batch_shape + prior.event_shape)
    with suppress(NotImplementedError):  # a distribution of the user's own states no support
        support: Any = prior.support
        if bool(support.check(negative).any()) or bool(support.check(1e-6 * negative).any()):
            raise ValueError(
                f"the prior of {name} must be on positive numbers, such as HalfNormal(1.0), got {prior!r}, "
                f"whose support is {support}"
            )
    made = copy(prior)
    made.__class__ = of_pyro(prior)
    return PyroSample(made)


class NormalMixture(_Scaled):
    r"""One of K values, each with normal noise: a mixture density network (Bishop 1994).

    .. math::
        p(y \mid f) = \sum_{k=1}^K \pi_k\, N(y \mid m_k + s\, z_k, \text{scale}^2),
            \qquad \pi = \text{softmax}(a), \quad z_k = \Phi^{-1}\left(\frac{k - 1/2}{K}\right)

    `y` has shape `(B, outputs)`; the network gives, for each output, K logits a and then K means m.

    Args:
        components: K, at least 2.
        scale: Standard deviation of the noise around each mean, or its prior, or nothing, as for `Normal`.
        learn_scale: Train it to a point estimate, starting from `scale` or from 1.
        spread: s, how far apart the components are where the network says 0, in units of y. Without it they
            start as one, and a fit may never tell them apart; about the standard deviation of y is right.
    """

    spread = 0.0

    def __init__(
        self,
        components: int = 2,
        scale: Scale | None = None,
        learn_scale: bool = False,
        spread: float = 0.0,
    ) -> None:
        super().__init__(scale, learn_scale)
        self.components = checks.count("components", components, minimum=2)
        if checks.between("spread", spread, 0.0, math.inf):  # left out at 0: saved posteriors may not have it
            self.spread = float(spread)
            levels = (torch.arange(self.components, dtype=torch.double) + 0.5) / self.components
            self.register_buffer("offsets", self.spread * torch.special.ndtri(levels), persistent=False)

    def width(self, outputs: int) -> int:
        return 2 * self.components * outputs

    def forward(self, output: Tensor) -> TorchDistribution:
        outputs, left = divmod(output.shape[-1], 2 * self.components)
        if left or not outputs:
            raise ValueError(
                f"NormalMixture needs a network output whose width is a multiple of {2 * self.components}, "
                f"{self.components} logits and as many means for each target, got {output.shape[-1]}"
            )
        logits, means = output.unflatten(-1, (outputs, 2 * self.components)).chunk(2, dim=-1)
        if self.spread:
            means = means + self.offsets.to(means)
        scale = self.scale_of(means[..., 0])[..., None]
        return dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Normal(means, scale)).to_event(1)


class HeteroscedasticNormal(Likelihood):
    r"""p(y | f) = N(y | f_{1..K}, (softplus(f_{K+1..2K}) + s)^2): the network also outputs the noise.

    Args:
        least_scale: s, in units of y (inside `Rescaled`, of standardised y): no datum is fitted exactly.
    """

    def __init__(self, least_scale: float = 1e-3) -> None:
        super().__init__()
        self.least_scale = checks.positive("least_scale", least_scale)

    def width(self, outputs: int) -> int:
        return 2 * outputs

    def forward(self, output: Tensor) -> TorchDistribution:
        if output.shape[-1] % 2:
            raise ValueError(
                f"HeteroscedasticNormal needs a network output of even width (mean and noise), "
                f"got {output.shape[-1]}"
            )
        loc, raw = output.chunk(2, dim=-1)
        return dist.Normal(loc, F.softplus(raw) + self.least_scale).to_event(1)


class Poisson(Likelihood):
    r"""Counts with mean :math:`\lambda = e^f`; `y` has shape `(B, outputs)`.

    .. math::
        p(y \mid f) = \lambda^y e^{-\lambda} / y!
    """

    def forward(self, output: Tensor) -> TorchDistribution:
        return distributions.LogPoisson(output).to_event(1)


class NegativeBinomial(Likelihood):
    r"""Counts that vary more than a Poisson's, with mean :math:`m = e^f` and variance :math:`m + m^2 / r`.

    .. math::
        p(y \mid f) = \frac{\Gamma(y + r)}{\Gamma(r)\,y!} \frac{r^r m^y}{(r + m)^{r + y}}

    `y` has shape `(B, outputs)`.

    Args:
        concentration: r at the start of training, which is trained to a point estimate; or its prior, a Pyro
            distribution on positive numbers such as `dist.LogNormal(0.0, 1.0)`, for a latent r.
    """

    def __init__(self, concentration: float | Distribution = 1.0) -> None:
        super().__init__()
        if isinstance(concentration, Distribution):
            self.concentration = _latent("concentration", concentration)
            return
        start = torch.tensor(checks.positive("concentration", concentration))
        self.concentration = PyroParam(start, constraint=constraints.softplus_positive)

    def forward(self, output: Tensor) -> TorchDistribution:
        r = self.concentration.to(output.dtype)
        return distributions.NegativeBinomial(r, logits=output - r.log()).to_event(1)


class Rescaled(Likelihood):
    r"""A likelihood for standardised targets, :math:`(y - a) / b`, as a likelihood of y in its own units.

    The network then gives standardised values, while log-likelihoods (with their :math:`-\log b`),
    predictions, intervals and scores are those of y itself, everywhere.

    Args:
        likelihood: Of the standardised targets, which must be real numbers.
        loc: a of each output, such as the training targets' mean, shape `(outputs,)`.
        scale: b > 0 of each output, such as their standard deviation, shape `(outputs,)`.
    """

    def __init__(
        self, likelihood: Likelihood, loc: Tensor | Sequence[float], scale: Tensor | Sequence[float]
    ) -> None:
        super().__init__()
        if likelihood.task != "regression":
            name = type(likelihood).__name__
            raise ValueError(f"Rescaled needs a regression likelihood, but {name} is for {likelihood.task}")
        for each in ("encode", "check_domain"):
            if getattr(type(likelihood), each) is not getattr(Likelihood, each):
                raise ValueError(f"{type(likelihood).__name__}.{each} would not know the units of y")
        self.likelihood = likelihood
        loc, scale = (torch.as_tensor(value, dtype=torch.double).clone() for value in (loc, scale))
        if loc.shape != scale.shape or not bool(
            (scale > 0).all() & loc.isfinite().all() & scale.isfinite().all()
        ):
            raise ValueError(f"loc and scale must be finite, scale > 0, of one shape; got {loc} and {scale}")
        self.register_buffer("loc", loc)
        self.register_buffer("unit", scale)
        self.prediction = likelihood.prediction  # type: ignore[misc]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move or cast everything; the units of y, which are in double precision, are moved alone."""
        units = {"loc": self.loc, "unit": self.unit}
        super()._apply(fn, recurse)
        for name, value in units.items():
            if not value.is_meta:
                self._buffers[name] = value.to(self.get_buffer(name).device)
        return self

    def width(self, outputs: int) -> int:
        return self.likelihood.width(outputs)

    def forward(self, output: Tensor) -> TorchDistribution:
        distribution = self.likelihood(output)
        base = unmasked(distribution)
        name = type(self.likelihood).__name__
        if not on_real_line(base):
            raise ValueError(
                f"targets under {name} cannot be standardised: its support is not the whole real line"
            )
        outputs = (*base.batch_shape, *base.event_shape)[-1:]
        if self.loc.shape[-1:] not in ((), (1,), outputs):
            raise ValueError(
                f"Rescaled has units for {self.loc.shape[-1]} outputs, {name} has {outputs[0]}: "
                f"the network's width must be {self.width(self.loc.shape[-1])}"
            )
        dtype = torch.promote_types(output.dtype, torch.float32)  # y in half precision would be far off
        made = Affine(base, self.loc.to(dtype), self.unit.to(dtype))
        return rebased(distribution, made)  # a mask outside, so that -log b is left out with its value


def in_units(likelihood: Likelihood, spec: Spec) -> Likelihood:
    """`likelihood` of standardised targets, rescaled to their own units if `spec` states them.

    A likelihood of counts, or of other values not on the whole real line, is returned as it is.
    """
    if spec.units is None:
        return likelihood
    if likelihood.task == "regression":
        own = next(chain(likelihood.parameters(), likelihood.buffers()), torch.zeros(()))
        with isolated(device=own.device), torch.no_grad():
            standard = likelihood(torch.zeros(1, likelihood.width(spec.outputs), device=own.device))
        if not on_real_line(univariate(standard)):
            return likelihood
    return Rescaled(likelihood, spec.units.loc, spec.units.scale)
