"""Figures from a run folder: those that its files have the numbers for."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from torch import nn

from experiments import analyse
from pyrobbb import moments
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.data.columns import Columns, Numeric
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.arviz_export import to_arviz
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.likelihoods import Bernoulli, Normal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.non_centred import NonCentredNormal
from pyrobbb.posterior import Posterior
from pyrobbb.priors import ARD
from pyrobbb.priors import Normal as NormalPrior
from pyrobbb.training import history

X = torch.linspace(-1, 1, 8)[:, None]
METRICS = {"epochs": 2, "parameters": 2, "train_seconds": 0.1, "device": "cpu"}
LABELS = torch.cat([X > 0, X > 0.5], 1).long()


@pytest.mark.parametrize(
    ("y", "task", "likelihood", "functions"),
    [
        (LABELS, {"task": "classification", "classes": 2}, Bernoulli(), False),
        (X, {"task": "regression"}, Normal(scale=0.1), True),
    ],
    ids=["several labels", "values"],
)
def test_a_function_of_one_input_is_drawn_where_y_has_a_mean(
    tmp_path, monkeypatch, caplog, y, task, likelihood, functions
):
    monkeypatch.setattr(analyse.draw, "save", lambda figure, path: path.touch())  # which takes longest
    data = from_arrays(X, y, **task, test=(X, y))
    model = BayesianNetwork(nn.Linear(1, y.shape[1]), NormalPrior(), likelihood, len(X))
    guide = MeanFieldNormal(model)
    guide(X)  # makes its parameters
    posterior = Posterior([(model, guide)])
    arviz_io.save(to_arviz(posterior, data, draws=3), tmp_path / "posterior.nc")
    (tmp_path / "metrics.json").write_text(json.dumps({**METRICS, "free_energy": 3.0}))
    history.write(tmp_path / "history.csv", [history.Epoch(0, 1, 3.5, 2.0, 1.5, 0.1, 0.1, 1e-3, 0.25)])
    prior = {"prior": {"_target_": "pyrobbb.priors.Normal"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(prior))
    assert not analyse.has_figures(tmp_path)
    (tmp_path / "figures").touch()
    with pytest.raises(NotADirectoryError, match="figures is a file or a broken link, not a folder"):
        analyse.figures(tmp_path)
    (tmp_path / "figures").unlink()
    names = [path.stem for path in analyse.figures(tmp_path)]
    assert ("predictions" in names) == functions
    assert names[-1] == "weights"  # by which a later run sees that all are there
    assert analyse.has_figures(tmp_path)
    assert "history.csv was cut off" in caplog.text


def test_latent_scales_are_in_the_file_and_in_the_figure_of_the_kl(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(analyse.draw, "save", lambda figure, path: drawn.update({path.stem: figure}))
    monkeypatch.setattr(moments, "DRAWS", 10)
    data = from_arrays(X, X, task="regression", test=(X, X))
    model = BayesianNetwork(nn.Linear(1, 1), ARD(), Normal(scale=0.1), len(X))
    guide = NonCentredNormal(model)
    guide(X)
    posterior = Posterior([(model, guide)])
    arviz_io.save(to_arviz(posterior, data, draws=3), tmp_path / "posterior.nc")
    (tmp_path / "metrics.json").write_text(json.dumps({**METRICS, "epochs": 0}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"prior": {"_target_": "pyrobbb.priors.ARD"}}))
    found = arviz_io.load(tmp_path / "posterior.nc")["variational"]
    assert list(found["latent"].values) == list(model.other_latents)
    rows = [*found["kl"].values, *found["latent_kl"].values]
    assert rows == [entry.nats for entry in kl_ledger(posterior).values()]
    analyse.figures(tmp_path)
    kl = drawn["kl_by_layer"].axes[0]
    assert [bar.get_width() for bar in kl.patches] == rows
    assert [tick.get_text() for tick in kl.get_yticklabels()][-1] == "bias_log_variance (1)"
    assert "then each latent" in drawn["kl_by_layer"].get_suptitle()


def test_captions_say_of_which_chain_and_axes_are_in_the_units_of_the_table(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(analyse.draw, "save", lambda figure, path: drawn.update({path.stem: figure}))
    columns = Columns((Numeric("size", 100.0, 50.0, 100.0, 0.0),), ("US$ per m$2$",))
    data = replace(from_arrays(X, X, task="regression", test=(X, X)), columns=columns)
    chains = []
    for _ in range(2):
        model = BayesianNetwork(nn.Linear(1, 1), NormalPrior(), Normal(scale=0.1), len(X))
        guide = MeanFieldNormal(model)
        guide(X)
        chains.append((model, guide))
    arviz_io.save(to_arviz(Posterior(chains), data, draws=3), tmp_path / "posterior.nc")
    (tmp_path / "metrics.json").write_text(json.dumps({**METRICS, "epochs": 0, "chains": 2, "main_chain": 1}))
    prior = {"prior": {"_target_": "pyrobbb.priors.FanInNormal"}}  # a density for each layer, not for all
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(prior))
    analyse.figures(tmp_path)
    assert drawn["weights"].get_suptitle().startswith("Weights of chain 1 under the posterior,")
    for name in ("weights", "kl_by_layer", "signal_to_noise"):
        assert " of chain 1" in drawn[name].get_suptitle()
    axes = drawn["predictions"].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("size", r"US\$ per m\$2\$")
    assert axes.get_xlim() == (50, 150)
