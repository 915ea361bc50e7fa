"""SWAG: moments of its snapshots."""

import pytest
import torch
from torch import nn

from engine_fakes import normal
from exact_models import linear, made_step, softmax
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.inference import SWAG
from pyrobbb.inference.swag import SWAGGuide


@pytest.mark.parametrize(("rank", "taken"), [(4, 6), (6, 2)])
def test_swag_has_the_moments_of_its_snapshots(rank, taken):
    model, _ = softmax()
    guide = SWAG(snapshots=6, rank=rank, start=0.0).guide(model, None)
    assert isinstance(guide, SWAGGuide)
    snapshots, K = normal(taken, len(guide.loc)), min(rank, taken)
    for snapshot in snapshots:
        guide.loc.data.copy_(snapshot)
        guide.collect()
    means = torch.stack([snapshots[: i + 1].mean(0) for i in range(taken)])
    columns = (snapshots - means)[-K:] / (K - 1) ** 0.5
    variance = snapshots.var(0, unbiased=False) / 2 + columns.square().sum(0) / 2
    loc, scale = guide.loc_and_scale()
    torch.testing.assert_close(torch.cat([v.flatten() for v in loc.values()]), snapshots.mean(0))
    torch.testing.assert_close(torch.cat([v.flatten() for v in scale.values()]), variance.sqrt())
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.draw() for _ in range(8000)])
    covariance = torch.diag(snapshots.var(0, unbiased=False) / 2) + columns.T @ columns / 2
    torch.testing.assert_close(torch.cov(drawn.T), covariance, rtol=0.0, atol=0.1 * float(covariance.max()))


def test_swag_s_variance_survives_single_precision_far_from_zero():
    guide = SWAG().guide(BayesianNetwork(nn.Linear(50, 1), priors.Normal(), likelihoods.Normal()), None)
    with isolated(0):
        course = 1 + 1e-4 * torch.randn(30, guide.loc.numel())
    for theta in course:
        guide.loc.data.copy_(theta)
        guide.collect()
    exact = course.double().var(0, correction=0)
    torch.testing.assert_close(guide.diagonal.double(), exact, rtol=0.02, atol=0)


def test_swag_takes_its_snapshots_at_equal_distances_up_to_the_last_step():
    model, data, *_ = linear()
    guide, step = made_step(SWAG(snapshots=3, rank=2, start=0.5), model, data, 18)
    course = []
    for _ in range(18):
        step(data.x, data.y, 1.0, 1.0)
        course.append(guide.loc.detach().clone())
    assert int(guide.seen) == 3
    torch.testing.assert_close(guide.mean, torch.stack([course[11], course[14], course[17]]).mean(0))
