"""Each method against what is known exactly: conjugate posteriors, printed algorithms, Hessians."""

import copy
import math
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian
from torch.utils.data import DataLoader, TensorDataset

from architectures import Chain, last
from engine_fakes import StopsAt, classes, network, normal
from pyrobbb import likelihoods, priors
from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.network_checks import dropping, evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays, from_table
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.draws import NoWeights
from pyrobbb.evaluation.arviz_export import to_groups
from pyrobbb.evaluation.diagnostics import function_draws
from pyrobbb.inference import MAP, SGHMC, SWAG, Laplace, MCDropout, NaturalGradient, natural_gradient_step
from pyrobbb.inference.curvature import output_factors
from pyrobbb.inference.dropout import DropoutGuide
from pyrobbb.inference.laplace import LaplaceGuide, linearised
from pyrobbb.inference.method import Inference, check_warm_up
from pyrobbb.inference.swag import SWAGGuide
from pyrobbb.kl_weights import Full, Tempered, WarmUp
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.trainer import fit

N, D, NOISE, SIGMA = 50, 3, 0.5, 1.0


def _linear() -> tuple[BayesianNetwork, Split, Tensor, Tensor]:
    """A linear-Gaussian model, its data, and the exact posterior's precision and mean."""
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    x = normal(N, D) @ mix
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + NOISE * normal(N, 1, seed=1)
    model = BayesianNetwork(
        nn.Linear(D, 1, bias=False), priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE), N
    )
    precision = x.T @ x / NOISE**2 + torch.eye(D) / SIGMA**2
    return model, Split(x, y), precision, torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0]


def _step(
    method: Any, model: BayesianNetwork, data: Split, steps: int, fast: str = "eager", factor: float = 1.0
) -> tuple[Any, Any]:
    guide = method.guide(model, None)
    guide()
    optimizer = torch.optim.SGD([*guide.parameters(), *model.parameters()], lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: factor)
    return guide, method.step(model, guide, optimizer, data, steps=steps, fast=fast, log=print)


def test_the_maximum_a_posteriori_of_a_linear_model_is_its_posterior_mean():
    model, data, precision, mean = _linear()
    with isolated(0):
        guide, step = _step(MAP(), model, data, 3000)
        step.optimizer.param_groups[0]["lr"] = 1 / float(torch.linalg.eigvalsh(precision)[-1])
        for _ in range(300):
            terms = step(data.x, data.y, 1.0, 1.0)
    torch.testing.assert_close(guide.loc.detach(), mean, rtol=1e-4, atol=1e-4)
    log_P = model.prior_of("weight").log_prob(mean[None])
    torch.testing.assert_close(terms.kl, -log_P)


@pytest.mark.parametrize(
    "prior", [priors.Normal(sigma=0.7), priors.Laplace(scale=0.4), priors.Centred(sigma=2.0)]
)
@pytest.mark.parametrize("large", [1, D, 100_000])
def test_a_natural_gradient_step_is_the_printed_algorithm(prior, large, monkeypatch):
    monkeypatch.setattr(natural_gradient_step, "LARGE", large)
    _, data, _, _ = _linear()
    model = BayesianNetwork(nn.Linear(D, 1), prior, likelihoods.Normal(scale=NOISE), N)
    method = NaturalGradient(lr=0.3, beta1=0.8, beta2=0.9, h0=2.0, radius=1e6)
    is_normal = not isinstance(prior, priors.Laplace)
    B = 20
    x, y = data.x[:B].double(), data.y[:B].double()
    with isolated(0):
        guide, step = _step(method, model, data, 0)
        m = guide.loc.detach().double().clone()
        c = m.clone() if isinstance(prior, priors.Centred) else 0.0
        delta = 1 / (N * prior.sigma**2) if is_normal else 0.0
        h, g = torch.full_like(m, 2.0), torch.zeros_like(m)
        for t in range(1, 8):
            step.normals.draw = lambda t=t: step.normals.values.copy_(normal(D + 1, seed=t))
            terms = step(x.float(), y.float(), B / N, B / N)
            eps = normal(D + 1, seed=t).double() if t % 2 else -normal(D + 1, seed=t - 1).double()
            sigma = 1 / (N * (h + delta)).sqrt()
            w = (m + sigma * eps).requires_grad_()

            def log_p(w):
                if is_normal:
                    return torch.distributions.Normal(c, prior.sigma).log_prob(w).sum()
                return torch.distributions.Laplace(0.0, prior.scale).log_prob(w).sum()

            nll = -torch.distributions.Normal(x @ w[:D] + w[D], NOISE).log_prob(y[:, 0]).sum()
            loss = nll / B - (0.0 if is_normal else log_p(w) / N)
            (gradient,) = torch.autograd.grad(loss, w)
            kl = torch.distributions.Normal(m, sigma).log_prob(w).sum() - log_p(w)
            torch.testing.assert_close(terms.nll.double(), nll.detach(), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(terms.kl.double(), kl.detach(), rtol=1e-4, atol=1e-4)
            g = 0.8 * g + 0.2 * gradient
            hat = gradient * (w.detach() - m) / sigma**2
            h = 0.9 * h + 0.1 * hat + 0.5 * 0.1**2 * (h - hat) ** 2 / (h + delta)
            m = m - 0.3 * (g / (1 - 0.8**t) + delta * (m - c)) / (h + delta)
    torch.testing.assert_close(guide.loc.detach().double(), m, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        guide.scale.detach().double(), 1 / (N * (h + delta)).sqrt(), rtol=1e-3, atol=1e-5
    )


def test_a_compiled_natural_gradient_step_is_the_same(monkeypatch):
    """With weights and biases in one pass or in a pass each, and parameters of the prior that differ."""
    model = BayesianNetwork(nn.Linear(D, 3), priors.Centred(sigma=2.0), likelihoods.Categorical(), N)
    data = Split(normal(N, D), torch.arange(N) % 3)
    found = []
    for fast, large in (("eager", 100_000), ("compiled", 9)):
        monkeypatch.setattr(natural_gradient_step, "LARGE", large)
        with isolated(0):
            guide, step = _step(NaturalGradient(lr=0.3, beta2=0.9), model, data, 0, fast)
            assert [names for _, names in step.pieces] == (
                [["weight"], ["bias"]] if large == 9 else [["weight", "bias"]]
            )
            for _ in range(5):
                step(data.x, data.y, 1.0, 1.0)
        found.append(torch.cat([guide.loc.detach(), guide.scale.detach()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_schedule_scales_the_rate_of_natural_gradients_from_its_first_epoch_on():
    model, data, _, _ = _linear()

    def moved(lr: float, factor: float) -> Tensor:
        with isolated(0):
            guide, step = _step(NaturalGradient(lr=lr), model, data, 0, factor=factor)
            before = guide.loc.detach().clone()
            step(data.x, data.y, 1.0, 1.0)
            return guide.loc.detach() - before

    torch.testing.assert_close(moved(0.1, 0.5), moved(0.05, 1.0))
    assert not moved(0.1, 0.0).any()


def test_natural_gradients_refuse_an_optimiser_without_a_rate():
    model, data, _, _ = _linear()
    with pytest.raises(ValueError, match="optim has rate 0"):
        fit(model, None, from_arrays(data.x, data.y, task="regression"), inference=NaturalGradient(),
            optim=partial(torch.optim.SGD, lr=0.0), epochs=1, progress=None)  # fmt: skip


@pytest.mark.parametrize(("beta2", "few"), [(0.99, True), (0.95, False)])
def test_natural_gradients_say_if_the_steps_are_too_few_to_forget_the_start(beta2, few, caplog):
    data = from_arrays(torch.randn(4, 1), torch.randn(4, 1), task="regression")
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.5))
    fit(model, None, data, inference=NaturalGradient(beta2=beta2), epochs=50, progress=None)
    assert ("50 steps are too few to forget the first curvature" in caplog.text) is few


@pytest.mark.parametrize(("epochs", "left"), [(250, True), (1500, False)])
def test_natural_gradients_say_if_the_start_is_still_in_sigma(epochs, left, caplog):
    """Of a first precision of 5000 exp(-2.5) or exp(-15) is left, beside the 160 of 40 rows with sd 0.5."""
    data = from_arrays(torch.randn(40, 1), torch.randn(40, 1), task="regression")
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.5))
    fit(model, None, data, inference=NaturalGradient(beta2=0.99), epochs=epochs, progress=None)
    assert ("is still that of the start" in caplog.text) is left


def test_natural_gradients_reach_the_exact_mean_field_of_a_linear_model():
    model, data, precision, mean = _linear()
    sums = torch.zeros(2, D)
    with isolated(0):
        guide, step = _step(NaturalGradient(lr=0.05, beta2=0.995), model, data, 0)
        for i in range(3000):
            step(data.x, data.y, 1.0, 1.0)
            if i >= 1500:
                sums += torch.stack([guide.loc.detach(), guide.scale.detach().square()]) / 1500
    sd = precision.diagonal() ** -0.5
    assert float(((sums[0] - mean) / sd).abs().max()) < 0.15  # over 20 seeds: sd 0.028
    torch.testing.assert_close(sums[1].sqrt(), sd, rtol=0.085, atol=0.0)  # sd 0.016


def test_sghmc_draws_from_the_exact_posterior_of_a_linear_model():
    model, data, precision, mean = _linear()
    with isolated(0):
        guide, step = _step(SGHMC(lr=0.1, cycles=2, draws=150, exploring=0.1), model, data, 3000)
        for _ in range(3000):
            step(data.x, data.y, 1.0, 1.0)
    assert int(guide.kept) == len(guide.stored)
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    drawn = guide.stored
    assert float(((drawn.mean(0) - mean) / sd).abs().max()) < 0.5  # over 20 seeds: sd 0.087
    torch.testing.assert_close(drawn.std(0), sd, rtol=0.35, atol=0.0)  # mean 0.032, sd 0.055


@pytest.mark.parametrize(("B", "lr"), [(5, 0.02), (5, 1e-3), (N, 0.1)])
def test_sghmc_says_by_how_much_the_noise_of_minibatches_widens_its_draws(B, lr, caplog):
    model, data, _, mean = _linear()
    model.network.weight.data.copy_(mean)
    steps, draws, friction = 800, 400, 0.1
    method = SGHMC(lr=lr, friction=friction, cycles=1, draws=draws, exploring=0.5)
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    options = {"epochs": steps * B // N, "batch_size": B, "seed": 1, "fast": "eager", "progress": None}
    guide = fit(model, None, whole, inference=method, **options).chains[0][1]
    each = data.x * (data.y - data.x @ guide.stored.T).T[..., None] / NOISE**2  # gradients of each row
    V = N**2 / B * each.var(1).mean(1) * (1 - B / N)
    rates = [lr / N * (math.cos(math.pi * k / steps) + 1) / 2 for k in range(steps - draws, steps)]
    excess = float((torch.tensor(rates) * V).mean()) / (2 * friction)
    assert float(guide.excess.mean()) == pytest.approx(excess, rel=0.5)  # sd 0.08
    said = f"about {(1 + float(guide.excess.mean())) ** 0.5:.1f} times too large"
    assert (said in caplog.text) is (lr == 0.02)


def test_a_sampler_s_posterior_is_its_chain():
    model, data, _, _ = _linear()
    guides = []
    for start in (0.0, 5.0):  # a chain that drifts: every draw above the one before
        guide = SGHMC(cycles=2, draws=5).guide(model, None)
        for i in range(10):
            guide.keep(torch.full((D,), start + i))
        guides.append(guide)
    posterior = Posterior([(model, guide) for guide in guides])
    assert sorted(posterior.draw(10)["weight"][:, 0, 0].tolist()) == list(range(10))
    few = sorted(posterior.draw(4)["weight"][:, 0, 0].tolist())
    assert min(b - a for a, b in pairwise(few)) >= 1  # spread over the chain, none twice
    assert few[0] <= 2
    assert few[-1] >= 7
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    groups, _ = to_groups(posterior, whole, draws=10, weights=3)
    for c, start in enumerate((0.0, 5.0)):
        drawn = groups["posterior"]["weight"][c, :, 0]
        np.testing.assert_array_equal(drawn, start + np.arange(10))
        each = [model.log_likelihood({"weight": torch.full((1, D), float(w))}, data.x, data.y) for w in drawn]
        np.testing.assert_allclose(groups["log_likelihood"]["y"][c], torch.stack(each), rtol=1e-5, atol=1e-5)
    f = function_draws(posterior, data.x[:1], draws=10)[..., 0]
    slope = float(data.x[0].sum())
    np.testing.assert_allclose(f[0, :, 0], slope * np.arange(10), rtol=1e-5, atol=1e-5)


def _laplace(model: BayesianNetwork, data: Split, mode: Tensor | None = None, **options: Any) -> LaplaceGuide:
    guide = LaplaceGuide(Laplace(**options), model)
    if mode is not None:
        guide.loc.data.copy_(mode)
    guide.fit(model, data)
    return guide


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_laplace_is_the_posterior_of_a_linear_model(structure):
    model, data, precision, mean = _linear()
    guide = _laplace(model, data, mean, structure=structure)
    _, scale = guide.loc_and_scale()
    covariance = torch.linalg.inv(torch.diag(precision.diagonal()) if structure == "diagonal" else precision)
    torch.testing.assert_close(scale["weight"][0], covariance.diagonal().sqrt(), rtol=1e-4, atol=1e-6)
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.draw() for _ in range(4000)])
    torch.testing.assert_close(torch.cov(drawn.T), covariance, rtol=0.0, atol=0.12 * float(covariance.max()))
    if structure != "diagonal":
        evidence = torch.distributions.MultivariateNormal(
            torch.zeros(N), SIGMA**2 * data.x @ data.x.T + NOISE**2 * torch.eye(N)
        ).log_prob(data.y[:, 0])
        torch.testing.assert_close(guide.log_evidence, evidence, rtol=1e-5, atol=1e-3)


class _Beside(nn.Module):
    """A line, with the second column of x beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.line(x[:, :1]), x[:, 1:]], -1)


class _KnownNoise(likelihoods.Likelihood):
    """Normal noise of the standard deviation that the network passes on."""

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output[:, :1], output[:, 1:]).to_event(1)


@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_laplace_is_exact_beside_a_noise_that_the_network_passes_on(structure: str, layers: str):
    x, s = normal(N, 1).sign(), 0.3 + normal(N, 1, seed=1).abs()  # x^2 is 1, so that Kronecker's is exact
    y = x + s * normal(N, 1, seed=2)
    model = BayesianNetwork(_Beside(), priors.Normal(sigma=SIGMA), _KnownNoise(), N)
    precision = s.pow(-2).sum() + SIGMA**-2
    mode = (x * y / s**2).sum() / precision
    guide = _laplace(model, Split(torch.cat([x, s], 1), y), mode, structure=structure, layers=layers)
    torch.testing.assert_close(guide.curvature.variance()[0], 1 / precision, rtol=1e-5, atol=0)
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(N), SIGMA**2 * x @ x.T + s.square().diagflat()
    ).log_prob(y[:, 0])
    torch.testing.assert_close(guide.log_evidence, evidence, rtol=1e-5, atol=1e-3)


def _softmax() -> tuple[BayesianNetwork, Split]:
    data = classes()
    return BayesianNetwork(network(), priors.Normal(sigma=0.8), likelihoods.Categorical(), 12), data.train


@pytest.mark.parametrize("layers", ["all", "last"])
def test_the_curvature_is_the_hessian_of_the_linearised_network(layers):
    model, data = _softmax()
    full = _laplace(model, data, structure="full", layers=layers)
    centre = full.split(full.loc.detach())
    view = linearised(model, centre, model.sites)

    def nll(flat: Tensor) -> Tensor:
        logits = view.apply_network(full.split(flat), data.x)
        return nn.functional.cross_entropy(logits, data.y, reduction="sum")

    H = hessian(nll)(full.loc.detach())[full.where][:, full.where] + torch.eye(len(full.where)) / 0.8**2
    covariance = full.curvature.scale_tril @ full.curvature.scale_tril.T
    torch.testing.assert_close(covariance, torch.linalg.inv(H), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(full.curvature.log_det(), torch.logdet(H), rtol=1e-4, atol=1e-3)
    diagonal = _laplace(model, data, structure="diagonal", layers=layers)
    torch.testing.assert_close(diagonal.curvature.variance(), 1 / H.diagonal(), rtol=1e-4, atol=1e-5)


def test_kronecker_factors_are_the_moments_of_inputs_and_gradients():
    model, data = _softmax()
    guide = _laplace(model, data, structure="kronecker", layers="last")
    w = model.initial()
    hidden = torch.tanh(nn.functional.linear(data.x, w["0.weight"], w["0.bias"]))
    logits = nn.functional.linear(hidden, w["2.weight"], w["2.bias"])
    p = logits.softmax(-1)
    B = (torch.diag_embed(p) - p[:, :, None] * p[:, None]).sum(0)
    A = hidden.T @ hidden / len(data)
    weight = torch.linalg.inv(torch.kron(B, A) + torch.eye(12) / 0.8**2)
    bias = torch.linalg.inv(B + torch.eye(3) / 0.8**2)
    expected = torch.cat([weight.diagonal(), bias.diagonal()])
    torch.testing.assert_close(guide.curvature.variance(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        guide.curvature.log_det(), -torch.logdet(weight) - torch.logdet(bias), rtol=1e-4, atol=1e-3
    )


def test_kronecker_factors_are_finite_where_most_units_are_dead():
    """Rows of zeros in between gave NaN for about one in fifteen of these in single precision."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(691, 50, generator=draw)
    for seed in range(60):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.ReLU(), nn.Linear(50, 1))
        model = BayesianNetwork(body, priors.Normal(), likelihoods.Normal(scale=0.1), N=len(x))
        alive = torch.rand(50, generator=draw) < 0.16
        guide = LaplaceGuide(Laplace(), model)
        guide.fit(model, Split(x * alive, x[:, :1]))
        assert guide.draw().isfinite().all(), seed
        assert guide.log_evidence.isfinite()


def test_the_curvature_of_a_certain_classifier_is_finite():
    """Probabilities of 0 gave NaN for a third of these in single precision."""
    draw = torch.Generator().manual_seed(0)
    model = BayesianNetwork(nn.Linear(2, 10), priors.Normal(), likelihoods.Categorical(), N=64)
    for _ in range(30):
        output = 60 * torch.randn(64, 10, generator=draw)
        moved = torch.ones(64, 10, dtype=torch.bool)
        factors = output_factors(model, output, Split(output, output.argmax(-1)), moved)
        p = output.softmax(-1)
        exact = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        torch.testing.assert_close(factors @ factors.mT, exact, rtol=1e-5, atol=1e-5)


def test_a_convolution_of_one_position_has_the_curvature_of_the_linear_map():
    x, y = normal(10, 2, 3, 3), torch.arange(10) % 2
    conv = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten())
    line = nn.Sequential(nn.Flatten(), nn.Linear(18, 2))
    line[1].load_state_dict({"weight": conv[0].weight.flatten(1), "bias": conv[0].bias})
    found = [
        _laplace(
            BayesianNetwork(net, priors.Normal(), likelihoods.Categorical(), 10),
            Split(x, y),
            structure="kronecker",
        ).curvature.variance()
        for net in (conv, line)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_predictions_are_those_of_the_linearised_network(layers):
    model, data = _softmax()
    guide = _laplace(model, data, structure="full", layers=layers)
    posterior = Posterior([(model, guide)])
    prediction = posterior.predict(data.x, draws=5)
    mode = guide.split(guide.loc.detach())
    with evaluating(model), torch.no_grad():
        probs = []
        for draw in posterior.each_draw(5):
            f = model.apply_network(mode, data.x).double()
            step = {n: draw[n] - mode[n] for n in mode}
            small = {n: mode[n].double() + 1e-4 * step[n].double() for n in mode}
            exact = model.apply_network({n: v.double() for n, v in small.items()}, data.x.double())
            base = model.apply_network({n: v.double() for n, v in mode.items()}, data.x.double())
            probs.append((f + (exact - base) / 1e-4).softmax(-1))
    torch.testing.assert_close(prediction.probs.double(), torch.stack(probs).mean(0), rtol=1e-3, atol=1e-3)


def test_attention_is_linearised():
    """In evaluation it takes torch's fused kernels, which have no derivative in forward mode."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    net = nn.Sequential(nn.Unflatten(1, (3, 4)), layer, nn.Flatten(), nn.Linear(12, 1)).double()
    model, x = BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), normal(5, 12, dtype=torch.float64)
    mode = {name: value.double() for name, value in model.initial().items()}
    drawn = {name: value + normal(2, *value.shape, dtype=torch.float64) for name, value in mode.items()}
    with evaluating(model), torch.no_grad():
        found = linearised(model, mode, model.sites).apply_network(drawn, x)
        for s in range(2):
            ahead, behind = (
                model.apply_network({n: v + h * (drawn[n][s] - v) for n, v in mode.items()}, x)
                for h in (1e-5, -1e-5)
            )
            slope = (ahead - behind) / 2e-5
            torch.testing.assert_close(found[s], model.apply_network(mode, x) + slope, rtol=1e-6, atol=1e-6)
    assert torch.backends.mha.get_fastpath_enabled()


class _Scaled(nn.Module):
    """A linear map times a number."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.scale = nn.Linear(D, 1), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x) * self.scale


def test_a_single_number_is_a_weight_of_laplace_s():
    """Its Jacobian is the linear map, beside those of the matrix and the bias."""
    _, data, _, _ = _linear()
    model = BayesianNetwork(_Scaled(), priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE), N)
    weights = model.initial()
    ahead = data.x @ weights["l.weight"].T + weights["l.bias"]
    slopes = {"l.weight": 2 * data.x, "l.bias": torch.full((N, 1), 2.0), "scale": ahead}
    J = torch.cat([slopes[name] for name in model.sites], 1)
    precision = J.T @ J / NOISE**2 + torch.eye(D + 2) / SIGMA**2
    for structure, variance in (
        ("full", precision.inverse().diagonal()),
        ("diagonal", 1 / precision.diagonal()),
    ):
        guide = Laplace(structure=structure).guide(model, None)
        guide.fit(model, data)
        torch.testing.assert_close(guide.curvature.variance(), variance, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="needs matrices and vectors, but 'scale' is a single number; take"):
        Laplace().guide(model, None)


def _recurrent() -> nn.Module:
    """The features one after the other through an LSTM."""
    return Chain(nn.Unflatten(1, (D, 1)), nn.LSTM(1, 2, batch_first=True), last, nn.Linear(2, 1))


class _Tied(nn.Linear):
    """An autoencoder whose decoder is the encoder's transpose."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.weight


class _Inner(nn.Linear):
    """A layer for all places of all rows at once."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, 1)).reshape(len(x), -1)


class _Spare(nn.Linear):
    """A layer beside it is computed, and left out."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.other = nn.Linear(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        self.other(x)
        return super().forward(x)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (_Tied(D, 2, bias=False), "each parameter used once, .* 'weight' is used in matmul; take 'diagonal'"),
        (_Inner(1, 1), f"that of 'weight' is called on {N * D} instead of {N}; take 'diagonal'"),
    ],
)
def test_kronecker_factors_of_what_they_do_not_describe_are_refused(network: nn.Module, message: str):
    _, data, _, _ = _linear()
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(NOISE), N)
    with pytest.raises(ValueError, match=message):
        _laplace(model, Split(data.x, data.x), structure="kronecker")


def test_a_layer_that_is_left_out_keeps_its_prior():
    _, data, _, _ = _linear()
    model = BayesianNetwork(_Spare(D, 1), priors.Normal(sigma=SIGMA), likelihoods.Normal(NOISE), N)
    _, scale = _laplace(model, data, structure="kronecker").loc_and_scale()
    torch.testing.assert_close(scale["other.weight"], torch.full((1, D), SIGMA))
    assert bool((scale["weight"] < 0.9 * SIGMA).all())


class _Slope(nn.Linear):
    """The derivative of an energy by its input, which the layer takes itself."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = torch.tanh(super().forward(x)).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0][:, :1]


class _Sharp(likelihoods.Likelihood):
    """Laplace noise: the second derivative of |y - f| is 0, and the posterior would be the prior."""

    def forward(self, output: Tensor) -> dist.Independent:
        return dist.Laplace(output, output.new_tensor(0.3)).to_event(1)


class _Packed(nn.Module):
    """Packed sequences, which torch does not linearise, not even where the last layer alone is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.last = nn.GRU(D, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0] > 0).long()
        pairs = nn.utils.rnn.pack_padded_sequence(
            torch.stack([x, x], 1), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out: Tensor = self.last(self.gru(pairs)[1][-1])
        return out


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("network", "likelihood", "options", "message"),
    [
        (
            _recurrent(),
            None,
            {},
            r"torch cannot linearise .*linearised=False\), .* inference.linearised=false, .*layers='last'",
        ),
        (
            _recurrent(),
            None,
            {"structure": "kronecker"},
            "used once, .* take 'diagonal'",
        ),
        (
            _recurrent(),
            None,
            {"structure": "kronecker", "linearised": False},
            "used once, .* take 'diagonal'",
        ),
        (_Slope(D, 1), None, {}, r"torch cannot linearise this network \(You are attempting to call"),
        (_Slope(D, 1), None, {"linearised": False}, None),
        (_recurrent(), None, {"linearised": False}, None),
        (_recurrent(), None, {"layers": "last"}, None),
        (_Packed(), None, {"layers": "last"}, "torch cannot linearise .* with the network itself$"),
        (nn.Linear(D, 1), _Sharp(), {}, "_Sharp has no second derivative"),
        (nn.Sequential(nn.Linear(D, 1), nn.Unflatten(1, (1, 1))), None, {}, r"takes outputs \(B, K\)"),
    ],
)
def test_what_laplace_cannot_do_is_known_before_the_training(
    network: nn.Module,
    likelihood: likelihoods.Likelihood | None,
    options: dict[str, Any],
    message: str | None,
):
    class Steps(Callback):
        taken = 0

        def on_step(self, view: Any, terms: Any) -> None:
            self.taken += 1

    x, steps, laplace = normal(10, D), Steps(), Laplace(**{"structure": "diagonal", **options})
    y = x[:, :1, None] if isinstance(network, nn.Sequential) else x[:, :1]
    data = from_arrays(x, y, task="regression")

    def fitted(inference: Inference) -> Posterior:
        model = BayesianNetwork(network, priors.Normal(), likelihood or likelihoods.Normal(scale=NOISE))
        return fit(model, None, data, inference=inference, epochs=1, callbacks=[steps], progress=None)

    if message is None:
        assert fitted(laplace).predict(x).mean.shape == (10, 1)
        return
    with pytest.raises(ValueError, match=message):
        fitted(laplace)
    assert steps.taken == 0
    with pytest.raises(ValueError, match=message):
        laplace.around(fitted(MAP()), data.train)


def test_laplace_goes_around_any_fitted_posterior():
    model, data, precision, _ = _linear()
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    point = fit(model, None, whole, inference=MAP(), epochs=2, progress=None)
    posterior = Laplace(structure="full").around(point, data)
    _, scale = posterior.chains[0][1].loc_and_scale()
    torch.testing.assert_close(
        scale["weight"][0], torch.linalg.inv(precision).diagonal().sqrt(), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(posterior.mean_weights()["weight"], point.mean_weights()["weight"])
    two = Posterior(point.chains * 2, chain_weights=(0.75, 0.25))
    assert Laplace(structure="full").around(two, data).chain_weights == (0.75, 0.25)
    of_whole = Laplace(structure="full").around(point, whole)
    assert torch.equal(of_whole.chains[0][1].log_evidence, posterior.chains[0][1].log_evidence)
    for rows, reason in ((data.head(N - 1), f"all N={N} training rows, got {N - 1}"), (data.x, "or a Split")):
        with pytest.raises(ValueError, match=reason):
            Laplace().around(point, rows)
    points = BayesianNetwork(nn.Linear(D, 1), priors.Deterministic(), likelihoods.Normal(0.1), N)
    for given in (Posterior([(points, NoWeights())]), points):
        with pytest.raises(ValueError, match="no Bayesian weights"):
            Laplace().around(given, data)
    table = from_table(
        {"a": data.x[:, 0].tolist(), "y": data.y[:, 0].tolist()}, target="y", task="regression"
    )
    of_table = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.1))
    assert Laplace().around(of_table, table).predict({"a": [0.5]}, draws=3).mean.shape == (1, 1)


@pytest.mark.parametrize(
    ("rows", "likelihood", "message"),
    [
        ((torch.ones(5, 2), torch.full((5,), 3)), likelihoods.Bernoulli(), "needs targets that are 0 or 1"),
        ((torch.ones(5, 2), torch.full((5, 1), 1.5)), likelihoods.Poisson(), "1.5 in row 0 is outside"),
        (
            (torch.ones(5, 2), torch.full((5, 1), math.nan)),
            likelihoods.Normal(1.0),
            "5 values are not finite",
        ),
        ((torch.full((5, 2), math.nan), torch.ones(5, 1)), likelihoods.Normal(1.0), "x holds nan in row 0"),
        ((torch.ones(5, 2), torch.ones(4, 1)), likelihoods.Normal(1.0), "x and y differ in length"),
        (
            (torch.ones(5, 2), torch.ones(5, 1), torch.ones(6)),
            likelihoods.Normal(1.0),
            "weights must have the",
        ),
    ],
)
def test_laplace_goes_around_no_rows_that_a_fit_would_refuse(rows: Any, likelihood: Any, message: str):
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihood)
    with pytest.raises(ValueError, match=message):
        Laplace(structure="diagonal").around(model, Split(*rows))


def test_laplace_goes_around_a_network_that_was_trained_elsewhere():
    """Its weights are taken as they are, and the curvature there is that of the linear model."""
    _, data, precision, mean = _linear()
    trained = nn.Linear(D, 1, bias=False)
    trained.weight.data.copy_(mean)
    model = BayesianNetwork(trained, priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE))
    posterior = Laplace(structure="full").around(model, data)
    torch.testing.assert_close(posterior.mean_weights()["weight"], trained.weight.detach())
    covariance = torch.linalg.inv(precision)
    _, scale = posterior.chains[0][1].loc_and_scale()
    torch.testing.assert_close(scale["weight"][0], covariance.diagonal().sqrt(), rtol=1e-4, atol=1e-6)
    prediction = posterior.predict(data.x, data.y, draws=2000)
    expected = ((data.x @ covariance) * data.x).sum(1).sqrt()  # five standard deviations of 2000 draws
    torch.testing.assert_close(prediction.means.std(0)[:, 0], expected, rtol=0.08, atol=0)


@pytest.mark.parametrize(("scale", "told"), [(None, True), (NOISE, False)])
def test_a_noise_that_laplace_keeps_is_told_where_residuals_are_another(
    scale: float | None, told: bool, caplog: Any
):
    """A noise that is to be learned starts at 1."""
    x = normal(200, D)
    net = nn.Linear(D, 1)
    y = net(x).detach() + NOISE * normal(200, 1, seed=1)
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(scale=scale))
    Laplace(structure="full").around(model, Split(x, y))
    assert ("around keeps the noise as it is; give its scale=" in caplog.text) == told


def test_swag_has_the_moments_of_its_snapshots():
    model, _ = _softmax()
    guide = SWAG(snapshots=6, rank=3).guide(model, None)
    assert isinstance(guide, SWAGGuide)
    snapshots = normal(6, len(guide.loc))
    for snapshot in snapshots:
        guide.loc.data.copy_(snapshot)
        guide.collect()
    means = torch.stack([snapshots[: i + 1].mean(0) for i in range(6)])
    columns = (snapshots - means)[3:]
    variance = snapshots.var(0, unbiased=False) / 2 + columns.square().sum(0) / 4
    loc, scale = guide.loc_and_scale()
    torch.testing.assert_close(torch.cat([v.flatten() for v in loc.values()]), snapshots.mean(0))
    torch.testing.assert_close(torch.cat([v.flatten() for v in scale.values()]), variance.sqrt())
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.draw() for _ in range(8000)])
    covariance = torch.diag(snapshots.var(0, unbiased=False) / 2) + columns.T @ columns / 4
    torch.testing.assert_close(torch.cov(drawn.T), covariance, rtol=0.0, atol=0.1 * float(covariance.max()))


def test_dropout_masks_the_inputs_of_hidden_layers_alone():
    model, _ = _softmax()
    guide = MCDropout(p=0.25).guide(model, None)
    with isolated(0), torch.no_grad():
        drawn = [guide.split(guide.draw()) for _ in range(4000)]
    assert all(torch.equal(one["0.weight"], guide.split(guide.loc)["0.weight"]) for one in drawn[:10])
    kept = torch.stack([one["2.weight"] for one in drawn]) != 0
    assert bool((kept == kept[:, :1]).all())  # one mask for all outputs
    assert abs(float(kept.float().mean()) - 0.75) < 5 * (0.75 * 0.25 / 16000) ** 0.5
    loc, scale = guide.loc_and_scale()
    every = torch.stack([one["2.weight"] for one in drawn])
    error = scale["2.weight"] / math.sqrt(4000)
    assert bool(((every.mean(0) - loc["2.weight"]).abs() <= 5 * error + 1e-6).all())
    torch.testing.assert_close(every.std(0), scale["2.weight"], rtol=0.1, atol=1e-6)


class _Positions(nn.Module):
    """Two layers after a buffer with two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.zeros(3, 2))
        self.l, self.o = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.relu(self.l(x + self.positions[0])))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_layer_whose_inputs_dropout_leaves_is_the_first_weight_matrix(frozen: bool):
    """A buffer of the network's own is no weight; a frozen layer is one."""
    net = nn.Sequential(nn.Linear(2, 2), _Positions()) if frozen else _Positions()
    if frozen:
        net[0].requires_grad_(False)
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal())
    guide = MCDropout().guide(model, None)
    assert list(guide.masked) == (["1.l.weight", "1.o.weight"] if frozen else ["o.weight"])


class _Tokens(nn.Module):
    """A token of its own before what the data become."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)
        self.token = nn.Parameter(torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) + self.token)


def test_a_token_is_no_matrix_whose_inputs_are_dropped():
    """By the order of parameters it is the first, and the layer that takes the data would have a mask."""
    guide = MCDropout().guide(BayesianNetwork(_Tokens(), priors.Normal(), likelihoods.Normal()), None)
    assert list(guide.masked) == ["last.weight"]


class _Dense(nn.Module):
    """A layer of one's own, with its activation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix, self.act = nn.Parameter(torch.randn(outputs, inputs)), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x @ self.matrix.T)


def test_a_layer_of_ones_own_has_a_matrix_whose_inputs_are_dropped():
    net = nn.Sequential(_Dense(2, 3), _Dense(3, 4), nn.Linear(4, 1))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    assert list(guide.masked) == ["1.matrix", "2.weight"]


class _Adapted(nn.Module):
    """A frozen layer with an addition of low rank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.A, self.B = nn.Parameter(torch.randn(1, inputs)), nn.Parameter(torch.randn(outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


@pytest.mark.parametrize("more", [False, True])
def test_matrices_without_masks_are_named(more: bool, caplog: pytest.LogCaptureFixture):
    """In the error, if there are no others."""
    net = nn.Sequential(_Adapted(2, 3), nn.Linear(3, 1) if more else nn.Tanh())
    data = from_arrays(normal(8, 2), normal(8, 1 if more else 3, seed=1), task="regression")
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal())
    words = "MCDropout has no mask for 0.A, 0.B: in a module that holds layers"
    with nullcontext() if more else pytest.raises(ValueError, match=words):
        fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)
    assert (words in caplog.text) is more


class _Table(nn.Module):
    """Layers, and a table with a dimension for the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)
        self.positions = nn.Parameter(torch.zeros(1, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x)[:, None] + self.positions).mean(1))


def test_tokens_and_positions_are_no_matrices_without_a_mask(caplog: pytest.LogCaptureFixture):
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    model = BayesianNetwork(_Table(), priors.Normal(), likelihoods.Normal())
    (_, guide), *_ = fit(model, None, data, inference=MCDropout(), epochs=1, progress=None).chains
    assert list(guide.masked) == ["last.weight"]
    assert "has no mask" not in caplog.text


def test_dropout_leaves_the_data_in_both_directions():
    net = nn.GRU(3, 4, num_layers=2, bidirectional=True)
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    inputs = [name for name in guide.masked if "weight_ih" in name]
    assert inputs == ["weight_ih_l1", "weight_ih_l1_reverse"]


class _Unused(nn.Sequential):
    """Its last layer is not used."""

    def forward(self, x: Tensor) -> Tensor:
        return self[0](x)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_laplace_of_a_layer_that_is_not_used_is_refused(structure: str):
    net = _Unused(nn.Linear(2, 1), nn.Linear(2, 1))
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5))
    with pytest.raises(ValueError, match=r"does not depend on 1\.weight, 1\.bias: take layers='all'"):
        Laplace(structure=structure, layers="last").around(model, data)


def _positive() -> BayesianNetwork:
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
    for parameter in net.parameters():
        parameter.data.fill_(0.5)
    return BayesianNetwork(net, priors.IID(dist.HalfNormal(1.0)), likelihoods.Normal(scale=1.0))


@pytest.mark.parametrize("method", [SWAG(), MCDropout()])
def test_baselines_on_the_line_refuse_weights_that_are_not(method: Any):
    data = from_arrays(normal(8, 1), normal(8, 1, seed=1), task="regression")
    with pytest.raises(ValueError, match=r"whole real line, but the prior of '0.weight' lives"):
        fit(_positive(), None, data, inference=method, epochs=2, progress=None)


def test_dropout_masks_the_inputs_where_they_come_first_and_no_parametrised_matrix():
    net = nn.Sequential(nn.Conv1d(2, 6, 1), nn.ConvTranspose1d(6, 5, 2))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    assert guide.masked == {"1.weight": (6, 1, 1)}
    wrapped = nn.Sequential(nn.Linear(2, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)))
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    model = BayesianNetwork(wrapped, priors.Normal(), likelihoods.Normal())
    with pytest.raises(ValueError, match="original0 is a part of which torch makes"):
        fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)


def test_dropout_masks_each_input_of_a_grouped_convolution():
    """Of a depthwise one a single mask had dropped all channels at once."""
    net = nn.Sequential(nn.Linear(1, 1), nn.Conv1d(4, 8, 1, groups=2))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.split(guide.draw())["1.weight"] for _ in range(2000)])[..., 0] != 0
    inputs = drawn.unflatten(1, (2, 4))  # (draws, groups, outputs, inputs of a group)
    assert bool((inputs == inputs[:, :, :1]).all())
    together = torch.corrcoef(inputs[:, :, 0].flatten(1).T.float()) - torch.eye(4)
    assert float(together.abs().max()) < 5 / 2000**0.5


def test_swag_s_variance_survives_single_precision_far_from_zero():
    guide = SWAG().guide(BayesianNetwork(nn.Linear(50, 1), priors.Normal(), likelihoods.Normal()), None)
    with isolated(0):
        course = 1 + 1e-4 * torch.randn(30, guide.loc.numel())
    for theta in course:
        guide.loc.data.copy_(theta)
        guide.collect()
    exact = course.double().var(0, correction=0)
    torch.testing.assert_close(guide.diagonal.double(), exact, rtol=0.02, atol=0)


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_the_inverse_precision_is_the_covariance_of_the_draws(structure: str):
    """Of draws x, of covariance C, the mean of (v^T x)^2 is v^T C v."""
    data = classes().train
    guide = _laplace(BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical(), 12), data,
                     structure=structure)  # fmt: skip
    v = normal(len(guide.where), seed=5)
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.curvature.draw() for _ in range(4000)])
    found = float((drawn @ v).square().mean())
    assert float(v @ guide.curvature.solve(v)) == pytest.approx(found, rel=0.12)  # five standard deviations


@pytest.mark.parametrize(
    ("method", "most"), [(SGHMC(cycles=1, draws=5), 0), (SWAG(snapshots=5, rank=2, start=0.5), 5)]
)
def test_no_draw_is_kept_while_the_kl_warms_up(method: Any, most: int):
    model, data, *_ = _linear()
    split = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    options: dict[str, Any] = {"inference": method, "epochs": 10, "batch_size": 5, "progress": None}
    late = Tempered(temperature=1.0, then=WarmUp(epochs=max(2, most + 1)))
    with pytest.raises(ValueError, match="draws while the KL warms up"):
        fit(model, None, split, kl=late, **options)
    for epochs in {1, max(1, most)}:  # a warm-up of one epoch is none
        fit(model, None, split, kl=WarmUp(epochs=epochs), **options)


def test_a_share_of_the_epochs_is_not_rounded_down():
    check_warm_up(SWAG(), WarmUp(epochs=29), 0.29 * 100)
    with pytest.raises(ValueError, match="at most 29 of its epochs"):
        check_warm_up(SWAG(), WarmUp(epochs=30), 0.29 * 100)


@pytest.mark.parametrize(
    ("method", "kl", "at"),
    [
        (Laplace(), WarmUp(epochs=5), {"epoch": 2}),
        (MAP(), WarmUp(epochs=5), {"epoch": 2}),
        (MAP(), Tempered(temperature=1.0, then=WarmUp(epochs=5)), {"step": 15}),  # of ten an epoch
    ],
    ids=["laplace", "map", "within an epoch of a warm-up within"],
)
def test_a_training_that_stops_within_its_warm_up_says_so(
    method: Any, kl: Any, at: dict[str, int], caplog: pytest.LogCaptureFixture
):
    model, data, *_ = _linear()
    split = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    options: dict[str, Any] = {"batch_size": 5, "epochs": 5, "progress": None}
    fit(model, None, split, inference=method, kl=kl, callbacks=[StopsAt(**at)], **options)
    assert (
        "only 0.4 of its full weight at the end: the warm-up takes 5 epochs and the fit had 2" in caplog.text
    )


@pytest.mark.parametrize("bias", [True, False])
def test_the_last_layer_holds_the_weights_that_are_tied_into_it(bias: bool):
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(5, 3), nn.Linear(3, 3)
            self.out = nn.Linear(3, 5, bias=bias)
            self.out.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.hidden(self.embedding(x[:, 0]))))

    model = BayesianNetwork(Decoder(), priors.Normal(), likelihoods.Categorical())
    assert model.last_layer == ["embedding.weight", "out.bias"][: 1 + bias]
    assert BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical()).last_layer == [
        "2.weight", "2.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("kl", [Tempered(temperature=20.0), Full(), WarmUp(epochs=9)])
def test_laplace_refuses_a_kl_that_does_not_count_once(kl: Any):
    """Its mode would be that of one target, and its curvature another's."""
    model, data, *_ = _linear()
    split = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    with pytest.raises(ValueError, match="Laplace takes the curvature of the posterior itself"):
        fit(model, None, split, inference=Laplace(), kl=kl, epochs=3, progress=None)
    fit(model, None, split, inference=Laplace(), kl=WarmUp(epochs=2), epochs=3, progress=None)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (lambda: [nn.GRU(2, 3, batch_first=True), last, nn.Linear(3, 1)], (5, 4, 2)),
        (lambda: [nn.Linear(2, 4), nn.PReLU(), nn.Linear(4, 1)], (5, 2)),
    ],
    ids=["gru", "prelu"],
)
def test_the_curvature_of_layers_that_torch_cannot_batch(layers: Any, shape: tuple[int, ...]):
    with isolated(0):
        network, x = Chain(*layers()), torch.randn(shape)
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(scale=0.5), 5)
    guide = Laplace(structure="full", linearised=False).guide(model, None)
    guide.fit(model, Split(x, torch.zeros(5, 1)))
    weights = [value.detach().clone().requires_grad_() for value in model.initial().values()]
    total = torch.eye(guide.loc.numel(), dtype=torch.float64)
    for row in x:
        output = model.apply_network(dict(zip(model.sites, weights, strict=True)), row[None])
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(output.sum(), weights)]).double()
        total += torch.outer(slope, slope) / 0.5**2
    variance = torch.cat([v.flatten() for v in guide.loc_and_scale()[1].values()]).double().square()
    torch.testing.assert_close(variance, total.inverse().diagonal(), rtol=1e-4, atol=1e-6)


def test_the_last_cycle_of_sghmc_keeps_no_draw_from_before_its_noise():
    model, data, *_ = _linear()
    with pytest.raises(ValueError, match="leave 14 to the last, too few with noise for its 10 draws"):
        _step(SGHMC(cycles=30, draws=10), model, data, 1000)


@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0])
@pytest.mark.parametrize("centred", [False, True])
def test_the_evidence_of_a_linear_model_is_exact_wherever_it_is_taken(scale: float, centred: bool):
    """Also around weights that are no mode, and where the data leave a direction free."""
    _, data, *_ = _linear()
    x = torch.cat([data.x, torch.zeros(N, 1)], 1).double()  # a dead input
    net = nn.Linear(D + 1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.5, 1.0, -1.0, 1.0]]))
    prior = priors.Centred(sigma=SIGMA) if centred else priors.Normal(sigma=SIGMA)
    model = BayesianNetwork(net, prior, likelihoods.Normal(scale=NOISE))
    posterior = Laplace(structure="full", prior_scale=scale).around(model, Split(x, data.y.double()))
    mean = (x @ net.weight[0] if centred else torch.zeros(N)).detach().double()
    covariance = (scale * SIGMA) ** 2 * x @ x.T + NOISE**2 * torch.eye(N).double()
    exact = torch.distributions.MultivariateNormal(mean, covariance).log_prob(data.y[:, 0].double())
    torch.testing.assert_close(posterior.chains[0][1].log_evidence, exact, rtol=1e-6, atol=1e-6)
    assert model.N is None, "the user's own"
    assert posterior.model.N == N


def test_laplace_goes_around_a_network_with_the_rows_of_a_loader():
    _, data, *_ = _linear()
    model = BayesianNetwork(nn.Linear(D, 1), priors.Normal(sigma=SIGMA), likelihoods.Normal(scale=NOISE))
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=3, shuffle=True)
    found, wanted = (Laplace().around(model, rows).chains[0][1] for rows in (loader, data))
    assert torch.equal(found.log_evidence, wanted.log_evidence)


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize("weight", [-3.0, -1.0])
def test_counts_far_from_a_mode_are_told(structure: str, weight: float, caplog: Any):
    """A step of the diagonal overshoots by many powers of ten under a logarithmic link."""
    x = 1 + torch.rand(100, 2)
    model = BayesianNetwork(nn.Linear(2, 1), priors.Normal(sigma=10.0), likelihoods.Poisson())
    with torch.no_grad():
        for parameter in model.initial().values():
            parameter.fill_(weight)
    Laplace(structure=structure).around(model, Split(x, torch.full((100, 1), 20.0)))
    assert "not at a mode of log p(D, w)" in caplog.text


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize(("sds", "told"), [(6.0, True), (1.0, False)])
def test_weights_off_the_mode_are_told_where_blocks_do_not_see_it(
    structure: str, sds: float, told: bool, caplog: Any
):
    """Along the weakest direction, where weight and bias are correlated; of rows that count 1000 times too,
    whose log-likelihood is large."""
    x = torch.linspace(1, 2, 60).double()[:, None]
    y, design = 2 * x - 1 + 0.5 * torch.sin(40 * x), torch.cat([x, torch.ones_like(x)], 1)
    for count in (1.0, 1000.0):
        precision = count / 0.25 * design.T @ design + torch.eye(2)
        values, vectors = torch.linalg.eigh(precision)
        at = torch.linalg.solve(precision, count / 0.25 * design.T @ y)[:, 0]
        at = at + sds * vectors[:, 0] / values[0].sqrt()
        net = nn.Linear(1, 1).double()
        with torch.no_grad():
            net.weight.fill_(at[0])
            net.bias.fill_(at[1])
        caplog.clear()
        rows = Split(x, y, torch.full((60,), count))
        Laplace(structure=structure).around(
            BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5)), rows
        )
        assert ("not at a mode" in caplog.text) == told


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_evidence_does_not_turn_on_a_padding_row(structure: str):
    def evidence(padding: float) -> float:
        table = nn.Embedding(3, 1, padding_idx=0).double()
        with torch.no_grad():
            table.weight.copy_(torch.tensor([[padding], [1.0], [-1.0]]))
        x = torch.tensor([[1], [2]] * 10)
        y = table(x).detach()[:, 0] + 0.1
        net = nn.Sequential(table, nn.Flatten())
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5), 20)
        guide = Laplace(structure=structure).around(model, Split(x, y)).chains[0][1]
        return float(guide.log_evidence)

    assert evidence(5.0) == pytest.approx(evidence(0.0), abs=1e-6)


@pytest.mark.parametrize(("N", "h0", "sigma"), [(50, None, 0.01), (50_000, None, 0.01), (50, 2.0, 0.1)])
def test_sigma_starts_alike_whatever_the_number_of_rows(N: int, h0: float | None, sigma: float):
    """1 / sqrt(5000 + 5000) under a prior of precision 5000, or 1 / sqrt(N (h0 + delta)), 100 = 50 * 2."""
    prior = priors.Normal(sigma=5000**-0.5 if h0 is None else 1e6)
    model = BayesianNetwork(nn.Linear(1, 1), prior, likelihoods.Normal(scale=1.0), N)
    guide, _ = _step(NaturalGradient(h0=h0), model, Split(torch.ones(5, 1), torch.ones(5, 1)), 0)
    torch.testing.assert_close(guide.sigma, torch.full((2,), sigma), rtol=1e-4, atol=0)


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_the_evidence_of_labels_is_that_of_probabilities_far_from_a_mode(structure: str, caplog: Any):
    """Steps along the data's slope, measured by part of the curvature, had promised thousands of nats."""
    z = torch.randn(500, 1)
    x, y = z + 0.1 * torch.randn(500, 50), (z[:, 0] + 0.3 * torch.randn(500) > 0).long()
    net = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 2))  # not trained
    model = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Categorical())
    posterior = Laplace(structure=structure).around(model, Split(x, y))
    assert posterior.chains[0][1].log_evidence < 0
    assert "not at a mode of log p(D, w): steps towards one gain" in caplog.text


@pytest.mark.parametrize("scale", [0.05, 0.2, 3.0])
def test_a_scaled_prior_around_the_mode_is_that_prior_s_posterior(scale: float):
    """Of a linear model: the same mode, and the exact covariance and evidence of the other prior."""
    model, data, _, mean = _linear()
    narrow = Laplace(structure="full", prior_scale=scale).guide(model.double(), None)
    prior, likelihood = priors.Normal(sigma=scale * SIGMA), likelihoods.Normal(scale=NOISE)
    other = BayesianNetwork(nn.Linear(D, 1, bias=False).double(), prior, likelihood, N)
    same = Laplace(structure="full").guide(other, None)
    for guide, of in ((narrow, model), (same, other)):
        guide.loc.data.copy_(mean)
        guide.fit(of, Split(data.x.double(), data.y.double()))
    torch.testing.assert_close(narrow.curvature.scale_tril, same.curvature.scale_tril)
    x, y = data.x.double(), data.y[:, 0].double()
    covariance = (scale * SIGMA) ** 2 * x @ x.T + NOISE**2 * torch.eye(N).double()
    exact = torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance).log_prob(y)
    torch.testing.assert_close(narrow.log_evidence, exact, rtol=1e-4, atol=1e-3)
    with pytest.raises(ValueError, match="prior_scale must be"):
        Laplace(prior_scale=0.0)


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
@pytest.mark.parametrize("scale", [0.001, 0.3, 2.0])
@pytest.mark.parametrize("weight", [1.5, 6.0])
def test_the_evidence_of_labels_under_a_scaled_prior_is_the_integral(
    structure: str, scale: float, weight: float
):
    """Near the mode under the prior that found it and elsewhere, where one quadratic tells neither."""
    x = torch.linspace(-2, 2, 40)[:, None]
    y = (x[:, 0] + 0.5 * torch.cos(20 * x[:, 0]) > 0).long()
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, weight)
    model = BayesianNetwork(net, priors.Normal(sigma=1.0), likelihoods.Bernoulli())
    around = Laplace(structure=structure, prior_scale=scale).around(model, Split(x, y))
    z = torch.linspace(-8, 8, 2001).double()
    signs = 2 * y.double() - 1
    scores = nn.functional.logsigmoid(signs * x[:, 0].double() * scale * z[:, None]).sum(1)
    exact = (scores - z.square() / 2).logsumexp(0) + math.log(16 / 2000) - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(around.chains[0][1].log_evidence.double(), exact, rtol=0, atol=2.0)


def test_laplace_asks_for_normal_priors_of_the_layers_that_it_takes():
    data = from_arrays(normal(8, 3), normal(8, 1, seed=1), task="regression")
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    for law in (priors.Laplace(), priors.IID(dist.Uniform(-1.0, 1.0))):
        prior = priors.PerParameter(default=law, where={"2.*": priors.Normal()})
        model = BayesianNetwork(net, prior, likelihoods.Normal(0.5))
        last, every = Laplace(layers="last"), Laplace()
        with pytest.raises(ValueError, match=r"needs normal priors.*that of '0.weight'"):
            fit(model, None, data, inference=every, epochs=1, progress=None)
        if isinstance(law, priors.Laplace):
            fit(model, None, data, inference=last, epochs=1, progress=None)
            last.around(model, data)
        else:
            with pytest.raises(ValueError, match=r"prior of '0\.weight' lives on"):
                last.around(model, data)


@pytest.mark.parametrize("by", ["gradient", "em"])
def test_laplace_goes_around_a_posterior_whose_prior_was_learned(by: str):
    _, data, *_ = _linear()
    prior = priors.Learned(priors.Normal(), by=by)
    model = BayesianNetwork(nn.Linear(D, 1, bias=False), prior, likelihoods.Normal(NOISE), N)
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    learned = fit(model, MeanFieldNormal, whole, epochs=2, progress=None)
    _, scale = Laplace(structure="full").around(learned, data).chains[0][1].loc_and_scale()
    sigma = univariate(learned.model.prior_of("weight")).scale.detach().flatten()
    precision = data.x.T @ data.x / NOISE**2 + torch.eye(D) / sigma**2
    torch.testing.assert_close(
        scale["weight"][0], torch.linalg.inv(precision).diagonal().sqrt(), rtol=1e-4, atol=1e-6
    )


def test_settings_that_fit_exactly_are_not_rounded_away():
    model, data, *_ = _linear()
    assert _step(SWAG(start=0.9, snapshots=10, rank=2), model, data, 100)[1].due == set(range(91, 101))
    _, step = _step(SGHMC(exploring=0.55, draws=45, cycles=1), model, data, 100)
    assert step.keeps == [set(range(55, 100))]
    assert step.quiet == 55


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_laplace_is_the_same_under_autocast(structure: str):
    data = from_arrays(normal(20, 3), normal(20, 1, seed=1), task="regression")
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model, laplace = (
        BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5)),
        Laplace(structure=structure),
    )
    plain = laplace.around(model, data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = laplace.around(model, data)
        assert found.predict(data.train.x, draws=2).mean.isfinite().all()
        drawn = found.draw(2)
    assert torch.equal(found.chains[0][1].log_evidence, plain.chains[0][1].log_evidence)
    for name, value in plain.draw(2).items():
        assert torch.equal(drawn[name], value)


@pytest.mark.parametrize("p", [0.2, 0.0])
def test_dropout_of_the_network_s_own_would_act_in_training_alone(p: float):
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(p), nn.Linear(3, 1))
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    for given in (net, copy.deepcopy(net).eval()):
        model = BayesianNetwork(given, priors.Normal(), likelihoods.Normal())
        refused = given.training and p > 0
        with pytest.raises(ValueError, match=r"layer '1' \(Dropout\)") if refused else nullcontext():
            fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)


def test_dropout_within_a_layer_would_act_in_training_alone_too():
    """It is no layer of its own there, but a number."""
    within = [nn.LSTM(2, 2, 2, dropout=0.1, batch_first=True), nn.MultiheadAttention(2, 1, dropout=0.1)]
    assert [path for path, _ in dropping(nn.Sequential(nn.LSTM(2, 2), *within))] == ["1", "2"]
    data = from_arrays(normal(8, 3, 2), normal(8, 1, seed=1), task="regression")
    model = BayesianNetwork(Chain(within[0], last, nn.Linear(2, 1)), priors.Normal(), likelihoods.Normal())
    with pytest.raises(ValueError, match=r"layer 'modules_.0' \(LSTM\) would drop"):
        fit(model, None, data, inference=MCDropout(), epochs=1, progress=None)


def test_no_gain_of_a_normalisation_is_a_matrix_whose_inputs_are_dropped():
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm([4, 3]), nn.Linear(3, 1))
    guide = MCDropout().guide(BayesianNetwork(net, priors.Normal(), likelihoods.Normal()), None)
    assert list(guide.masked) == ["2.weight"]


def test_a_step_takes_the_masks_of_the_guide_s_own_draw():
    class Undropped(DropoutGuide):
        def draw(self) -> torch.Tensor:
            return self.loc

    guide = Undropped(BayesianNetwork(nn.Linear(2, 1), priors.Normal(), likelihoods.Normal()), 0.5)
    assert guide.at() is guide.loc


def test_kronecker_counts_rows_that_no_weights_move():
    """Of one output the product is exact: a precision of sum x^2 / sigma^2 + 1, also where a row is 0."""
    model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.Normal(1.0))
    x = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    guide = Laplace(structure="kronecker").around(model, Split(x, torch.ones(4, 1))).chains[0][1]
    assert guide.loc_and_scale()[1]["weight"].item() == pytest.approx(0.5**0.5)
