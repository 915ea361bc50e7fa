"""What would make a posterior wrong without a word: trained after all, refused, or said."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from torch import Tensor, nn

from engine_fakes import normal
from pyrobbb import BayesianNetwork, MeanFieldNormal, Posterior, Training, fit, likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.random_state import isolated
from pyrobbb.checkup import check
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset
from pyrobbb.evaluation.arviz_export import to_arviz, to_groups
from pyrobbb.inference import MAP, NUTS, SGHMC, Inference, Laplace, NaturalGradient
from pyrobbb.inference.ensemble import stacked
from pyrobbb.training.trainer import NonFiniteLossError

N = 60


def rows() -> Dataset:
    x = normal(N, 1)
    return from_arrays(x, 3 * x + 0.3 * normal(N, 1, seed=1), task="regression")


def train(network: nn.Module | None = None, prior: Any = None, likelihood: Any = None, **options: Any) -> Any:
    model = BayesianNetwork(
        network or nn.Linear(1, 1), prior or priors.Normal(), likelihood or likelihoods.Normal(scale=0.3)
    )
    guide = options.pop("guide", MeanFieldNormal)
    return fit(model, guide, rows(), **{"epochs": 2, "progress": None, "device": "cpu", **options})


@pytest.mark.parametrize(("fast", "chains"), [("auto", 1), ("auto", 2), ("compiled", 1), ("off", 1)])
def test_a_prior_is_trained_by_gradients_on_every_path(fast: str, chains: int) -> None:
    """Also where the likelihood's gradient is so much larger that the prior's is lost beside it."""
    posterior = train(
        prior=priors.Learned(priors.Normal(), by="gradient"), likelihood=likelihoods.Normal(scale=0.01),
        optim=partial(torch.optim.Adam, lr=0.03), fast=fast, epochs=1, batch_size=N, chains=chains,
    )  # fmt: skip
    for model, _ in posterior.chains:
        for p in model.prior.parameters():  # from 0: Adam's first step is as long as its rate
            torch.testing.assert_close(p.detach().abs(), torch.full_like(p, 0.03), rtol=1e-3, atol=0)


class ByName(likelihoods.Likelihood):
    """A noise scale that is a parameter of Pyro's store, and no module's."""

    def forward(self, output: Tensor) -> Any:
        scale = pyro.param("noise", torch.tensor(1.0), constraint=dist.constraints.positive)
        return dist.Normal(output, scale).to_event(1)


class Loose(likelihoods.Likelihood):
    """A noise scale that is a tensor with a gradient, and no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros((), requires_grad=True)]

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, self.kept[0].exp()).to_event(1)


class Centred(likelihoods.Likelihood):
    """The rows of a batch have a common mean."""

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output - output.mean(-2, keepdim=True), 0.3).to_event(1)


class Reference(nn.Module):
    """Reaches its layer's weight by a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.weights = [self.layer.weight]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weights[0].T + self.layer.bias


class Amortised(PyroModule):
    """Draws weights from another distribution when it sees x."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__()
        self.sites = model.initial()
        self.loc = nn.Parameter(torch.zeros(()))

    def forward(self, x: Any = None, y: Any = None) -> None:
        shift = 0.0 if x is None else x.mean()
        for name, value in self.sites.items():
            centre = (self.loc + shift).expand(value.shape)
            pyro.sample(name, dist.Normal(centre, 1.0).to_event(value.dim()))


class Constant(nn.Linear):
    """A layer whose output carries no gradient."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class ByParameters(nn.Module):
    """Goes through whatever parameters a list has: of drawn weights, none."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.ParameterList([nn.Parameter(torch.full((1, 1), 2.0))]), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.each.parameters():
            x = x @ weight
        out: Tensor = self.last(x)
        return out


class CountsHalf(BayesianNetwork):
    """A likelihood that counts half."""

    def forward(self, x: Any = None, y: Any = None) -> Any:
        with pyro.poutine.scale(scale=0.5):
            return super().forward(x, y)


class Running(nn.Linear):
    """Divides by a running mean of |x|, which moves in training."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("size", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.size.lerp_(x.detach().abs().mean(0), 0.1)
        return super().forward(x / self.size)


class AlwaysNoisy(nn.Linear):
    """Noise that is on in evaluation, too; no two calls agree, as by dropout they may."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (0.5 + torch.rand_like(x)))


def sample(network: nn.Module, method: Inference) -> Any:
    return train(network, guide=None, inference=method, epochs=8)


class Measured(priors.Prior):
    """Its scale was measured besides, which predictions of other methods than svi would leave out."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        pyro.sample(f"{name}_seen", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))
        return dist.Normal(torch.zeros(parameter.shape), 1.0).to_event(parameter.dim())


def measured() -> BayesianNetwork:
    return BayesianNetwork(nn.Linear(1, 1), Measured(), likelihoods.Normal(scale=0.3))


def counts_half() -> CountsHalf:
    return CountsHalf(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(scale=0.3))


def half_counted(method: Inference) -> Any:
    return fit(counts_half(), None, rows(), inference=method, epochs=1, progress=None)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: train(ByParameters()), r"different output with drawn weights .* not read parameters\(\)"),
        (
            lambda: half_counted(MAP()),
            "MAP assumes the model is its prior times its likelihood, but CountsHalf has",
        ),
        (
            lambda: half_counted(NUTS()),
            "NUTS assumes the model is its prior times its likelihood, but CountsHalf has",
        ),
        (
            lambda: fit(measured(), None, rows(), inference=MAP(), epochs=1, progress=None),
            "BayesianNetwork also observes '(weight|bias)_seen': use svi",
        ),
        (lambda: half_counted(NaturalGradient()), "NaturalGradient assumes the model is its prior times"),
        (lambda: Laplace().around(counts_half(), rows()), "Laplace assumes the model is its prior times"),
        (lambda: sample(Running(), SGHMC(cycles=1, draws=1)), "the network changes with each call in train"),
        (
            lambda: sample(nn.Sequential(nn.Linear(1, 9), nn.Dropout(0.5), nn.Linear(9, 1)), SGHMC()),
            "the network changes with each call in training, as by dropout",
        ),
        (
            lambda: sample(AlwaysNoisy(1, 1), NUTS(warmup=1, draws=4)),
            "one energy for one draw of the weights, but two calls",
        ),
        (lambda: train(likelihood=ByName()), "depends on noise, which is not a parameter of its modules"),
        (lambda: train(likelihood=Loose()), r"depends on a tensor of shape \(\)"),
        (lambda: train(likelihood=Centred()), "likelihood of a row depends on the other rows"),
        (lambda: train(Reference()), r"depends on a tensor of shape \(1, 1\).*call the layer"),
        (lambda: train(guide=Amortised), "draws a different 'weight' when given data"),
        (lambda: train(Constant()), "output does not depend on weight, bias: .* forward detaches"),
    ],
)
def test_what_would_not_be_trained_is_refused(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize(
    ("network", "method"),
    [
        (Running().eval(), SGHMC(cycles=1, draws=1)),
        (nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.5), nn.Linear(2, 1)).eval(), SGHMC(cycles=1, draws=1)),
        (Running(), NUTS(warmup=1, draws=4)),  # which samples in evaluation mode
    ],
)
def test_samplers_take_networks_that_stay_as_they_are(network: nn.Module, method: Inference) -> None:
    assert sample(network, method).draw(1)


class Slope(nn.Module):
    """The derivative by x of an energy, tanh(w x + b), which is w (1 - tanh^2)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = torch.tanh(self.inner(x)).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return slope


def test_a_network_may_differentiate_by_its_input() -> None:
    posterior, x = train(Slope()), normal(5, 1, seed=2)
    weights = posterior.draw(3)
    w, b = weights["inner.weight"], weights["inner.bias"][:, None]
    exact = w * (1 - torch.tanh(x * w + b).square())
    torch.testing.assert_close(posterior.predict(x, draws=3).means, exact)


class Detached(nn.Module):
    """Its first layer's output carries no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).detach())
        return out


def test_weights_that_never_reach_the_output_are_named(caplog: pytest.LogCaptureFixture) -> None:
    train(Detached())
    assert "does not depend on first.weight, first.bias" in caplog.text
    caplog.clear()
    train()
    assert "does not depend" not in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"optim": torch.optim.AdamW}, True),
        ({"optim": partial(torch.optim.SGD, lr=1e-4, weight_decay=0.1), "inference": MAP()}, True),
        ({"optim": partial(torch.optim.AdamW, weight_decay=0)}, False),
        ({"optim": torch.optim.AdamW, "inference": NaturalGradient()}, False),  # which steps by itself
    ],
    ids=["mean field", "point", "none", "natural gradient"],
)
def test_a_weight_decay_beside_the_prior_is_named(
    options: dict[str, Any], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    train(**({"guide": None} if "inference" in options else {}), **options)
    assert ("has weight_decay=" in caplog.text) == told


@pytest.mark.parametrize(
    ("dtype", "lost"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, True)]
)
def test_steps_that_half_precision_loses_are_told(
    dtype: torch.dtype, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Adam's first steps are as long as its rate, 0.001, and numbers beside 4.5 are 0.004 or more apart."""
    given = rows().train
    data = from_arrays(given.x, given.y, task="regression", dtype=dtype)
    model = BayesianNetwork(nn.Linear(1, 1).to(dtype), priors.Normal(), likelihoods.Normal(scale=0.3))
    guide = MeanFieldNormal(model, init_rho=-4.5)  # at -5 powers of sigma are 0 in float16
    adam = partial(torch.optim.Adam, eps=1e-4)  # as the usual 1e-8 is there
    fit(model, guide, data, epochs=2, optim=adam, progress=None, device="cpu")
    assert torch.equal(guide.rho, torch.full_like(guide.rho, -4.5)) == lost
    assert ("rounds away steps" in caplog.text) == lost


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # in one batch, and one after the other
def test_what_all_chains_share_is_told_once(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    given = rows().train
    data = from_arrays(1000 * given.x, given.y, task="regression", dtype=dtype)

    def make() -> BayesianNetwork:
        return BayesianNetwork(nn.Linear(1, 1).to(dtype), priors.Normal(), likelihoods.Normal(scale=0.3))

    options: dict[str, Any] = {"optim": torch.optim.AdamW, "epochs": 1, "progress": None, "device": "cpu"}
    fit(make, MeanFieldNormal, data, chains=3, **options)
    assert caplog.text.count("x is not scaled") == 1
    assert caplog.text.count("has weight_decay=") == 1
    assert caplog.text.count("rounds away steps") == (dtype == torch.bfloat16)


@pytest.mark.parametrize(
    ("end", "likelihood", "width", "word"),
    [
        (nn.Softmax(-1), likelihoods.Categorical(), 3, "softmax"),
        (nn.Sigmoid(), likelihoods.Bernoulli(), 1, "sigmoid"),
        (nn.LogSoftmax(-1), likelihoods.Categorical(), 3, ""),
        (nn.Identity(), likelihoods.Categorical(), 3, ""),
        (nn.Identity(), likelihoods.Bernoulli(), 1, ""),
    ],
)
def test_probabilities_in_place_of_logits_are_named(
    end: nn.Module, likelihood: Any, width: int, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    x = normal(N, 2)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long() * (width == 3)
    model = BayesianNetwork(nn.Sequential(nn.Linear(2, width), end), likelihood=likelihood)
    data = from_arrays(x, labels, task="classification")
    fit(model, MeanFieldNormal, data, epochs=1, progress=None, device="cpu")
    found = [r.getMessage() for r in caplog.records if "probabilities" in r.getMessage()]
    assert [f"remove the {word}" in line for line in found] == ([True] if word else [])


class OneNumber(likelihoods.Likelihood):
    """A distribution over numbers, not over rows of one number."""

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output[..., 0], 0.3)

    def encode(self, y: Tensor) -> Tensor:
        return y[..., 0]


@pytest.mark.parametrize("likelihood", [OneNumber(), likelihoods.Normal(scale=0.3)])
def test_targets_of_either_shape_are_scored_alike(likelihood: Any) -> None:
    """They are never broadcast against the prediction."""
    posterior, data = train(likelihood=likelihood, epochs=30), rows()
    prediction = posterior.predict(data.train.x, data.train.y)
    column, flat = data.train.y, data.train.y[:, 0]
    expected = prediction.losses(column)
    assert expected.shape == (N,)
    for y in (flat, flat.numpy(), flat.tolist()):
        assert torch.equal(prediction.losses(y), expected)
        assert prediction.metrics(y) == prediction.metrics(column)
    with pytest.raises(ValueError, match="y must have the shape of the prediction"):
        prediction.losses(flat[:-1])


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (lambda x: x, ""),
        (lambda x: x + 100, "x is not centred: feature 1 lies around"),
        (lambda x: 0.01 * x, "x is not scaled: feature 0 has a standard deviation of"),
        (lambda x: 0 * x + 1, ""),  # constant
    ],
)
def test_features_on_other_scales_are_named(
    column: Callable[[Tensor], Tensor], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = normal(N, 1)
    data = from_arrays(torch.cat([one, column(normal(N, 1, seed=2))], 1) / 8, one, task="regression")
    model = BayesianNetwork(nn.Linear(2, 1), likelihood=likelihoods.Normal(scale=0.3))
    fit(model, MeanFieldNormal, data, epochs=1, progress=None, device="cpu")
    found = [record.getMessage() for record in caplog.records if "x is not" in record.getMessage()]
    assert [words in line for line in found] == ([True] if words else [])


def test_the_default_prior_keeps_the_functions_size_at_every_width() -> None:
    """Its standard deviation over draws, within a factor of 2; under one width for all weights it grows."""
    sizes = []
    for width in (20, 400):
        network = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 1))
        model = BayesianNetwork(network, likelihood=likelihoods.Normal(0.1))
        prior = Posterior([(model, model)])
        sizes.append(float(prior.predict(torch.ones(1, 1), draws=300).means.std()))
    assert 0.5 < sizes[1] / sizes[0] < 2
    with pytest.raises(ValueError, match=r"likelihood must be a pyrobbb\.likelihoods.*got None"):
        BayesianNetwork(nn.Linear(1, 1))


class Wider(priors.Prior):
    """A prior of one's own, without a representation that shows its number."""

    def __init__(self, width: float) -> None:
        self.width = width

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return dist.Normal(torch.zeros_like(parameter), self.width).to_event(parameter.dim())


class Scaled(likelihoods.Likelihood):
    """A likelihood of one's own with a constant."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, output: Tensor) -> Any:
        return dist.Normal(output, self.noise).to_event(1)


def test_own_parts_with_other_constants_are_other_parts(tmp_path: Path) -> None:
    posterior = train(prior=Wider(1.0), likelihood=Scaled(0.3), folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"prior Wider\(width=1.0\), this is Wider\(width=2.0\)"):
        train(prior=Wider(2.0), likelihood=Scaled(0.3), folder=tmp_path)
    posterior.save(tmp_path)
    model = BayesianNetwork(nn.Linear(1, 1), Wider(1.0), Scaled(0.9))
    with pytest.raises(CheckpointError, match="another set of constants in the likelihood"):
        Posterior.load(tmp_path, model, MeanFieldNormal(model))


class Mixing(nn.Module):
    """Rows less their mean, before layers that may hide it where they start."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x - x.mean(0))


def zero() -> nn.Linear:
    layer = nn.Linear(1, 1)
    nn.init.zeros_(layer.weight)
    return layer


@pytest.mark.parametrize(
    ("last", "alike"), [(zero, False), (partial(nn.Linear, 1, 1), True)], ids=["zeros", "equal rows"]
)
def test_mixed_rows_are_found_where_nothing_shows(last: Callable[[], nn.Module], alike: bool) -> None:
    model = BayesianNetwork(Mixing(last()), priors.Normal(), likelihoods.Normal(0.3))
    data = rows()
    x = data.train.x.clone()
    x[:4] = x[0] if alike else x[:4]
    data = from_arrays(x, data.train.y, task="regression")
    with pytest.raises(ValueError, match="the network's output for a row depends on the other rows"):
        fit(model, MeanFieldNormal, data, epochs=1, progress=None)
    assert model.N is None  # another table may be fitted


def test_networks_whose_rows_stay_apart_are_taken() -> None:
    for layer in (nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Dropout(0.5), nn.Identity()):
        train(nn.Sequential(nn.Linear(1, 4), layer, nn.Linear(4, 1)), epochs=1)


def test_no_prior_is_learned_in_vain() -> None:
    for prior in (priors.Horseshoe(), priors.PerParameter(default=priors.Learned(priors.Normal()))):
        with pytest.raises(ValueError, match="prior must be one with fixed parameters"):
            priors.Learned(prior)


def test_a_parameter_may_be_called_as_a_dictionary_s_method() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = nn.Parameter(torch.ones(1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.values

    posterior = train(Own(), prior=priors.Learned(priors.Normal()))
    (prior,) = posterior.model.learned
    assert list(prior.values()) == ["values.scale"]


def test_what_has_no_posterior_is_refused_by_name() -> None:
    noisy = BayesianNetwork(nn.Linear(1, 1), priors.Deterministic(), likelihoods.Normal(dist.HalfNormal(1.0)))
    for guide in (None, AutoNormal(noisy)):
        with pytest.raises(ValueError, match=r"deterministic, but likelihood\.scale would be drawn"):
            fit(noisy, guide, rows(), epochs=2, progress=None)
    plain = BayesianNetwork(nn.Linear(1, 1), priors.Deterministic(), likelihoods.Normal(0.3))
    with pytest.raises(ValueError, match="Laplace needs weights with a prior, but the prior leaves all"):
        fit(plain, None, rows(), inference=Laplace(), epochs=1, progress=None)


def test_one_draw_and_no_number_are_no_sound_fit() -> None:
    posterior = train(epochs=1)
    with pytest.raises(ValueError, match="draws must be a whole number of at least 2"):
        check(posterior, rows(), draws=1)
    broken = MeanFieldNormal(posterior.model)
    with isolated():
        broken()
    broken.loc.data.fill_(torch.nan)
    two = Posterior([posterior.chains[0], (posterior.model, broken)])
    (restarts,) = (one for one in check(two, rows(), draws=5, steps=5) if one.name == "restarts")
    assert restarts.passed is False
    optimum, *_ = check(Posterior(two.chains[1:]), rows(), draws=5, steps=5)
    assert optimum.words == "the free energy of MeanFieldNormal is not finite"
    assert optimum.passed is False


def test_weights_of_rows_are_known_to_the_file_and_said(caplog: pytest.LogCaptureFixture) -> None:
    given = rows()
    counts = torch.linspace(0.5, 2.0, N)
    data = from_arrays(given.train.x, given.train.y, task="regression", weights=counts)
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.3))
    posterior = fit(model, MeanFieldNormal, data, epochs=1, progress=None)
    groups, _ = to_groups(posterior, data, draws=3)
    assert "the rows have weights, but log_likelihood ignores them" in caplog.text
    assert "leave out one of the copies that a weight above 1 stands for" in caplog.text
    torch.testing.assert_close(torch.as_tensor(groups["constant_data"]["row_weight"]), counts)
    assert to_arviz(posterior, data, draws=3)["constant_data"]["row_weight"].dims == ("row",)


def test_an_infinite_score_of_every_chain_names_its_row() -> None:
    scores = torch.zeros(2, 5)
    scores[:, 3] = -torch.inf
    with pytest.raises(ValueError, match="row 3 of y has the density 0 under every chain"):
        stacked(scores)


class Rate(nn.Module):
    """log(mean count) = w x + log(exposure); the exposure is the last column of x."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x[:, :1]) + x[:, 1:].log()


def test_a_row_whose_output_is_nan_is_named() -> None:
    """Its mean had been "Poisson has no mean", its interval NaN, the cause in training a learning rate."""
    x = torch.cat([normal(N, 1), torch.ones(N, 1)], dim=1)
    model = BayesianNetwork(Rate(), priors.Normal(), likelihoods.Poisson())
    data = from_arrays(x, torch.ones(N, 1), task="regression")
    posterior = fit(model, MeanFieldNormal(model), data, epochs=1, progress=None, device="cpu")
    x[7, 1] = -1.0
    with pytest.raises(ValueError, match="the network's output is NaN for row 7 of x, counted from 0"):
        posterior.predict(x)
    model = BayesianNetwork(Rate(), priors.Normal(), likelihoods.Poisson())
    bad = from_arrays(x, torch.ones(N, 1), task="regression")
    with pytest.raises(NonFiniteLossError, match=r"before any change of the weights: .* NaN") as caught:
        fit(model, MeanFieldNormal(model), bad, epochs=1, batch_size=N, progress=None, device="cpu")
    assert "learning rate" not in str(caught.value)
    held = from_arrays(x, torch.ones(N, 1), task="regression", validation=range(5, 10))
    model = BayesianNetwork(Rate(), priors.Normal(), likelihoods.Poisson())
    with pytest.raises(NonFiniteLossError, match=r"validation after epoch 1: .* row 2 of x.* logarithm of 0"):
        fit(model, MeanFieldNormal(model), held, epochs=2, progress=None, device="cpu")


@pytest.mark.parametrize("filled", [True, False])
def test_fill_values_in_rows_that_do_not_count_are_no_scale(
    filled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = rows()
    x, y, counts = given.train.x.clone(), given.train.y.clone(), torch.ones(N)
    x[3], y[3], counts[3] = -9999.0, -9999.0, 0.0 if filled else 1.0
    data = from_arrays(x, y, task="regression", weights=counts)
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(1.0))
    Training(model, MeanFieldNormal(model), data, epochs=1, device="cpu").run()
    for warning in ("standard deviations of the likelihood's noise away", "x is not scaled"):
        assert (warning in caplog.text) is not filled
