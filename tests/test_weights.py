"""Rows with weights: a row of weight 3 counts like three rows, in steps of any ELBO and in every method."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from engine_fakes import Listens, network, normal
from pyrobbb import BayesianNetwork, fit, likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.inference import MAP, NUTS, SGHMC, SVI, SWAG, Inference, Laplace, MCDropout, NaturalGradient
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep

COUNTS = torch.tensor([1, 0, 3, 2, 1, 4])
X, Y = normal(6, 3), normal(6, 2, seed=1)
WEIGHTED = Split(X, Y, COUNTS.float())
REPEATED = Split(X.repeat_interleave(COUNTS, 0), Y.repeat_interleave(COUNTS, 0))


def made(rows: Split) -> tuple[BayesianNetwork, MeanFieldNormal]:
    model = BayesianNetwork(network(width=2), priors.Laplace(), likelihoods.Normal(scale=0.5), len(rows))
    guide = MeanFieldNormal(model, init_rho=-2.0)
    with isolated(0):
        guide()
    return model, guide


def doubled(rows: Split) -> Split:
    """In double precision, in which a sum does not depend on its order."""
    return Split(rows.x.double(), rows.y.double(), None if rows.weights is None else rows.weights.double())


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize(
    "elbo", [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO, TraceEnum_ELBO, partial(RenyiELBO, alpha=0.5)]
)
def test_a_weight_is_a_count(elbo: Any, vectorize: bool) -> None:
    """Of all rows at once, on the same noise: terms and gradients are those of the rows repeated."""
    seen = []
    for rows in map(doubled, (WEIGHTED, REPEATED)):
        model, guide = (part.double() for part in made(rows))
        optimizer = torch.optim.SGD(guide.parameters(), lr=0.1)
        step = ReferenceStep(model, guide, optimizer, samples=2, vectorize=vectorize, elbo=elbo)
        with isolated(7):
            terms = step.evaluate(rows.x, rows.y, 1.0, 1.0, rows.weights)
        seen.append((terms.kl, terms.nll, guide.loc.grad, guide.rho.grad))
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


METHODS: dict[str, Callable[[int], Inference]] = {
    "svi": lambda N: SVI(),
    "natural gradient": lambda N: NaturalGradient(h0=3 / N),
    "map": lambda N: MAP(),
    "dropout": lambda N: MCDropout(),
    "swag": lambda N: SWAG(snapshots=4, rank=2),
    "laplace, full": lambda N: Laplace(structure="full"),
    "laplace, diagonal": lambda N: Laplace(structure="diagonal"),
    "laplace, last layer": lambda N: Laplace(layers="last"),
    "sghmc": lambda N: SGHMC(lr=1e-3 * N, cycles=2, draws=3),
    "nuts": lambda N: NUTS(warmup=4, draws=4),
    "nuts, collapsed": lambda N: NUTS(warmup=4, draws=4, collapsed=True),
}


@pytest.mark.parametrize(
    ("method", "fast"),
    [*((method, "eager") for method in METHODS)]
    + [(method, "compiled") for method in ("natural gradient", "sghmc", "nuts")],
)
def test_a_weight_is_a_count_in_every_method(method: str, fast: str) -> None:
    """Trained on all rows at once, from one seed: the posterior of the rows repeated, by the eager step.

    Of the compiled steps those of which tests/accelerated/test_program_step.py has none; of one layer, which
    is soon compiled.
    """
    ends, net = [], nn.Linear(3, 2) if fast == "compiled" else network(width=2)
    for rows, step in ((WEIGHTED, fast), (REPEATED, "eager")):
        N = len(rows)
        rows = doubled(rows)
        model = BayesianNetwork(net.double(), priors.Normal(), likelihoods.Normal(scale=0.5), N)
        posterior = fit(
            model, MeanFieldNormal if method == "svi" else None,
            Dataset("rows", rows, Spec(N, (3,), 2, "regression")), inference=METHODS[method](N),
            epochs=20, batch_size=N, seed=3, fast=step, device="cpu", progress=None,
        )  # fmt: skip
        with isolated(5):
            ends.append([posterior.predict(X.double(), draws=4).means, posterior.mean_weights()])
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-7)


def test_laplaces_kronecker_factors_count_too() -> None:
    ends = []
    for rows in (WEIGHTED, REPEATED):
        with isolated(0):
            model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(scale=0.5))
            point = fit(
                model, None, Dataset("rows", REPEATED, Spec(len(REPEATED), (3,), 2, "regression")),
                inference=MAP(), epochs=3, device="cpu", progress=None,
            )  # fmt: skip
            point.model.N = len(rows)
            guide: Any = Laplace(structure="kronecker").around(point, rows).chains[0][1]
        ends.append([guide.log_evidence, *guide.loc_and_scale()[1].values()])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def linear(weights: Any, N: int = 60) -> Dataset:
    x = normal(N, 1, dtype=torch.double)
    y = 2 * x[:, 0] + 0.5 * normal(N, seed=1, dtype=torch.double)
    return from_arrays(x, y, task="regression", weights=weights, dtype=torch.double)


def test_a_fit_finds_the_weighted_posterior() -> None:
    """Under N(0, 1) and noise s: precision 1 + sum w x^2 / s^2, and mean sum w x y / s^2 over it."""
    weights = np.linspace(0.0, 3.0, 60)
    data, lines = linear(weights), Listens()
    model = BayesianNetwork(
        nn.Linear(1, 1, bias=False, dtype=torch.double), priors.Normal(), likelihoods.Normal(scale=0.5)
    )
    posterior = fit(
        model, MeanFieldNormal(model, init_rho=-3.0), data, epochs=200, batch_size=20, samples=8,
        vectorize=True, optim=partial(torch.optim.Adam, lr=0.05), seed=0, device="cpu", progress=lines,
        schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=200),
    )  # fmt: skip
    assert not any("Pyro's own SVI" in line for line in lines.said)
    w, x, y = torch.tensor(weights), data.train.x[:, 0], data.train.y[:, 0]
    precision = 1 + (w * x * x).sum() / 0.25
    mean, sd = (w * x * y).sum() / 0.25 / precision, precision**-0.5
    loc, scale = posterior.chains[0][1].loc_and_scale()  # type: ignore[operator]
    assert abs(float(loc["weight"]) - float(mean)) < 0.2 * float(sd)
    assert float(scale["weight"]) == pytest.approx(float(sd), rel=0.1)
    log_likelihood = dist.Normal(loc["weight"] * data.train.x, 0.5).log_prob(data.train.y)
    nll = posterior.history.rows[-1].nll
    assert nll == pytest.approx(-float((w[:, None] * log_likelihood).sum()) / 60, abs=0.1)


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    def fitted(weight: float, epochs: int) -> None:
        model = BayesianNetwork(nn.Linear(1, 1).double(), priors.Normal(), likelihoods.Normal(0.1))
        data = linear(np.full(60, weight))
        fit(model, MeanFieldNormal, data, epochs=epochs, folder=tmp_path, device="cpu")

    fitted(2.0, 1)
    with pytest.raises(CheckpointError, match="other training data"):
        fitted(3.0, 2)


def test_chains_are_trained_as_one_batch_with_their_rows_weights() -> None:
    """60 rows in batches of 25, of which the last is short: the chains are those trained one at a time."""
    lines, ends = Listens(), []
    for chains in (2, 1):
        posterior = fit(
            lambda: BayesianNetwork(nn.Linear(1, 1).double(), priors.Normal(), likelihoods.Normal(0.1)),
            MeanFieldNormal, linear(np.arange(60) % 4), chains=chains, epochs=3, batch_size=25, seed=1,
            device="cpu", progress=lines,
        )  # fmt: skip
        ends.append(posterior.mean_weights(0))
    assert not any("one chain after the other" in line for line in lines.said)
    torch.testing.assert_close(*ends, rtol=1e-7, atol=1e-8)


def test_ignoring_the_inputs_is_priced_by_the_weights() -> None:
    """The trivial bound of all rows is that of the rows repeated; its draws leave it a spread of 2.5 nats."""
    counts = torch.arange(200) % 4
    x, y = normal(200, 3), 0.5 * normal(200, 2, seed=1) + 3.0 * (counts == 0)[:, None]
    found = []
    for rows in (
        Split(x, y, counts.float()),
        Split(x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0)),
        Split(x, y),
    ):
        bound = trivial_free_energy(made(rows)[0], rows)
        assert bound is not None
        found.append(bound * len(rows))
    assert found[0] == pytest.approx(found[1], abs=20)
    assert found[2] > found[1] + 1000


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(59), r"weights must have the shape \(60,\), got \(59,\)"),
        (np.ones((60, 1)), r"weights must have the shape \(60,\)"),
        (
            np.where(np.arange(60) == 7, -1.0, 1.0),
            "weights holds -1 in row 7, counted from 0; none may be negative",
        ),
        (
            np.where(np.arange(60) == 7, np.nan, 1.0),
            r"weights holds 1 values that are not finite, .* in row 7",
        ),
        (np.zeros(60), "weights are all 0"),
        (["a"] * 60, "weights must hold real numbers"),
    ],
)
def test_weights_that_mean_nothing(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear(weights)


def test_they_follow_their_rows() -> None:
    data = linear(np.arange(1.0, 61.0))
    rows: Tensor = torch.tensor([5, 2])
    assert data.train.take(rows).weights.tolist() == [6.0, 3.0]  # type: ignore[union-attr]
    assert data.train.head(2).weights.tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    assert data.to("cpu").train.weights.tolist() == list(range(1, 61))  # type: ignore[union-attr]
    assert [part.weights.tolist() for part in data.train.batches([rows], 0)] == [[6.0, 3.0]]  # type: ignore[union-attr]
