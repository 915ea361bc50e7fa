"""Table 1, pruning, the Gluon notebook: their numbers that need no training, their commands in small."""

import json
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from io import StringIO

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from experiments._runner import side_by_side
from experiments._runner.build import ConfigError, build
from experiments._runner.command import folder_command, part_of
from experiments._runner.compose import compose
from experiments._runner.folder import claim
from experiments._runner.reopen import reopen
from experiments._runner.tables import markdown
from experiments.paper import figures as mnist_figures
from experiments.paper import pruning, pruning_report, table1, table1_report
from experiments.reproductions import gluon
from experiments.reproductions.gluon_as_printed import gluon_as_printed
from pyrobbb import likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.compression.sparse import load_sparse
from pyrobbb.data import Blobs, Spec
from pyrobbb.data.dataset import Split
from pyrobbb.experiment import evaluate
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp
from pyrobbb.models.plain_mlp import plain_mlp
from pyrobbb.posterior import Posterior, moments
from pyrobbb.training.trainer import train

MNIST_SPEC = Spec(N=60_000, features=(784,), outputs=10, task="classification")
TINY = ["data=blobs", "data.N=90", "batch_size=30", "observations=5", "export_weights=5"]


def network(make, hidden):
    return make(MNIST_SPEC, priors.Normal(), likelihoods.Categorical(), hidden=hidden)


@pytest.mark.parametrize(("units", "count"), [(400, 478_410), (800, 1_276_810), (1200, 2_395_210)])
def test_the_networks_of_table_1_have_the_papers_sizes(units, count):
    assert network(mlp, [units] * 2).num_weights == count
    baseline = plain_mlp(MNIST_SPEC, priors.Deterministic(), likelihoods.Categorical(), hidden=[units] * 2)
    assert sum(p.numel() for p in baseline.parameters()) == count
    if units == 400:
        assert network(gluon_as_printed, [units] * 2).num_weights == count


@pytest.mark.parametrize("name", gluon.RUNS)
def test_the_notebooks_first_loss_is_nearly_all_kl(name):
    """KL / M at the start, in closed form: 2581.35 with M = 469."""
    run = build(compose(name, folder="unused"))
    with isolated(0):
        model = run.model(MNIST_SPEC, run.prior, run.likelihood)
        guide = run.guide(model)
        guide(torch.zeros(1, 784), torch.zeros(1, dtype=torch.long))
    loc, scale = (torch.cat([v.flatten() for v in part.values()]) for part in moments((model, guide)))
    assert isinstance(run.prior, priors.Normal)
    q, p = torch.distributions.Normal(loc, scale), torch.distributions.Normal(0.0, run.prior.sigma)
    kl = float(torch.distributions.kl_divergence(q, p).double().sum())
    assert -(-MNIST_SPEC.N // run.batch_size) == 469
    assert kl / 469 == pytest.approx(2581.35, abs=0.5)


def test_as_printed_the_second_hidden_layer_changes_nothing():
    model = network(gluon_as_printed, [6, 6])
    x = torch.randn(5, 784, generator=torch.Generator().manual_seed(0))
    weights = model.initial()
    before = model.apply_network(weights, x)
    first = torch.relu(x @ weights["0.weight"].T + weights["0.bias"])
    torch.testing.assert_close(before, first @ weights["4.weight"].T + weights["4.bias"])
    idle = {name: torch.zeros_like(w) if name.startswith("2.") else w for name, w in weights.items()}
    assert torch.equal(model.apply_network(idle, x), before)
    correct = network(mlp, [6, 6])
    assert not torch.allclose(correct.apply_network(weights, x), correct.apply_network(idle, x))
    with pytest.raises(ValueError, match="two or more layers of one width"):
        network(gluon_as_printed, [6, 5])


def test_dropout_stands_where_the_recipe_says():
    spec = Spec(N=9, features=(1, 4, 4), outputs=3, task="classification")
    parts = (spec, priors.Deterministic(), likelihoods.Categorical())
    with isolated(0):
        net = plain_mlp(*parts, hidden=[400, 400], dropout=0.5, input_dropout=0.2).network
    kinds = " ".join(type(layer).__name__ for layer in net)
    assert kinds == "Flatten Dropout Linear ReLU Dropout Linear ReLU Dropout Linear"
    assert [layer.p for layer in net if isinstance(layer, torch.nn.Dropout)] == [0.2, 0.5, 0.5]
    assert float(net[5].weight.detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.01)
    with pytest.raises(ValueError, match="dropout must lie in"):
        plain_mlp(*parts, dropout=2)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    small = ["model.hidden=[12]", "epochs=60", "optim.lr=0.03", "draws=5"]
    config = compose("table1_mixture", [*TINY, *small], folder=folder / "run")
    return folder / "run", build(config).execute(claim(config)[0])


def test_a_finished_run_is_opened_again(fitted, tmp_path):
    folder, result = fitted
    opened = reopen(folder)
    assert opened.epoch == opened.run.epochs == 60
    x = opened.data.test.x
    assert torch.equal(x, result.data.test.x)
    assert torch.equal(opened.posterior.predict(x, draws=3).probs, result.posterior.predict(x, draws=3).probs)
    with pytest.raises(ConfigError, match="is not a run folder: it has no config"):
        reopen(tmp_path)
    shutil.copy(folder / "config.yaml", tmp_path)
    with pytest.raises(CheckpointError, match=r"chain-0\.pt does not exist"):
        reopen(tmp_path)


def test_the_numbers_of_a_finished_run_are_of_its_last_checkpoint_alone(fitted, tmp_path):
    """One that is damaged is not replaced by an earlier one."""
    folder, _ = fitted
    for name in ("config.yaml", "metrics.json", "chain-0.pt"):
        shutil.copy(folder / name, tmp_path)
    shutil.copy(folder / "chain-0.pt", tmp_path / "chain-0.before.pt")
    (tmp_path / "chain-0.pt").write_bytes((folder / "chain-0.pt").read_bytes()[:-100])
    with pytest.raises(
        CheckpointError, match=r"chain-0\.pt is damaged or gone, .*remove .*metrics\.json, and the"
    ):
        reopen(tmp_path)
    (tmp_path / "metrics.json").unlink()
    assert reopen(tmp_path).epoch == 60


def test_a_run_of_a_device_is_opened_where_there_is_none(fitted, tmp_path):
    folder, result = fitted
    shutil.copy(folder / "chain-0.pt", tmp_path)
    there = (folder / "config.yaml").read_text().replace("device: auto", "device: cuda:3")
    assert "cuda:3" in there
    (tmp_path / "config.yaml").write_text(there)
    opened, x = reopen(tmp_path), result.data.test.x
    assert opened.posterior.model.device.type == "cpu"
    assert torch.equal(opened.posterior.predict(x, draws=3).probs, result.posterior.predict(x, draws=3).probs)


def interrupted(*anything, **options):
    raise KeyboardInterrupt


def test_pruning_reads_any_run_folder(fitted, monkeypatch):
    folder, result = fitted
    found = pruning.analyse(folder, [0, 0.5, 0.98, 1.0], draws=3)
    rows = found["rows"]
    assert [row["left"] for row in rows] == [75, 37, 1, 0]  # 2-12-3 with biases
    assert found["weights"] == result.posterior.model.num_weights == 75
    for by in pruning_report.ORDERS:
        assert rows[0][by]["mean"] == pytest.approx(result.metrics["test"]["error_mean_weights"])
        assert rows[-1][by]["mean"] >= 60  # three classes, nothing known
        assert set(rows[1][by]) == {"mean", "draws"}
    assert ["rho = 0" in row for row in rows] == [False, True, True, True]
    assert {p.name for p in (folder / "pruning").iterdir()} == {
        "record.json", "signal_to_noise.png", "error.png",
        "removed-0.npz", "removed-50.npz", "removed-98.npz", "removed-100.npz",
    }  # fmt: skip
    words = pruning_report.report(found)
    assert "biases count as weights; 3 draws" in words
    line = next(line for line in words.splitlines() if line.startswith("98 %"))
    assert line.split()[2:4] == ["1", "1.39"]
    with monkeypatch.context() as patch:
        patch.setattr(pruning, "milliseconds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pruning.analyse(folder, [0.5], draws=0, biases=False)
    assert len([*(folder / "pruning").glob("*.npz")]) == 4, "those of the record go once there is another"
    without = pruning.analyse(folder, [0.5], draws=0, biases=False)
    assert without["rows"][0]["left"] == 75 - 30  # of the 60 weights that are not biases
    assert [p.name for p in (folder / "pruning").glob("*.npz")] == ["removed-50.npz"]  # of the last command
    kept = load_sparse(folder / "pruning" / "removed-50.npz")
    assert sum(int(value.count_nonzero()) for value in kept.values()) == 75 - 30
    assert "draws" not in without["rows"][0]["snr"]
    assert "biases all stay; 0 draws" in pruning_report.report(without)


def test_the_error_after_pruning_counts_rows_by_their_weights(fitted):
    _, result = fitted
    part, wrong = result.data.test, result.data.test.y.clone()
    wrong[0] = (result.posterior.predict(part.x, mean_weights=True).probs.argmax(1)[0] + 1) % 3
    first = (torch.arange(len(wrong)) == 0).float()
    alone = Split(part.x, wrong, first)
    rows = pruning.errors(result.posterior, alone, [0.0], draws=0)
    assert rows[0]["snr"]["mean"] == evaluate(result.posterior, alone, draws=1)["error_mean_weights"] == 100


def test_the_record_of_pruning_has_the_options_of_its_command(fitted, monkeypatch):
    folder, _ = fitted
    start = f"python -m experiments.paper.pruning {folder}"
    for options in ("", " --draws=3 --no-biases --trust --removed 0 0.25"):
        monkeypatch.setattr(sys, "argv", f"{start}{options}".split()[2:])
        folder_command(
            "experiments.paper.pruning", "", lambda *a, **k: str(pruning.analyse(*a, **k)), pruning.options
        )
        record = json.loads((folder / "pruning" / "record.json").read_text())
        assert record["command"] == f"{start}{options}"


def test_of_a_weighted_mixture_the_chain_of_the_largest_weight_is_saved(tmp_path):
    chains = []
    for slope in (1.0, 2.0):
        model = BayesianNetwork(nn.Linear(2, 3), priors.Normal(), likelihoods.Categorical(), 4)
        guide = MeanFieldNormal(model)
        guide()
        with torch.no_grad():
            guide.loc.fill_(slope)
        chains.append((model, guide))
    mixture, x = Posterior(chains, chain_weights=(0.25, 0.75)), torch.ones(4, 2)
    pruning.sizes(mixture, x, 0.0, tmp_path / "main.npz", biases=True)
    with np.load(tmp_path / "main.npz") as saved:
        assert (saved["bias|dense"] == 2).all()


def test_two_modes_are_told_from_one():
    rng = np.random.default_rng(0)
    two = np.r_[rng.normal(-5, 1.5, 60_000), rng.normal(6, 1.5, 20_000)]
    density = pruning.density_of(two)
    assert [round(at) for at, _ in pruning.modes(*density)] == [-5, 6]
    assert -5 < pruning.valley(*density) < 6
    one = pruning.density_of(rng.normal(0, 3, 80_000))
    assert (len(pruning.modes(*one)), pruning.valley(*one)) == (1, None)
    assert len(pruning.modes(*pruning.density_of(np.r_[two, np.full(100, -np.inf)]))) == 2
    at, height = pruning.density_of(np.r_[two, rng.normal(-400, 3, len(two))])  # half is noise, not shown
    assert at[0] > pruning.LEAST
    assert len(pruning.modes(at, height)) == 2
    assert height.sum() * pruning.STEP == pytest.approx(0.5, abs=0.01)


TABLE = ["widths=[6]", "epochs=3", "draws=2", "seeds=[1,2]", *TINY]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a small Table 1, and what was printed."""
    folder, printed = tmp_path_factory.mktemp("table1"), StringIO()
    with redirect_stdout(printed):
        table1.main(["rows=[sgd,dropout,mixture]", *TABLE, f"folder={folder}"])
    return folder, printed.getvalue()


def test_table_1_trains_what_is_not_there_prints_and_draws(trained, monkeypatch):
    folder, out = trained
    part = ["rows=[sgd,dropout,mixture]", *TABLE]
    fits, target = folder / "short", folder / "short" / "rows=sgd+dropout+mixture,widths=6,seeds=1+2"
    cells = json.loads((target / "record.json").read_text())["cells"]
    assert len(cells) == 3 * 2
    assert {
        (target / name).exists() for name in ("figure2.png", "figure3.png", "table1.txt", "record.json")
    } == {True}
    for name, width in (("sgd", 6), ("dropout", 6), ("mixture", 6)):
        errors = [c["metrics"]["test"]["error"] for c in cells if (c["row"], c["width"]) == (name, width)]
        assert f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f}" in out
    config = yaml.safe_load((fits / "dropout-6-2" / "config.yaml").read_text())
    assert (config["seed"], config["schedule"]["T_max"], config["model"]["dropout"]) == (2, 3, 0.5)
    assert config["model"]["hidden"] == [6, 6]
    # the second time nothing is trained
    monkeypatch.setattr("pyrobbb.training.trainer.train", lambda *args: pytest.fail("trained again"))
    table1.main([*part, f"folder={folder}"])
    assert json.loads((target / "record.json").read_text())["cells"] == cells
    curve = fits / "dropout-6-2" / "history.csv"
    whole = curve.read_text()
    curve.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    one = [*TABLE, "rows=[dropout]", "seeds=[2]", f"folder={folder}"]
    with pytest.raises(ConfigError, match=r"history\.csv is cut off; remove .*dropout-6-2, and the command"):
        table1.main(one)
    curve.write_text(whole)
    assert not list(fits.glob("rows=dropout*"))
    with pytest.raises(ConfigError, match="holds a run with another configuration"):
        table1.main([*one, "batch_size=45"])


def test_a_cell_is_one_training_with_its_callbacks(tmp_path):
    part = ["rows=[mixture]", "widths=[6]", "epochs=3", "draws=1", "seeds=[1]", *TINY, f"folder={tmp_path}"]
    with pytest.raises(ConfigError, match="chains: each cell of the table is one training, got 2"):
        table1.main([*part, "chains=2"])
    stops = "pyrobbb.training.callbacks.EarlyStopping"
    table1.main([*part, f"+callbacks.stops={{_target_: {stops}, patience: 1, min_delta: 1000000.0}}"])
    (record,) = tmp_path.glob("short/*/record.json")
    assert json.loads(record.read_text())["cells"][0]["epochs"] == [1, 2]


def test_a_cell_of_other_data_is_refused(tmp_path, monkeypatch):
    part = ["rows=[mixture]", "widths=[6,8]", "epochs=1", "draws=1", "seeds=[1]", *TINY, f"folder={tmp_path}"]
    table1.main(part)
    assert {path.name for path in (tmp_path / "short").glob("mixture-*")} == {"mixture-6-1", "mixture-8-1"}
    load = Blobs.load

    def other(self):
        data = load(self)
        data.train.x.neg_()
        return data

    monkeypatch.setattr(Blobs, "load", other)
    with pytest.raises(ConfigError, match=r"was made with other training data .*; to have it run again"):
        table1.main(part)


def test_on_cuda_the_seeds_of_table_1_are_trained_side_by_side(trained, tmp_path, capfd, monkeypatch):
    """With the CPU in its place, whose batched steps end as alone up to rounding."""
    part = ["rows=[dropout,mixture]", *TABLE, f"folder={tmp_path}"]
    monkeypatch.setattr(side_by_side, "on_cuda", lambda config: True)
    groups = []
    monkeypatch.setattr(side_by_side, "train", lambda chains: (groups.append(len(chains)), train(chains)))
    table1.main(part)
    assert groups == [2, 2]
    assert "one after the other: " in capfd.readouterr().err  # dropout
    alone, together = (
        json.loads(next(folder.glob("short/*/record.json")).read_text())["cells"]
        for folder in (trained[0], tmp_path)
    )
    alone = [cell for cell in alone if cell["row"] != "sgd"]
    for one, other in zip(alone, together, strict=True):
        for key in ("row", "seed"):
            assert one[key] == other[key]
        for rows in ("test", "validation"):
            assert other["metrics"][rows] == pytest.approx(one["metrics"][rows], rel=1e-4)
    table1.main(part)
    assert groups == [2, 2]  # nothing is left to train


def test_an_override_of_one_row_changes_that_row_alone(tmp_path):
    words = ["sgd.optim.lr=0.01", "mixture.optim.lr=0.002", "dropout.model.dropout=0.3"]
    words.append("+mixture.rates.rho=2")
    part = ["rows=[sgd,dropout,mixture]", "widths=[6]", "epochs=1", "draws=1", "validation_draws=0", *TINY]
    table1.main([*part, *words, f"folder={tmp_path}"])
    configs = {
        name: yaml.safe_load((tmp_path / "short" / f"{name}-6-1" / "config.yaml").read_text())
        for name in ("sgd", "dropout", "mixture")
    }
    assert [configs[name]["optim"]["lr"] for name in configs] == [0.01, 0.03 / 128, 0.002]
    assert configs["dropout"]["model"]["dropout"] == 0.3
    assert configs["mixture"]["validation_draws"] == 0
    assert configs["mixture"]["rates"] == {"rho": 2.0}


def test_a_part_of_table_1_is_named_by_what_differs_from_its_form():
    whole, keys = ["sgd", "dropout", "gaussian", "mixture"], ("rows", "widths", "seeds")
    form = table1_report.DECLARED.forms.short
    every = table1.Part(rows=whole, widths=[400, 800, 1200], seeds=[1])
    assert part_of(every, form, keys) == ""
    assert part_of(replace(every, widths=[400], seeds=[1, 2]), form, keys) == "widths=400,seeds=1+2"


def test_table_1_prints_the_published_numbers():
    cells = [
        {"row": row, "width": width, "seed": 1, "validation_errors": [2.0] * 30,
         "metrics": {"test": {"error": 1.5, "error_mean_weights": 1.4}, "validation": {"error": 1.6},
                     "train_seconds": 60}}
        for row in ("sgd", "mixture") for width in (400, 1200)
    ]  # fmt: skip
    record = asdict(table1.Part(rows=["sgd", "mixture"], widths=[400, 1200], seeds=[1], epochs=50))
    record["cells"] = cells
    rows = [line.split() for line in table1_report.errors_table(record, more=True).splitlines()[1:]]
    assert rows[0][:7] == ["SGD", "400", "1.83", "1.91", "2.11", "-", "-"]
    assert rows[0][7:] == ["1.50", "-", "1.60", "2.00", "1.0"]
    assert rows[3][:8] == ["BbB,", "scale", "mixture", "1200", "1.32", "2.00", "1.58", "1.33"]
    assert rows[3][8:] == ["11.59", "1.50", "1.40", "1.60", "2.00", "1.0"]
    assert rows[4][:6] == ["SGD", "(Simard", "2003)", "800", "1.6", "-"]
    assert len(rows) == 4 + 3
    record["epochs"] = 20  # the last 20 of them say nothing
    last = table1_report.errors_table(record, more=True).splitlines()[4].split()
    assert last[8:] == ["11.59", "1.50", "1.40", "1.60", "-", "1.0"]
    gaps = table1_report.gaps(record, markdown).splitlines()
    assert gaps[3] == "| SGD less BbB, scale mixture | 1200 | +0.56 | +0.00 | one seed |"
    assert table1_report.gaps(record | {"cells": cells[:2]}) == ""


def test_epochs_that_were_not_measured_are_told_from_those_that_were():
    metrics = {"trivial_free_energy": 2.3, "free_energy": 1.0}
    cell = {"row": "mixture", "width": 400, "seed": 1, "metrics": metrics}
    cell |= {"epochs": [1, 25, 50], "validation_errors": [3.0, 2.0, 2.5]}
    record = {"cells": [cell], "widths": [400], "seeds": [1], "epochs": 50}
    row = table1_report.course(record, markdown).splitlines()[-1]
    assert row == "| BbB, scale mixture | 400 | 1 | 1.00 | 2.30 | 2.00 | 25 | 2.50 (epoch 50) |"
    every = {**cell, "seed": 2, "epochs": range(1, 121), "validation_errors": [2.0] * 120}
    (axes,) = table1_report.figure2(record | {"cells": [every, cell]}).axes
    mean, _, apart = axes.lines
    assert mean.get_label() == "BbB, scale mixture, mean of 20 epochs"
    assert apart.get_label() == "BbB, scale mixture, every 25 epochs"
    assert (list(apart.get_xdata()), apart.get_marker()) == ([1, 25, 50], "o")


def test_the_full_form_of_table_1_may_be_changed():
    part = table1.choose(table1.Part(form="full", epochs=5), ["device=cpu"])
    assert (part.epochs, part.widths, part.seeds) == (5, [400, 800, 1200], [1, 2, 3])


def test_the_notebooks_two_runs_side_by_side(tmp_path, capsys):
    part = ["epochs=2", "model.hidden=[6,6]", *TINY]
    gluon.main([*part, f"folder={tmp_path}"])
    out = capsys.readouterr().out
    assert "2626.47, 0.9456, 0.9455" in out
    assert "27.41" in out  # its error with 95 % removed
    found = json.loads((tmp_path / "record.json").read_text())["found"]
    assert set(found) == {"gluon_as_printed", "gluon"}
    for name, run in found.items():
        assert [row["epoch"] for row in run["epochs"]] == [1, 2]
        opened = reopen(tmp_path / name)
        last = run["epochs"][-1]
        error = pruning.error(opened.posterior, opened.data.test, mean_weights=True)
        assert last["test"] == pytest.approx(1 - error / 100)
        assert run["pruned"][0]["snr"]["mean"] == pytest.approx(error)
        history = (tmp_path / name / "history.csv").read_text().splitlines()
        energy = float(history[-1].split(",")[history[0].split(",").index("free_energy")])
        assert last["loss"] == pytest.approx(energy * 90 / 3)  # N = 90 in M = 3 minibatches
    assert {p.name for p in tmp_path.glob("*.png")} == {"epochs.png", "pruning.png", "weight.png"}
    again = gluon.fit("gluon", part, tmp_path / "gluon")  # a finished run is read back
    assert json.loads(json.dumps(again)) == found["gluon"]


DENSITY = table1.weights_in_short(torch.linspace(-0.2, 0.2, 5000))


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (
            partial(mnist_figures.error_by_epoch, {"a": [([1, 2, 3], [3.0, 2.0, 1.5])]}, title="t" * 30),
            {("epoch", "validation error (%)")},
        ),
        (
            partial(mnist_figures.weights_by_method, {"a": DENSITY}, title="t" * 30),
            {("weight", "density"), ("weight", "density (log scale)")},
        ),
        (
            partial(mnist_figures.error_by_removed, {"a": ([0, 0.5, 1.0], [1.5, 2.0, 90.0])}, title="t" * 30),
            {("weights removed", "test error (%, log scale)")},
        ),
        (
            partial(mnist_figures.weight_posteriors, {"a": (0.1, 0.05)}, prior=1.0, title="t" * 30),
            {("weight", "density")},
        ),
    ],
    ids=["epochs", "weights", "removed", "posteriors"],
)
def test_figures_name_their_axes(draw, names):
    figure = draw()
    assert {(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes} == names
    assert figure.get_suptitle() == "t" * 30


def test_a_density_in_the_weight_figure_has_mass_one():
    figure = mnist_figures.weights_by_method({"a": DENSITY}, title="t")
    assert DENSITY["near zero"] == pytest.approx(0.05, abs=0.001)
    for axes in figure.axes:
        middle, heights = axes.lines[0].get_data()
        assert heights.sum() * (middle[1] - middle[0]) == pytest.approx(1, abs=0.01)
