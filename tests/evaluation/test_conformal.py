"""Split conformal: over many splits the coverage that its theorem says, and sets counted by hand."""

from math import ceil, sqrt

import pyro.distributions as dist
import pytest
import torch

from pyrobbb.evaluation.conformal import SCORES, ConformalIntervals, ConformalSets, calibrate
from pyrobbb.predictive import ClassPrediction, ValuePrediction

SPLITS = 1000


def values(mean, scale):
    """A prediction of one draw, `(1, M, K)`."""
    return ValuePrediction(None, None, components=(dist.Normal(mean[None], scale[None]),))


def labels(probs):
    entropy = torch.zeros(len(probs))
    return ClassPrediction(None, None, probs=probs, predictive_entropy=entropy, expected_entropy=entropy)


def covered(calibration, fresh, level):
    """The share of fresh scores, `(splits, m)`, within the quantile of calibration scores `(n, splits)`."""
    return float(
        (fresh <= ConformalIntervals(calibration.sort(0).values).quantile(level)[:, None]).double().mean()
    )


@pytest.mark.parametrize("n", [19, 99, 500])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_coverage_over_a_thousand_splits_is_the_theorem_s(n, level):
    """For values without ties it is ceil((n + 1) level) / (n + 1) exactly; sd of a split's from its beta."""
    draw = torch.Generator().manual_seed(n)
    scores = torch.rand(n, SPLITS, generator=draw, dtype=torch.float64).exponential_(generator=draw)
    fresh = torch.empty(SPLITS, 1000, dtype=torch.float64).exponential_(generator=draw)
    rank = ceil(round((n + 1) * level, 9))
    expected = rank / (n + 1)
    spread = sqrt(expected * (1 - expected) * (1 / (n + 2) + 1 / 1000) / SPLITS)
    assert covered(scores, fresh, level) == pytest.approx(expected, abs=5 * spread)
    assert level <= expected <= level + 1 / (n + 1)


def test_ninety_percent_covers_ninety_of_a_hundred_though_the_posterior_is_wrong():
    """A thousand splits of rows whose noise is thrice what the prediction says, and not normal."""
    draw = torch.Generator().manual_seed(1)
    mean = torch.randn(SPLITS, 400, 1, generator=draw)
    scale = 0.1 + torch.rand(SPLITS, 400, 1, generator=draw)
    y = mean + 3 * scale * (torch.empty_like(mean).exponential_(generator=draw) - 1)
    held, new = slice(0, 199), slice(199, 400)
    hits = []
    for i in range(SPLITS):
        conformal = calibrate(values(mean[i, held], scale[i, held]), y[i, held])
        low, high = conformal.interval(values(mean[i, new], scale[i, new]), 0.9)
        hits.append(float(((low <= y[i, new]) & (y[i, new] <= high)).double().mean()))
    assert 0.89 < sum(hits) / SPLITS < 0.91


@pytest.mark.parametrize("score", SCORES)
def test_sets_contain_the_label_nine_times_of_ten_though_the_probabilities_are_wrong(score):
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(SPLITS, 400, 5, generator=draw)
    y = torch.distributions.Categorical(logits=logits).sample()  # its own randomness: the splits are many
    overconfident = (3 * logits).softmax(-1)
    hits = []
    for p, label in zip(overconfident, y, strict=True):
        sets = calibrate(labels(p[:199]), label[:199], score=score).sets(labels(p[199:]), 0.9)
        hits.append(float(sets.gather(1, label[199:, None]).double().mean()))
    assert 0.89 < sum(hits) / SPLITS < 0.91


def test_sets_and_intervals_by_hand():
    probs = torch.tensor([[0.5, 0.3, 0.2]]).expand(9, 3)
    y = torch.tensor([0] * 5 + [1] * 3 + [2])
    new = labels(torch.tensor([[0.2, 0.7, 0.1], [0.45, 0.1, 0.45]]))
    aps = calibrate(labels(probs), y)  # scores 0.5 five times, 0.8 three times, 1
    assert isinstance(aps, ConformalSets)
    assert aps.sets(new, 0.5).tolist() == [[False, True, False], [True, False, True]]  # 0.7 is beyond 0.5
    assert aps.sets(new, 0.8).tolist() == [[False, True, False], [True, False, True]]
    lac = calibrate(labels(probs), y, score="lac")  # 0.5 five times, 0.7 three times, 0.8
    assert lac.sets(new, 0.6).tolist() == [[False, True, False], [True, False, True]]
    scale = torch.tensor([1.0, 1, 1, 2])[:, None]
    four = calibrate(values(torch.zeros(4, 1), scale), torch.tensor([1.0, -2, 3, 8]))  # 1, 2, 3, 4
    assert isinstance(four, ConformalIntervals)
    ends = four.interval(values(torch.tensor([[10.0]]), torch.tensor([[0.5]])), 0.6)
    assert ends.flatten().tolist() == [8.5, 11.5]


@pytest.mark.parametrize("label", range(4))
def test_classes_that_tie_have_the_same_score_by_aps(label: int) -> None:
    """That of all classes at least as likely, in whatever order they stand."""
    probs = torch.tensor([[0.25, 0.125, 0.25, 0.375]])
    scores = calibrate(labels(probs), torch.tensor([label])).scores
    assert scores.tolist() == [[float(probs[probs >= probs[0, label]].sum())]]


def test_all_classes_together_have_a_score_of_one_by_aps() -> None:
    """Whatever rounding makes of their sum: a quantile of 1 leaves no class out."""
    draw = torch.Generator().manual_seed(0)
    probs = torch.randn(2000, 4, generator=draw).softmax(-1)
    assert bool((probs.sum(-1) != 1).any())
    least = calibrate(labels(probs[:60]), probs[:60].argmin(1))
    assert least.sets(labels(probs[60:]), 0.95).all()


def test_the_surest_rows_keep_their_class_by_aps_and_the_least_sure_lose_theirs_by_lac():
    """A classifier that is right more often than the level asks for: some scores of likeliest classes are
    beyond the quantile, by "aps" those of the surest rows."""
    draw = torch.Generator().manual_seed(3)
    logits = 8 * torch.randn(2000, 5, generator=draw)
    probs, y = logits.softmax(-1), torch.multinomial(logits.softmax(-1), 1, generator=draw)[:, 0]
    aps, lac = (calibrate(labels(probs[:199]), y[:199], score=score) for score in SCORES)
    new = labels(probs[199:])
    assert bool((new.probs.max(1).values > aps.quantile(0.8)).any())  # they would be empty
    assert bool(aps.sets(new, 0.8).any(1).all())
    empty = ~lac.sets(new, 0.8).any(1)
    assert bool(empty.any())
    assert new.probs[empty].max() < new.probs[~empty].max(1).values.min()


def test_several_outputs_are_calibrated_each_by_itself():
    y = torch.stack([torch.arange(1.0, 10), 10 * torch.arange(1.0, 10)], dim=1)
    prediction = values(torch.zeros(9, 2), torch.ones(9, 2))
    low, high = calibrate(prediction, y).interval(values(torch.zeros(1, 2), torch.ones(1, 2)), 0.5)
    assert high.tolist() == [[5.0, 50.0]]
    assert torch.equal(low, -high)
    with pytest.raises(ValueError, match="2 outputs were calibrated, not 1"):
        calibrate(prediction, y).interval(values(torch.zeros(1, 1), torch.ones(1, 1)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_rows_count_as_often_as_their_weights_say(level):
    """As repeated rows do; one of weight 0 is left out, whatever its target."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(30, 2, generator=generator)
    counts = torch.randint(0, 4, (30,), generator=generator)
    repeated, y[counts == 0] = y.repeat_interleave(counts, 0), torch.nan
    ones = [torch.zeros(len(part), 2) for part in (y, repeated)]
    weighted = calibrate(values(ones[0], ones[0] + 1), y, counts)
    plain = calibrate(values(ones[1], ones[1] + 1), repeated)
    torch.testing.assert_close(weighted.quantile(level), plain.quantile(level))
    probs = torch.rand(30, 3, generator=generator).softmax(1)
    label = torch.randint(0, 3, (30,), generator=generator)
    plain = calibrate(labels(probs.repeat_interleave(counts, 0)), label.repeat_interleave(counts))
    label[counts == 0] = -1
    torch.testing.assert_close(calibrate(labels(probs), label, counts).quantile(level), plain.quantile(level))
    with pytest.raises(ValueError, match=r"got 1 by their weights, which count them: hold more"):
        calibrate(labels(probs), label.clamp_min(0), torch.full((30,), 1 / 30)).quantile(0.9)
    with pytest.raises(ValueError, match=r"weights must have the shape \(30,\), got \(2,\)"):
        calibrate(labels(probs), label, counts[:2])


def test_weights_need_not_be_whole_numbers():
    """The level that a refusal offers is granted; of two halves each row counts once."""
    nine = calibrate(
        values(torch.zeros(19, 1), torch.ones(19, 1)), torch.arange(19.0), torch.full((19,), 0.5)
    )
    assert float(nine.quantile(0.9)) == 18.0  # 9.5 rows, of which 0.9 * 10.5 = 9.45 are asked for
    with pytest.raises(
        ValueError, match=r"0.91 needs at least 10.12 calibration rows, got 9.5 .* at most 0.9047$"
    ):
        nine.quantile(0.91)
    assert float(nine.quantile(0.9047)) == 18.0
    halves = calibrate(
        values(torch.zeros(38, 1), torch.ones(38, 1)), torch.arange(19.0).repeat(2), torch.full((38,), 0.5)
    )
    whole = calibrate(values(torch.zeros(19, 1), torch.ones(19, 1)), torch.arange(19.0))
    assert all(halves.quantile(level) == whole.quantile(level) for level in (0.1, 0.5, 0.93, 0.95))


def test_what_cannot_be_covered_is_refused():
    nine = calibrate(values(torch.zeros(9, 1), torch.ones(9, 1)), torch.arange(9.0))
    assert float(nine.quantile(0.9)) == 8.0
    with pytest.raises(ValueError, match=r"0.95 needs at least 19 calibration rows, got 9: .* at most 0.9$"):
        nine.quantile(0.95)
    for level in (0, 1, 1.5):
        with pytest.raises(ValueError, match="level must be greater than 0"):
            nine.quantile(level)
    with pytest.raises(ValueError, match="row 1 has no finite score"):
        calibrate(values(torch.zeros(2, 1), torch.ones(2, 1)), torch.tensor([0.0, float("nan")]))
    with pytest.raises(ValueError, match=r"y must have the shape of the prediction, \(2, 1\), got \(3,\)"):
        calibrate(values(torch.zeros(2, 1), torch.ones(2, 1)), torch.zeros(3))
    probs = labels(torch.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="score must be one of aps, lac"):
        calibrate(probs, torch.tensor([0, 1]), score="raps")
    sets = calibrate(probs, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="values were calibrated, and the prediction is of class labels"):
        nine.interval(probs)
    with pytest.raises(ValueError, match="class labels were calibrated, and the prediction is of something"):
        sets.sets(values(torch.zeros(2, 1), torch.ones(2, 1)))
    with pytest.raises(ValueError, match="2 classes were calibrated, not 3"):
        sets.sets(labels(torch.full((2, 3), 1 / 3)), 0.5)
    with pytest.raises(ValueError, match="labels from 0 to 1"):
        calibrate(probs, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="one class label in each row"):
        calibrate(labels(torch.full((2, 3, 2), 0.5)), torch.zeros(2, 3))


def test_values_without_a_finite_spread_are_refused():
    """In units of an infinite deviation every score is 0, and every interval NaN."""
    heavy = dist.StudentT(2.0, torch.zeros(1, 3, 1), 1.0)
    with pytest.raises(ValueError, match="no finite standard deviation"):
        calibrate(ValuePrediction(None, None, components=(heavy,)), torch.zeros(3))


def test_intervals_of_a_grid_have_its_shape():
    """Ten steps of one target, as predictions have them: low <= y must compare place with place."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(410, 10, 1, generator=draw) * torch.linspace(0.5, 3, 10)[:, None]
    held, new = (
        values(torch.zeros(len(part), 10, 1), torch.ones(len(part), 10, 1)) for part in (y[:400], y[400:])
    )
    low, high = calibrate(held, y[:400]).interval(new, 0.9)
    assert low.shape == high.shape == y[400:].shape == new.interval(0.9)[0].shape
    widths = (high - low)[0, :, 0] / 2
    torch.testing.assert_close(widths, y[:400, :, 0].abs().sort(dim=0).values[360], rtol=1e-5, atol=0)


def test_the_least_level_is_the_least_score():
    scores = calibrate(values(torch.zeros(50, 1), torch.ones(50, 1)), torch.arange(1.0, 51.0))
    assert float(scores.quantile(1e-12)) == 1.0


def test_what_is_printed_of_a_calibration_is_short():
    many = torch.linspace(0.1, 0.9, 500)
    sets = calibrate(labels(torch.stack([many, 1 - many], 1)), torch.arange(500) % 2, score="lac")
    assert repr(sets) == "ConformalSets(score='lac', classes=2)"
    intervals = calibrate(values(many[:, None], torch.ones(500, 1)), torch.zeros(500, 1))
    assert repr(intervals) == "ConformalIntervals()"
