"""Targets A10, A19 and A20 in short form, and the lines of the study of training choices."""

import json
import math

import pytest
import torch

from experiments._runner.build import build
from experiments._runner.compose import compose
from experiments.reproductions import training_choices
from experiments.reproductions.controls import LogSizeNormal
from pyrobbb.figures.style import CHAINS
from pyrobbb.training.trainer import Training
from study_points import BLOBS, fitted

OVERFIT = [*BLOBS, "data.N=100", "batch_size=100", "epochs=60", "optim.lr=0.05", "model.hidden=[50]"]
OVERFIT += ["kl=tempered", "kl.temperature=1e-4", "validation_draws=0", "+data.validation=0"]


def test_a10_a_single_batch_is_fitted_and_a_second_softmax_shows(tmp_path):
    assert fitted(tmp_path / "right", *OVERFIT)["nll"] < 0.1  # mean 4e-5, sd 8e-6 over 20 seeds
    floor = math.log(math.e + 9) - 1
    assert floor == pytest.approx(1.4612, abs=1e-4)
    assert fitted(tmp_path / "twice", *OVERFIT, "likelihood=double_softmax")["nll"] >= floor - 1e-6


CROWDED = [*BLOBS, "data.N=1200", "batch_size=10", "model.hidden=[30]", "epochs=2", "optim.lr=1e-2"]


def test_a19_the_whole_kl_on_every_minibatch_raises_the_error(tmp_path):
    right = fitted(tmp_path / "right", *CROWDED)["validation_errors"][-1]
    wrong = fitted(tmp_path / "wrong", *CROWDED, "kl=full")["validation_errors"][-1]
    assert right < 35  # mean 13.4, sd 2.3 over 20 seeds
    assert wrong > right  # log(wrong / right): mean 1.03, sd 0.19


SGD = ["optim=sgd", "optim.lr=1e-3"]
STEEP = ["data=blobs", "data.classes=10", "data.features=784", "data.N=1280", "epochs=1", "kl=geometric"]
STEEP += ["prior.sigma2=${exp:-8}", "+data.validation=0"]


def test_a20_geometric_shares_with_plain_sgd_are_caught_and_adam_is_finite(tmp_path, monkeypatch):
    result = fitted(tmp_path / "sgd", *STEEP, *SGD)
    assert "the loss is not finite in epoch 1" in result["stopped"]
    assert "plain SGD with a narrow spike sigma2, or with the KL shares 2^(M-i)" in result["stopped"]
    assert result["stopped_epoch"] == 1
    assert result["validation_errors"] == []
    assert "stopped" not in fitted(tmp_path / "adam", *STEEP)
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("a finished point was run again"))
    assert fitted(tmp_path / "sgd", *STEEP, *SGD) == result
    drawn = training_choices.error_curves({"": {"sgd": result}}, "")
    assert [line.get_marker() for line in drawn.axes[0].lines] == ["o", "x"]


def test_the_centre_looks_the_same_in_every_panel():
    result = {"validation_errors": [2.0, 1.0]}
    every = {name: result for lines in training_choices.GROUPS.values() for name in lines}
    panels = training_choices.figure({"found": every}).axes
    assert len(panels) == len(training_choices.GROUPS)
    centres = {(axes.lines[0].get_color(), axes.lines[0].get_label()) for axes in panels}
    assert centres == {(CHAINS[0], r"KL/M, Adam 1e-3, $\sigma_2 = e^{-6}$ (centre)")}


def test_training_choices_runs_its_lines(tmp_path, capsys):
    few = ["quick=true", "epochs=1", "groups=[means,controls]", f"folder={tmp_path}"]
    results = training_choices.main(few)
    lines = {name for group in ("means", "controls") for name in training_choices.GROUPS[group]}
    assert results.keys() == lines - {"pixels scaled twice", "softmax and pixels twice"}
    part = tmp_path / "groups=means+controls"  # those of the whole study stay as they are
    assert (part / "curves.png").exists()
    assert not (tmp_path / "curves.png").exists()
    assert json.loads((part / "record.json").read_text())["found"].keys() == results.keys()
    printed = capsys.readouterr().out
    assert "error with the whole KL on every minibatch / with KL/M, by epoch: " in printed
    every = {name for group in training_choices.GROUPS.values() for name in group}
    assert len({training_choices.folder_name(name) for name in every}) == len(every)


@pytest.mark.parametrize("early", [training_choices.CENTRE, "the whole KL on every minibatch"])
def test_epochs_are_not_compared_where_a_training_stopped(early):
    whole = "the whole KL on every minibatch"
    found = {name: {"validation_errors": [3.0, 2.0]} for name in (training_choices.CENTRE, whole)}
    assert "by epoch: 1.00, 1.00" in training_choices.report({"found": found})
    found[early] = {"validation_errors": [3.0], "stopped": "nan", "stopped_epoch": 2, "stopped_step": 1}
    words = training_choices.report({"found": found})
    assert f"{early}: nan" in words
    assert "by epoch:" not in words


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
    distribution = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(300, 200), 1.0), 2)
    drawn = LogSizeNormal(0.01)({"fn": distribution, "infer": {"init": torch.zeros(300, 200)}})
    assert float(drawn.std()) == pytest.approx(0.01 * (math.log(300) + math.log(200)), rel=0.02)
