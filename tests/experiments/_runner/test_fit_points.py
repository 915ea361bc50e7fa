"""A point of a study resumes from its checkpoint, and its result is read back."""

import json
import re

import pytest

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose
from experiments._runner.fit_points import _load, once
from pyrobbb.data import Blobs
from pyrobbb.training.trainer import Training
from study_points import BLOBS, fitted


def test_an_interrupted_point_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    few = [*BLOBS, "model.hidden=[8]", "epochs=3", "batch_size=100"]
    whole = fitted(tmp_path / "whole", *few)
    end, seen = Training.end_epoch, []

    def interrupted(self):
        end(self)
        seen.append(self.epoch)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "end_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", *few)
    again = fitted(tmp_path / "cut", *few)
    assert seen == [1, 2, 3]
    assert again["free_energies"] == whole["free_energies"]
    assert not (tmp_path / "cut" / "point" / "chain-0.pt").exists()


def test_a_point_s_training_calls_the_callbacks_of_its_configuration(tmp_path):
    stops = "{_target_: pyrobbb.training.callbacks.EarlyStopping, patience: 1, min_delta: 1000000.0}"
    words = [*BLOBS, "model.hidden=[8]", "epochs=3", "batch_size=100", f"+callbacks.stops={stops}"]
    assert len(fitted(tmp_path, *words)["epochs"]) == 2


def test_a_result_without_a_number_that_is_asked_for_names_its_file(tmp_path):
    config = compose("training_choices", BLOBS, folder=tmp_path / "point")
    (tmp_path / "point").mkdir()
    (tmp_path / "point" / ".result.json.1-ab.part").touch()  # of a killed writer
    once(config, lambda: {"seconds": 2.0})
    assert not [*tmp_path.rglob("*.part")]
    found = once(config, dict)
    assert json.dumps(found) == '{"seconds": 2.0}'
    assert found.get("nll") is None
    with pytest.raises(
        ConfigError, match=r"point/result\.json is damaged .* \(no 'nll'\); remove it, and the"
    ):
        found["nll"]


def test_a_result_of_other_data_or_code_is_not_taken_for_this_one(tmp_path, monkeypatch, capsys):
    few = [*BLOBS, "model.hidden=[8]", "epochs=1", "batch_size=100"]
    result = tmp_path / "point" / "result.json"
    first = fitted(tmp_path, *few)
    assert "made_with" not in first
    load = Blobs.load

    def changed(part):
        def other(self):
            data = load(self)
            if part is not None:
                getattr(data, part).y.copy_(9 - getattr(data, part).y)
            return data

        monkeypatch.setattr(Blobs, "load", other)
        _load.cache_clear()

    for part, said in (("train", "training"), ("test", "test")):
        changed(part)
        with pytest.raises(ConfigError, match=f"{re.escape(str(result))} was made with other {said} data"):
            fitted(tmp_path, *few)
    old = json.loads(result.read_text())
    del old["made_with"]  # as of an older version
    made = result.read_text()
    result.write_text(json.dumps(old))
    assert fitted(tmp_path, *few) == first
    result.write_text(made)
    changed(None)
    assert fitted(tmp_path, *few) == first

    def gone(self):
        raise FileNotFoundError("rows.csv is gone")

    monkeypatch.setattr(Blobs, "load", gone)
    _load.cache_clear()
    assert fitted(tmp_path, *few) == first
    assert "was not compared with its data and code: rows.csv is gone" in capsys.readouterr().err
