"""The plain baseline: trains, resumes exactly, lets dropout act in training alone, and leaves no trace."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from models.mlp import perceptron
from pyrobbb.data import Blobs, NoisySine
from pyrobbb.likelihoods import HeteroscedasticNormal
from pyrobbb.training import history
from pyrobbb.training.point_estimate import fit_plain, gaussian_loss
from pyrobbb.training.trainer import NonFiniteLossError


def dropout_net(features=2, classes=3):
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def net(make, *args):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(*args)


def test_a_classifier_learns_and_the_network_given_is_left_alone():
    data, given = Blobs(features=20).load(), net(dropout_net, 20)  # clouds that lie apart under any seed
    before = [p.clone() for p in given.parameters()]
    state = torch.get_rng_state()
    fit = fit_plain(given, data, epochs=20, optim=partial(torch.optim.SGD, lr=0.1), batch_size=32)
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    first, last = fit.history.rows[0], fit.history.rows[-1]
    assert (first.epoch, last.epoch) == (1, 20)
    assert last.nll < 0.5 * first.nll  # the ratio: mean 0.03, sd 0.015 over 20 seeds
    assert last.kl == 0
    error = 100 * float((fit.predict(data.validation.x).argmax(-1) != data.validation.y).double().mean())
    assert error == pytest.approx(last.validation_error)
    assert error < 10  # 0 for each of 20 seeds


def test_dropout_acts_in_training_alone():
    data = Blobs().load()
    fit = fit_plain(net(dropout_net), data, epochs=1)
    assert torch.equal(fit.predict(data.test.x), fit.predict(data.test.x))
    without = net(dropout_net)
    without[2] = nn.Identity()
    other = fit_plain(without, data, epochs=1)
    assert not torch.equal(other.network[0].weight, fit.network[0].weight)


def test_a_squared_error_does_not_broadcast():
    data = NoisySine(N=6, validation=0, test=0).load()
    flat = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    with pytest.raises(ValueError, match=r"the network gives \(6,\) for targets of shape \(6, 1\)"):
        fit_plain(flat, data, epochs=1, batch_size=6, loss="mse")


def test_full_batch_descent_is_the_textbook_loop():
    data = NoisySine(N=6, validation=0, test=0).load()
    start = net(partial(perceptron, 1, [16, 16], 1, "sigmoid"))
    fit = fit_plain(
        start, data, epochs=50, optim=partial(torch.optim.SGD, lr=0.1), loss="mse", record_every=20
    )
    assert [row.epoch for row in fit.history.rows] == [20, 40, 50]
    assert math.isnan(fit.history.rows[0].validation_error)
    optimizer = torch.optim.SGD(start.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        loss = ((start(data.train.x) - data.train.y) ** 2).mean()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(fit.network.state_dict(), start.state_dict())
    assert fit.history.rows[-1].nll == pytest.approx(float(loss.detach()))


def test_a_conditional_gaussian_loss_finds_the_noise():
    output, y = torch.tensor([[0.3, -1.0, 0.2, 2.0]]), torch.tensor([[0.5, 0.1]])
    law = torch.distributions.Normal(output[:, :2], softplus(output[:, 2:]) + 1e-3)
    assert float(gaussian_loss(output, y)) == pytest.approx(-float(law.log_prob(y).sum()), rel=1e-6)
    data = NoisySine(noise=0.3, N=2000, validation=2000).load()
    adam = partial(torch.optim.Adam, lr=0.01)
    start = net(partial(perceptron, 1, [32], 2))
    fit = fit_plain(start, data, epochs=60, optim=adam, batch_size=200, loss="gaussian")
    law = HeteroscedasticNormal()(fit.predict(data.train.x))
    loc, scale = law.mean, law.variance.sqrt()
    assert float(scale.mean()) == pytest.approx(0.3, abs=0.06)  # mean 0.300, sd 0.011 over 20 seeds
    rmse = float((loc - data.train.y).square().mean().sqrt())
    assert rmse == pytest.approx(0.3, abs=0.04)  # mean 0.303, sd 0.005
    last = fit.history.rows[-1]
    assert last.validation_error == pytest.approx(0.3, abs=0.05)  # in units of y; mean 0.303, sd 0.006
    entropy = math.log(0.3) + 0.5 * math.log(2 * math.pi * math.e)
    assert last.validation_nll == pytest.approx(entropy, abs=0.15)  # mean 0.014 above it, sd 0.019


def test_interrupted_and_uninterrupted_runs_end_in_the_same_weights(tmp_path):
    data = Blobs().load()
    options = {
        "optim": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "schedule": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=4),
        "batch_size": 64,
        "seed": 3,
    }
    fit_plain(net(dropout_net), data, epochs=2, folder=tmp_path, **options)
    resumed = fit_plain(net(dropout_net), data, epochs=4, folder=tmp_path, **options)
    whole = fit_plain(net(dropout_net), data, epochs=4, **options)
    for one, other in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [row.epoch for row in history.read(tmp_path / "history.csv")] == [1, 2, 3, 4]


def test_what_cannot_work_is_refused_by_name():
    data = Blobs().load()
    with pytest.raises(ValueError, match="loss 'mse' does not fit Blobs, a classification"):
        fit_plain(net(dropout_net), data, epochs=1, loss="mse")
    with pytest.raises(ValueError, match="loss must be one of nll, mse, gaussian"):
        fit_plain(net(dropout_net), data, epochs=1, loss="l1")
    with pytest.raises(ValueError, match=r"output of width 4 fits y of shape \(100, 2\), got \(100, 1\)"):
        fit_plain(net(perceptron, 1, [8], 4), NoisySine().load(), epochs=1, loss="gaussian")
    with pytest.raises(ValueError, match="nothing to train"):
        fit_plain(nn.ReLU(), data, epochs=1)
    with pytest.raises(ValueError, match="epochs must be a whole number"):
        fit_plain(net(dropout_net), data, epochs=0)
    run_away = partial(torch.optim.SGD, lr=1e6)
    with pytest.raises(NonFiniteLossError, match="at epoch"):
        fit_plain(net(perceptron, 1, [8], 1), NoisySine().load(), epochs=50, optim=run_away, loss="mse")
