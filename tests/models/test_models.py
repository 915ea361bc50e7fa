"""The generative programs: layers, widths and parameter counts from the data's spec, and what they refuse."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

from engine_fakes import normal
from paths import ROOT
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_table
from pyrobbb.data.dataset import Spec
from pyrobbb.models.convnet import convnet
from pyrobbb.models.linear import linear
from pyrobbb.models.mlp import ACTIVATIONS, mlp
from pyrobbb.models.plain_mlp import plain_mlp

PRIOR = priors.ScaleMixture()
MNIST = Spec(60_000, (784,), 10, "classification")
IMAGES = Spec(60_000, (1, 28, 28), 10, "classification")
SINE = Spec(100, (1,), 1, "regression")


@pytest.mark.parametrize(("hidden", "count"), [(400, 478_410), (800, 1_276_810), (1200, 2_395_210)])
def test_the_papers_networks(hidden: int, count: int) -> None:
    model = mlp(MNIST, PRIOR, likelihoods.Categorical(), hidden=(hidden, hidden))
    assert model.num_weights == count
    assert len(model.sites) == 6
    assert model.N == 60_000


@pytest.mark.parametrize(
    ("old", "now"),
    [
        *((f"models.{name}", f"pyrobbb.models.{name}") for name in ("convnet", "linear", "mlp", "plain_mlp")),
        *((f"guides.{name}", f"pyrobbb.{name}") for name in ("mean_field", "non_centred")),
    ],
)
def test_earlier_names_are_the_same(old: str, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    earlier, module = import_module(old), import_module(now)
    assert earlier.__all__
    assert all(getattr(earlier, name) is getattr(module, name) for name in earlier.__all__)


@pytest.mark.parametrize("make", [mlp, linear, plain_mlp])
def test_inputs_that_are_not_scaled_are_for_networks_of_ones_own(make: Callable[..., Any]) -> None:
    table = {"years": [300.0, 50.0, 70.0, 10.0], "a": [1.0, 2.0, 3.0, 5.0], "n": [0, 2, 1, 4]}
    spec = from_table(table, target="n", task="regression", raw=["years"]).spec
    with pytest.raises(ValueError, match=r"but the last 1 are not scaled \(data.raw\)"):
        make(spec, PRIOR, likelihoods.Poisson())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_perceptron_computes_what_its_name_says(activation: str) -> None:
    model = mlp(SINE, PRIOR, likelihoods.Normal(0.1), hidden=(5, 4), activation=activation)
    x = normal(7, 1)
    h = x
    w = list(model.initial().values())
    for layer in range(3):
        h = h @ w[2 * layer].T + w[2 * layer + 1]
        if layer < 2:
            h = getattr(torch.nn.functional, activation)(h)
    torch.testing.assert_close(model.apply_network(model.initial(), x), h)


def test_images_are_flattened_for_a_perceptron() -> None:
    model = mlp(IMAGES, PRIOR, likelihoods.Categorical(), hidden=(6,))
    assert model.apply_network(model.initial(), normal(2, 1, 28, 28)).shape == (2, 10)
    assert model.num_weights == 784 * 6 + 6 + 6 * 10 + 10


def test_no_hidden_layer_is_a_linear_map() -> None:
    assert mlp(MNIST, PRIOR, likelihoods.Categorical(), hidden=()).num_weights == 7850


@pytest.mark.parametrize(("bias", "sites"), [(True, ("weight", "bias")), (False, ("weight",))])
def test_linear(bias: bool, sites: tuple[str, ...]) -> None:
    model = linear(SINE, PRIOR, likelihoods.Normal(0.1), bias=bias)
    assert model.sites == sites
    assert model.apply_network(model.initial(), normal(4, 1)).shape == (4, 1)


def test_linear_takes_images() -> None:
    model = linear(IMAGES, PRIOR, likelihoods.Categorical())
    assert model.apply_network(model.initial(), normal(2, 1, 28, 28)).shape == (2, 10)


def test_convnet() -> None:
    model = convnet(IMAGES, PRIOR, likelihoods.Categorical(), channels=(3, 5), hidden=7)
    assert model.num_weights == (9 * 3 + 3) + (9 * 3 * 5 + 5) + (49 * 5 * 7 + 7) + 80
    weights = {name: torch.stack([w, w + 0.1]) for name, w in model.initial().items()}
    assert model.apply_network(weights, normal(2, 1, 28, 28)).shape == (2, 2, 10)


def test_convnet_without_padding_is_lenet() -> None:
    model = convnet(
        IMAGES, PRIOR, likelihoods.Categorical(), channels=(16, 32), kernel=5, padded=False, hidden=64
    )
    assert model.num_weights == (25 * 16 + 16) + (25 * 16 * 32 + 32) + (16 * 32 * 64 + 64) + 650
    assert model.apply_network(model.initial(), normal(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("make", [mlp, linear], ids=["mlp", "linear"])
def test_the_likelihood_decides_the_last_layers_width(make: Callable[..., BayesianNetwork]) -> None:
    spec = Spec(10, (3,), 2, "regression")
    for likelihood, width in ((likelihoods.Normal(0.1), 2), (likelihoods.HeteroscedasticNormal(), 4)):
        model = make(spec, PRIOR, likelihood)
        assert model.apply_network(model.initial(), normal(5, 3)).shape == (5, width)
        with isolated(0):
            assert model(normal(5, 3)).shape == (5, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mlp(MNIST, PRIOR, likelihoods.Categorical(), hidden=(0,)), "hidden[0] must be a whole"),
        (
            lambda: mlp(MNIST, PRIOR, likelihoods.Categorical(), hidden=(3, 4.5)),
            "hidden[1] must be a whole",
        ),
        (lambda: mlp(MNIST, PRIOR, likelihoods.Categorical(), hidden=400), "hidden must be a list"),
        (
            lambda: mlp(MNIST, PRIOR, likelihoods.Categorical(), activation="rleu"),
            "activation must be one of relu, sigmoid, tanh, gelu, got 'rleu'",
        ),
        (lambda: convnet(MNIST, PRIOR, likelihoods.Categorical()), "convnet needs images of shape"),
        (
            lambda: convnet(IMAGES, PRIOR, likelihoods.Categorical(), channels=(0,)),
            "channels[0] must be a",
        ),
        (lambda: convnet(IMAGES, PRIOR, likelihoods.Categorical(), kernel=4), "kernel must be odd, got 4"),
        (lambda: convnet(IMAGES, PRIOR, likelihoods.Categorical(), hidden=0), "hidden must be a whole"),
        (lambda: convnet(IMAGES, PRIOR, likelihoods.Categorical(), channels=16), "channels must be a list"),
        (
            lambda: convnet(IMAGES, PRIOR, likelihoods.Categorical(), channels=(2,) * 5),
            "images of (28, 28) are too small for 5 convolutions",
        ),
    ],
)
def test_bad_architectures_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
