"""Priors with latent scales: their marginals and their free energy against quadrature, under each guide."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from scipy import stats
from torch import Tensor, nn

from engine_fakes import network, normal, values
from pyrobbb import Posterior, fit, likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.non_centred import NonCentredNormal
from pyrobbb.svi import ReferenceStep

GAUSS = likelihoods.Normal(scale=0.5)


class OneScale(priors.Hierarchical):
    """A user's own: one scale for each tensor of weights, log-normal."""

    def log_scale(self, name: str, parameter: Tensor, module: nn.Module) -> Tensor:
        law = dist.LogNormal(parameter.new_tensor(-1.0), parameter.new_tensor(0.7))
        start = parameter.new_tensor(0.3)
        return priors.sample_log(f"{name}_log_scale", law, (1,) * parameter.dim(), start, parameter)


PRIORS: dict[str, Callable[[], priors.Hierarchical]] = {
    "ard": priors.ARD,
    "ard_by_layer": lambda: priors.ARD(per="layer", df=3.0),
    "horseshoe": priors.Horseshoe,
    "group_horseshoe": lambda: priors.GroupHorseshoe(per="output"),
    "own": OneScale,
}
GUIDES: dict[str, Any] = {"mean_field": MeanFieldNormal, "non_centred": NonCentredNormal, "auto": AutoNormal}


@pytest.mark.parametrize("scale", [0.1, 2.0])
@pytest.mark.parametrize("df", [1.0, 4.0])
def test_a_weight_under_ard_has_a_student_t(df: float, scale: float) -> None:
    """The prior of log s, integrated out by quadrature."""
    w = torch.tensor([0.0, 0.05, 0.7, 3.0], dtype=torch.float64)
    u = torch.linspace(-14, 14, 8001, dtype=torch.float64)[:, None]
    with poutine.trace() as seen, isolated(0):
        priors.ARD(df=df, scale=scale).distribution("w", normal(4, 1, dtype=torch.float64))
    law: Any = seen.trace.nodes["w_log_variance"]["fn"]
    density = (law.log_prob(2 * u[..., None]) + math.log(2)).exp()[:, None]  # of u = log s, half of log s^2
    found = torch.trapezoid(density * dist.Normal(0.0, u.exp()).log_prob(w).exp(), u, dim=0)
    assert found.numpy() == pytest.approx(stats.t(df, 0, scale).pdf(w.numpy()), rel=1e-5)


def _scale_and_starts(
    prior: priors.Hierarchical, w: Tensor, **latents: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The standard deviations of the weights given the prior's latents, and where these start."""
    with poutine.trace() as seen, poutine.condition(data=latents):
        law: Any = prior.distribution("w", w)
    return law.stddev, [seen.trace.nodes[name]["infer"]["start"] for name in latents]


def test_the_scale_of_a_weight_is_made_of_its_latents() -> None:
    """Which start where the scale is the root mean square of the network's own weights."""
    w = 0.2 * normal(4, 3)
    rms = w.square().mean().sqrt()
    log_variance, log_tau, log_lambda = normal(1, 3, seed=1), normal(1, 1, seed=2), normal(4, 3, seed=3)
    scale, (start,) = _scale_and_starts(priors.ARD(), w, w_log_variance=log_variance)
    torch.testing.assert_close(scale, log_variance.exp().sqrt().expand(4, 3))
    torch.testing.assert_close(start, 2 * rms.log().expand(1, 3))
    _, (start,) = _scale_and_starts(priors.ARD(scale=0.3), torch.zeros(4, 3), w_log_variance=log_variance)
    assert start.tolist() == [pytest.approx([2 * math.log(0.3)] * 3)]  # of a network that starts at 0
    for prior, local in ((priors.Horseshoe(), log_lambda), (priors.GroupHorseshoe(), log_lambda[:1])):
        scale, starts = _scale_and_starts(prior, w, w_log_tau=log_tau, w_log_lambda=local)
        torch.testing.assert_close(scale, (log_tau.exp() * local.exp()).expand(4, 3))
        torch.testing.assert_close(starts, [rms.log().expand(1, 1), torch.zeros_like(local)])


@pytest.mark.parametrize("guide", [MeanFieldNormal, NonCentredNormal])
def test_the_free_energy_is_that_of_quadrature(guide: Any) -> None:
    """One weight and its log scale u, y_i = w x_i + noise: F = KL - E log p(y | w) on a grid of u and z."""
    x, y = normal(5, 1, dtype=torch.float64), normal(5, 1, seed=1, dtype=torch.float64)
    model = BayesianNetwork(nn.Linear(1, 1, bias=False).double(), OneScale(), GAUSS, 5)
    q = guide(model)
    with isolated(0):
        q()
    names = list(q.shapes)
    with torch.no_grad():
        for value, mean, width in ((names.index("weight"), 0.6, 0.2), (1 - names.index("weight"), -0.5, 0.4)):
            q.loc[value] = mean
            q.rho[value] = math.log(math.expm1(width))

    z = torch.linspace(-8, 8, 801, dtype=torch.float64)
    eps_u, eps_w = z[:, None], z[None, :]
    u = -0.5 + 0.4 * eps_u
    unit = u.exp() if guide is NonCentredNormal else torch.ones_like(u)
    w = unit * (0.6 + 0.2 * eps_w)
    log_q = dist.Normal(-0.5, 0.4).log_prob(u) + dist.Normal(unit * 0.6, unit * 0.2).log_prob(w)
    log_p = dist.Normal(-1.0, 0.7).log_prob(u) + dist.Normal(0.0, u.exp()).log_prob(w)
    nll = -dist.Normal(w[..., None] * x[:, 0], 0.5).log_prob(y[:, 0]).sum(-1)
    mass = torch.exp(-0.5 * (eps_u**2 + eps_w**2)) / (2 * math.pi)
    exact = torch.trapezoid(torch.trapezoid(mass * (log_q - log_p + nll), z, dim=1), z, dim=0)

    step = ReferenceStep(model, q, torch.optim.SGD(q.parameters(), lr=0.1), samples=100, vectorize=True)
    with isolated(1):
        found = torch.stack([sum(step.evaluate(x, y, 1.0, 1.0)) for _ in range(30)])  # type: ignore[arg-type]
    assert float(found.mean()) == pytest.approx(float(exact), abs=5 * float(found.std()) / 30**0.5)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", PRIORS)
def test_every_one_trains_predicts_and_loads_under_every_guide(
    prior: str, guide: str, tmp_path: Path
) -> None:
    data = values()

    def parts() -> tuple[BayesianNetwork, Any]:
        model = BayesianNetwork(network(width=2), PRIORS[prior](), GAUSS, 12)
        return model, GUIDES[guide](model)

    model, q = parts()
    posterior = fit(
        model, q, data, epochs=2, batch_size=6, samples=2, vectorize=True, device="cpu", fast="off",
        progress=None,
    )  # fmt: skip
    mean = posterior.predict(data.train.x, draws=3).mean
    assert mean.isfinite().all()
    posterior.save(tmp_path)
    loaded = Posterior.load(tmp_path, *parts())
    assert torch.equal(loaded.predict(data.train.x, draws=3).mean, mean)


def test_without_centring_the_weights_start_where_they_were_asked_to() -> None:
    model = BayesianNetwork(network(width=2), priors.Horseshoe(), GAUSS, 12)
    q = NonCentredNormal(model, init_rho=-3.0)
    with isolated(0):
        q()
    hyper = {name: loc for name, loc in q.split(q.loc.detach()).items() if name not in model.sites}
    with torch.no_grad(), isolated(0), poutine.condition(data=hyper), poutine.trace() as seen:
        q()
    for name, value in model.initial().items():
        base = seen.trace.nodes[name]["fn"].base_dist
        assert torch.allclose(base.loc, value, rtol=1e-4, atol=1e-6)
        assert torch.allclose(base.scale, F.softplus(torch.tensor(-3.0)), rtol=1e-4)


def partly_hierarchical() -> BayesianNetwork:
    where = {"2.*": priors.Learned(priors.Normal(sigma=0.3))}
    prior = priors.PerParameter(default=priors.ARD(), where=where)
    return BayesianNetwork(network(width=2), prior, GAUSS, 12)


def test_a_learned_scale_does_not_move_the_weights() -> None:
    """An M-step is for a fixed q."""
    model = partly_hierarchical()
    q = NonCentredNormal(model)
    q()
    with isolated(0):
        before = q()
        model.learned[0].update(model, q)
    with isolated(0):
        after = q()
    assert float(model.learned[0].values()["2.weight.scale"]) != pytest.approx(0.3, rel=0.01)
    assert all(torch.equal(before[name], after[name]) for name in model.sites)


def test_a_file_with_learned_weights_in_other_units_is_refused(tmp_path: Path) -> None:
    model = partly_hierarchical()
    q = NonCentredNormal(model)
    q()
    del q.weights_in_own_units  # as before it was there
    Posterior([(model, q)]).save(tmp_path)
    with pytest.raises(CheckpointError, match="no weights_in_own_units"):
        Posterior.load(tmp_path, partly_hierarchical(), NonCentredNormal)


@pytest.mark.parametrize("prior", [priors.Normal(), priors.ScaleMixture()])
def test_a_prior_without_latent_scales_needs_no_such_guide(prior: priors.Prior) -> None:
    model = BayesianNetwork(network(width=2), prior, GAUSS, 12)
    with pytest.raises(ValueError, match="this one has no latent scale: use MeanFieldNormal"):
        NonCentredNormal(model)()


@pytest.mark.parametrize(
    "options", [{"scale": 0.0}, {"per": "network"}, {"df": -1.0}], ids=lambda options: next(iter(options))
)
def test_options_outside_their_domain_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        priors.ARD(**options)


@pytest.mark.parametrize("name", ["likelihood", "prior_net"])
@pytest.mark.parametrize("scale", [0.5, dist.HalfNormal(1.0)], ids=["fixed", "latent"])
def test_a_layer_may_be_called_like_a_part_of_the_model(name: str, scale: Any) -> None:
    net = nn.Sequential()
    net.add_module(name, nn.Linear(3, 2))
    model = BayesianNetwork(net, priors.Horseshoe(), likelihoods.Normal(scale=scale))
    guide = AutoNormal if scale != 0.5 else NonCentredNormal
    posterior = fit(model, guide, values(), epochs=1, progress=None)
    assert f"{name}.weight_log_tau" in posterior.model.other_latents
    assert posterior.predict(values().train.x, draws=3).mean.isfinite().all()
