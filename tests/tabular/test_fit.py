"""From a table to a posterior in one call."""

import importlib
import math
import re
import sys
from functools import partial
from io import StringIO

import numpy as np
import pytest
import torch

from engine_fakes import nothing_changes
from pyrobbb import BayesianNetwork, Posterior, likelihoods
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb.compression.pruning import prune
from pyrobbb.data import Table, from_arrays, from_table
from pyrobbb.data.dataset import Split
from pyrobbb.draws import NoWeights
from pyrobbb.evaluation.conformal import calibrate
from pyrobbb.experiment import Run
from pyrobbb.inference import MAP, NUTS, SGHMC, Laplace
from pyrobbb.likelihoods import Rescaled
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp
from pyrobbb.priors import Deterministic, Normal
from pyrobbb.tabular import choice, fit, fit_table, load_table, table_likelihood, table_prior
from pyrobbb.training.callbacks import BestCheckpoint, Callback
from pyrobbb.training.progress import Printed

RNG = np.random.default_rng(0)
SIZE = RNG.uniform(20, 200, 300)
TOWN = RNG.choice(["Ulm", "Bonn"], 300)
NOISE = 3e4
PRICE = 5e5 + 4e3 * SIZE + 1e5 * (TOWN == "Bonn") + NOISE * RNG.standard_normal(300)
HOUSES = {"size": SIZE, "town": TOWN, "price": PRICE}


@pytest.fixture(scope="module")
def fitted():
    data = from_table(HOUSES, test=1 / 3)
    return data, fit_table(data, hidden=(50,), noise="learned", epochs=250)


def test_a_line_with_noise_is_found_in_its_own_units(fitted):
    """The truth's own log-likelihood and interval are the oracle; the fit may lose little of them."""
    data, posterior = fitted
    prediction = posterior.predict(data.test.x, data.test.y, draws=300, sample=True)
    truth = -math.log(NOISE) - 0.5 * math.log(2 * math.pi) - 0.5
    assert float(prediction.log_predictive.mean()) == pytest.approx(truth, abs=0.5)  # mean -0.11, sd 0.06
    low, high = prediction.samples.quantile(torch.tensor([0.025, 0.975]), dim=0)
    covered = float(((low <= data.test.y) & (data.test.y <= high)).double().mean())
    assert covered > 0.95 - 5 * math.sqrt(0.05 * 0.95 / 100)
    likelihood = posterior.model.likelihood
    assert isinstance(likelihood, Rescaled)
    found = float((likelihood.likelihood.scale * likelihood.unit).detach())
    assert abs(math.log(found / NOISE)) < math.log(2)  # mean 0.15, sd 0.03 over 8 seeds; of all prices 2.0


@pytest.mark.parametrize(("inference", "epochs"), [(None, 1500), (NUTS(warmup=50, draws=50), 1)])
def test_each_target_has_noise_of_its_own(inference, epochs, tmp_path):
    """One of them follows the input to a fifth of its spread, the other not at all."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(60)
    table = {"x": x, "sure": x + 0.2 * rng.standard_normal(60), "random": rng.standard_normal(60)}
    options = {"hidden": (), "inference": inference, "epochs": epochs, "folder": tmp_path}
    posterior = fit_table(from_table(table, target=["sure", "random"]), noise="learned", **options)
    sure, random = posterior.predict({"x": [0.0]}).noise[0].sqrt().tolist()
    assert 2 * sure < random  # 5 times; its logarithm is 9 standard deviations above that of 2, over seeds
    assert torch.equal(
        load_table(tmp_path, inference=inference).predict({"x": [0.0]}).noise,
        posterior.predict({"x": [0.0]}).noise,
    )


def test_the_noise_is_the_one_with_the_lower_free_energy(tmp_path):
    """Of one size everywhere, or growing with the input."""
    random = np.random.default_rng(0)
    x = random.standard_normal(300)
    for kind, noise in (("learned", 0.5), ("heteroscedastic", np.exp(1.5 * x.clip(-2, 2) - 1))):
        data = from_table({"x": x, "y": x + noise * random.standard_normal(300)})
        # the others' free energy is 0.31 nats a row higher over 6 seeds, sd 0.003, and 0.88, sd 0.13
        posterior = fit_table(data, hidden=(50,), epochs=60, folder=tmp_path / kind)
        likelihood = posterior.model.likelihood.likelihood
        assert isinstance(likelihood, likelihoods.HeteroscedasticNormal) == (kind == "heteroscedastic")


@pytest.mark.parametrize("better", ["mixture", "student_t", "learned"])
def test_of_several_noises_the_one_with_the_lowest_free_energy_is_kept(better, tmp_path):
    """Either of two values at the same inputs; or a tenth of the rows far off; or nothing of the kind.

    The other's free energy is 1.18 nats a row higher over 8 seeds (sd 0.04), 0.77 (0.13), 0.14 (0.01).
    """
    random = np.random.default_rng(0)
    x, e = random.standard_normal((2, 300)) * [[1.0], [0.3]]
    y = {
        "mixture": x + e + 3 * random.choice([-1, 1], 300),
        "student_t": x + e * np.where(random.random(300) < 0.1, 20, 1),
        "learned": x + e,
    }[better]
    data = from_table({"x": x, "y": y})
    other = "mixture" if better == "learned" else "learned"
    said = StringIO()
    noises = {"hidden": (50,), "noise": [other, better], "progress": Printed(said)}
    posterior = fit_table(data, epochs=200, folder=tmp_path, **noises)
    lines = said.getvalue().splitlines()
    assert {f"fit 1 of 2: {other}", f"fit 2 of 2: {better}", f"kept: {better}"} < {*lines}
    kept = posterior.model.likelihood.likelihood
    assert type(kept) is type(table_likelihood(data.spec, better).likelihood)
    low, high = posterior.predict({"x": [0.0]}).interval(0.5)[:, 0, 0].tolist()
    assert (high - low > 3) == (better == "mixture")
    again = load_table(tmp_path).predict({"x": [0.0]})
    torch.testing.assert_close(again.mean, posterior.predict({"x": [0.0]}).mean)


@pytest.mark.parametrize("inference", [MAP(), Laplace(structure="diagonal")])
def test_without_a_bound_the_noise_is_the_one_that_held_rows_are_likelier_under(inference, tmp_path):
    """-log P(w) says nothing here. The noise grows in the training rows, and falls or grows in those held.

    Over 8 seeds the wrong one is worse by 2.6 to 45 nats a row, and by 1.1 (sd 0.1).
    """
    random = np.random.default_rng(1)
    x = random.standard_normal(400)
    heteroscedastic = {}
    for name, sign in (("falls", -1), ("grows", 1)):
        slope = np.where(np.arange(400) < 200, 1, sign)
        table = {"x": x, "y": x + np.exp(slope * x - 1) * random.standard_normal(400)}
        data = from_table(table, validation=range(200, 400))
        posterior = fit_table(data, hidden=(10,), epochs=50, inference=inference, folder=tmp_path / name)
        likelihood = posterior.model.likelihood.likelihood
        heteroscedastic[name] = isinstance(likelihood, likelihoods.HeteroscedasticNormal)
        assert posterior.model.N == 200
    assert heteroscedastic == {"falls": False, "grows": True}
    folder = tmp_path / "all"  # without rows for validation a fifth is held back, and then all are fitted
    posterior = fit_table(from_table(table), hidden=(10,), epochs=1, inference=inference, folder=folder)
    assert posterior.model.N == 400
    tried = {path.name for path in (folder / "held-out").iterdir()}
    assert tried == {"hidden-10-learned", "hidden-10-heteroscedastic"}
    assert (folder / "chain-0.pt").exists()


def test_new_rows_are_predicted_by_the_columns_that_were_kept(fitted, tmp_path):
    data, posterior = fitted
    mean = posterior.predict(data.inputs({"size": [100.0, 100.0], "town": ["Bonn", "Ulm"]})).mean[:, 0]
    assert float(mean[0]) == pytest.approx(1e6, abs=NOISE)
    assert float(mean[1]) == pytest.approx(9e5, abs=NOISE)


def test_a_folder_keeps_the_columns_and_the_training(tmp_path):
    data = from_table(HOUSES)
    first = fit_table(data, epochs=2, folder=tmp_path)
    assert load_table(tmp_path).columns == data.columns
    again = fit_table(data, epochs=2, folder=tmp_path)  # found finished
    assert torch.equal(first.predict(data.train.x).mean, again.predict(data.train.x).mean)


def test_new_rows_are_predicted_as_they_stand_in_the_table(fitted):
    data, posterior = fitted
    rows = {"town": ["Bonn", "Ulm"], "size": [100.0, 100.0]}  # in another order
    assert torch.equal(posterior.predict(rows).mean, posterior.predict(data.inputs(rows)).mean)
    with pytest.raises(ValueError, match="the rows have no column 'town'"):
        posterior.predict({"size": [100.0]})


@pytest.mark.parametrize(
    ("table", "options"),
    [
        (HOUSES, {}),
        (HOUSES, {"noise": "heteroscedastic", "chains": 2, "prior": Normal(sigma=0.3)}),
        (HOUSES, {"noise": "learned", "inference": MAP()}),
        ({"size": SIZE, "town": TOWN, "label": np.where(SIZE > 110, "large", "small")}, {}),
    ],
)
def test_a_folder_is_all_that_predicting_takes(table, options, tmp_path):
    posterior = fit_table(from_table(table), epochs=2, folder=tmp_path, hidden=(4, 3), **options)
    own = {key: options[key] for key in ("prior", "inference") if key in options}
    with nothing_changes():
        again = load_table(tmp_path, **own)
    rows = {"size": [100.0], "town": ["Bonn"]}
    probs = [getattr(p.predict(rows), "probs", None) for p in (posterior, again)]
    means = [p.predict(rows).mean for p in (posterior, again)] if probs[0] is None else probs
    assert torch.equal(*means)
    for key in own:
        with pytest.raises(ValueError, match=f"was given {key}=; pass the same one"):
            load_table(tmp_path, **{other: own[other] for other in own if other != key})


def test_a_small_fit_takes_one_thread_and_leaves_the_setting_as_it_was():
    class Notes(Callback):
        def on_epoch(self, view, row):
            seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for batch_size, threads in ((64, 1), (300, 2)):
            seen = []
            fit_table(
                from_table(HOUSES), noise="learned", epochs=1, batch_size=batch_size, callbacks=[Notes()],
                hidden=(50 if threads == 1 else 200,), progress=None,
            )  # fmt: skip
            assert seen == [threads]
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_posterior_of_a_table_is_saved_anywhere_and_saved_again(tmp_path):
    posterior = fit_table(from_table(HOUSES), noise="learned", epochs=2, hidden=(), progress=None)
    posterior.save(tmp_path / "first")
    load_table(tmp_path / "first").save(tmp_path / "second")
    again = load_table(tmp_path / "second")
    new = {name: column[:5] for name, column in HOUSES.items() if name != "price"}
    assert torch.equal(again.predict(new, draws=5).mean, posterior.predict(new, draws=5).mean)


def test_a_pruned_posterior_of_a_table_is_saved_and_opened(tmp_path):
    data = from_table(HOUSES)
    posterior = fit_table(data, noise="learned", epochs=2, hidden=(), progress=None, folder=tmp_path / "fit")
    pruned = prune(posterior, 0.5)
    new = {name: column[:5] for name, column in HOUSES.items() if name != "price"}
    for folder in ("elsewhere", "fit"):
        pruned.save(tmp_path / folder)
        again = load_table(tmp_path / folder)
        assert torch.equal(again.predict(new, draws=5).mean, pruned.predict(new, draws=5).mean)


def test_a_folder_of_another_table_stays_as_it_was(tmp_path):
    fit_table(from_table(HOUSES), epochs=2, folder=tmp_path, noise="learned")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    few = {name: column[:100] for name, column in HOUSES.items()}
    with pytest.raises(CheckpointError, match="give another folder"):
        fit_table(from_table(few), epochs=2, folder=tmp_path, noise="learned")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    with pytest.raises(ValueError, match=r"table.json does not exist: fit_table"):
        load_table(tmp_path / "elsewhere")
    (tmp_path / "table.json").write_text("{}")
    with pytest.raises(ValueError, match=r"table.json does not describe a fit"):
        load_table(tmp_path)


def test_rows_count_as_often_as_a_column_says():
    """Prices that count twice are as if they stood there twice, up to the order of the minibatches."""
    counts = 1 + np.arange(300) % 3
    data = from_table(HOUSES | {"seen": counts}, target="price", weights="seen")
    assert data.train.weights.tolist() == counts.tolist()
    assert data.columns.inputs(HOUSES).shape == (300, 3)
    given = from_table({"size": SIZE, "town": TOWN}, PRICE, weights=counts)
    assert torch.equal(given.train.weights, data.train.weights)
    with pytest.raises(
        ValueError, match="column 'seen' holds -1 in row 0, counted from 0; none may be negative"
    ):
        from_table(HOUSES | {"seen": counts - 2}, target="price", weights="seen")


def test_held_rows_choose_a_model_as_often_as_they_count():
    counts = torch.arange(300) % 3
    data = from_table(HOUSES | {"seen": counts}, target="price", weights="seen", validation=range(100))
    posterior, held, counts = fit_table(data, noise="learned", epochs=1), data.validation, counts[:100]
    repeated = Split(held.x.repeat_interleave(counts, 0), held.y.repeat_interleave(counts, 0))
    assert choice._loss(posterior, held) == pytest.approx(choice._loss(posterior, repeated), rel=1e-5)


def test_rows_that_count_nothing_are_left_out_of_everything():
    """Means, categories and noise are those of the rows that count."""
    odd = {name: [*values, *values[:1]] for name, values in HOUSES.items()}
    odd["size"][-1], odd["town"][-1], odd["price"][-1] = 1e6, "Atlantis", 1e9
    counts = [1.0] * len(HOUSES["price"]) + [0.0]
    data = from_table(odd | {"seen": counts}, target="price", weights="seen")
    plain = from_table(HOUSES, target="price")
    assert data.spec == plain.spec
    assert data.columns == plain.columns
    assert torch.equal(data.train.x, plain.train.x)


def test_the_units_change_nothing_but_themselves():
    """Targets and inputs in other units give the same fit, in those units."""
    grams = {"size": 1000 * SIZE - 7, "town": TOWN, "price": PRICE / 1e3 + 5}
    tables = (from_table(table, dtype="float64") for table in (HOUSES, grams))
    mean, changed = (fit_table(data, epochs=3).predict(data.train.x).mean for data in tables)
    assert mean.dtype == torch.float64
    np.testing.assert_allclose(changed.numpy(), mean.numpy() / 1e3 + 5, rtol=1e-6)


def test_classes_and_noise_that_follows_the_inputs():
    classes = {"size": SIZE, "label": np.where(SIZE > 110, "large", "small")}
    data = from_table(classes, test=0.2)
    probs = fit_table(data, epochs=100, prior=Normal()).predict(data.test.x).probs
    assert float((probs.argmax(-1) == data.test.y).double().mean()) > 0.9
    spread = table_likelihood(from_table(HOUSES).spec, "heteroscedastic")
    assert spread.width(1) == 2


@pytest.mark.parametrize("names", [("no", "yes"), (1, 2), (0.5, 1.5)])
def test_the_classes_of_new_rows_go_by_their_names(names):
    random = np.random.default_rng(0)
    x = random.standard_normal(60)
    labels = [names[int(value > 0)] for value in x]
    data = from_table({"x": x, "y": labels}, target="y", task="classification")
    posterior = fit_table(data, epochs=2, prior=Normal())
    rows = {"x": [-1.0, 2.0]}
    found = posterior.predict(rows, [names[1], names[0]])
    expected = posterior.predict(rows).probs[[0, 1], [1, 0]].log()
    torch.testing.assert_close(found.log_predictive, expected)
    numbers = posterior.predict(rows, torch.tensor([1, 0]))
    torch.testing.assert_close(numbers.log_predictive, expected)
    with pytest.raises(ValueError, match="y is 'maybe', a class not in the training rows"):
        posterior.predict(rows, ["maybe", names[0]])


def test_an_experiment_on_a_table_is_measured_in_its_own_units(tmp_path):
    """Whatever the units, the same errors in them, and log p(y) less by the log of their ratio."""

    def metrics(unit):
        run = Run(
            data=Table(source=HOUSES | {"price": PRICE / unit}, test=0.2, validation=0.1),
            model=mlp,
            prior=Normal(sigma=0.1),
            likelihood=likelihoods.Normal(scale=1.0, learn_scale=True),
            guide=MeanFieldNormal,
            optim=partial(torch.optim.Adam, lr=0.01),
            epochs=3,
            draws=10,
        )
        result = run.execute(tmp_path / str(unit))
        assert result.run.training(result.data, folder=tmp_path / str(unit)).resume()
        return result.metrics

    euros, thousands = metrics(1.0), metrics(1000.0)
    for part in ("test", "validation"):
        assert euros[part]["rmse"] == pytest.approx(1000 * thousands[part]["rmse"], rel=1e-3)
        assert euros[part]["nll"] == pytest.approx(thousands[part]["nll"] + math.log(1000), abs=1e-3)
    assert euros["free_energy"] == pytest.approx(thousands["free_energy"] + math.log(1000), abs=1e-3)


def test_raw_columns_are_for_networks_of_ones_own():
    frame = {"years": [300.0, 50.0, 70.0, 10.0], "a": [1.0, 2.0, 3.0, 5.0], "n": [0, 2, 1, 4]}
    with pytest.raises(ValueError, match=r"as they stand \(raw\): leave raw out"):
        fit_table(from_table(frame, target="n", task="regression", raw=["years"]))


def test_what_does_not_fit_is_refused():
    data = from_table(HOUSES)
    with pytest.raises(ValueError, match="data must be a table"):
        fit_table(from_arrays(SIZE[:, None], PRICE, task="regression"))
    with pytest.raises(
        ValueError, match="noise must be one of learned, heteroscedastic, student_t, mixture, got 'loud'"
    ):
        fit_table(data, noise="loud")
    for wrong in (["learned", 3], 3, [["learned"]]):
        with pytest.raises(ValueError, match=r"noise must be one of learned, .* got (3|\['learned'\])"):
            fit_table(data, noise=wrong)
    with pytest.raises(ValueError, match="noise must name at least one of learned, heteroscedastic"):
        fit_table(data, noise=[])
    with pytest.raises(ValueError, match="hidden"):
        fit_table(data, hidden=[0])
    with pytest.raises(ValueError, match="prior must be"):
        fit_table(data, prior="normal")
    assert fit_table(data, epochs=1, prior=Normal(sigma=0.1), hidden=[5, 5]).model.num_weights == 56


def test_without_hidden_layers_the_model_is_linear():
    data = from_table(HOUSES)
    posterior = fit_table(data, hidden=(), noise="learned", epochs=1, batch_size=None, progress=None)
    assert set(posterior.model.sites) == {"0.weight", "0.bias"}
    classes = from_table(HOUSES, target="town")
    assert len(classes.train) == fit_table(classes, hidden=(), epochs=1, progress=None).model.N


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("price", {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ("price", {"batch_size": "8"}, "batch_size must be a whole number of at least 1, got '8'"),
        ("price", {"samples": None}, "samples must be a whole number of at least 1, got None"),
        ("price", {"samples": "8"}, "samples must be a whole number of at least 1, got '8'"),
        ("price", {"guide": MeanFieldNormal}, "fit_table makes the guide: choose by .*, or use fit"),
        ("price", {"model": None}, "fit_table makes the model"),
        ("price", {"likelihood": None}, "fit_table makes the likelihood"),
        ("price", {"inference": "laplace"}, r"such as Laplace\(\), got 'laplace'"),
        ("price", {"inference": Laplace}, r"inference must be a method with its options: write Laplace\(\)"),
        ("town", {"noise": "heteroscedastic"}, "is for values, but the target is a class: leave noise out"),
    ],
)
def test_a_slip_in_an_option_is_told_in_one_sentence(target, options, message):
    with pytest.raises(ValueError, match=message):
        fit_table(from_table(HOUSES, target=target), epochs=1, progress=None, **options)


def test_the_prior_s_scale_follows_the_layer_s_width():
    spec = from_table(HOUSES).spec
    prior = table_prior(spec, "2.*")
    for width in (10, 1000):
        hidden = prior.distribution("0.weight", torch.zeros(width, 3)).base_dist
        last = prior.distribution("2.weight", torch.zeros(1, width)).base_dist
        assert float(hidden.variance[0, 0]) == pytest.approx(1 / 3)
        assert float(last.variance[0, 0]) * width == pytest.approx(0.49)


def test_a_classifier_chooses_its_prior_on_rows_that_it_does_not_train_on(tmp_path, monkeypatch):
    """Of a prior so narrow that nothing can be learned and one that fits, whichever is asked first."""
    random = np.random.default_rng(0)
    x = random.standard_normal((200, 2))
    table = {"a": x[:, 0], "b": x[:, 1], "label": np.where(x[:, 0] * x[:, 1] > 0, "same", "other")}
    for gains, held in (((1e-3, 4.0), 0.2), ((4.0, 1e-3), 0.0)):
        monkeypatch.setattr(fit, "GAINS", gains)
        data = from_table(table, validation=held)
        # by 0.25 nats a row over 8 seeds, sd 0.03, in both
        posterior = fit_table(data, epochs=20, folder=tmp_path / f"{held}")
        assert posterior.model.prior.default.gain == 4.0
        assert 200 - 200 * held == posterior.model.N


class Watches(Callback):
    """What is kept of the last epoch, and stops after the third."""

    keeps = ("seen", "units")

    def __init__(self):
        self.seen, self.units = [], 0

    def on_epoch(self, view, row):
        self.seen = [*self.seen, row.free_energy]
        self.units = view.guide.loc.numel()
        if len(self.seen) == 3:
            view.stop("seen enough")


@pytest.mark.parametrize("target", ["price", "town"])
@pytest.mark.parametrize("held", [0.0, 0.2])
def test_callbacks_are_those_of_the_fit_that_is_returned(target, held):
    """Of the three noises, or of the three gains: each fit stops by itself."""
    watches = Watches()
    data = from_table(HOUSES, target=target, validation=held)
    posterior = fit_table(data, hidden=(5,), epochs=8, fast="eager", callbacks=[watches], progress=None)
    assert posterior.history.stopped == "seen enough"
    assert watches.seen == [row.free_energy for row in posterior.history.rows]
    assert watches.units == posterior.chains[0][1].loc.numel()


def test_the_best_of_each_fit_has_a_file_of_its_own(tmp_path):
    """Both fits would write to one file, the second over the first, which is returned."""
    data = from_table({"x": SIZE, "y": 2 * SIZE + RNG.standard_normal(300)}, validation=0.2)
    options = {"hidden": (3,), "epochs": 3, "fast": "eager", "progress": None}
    several, alone = BestCheckpoint(folder=tmp_path / "several"), BestCheckpoint(folder=tmp_path / "alone")
    found = fit_table(data, noise=("learned", "mixture"), callbacks=[several], **options)
    name = found.beside["table.json"]["noise"]
    assert several.folder == tmp_path / "several" / name
    same = fit_table(data, noise=name, callbacks=[alone], **options)
    several.restore(found)
    alone.restore(same)
    assert torch.equal(found.chains[0][1].loc, same.chains[0][1].loc)
    fit_table(data, noise=("learned", "mixture"), callbacks=[several], **options)  # and again
    assert several.folder == tmp_path / "several" / name
    with pytest.raises(ValueError, match="callbacks must be a Sequence, got <"):
        fit_table(data, callbacks=several, **options)


def test_a_folder_of_another_noise_stays_as_it_was(tmp_path):
    options = {"hidden": (3,), "epochs": 2, "fast": "eager", "progress": None}
    data = from_table(HOUSES)
    fit_table(data, folder=tmp_path, **options)
    for noise in ("mixture", "learned"):
        with pytest.raises(
            ValueError, match=r"holds a fit with noise=\['learned', 'heteroscedastic', 'mixture'\]"
        ):
            fit_table(data, folder=tmp_path, noise=noise, **options)
    fit_table(data, folder=tmp_path, **options)


def test_a_seed_of_numpy_s_is_the_seed_that_it_says():
    for target in ("price", "town"):
        data = from_table(HOUSES, target=target)
        options = {"hidden": (3,), "epochs": 1, "progress": None}
        plain, own = (fit_table(data, seed=seed, **options) for seed in (5, np.int64(5)))
        assert torch.equal(own.mean_weights()["0.weight"], plain.mean_weights()["0.weight"])


def test_few_rows_are_enough():
    data = from_table({"x": [0.0, 1.0, 0.1, 0.9], "y": ["a", "b", "a", "b"]})
    assert fit_table(data, epochs=2).predict(data.train.x).probs.shape == (4, 2)


def test_the_estimators_are_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "pyrobbb.estimators", raising=False)
    with pytest.raises(ImportError, match=r"pip install '\.\[sklearn\]' in your clone"):
        importlib.import_module("pyrobbb.estimators")


def test_several_chains_start_from_networks_of_their_own():
    data = from_table(HOUSES)
    several = fit_table(data, chains=2, noise="learned", epochs=1, progress=None)
    alone = fit_table(data, noise="learned", epochs=1, progress=None)
    assert len(several.chains) == len(several.histories) == 2
    first, second = (several.mean_weights(c)["0.weight"] for c in (0, 1))
    assert not torch.allclose(first, second, atol=0.1)
    torch.testing.assert_close(first, alone.mean_weights()["0.weight"], rtol=1e-4, atol=1e-5)
    assert len(fit_table(data, chains=2, epochs=1, progress=None).chains) == 2  # compares two kinds of noise


@pytest.fixture(scope="module")
def numbered():
    """Classes 1, 2 and 3 of a table, told apart by their one input."""
    random = np.random.default_rng(0)
    kind = random.integers(1, 4, 90)
    data = from_table({"x": kind + 0.1 * random.standard_normal(90), "kind": kind}, task="classification")
    return kind, data, fit_table(data, prior=Normal(sigma=1.0), epochs=30, progress=None)


def test_classes_go_by_their_names_in_every_score(numbered):
    kind, _, posterior = numbered
    rows = {"x": kind.astype(float)}
    prediction = posterior.predict(rows, kind)
    numbers = torch.from_numpy(kind - 1)
    assert prediction.metrics(kind) == prediction.metrics(numbers)
    assert prediction.metrics(kind)["nll"] == pytest.approx(
        -float(prediction.log_predictive.mean()), rel=1e-4
    )
    assert torch.equal(prediction.losses(kind.tolist()), prediction.losses(numbers))
    assert torch.equal(calibrate(prediction, kind).scores, calibrate(prediction, numbers).scores)
    with pytest.raises(ValueError, match=r"y is '0', a class not in the training rows; they are 1, 2, 3"):
        prediction.metrics([0] * len(kind))


def test_a_tensor_of_rows_as_they_stand_in_the_table_is_told(numbered, caplog):
    _, data, posterior = numbered
    posterior.predict(data.train.x)
    posterior.predict(torch.tensor([[0.0], [100.0], [1.0]]))  # as standardised columns of rare categories are
    assert not caplog.records
    posterior.predict(torch.tensor([[100.0]]))
    assert "it is taken to be standardised already, but it holds values up to 100" in caplog.text
    for whole in (torch.uint8, torch.int64):  # pixels come in bytes, standardised rows do not
        with pytest.raises(ValueError, match=r"cannot take a row of x, torch\.u?int"):
            posterior.predict(torch.tensor([[100]], dtype=whole))


def test_rows_in_other_units_are_told(tmp_path, caplog):
    size = np.linspace(20, 200, 50)
    data = from_table({"town": ["Ulm", "Hof"] * 25, "size": size, "price": size / 100}, target="price")
    posterior = fit_table(data, noise="learned", hidden=(), epochs=1, fast="off", progress=None)
    for each in (posterior, load_table(posterior.save(tmp_path).parent)):
        caplog.clear()
        each.predict({"size": [-500.0, 1000.0], "town": ["Ulm", "Hof"]})
        assert not caplog.records
        each.predict({"size": [1.2e6], "town": ["Ulm"]})
        assert "column 'size' holds values up to 2.26e+04 standard deviations from 110, the" in caplog.text


def test_raw_inputs_of_any_size_are_as_they_should_be(caplog):
    frame = {"years": [300.0, 50.0, 70.0, 10.0], "a": [1.0, 2.0, 3.0, 5.0], "n": [0, 2, 1, 4]}
    data = from_table(frame, target="n", task="regression", raw=["years"])
    model = BayesianNetwork(torch.nn.Linear(2, 1), Deterministic(), likelihoods.Normal(scale=1.0))
    posterior = Posterior([(model, NoWeights())], columns=data.columns)
    posterior.predict(data.train.x)
    assert not caplog.records
    posterior.predict(data.train.x.flip(1))
    assert "holds values up to 300" in caplog.text


@pytest.mark.parametrize(
    "make", [partial(NUTS, warmup=20, draws=20), partial(SGHMC, lr=0.001, cycles=1, draws=3)]
)
def test_samplers_draw_the_noise_as_well(make, tmp_path):
    data = from_table(HOUSES, target="price")
    options = {"hidden": (), "noise": "learned", "epochs": 3, "inference": make()}
    posterior = fit_table(data, folder=tmp_path, progress=None, **options)
    assert "likelihood.likelihood.scale" in posterior.draw(2)
    again = load_table(tmp_path, inference=make())
    assert torch.equal(again.predict(HOUSES).mean, posterior.predict(HOUSES).mean)


def test_a_folder_of_none_keeps_nothing():
    fit_table(from_table(HOUSES), noise="learned", epochs=1, folder=None, progress=None)


@pytest.mark.parametrize(("slope", "little"), [(0.0, True), (0.5, False)])
def test_a_fit_that_says_hardly_more_than_a_constant_is_told(slope, little, caplog):
    """With no slope the inputs say 0.0005 nats times a chi-square or so; with a weak one 0.25."""
    a = torch.randn(2000)
    data = from_table({"a": a, "y": slope * a + torch.randn(2000)}, target="y", task="regression")
    options = {"epochs": 150, "batch_size": 2000, "optim": partial(torch.optim.Adam, lr=0.05)}
    fit_table(data, noise="learned", hidden=(), samples=1, progress=None, **options)
    assert ("says hardly more about y than a constant" in caplog.text) is little
    assert ("another network, such as hidden=(10,)" in caplog.text) is little  # than the linear one


@pytest.mark.parametrize("counted", ["constant", "sloping"])
def test_what_a_fit_says_is_of_rows_as_often_as_they_count(counted, caplog):
    """Of a line y = x; half of the rows lie far out on it, the others are constant."""
    x = torch.tensor([-1.0, -1.0, 1.0, 1.0]).repeat(25)
    y, sloping = x * torch.tensor([0.0, 9.0]).repeat(50), torch.tensor([0.0, 1.0]).repeat(50)
    weights = sloping if counted == "sloping" else 1 - sloping
    table = {"x": x, "y": y, "w": 1e-6 + weights}
    data = from_table(table, target="y", weights="w", task="regression")
    fit._warn_of_little(line(1.0), data)
    assert ("says hardly more about y than a constant" in caplog.text) is (counted == "constant")


def test_a_fit_that_other_inputs_would_better_is_told_to_go_on(caplog):
    x = torch.tensor([-1.0, 1.0]).repeat(50)
    fit._warn_of_little(line(-1.0), from_table({"x": x, "y": x}, target="y", task="regression"))
    assert re.search(
        r"a training row changes by \+\d.* nats; if the inputs do matter, more epochs", caplog.text
    )


def test_the_inputs_of_other_rows_are_never_a_row_s_own(caplog):
    table = {"x": [-1.0, 1.0], "y": [-1.0, 1.0]}
    fit._warn_of_little(line(1.0), from_table(table, target="y", task="regression"))
    assert not caplog.records


def line(slope: float) -> Posterior:
    """The fit that y is so many times x, without doubt."""
    network = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(network.weight, slope)
    torch.nn.init.constant_(network.bias, 0.0)
    model = BayesianNetwork(network, Deterministic(), likelihoods.Normal(scale=1.0))
    return Posterior([(model, NoWeights())])


def held_losses(monkeypatch, losses):
    """Held-out rows have the losses given for each number of layers; returns the fits that were asked."""
    asked = []

    def loss(posterior, held):
        asked.append((len(posterior.model.network), posterior.model.N, len(held)))
        return losses[len(posterior.model.network)]

    monkeypatch.setattr(choice, "_loss", loss)
    return asked


@pytest.mark.parametrize(("better", "layers"), [("hidden", 3), ("linear", 1)])
def test_of_several_networks_the_one_that_held_rows_are_likelier_under_is_fitted_to_all(
    better, layers, monkeypatch, tmp_path
):
    """A fifth of the rows is held back; then the noise is chosen on all of them."""
    asked = held_losses(monkeypatch, {layers: 1.0, 4 - layers: 2.0})
    said = StringIO()
    options = {"epochs": 1, "folder": tmp_path, "progress": Printed(said)}
    posterior = fit_table(from_table(HOUSES), **options)
    assert asked == [(3, 240, 60), (1, 240, 60)]
    assert len(posterior.model.network) == layers
    assert posterior.model.N == 300
    told = [line for line in said.getvalue().splitlines() if line.startswith(("fit ", "kept"))]
    noises = ("learned", "heteroscedastic", "mixture")
    names = {"hidden": "held-out/hidden-50-learned", "linear": "held-out/linear-learned"}
    assert told[:3] == [
        *(f"fit {i} of 2: {n}" for i, n in enumerate(names.values(), 1)),
        f"kept: {names[better]}, now fitted to all rows",
    ]
    assert told[3:6] == [f"fit {i} of 3: {noise}" for i, noise in enumerate(noises, 1)]
    rows = {"size": [100.0], "town": ["Bonn"]}
    assert torch.equal(load_table(tmp_path).predict(rows).mean, posterior.predict(rows).mean)
    with pytest.raises(ValueError, match=r"holds a fit with hidden=\[\[50\], \[\]\]; give another folder"):
        fit_table(from_table(HOUSES), hidden=(50,), epochs=1, folder=tmp_path)


def test_rows_for_validation_choose_among_networks_and_gains(monkeypatch):
    table = {"size": SIZE, "label": np.where(SIZE > 110, "large", "small")}
    data = from_table(table, validation=range(100))
    asked = held_losses(monkeypatch, {1: 3.0, 3: 2.0, 5: 1.0})
    posterior = fit_table(data, hidden=[(), (4,), [3, 3]], epochs=1, progress=None)
    assert asked == [(layers, 200, 100) for layers in (1, 3, 3, 5, 5)]
    assert len(posterior.model.network) == 5
    asked.clear()
    for one in ((4,), [(4,)]):
        fit_table(data, hidden=one, prior=Normal(), epochs=1, progress=None)
    assert asked == []
    fit_table(from_table(table), hidden=(4,), epochs=1, validation=data.validation, progress=None)
    assert asked == [(3, 300, 100)] * 2  # rows given to the fit decide as well
    with pytest.raises(ValueError, match=r"hidden\[1\] must be a list of whole numbers, got 4"):
        fit_table(data, hidden=[(4,), 4])
    with pytest.raises(ValueError, match=r"hidden must be a list of whole numbers, got '50'"):
        fit_table(data, hidden="50")


@pytest.mark.parametrize(("first", "second", "layers"), [(math.nan, math.inf, 1), (2.0, math.nan, 3)])
def test_a_held_out_loss_of_nan_is_never_the_lowest(first, second, layers, monkeypatch):
    held_losses(monkeypatch, {3: first, 1: second})
    posterior = fit_table(from_table(HOUSES), noise="learned", epochs=1, progress=None)
    assert len(posterior.model.network) == layers


def test_callbacks_hold_what_the_chosen_fit_left_them(monkeypatch, tmp_path):
    """Of each fit on its way a copy was told; the kept one's state is handed over, and no other's."""
    held_losses(monkeypatch, {1: 1.0, 3: 2.0})

    class Rows(Callback):
        def __init__(self):
            self.rows = []

        def on_epoch(self, view, row):
            self.rows.append((len(view.model.network), view.model.N, type(view.model.likelihood.likelihood)))

    held = range(100)
    for validation, noise in ((None, "learned"), (None, None), (held, "learned"), (held, None)):
        callback = Rows()
        data = from_table(HOUSES, validation=validation)
        posterior = fit_table(data, noise=noise, epochs=2, callbacks=[callback], progress=None)
        kind = type(posterior.model.likelihood.likelihood)
        assert callback.rows == [(1, len(data.train), kind)] * 2
