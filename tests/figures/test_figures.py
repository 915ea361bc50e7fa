import re
from itertools import pairwise
from math import log10

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from pyrobbb import figures
from pyrobbb.evaluation.metrics import classification_metrics

RNG = np.random.default_rng(0)
EPOCH = np.arange(1, 6)
MU, SIGMA = RNG.normal(0, 0.1, (30, 20)), np.full((30, 20), 0.05)
PROBS = RNG.dirichlet(np.full(10, 0.3), size=300)
LABELS = np.array([RNG.choice(10, p=p) for p in PROBS])
IMAGES = RNG.uniform(size=(300, 8, 8))
ENTROPY = -(PROBS * np.log(PROBS + 1e-30)).sum(1)
X = np.linspace(-1, 1, 40)


def normal(w):
    return np.exp(-0.5 * w**2) / np.sqrt(2 * np.pi)


def learning_curves(**kwargs):
    history = {
        "epoch": EPOCH,
        "free_energy": 3.0 / EPOCH,
        "kl": 2.0 / EPOCH,
        "nll": 1.0 / EPOCH,
        "validation_error": np.array([9.0, 5.0, 2.5, 2.0, 2.25]),
    }
    return figures.learning_curves(**{**history, **kwargs})


MAKE = {
    "learning_curves": learning_curves,
    "weight_histogram": lambda: figures.weight_histogram(MU, MU + SIGMA, normal),
    "signal_to_noise": lambda: figures.signal_to_noise(MU, SIGMA),
    "reliability": lambda: figures.reliability(PROBS, LABELS),
    "uncertain_examples": lambda: figures.uncertain_examples(
        IMAGES, PROBS, LABELS, ENTROPY, rows=1, columns=2
    ),
    "regression_band": lambda: figures.regression_band(
        X, RNG.normal(X, 0.1, (50, 40)), X[::4], X[::4], truth=X, x_label="time (s)", y_label="height (m)"
    ),
}
KL = ([5e5, 9e4, 300.0], [900.0, 100.0, 20.0], [3000, 1200, 10], [1500, 300, 9])
MAKE["kl_by_layer"] = lambda: figures.kl_by_layer(["0.weight", "2.weight", "4.bias"], *KL, slab=[0.4, 0.2, 1])
AXES = {
    "kl_by_layer": {("KL (nats)", ""), ("KL (bits per weight)", ""), ("share of the weights", "")},
    "learning_curves": {
        ("", "nats per training datum"),
        ("epoch", "nats per training datum"),
        ("epoch", "validation error (%)"),
    },
    "weight_histogram": {
        ("weight", "density (log scale)"),
        (r"$\log_{10}|\mathrm{weight}|$", "density per decade"),
    },
    "signal_to_noise": {
        (r"signal-to-noise ratio, $10\,\log_{10}(|\mu|/\sigma)$ (dB)", "density (1/dB)"),
        (r"signal-to-noise ratio, $10\,\log_{10}(|\mu|/\sigma)$ (dB)", "share of the weights below"),
    },
    "reliability": {
        ("", "accuracy in the bin"),
        ("confidence: probability of the predicted class", "examples"),
    },
    "uncertain_examples": {("", ""), ("probability", "")},
    "regression_band": {("time (s)", "height (m)")},
}


def names_of_axes(figure):
    return {(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes}


def settings():
    return {key: value for key, value in matplotlib.rcParams.items() if key != "backend"}


@pytest.fixture
def odd_taste():
    """A user whose own settings would spoil every figure."""
    with matplotlib.rc_context():
        matplotlib.rcParams.update(
            {"font.size": 30, "axes.facecolor": "black", "text.usetex": True, "savefig.dpi": 20}
        )
        yield


def test_every_figure_is_tested():
    assert set(MAKE) == set(AXES) == set(figures.__all__) - {"save"}


@pytest.mark.parametrize("name", MAKE)
def test_it_names_its_axes_has_a_caption_is_saved_and_leaves_matplotlib_as_it_was(name, tmp_path):
    import matplotlib.pyplot as plt

    before, open_figures = settings(), plt.get_fignums()
    figure = MAKE[name]()
    assert isinstance(figure, Figure)
    assert names_of_axes(figure) == AXES[name]
    assert len(figure.get_suptitle()) > 20
    figures.save(figure, tmp_path / f"{name}.png")
    content = (tmp_path / f"{name}.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5000
    assert len(list(tmp_path.iterdir())) == 1
    assert settings() == before
    assert plt.get_fignums() == open_figures


def test_the_ending_says_the_format(tmp_path):
    figures.save(MAKE["regression_band"](), tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_a_users_settings_neither_change_a_figure_nor_get_lost(tmp_path, odd_taste):
    mine = settings()
    figures.save(MAKE["reliability"](), tmp_path / "odd.png")
    assert settings() == mine
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figures.save(MAKE["reliability"](), tmp_path / "plain.png")
    assert (tmp_path / "odd.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_saving_fails_clearly_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in one of .*\.png.*, got 'figure\.jepg'"):
        figures.save(MAKE["reliability"](), tmp_path / "figure.jepg")
    with pytest.raises(FileNotFoundError):
        figures.save(MAKE["reliability"](), tmp_path / "no_folder" / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_learning_curves_draw_each_chain_and_mark_the_best_epoch():
    two = {"epoch": np.tile(EPOCH, 2), "chain": np.repeat([0, 1], 5)}
    two |= {name: np.arange(1.0, 11.0) for name in ("free_energy", "kl", "nll")}
    figure = learning_curves(**two, validation_error=[9, 5, 2, 1, 3, 8, 6, 4, 2, np.nan])
    energy, _, _, error = figure.axes
    assert [text.get_text() for text in energy.get_legend().get_texts()] == ["chain 0", "chain 1"]
    assert [list(line.get_xdata()) for line in energy.lines] == [[1, 2, 3, 4, 5]] * 2
    assert list(energy.lines[1].get_ydata()) == [6, 7, 8, 9, 10]
    assert list(error.lines[1].get_xdata()) == [1, 2, 3, 4]
    assert error.get_title(loc="left") == "Validation: lowest 1 at epoch 4"


@pytest.mark.parametrize("trivial", [0.5, 8.86])
def test_learning_curves_show_the_free_energy_of_ignoring_the_inputs_in_one_panel(trivial):
    figure = learning_curves(trivial=trivial)
    energy = figure.axes[0]
    assert set(energy.lines[-1].get_ydata()) == {trivial}
    assert energy.get_ylim()[0] < trivial < energy.get_ylim()[1]
    assert [text.get_text() for text in energy.texts] == [f"ignoring the inputs: {trivial:.3g}"]
    assert not any(axes.texts for axes in figure.axes[1:])


def test_kl_by_layer_divides_by_the_number_of_weights():
    figure = MAKE["kl_by_layer"]()
    nats, bits, share = ([bar.get_width() for bar in axes.patches] for axes in figure.axes)
    assert nats == [5e5, 9e4, 300.0]
    assert bits == pytest.approx([5e5 / 3000 / np.log(2), 9e4 / 1200 / np.log(2), 30 / np.log(2)])
    assert share == pytest.approx([0.5, 0.25, 0.9])
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()][1] == "2.weight (1,200)"
    with pytest.raises(ValueError, match="columns must be equally long"):
        figures.kl_by_layer(["a"], *KL)


@pytest.mark.parametrize("nats", [0.003, 1.2, 7.0, 3e6])
def test_a_small_kl_has_ticks_that_say_where_they_are(nats):
    figure = figures.kl_by_layer(["weight"], [nats], [0.0], [2], [1])
    figure.draw_without_rendering()
    ticks = figure.axes[0].get_xticklabels()
    read = [float(tick.get_text().replace(",", "").replace("\u2212", "-")) for tick in ticks]
    assert read == pytest.approx(list(figure.axes[0].get_xticks()))


def test_learning_curves_of_one_epoch_have_no_epochs_between():
    figure = learning_curves(epoch=[1], free_energy=[3.0], kl=[1.0], nll=[2.0], validation_error=[9.0])
    low, high = figure.axes[0].get_xlim()
    assert [at for at in figure.axes[0].get_xticks() if low <= at <= high] == [1.0]


def test_learning_curves_without_validation_have_three_panels():
    figure = learning_curves(validation_error=np.full(5, np.nan))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Free energy",
        "KL[q || prior]",
        "Negative log-likelihood",
    ]


def test_learning_curves_of_a_point_are_of_a_loss():
    figure = learning_curves(bound=False)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["Loss", "Prior"]


def test_learning_curves_turn_logarithmic_only_for_wide_positive_values():
    figure = learning_curves(kl=[400.0, 30.0, 3.0, 2.0, 1.0], nll=[40.0, 1.0, 0.5, -0.5, -1.0])
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear", "linear"]


def test_weight_histogram_shows_a_narrow_spike_and_densities_of_mass_one():
    spike = np.exp(-6)

    def mixture(w):
        return 0.5 * normal(w) + 0.5 * normal(w / spike) / spike

    figure = figures.weight_histogram(MU, MU + SIGMA, mixture)
    by_value, by_magnitude = figure.axes
    prior = by_value.lines[0].get_ydata()
    assert prior.max() == pytest.approx(mixture(np.zeros(1))[0], rel=1e-3)
    assert by_value.get_ylim()[1] > prior.max()
    # the humps of spike and slab, each at its own scale
    at, density = by_magnitude.lines[0].get_data()
    assert at[density.argmax()] in (pytest.approx(log10(spike), abs=0.01), pytest.approx(0, abs=0.01))
    assert density[np.abs(at + 1.7) < 0.1].max() < 0.2 * density.max()
    for axes in figure.axes:
        for patch in axes.patches:
            heights, edges, _ = patch.get_data()
            assert heights @ np.diff(edges) == pytest.approx(1, abs=0.02)


def test_a_weight_alone_in_its_bin_is_seen():
    means = np.r_[np.linspace(-0.1, 0.1, 81), 2.0]
    by_value, _ = figures.weight_histogram(means, means).axes
    heights = by_value.patches[0].get_data().values
    assert by_value.get_ylim()[0] < 0.8 * heights[heights > 0].min()


def test_weight_histogram_copes_with_zeros_and_no_prior():
    assert len(figures.weight_histogram(np.zeros(5), np.zeros(5)).axes) == 2
    figure = figures.weight_histogram(np.array([0.0, 0.1]), np.array([0.0, -0.1]))
    assert not any(axes.lines for axes in figure.axes)
    assert figure.get_suptitle().startswith("Weights under the posterior,")


def test_signal_to_noise_cuts_the_share_it_says():
    ratio = 10.0 ** np.arange(0, 2, 0.02)  # 0 to 19.8 dB in 100 even steps
    figure = figures.signal_to_noise(np.r_[-ratio[:50], ratio[50:]], np.ones(100), share=0.75)
    density, cumulative = figure.axes
    assert density.lines[0].get_xdata()[0] == pytest.approx(14.8)
    assert cumulative.get_legend().get_texts()[0].get_text() == "75 % of the weights\nbelow 14.8 dB"
    grid, share = cumulative.lines[0].get_data()
    assert np.interp(9.95, grid, share) == pytest.approx(0.5, abs=0.011)
    assert share[-1] == 1


def test_signal_to_noise_counts_weights_of_mean_zero():
    mu = np.r_[np.zeros(80), np.full(20, 0.1)]
    _, cumulative = figures.signal_to_noise(mu, np.full(100, 0.1)).axes
    assert cumulative.lines[0].get_ydata()[0] == pytest.approx(0.8)
    assert cumulative.get_legend() is None  # the cut at 75 % lies at -inf dB


def test_reliability_tells_the_calibration_error_of_the_metrics():
    figure = MAKE["reliability"]()
    ece = classification_metrics(PROBS, LABELS)["ece"]
    assert f"ECE {ece:.4f}, 300 examples, 15 bins" in figure.get_suptitle()
    assert sum(int(text.get_text()) for text in figure.axes[1].texts) == 300


def test_a_bin_of_one_example_is_not_shown_as_certain():
    probs = np.vstack([np.full((9, 2), [0.05, 0.95]), [[0.4, 0.6]]])
    figure = figures.reliability(probs, np.ones(10, dtype=int))
    _, intervals = figure.axes[0].collections
    lows, highs = np.array([line[:, 1] for line in intervals.get_segments()]).T
    np.testing.assert_allclose(lows, [0.2065, 0.7009], atol=1e-4)  # Wilson's, of 1 of 1 and 9 of 9
    np.testing.assert_allclose(highs, 1)


def test_reliability_counts_each_example_by_its_weight():
    counts = np.where(PROBS.argmax(1) == LABELS, 3, np.arange(300) % 2)  # too right for its confidence
    weighted = figures.reliability(PROBS, LABELS, weights=counts)
    repeated = figures.reliability(PROBS.repeat(counts, 0), LABELS.repeat(counts))
    ece = [re.search(r"ECE [\d.]+", figure.get_suptitle())[0] for figure in (weighted, repeated)]
    assert ece[0] == ece[1] != re.search(r"ECE [\d.]+", MAKE["reliability"]().get_suptitle())[0]
    assert f"{np.count_nonzero(counts)} examples" in weighted.get_suptitle()  # the others count nothing


def test_weights_that_are_alike_leave_the_intervals_as_they_are():
    plain, alike = MAKE["reliability"](), figures.reliability(PROBS, LABELS, weights=np.full(300, 0.25))
    (_, one), (_, other) = (figure.axes[0].collections for figure in (plain, alike))
    np.testing.assert_allclose(one.get_segments(), other.get_segments(), atol=1e-6)


def test_the_reliability_of_one_example_counts_in_whole_numbers():
    figure = figures.reliability([[0.3, 0.7]], [1])
    assert "1 example, 15 bins" in figure.get_suptitle()
    axis = figure.axes[1].yaxis
    assert not any(axis.get_minor_formatter().format_ticks(axis.get_minorticklocs()))
    assert axis.get_major_formatter().format_ticks([1, 10_000]) == ["1", "10,000"]


def test_uncertain_examples_are_sorted_and_coloured():
    figure = figures.uncertain_examples(
        IMAGES, PROBS, LABELS, ENTROPY, rows=1, columns=2, classes=[f"class {c}" for c in range(10)]
    )
    most = np.argsort(-ENTROPY)[:2]
    for m, picture, bars in zip(most, figure.axes[::2], figure.axes[1::2], strict=True):
        np.testing.assert_array_equal(picture.images[0].get_array(), IMAGES[m])
        assert picture.get_title(loc="left") == f"true: class {LABELS[m]}"
        np.testing.assert_allclose([bar.get_width() for bar in bars.patches], PROBS[m])
        colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars.patches]
        assert colours[LABELS[m]] == "#009e73"
        if PROBS[m].argmax() != LABELS[m]:
            assert colours[PROBS[m].argmax()] == "#d55e00"


@pytest.mark.parametrize(("count", "cells"), [(3, 2 * 3), (5, 2 * 2 * 4)])
def test_uncertain_examples_may_be_fewer_than_the_grid(count, cells):
    given = (values[:count] for values in (IMAGES, PROBS, LABELS, ENTROPY))
    figure = figures.uncertain_examples(*given)
    assert f"The {count} most uncertain test examples" in figure.get_suptitle()
    assert sum(bool(axes.images) for axes in figure.axes) == count
    assert len(figure.axes) == cells


def test_names_of_many_classes_do_not_overlap():
    count = 26
    figure = figures.uncertain_examples(IMAGES[:4], np.full((4, count), 1 / count), range(4), ENTROPY[:4])
    figure.draw_without_rendering()
    names = figure.axes[1].get_yticklabels()
    assert [name.get_text() for name in names] == [str(c) for c in range(0, count, 3)]
    ends = [name.get_window_extent() for name in names]
    assert all(above.y0 > below.y1 for above, below in pairwise(ends))


def test_names_of_classes_are_no_formulas():
    figure = figures.uncertain_examples(IMAGES[:1], [[0.3, 0.7]], [1], [0.6], classes=["$5", "$6 to $9"])
    picture, bars = figure.axes
    names = [picture.get_title(loc="left"), *(tick.get_text() for tick in bars.get_yticklabels())]
    assert names == [r"true: \$6 to \$9", r"\$5", r"\$6 to \$9"]


def test_the_legend_of_reliability_covers_no_data():
    figure = MAKE["reliability"]()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1


def test_regression_band_holds_the_quantiles_in_order_of_x():
    draws = np.linspace(-1, 1, 201)[:, None] * np.array([1.0, 3.0, 2.0])
    figure = figures.regression_band([0.0, 2.0, 1.0], draws, [0.5], [0.0], data_label="test data")
    assert figure.axes[0].get_legend().get_texts()[-1].get_text() == "test data"
    outer, inner = (collection.get_paths()[0].vertices for collection in figure.axes[0].collections)
    for x in (0.0, 1.0, 2.0):
        assert outer[outer[:, 0] == x, 1].max() == pytest.approx(0.95 * (1 + x))
        assert inner[inner[:, 0] == x, 1].min() == pytest.approx(-0.5 * (1 + x))


@pytest.mark.filterwarnings("error")
def test_regression_band_at_one_input_is_a_bar_that_can_be_seen():
    draws = np.linspace(-1, 1, 201)[:, None]
    figure = figures.regression_band([2.0], draws, [2.0], [0.0], truth=[0.3])
    axes = figure.axes[0]
    outer = axes.collections[0].get_paths()[0].vertices
    assert np.ptp(outer[:, 0]) > 0.01 * np.diff(axes.get_xlim())
    assert outer[:, 1].max() == pytest.approx(0.95)
    assert axes.get_xlim()[0] < outer[:, 0].min() < 2.0 < outer[:, 0].max() < axes.get_xlim()[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: learning_curves(kl=[1.0]), "all columns must be equally long, got .*'kl': 1"),
        (lambda: figures.weight_histogram([], [1.0]), "means must have 1 axes and at least one entry"),
        (lambda: figures.weight_histogram([1.0], [np.nan]), "draws has 1 weights that are not finite"),
        (lambda: figures.signal_to_noise(np.ones(3), np.ones(2)), r"same shape, not empty: \(3,\), \(2,\)"),
        (lambda: figures.signal_to_noise(np.ones(3), np.zeros(3)), "sigma must be greater than 0"),
        (lambda: figures.signal_to_noise(np.zeros(3), np.ones(3)), "mu is 0 for every weight"),
        (
            lambda: figures.signal_to_noise(np.ones(3), np.ones(3), share=75),
            "share must be greater than 0 and less than 1",
        ),
        (lambda: figures.reliability(PROBS, LABELS[:5]), r"y must hold 300 .* labels, got shape \(5,\)"),
        (lambda: figures.reliability(3 * PROBS, LABELS), "probs must be at least 0 and sum to 1"),
        (lambda: figures.reliability(PROBS, LABELS, bins=0), "bins must be a whole number of at least 1"),
        (lambda: figures.uncertain_examples(IMAGES[:2], PROBS, LABELS, ENTROPY), r"\(2, 300, 300\)"),
        (lambda: figures.uncertain_examples(IMAGES, PROBS, LABELS + 1, ENTROPY), r"y must lie in 0\.\.9"),
        (lambda: figures.uncertain_examples(IMAGES, PROBS, LABELS - 1, ENTROPY), r"y must lie in 0\.\.9"),
        (
            lambda: figures.uncertain_examples(IMAGES, PROBS, LABELS, ENTROPY, classes=["a"]),
            "classes must have 10 names, got 1",
        ),
        (lambda: figures.regression_band(X, np.zeros((40, 5)), X, X), r"draws must have shape \(S, 40\)"),
        (lambda: figures.regression_band(X, np.zeros((5, 40)), X, X[1:]), "equally long: 40, 39"),
        (
            lambda: figures.regression_band(X, np.zeros((5, 40)), X, X, weights=np.ones(3) / 3),
            r"weights must have shape \(5,\), got \(3,\)",
        ),
        (
            lambda: figures.regression_band(X, np.zeros((5, 40)), X, X, truth=X[1:]),
            r"truth must have shape \(40,\), got \(39,\)",
        ),
    ],
)
def test_bad_input_gets_one_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
