"""The study of own tables: its scores by closed forms, and the command from end to end on a small table."""

import json
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from experiments._runner.build import ConfigError
from experiments.studies import own_tables
from pyrobbb.data import from_table
from pyrobbb.tabular import fit_table

X = np.linspace(-1, 1, 40)
TABLE = {"x": X, "y": 50 + 10 * X}


class Certain:
    """Says N(50, 2^2) wherever it is asked."""

    def fit(self, x, y):
        return self

    def predict(self, x, return_std=False):
        assert return_std
        return np.full(len(x), 50.0), np.full(len(x), 2.0)


def test_a_normal_s_score_is_its_log_density_and_the_share_within_its_interval():
    data = from_table(TABLE, test=[0, 20, 39], task="regression")
    y = TABLE["y"][[0, 20, 39]]
    score = own_tables.values(Certain(), data)
    assert score.log_likelihood == pytest.approx(norm.logpdf(y, 50, 2).mean(), rel=1e-6)
    assert score.coverage == pytest.approx(1 / 3)


def test_a_classifier_s_score_is_the_log_of_what_it_gives_the_true_class():
    data = from_table({"x": X, "y": ["a", "b"] * 20}, test=[0, 1, 3])
    probs = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    model = SimpleNamespace(predict_proba=lambda x: probs)
    model.fit = lambda x, y: model
    score = own_tables.labels(model, data)
    assert score.log_likelihood == pytest.approx((math.log(0.5) + math.log(0.1) + math.log(0.8)) / 3)


def test_the_command_prints_ranks_and_keeps_everything(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        own_tables, "load", lambda name, split: from_table(TABLE, test=0.25, split_seed=split)
    )
    monkeypatch.setattr(own_tables, "fit_table", partial(fit_table, epochs=1, progress=False))
    monkeypatch.setattr(own_tables, "others", lambda name, task: {})  # without scikit-learn
    noise = "noise=[student_t,mixture]"
    words = ["tables=[uci/yacht]", "splits=[0,1]", noise, "draws=5", f"folder={tmp_path}"]
    own_tables.main(words)
    printed = capsys.readouterr().out
    assert "fit_table" in printed
    assert "-1.25 (published)" in printed
    path = tmp_path / "tables=uci_yacht,splits=0+1" / "record.json"
    record = json.loads(path.read_text())
    assert record["command"].endswith(" ".join(words[:-1]))
    assert {"date", "machine", "versions", "seed"} < record.keys()
    scores, best = (record["uci/yacht"][name] for name in ("fit_table", "fit_table, student_t or mixture"))
    assert len(scores) == len(best) == 2
    assert scores != best
    assert all(math.isfinite(score["log_likelihood"]) for score in scores)
    own_tables.main(words)  # found finished: the same numbers
    assert json.loads(path.read_text())["uci/yacht"]["fit_table"] == scores


def test_scikit_learn_s_tables_and_methods():
    pytest.importorskip("sklearn")
    data = own_tables.load("wine", 0)
    assert (data.spec.N, data.spec.features, data.spec.outputs, len(data.test)) == (133, (13,), 3, 45)
    assert own_tables.others("wine", "classification")["logistic regression"](data).log_likelihood > -0.2
    data = own_tables.load("diabetes", 0)
    ridge = own_tables.others("diabetes", "regression")["BayesianRidge"](data)
    assert ridge.log_likelihood == pytest.approx(-5.42, abs=0.1)
    assert 0.85 < ridge.coverage <= 1


def test_a_gaussian_process_of_some_rows_is_conditioned_on_them_alone(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(own_tables, "ROWS_TUNED", 15)
    monkeypatch.setattr(own_tables, "ROWS_KEPT", 20)
    noisy = {"x": X, "y": 50 + 10 * X + np.random.default_rng(0).normal(size=40)}
    (score,) = (
        score(from_table(noisy, test=0.25)) for score in own_tables.others("uci/yacht", "regression").values()
    )
    assert score.log_likelihood == pytest.approx(norm.logpdf(0) - 0.5, abs=1.0)


def test_bad_words_are_refused(tmp_path):
    with pytest.raises(ValueError, match="tables must be one of"):
        own_tables.main(["tables=[boston]"])
    with pytest.raises(ConfigError, match="no such key"):
        own_tables.main(["epochs=3", f"folder={tmp_path}"])
