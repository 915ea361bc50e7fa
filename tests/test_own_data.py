"""Arrays, tables and tokens as a user has them: what fit and predict make of them, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from engine_fakes import normal
from pyrobbb import BayesianNetwork, Posterior, fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays, from_table
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.inference.energy import Energy
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.data_checks import warn_of_data
from pyrobbb.training.trainer import Training

X = np.random.default_rng(0).standard_normal((12, 3))
Y = X @ [1.0, -2.0, 0.5]
TABLE = pd.DataFrame(X, columns=["a", "b", "c"])


def fitted(data: Any, net: nn.Module, likelihood: likelihoods.Likelihood) -> Posterior:
    model = BayesianNetwork(net, priors.Normal(), likelihood, len(data.train))
    return fit(model, MeanFieldNormal(model), data, epochs=1, batch_size=6, device="cpu")


@pytest.mark.parametrize("x", [X, X.tolist(), TABLE, torch.tensor(X), torch.tensor(X).float()])
@pytest.mark.parametrize(
    "y", [Y, Y.tolist(), pd.Series(Y), torch.tensor(Y), torch.tensor(Y).float()[:, None]]
)
def test_predict_takes_what_from_arrays_takes(x: Any, y: Any) -> None:
    posterior = fitted(from_arrays(x, y, task="regression"), nn.Linear(3, 1), likelihoods.Normal(0.1))
    expected = posterior.predict(torch.tensor(X).float(), torch.tensor(Y).float()[:, None], draws=3)
    found = posterior.predict(x, y, draws=3)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.log_likelihood, expected.log_likelihood)


def test_labels_of_any_kind_to_predict() -> None:
    labels = (Y > 0).astype(int)
    posterior = fitted(
        from_arrays(X, labels, task="classification"), nn.Linear(3, 2), likelihoods.Categorical()
    )
    for y in (labels, labels.tolist(), labels.astype("u1"), pd.Series(labels)):
        assert posterior.predict(TABLE, y, draws=2).log_predictive.shape == (12,)


def test_booleans_beside_numbers_are_numbers() -> None:
    data = from_arrays(TABLE.assign(flag=Y > 0, count=range(12)), Y, task="regression")
    assert data.train.x.dtype == torch.float32
    assert data.train.x[:, 3].tolist() == (Y > 0).astype(float).tolist()
    whole = from_arrays(
        pd.DataFrame({"a": [1, 2], "b": [True, False]}), [0.0, 1.0], task="regression", dtype=None
    )
    assert whole.train.x.dtype == torch.int64


def test_a_column_that_holds_no_numbers_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"x must hold real numbers, and its column 'kind' is \w+: encode it"
    ):
        from_arrays(TABLE.assign(kind="red"), Y, task="regression")


@pytest.mark.parametrize("kind", ["float64", "Float64"])
def test_a_missing_value_is_named_by_row_and_column(kind: str) -> None:
    table = TABLE.astype(kind)
    table.loc[4, "b"] = pd.NA if kind == "Float64" else np.nan
    with pytest.raises(ValueError, match=r"the first \(nan\) in row 4, column 'b'"):
        from_arrays(table, Y, task="regression")


def test_a_masked_array_keeps_its_mask_or_is_refused() -> None:
    whole = from_arrays(np.ma.masked_array(X), Y, task="regression")
    torch.testing.assert_close(whole.train.x, torch.tensor(X).float())
    with pytest.raises(ValueError, match="x holds masked values; fill them, or leave their rows out"):
        from_arrays(np.ma.masked_greater(X, 1.0), Y, task="regression")


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x).sum(1))


TOKENS = np.arange(60).reshape(12, 5) % 9


@pytest.mark.parametrize("dtype", [None, torch.long])
def test_tokens_stay_whole_numbers(dtype: torch.dtype | None) -> None:
    data = from_arrays(TOKENS, np.arange(12) % 2, task="classification", dtype=dtype)
    assert data.train.x.dtype == torch.int64
    posterior = fitted(data, Words(), likelihoods.Categorical())
    assert posterior.predict(TOKENS, draws=2).probs.shape == (12, 2)


class Shared(nn.Module):
    """An embedding whose weights another layer has, too."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(9, 4, padding_idx=0), other
        self.other.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.table(x).sum(1))


def test_a_row_that_another_layer_trains_is_no_padding() -> None:
    """torch stops the gradient of the embedding's own look-up alone."""

    def rows(other: nn.Module) -> list[str]:
        return [*BayesianNetwork(Shared(other), priors.Normal(), likelihoods.Categorical()).padding()]

    assert rows(nn.Linear(4, 9)) == rows(nn.Embedding(9, 4)) == []
    assert rows(nn.Embedding(9, 4, padding_idx=0)) == ["table.weight"]
    data = from_arrays(TOKENS, np.arange(12) % 9, task="classification", dtype=torch.long)
    posterior = fitted(data, Shared(nn.Linear(4, 9)), likelihoods.Categorical())
    assert bool(posterior.draw(3)["table.weight"][:, 0].std(0).gt(0).all())


def test_a_row_that_another_layer_trains_has_its_whole_gradient() -> None:
    """That through the look-up, too, which torch leaves out of a padding row."""
    weight = torch.linspace(-1, 1, 36).reshape(9, 4).requires_grad_()
    found = []
    for row in (0, None):
        net = Shared(nn.Linear(4, 9, bias=False))
        net.table.padding_idx = row
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Categorical())
        output = model.apply_network({"table.weight": weight}, torch.tensor(TOKENS))
        found += torch.autograd.grad(output.square().sum(), weight)
        assert net.table.padding_idx == row  # the user's own stays as it was
    assert torch.equal(*found)


def test_the_padding_row_is_not_drawn() -> None:
    """Its tokens add nothing to any draw, in training, prediction, exported functions and NUTS."""
    data = from_arrays(TOKENS, np.arange(12) % 2, task="classification", dtype=torch.long)
    posterior = fitted(data, Words(), likelihoods.Categorical())
    assert torch.equal(posterior.draw(3)["table.weight"][:, 0], torch.zeros(3, 4))
    assert float(posterior.draw(3)["table.weight"][:, 1].std()) > 0
    short, padded = torch.tensor([[1, 2]]), torch.tensor([[1, 2, 0, 0]])
    torch.testing.assert_close(
        posterior.predict(short, draws=3).probs, posterior.predict(padded, draws=3).probs
    )
    with torch.no_grad():
        posterior.chains[0][1].loc.add_(1.0)
    assert torch.equal(posterior.mean_weights()["table.weight"][0], torch.zeros(4))
    function, model = posterior.function(1), posterior.model
    torch.testing.assert_close(function(short), function(padded))
    moved = {name: value.double() + 1.0 for name, value in model.initial().items()}
    other = {**moved, "table.weight": moved["table.weight"].clone()}
    other["table.weight"][0] = 7.0
    model = model.double()
    energy, prior = Energy(model, EmpiricalGuide(model, 1)), priors.Normal().base_distribution(torch.zeros(1))
    difference = -(prior.log_prob(other["table.weight"]) - prior.log_prob(moved["table.weight"])).sum()
    before, after = (
        sum(energy(torch.cat([w.flatten() for w in weights.values()]), data.train.x, data.train.y))
        for weights in (moved, other)
    )
    torch.testing.assert_close(after - before, difference)


def test_targets_on_a_grid() -> None:
    x = normal(12, 5, 3)
    data = from_arrays(x, x[..., :2], task="regression")
    assert data.spec.outputs == 2
    posterior = fitted(data, nn.Linear(3, 2), likelihoods.Normal(0.1))
    found = posterior.predict(x, x[..., :2], draws=4, sample=True)
    assert found.mean.shape == found.interval()[0].shape == (12, 5, 2)
    assert found.samples.shape == (4, 12, 5, 2)
    assert found.log_likelihood.shape == (4, 12)
    assert set(found.metrics(x[..., :2])) == {"rmse", "nll"}
    labels = (x[..., 0] > 0).long()
    data = from_arrays(x, labels, task="classification", classes=2)
    posterior = fitted(data, nn.Linear(3, 2), likelihoods.Categorical())
    found = posterior.predict(x, labels, draws=4)
    assert found.probs.shape == (12, 5, 2)
    assert found.losses(labels).shape == (12,)
    assert found.metrics(labels)["error"] == pytest.approx(float(found.losses(labels).mean()))
    weighted = found.metrics(labels, range(12))["error"]
    assert weighted == pytest.approx(float(torch.arange(12.0).double() @ found.losses(labels)) / 66)


@pytest.mark.parametrize(
    ("x", "y", "word"),
    [
        (X * [1.0, 1000.0, 1.0], Y, "x is not scaled: feature 1"),
        (X / 1000, Y, "x is not scaled: feature"),
        (X, 1000 + 100 * Y, "standardise y"),
        (X, Y, None),
    ],
)
def test_a_scale_far_from_one_is_told(x: Any, y: Any, word: str | None, caplog: Any) -> None:
    fitted(from_arrays(x, y, task="regression"), nn.Linear(3, 1), likelihoods.Normal(0.1))
    told = [record for record in caplog.records if record.name.endswith("data_checks")]
    assert (word is None) == (not told)
    assert word is None or word in caplog.text


def test_the_scale_is_that_of_all_rows_whatever_their_order(caplog: Any) -> None:
    """The first thousand lie close together, far from zero."""
    y = torch.linspace(-1.7, 1.7, 60_000)
    data = from_arrays(torch.stack([y, y.roll(30_000)], 1), y, task="regression")
    network = nn.Linear(2, 1)
    nn.init.zeros_(network.weight)
    for noise, told in ((0.025, False), (0.015, True)):
        model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(noise))
        warn_of_data(model, FlatGuide(model), data.train)
        assert ("standardise y" in caplog.text) is told
        assert "x is not" not in caplog.text


def test_a_table_is_not_told_of_its_own_encoding(caplog: Any) -> None:
    """A category of one row in a thousand hardly varies."""
    data = from_table({"a": np.arange(1000), "town": ["Hof"] + ["Ulm"] * 999}, np.arange(1000) / 300)
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(1.0))
    Training(model, MeanFieldNormal(model), data, epochs=1, fast="off", device="cpu").warn()
    assert "x is not" not in caplog.text


def test_a_latent_noise_of_standardised_targets_is_not_told(caplog: Any) -> None:
    """Nine of a hundred of its prior's draws are so small that the targets would be 50 of them away."""
    noise = likelihoods.Normal(dist.LogNormal(0.0, 3.0))
    data = from_arrays(X, Y / Y.std(), task="regression")
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), noise, N=len(Y))
    for seed in range(60):
        with isolated(seed):
            warn_of_data(model, FlatGuide(model), data.train)
    assert not caplog.records


def test_the_noise_is_compared_with_the_weights_that_it_belongs_to(caplog: Any) -> None:
    """Where a fit continues, both are trained."""
    x = torch.linspace(-1, 1, 20)[:, None]
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.003), N=20)
    guide = FlatGuide(model)
    guide.loc.data = torch.tensor([2.0, 5.0])  # weight and bias
    warn_of_data(model, guide, from_arrays(x, 2 * x + 5, task="regression").train)
    assert not caplog.records


@pytest.mark.parametrize("raw", [["years"], ["years", "age"], []])
def test_a_raw_column_need_not_be_scaled(raw: list[str], caplog: Any) -> None:
    frame = {"age": normal(20, 1)[:, 0], "years": 1000 + 500 * torch.rand(20), "y": normal(20, 1)[:, 0]}
    data = from_table(frame, target="y", task="regression", raw=raw)
    fitted(data, nn.Linear(2, 1), likelihoods.Normal(scale=1e5))
    assert "x is not" not in caplog.text


@pytest.mark.parametrize(("size", "told"), [(255.0, True), (1.0, False), (1e-3, True)])
def test_pixels_that_are_not_scaled_are_told(size: float, told: bool, caplog: Any) -> None:
    pixels = size * torch.rand(20, 1, 4, 4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    fitted(from_arrays(pixels, np.arange(20) % 2, task="classification"), net, likelihoods.Categorical())
    assert ("x is not scaled: its root mean square is" in caplog.text) == told


@pytest.mark.parametrize("shape", [(300, 300), (300, 1, 300)], ids=["rows", "sequences"])
def test_one_of_many_classes_is_scaled(shape: tuple[int, ...], caplog: Any) -> None:
    """Its root mean square is 0.06."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(300, 1))
    data = from_arrays(torch.eye(300).reshape(shape), normal(300, 1), task="regression")
    fitted(data, net, likelihoods.Normal(scale=1.0))
    assert "x is not" not in caplog.text


def test_n_is_read_from_the_data_or_asked_for() -> None:
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(0.1))
    x, y = torch.tensor(X).float(), torch.tensor(Y).float()[:, None]
    assert model() is None
    assert model(x).shape == (12, 1)
    with pytest.raises(
        ValueError, match="the number of training rows is unknown: pass N= to BayesianNetwork, or"
    ):
        model(x, y)


def test_inputs_on_another_scale_than_the_training_rows_are_told(tmp_path: Path, caplog: Any) -> None:
    x, y = torch.rand(20, 1, 4, 4), torch.arange(20) % 3
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Categorical())
    data = from_arrays(x, y, task="classification")
    posterior = fit(model, MeanFieldNormal, data, epochs=1, fast="eager", device="cpu", progress=None)
    posterior.save(tmp_path)
    for each in (posterior, Posterior.load(tmp_path, model, MeanFieldNormal)):
        caplog.clear()
        each.predict(-3 * x)
        assert not caplog.records
        each.predict((255 * x).byte())
        assert "x holds values up to" in caplog.text
        assert "scale x as they were scaled" in caplog.text
        caplog.clear()
        each.predict((255 * x).byte())
        assert not caplog.records  # it is said once


class OneHot(nn.Linear):
    """Takes whole numbers, which no layer of it tells."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.one_hot(x[:, 0], 4).float())


def test_new_rows_are_whole_numbers_where_the_training_rows_were() -> None:
    x = torch.arange(12)[:, None] % 4
    model = BayesianNetwork(OneHot(4, 1), likelihood=likelihoods.Normal(0.3))
    posterior = fit(model, MeanFieldNormal, TensorDataset(x, normal(12, 1)), epochs=1, progress=None)
    for same in (x.numpy(), x.tolist()):
        assert torch.equal(posterior.predict(same, draws=2).means, posterior.predict(x, draws=2).means)
