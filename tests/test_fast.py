"""The fast path computes Pyro's Trace_ELBO: same noise in, same terms and gradients out."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

from guides.initial import Uniform
from guides.mean_field import MeanFieldNormal
from pyrobbb import kl, likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.elbo import ReferenceStep
from pyrobbb.fast.choose import gradients, make_step
from pyrobbb.fast.mean_field import MeanFieldStep
from pyrobbb.isolation import isolated

N, B = 30, 6

PRIORS = {
    "mixture": priors.ScaleMixture(),
    "mixture_wide_spike": priors.ScaleMixture(pi=0.25, sigma1=0.75, sigma2=0.1),
    "normal": priors.Normal(sigma=0.3),
    "laplace": priors.Laplace(scale=0.2),
    "student_t": priors.StudentT(df=4.0, scale=0.5),
    "fan_in": priors.FanInNormal(),
    "per_parameter": priors.PerParameter(
        default=priors.ScaleMixture(), where={"*.bias": priors.Normal(), "2.weight": priors.Laplace()}
    ),
    "partly_deterministic": priors.PerParameter(
        default=priors.Normal(), where={"0.bias": priors.Deterministic()}
    ),
}
LIKELIHOODS = {
    "categorical": likelihoods.Categorical(),
    "bernoulli": likelihoods.Bernoulli(),
    "normal": likelihoods.Normal(scale=0.5),
    "normal_learnt": likelihoods.Normal(scale=0.5, learn_scale=True),
    "heteroscedastic": likelihoods.HeteroscedasticNormal(),
}
SHARES = {
    "uniform": kl.Uniform(),
    "geometric": kl.Geometric(),
    "warm_up": kl.WarmUp(epochs=4),
    "tempered": kl.Tempered(temperature=0.1),
    "full": kl.Full(),
}


def rows(likelihood: likelihoods.Likelihood, dtype: torch.dtype = torch.float32) -> Split:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(B, 4, generator=generator, dtype=dtype)
    if isinstance(likelihood, likelihoods.Categorical):
        return Split(x, torch.arange(B) % 3)
    y = torch.rand(B, 3, generator=generator, dtype=dtype)
    return Split(x, y.round() if isinstance(likelihood, likelihoods.Bernoulli) else y)


def parts(prior: priors.Prior, likelihood: likelihoods.Likelihood, dtype: torch.dtype = torch.float32):
    with isolated(1):
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, likelihood.width(3))).to(dtype)
        model = BayesianNetwork(net, prior, likelihood, N)
        guide = MeanFieldNormal(model, init_rho=Uniform(-4.0, 1.0))
        data = rows(likelihood, dtype)
        guide(data.x, data.y)
    parameters = [*guide.parameters(), *model.parameters()]
    return model, guide, torch.optim.Adam(parameters, lr=1e-2, fused=True), data


def assert_close(
    prior, likelihood, share, data_share, *, samples=1, fast="eager", dtype=torch.float32, rtol=1e-5
) -> None:
    model, guide, optimizer, data = parts(prior, likelihood, dtype)
    messages: list[str] = []
    with isolated(5):
        step = make_step(
            model, guide, optimizer, data.head(2), samples=samples, fast=fast, say=messages.append
        )
        assert isinstance(step, MeanFieldStep), messages
        noise = torch.randn(samples, guide.loc.numel(), dtype=dtype)
        ours = gradients(step, data, noise, share=share)
        reference = ReferenceStep(model, guide, optimizer, samples=samples)
        theirs = gradients(reference, data, noise, share=share, N=round(B / data_share))
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).norm()) <= rtol * float(b.norm())


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("share", SHARES)
def test_same_noise_same_terms_and_gradients(prior: str, likelihood: str, share: str) -> None:
    M = N // B
    pi = SHARES[share].share(2, M, 1, B / N)
    assert_close(PRIORS[prior], LIKELIHOODS[likelihood], pi, B / N)


@pytest.mark.parametrize("prior", PRIORS)
def test_same_in_double_precision(prior: str) -> None:
    assert_close(
        PRIORS[prior], likelihoods.Normal(learn_scale=True), 0.3, B / N, dtype=torch.float64, rtol=1e-12
    )


@pytest.mark.parametrize("samples", [2, 5])
def test_several_draws_average_as_in_pyro(samples: int) -> None:
    assert_close(PRIORS["mixture"], LIKELIHOODS["normal_learnt"], 0.2, B / N, samples=samples)


@pytest.mark.parametrize("prior", ["mixture", "per_parameter", "fan_in", "student_t"])
def test_compiled_agrees_too(prior: str) -> None:
    pytest.importorskip("torch._inductor")
    assert_close(PRIORS[prior], LIKELIHOODS["categorical"], 0.2, B / N, fast="compiled")


def test_a_network_with_dropout_uses_the_same_masks() -> None:
    model, guide, optimizer, data = parts(PRIORS["normal"], LIKELIHOODS["categorical"])
    model.network.append(nn.Dropout(0.5))
    with isolated(2):
        step = make_step(model, guide, optimizer, data, fast="eager")
    assert isinstance(step, MeanFieldStep)


class Wider(MeanFieldNormal):
    """A guide that says it is a flat mean field, but samples something else."""

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().split(1.5 * flat)


class OtherGuide(MeanFieldNormal):
    """A mean field with one more parameter."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__(model)
        self.extra = nn.Parameter(torch.zeros(3))


class Correlated(priors._Elementwise):
    def law(self, parameter: torch.Tensor):
        raise NotImplementedError

    def distribution(self, name: str, parameter: torch.Tensor):
        n = parameter.numel()
        base = pyro.distributions.MultivariateNormal(torch.zeros(n), torch.eye(n))
        return pyro.distributions.TransformedDistribution(
            base, [torch.distributions.transforms.ReshapeTransform((n,), parameter.shape)]
        )


@pytest.mark.parametrize(
    ("make_guide", "prior", "why"),
    [
        (AutoNormal, PRIORS["normal"], "AutoNormal is not a mean-field normal"),
        (OtherGuide, PRIORS["normal"], "OtherGuide is not a mean-field normal"),
        (Wider, PRIORS["normal"], "differs from Pyro's"),
        (MeanFieldNormal, Correlated(), "TransformedDistribution"),
    ],
)
def test_what_it_cannot_do_runs_the_reference_and_says_why(make_guide, prior, why: str) -> None:
    data = rows(LIKELIHOODS["categorical"])
    said: list[str] = []
    with isolated(1):
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        model = BayesianNetwork(net, prior, LIKELIHOODS["categorical"], N)
        guide = make_guide(model)
        guide(data.x, data.y)
        optimizer = torch.optim.Adam([*guide.parameters(), *model.parameters()])
        step = make_step(model, guide, optimizer, data, say=said.append)
        assert isinstance(step, ReferenceStep)
        step(data.x, data.y, 0.2, B / N)
    assert len(said) == 1
    assert "Pyro's own SVI" in said[0]
    assert why in said[0]


def test_no_compiler_still_trains_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr("torch._inductor.standalone_compile", absent)
    model, guide, optimizer, data = parts(PRIORS["mixture"], LIKELIHOODS["categorical"])
    said: list[str] = []
    with isolated(1):
        step = make_step(model, guide, optimizer, data, fast="compiled", say=said.append)
        before = guide.loc.detach().clone()
        terms = step(data.x, data.y, 0.2, B / N)
    assert isinstance(step, MeanFieldStep)
    assert torch.isfinite(terms.kl + terms.nll)
    assert not torch.equal(before, guide.loc)
    assert len(said) == 1
    assert "no C++ compiler" in said[0]


def test_a_short_run_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("torch._inductor.standalone_compile", refuse)
    model, guide, optimizer, data = parts(PRIORS["mixture"], LIKELIHOODS["categorical"])
    with isolated(1):
        assert isinstance(make_step(model, guide, optimizer, data, steps=1000), MeanFieldStep)
