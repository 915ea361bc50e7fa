"""Noise on the outputs of layers: unbiased against closed forms, less variance, and where it does not fit."""

from typing import Any

import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from engine_fakes import classes, network, normal, values
from pyrobbb import fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.agreement import gradients
from pyrobbb.accelerated.dispatch import make_step
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal
from step_cases import Case


class Sequences(nn.Module):
    """A linear layer at each place of a sequence, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.unflatten(1, (4, 3))).sum(1)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))[:, :2]


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.inner.weight.T + self.inner.bias


class Joined(nn.Module):
    """Two layers as one, as of queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = nn.Linear(12, 1, bias=False), nn.Linear(12, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.cat([self.inner.weight, self.other.weight]))


class Turned(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.inner.weight.T + self.inner.bias


class Parted(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.linear(x, part) for part in self.inner.weight.chunk(2)], 1) + self.inner.bias


class Reshaped(Sequences):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.reshape(-1, 3)).reshape(len(x), 4, 2).sum(1)


class TimeFirst(Sequences):
    """The steps of the sequence before its rows."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.unflatten(1, (4, 3)).transpose(0, 1)).sum(0)


class Keywords(nn.Module):
    """Two products, called by the names of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner = nn.Conv1d(1, 2, 3), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.conv1d(x[:, None], self.conv.weight, self.conv.bias, stride=2).flatten(1)
        return F.linear(input=inside, weight=self.inner.weight, bias=self.inner.bias)


LINEAR: dict[str, Any] = {  # networks whose output is linear in the weights
    "linear": lambda: nn.Linear(12, 2),
    "without_bias": lambda: nn.Linear(12, 2, bias=False),
    "sequence": Sequences,
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 2, 2, groups=1), nn.Flatten()),
    "transposed": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Flatten()
    ),
    "partly_drawn": lambda: nn.Sequential(nn.LayerNorm(12, bias=False)),
}


def made(net: nn.Module, data: Any, prior: priors.Prior | None = None, **options: Any) -> tuple[Any, Any]:
    """A step of a mean field whose widths are a fifth of a unit, and its model."""
    likelihood = (
        likelihoods.Categorical() if data.spec.task == "classification" else likelihoods.Normal(scale=0.5)
    )
    model = BayesianNetwork(net, prior or priors.Normal(sigma=0.7), likelihood, len(data.train))
    guide = MeanFieldNormal(model, init_rho=-1.5)
    guide()
    optimizer = torch.optim.SGD(guide.parameters(), lr=0.1)
    return make_step(model, guide, optimizer, data.train, fast="eager", **options), (model, guide)


def found_at(step: Any, rows: Split, noises: Any) -> tuple[Tensor, Tensor]:
    """F and its gradient at each of the noises: (draws,), (draws, P)."""
    each = [gradients(step, rows, noise) for noise in noises]
    slopes = [torch.cat([part.flatten() for part in parts]) for _, _, *parts in each]
    return torch.stack([kl + nll for kl, nll, *_ in each]), torch.stack(slopes)


@pytest.mark.parametrize("name", LINEAR)
def test_the_expectation_is_that_of_the_closed_form(name: str) -> None:
    """Output a + J w, Gaussian likelihood and prior: E F and its gradient are known.

    Both are quadratic in the noise: their mean over +-sqrt(n) in each of its n directions is the expectation.
    """
    net = LINEAR[name]()
    x = normal(6, 12)
    width = net(x).shape[1]
    data = values(6, features=12, outputs=width)
    step, (model, guide) = made(net, data, estimator="local")
    n = torch.Size(step.noise_shape).numel()
    steps = n**0.5 * torch.eye(n)
    F_, found = found_at(step, data.train, torch.cat([steps, -steps]).view(2 * n, *step.noise_shape))

    loc, rho = (value.detach().double().requires_grad_() for value in (guide.loc, guide.rho))
    original = {k: v.double() for k, v in guide.split(loc).items()}

    def outputs(flat: Tensor) -> Tensor:
        return functional_call(model.network, guide.split(flat), (data.train.x.double(),))

    J = jacrev(outputs)(loc.detach())  # (B, width, D)
    assert set(original) == set(model.sites)
    sigma = F.softplus(rho)
    variance = (J**2 * sigma**2).sum(-1)
    error = data.train.y.double() - outputs(loc)
    nll = ((error**2 + variance) / (2 * 0.25)).sum() + error.numel() * float(torch.tensor(0.5).log())
    nll = nll + 0.5 * error.numel() * float(torch.log(torch.tensor(2 * torch.pi)))
    kl = (torch.log(0.7 / sigma) + (sigma**2 + loc**2) / (2 * 0.49) - 0.5).sum()
    exact = torch.cat(torch.autograd.grad(nll + kl, (loc, rho)))
    for each, truth in ((F_, nll + kl), (found, exact)):
        torch.testing.assert_close(each.double().mean(0), truth.detach(), rtol=1e-5, atol=1e-4)


def test_the_gradient_varies_less_than_that_of_drawn_weights() -> None:
    """A perceptron on 128 rows: the variance that both leave to the likelihood, summed over the weights."""
    data = classes(128, features=20)
    net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
    variance = []
    for estimator in ("weights", "local"):
        step, _ = made(net, data, estimator=estimator)
        with isolated(5):
            _, found = found_at(step, data.train, (torch.randn(step.noise_shape) for _ in range(200)))
        variance.append(float(found.var(0).sum()))
    assert variance[1] < variance[0] / 10


def test_it_trains_compiled_as_uncompiled() -> None:
    """Under a learned prior with a KL in closed form, and a mixture, which has none; one layer compiles soon.

    The closed form of normal priors: tests/accelerated/test_program_step.py.
    """
    data = classes(50)
    prior = priors.PerParameter(
        default=priors.ScaleMixture(), where={"0.bias": priors.Learned(priors.Laplace())}
    )
    rows = []
    for fast in ("eager", "compiled"):
        model = BayesianNetwork(nn.Sequential(network(hidden=3)[-1]), prior, likelihoods.Categorical(), 50)
        posterior = fit(
            model, MeanFieldNormal(model), data, epochs=2, batch_size=20, samples=2, seed=4,
            estimator="local", fast=fast, device="cpu", progress=None,
        )  # fmt: skip
        rows.append(posterior.history.rows[-1].free_energy)
    assert rows[0] == pytest.approx(rows[1], rel=1e-4)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Twice(), "uses 'inner.bias' more than once"),
        (Bare(), "uses 'inner.(weight|bias)' in"),
        (Joined(), "uses 'inner.weight' in cat"),
        (Turned(), "uses 'inner.weight' in T"),
        (Parted(), "uses 'inner.weight' in chunk"),
        (Reshaped(), r"the layer of 'inner.weight' is called on 24 rows instead of 6"),
    ],
)
def test_what_it_would_get_wrong_is_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=rf"estimator='local' does not fit: .*{message}.*take 'weights'"):
        made(net, values(6, features=12), estimator="local")


class Wide(MeanFieldNormal):
    """Another sigma than its rho's."""

    @property
    def sigma(self) -> Tensor:
        return 3 * super().sigma


class Factor(BayesianNetwork):
    """With a factor of its own."""

    def forward(self, x: Any = None, y: Any = None) -> Any:
        pyro.factor("own", torch.tensor(-50.0))
        return super().forward(x, y)


@pytest.mark.parametrize(("kind", "make"), [(BayesianNetwork, Wide), (Factor, MeanFieldNormal)])
def test_a_model_or_guide_that_does_more_is_refused(kind: Any, make: Any) -> None:
    model = kind(nn.Linear(12, 2), priors.Normal(), likelihoods.Normal(0.5))
    data = values(6, features=12)
    why = "has a sample site of its own|has a sigma of its own"
    with pytest.raises(ValueError, match=rf"'local' does not fit: .*({why})"):
        fit(model, make, data, estimator="local", epochs=1, fast="eager", progress=None)


class Noisy(nn.Module):
    """Noise of its own, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.1 * torch.randn_like(x) if self.training else x)


def test_a_network_may_have_noise_of_its_own() -> None:
    dropped = nn.Sequential(nn.Dropout(0.5), nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    for net in (dropped, Noisy()):
        model = BayesianNetwork(net, priors.Normal(), likelihoods.Normal(0.5))
        data = values(6, features=12)
        fit(model, MeanFieldNormal, data, estimator="local", samples=2, epochs=1, fast="eager", progress=None)


def test_as_many_steps_as_rows_do_not_pass_for_rows() -> None:
    """The rows of a step would share their signs, and its noise would average out over the steps."""
    with pytest.raises(
        ValueError, match=r"does not fit: the layer of 'inner.weight' is called on 4 rows instead of 5"
    ):
        made(TimeFirst(), values(4, features=12), estimator="local")


def test_products_may_be_called_by_the_names_of_their_arguments() -> None:
    class Places(Keywords):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(F.conv1d(x[:, None], self.conv.weight, self.conv.bias, 2).flatten(1))

    found = []
    for net in (Keywords(), Places()):
        with isolated(0):
            for parameter in net.parameters():
                nn.init.normal_(parameter)
            step, _ = made(net, values(6, features=12), estimator="local")
            rows = values(6, features=12).train
            noise = torch.randn(step.noise_shape, generator=torch.Generator().manual_seed(1))
            found.append(found_at(step, rows, [noise]))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("fast", ["eager", "compiled"])
def test_another_guide_has_no_noise_on_the_outputs(fast: str) -> None:
    case = Case(priors.Normal(), make_guide=AutoNormal)
    with pytest.raises(ValueError, match=r"estimator='local' does not fit: the guide AutoNormal"):
        case.step(estimator="local", fast=fast)


@pytest.mark.parametrize("others", [{"fast": "off"}, {"elbo": "Trace"}, {"estimator": "exact"}])
def test_it_is_an_option_of_the_fast_path(others: dict[str, Any]) -> None:
    data = classes(12)
    model = BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical(), 12)
    with pytest.raises(ValueError, match=r"estimator|elbo"):
        fit(model, MeanFieldNormal(model), data, epochs=1, progress=None, **{"estimator": "local", **others})


def test_the_log_names_the_noise_of_each_layer() -> None:
    net = nn.Sequential(nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(20, 2))
    lines: list[str] = []
    made(net, values(6, features=12), estimator="local", log=lines.append)
    assert lines[0] == "local reparameterisation of 2 weights and biases, flipout of 2 weights and biases"


def test_tied_and_recurrent_weights_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x.unflatten(1, (4, 3)))[0][:, -1])

    lines: list[str] = []
    made(Recurrent(), values(6, features=12), estimator="local", log=lines.append)
    assert lines[0].startswith("local reparameterisation of 2 weights and biases; rnn.weight_ih_l0, ")
