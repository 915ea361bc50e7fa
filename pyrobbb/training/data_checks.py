"""Checks before a training starts: types, shapes, lengths, values and scales of the data."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from pyrobbb._support import checks, text
from pyrobbb._support.chunking import out_of_memory
from pyrobbb._support.copies import own_copy
from pyrobbb._support.distribution_parts import is_masked, on_real_line, univariate
from pyrobbb._support.model_inputs import check_rows, first_output, observed
from pyrobbb._support.network_checks import check_rows_stay_apart, evaluating
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
    check_rows_stay_apart(model.network)  # by its layers; _check_rows_alone asks the network itself
    for part, split in (("", train), ("validation ", validation)):
        if split is not None:
            check_rows(model, part, split.x, split.y)
    _check_rows_alone(model, train.head(4))
    _check_own_parameters(model, train.x[:4])
    _check_own_slopes(model, train.x[:4])
    unused, weights = _unused(model, train.x[:4]), model.initial().values()
    if unused and len(unused) == sum(value.is_floating_point() for value in weights):
        raise ValueError(UNUSED.format(", ".join(unused)))


def warn_of_data(model: BayesianNetwork, guide: nn.Module, train: Split, *, table: bool = False) -> None:
    """Log likely mistakes as a fit begins or continues: of the network's weights and output, and of scales.

    A `table` has standardised its inputs itself, but for those that are to come as they stand.
    """
    if unused := _unused(model, train.x[:4]):
        logger.warning("%s", UNUSED.format(", ".join(unused)))
    _warn_of_probabilities(model, train.x[:20])
    _warn_of_masks(model, train.x)
    seen = train.take(scattered(len(train), SEEN))  # the first rows of a sorted table lie far from 0
    if not table:
        _warn_of_inputs(seen.x)
    if model.likelihood.prediction is ValuePrediction:
        _warn_of_targets(model, guide, seen)


def _warn_of_masks(model: BayesianNetwork, x: Tensor) -> None:
    """Log what does not see a mask of the likelihood's."""
    with isolated(device=x.device):
        distribution = observed(model, first_output(model, "x", x))
    if is_masked(distribution):
        logger.warning(
            "the likelihood masks some places, which then add nothing to the log-likelihood, but metrics and "
            "warnings about residuals count every place: score such a model by its log_predictive"
        )


def reach(rows: Split) -> float | None:
    """The largest |x| of some rows, by which inputs on another scale are recognised; None for tokens."""
    x = rows.take(scattered(len(rows), SEEN)).x
    return float(x.abs().max()) if x.is_floating_point() else None


def _warn_of_inputs(x: Tensor) -> None:
    """Log a likely mistake: inputs on a scale far from 1."""
    if x.is_floating_point() and x.dim() == 2 and x.shape[1]:
        scaled = x.double()
        sizes = scaled.square().mean(0).sqrt()
        largest = int(sizes.argmax())
        if float(sizes[largest]) > LARGE or float(scaled.abs().max()) < SMALL:
            logger.warning(
                "x is not scaled: feature %d has a root mean square of %.3g, the largest of all; priors and "
                "initial values expect about 1: subtract the mean, divide by the standard deviation",
                largest,
                float(sizes[largest]),
            )
        elif scaled.shape[1] <= FEW and len(x) > 1:
            _warn_of_features(scaled)
    elif x.is_floating_point() and x.dim() != 2:
        size = float(x.double().square().mean().sqrt())
        if size > LARGE or float(x.abs().max()) < SMALL:
            logger.warning(
                "x is not scaled: its root mean square is %.3g; priors and initial values expect about 1: "
                "divide by the standard deviation, or pixels of 0 to 255 by 255",
                size,
            )


def _warn_of_targets(model: BayesianNetwork, guide: nn.Module, seen: Split) -> None:
    """Log a likely mistake: targets far from the network, relative to the likelihood's noise.

    From the untrained network, and, as the fit may continue another, from a draw of the guide.
    """
    ratios = []
    unknown = suppress(ValueError, NotImplementedError)  # a guide without draws yet, a y without moments
    with torch.no_grad(), evaluating(model), isolated(device=seen.x.device), unknown:
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
    with torch.no_grad(), evaluating(model), isolated(device=x.device):
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
    """The weights that the output has nothing to do with, as no draw of theirs reaches it."""
    weights = {name: value.detach().clone() for name, value in model.initial().items()}
    weights = {name: value.requires_grad_() for name, value in weights.items() if value.is_floating_point()}
    if not weights:
        return []
    with torch.enable_grad(), evaluating(model), isolated(device=x.device):
        output = model.apply_network(weights, x)
        found: Sequence[Tensor | None] = [None] * len(weights)
        if output.requires_grad:
            found = _slopes(output.sum(), list(weights.values()))
    return [name for name, slope in zip(weights, found, strict=True) if slope is None]


def _slopes(value: Tensor, of: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The derivative of a value of the network's by each tensor; ValueError if there is none to take."""
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
    (slope,) = _slopes(last, [rows]) if last.requires_grad else (None,)
    return slope is not None and bool(slope[:-1].nan_to_num().any())


def _has_slopes(model: BayesianNetwork, x: Tensor) -> bool:
    """Whether the last row's output has slopes along other rows, at a draw of the prior.

    At the initial weights a layer may be 0, and rows may be equal: values alone would tell nothing then.
    """
    if not x.is_floating_point():
        return False
    weights = model.prior_draw()
    with torch.enable_grad(), isolated(device=x.device):
        x = x.detach().clone().requires_grad_()
        last = model.apply_network({name: weights[name] for name in model.sites}, x)[-1].sum()
        return _reaches_others(last, x)


def _mixes_in_training(model: BayesianNetwork, x: Tensor) -> bool:
    """Whether the last row's output has slopes along other rows in the layers' own modes.

    Unlike values, slopes between rows are 0 under dropout, too. They do not see what is detached, such as a
    running mean.
    """
    with suppress(RuntimeError, ValueError):  # a network may train that has no slopes by x
        return _has_slopes(own_copy(model), x)  # a call in training mode may change buffers and counters
    return False


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same up to rounding, of a batch of another size, too."""
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3 * float(one.abs().max()))


def _check_own_parameters(model: BayesianNetwork, x: Tensor) -> None:
    """ValueError if the network does something else with drawn weights than with parameters like them."""
    weights = model.initial()
    with torch.no_grad(), evaluating(model):
        with isolated(0, device=x.device):
            drawn, again = (model.apply_network(weights, x) for _ in range(2))
        with isolated(0, device=x.device):
            plain = network_with(model, weights)(x)
    if torch.equal(drawn, again) and not _near(drawn, plain):
        raise ValueError(
            "the network gives a different output with drawn weights than with parameters of the same "
            "values: its forward must not read parameters() or state_dict(), which do not contain drawn "
            "weights; refer to layers and weights by name"
        )


def _check_own_slopes(model: BayesianNetwork, x: Tensor) -> None:
    """ValueError if the gradient of drawn weights depends on those that lie in the network meanwhile.

    What torch.utils.checkpoint computes again takes these, for most layers without a word. The layers are in
    their own modes.
    """
    if not model.sites:
        return
    draw = model.prior_draw()
    weights = model.with_padding({name: draw[name] for name in model.sites})
    model = own_copy(model)  # a call in training mode may change buffers and counters
    outputs, slopes = [], []
    for lies in (model.initial(), weights):
        given = {name: value.clone().requires_grad_() for name, value in weights.items()}
        with torch.enable_grad(), isolated(0, device=x.device):
            for name, value in model.initial().items():
                value.copy_(lies[name])
            outputs.append(output := model.apply_network(given, x))
            if not output.requires_grad:
                return
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


def _check_rows_alone(model: BayesianNetwork, first: Split) -> None:
    """ValueError if a row's output changes with the rows before it: no likelihood per datum then."""
    x = first.x
    with torch.no_grad(), evaluating(model), isolated(device=x.device):
        alone, again = (model.apply_network(model.initial(), x[-1:])[0] for _ in range(2))
        beside = model.apply_network(model.initial(), x)[-1]
    random = not torch.equal(alone, again)  # a network with noise of its own cannot be compared
    moved = not random and not _near(alone, beside)
    with evaluating(model):
        moved = moved or _has_slopes(model, x)
    if moved:
        raise ValueError(
            "the network's output for a row depends on the other rows of the batch, so there is no "
            "likelihood per datum; is the batch its first dimension (batch_first=True for nn.LSTM)?"
        )
    if _mixes_in_training(model, x):
        raise ValueError(
            "the network mixes the rows of a batch in training mode, so it has no likelihood per datum; call "
            "network.eval(), or compute each row independently, as LayerNorm and GroupNorm do"
        )
    if random or model.other_latents:
        return
    with torch.enable_grad(), evaluating(model), isolated(device=x.device):
        output = model.apply_network(model.initial(), x).detach().requires_grad_()
        distribution = model.observation(output)
        depends = _reaches_others(distribution.log_prob(model.encoded(distribution, first.y))[-1], output)
    if depends:
        raise ValueError(
            "the likelihood of a row depends on the other rows of the batch; its distribution must depend "
            "on that row's output alone, without a mean or sum over the first dimension"
        )
