"""The training step against the paper: the worked example, eqs 3, 4, 8 and 9, and unbiasedness."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)  # fmt: skip
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn

from engine_fakes import classes, classifier, normal, values
from pyrobbb import kl_weights as kl
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.programs import pyro_program
from pyrobbb.accelerated.replay_noise import Injected
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.initializers import Constant, Normal
from pyrobbb.kl_weights import Weighted
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep, Terms, terms_of


def noise(monkeypatch: pytest.MonkeyPatch, eps: float | list[float]) -> None:
    """Let every standard normal that torch draws for a reparameterised sample be `eps`."""

    def fixed(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.tensor(eps, dtype=dtype, device=device).expand(shape)

    monkeypatch.setattr("torch.distributions.normal._standard_normal", fixed)


def one_weight() -> tuple[BayesianNetwork, MeanFieldNormal]:
    """Y = w x with noise 0.5, prior N(0, 1), q = N(0.5, softplus(2)^2)."""
    net = nn.Linear(1, 1, bias=False)
    model = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Normal(scale=0.5), N=1).double()
    return model, MeanFieldNormal(model, init_loc=Constant(0.5), init_rho=2.0)


# w, log q, log P, log likelihood, loss, d mu, d rho, mu', rho'
PRINTED = (4.5561, -3.4920, -11.2981, -74.9450, 82.7511, 53.4541, 89.3733, -0.0345, 1.1063)
EXACT = (
    4.55605172, -3.49194172, -11.29774216, -74.94140813, 82.74720857,
    53.45287919, 89.36961658, -0.03452879, 1.10630383,
)  # fmt: skip


@pytest.mark.parametrize(
    ("eps", "expected", "within"),
    [(1.9070345, PRINTED, 5e-5), (1.907034, PRINTED, 1e-4), (1.9070, EXACT, 1e-7)],
)
def test_the_worked_example(
    monkeypatch: pytest.MonkeyPatch, eps: float, expected: tuple[float, ...], within: float
) -> None:
    """One step of SGD at x = 2, y = 3: the tutorial's nine numbers, through our model, guide and step."""
    model, guide = one_weight()
    x, y = torch.tensor([[2.0]]).double(), torch.tensor([[3.0]]).double()
    noise(monkeypatch, eps)
    with isolated():
        guide(x, y)
        step = ReferenceStep(model, guide, torch.optim.SGD(guide.parameters(), lr=0.01))
        guide_trace = poutine.trace(guide).get_trace(x, y)
        model_trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(x, y)
        for trace in (guide_trace, model_trace):
            trace.compute_log_prob()
        terms = step(x, y, 1.0, 1.0)
    log_q = guide_trace.nodes["weight"]["log_prob_sum"]
    log_p, log_likelihood = (model_trace.nodes[site]["log_prob_sum"] for site in ("weight", "y"))
    mu, rho = guide.loc.item(), guide.rho.item()
    ours = (
        guide_trace.nodes["weight"]["value"].item(), log_q.item(), log_p.item(), log_likelihood.item(),
        (terms.kl + terms.nll).item(), (0.5 - mu) / 0.01, (2 - rho) / 0.01, mu, rho,
    )  # fmt: skip
    assert ours == pytest.approx(expected, abs=within)
    assert terms.kl.item() == pytest.approx((log_q - log_p).item())
    assert terms.nll.item() == pytest.approx(-log_likelihood.item())


class Slope:
    """An optimiser that only writes down the gradients of a step."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)
        self.param_groups = [{"params": self.parameters}]

    def step(self) -> None:
        self.gradients = [p.grad.clone() for p in self.parameters]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters:
            p.grad = None


def conjugate() -> tuple[BayesianNetwork, MeanFieldNormal, Tensor, Tensor]:
    """y = w . x with noise 0.5 and prior N(0, 1), and half of its 12 rows."""
    data = values(6, features=2, outputs=1)
    likelihood = likelihoods.Normal(scale=0.5)
    model = BayesianNetwork(nn.Linear(2, 1, bias=False), priors.Normal(), likelihood, N=12)
    return model, MeanFieldNormal(model, init_loc=Constant(0.1), init_rho=-1.0), data.train.x, data.train.y


def steps_each_way(share: float, **options: Any) -> tuple[Tensor, Tensor]:
    """KL, NLL and gradient of steps on half of the rows, a row each; and the closed forms of their mean.

    All are quadratic in the n normals that a step draws: their mean over sqrt(n) along each of them, and then
    -sqrt(n), is the expectation.
    """
    model, guide, x, y = conjugate()
    seen = []
    with isolated(0):
        guide(x, y)
        slope = Slope(guide.parameters())
        step = ReferenceStep(model, guide, slope, **options)  # type: ignore[arg-type]
        with Injected(None) as counting:
            step(x, y, share, 0.5)
        each = counting.used**0.5 * torch.eye(counting.used)
        for eps in (*each, *-each):
            with Injected(eps):
                terms = step(x, y, share, 0.5)
            seen.append(torch.cat([torch.stack([terms.kl, terms.nll]), *slope.gradients]))
    mu, rho = (p.detach().clone().requires_grad_() for p in (guide.loc, guide.rho))
    sigma = torch.log1p(rho.exp())
    kl_exact = (0.5 * (sigma**2 + mu**2 - 1) - sigma.log()).sum()
    square = (y[:, 0] - x @ mu) ** 2 + x**2 @ sigma**2
    nll_exact = (0.5 * square / 0.5**2 + math.log(0.5) + 0.5 * math.log(2 * math.pi)).sum()
    slopes = torch.autograd.grad(share * kl_exact + nll_exact, (mu, rho))
    return torch.stack(seen), torch.cat([torch.stack([kl_exact, nll_exact]).detach(), *slopes])


def gradients(
    model: BayesianNetwork, guide: nn.Module, x: Tensor, y: Tensor, share: float, data: float, **options: Any
) -> tuple[Terms, list[Tensor]]:
    slope = Slope(guide.parameters())
    return ReferenceStep(model, guide, slope, **options)(x, y, share, data), slope.gradients  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prior", [priors.ScaleMixture(), priors.Laplace(scale=0.5)], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("share", [1.0, 0.25, 2.0**-9])
def test_equations_3_and_4(monkeypatch: pytest.MonkeyPatch, prior: priors.Prior, share: float) -> None:
    r"""d mu = df/dw + df/dmu and d rho = df/dw eps / (1 + e^-rho) + df/drho, f of eq. 9."""
    data = values(8)
    x, y = data.train.x.double(), data.train.y.double()
    model = BayesianNetwork(nn.Linear(3, 2), prior, likelihoods.Normal(scale=0.5), N=32).double()
    guide = MeanFieldNormal(model, init_rho=-2.0)
    eps = normal(8, dtype=torch.float64, seed=5)
    with isolated():
        guide(x, y)
        order = iter(guide.split(eps).values())
        monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *a, **k: next(order))
        _, (d_mu, d_rho) = gradients(model, guide, x, y, share, data=8 / 32)

    mu, rho = (p.detach().clone().requires_grad_() for p in (guide.loc, guide.rho))
    sigma = torch.log1p(rho.exp())
    w = (mu + sigma * eps).detach().requires_grad_()
    log_q = (-0.5 * ((w - mu) / sigma) ** 2 - sigma.log() - 0.5 * math.log(2 * math.pi)).sum()
    parts = guide.split(w)
    log_p = sum(prior.distribution(name, part).log_prob(part) for name, part in parts.items())  # type: ignore[union-attr]
    mean = x @ parts["weight"].T + parts["bias"]
    log_likelihood = (-0.5 * ((y - mean) / 0.5) ** 2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)).sum()
    f = share * (log_q - log_p) - log_likelihood
    df_dw, df_dmu, df_drho = torch.autograd.grad(f, (w, mu, rho))
    torch.testing.assert_close(d_mu, df_dw + df_dmu, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(d_rho, df_dw * eps / (1 + (-rho).exp()) + df_drho, rtol=1e-9, atol=1e-9)


def test_pyros_loss_over_m_is_the_papers_minibatch_cost() -> None:
    """Equation 8 on the same draws: `Trace_ELBO` of model and guide = M (KL / M - log P(D_i | w))."""
    data, M = classes(40), 4
    model, guide = classifier(data)
    x, y = data.train.x[:10], data.train.y[:10]
    with isolated(3):
        guide(x, y)
        torch.manual_seed(7)
        loss = Trace_ELBO().loss(model, guide, x, y)
        torch.manual_seed(7)
        terms, _ = gradients(model, guide, x, y, share=1 / M, data=1 / M)
    assert loss / M == pytest.approx(float(terms.kl / M + terms.nll), rel=1e-5)


@pytest.mark.parametrize("scheme", [kl.Uniform(), kl.Geometric()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("B", [8, 9, 40])
def test_a_shuffled_epoch_sums_to_the_whole_cost(scheme: kl.KLWeight, B: int) -> None:
    """Sum over i of eq. 9 = eq. 1 with the same weights; B = 9 leaves a last one of 4. Gradients too."""
    data = classes(40)
    model, guide = classifier(data, init_rho=-2.0)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).split(B)
    M = len(order)
    with isolated(0):
        guide(data.train.x, data.train.y)

        def cost(rows: Tensor, share: float) -> tuple[Tensor, list[Tensor]]:
            torch.manual_seed(11)
            terms, slopes = gradients(
                model, guide, data.train.x[rows], data.train.y[rows], share, len(rows) / 40
            )
            return share * terms.kl + terms.nll, slopes

        whole, whole_slopes = cost(torch.arange(40), 1.0)
        parts = [cost(rows, scheme.weight(i + 1, M, 1, len(rows) / 40)) for i, rows in enumerate(order)]
    torch.testing.assert_close(sum(value for value, _ in parts), whole, rtol=1e-5, atol=0)
    for j, slope in enumerate(whole_slopes):
        torch.testing.assert_close(sum(slopes[j] for _, slopes in parts), slope, rtol=1e-4, atol=1e-4)


class Measured(priors.Prior):
    """Weights N(m, 1) around a latent m, of which an external measurement says 2 +- 0.5."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        m = pyro.sample(f"{name}_m", dist.Normal(0.0, 1.0))
        pyro.sample(f"{name}_seen", dist.Normal(m, 0.5), obs=torch.tensor(2.0))
        pyro.factor(f"{name}_factor", -(m**2))
        return dist.Normal(m[..., None, None], 1.0).expand(m.shape + parameter.shape).to_event(2)


@pytest.mark.parametrize("elbo", [Trace_ELBO, RenyiELBO])
def test_the_first_step_takes_no_gradient_that_was_left_before_it(elbo: Any) -> None:
    ends = []
    for left in (None, 1e3):
        model, guide = one_weight()
        x, y = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        guide(x, y)
        parameters = list(guide.parameters())
        for parameter in parameters:
            parameter.grad = None if left is None else torch.full_like(parameter, left)
        step = ReferenceStep(model, guide, torch.optim.SGD(parameters, lr=0.1), samples=2, elbo=elbo)
        with isolated(0):
            step(x, y, 1.0, 1.0)
        ends.append([parameter.detach().clone() for parameter in parameters])
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.parametrize("scheme", [kl.Uniform(), kl.Geometric()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("repeats", [None, 1.0, 2.0])
def test_what_is_observed_once_counts_once(scheme: kl.KLWeight, repeats: float | None) -> None:
    """Outside the plate: neither in each minibatch anew, nor as often as the rows. By Pyro and recorded."""
    data = values(40)
    net = nn.Linear(3, 2, bias=False)
    model = BayesianNetwork(net, Measured(), likelihoods.Normal(scale=0.5), N=40)
    with isolated(0):
        guide = AutoNormal(model, init_scale=0.1)
        guide(data.train.x, data.train.y)
        parameters = [p for _, p in guide.named_parameters()]
        program = pyro_program(model, guide, parameters, samples=1)

        def cost(rows: Tensor, share: float) -> list[Tensor]:
            x, y = data.train.x[rows], data.train.y[rows]
            counts = None if repeats is None else torch.full((len(rows),), repeats)
            step = ReferenceStep(model, guide, torch.optim.SGD(parameters, lr=0.0))
            guide.zero_grad()
            torch.manual_seed(11)
            terms = step.evaluate(x, y, share, len(rows) / 40, counts)
            slopes = [p.grad.clone() for p in parameters]
            torch.manual_seed(11)
            recorded = program(None, torch.tensor(share), x, y, counts)
            torch.testing.assert_close(recorded, [*terms, *slopes], rtol=1e-4, atol=1e-4)
            return [share * terms.kl + terms.nll, *slopes]

        order = torch.randperm(40).split(9)
        M = len(order)
        parts = [cost(rows, scheme.weight(i + 1, M, 1, len(rows) / 40)) for i, rows in enumerate(order)]
        torch.manual_seed(11)
        guide_trace = poutine.trace(guide).get_trace(data.train.x, data.train.y)
        model_trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(data.train.x, data.train.y)
        model_trace.compute_log_prob()
        joint = {name: site["log_prob"].sum() for name, site in model_trace.nodes.items() if "fn" in site}
        joint["y"] = joint["y"] * (1.0 if repeats is None else repeats)
        expected = guide_trace.log_prob_sum() - sum(joint.values())
    torch.testing.assert_close(sum(values[0] for values in parts), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("B", [8, 9])
def test_the_minibatch_elbo_is_unbiased(B: int) -> None:
    """Pyro's own loss of a random minibatch: its mean over the minibatches is the full-batch loss."""
    data = classes(40)
    model, guide = classifier(data)
    x, y = data.train.x, data.train.y

    def loss(rows: Tensor) -> float:
        torch.manual_seed(11)
        return float(Trace_ELBO().loss(model, guide, x[rows], y[rows]))

    with isolated(0):
        guide(x, y)
        whole = loss(torch.arange(40))
        parts = [(len(rows) / 40, loss(rows)) for rows in torch.randperm(40).split(B)]
    assert sum(fraction * value for fraction, value in parts) == pytest.approx(whole, rel=1e-5)
    assert max(value for _, value in parts) > whole * 1.001  # they do differ


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_one_and_many_samples_have_the_exact_expectation(samples: int, vectorize: bool) -> None:
    """KL, NLL and gradient of a linear model; and each draw counts an n-th."""
    seen, exact = steps_each_way(0.7, samples=samples, vectorize=vectorize)
    torch.testing.assert_close(seen.mean(0), exact, rtol=1e-5, atol=1e-5)
    _, guide, x, y = conjugate()
    guide(x, y)
    (mu, sigma), sigma_y = (guide.loc.detach(), guide.sigma.detach()), 0.5
    linear = sigma * (x.T @ (y[:, 0] - x @ mu)) / sigma_y**2
    there, back = seen[:, 1].chunk(2)
    slopes = (back - there) / (2 * (2 * samples) ** 0.5)
    torch.testing.assert_close(slopes, linear.repeat(samples) / samples, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [AutoNormal, AutoMultivariateNormal], ids=lambda g: g.__name__)
def test_autoguides_terms_are_their_elbo(make: Callable[..., nn.Module]) -> None:
    """For guides with auxiliary sites the recorded KL and NLL still add up to Pyro's loss."""
    data = classes(12)
    model, _ = classifier(data)
    guide = make(model)
    x, y = data.train.x[:4], data.train.y[:4]
    with isolated(0):
        guide(x, y)
        torch.manual_seed(3)
        loss = Trace_ELBO().loss(model, guide, x, y)
        torch.manual_seed(3)
        terms, _ = gradients(model, guide, x, y, share=1 / 3, data=1 / 3)
    assert float(terms.kl + 3 * terms.nll) == pytest.approx(loss, rel=1e-5)


def test_a_point_guide_has_the_negative_log_prior_as_kl() -> None:
    data = classes(12)
    model, _ = classifier(data, prior=priors.Normal(sigma=0.5))
    guide = AutoDelta(model)
    with isolated(0):
        weights = guide(data.train.x, data.train.y)
        terms, _ = gradients(model, guide, data.train.x, data.train.y, 1.0, 1.0)
    flat = torch.cat([w.detach().flatten() for w in weights.values()])
    expected = -torch.distributions.Normal(0.0, 0.5).log_prob(flat).sum()
    torch.testing.assert_close(terms.kl, expected)


@pytest.mark.parametrize("kind", [{"dtype": torch.float64}, {"device": "meta"}], ids=["double", "device"])
def test_the_kl_of_no_latent_is_a_tensor_as_the_likelihood_is(kind: dict[str, Any]) -> None:
    model = BayesianNetwork(nn.Linear(3, 1), priors.Deterministic(), likelihoods.Normal(scale=1.0), N=4)
    model.to(**kind)
    rows = torch.zeros(4, 3, **kind), torch.zeros(4, 1, **kind)
    with isolated(0):
        traces = poutine.trace(model).get_trace(*rows), poutine.trace(lambda x, y: None).get_trace(*rows)
        for trace in traces:
            trace.compute_log_prob()
        terms = terms_of(*traces)
    assert (terms.kl.dtype, terms.kl.device) == (terms.nll.dtype, terms.nll.device)


def test_a_share_of_zero_is_maximum_likelihood() -> None:
    data = classes(12)
    model, guide = classifier(data)
    with isolated(0):
        guide(data.train.x, data.train.y)
        torch.manual_seed(1)
        _, without = gradients(model, guide, data.train.x, data.train.y, 0.0, 1.0)
        w = guide.split(guide.loc + nn.functional.softplus(guide.rho) * _eps(guide, 1))
        logits = model.apply_network(w, data.train.x)
        expected = torch.autograd.grad(
            nn.functional.cross_entropy(logits, data.train.y, reduction="sum"), [guide.loc, guide.rho]
        )
    for ours, theirs in zip(without, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def _eps(guide: MeanFieldNormal, seed: int) -> Tensor:
    """The noise that the guide draws after `seed`, site after site."""
    torch.manual_seed(seed)
    return torch.cat([torch.randn(shape).flatten() for shape in guide.shapes.values()])


def test_scaling_reaches_model_and_guide_alike() -> None:
    data = classes(12)
    model, guide = classifier(data)
    with isolated(0):
        guide(data.train.x, data.train.y)
        with Weighted(0.25), poutine.scale(scale=0.5):
            guide_trace = poutine.trace(guide).get_trace(data.train.x, data.train.y)
            model_trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(
                data.train.x, data.train.y
            )
    for site in model.sites:
        assert guide_trace.nodes[site]["scale"] == model_trace.nodes[site]["scale"] == 0.125
    assert model_trace.nodes["y"]["scale"] == 0.5


def test_the_initial_kl_of_a_published_notebook() -> None:
    """784-400-400-10, prior N(0, 1), mu ~ N(0, 0.1), rho = -3: KL / 469 = 2581.35."""
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    model = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Categorical(), N=60_000)
    assert model.num_weights == 478_410

    guide = MeanFieldNormal(model, init_loc=Normal(scale=0.1), init_rho=-3.0)
    with isolated(0):
        x, y = torch.zeros(1, 784), torch.zeros(1, dtype=torch.long)
        guide(x, y)
        terms, _ = gradients(model, guide, x, y, share=1 / 469, data=1 / 469)
    # spread: of mu^2 / 2 over 478,410 draws, and of the Monte Carlo KL
    assert float(terms.kl) / 469 == pytest.approx(2581.35, abs=5)


def test_the_optimizer_follows_the_papers_cost_not_pyros() -> None:
    """The step's gradient is that of F_i itself: N/B does not multiply the learning rate."""
    data = classes(40)
    model, guide = classifier(data)
    x, y = data.train.x[:10], data.train.y[:10]
    with isolated(0):
        guide(x, y)
        torch.manual_seed(2)
        _, ours = gradients(model, guide, x, y, share=0.25, data=0.25)
        torch.manual_seed(2)
        guide.zero_grad()
        Trace_ELBO().loss_and_grads(model, guide, x, y)
        pyros = [p.grad for p in guide.parameters()]
    for mine, theirs in zip(ours, pyros, strict=True):
        torch.testing.assert_close(4 * mine, theirs, rtol=1e-5, atol=1e-5)


def test_terms_carry_no_graph() -> None:
    data = classes(12)
    model, guide = classifier(data)
    before = list(pyro.get_param_store())
    with isolated(0):
        guide(data.train.x, data.train.y)
        step = ReferenceStep(model, guide, torch.optim.SGD(guide.parameters(), lr=0.0), samples=3)
        terms = step(data.train.x, data.train.y, 1.0, 1.0)
        assert list(pyro.get_param_store())  # Pyro's own bookkeeping stays inside `isolated`
    assert list(pyro.get_param_store()) == before
    assert not terms.kl.requires_grad
    assert not terms.nll.requires_grad


def test_the_closed_form_takes_the_kl_s_own_gradient() -> None:
    """Without data d/dmu is s mu / sigma_p^2, and d/drho is s (sigma / sigma_p^2 - 1 / sigma) sigma'(rho)."""
    share = 0.25

    def gradients(prior: Any, likelihood_at: float, elbo: Any) -> list[Tensor]:
        model = BayesianNetwork(nn.Linear(1, 1, bias=False), prior, likelihoods.Normal(scale=0.5), N=1)
        guide = MeanFieldNormal(model.double(), init_loc=Constant(0.5), init_rho=2.0)
        x, y = torch.tensor([[likelihood_at]]).double(), torch.tensor([[3.0]]).double()
        with isolated(0):
            guide(x, y)
            descent = torch.optim.SGD(guide.parameters(), lr=0.0)
            step = ReferenceStep(model, guide, descent, elbo=elbo)
        with isolated(1):
            step.evaluate(x, y, share, 1.0)
        return [guide.loc.grad.clone(), guide.rho.grad.clone()]

    sigma, slope = math.log1p(math.exp(2.0)), 1 / (1 + math.exp(-2.0))
    at_zero = gradients(priors.Normal(sigma=0.7), 0.0, TraceMeanField_ELBO)  # where the data say nothing
    mu_gradient, rho_gradient = at_zero
    assert mu_gradient.item() == pytest.approx(share * 0.5 / 0.49, rel=1e-9)
    assert rho_gradient.item() == pytest.approx(share * (sigma / 0.49 - 1 / sigma) * slope, rel=1e-9)
    drawn = gradients(priors.Normal(sigma=0.7), 0.0, None)
    assert drawn[0].item() != pytest.approx(mu_gradient.item(), rel=1e-3)
    mixture = priors.ScaleMixture()  # has no closed form: the draw serves
    for one, other in zip(
        gradients(mixture, 2.0, TraceMeanField_ELBO), gradients(mixture, 2.0, None), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


KINDS = [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO, TraceEnum_ELBO]


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
def test_every_linear_elbo_has_the_papers_gradient(kind: Any, vectorize: bool) -> None:
    """KL, NLL and gradient have the expectations of the closed forms, as class and as instance."""
    given = {"elbo": kind, "samples": 3, "vectorize": vectorize}
    if vectorize:
        given = {"elbo": kind(num_particles=3, vectorize_particles=True)}  # of which Pyro knows no nesting
    seen, exact = steps_each_way(0.7, **given)
    assert len(seen) == 2 * 3 * 2
    torch.testing.assert_close(seen.mean(0), exact, rtol=1e-5, atol=1e-5)


def test_particles_of_a_partial_are_one_batch_if_that_is_asked_for() -> None:
    model, guide, x, y = conjugate()
    guide(x, y)
    calls: list[Any] = []
    model.register_forward_pre_hook(lambda module, given: calls.append(given))
    elbo = partial(Trace_ELBO, num_particles=3)
    with isolated(0):
        descent = torch.optim.SGD(guide.parameters(), lr=0.1)
        ReferenceStep(model, guide, descent, vectorize=True, elbo=elbo)(x, y, 1.0, 0.5)
    assert len(calls) == 1


@pytest.mark.parametrize("vectorize", [False, True])
def test_renyis_objective_is_that_of_the_whole_data_times_the_fraction(vectorize: bool) -> None:
    """With l = log p - log q at the draws, the gradient of -B/N log mean exp((1 - a) l) / (1 - a)."""
    alpha, samples, fraction = 0.5, 4, 0.5
    model, guide, x, y = conjugate()
    with isolated(0):
        guide(x, y)
        slope = Slope(guide.parameters())
        elbo = RenyiELBO(alpha, num_particles=samples, vectorize_particles=vectorize, max_plate_nesting=1)
        step = ReferenceStep(model, guide, slope, elbo=elbo)  # type: ignore[arg-type]
        torch.manual_seed(3)
        terms = step(x, y, fraction, fraction)
        torch.manual_seed(3)
        eps = torch.randn(samples, 2)
    mu, rho = (p.detach().clone().requires_grad_() for p in (guide.loc, guide.rho))
    sigma = nn.functional.softplus(rho)
    w = mu + sigma * eps
    log_q = torch.distributions.Normal(mu, sigma).log_prob(w).sum(1)
    log_p = torch.distributions.Normal(0.0, 1.0).log_prob(w).sum(1)
    nll = -torch.distributions.Normal(w @ x.T, 0.5).log_prob(y[:, 0]).sum(1)
    weights = log_p - log_q - nll / fraction
    bound = ((1 - alpha) * weights).logsumexp(0).sub(math.log(samples)) / (1 - alpha)
    exact = torch.autograd.grad(-fraction * bound, (mu, rho))
    for ours, theirs in zip(slope.gradients, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(terms.kl, (log_q - log_p).mean().detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(terms.nll, nll.mean().detach(), rtol=1e-4, atol=1e-4)
