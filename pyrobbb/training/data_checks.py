"""Checks before a training starts: types, shapes, lengths, values and scales of the data."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from pyrobbb._support import checks, text
from pyrobbb._support.chunking import out_of_memory
from pyrobbb._support.copies import own_copy
from pyrobbb._support.distribution_parts import on_real_line, univariate
from pyrobbb._support.model_inputs import check_rows, masks_values
from pyrobbb._support.network_checks import check_rows_stay_apart
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights, network_with
from pyrobbb.data.arrays import row_weights
from pyrobbb.data.dataset import Split, scattered
from pyrobbb.data.mapped import Mapped
from pyrobbb.draws import one_draw
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.predictive import ValuePrediction

SEEN = 1000  # rows at most whose scale is checked
LARGE = 15.0  # a root mean square of a feature above which it is surely not scaled
SMALL = 1 / LARGE  # a largest value below which it is not; of one-hot inputs the root mean square may be less
APART = 30.0  # times that of the smallest, or of its own spread: it is not scaled as the others are
FEW = 100  # features, above which they may be pixels, of which some hardly vary
UNUSED = (
    "the network's output does not depend on {}: a layer that is not used, or one whose weights forward "
    "detaches or reads without gradients, so that no draw of them arrives"
)
FAR = 50.0  # standard deviations of the noise between targets and the network as the fit begins

logger = logging.getLogger(__name__)


def check_tensors(part: str, split: Split) -> None:
    """Raise ValueError unless a part of the data is made of tensors, and its rows can be counted."""
    for name in ("x", "y"):
        value = getattr(split, name)
        if not isinstance(value, Tensor | Mapped):
            raise ValueError(
                f"{part}{name} must be a tensor, got {text.short(value)}; see pyrobbb.data.from_arrays"
            )
        if isinstance(value, Tensor):
            checks.dense(f"{part}{name}", value)
        if len(value) == 0:
            raise ValueError(f"{part}{name} is empty: its shape is {tuple(value.shape)}")
    if split.weights is not None:
        checks.check_kinds(**{f"{part}weights": (split.weights, Tensor)})
        row_weights(f"{part}weights", split.weights, split.x)


def check_data(model: BayesianNetwork, train: Split, validation: Split | None) -> None:
    """Raise ValueError if the model cannot be trained on the data: kinds, shapes, lengths and values."""
    check_rows_stay_apart(model.network)  # by its layers; below the network itself is asked
    for part, split in (("", train), ("validation ", validation)):
        if split is not None:
            check_rows(model, part, split.x, split.y)
    first = train.head(4)
    with isolated(device=model.device):
        with evaluating(model):
            _check_output(model, first)
            unused = _unused(model, first.x)
        _check_in_training(own_copy(model), first.x)  # a call may then change buffers and counters
    if unused and len(unused) == len(model.sites):
        raise ValueError(UNUSED.format(", ".join(unused)))


def warn_of_data(model: BayesianNetwork, guide: nn.Module, train: Split, *, table: bool = False) -> None:
    """Log likely mistakes as a fit begins or continues: of the network's weights and output, and of scales.

    A `table` has standardised its inputs itself, but for those that are to come as they stand.
    """
    seen = train.take(scattered(len(train), SEEN))  # the first rows of a sorted table lie far from 0
    if seen.weights is not None:
        seen = seen.take(seen.weights > 0)  # others may hold fill values
    with isolated(device=model.device), evaluating(model):
        if unused := _unused(model, train.x[:4]):
            logger.warning("%s", UNUSED.format(", ".join(unused)))
        _warn_of_probabilities(model, train.x[:20])
        if masks_values(model, train.x):
            logger.warning(
                "the likelihood masks some places, which then add nothing to the log-likelihood, but metrics "
                "count every place: score such a model by its log_predictive"
            )
        if not table:
            _warn_of_inputs(seen.x)
        if model.likelihood.prediction is ValuePrediction and len(seen):
            _warn_of_targets(model, guide, seen)


def reach(rows: Split) -> float | None:
    """The largest |x| of some rows, by which inputs on another scale are recognised; None for tokens."""
    x = rows.take(scattered(len(rows), SEEN)).x
    return float(x.abs().max()) if x.is_floating_point() else None


def _warn_of_inputs(x: Tensor) -> None:
    """Log a likely mistake: inputs on a scale far from 1, column by column where they have two dimensions."""
    if not x.is_floating_point() or not x.numel():
        return
    table = x.dim() == 2
    columns = x.double() if table else x.double().reshape(-1, 1)
    sizes = columns.square().mean(0).sqrt()
    largest, size = int(sizes.argmax()), float(sizes.max())
    if size > LARGE or float(columns.abs().max()) < SMALL:
        found = f"its root mean square is {size:.3g}"
        instead = "divide by the standard deviation, or pixels of 0 to 255 by 255"
        if table:
            found = f"feature {largest} has a root mean square of {size:.3g}, the largest of all"
            instead = "subtract the mean, divide by the standard deviation"
        logger.warning("x is not scaled: %s; priors and initial values expect about 1: %s", found, instead)
    elif table and x.shape[1] <= FEW and len(x) > 1:
        _warn_of_features(columns)


def _warn_of_targets(model: BayesianNetwork, guide: nn.Module, seen: Split) -> None:
    """Log a likely mistake: targets far from the network, relative to the likelihood's noise.

    From the untrained network, and, as the fit may continue another, from a draw of the guide.
    """
    ratios = []
    unknown = suppress(ValueError, NotImplementedError)  # a guide without draws yet, a y without moments
    with torch.no_grad(), unknown:
        for weights in _starts(model, guide):
            distribution = model.observation(model.apply_network(weights, seen.x), weights)
            one = univariate(distribution)
            if not on_real_line(one):  # counts, or times, which are not to be standardised
                return
            off = (model.encoded(distribution, seen.y).double() - one.mean).square().mean().sqrt()
            ratios.append(float(off / one.stddev.double().square().mean().sqrt()))
    if (ratio := min(ratios, default=0.0)) > FAR:
        logger.warning(
            "the network begins %.3g standard deviations of the likelihood's noise away from y: "
            "standardise y (for a table, with likelihoods.in_units(likelihood, data.spec)), or start from a "
            "larger noise scale",
            ratio,
        )


def _starts(model: BayesianNetwork, guide: nn.Module) -> Iterator[Weights]:
    """The network's own weights, and a draw of the guide."""
    # a latent noise at its prior's median: a draw may be as small as it likes
    latents = FlatGuide(model).loc_and_scale()[0] if model.other_latents else {}
    yield {**latents, **model.initial()}
    if model.latents:
        yield one_draw((model, guide), (0, 0, 0))


def _warn_of_probabilities(model: BayesianNetwork, x: Tensor) -> None:
    """Log a network for classes that ends in a softmax or sigmoid: its likelihood takes logits."""
    if model.likelihood.task != "classification":
        return
    with torch.no_grad():
        output = model.apply_network(model.initial(), x)
    shares = bool(((output >= 0) & (output <= 1)).all())
    several = output.shape[-1] > 1
    if shares and several and torch.allclose(output.sum(-1), output.new_ones(()), atol=1e-3):
        ends = "softmax"
    elif shares and isinstance(list(model.network.modules())[-1], nn.Sigmoid):
        ends = "sigmoid"
    else:
        return
    logger.warning(
        "the network's outputs are probabilities, but the likelihood expects logits and would turn them "
        "into probabilities again: remove the %s at its end",
        ends,
    )


def _warn_of_features(x: Tensor) -> None:
    """Log features, of those that vary, that are far apart in size or far from zero."""
    spread, centre = x.std(0), x.mean(0).abs()
    varies = (spread > 1e-12 * centre).nonzero()[:, 0]
    if not len(varies):
        return
    spread, off = spread[varies], centre[varies] / spread[varies]
    least, most, far = (int(part.argmax()) for part in (-spread, spread, off))
    if float(spread[most] / spread[least]) > APART:
        logger.warning(
            "x is not scaled: feature %d has a standard deviation of %.3g, feature %d one of %.3g; a prior "
            "treats all features alike: subtract the mean, divide by the standard deviation",
            int(varies[most]), float(spread[most]), int(varies[least]), float(spread[least]),
        )  # fmt: skip
    elif float(off[far]) > APART:
        logger.warning(
            "x is not centred: feature %d lies around %.3g with a standard deviation of %.3g: subtract the "
            "mean",
            int(varies[far]), float(x[:, varies[far]].mean()), float(spread[far]),
        )  # fmt: skip


def _unused(model: BayesianNetwork, x: Tensor) -> list[str]:
    """The weights on which the network's output does not depend."""
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.initial().items()}
    found = _slopes(model.apply_network(weights, x).sum(), list(weights.values()))
    return [name for name, slope in zip(weights, found, strict=True) if slope is None]


def _slopes(value: Tensor, of: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The derivative of a value of the network's by each tensor; ValueError if it cannot be taken."""
    if not of or not value.requires_grad:
        return (None,) * len(of)
    try:
        return torch.autograd.grad(value, of, allow_unused=True)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        raise ValueError(
            f"the network's gradient cannot be taken: {text.one_line(error, 200)}; a layer must not change "
            f"in place what its gradient needs, nor may torch.utils.checkpoint compute it again later, when "
            f"the drawn weights have left the network"
        ) from error


def _reaches_others(last: Tensor, rows: Tensor) -> bool:
    """Whether a value of the last row has slopes along the rows before it, however small."""
    (slope,) = _slopes(last, [rows])
    return slope is not None and bool(slope[:-1].nan_to_num().any())


def _mixes_rows(model: BayesianNetwork, x: Tensor) -> bool:
    """Whether the last row's output has slopes along other rows, at a draw of the prior.

    At the initial weights a layer may be 0, and rows may be equal: values alone would tell nothing then. Nor
    would they under dropout, where slopes between rows are 0. These do not see what is detached, such as a
    running mean.
    """
    if not x.is_floating_point():
        return False
    x = x.detach().clone().requires_grad_()
    return _reaches_others(model.apply_network(model.prior_draw(), x)[-1].sum(), x)


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same up to rounding, of a batch of another size, too."""
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3 * float(one.abs().max()))


def _check_output(model: BayesianNetwork, first: Split) -> None:
    """ValueError unless the output follows the drawn weights, and a row's output and likelihood that row."""
    x, weights = first.x, model.initial()
    with torch.no_grad():
        output, again = (model.apply_network(weights, x) for _ in range(2))
        alone = model.apply_network(weights, x[-1:])[0]
        plain = network_with(model, weights)(x)
    random = not torch.equal(output, again)  # a network with noise of its own cannot be compared
    if (not random and not _near(alone, output[-1])) or _mixes_rows(model, x):
        raise ValueError(
            "the network's output for a row depends on the other rows of the batch, so there is no "
            "likelihood per datum; is the batch its first dimension (batch_first=True for nn.LSTM)?"
        )
    if not random and not _near(output, plain):
        raise ValueError(
            "the network gives a different output with drawn weights than with parameters of the same "
            "values: its forward must not read parameters() or state_dict(), which do not contain drawn "
            "weights; refer to layers and weights by name"
        )
    if random or model.other_latents:
        return
    output = output.detach().requires_grad_()
    distribution = model.observation(output)
    if _reaches_others(distribution.log_prob(model.encoded(distribution, first.y))[-1], output):
        raise ValueError(
            "the likelihood of a row depends on the other rows of the batch; its distribution must depend "
            "on that row's output alone, without a mean or sum over the first dimension"
        )


def _check_in_training(model: BayesianNetwork, x: Tensor) -> None:
    """ValueError if the network, in training mode, mixes rows or takes a gradient at other weights.

    The gradient by drawn weights must not depend on the values that lie in the network meanwhile. With
    torch.utils.checkpoint it does: what is computed again, in the backward pass, reads those, for most layers
    without an error. `model` is a copy, which is changed.
    """
    mixes = False
    with suppress(RuntimeError, ValueError):  # a network may train that has no slopes by x
        mixes = _mixes_rows(model, x)
    if mixes:
        raise ValueError(
            "the network mixes the rows of a batch in training mode, so it has no likelihood per datum; call "
            "network.eval(), or compute each row independently, as LayerNorm and GroupNorm do"
        )
    draw = model.prior_draw()
    weights = model.with_padding({name: draw[name] for name in model.sites})
    outputs, slopes = [], []
    for lies in (model.initial(), weights):
        given = {name: value.clone().requires_grad_() for name, value in weights.items()}
        with isolated(0, device=x.device):
            for name, value in model.initial().items():
                value.copy_(lies[name])
            outputs.append(output := model.apply_network(given, x))
            one = (output * torch.rand_like(output)).sum()  # the plain sum of a softmax has no slopes
            slopes.append(_slopes(one, list(given.values())))
    if not torch.equal(*outputs):  # a network with noise of its own cannot be compared
        return
    for name, here, there in zip(weights, *slopes, strict=True):
        if here is not None and there is not None and not _near(here.nan_to_num(), there.nan_to_num()):
            raise ValueError(
                f"the gradient of {name!r} depends on the weights that lie in the network, which are not the "
                f"drawn ones: torch.utils.checkpoint must not compute a part of it again later, when the "
                f"drawn weights have left the network"
            )
