"""The curvature against Hessians, and that it can be had of every layer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian

from architectures import Chain, last
from engine_fakes import classes, network, normal
from exact_models import NOISE, SIGMA, D, N, laplace, linear, softmax
from pyrobbb import likelihoods, priors
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.inference import Laplace
from pyrobbb.inference.curvature import output_factors
from pyrobbb.inference.laplace import linearised
from pyrobbb.posterior import Posterior


@pytest.mark.parametrize("layers", ["all", "last"])
def test_the_curvature_is_the_hessian_of_the_linearised_network(layers):
    model, data = softmax()
    full = laplace(model, data, structure="full", layers=layers)
    centre = full.split(full.loc.detach())
    view = linearised(model, centre, model.sites)

    def nll(flat: Tensor) -> Tensor:
        logits = view.apply_network(full.split(flat), data.x)
        return nn.functional.cross_entropy(logits, data.y, reduction="sum")

    H = hessian(nll)(full.loc.detach())[full.where][:, full.where] + torch.eye(len(full.where)) / 0.8**2
    covariance = full.curvature.scale_tril @ full.curvature.scale_tril.T
    torch.testing.assert_close(covariance, torch.linalg.inv(H), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(full.curvature.log_det(), torch.logdet(H), rtol=1e-4, atol=1e-3)
    diagonal = laplace(model, data, structure="diagonal", layers=layers)
    torch.testing.assert_close(diagonal.curvature.variance(), 1 / H.diagonal(), rtol=1e-4, atol=1e-5)


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
        laplace(
            BayesianNetwork(net, priors.Normal(), likelihoods.Categorical(), 10),
            Split(x, y),
            structure="kronecker",
        ).curvature.variance()
        for net in (conv, line)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_predictions_are_those_of_the_linearised_network(layers):
    model, data = softmax()
    guide = laplace(model, data, structure="full", layers=layers)
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
    _, data, _, _ = linear()
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


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_the_inverse_precision_is_the_covariance_of_the_draws(structure: str):
    """Of draws x, of covariance C, the mean of (v^T x)^2 is v^T C v."""
    data = classes().train
    guide = laplace(BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical(), 12), data,
                     structure=structure)  # fmt: skip
    v = normal(len(guide.where), seed=5)
    with isolated(0), torch.no_grad():
        drawn = torch.stack([guide.curvature.draw() for _ in range(4000)])
    found = float((drawn @ v).square().mean())
    assert float(v @ guide.curvature.solve(v)) == pytest.approx(found, rel=0.12)  # five standard deviations


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
