"""A posterior as a plain network, exported by torch and to ONNX: what comes out is what predict says."""

import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from architectures import Chain, last
from pyrobbb import likelihoods
from pyrobbb.bnn import BayesianNetwork, network_with
from pyrobbb.data import from_arrays
from pyrobbb.draws import NoWeights
from pyrobbb.evaluation.export import exported
from pyrobbb.inference import Laplace
from pyrobbb.inference.flat_guide import FlatGuide
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior
from pyrobbb.predictive import ClassPrediction
from pyrobbb.priors import Deterministic, Normal, PerParameter
from pyrobbb.training.trainer import fit

ROWS = {0: torch.export.Dim.DYNAMIC}
X = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))


def recurrent():
    """An architecture that torch.vmap does not take, and with weights in a list of its own."""
    return Chain(nn.Unflatten(1, (3, 1)), nn.LSTM(1, 4, batch_first=True), last, nn.Linear(4, 2))


def fitted(network=None, likelihood=None, chains=1, prior=None):
    """An unfitted guide is a posterior, too, and its scales are not small."""
    torch.manual_seed(0)
    network = network or nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
    pairs = []
    for _ in range(chains):
        model = BayesianNetwork(network, prior or Normal(), likelihood or likelihoods.Categorical(), N=10)
        guide = MeanFieldNormal(model, init_rho=-1.0)
        guide()
        pairs.append((model, guide))
    return Posterior(pairs)


def program(module):
    """The exported module, for any number of rows; exported with few."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*_flat_weights")  # torch's, of any nn.LSTM
        return torch.export.export(module, (X[:3],), dynamic_shapes=(ROWS,)).module()


def test_the_averaged_probabilities_are_those_of_predict():
    posterior = fitted(chains=2)
    module = exported(posterior, draws=4, average=True, seed=5)
    expected = posterior.predict(X, draws=4, seed=5).probs
    assert not module.training  # or ONNX warns
    torch.testing.assert_close(module(X), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(program(module)(X), expected, rtol=0, atol=1e-5)
    labels = fitted(likelihood=likelihoods.Bernoulli(multilabel=True))
    torch.testing.assert_close(
        program(exported(labels, draws=4, average=True))(X), labels.predict(X, draws=4).probs[..., 1]
    )


def test_half_precision_is_averaged_in_single():
    posterior = fitted()
    for part in posterior.chains[0]:
        part.half()
    x = X.half()
    outputs = exported(posterior, draws=4)(x)
    assert torch.equal(exported(posterior, draws=4, average=True)(x), outputs.float().softmax(-1).mean(0))


@pytest.mark.parametrize("network", [None, recurrent()], ids=["layers", "recurrent"])
def test_draws_as_one_graph_are_the_functions_of_the_posterior(network):
    posterior = fitted(network)
    outputs = program(exported(posterior, draws=3))(X)
    functions = [posterior.function(s) for s in range(3)]
    mean = outputs.softmax(-1).mean(0)
    torch.testing.assert_close(mean, posterior.predict(X, draws=3).probs, rtol=0, atol=1e-5)
    assert outputs.shape == (3, 7, 2)
    torch.testing.assert_close(outputs, torch.stack([f(X) for f in functions]), rtol=0, atol=1e-5)
    assert float((outputs[0] - outputs[1]).abs().max()) > 0.1
    torch.testing.assert_close(program(functions[1])(X), outputs[1], rtol=0, atol=1e-5)


def test_chains_count_by_their_weights():
    posterior = fitted(chains=2)
    posterior.chain_weights = (0.75, 0.25)
    average = exported(posterior, draws=4, average=True)(X)
    torch.testing.assert_close(average, posterior.predict(X, draws=4).probs, rtol=0, atol=1e-5)


def test_point_estimates_count_by_their_weights_as_in_predict():
    """A few draws could not hold weights that no few hold."""
    prior = PerParameter(default=Deterministic())
    models = [BayesianNetwork(nn.Linear(3, 2), prior, likelihoods.Categorical(), N=10) for _ in range(3)]
    posterior = Posterior([(model, NoWeights()) for model in models], chain_weights=(0.5, 0.3, 0.2))
    average = exported(posterior, draws=1, average=True)(X)
    torch.testing.assert_close(average, posterior.predict(X, draws=1).probs, rtol=0, atol=1e-5)
    posterior.chain_weights = None
    assert len(exported(posterior)(X)) == 3  # one each


def test_a_guide_of_points_gives_one_function_a_chain():
    posterior = fitted(chains=2)
    posterior = Posterior([(model, FlatGuide(model)) for model, _ in posterior.chains])
    module = exported(posterior, draws=50, average=True)
    assert len(module.functions.networks) == 2
    torch.testing.assert_close(module(X), posterior.predict(X, draws=50).probs, rtol=0, atol=1e-5)
    posterior.chain_weights = (0.75, 0.25)
    module = exported(posterior, draws=1, average=True)
    torch.testing.assert_close(module(X), posterior.predict(X, draws=40).probs, rtol=0, atol=1e-5)


def test_a_linearised_network_is_refused(caplog):
    data = from_arrays(X, torch.arange(7) % 2, task="classification")
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def posterior(method):
        model = BayesianNetwork(network, Normal(), likelihoods.Categorical())
        return fit(model, None, data, inference=method, epochs=1, progress=None)

    linear = posterior(Laplace())
    for _ in range(2):
        linear.function(0)
    with pytest.raises(ValueError, match="linearised"):
        exported(linear, draws=3)
    plain = posterior(Laplace(linearised=False))
    plain.function(0)
    assert caplog.text.count("use Laplace(linearised=False)") == 1  # said once, and of the first alone
    module = exported(plain, draws=3, average=True)
    torch.testing.assert_close(module(X), plain.predict(X, draws=3).probs, rtol=0, atol=1e-5)


def test_the_network_of_the_mean_weights_is_exported():
    posterior = fitted()
    mean = network_with(posterior.model, posterior.mean_weights())
    expected = posterior.predict(X, mean_weights=True).probs
    torch.testing.assert_close(program(mean)(X).softmax(-1), expected, rtol=0, atol=1e-5)


def test_layers_that_are_not_bayesian_are_there_once():
    posterior = fitted(
        prior=PerParameter(default=Normal(), where={"0.*": Deterministic(), "2.*": Deterministic()})
    )
    module = exported(posterior, draws=20)
    assert sum(value.numel() for value in module.parameters()) == 3 * 5 + 5 + 2 * 5 + 20 * (2 * 5 + 2)
    torch.testing.assert_close(program(module)(X)[7], posterior.function(7)(X), rtol=0, atol=1e-5)


def test_what_has_no_probabilities_or_no_draws_is_refused():
    with pytest.raises(ValueError, match="average=True is for class labels, and Normal has none"):
        exported(fitted(likelihood=likelihoods.Normal(0.1)), average=True)

    class Twice(likelihoods.Categorical):
        def forward(self, output):
            return super().forward(output.softmax(-1))

    class Halved(likelihoods.Likelihood):
        task, prediction = "classification", ClassPrediction

        def forward(self, output):
            return dist.Categorical(logits=output / 2)

    for own in (Twice, Halved):
        with pytest.raises(ValueError, match=f"does not know what {own.__name__} makes of the output"):
            exported(fitted(likelihood=own()), average=True)
    with pytest.raises(ValueError, match="draws"):
        exported(fitted(), draws=0)
    point = BayesianNetwork(nn.Linear(3, 2), Deterministic(), likelihoods.Categorical())
    with pytest.raises(ValueError, match="no Bayesian weights"):
        exported(Posterior([(point, nn.Module())]))


def test_plain_networks_of_an_ensemble_are_exported():
    torch.manual_seed(0)
    pairs = [
        (BayesianNetwork(nn.Linear(3, 2), Deterministic(), likelihoods.Categorical()), NoWeights())
        for _ in range(3)
    ]
    posterior = Posterior(pairs)
    module = exported(posterior, draws=2, average=True)
    torch.testing.assert_close(module(X), posterior.predict(X, draws=2).probs)


@pytest.mark.parametrize("what", ["one function", "the mean", "probabilities", "draws", "recurrent draws"])
def test_onnx_gives_what_the_network_gives(what, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    posterior = fitted(recurrent() if what == "recurrent draws" else None)
    module = {
        "one function": lambda: posterior.function(1),
        "the mean": lambda: network_with(posterior.model, posterior.mean_weights()),
        "probabilities": lambda: exported(posterior, draws=3, average=True),
    }.get(what, lambda: exported(posterior, draws=3))()
    path = str(tmp_path / "posterior.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own
        torch.onnx.export(module, (X[:3],), path, dynamic_shapes=(ROWS,), verbose=False)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    np.testing.assert_allclose(found, module(X).detach().numpy(), rtol=0, atol=1e-5)
