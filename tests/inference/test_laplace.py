"""Laplace: the posterior of a linear model, and what it refuses."""

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from architectures import Chain, last
from engine_fakes import normal
from exact_models import NOISE, SIGMA, D, N, laplace, linear, made_step
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Split
from pyrobbb.inference import MAP, Laplace, MCDropout
from pyrobbb.inference.method import Inference
from pyrobbb.posterior import Posterior
from pyrobbb.training.callbacks import Callback
from pyrobbb.training.trainer import fit


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_laplace_is_the_posterior_of_a_linear_model(structure):
    model, data, precision, mean = linear()
    guide = laplace(model, data, mean, structure=structure)
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
    guide = laplace(model, Split(torch.cat([x, s], 1), y), mode, structure=structure, layers=layers)
    torch.testing.assert_close(guide.curvature.variance()[0], 1 / precision, rtol=1e-5, atol=0)
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(N), SIGMA**2 * x @ x.T + s.square().diagflat()
    ).log_prob(y[:, 0])
    torch.testing.assert_close(guide.log_evidence, evidence, rtol=1e-5, atol=1e-3)


def _recurrent() -> nn.Module:
    """The features one after the other through an LSTM."""
    return Chain(nn.Unflatten(1, (D, 1)), nn.LSTM(1, 2, batch_first=True), last, nn.Linear(2, 1))


class _Spare(nn.Linear):
    """A layer beside it is computed, and left out."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.other = nn.Linear(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        self.other(x)
        return super().forward(x)


def test_a_layer_that_is_left_out_keeps_its_prior():
    _, data, _, _ = linear()
    model = BayesianNetwork(_Spare(D, 1), priors.Normal(sigma=SIGMA), likelihoods.Normal(NOISE), N)
    _, scale = laplace(model, data, structure="kronecker").loc_and_scale()
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


class _Rectified(likelihoods.Likelihood):
    """Of which the second derivative is 0 at f = 0, and not above."""

    def forward(self, output: Tensor) -> dist.Independent:
        return dist.Normal(output.relu(), output.new_tensor(0.3)).to_event(1)


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


class Steps(Callback):
    """Counts them."""

    taken = 0

    def on_step(self, view: Any, terms: Any) -> None:
        self.taken += 1


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
        (nn.Linear(D, 1), _Rectified(), {}, None),
        (nn.Sequential(nn.Linear(D, 1), nn.Unflatten(1, (1, 1))), None, {}, r"takes outputs \(B, K\)"),
    ],
)
def test_what_laplace_cannot_do_is_known_before_the_training(
    network: nn.Module,
    likelihood: likelihoods.Likelihood | None,
    options: dict[str, Any],
    message: str | None,
):
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


def test_a_step_leads_away_from_where_the_curvature_was_taken():
    model, data, *_ = linear()
    guide, step = made_step(Laplace(), model, data, 1)
    guide.fit(model, data)
    assert guide.loc_and_scale()[1]["weight"].all()
    step(data.x, data.y, 1.0, 1.0)
    assert not guide.loc_and_scale()[1]["weight"].any()
    assert torch.equal(guide.draw(), guide.loc)


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


class _HeadFirst(nn.Module):
    """The layer that is applied last is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 1), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class _Positions(nn.Module):
    """A parameter of the network's own beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(2))
        self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x + self.positions)))


@pytest.mark.parametrize("head_first", [False, True])
def test_a_last_layer_that_is_not_applied_last_is_told(head_first: bool, caplog: pytest.LogCaptureFixture):
    net = _HeadFirst() if head_first else nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    data = from_arrays(normal(8, 2), normal(8, 1, seed=1), task="regression")
    for each in [net] if head_first else [net, _Positions(), nn.Sequential(*net, nn.Softplus())]:
        model = BayesianNetwork(each, priors.Normal(), likelihoods.Normal(0.5))
        found = Laplace(structure="full", layers="last").around(model, data)
        assert not any(module._forward_hooks for module in found.model.modules())
    said = "layers='last' takes body.weight, body.bias, of the layer that the network registers last"
    assert (said in caplog.text) is head_first


def test_laplace_asks_for_normal_priors_of_the_layers_that_it_takes():
    data = from_arrays(normal(8, 3), normal(8, 1, seed=1), task="regression")
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    for law in (priors.Laplace(), priors.IID(dist.Uniform(-1.0, 1.0))):
        prior = priors.PerParameter(default=law, where={"2.*": priors.Normal()})
        model = BayesianNetwork(net, prior, likelihoods.Normal(0.5))
        last, every, steps = Laplace(layers="last"), Laplace(), Steps()
        with pytest.raises(ValueError, match=r"needs normal priors.*that of '0.weight'"):
            fit(model, None, data, inference=every, epochs=1, callbacks=[steps], progress=None)
        assert steps.taken == 0
        if isinstance(law, priors.Laplace):
            fit(model, None, data, inference=last, epochs=1, progress=None)
            last.around(model, data)
        else:
            with pytest.raises(ValueError, match=r"prior of '0\.weight' lives on"):
                last.around(model, data)


class _Narrowing(priors.Prior):
    """A narrower prior for each further input."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return dist.Normal(torch.zeros_like(parameter), 1 / torch.arange(1.0, D + 1)).to_event(2)


def test_a_matrix_of_several_prior_scales_has_no_kronecker_factors_which_is_known_before_the_training():
    _, data, precision, _ = linear()
    rows, steps = from_arrays(data.x, data.y, task="regression"), Steps()
    model = BayesianNetwork(nn.Linear(D, 1, bias=False), _Narrowing(), likelihoods.Normal(NOISE))
    with pytest.raises(ValueError, match="one prior scale for all of 'weight'; take 'diagonal'"):
        fit(model, None, rows, inference=Laplace(), epochs=1, callbacks=[steps], progress=None)
    assert steps.taken == 0
    guide: Any = Laplace(structure="diagonal").around(model, data).chains[0][1]
    exact = precision.diagonal() - 1 / SIGMA**2 + torch.arange(1.0, D + 1) ** 2
    torch.testing.assert_close(guide.curvature.variance(), 1 / exact)


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
