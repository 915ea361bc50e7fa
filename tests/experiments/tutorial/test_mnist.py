"""The tutorial's MNIST in short form."""

import json
import math

import pytest

from experiments._runner.build import ConfigError, build
from experiments._runner.compose import compose
from experiments.results.records import seconds_of
from experiments.tutorial import mnist as tutorial_mnist
from pyrobbb.data import Spec
from pyrobbb.training.trainer import Training


def test_tutorial_in_short_form_and_again_without_training(tmp_path, monkeypatch, capsys):
    results = tutorial_mnist.main(["quick=true", "seeds=[4]", f"folder={tmp_path}"])
    for row in results[4]["uncertainty"].values():
        assert row["entropy"] >= row["expected"] - 1e-9
        assert 0 <= row["mlp"] <= math.log2(10) + 1e-9
    assert all(0 <= area <= 1 for area in results[4]["auroc"].values())
    both = seconds_of({"found": results})
    assert both == results[4]["seconds"] + results[4]["scores"]["mlp_seconds"] > results[4]["seconds"]
    assert {"predictions.png", "detection.png"} <= {path.name for path in (tmp_path / "seeds=4").iterdir()}
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("a finished fit was run again"))
    chosen = tutorial_mnist.Settings(seeds=[4], mlp_epochs=2, quick=True)
    again = tutorial_mnist.one_seed(4, chosen, tutorial_mnist.QUICK, tmp_path / "seed=4")
    assert json.dumps(again) == json.dumps(results[4])
    assert "0.9909" in capsys.readouterr().out
    (tmp_path / "seed=4" / "arrays.npz").unlink()
    with pytest.raises(ConfigError, match=r"arrays\.npz is missing or damaged .*; remove \S*seed=4, and"):
        tutorial_mnist.main(["quick=true", "seeds=[4]", f"folder={tmp_path}"])
    with pytest.raises(ConfigError, match=r"another configuration \(prior.sigma: 6.0 -> 0.5"):
        tutorial_mnist.main(["quick=true", "seeds=[4]", f"folder={tmp_path}", "prior.sigma=0.5"])
    chosen.mlp_epochs = 3
    with pytest.raises(ConfigError, match=r"another configuration \(epochs: 2 -> 3"):
        tutorial_mnist.one_seed(4, chosen, tutorial_mnist.QUICK, tmp_path / "seed=4")


def test_the_tutorials_network_has_its_number_of_weights():
    run = build(compose("tutorial_mnist", folder="none"))
    model = run.model(Spec(60_000, (784,), 10, "classification"), run.prior, run.likelihood)
    assert model.num_weights == 669_706
