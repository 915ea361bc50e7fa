"""The paper's curve: the medians follow it, the plain network beside it, and what is recorded."""

import json

import pytest
import torch

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose, fitted
from experiments.paper import regression as paper_regression
from experiments.paper.regression_report import figure, report, rows
from paths import ROOT
from pyrobbb.data import PaperCurve
from seeds import FIXED


def test_a14_the_median_follows_the_curve_on_the_data(tmp_path):
    """Whether the interval widens enough off them is for `experiments.paper.regression` to say."""
    result = fitted(compose("paper_regression", ["epochs=160", "draws=20", "data.test=50"], folder=tmp_path))
    found = paper_regression.of_posterior(result.posterior, result.run.data)
    assert found["rmse inside"] <= 0.09  # mean 0.034, sd 0.003 over three seeds; of a constant 0.16
    assert min(found["ratio"]) > 0


def test_the_plain_network_beside_the_paper_regression_follows_its_overrides(tmp_path):
    changes = ["model.hidden=[7]", "optim.lr=0.02", "batch_size=50", "epochs=30", "data.N=300", "draws=5"]
    result = fitted(compose("paper_regression", [*changes, "data.noise=0.1"], folder=tmp_path))
    fit = paper_regression.plain(result)
    assert [tuple(p.shape) for p in fit.function().parameters()] == [(7, 1), (7,), (2, 7), (2,)]
    assert len(fit.history.rows) == 30
    assert fit.history.rows[-1].lr == 0.02
    low, first, median, third, high = paper_regression.said(fit, torch.zeros(1, 1))[:, 0]
    assert float((third - first) / (high - low)) == pytest.approx(0.6745 / 1.95996, abs=1e-4)  # of a normal
    assert float(median) == pytest.approx(float(fit.predict(torch.zeros(1, 1)).mean), abs=1e-6)


def test_numbers_are_those_of_the_quantiles_and_of_this_curve():
    curve = PaperCurve(noise=0.1)
    inside = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None] + curve.truth(paper_regression.INSIDE)[:, 0]
    off = torch.tensor([-9.0, -3.0, 0.0, 3.0, 9.0])[:, None].expand(5, 3) * torch.tensor([1.0, 1.0, 0.1])
    found = paper_regression.numbers(inside, off, curve)
    assert (found["rmse inside"], found["IQR inside"]) == pytest.approx((0.0, 2.0), abs=1e-6)
    assert found["ratio"] == pytest.approx([3.0, 3.0, 0.3])
    assert found["truth within"] == [True, True, False]  # 1.2 and more at x = 1.2


def test_the_prior_is_chosen_by_its_score_and_then_by_its_prior_predictive():
    scores = {"best": [0.4, 0.1, 0.9], "level": [0.2, 0.3, 0.5], "worse": [-2.0, -2.2, -1.7]}
    ranges = {"best": [1.0, 20.0, 1.0], "level": [30.0, 2.0, 30.0], "worse": [1.0, 1.0, 1.0]}
    found = {"IQR": ranges, "IQR of y": 1.0}
    assert paper_regression.choose(scores, found) == "level"  # off the data a range may be any
    assert paper_regression.choose(scores, found | {"IQR of y": 15.0}) == "best"
    one_seed = {name: each[:1] for name, each in scores.items()}
    assert paper_regression.choose(one_seed, found) == "worse"  # one seed leaves none out


def test_the_prior_predictive_is_that_of_each_prior():
    ranges = paper_regression.prior_predictive(["gaussian", "fan_in"], ["model.hidden=[100]"])["IQR"]
    variance = 1 + 100 * (1 + 0.25**2) / 2  # of E[y | x = 0.25, w] under N(0, 1)
    assert ranges["gaussian"][1] == pytest.approx(1.349 * variance**0.5, rel=0.3)
    assert ranges["fan_in"][1] == pytest.approx(ranges["gaussian"][1] / 5, rel=0.3)


def test_nuts_keeps_its_50_units_whatever_the_other_networks_have(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_regression, "fitted", lambda config: config)
    words = ["model.hidden=[7]", "data.noise=0.1"]
    settings = paper_regression.Settings()
    config = paper_regression.nuts("gaussian", words, tmp_path, settings)
    assert (config.model.hidden, config.data.noise) == ([50], 0.1)
    assert paper_regression.bayesian("gaussian", words, tmp_path).model.hidden == [7]


def test_what_is_recorded_makes_the_table_and_the_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_regression, "DRAWS", 20)
    small = ["epochs=1", "draws=4", "data.test=5", "data.N=50", "batch_size=20", "model.hidden=[3]"]
    small += ["fast=off", "priors=[gaussian]", "nuts_warmup=2", "nuts_draws=4", "nuts_depth=1"]
    trained, fit = [], paper_regression.fit

    def of_seed(*given, seed, **options):
        trained.append(seed)
        return fit(*given, seed=seed, **options)

    monkeypatch.setattr(paper_regression, "fit", of_seed)
    paper_regression.main([*small, f"folder={tmp_path}"])
    record = json.loads(next(tmp_path.rglob("record.json")).read_text())
    assert trained == record["seeds"] == [1, 2, 3, 4, 5]
    assert [len(record["bayesian"]["gaussian"]), len(record["plain"])] == [5, 5]
    assert record["chosen"] == "gaussian"
    assert record["nuts"]["prior"] == "gaussian"
    assert [row[0].split(",")[0] for row in rows(record)] == [
        *["Bayes by Backprop"] * 2,
        "NUTS",
        "plain networks: the Gaussian that they say",
    ]
    assert len(record["smaller"]) == 5
    assert "R-hat" in report(record)
    panels = figure(record).axes
    assert [axes.get_title(loc="left")[:5] for axes in panels] == ["BbB, ", "1-50-", "plain"]
    colours = [{line.get_color() for line in axes.lines[1:]} for axes in panels]  # below the truth
    assert colours[0] == colours[2]
    assert len(colours[1] - colours[0]) == 1, "NUTS has no seed's colour"


@FIXED  # the draws of the record
def test_the_choice_is_made_again_from_an_earlier_record(tmp_path):
    with pytest.raises(ConfigError, match="part=choice needs the record of an earlier run"):
        paper_regression.main(["part=choice", f"folder={tmp_path}"])
    with pytest.raises(ConfigError, match="priors: part=choice takes those of the earlier record"):
        paper_regression.main(["part=choice", "priors=[gaussian]", f"folder={tmp_path}"])
    record = json.loads((ROOT / "docs" / "records" / "regression.json").read_text())
    for name in ("mixture", "wide_mixture"):  # a thousand draws of these take longest
        del record["bayesian"][name], record["held-out log score"][name]
    earlier = {**record, "chosen": record["nuts"]["prior"], "nuts": {**record["nuts"]}}
    earlier.pop("prior predictive")
    earlier["nuts"].pop("prior")
    (tmp_path / "record.json").write_text(json.dumps(earlier))
    found = paper_regression.main(["part=choice", f"folder={tmp_path}"])
    assert (found["date"], found["nuts"], found["bayesian"]) == tuple(
        record[key] for key in ("date", "nuts", "bayesian")
    )
    assert found["chosen"] == record["chosen"]
    assert found["prior predictive"]["IQR"] == {
        name: pytest.approx(record["prior predictive"]["IQR"][name], rel=1e-3) for name in record["bayesian"]
    }
    assert json.loads((tmp_path / "record.json").read_text())["chosen"] == found["chosen"]
