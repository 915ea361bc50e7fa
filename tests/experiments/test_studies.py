"""Studies of many fits: targets A10, A11, A19 and A20 in short form, resumption, honest grids, figures."""

import csv
import inspect
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments._runner import points
from experiments._runner.build import ConfigError, build
from experiments._runner.command import command, part_of, place
from experiments._runner.compose import compose
from experiments._runner.tables import table
from experiments.paper import bandit, closed_form, table1
from experiments.paper import regression as paper_regression
from experiments.reproductions import gluon, grid, grid_points, training_choices
from experiments.reproductions.controls import DoubleSoftmax, LogSizeNormal
from experiments.studies import free_energy, posterior_checks
from experiments.tutorial import mnist as tutorial_mnist
from experiments.tutorial import mnist_uncertainty as tutorial_uncertainty
from experiments.tutorial import odd_images, toy_regression
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import Spec
from pyrobbb.evaluation.metrics import classification_metrics
from pyrobbb.evaluation.ood import auroc, roc_curve
from pyrobbb.figures.detection import detection
from pyrobbb.figures.error_curves import Curve, error_curves
from pyrobbb.figures.heat_map import heat_map
from pyrobbb.figures.prediction_bars import prediction_bars
from pyrobbb.figures.trade_off import Path as Line
from pyrobbb.figures.trade_off import trade_off
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import Training

BLOBS = ["data=blobs", "data.classes=10", "data.features=20", "+data.separation=0.5", "+data.noise=0.7"]


def fitted(tmp_path, *overrides, experiment="training_choices"):
    """A point's history; nothing is measured."""
    config = compose(experiment, overrides, folder=tmp_path / "point")
    return points.fit_point(config, lambda fit: {"nll": fit.history[-1].nll})


OVERFIT = [*BLOBS, "data.N=100", "batch_size=100", "epochs=60", "optim.lr=0.05", "model.hidden=[50]"]
OVERFIT += ["kl=tempered", "kl.temperature=1e-4", "validation_draws=0", "+data.validation=0"]


def test_a10_a_single_batch_is_fitted_and_a_second_softmax_shows(tmp_path):
    assert fitted(tmp_path / "right", *OVERFIT)["nll"] < 0.1
    floor = math.log(math.e + 9) - 1
    assert floor == pytest.approx(1.4612, abs=1e-4)
    assert fitted(tmp_path / "twice", *OVERFIT, "likelihood=double_softmax")["nll"] >= floor - 1e-6


def test_double_softmax_is_what_it_says():
    output = torch.tensor([[30.0] + [0.0] * 9])
    law = DoubleSoftmax()(output)
    assert float(law.log_prob(torch.tensor([0]))) == pytest.approx(-1.4612, abs=1e-4)
    torch.testing.assert_close(law.probs, output.softmax(-1).softmax(-1))


def test_a_prediction_is_that_of_the_likelihood(tmp_path):
    """No example's NLL under the double softmax is below 1.4612, trained or predicted."""
    words = [*BLOBS, "data.N=100", "epochs=30", "optim.lr=0.05", "model.hidden=[50]", "+data.validation=0"]
    config = compose("training_choices", [*words, "likelihood=double_softmax"], folder=tmp_path)
    result = build(config).execute()
    prediction = result.posterior.predict(result.data.train.x, result.data.train.y, draws=3)
    assert float(-prediction.log_likelihood.max()) >= math.log(math.e + 9) - 1 - 1e-5
    assert float(prediction.probs.max()) <= math.e / (math.e + 9) + 1e-5


def log_probs(draws=30, rows=40, classes=10, scale=4.0):
    return (
        scale * torch.randn(draws, rows, classes, generator=torch.Generator().manual_seed(0))
    ).log_softmax(-1)


@pytest.mark.parametrize("scale", [0.1, 4.0, 30.0])
def test_a11_the_posterior_predictive_is_a_probability_and_its_entropies_are_ordered(scale):
    found = tutorial_uncertainty.uncertainty(log_probs(scale=scale))
    np.testing.assert_allclose(found["probs"].sum(-1), 1, atol=1e-6)
    assert (found["entropy"] >= found["expected"] - 1e-6).all()
    assert found["entropy"].max() <= math.log2(10) + 1e-6
    np.testing.assert_allclose(found["entropy"] - found["expected"], found["information"], atol=1e-9)


def test_a11_the_geometric_mean_is_no_probability_and_its_entropy_no_entropy():
    given = log_probs()
    found = tutorial_uncertainty.uncertainty(given)
    mean = given.mean(0).exp()
    with pytest.raises(ValueError, match="sum to 1"):
        classification_metrics(mean, torch.zeros(len(mean), dtype=torch.long))
    assert (found["geometric_sum"] < 0.5).all()
    assert found["printed"].mean() < 0.5 * found["entropy"].mean()
    # the tutorial's own two lines, on the same draws
    preds = torch.exp(given.mean(dim=0))
    theirs = -torch.mean((torch.log2(preds + 1e-10) * preds).sum(dim=1)).item()
    assert found["printed"].mean() == pytest.approx(theirs, rel=1e-5)


def test_agreeing_draws_make_all_three_entropies_one():
    found = tutorial_uncertainty.uncertainty(log_probs(draws=1).expand(7, -1, -1))
    for name in ("expected", "geometric", "printed"):
        np.testing.assert_allclose(found[name], found["entropy"], atol=1e-6)


CROWDED = [*BLOBS, "data.N=1200", "batch_size=10", "model.hidden=[30]", "epochs=2", "optim.lr=1e-2"]


def test_a19_the_whole_kl_on_every_minibatch_at_least_doubles_the_error(tmp_path):
    right = fitted(tmp_path / "right", *CROWDED)["validation_errors"][-1]
    wrong = fitted(tmp_path / "wrong", *CROWDED, "kl=full")["validation_errors"][-1]
    assert right < 35
    assert wrong >= 2 * right


STEEP = ["data=blobs", "data.classes=10", "data.features=784", "data.N=1280", "epochs=1", "kl=geometric"]
STEEP += [training_choices.SPIKE, "+data.validation=0"]


def test_a20_geometric_shares_with_plain_sgd_are_caught_and_adam_is_finite(tmp_path, monkeypatch):
    result = fitted(tmp_path / "sgd", *STEEP, *training_choices.SGD)
    assert "the free energy is not finite in epoch 1" in result["stopped"]
    assert "plain SGD with a narrow spike sigma2, or with the KL shares 2^(M-i)" in result["stopped"]
    assert result["stopped_epoch"] == 1
    assert result["validation_errors"] == []
    assert "stopped" not in fitted(tmp_path / "adam", *STEEP)
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("a finished point was run again"))
    assert fitted(tmp_path / "sgd", *STEEP, *training_choices.SGD) == result
    drawn = error_curves({"": {"sgd": training_choices.curve(result)}})
    assert [line.get_marker() for line in drawn.axes[0].lines] == ["o", "x"]


def test_an_interrupted_point_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    few = [*BLOBS, "model.hidden=[8]", "epochs=3", "batch_size=100"]
    whole = fitted(tmp_path / "whole", *few)
    end, seen = Training._end_epoch, []

    def interrupted(self):
        end(self)
        seen.append(self.epoch)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "_end_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", *few)
    again = fitted(tmp_path / "cut", *few)
    assert seen == [1, 2, 3]
    assert again["free_energies"] == whole["free_energies"]
    assert not (tmp_path / "cut" / "point" / "chain-0.pt").exists()


def test_draws_of_a_network_with_dropout_are_those_of_prediction():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Categorical(), 10)
    guide = MeanFieldNormal(model)
    guide(torch.zeros(1, 4))
    x, posterior = torch.randn(6, 4), Posterior([(model, guide)])
    again = [tutorial_uncertainty.draw_log_probs(posterior, x, draws=3, seed=2) for _ in range(2)]
    torch.testing.assert_close(again[0], again[1], rtol=0, atol=0)
    probs = posterior.predict(x, draws=3, seed=2).probs
    torch.testing.assert_close(again[0].exp().mean(0), probs.float(), atol=1e-5, rtol=0)


def test_presets_hold_the_points_of_the_reports():
    sizes = {name: len(grid_points.points(name)[0]) for name in ("reduced", "ghia", "rahmanto")}
    assert sizes == {"reduced": 27 + 14, "ghia": 324, "rahmanto": 27}
    assert all(len(set(grid_points.points(name)[0])) == size for name, size in sizes.items())
    with pytest.raises(ConfigError, match="preset must be one of"):
        grid_points.points("all")


@pytest.mark.parametrize("point", grid_points.points("reduced")[0][:27:5], ids=str)
def test_the_prior_that_a_point_claims_is_the_prior_that_it_uses(point, tmp_path):
    """Read from the trained network's trace, and recomputed from the paper's formula."""
    run = build(
        points.changed(
            compose("grid", [*grid_points.QUICK, "epochs=1"], folder=tmp_path), tmp_path, point.values()
        )
    )
    result = run.execute()
    fit = points.Fitted(run, result.data, result.posterior, [])
    used = grid.used_prior(fit)
    claimed = point.pi, math.exp(-point.log_sigma1), math.exp(-point.log_sigma2)
    assert tuple(used.values()) == pytest.approx(claimed, rel=1e-6)
    w = torch.linspace(-2, 2, 101, dtype=torch.float64)
    law = result.posterior.model.prior.distribution("0.weight", w)
    parts = [
        math.log(share) - math.log(sigma) - 0.5 * (w / sigma) ** 2 - 0.5 * math.log(2 * math.pi)
        for share, sigma in ((claimed[0], claimed[1]), (1 - claimed[0], claimed[2]))
    ]
    expected = torch.stack(parts).logsumexp(0).sum()
    torch.testing.assert_close(law.log_prob(w), expected)


def test_a_point_under_another_prior_than_it_claims_is_refused(tmp_path):
    base = compose("grid", [*grid_points.QUICK, "epochs=1"], folder=tmp_path)
    one, other = (
        build(points.changed(base, tmp_path, p.values()))
        for p in (grid_points.Point(0.25, 0, 8), grid_points.Point(0.5, 0, 8))
    )
    result = one.execute()
    with pytest.raises(ConfigError, match="was trained under the prior"):
        grid.used_prior(points.Fitted(other, result.data, result.posterior, []))


def test_grid_trains_each_point_from_the_same_start_and_writes_it_all(tmp_path, monkeypatch, capsys):
    started = []
    run = Training.run

    def watched(self):
        started.append(self.guide.loc.detach().clone())
        return run(self)

    monkeypatch.setattr(Training, "run", watched)
    results = grid.main(["quick=true", f"folder={tmp_path}"])
    assert len(started) == 4
    assert all(torch.equal(loc, started[0]) for loc in started)
    assert len({result["free_energy"] for result in results.values()}) == 4
    with (tmp_path / "grid.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        for name in ("pi", "sigma1", "sigma2"):
            assert float(row[name]) == pytest.approx(float(row[f"{name}_used"]), rel=1e-6)
    accuracies = [float(row["accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert (tmp_path / "prior_lr=0.001_samples=1.png").exists()
    assert "97.95" in capsys.readouterr().out  # Rahmanto's number beside ours
    assert grid.main(["quick=true", f"folder={tmp_path}"]) == results
    assert len(started) == 4
    with pytest.raises(ConfigError, match="another configuration"):
        grid.main(["quick=true", "epochs=3", f"folder={tmp_path}"])


def test_training_choices_runs_its_lines(tmp_path, capsys):
    few = ["quick=true", "epochs=1", "groups=[means,controls]", f"folder={tmp_path}"]
    results = training_choices.main(few)
    lines = {name for group in ("means", "controls") for name in training_choices.GROUPS[group]}
    assert results.keys() == lines - {"pixels scaled twice", "softmax and pixels twice"}
    part = tmp_path / "groups=means+controls"  # those of the whole study stay as they are
    assert (part / "curves.png").exists()
    assert not (tmp_path / "curves.csv").exists()
    with (part / "curves.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(results)
    printed = capsys.readouterr().out
    assert "error with the whole KL on every minibatch / with KL/M, by epoch: " in printed
    every = {name for group in training_choices.GROUPS.values() for name in group}
    assert len({training_choices.folder_name(name) for name in every}) == len(every)


def test_every_line_of_training_choices_builds():
    for name, changes in training_choices.GROUPS["shares"].items():
        run = build(compose("training_choices", changes, folder="none"))
        assert type(run.kl).__name__ == ("Geometric" if name.startswith("2^-i") else "Uniform")
        assert run.optim.func is (torch.optim.SGD if "SGD" in name else torch.optim.Adam)
        assert run.optim.keywords["lr"] == (1e-4 if "1e-4" in name else 1e-3)
        assert run.prior.sigma2 == pytest.approx(math.exp(-8 if "e^-8" in name else -6))


def test_controls_scale_the_pixels_twice_and_other_choices_are_what_they_say():
    config = compose(
        "training_choices", training_choices.GROUPS["controls"]["pixels scaled twice"], folder="none"
    )
    assert config.data.scale == 255 * 126
    law = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(300, 200), 1.0), 2)
    drawn = LogSizeNormal(0.01)({"fn": law, "infer": {"init": torch.zeros(300, 200)}})
    assert float(drawn.std()) == pytest.approx(0.01 * (math.log(300) + math.log(200)), rel=0.02)


def test_free_energy_study_measures_at_temperature_one(tmp_path, capsys):
    results = free_energy.main(["quick=true", f"folder={tmp_path}"])
    assert len(results) == 2 * 3  # two seeds; the paths share the base
    for (setting, _), result in results.items():
        assert result["free_energy"] == pytest.approx(result["kl"] + result["train_nll"])
        assert result["objective"] == pytest.approx(setting[1] * result["kl"] + result["train_nll"])
        assert 0 <= result["above_noise"] <= 100
    sigma = {rate: results[(rate, 1.0), 1]["scale"] for rate in (1.0, 10.0)}
    start = math.log1p(math.exp(-5))
    assert abs(sigma[10.0] - start) > 3 * abs(sigma[1.0] - start)
    assert (tmp_path / "free_energy.png").exists()
    assert "seeds 1, 2; mean ± standard deviation over them" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="needs prior=scale_mixture"):
        free_energy.main(["quick=true", f"folder={tmp_path / 'other'}", "prior=normal"])


def test_tutorial_in_short_form_and_again_without_training(tmp_path, monkeypatch, capsys):
    results = tutorial_mnist.main(["quick=true", "seeds=[4]", f"folder={tmp_path}"])
    for row in results[4]["uncertainty"].values():
        assert row["entropy"] >= row["expected"] - 1e-9
        assert 0 <= row["mlp"] <= math.log2(10) + 1e-9
    assert all(0 <= area <= 1 for area in results[4]["auroc"].values())
    assert {"predictions.png", "detection.png"} <= {path.name for path in (tmp_path / "seeds=4").iterdir()}
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("a finished fit was run again"))
    chosen = tutorial_mnist.Settings(seeds=[4], mlp_epochs=2, quick=True)
    again = tutorial_mnist.one_seed(4, chosen, tutorial_mnist.QUICK, tmp_path / "seed=4")
    assert json.dumps(again) == json.dumps(results[4])
    assert "0.9909" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"another configuration \(prior.sigma: 6.0 -> 0.5"):
        tutorial_mnist.main(["quick=true", "seeds=[4]", f"folder={tmp_path}", "prior.sigma=0.5"])
    chosen.mlp_epochs = 3
    with pytest.raises(ConfigError, match=r"another configuration \(epochs: 2 -> 3"):
        tutorial_mnist.one_seed(4, chosen, tutorial_mnist.QUICK, tmp_path / "seed=4")


def test_the_tutorials_network_has_its_number_of_weights():
    run = build(compose("tutorial_mnist", folder="none"))
    model = run.model(Spec(60_000, (784,), 10, "classification"), run.prior, run.likelihood)
    assert model.num_weights == 669_706


def test_odd_pictures_are_images_in_the_range_of_pixels():
    drawn = odd_images.pictures(odd_images.letter())
    for picture in drawn.values():
        assert picture.shape == (28, 28)
        assert picture.min() >= 0
        assert picture.max() == 1
    assert np.array_equal(np.rot90(drawn["a digit"]), drawn["turned by 90 degrees"])
    assert 0.05 < drawn["a cat"].mean() < 0.4  # strokes, not a filled square


def test_auroc_by_hand():
    assert auroc([0.0, 1.0], [2.0, 3.0]) == 1
    assert auroc([2.0, 3.0], [0.0, 1.0]) == 0
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    assert auroc([0.0, 2.0], [1.0, 3.0]) == 0.75  # three of the four pairs are in order
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(0, 1, 4000), rng.normal(1, 1, 3000)
    alarms, hits = roc_curve(known, unknown)
    assert (alarms[0], hits[0]) == (0, 0)
    assert (alarms[-1], hits[-1]) == (1, 1)
    assert np.trapezoid(hits, alarms) == pytest.approx(auroc(known, unknown), abs=2e-3)
    assert auroc(known, unknown) == pytest.approx(0.760, abs=0.02)  # Phi(1 / sqrt 2)
    for wrong in ([], [math.nan], [[1.0]]):
        with pytest.raises(ValueError, match="outside must be a vector of finite scores"):
            auroc([1.0], wrong)


def test_figures_say_what_they_show():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), size=3)
    bars = prediction_bars(rng.uniform(size=(3, 8, 8)), {"a": probs, "b": probs}, ["x", "y", "z"], columns=2)
    assert [axes.get_title(loc="left") for axes in bars.axes if axes.images] == ["x", "y", "z"]
    drawn = heat_map(
        {"one": [[1.0, math.nan]]},
        rows=["r"],
        columns=["a", "b"],
        row_name="R",
        column_name="C",
        value_name="V",
    )
    assert [text.get_text() for text in drawn.axes[0].texts] == ["1.00", "stopped"]
    assert (drawn.axes[0].get_xlabel(), drawn.axes[0].get_ylabel()) == ("C", "R")
    curves = error_curves({"p": {"fine": Curve([3.0, 2.0]), "broken": Curve([], 0.4)}})
    assert curves.axes[0].get_xlabel() == "epoch"
    assert [text.get_text() for text in curves.axes[0].get_legend().texts] == ["fine", "broken (not finite)"]
    both = detection({"entropy": (rng.uniform(size=50), rng.uniform(size=50) + 1)}, unit="bits")
    assert both.axes[0].get_legend().texts[1].get_text() == "entropy (1.000)"
    assert (both.axes[1].get_xlabel(), both.axes[1].get_ylabel()) == ("uncertainty (bits)", "density (1/bit)")
    line = Line(["1", "2"], np.ones((2, 3)), {"error (%)": np.ones((2, 3))})
    assert trade_off({"rate": line}, x_label="F (nats)").axes[0].get_xlabel() == "F (nats)"
    with pytest.raises(ValueError, match="must be equally long"):
        prediction_bars(rng.uniform(size=(2, 8, 8)), {"a": probs}, ["x", "y", "z"])
    with pytest.raises(ValueError, match=r"must have shape \(1, 2\)"):
        heat_map({"": [[1.0]]}, rows=["r"], columns=["a", "b"], row_name="", column_name="", value_name="")


COMMANDS = (
    bandit, closed_form, free_energy, gluon, grid, paper_regression, posterior_checks, table1, toy_regression,
    training_choices, tutorial_mnist,
)  # fmt: skip


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_experiment_has_the_same_command_line(module, monkeypatch, capsys, tmp_path):
    name = module.__name__
    assert f"`python -m {name} [" in inspect.getdoc(module), "its help says how it is called"
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["--folder=x"], "'--folder=x' is no key=value, such as folder=runs/mine"),
        (["quick"], "'quick' is no key=value"),
        (["nosuchkey=1"], "nosuchkey"),
        (["folder="], "folder"),
    ):
        monkeypatch.setattr("sys.argv", [name, *words])
        with pytest.raises(SystemExit) as stop:
            command(module.main, module.__doc__)
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.pt")), "nothing was begun"
    monkeypatch.setattr("sys.argv", [name, "--help"])
    command(module.main, module.__doc__)
    assert capsys.readouterr().out.startswith(inspect.getdoc(module))


def test_results_go_to_a_folder_named_after_what_is_changed():
    assert place(["folder=a", "folder=b", "seed=2"], "runs/x") == (Path("b"), ["seed=2"])
    assert place([], "runs/x") == (Path("runs/x"), [])
    assert place(["optim.lr=1", "device=cpu", "+data.noise=0.1"], "runs/x") == (
        Path("runs/x,data.noise=0.1,optim.lr=1"), ["optim.lr=1", "device=cpu", "+data.noise=0.1"]
    )  # fmt: skip
    assert place(["rows=[sgd]", "epochs=3"], "runs/x", shared=("rows",))[0] == Path("runs/x,epochs=3")
    assert bandit.configuration(["arms=[greedy]"]).folder == "runs/bandit"
    assert bandit.configuration(["steps=20", "setting=showdown"]).folder == "runs/bandit_showdown,steps=20"
    assert bandit.configuration(["steps=20", "folder=f,g=[1]"]).folder == "f,g=[1]"
    with pytest.raises(ConfigError, match="say folder=runs/mine"):
        place([f"+a{i}=1" for i in range(60)], "runs/x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["top=many"], "top"),
        (["presett=ghia"], "presett"),
        (["preset=all"], "preset must be one of"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["grid", f"folder={tmp_path}", *arguments])
    with pytest.raises(SystemExit):
        command(grid.main, grid.__doc__)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (table1, ["seed=5"], "seed: this experiment sets it itself; say seeds=[...]"),
        (table1, ["model.hidden=[30]"], "model.hidden: this experiment sets it itself"),
        (table1, ["rows=[sgd]", "optim.lr=1"], "optim.lr: the point estimates of row sgd have their own"),
        (table1, ["data.validation=0"], "data.validation: Fig. 2 and the table need validation data"),
        (grid, ["prior.pi=0.3"], "prior.pi: this experiment sets it itself"),
        (grid, ["samples=2"], "samples: this experiment sets it itself"),
        (grid, ["quick=true", "chains=3"], "chains: each point of this experiment is one training, got 3"),
        (training_choices, ["kl=geometric"], "kl: this experiment sets it itself"),
        (training_choices, ["optim.lr=1e-2"], "optim.lr: this experiment sets it itself"),
        (gluon, ["model=mlp"], "model: this experiment sets it itself"),
        (table1, ["rows=[sgd,dropout]", "prior.sigma1=0.3"], "row sgd is not a Bayesian network"),
        (
            table1,
            ["sgd.network.hidden=[50,50]"],
            "network.hidden: this experiment sets it itself; say widths",
        ),
        (free_energy, ["kl.temperature=2"], "kl.temperature: this experiment sets it itself"),
        (free_energy, ["seeds=[]"], "seeds: must name at least one"),
        (tutorial_mnist, ["seed=2"], "seed: this experiment sets it itself"),
        (tutorial_mnist, ["seeds=[]"], "seeds: must name at least one"),
        (tutorial_mnist, ["quick=true", "model.hidden=[0]"], "hidden[0] must be a whole number"),
        (closed_form, ["fast=auto"], "fast: this experiment sets it itself"),
        (bandit, ["prior.pi=2"], "prior: pi must lie in [0, 1], got 2"),
        (bandit, ["likelihood.scale=-1"], "likelihood: scale must be greater than 0"),
        (bandit, ["guide=auto_normal"], "guide: AutoNormal got an unexpected keyword argument"),
        (bandit, ["seeds=5"], "seeds"),
        (bandit, ["seeds=[]"], "seeds: must name at least one"),
        (bandit, ["arms=thompson"], "arms"),
        (bandit, ["arms=[neither]"], "arms: must be some of thompson, greedy, got 'neither'"),
        (bandit, ["lr=1e-3"], "lr"),
        (bandit, ["threads=0"], "threads must be a whole number"),
        (bandit, ["heads=maybe"], "heads"),
        (bandit, ["kl_over=heldd"], "kl_over must be one of held, capacity"),
        (bandit, ["epsilons=[2]"], "epsilons must lie in [0, 1]"),
        (bandit, ["report=true"], "nothing has been played in"),
    ],
)
def test_what_would_go_unheard_or_fail_is_refused_and_leaves_nothing(
    module, arguments, message, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "new" / "run"
    monkeypatch.setattr("sys.argv", [module.__name__, f"folder={folder}", *arguments])
    with pytest.raises(SystemExit):
        command(module.main, module.__doc__)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.yaml")), "the corrected command would be refused"


def test_tables_and_figures_of_a_part_have_a_folder_of_their_own():
    whole, keys = (
        table1.Part(rows=["sgd", "mixture"], widths=[400, 800], seeds=[1]),
        ("rows", "widths", "seeds"),
    )
    for changes, name in [
        ({}, ""),
        ({"widths": [400], "seeds": [1, 2]}, "widths=400,seeds=1+2"),
        ({"rows": ["mixture", "sgd"]}, "rows=mixture+sgd"),
    ]:
        assert part_of(replace(whole, **changes), whole, keys) == name


def test_closed_form_compares_both_ways_from_one_start(tmp_path):
    small = ["data=blobs", "data.N=200", "data.features=5", "model.hidden=[8]", "epochs=2", "batch_size=50"]
    found = closed_form.main([*small, "seeds=[1,2]", f"folder={tmp_path}"])
    for drawn, closed in zip(found["drawn"], found["closed"], strict=True):
        assert drawn["free_energy"] == pytest.approx(closed["free_energy"], rel=0.05)
        assert drawn["free_energy"] != closed["free_energy"]
    assert closed_form.main([*small, "seeds=[1,2]", f"folder={tmp_path}"]) == found


def test_table_aligns():
    assert table(("a", "bb"), [("xyz", 1)]) == "a    bb\nxyz   1"
