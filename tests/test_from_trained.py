"""Trained networks, some of whose weights become Bayesian."""

import pytest
import torch
from torch import Tensor, nn

from engine_fakes import classes, normal
from pyrobbb import MeanFieldNormal, fit, likelihoods, partly_bayesian, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.data.images.torchvision_compat import import_torchvision
from pyrobbb.inference import Laplace
from pyrobbb.posterior import Posterior


def _trained() -> nn.Module:
    with isolated(0):
        net = nn.Sequential(
            nn.Linear(3, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(8, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        )
        net(normal(20, 3))  # its statistics are no longer those of the start
    return net


@pytest.mark.parametrize("where", ["6.*", "*.weight", ["0.*", "6.bias"]])
@pytest.mark.parametrize("rest", ["frozen", "trained"])
def test_the_output_at_the_trained_weights_is_the_networks_own(where, rest):
    net = _trained()
    model = partly_bayesian(net, where, likelihoods.Categorical(), rest=rest)
    x = normal(5, 3)
    assert torch.equal(model.apply_network(model.initial(), x), net.eval()(x))
    guide = MeanFieldNormal(model, init_rho=-80.0)  # sigma is 0, as float32 adds
    guide()
    probs = Posterior([(model, guide)]).predict(x, draws=3).probs
    torch.testing.assert_close(probs, net(x).softmax(-1))
    weights = Posterior([(model, guide)]).draw(1)
    assert all(torch.equal(weights[name][0], value) for name, value in model.initial().items())


@pytest.mark.parametrize("large", [1, 10**6])
def test_a_frozen_backbone_is_computed_once_for_all_draws(large, monkeypatch):
    """Even of a head so large that draws are else taken one by one."""
    monkeypatch.setattr("pyrobbb._support.chunking.LARGE", large)
    model = partly_bayesian(_trained(), "6.*", likelihoods.Categorical())
    posterior = Posterior([(model, MeanFieldNormal(model))])
    posterior.chains[0][1]()
    x, seen = normal(40, 3), []
    model.network[0].register_forward_hook(lambda module, given, output: seen.append(len(output)))
    probs = posterior.predict(x, draws=30).probs
    assert seen == [1, 1, 40]  # one row to see the network's width, one its memory
    monkeypatch.setattr("pyrobbb._support.chunking.is_large", lambda model: True)
    torch.testing.assert_close(posterior.predict(x, draws=30).probs, probs)


def test_the_prior_is_centred_on_the_trained_weights():
    model = partly_bayesian(_trained(), "6.*", likelihoods.Categorical(), sigma=0.3)
    assert model.sites == ("6.weight", "6.bias")
    for name, value in model.initial().items():
        prior = model.prior_of(name).base_dist
        assert torch.equal(prior.loc, value)
        assert bool((prior.scale == 0.3).all())


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_network_that_holds_the_graph_of_its_last_call():
    """As the old weight_norm's does, in a layer that stays as it is; in one that is drawn it is refused."""
    with isolated(0):
        net = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 3))
    x = normal(5, 3)
    output = net(x)
    model = partly_bayesian(net, "2.*", likelihoods.Categorical())
    assert torch.equal(model.apply_network(model.initial(), x), output)
    with pytest.raises(ValueError, match=r"layer '0' .* has a weight that WeightNorm makes at each call"):
        partly_bayesian(net, "0.*", likelihoods.Categorical())


@pytest.mark.parametrize("rest", ["frozen", "trained"])
def test_only_what_was_asked_for_is_trained(rest):
    net, data = _trained(), classes()
    model = partly_bayesian(net, "6.*", likelihoods.Categorical(), rest=rest)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    posterior = fit(model, MeanFieldNormal, data, epochs=3, progress=None)
    after = posterior.model.network.state_dict()
    changed = {name for name in before if not torch.equal(before[name].cpu(), after[name])}
    expected = (
        {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"} if rest == "trained" else set()
    )
    assert changed == expected
    assert not torch.equal(posterior.mean_weights()["6.weight"], model.initial()["6.weight"])
    assert net.training  # the user's own is left as it was


def test_what_is_frozen_already_is_trained_only_where_it_is_named():
    net = _trained().requires_grad_(False)
    net[4].bias.requires_grad_(True)
    model = partly_bayesian(net, "6.*", likelihoods.Categorical(), rest="trained")
    trained = {name for name, _ in model.network.named_parameters() if name not in model.frozen}
    assert trained == {"4.bias"}
    assert model.sites == ("6.weight", "6.bias")


@pytest.mark.parametrize(
    ("where", "options", "reason"),
    [
        ("fc.*", {}, "'fc.*' matches no parameter; the parameters are 0.weight"),
        ([], {}, "at least one pattern"),
        ("6.*", {"rest": "thawed"}, "rest must be"),
        ("6.*", {"sigma": 0.0}, "sigma must be"),
        (6, {}, "where must be a str or a Sequence, got 6"),
        (["6.*", 6], {}, r"where\[1\] must be a str, got 6"),
    ],
)
def test_mistakes_are_refused(where, options, reason):
    with pytest.raises(ValueError, match=reason):
        partly_bayesian(_trained(), where, likelihoods.Categorical(), **options)


def test_a_tied_weight_goes_by_its_first_name():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    with pytest.raises(ValueError, match=r"'2\.\*' matches 2.weight, but .* 2.weight is 0.weight"):
        partly_bayesian(net, "2.*", likelihoods.Categorical())
    model = partly_bayesian(net, ["2.*", "0.weight"], likelihoods.Categorical())
    assert model.sites == ("0.weight", "2.bias")


def test_the_weights_alone_are_no_network():
    with pytest.raises(ValueError, match=r"network must be a Module, got OrderedDict"):
        partly_bayesian(nn.Linear(1, 1).state_dict(), "*", likelihoods.Normal())


@pytest.mark.parametrize(("name", "last"), [("resnet18", "fc.*"), ("squeezenet1_1", "classifier.1.*")])
def test_torchvisions_architectures(name, last):
    try:
        models = import_torchvision().models
    except ImportError:
        pytest.skip("torchvision is not installed")
    with isolated(0):
        net = getattr(models, name)(weights=None, num_classes=3).eval()
    model = partly_bayesian(net, last, likelihoods.Categorical(), sigma=0.1)
    x = normal(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model.apply_network(model.initial(), x), net(x))
    data = Dataset("images", Split(x, torch.tensor([0, 1])), Spec(2, (3, 64, 64), 3, "classification"))
    posterior = fit(model, MeanFieldNormal, data, epochs=1, progress=None)
    assert posterior.predict(x, draws=2).probs.shape == (2, 3)
    assert all(name.startswith(last.rstrip("*")) for name in model.sites)


class Mixed(nn.Module):
    """A backbone in half precision that takes inputs in single, and centres them first."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.head = nn.Linear(2, 8).bfloat16(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back((x - 100).bfloat16()).float())


def test_inputs_are_predicted_in_the_precision_of_the_training_rows(tmp_path):
    """Not in that of the first weight, which rounds 100.2 to 100."""
    x = 100 + normal(20, 2) / 4
    data = from_arrays(x, torch.arange(20) % 2, task="classification")
    with isolated(0):
        model = partly_bayesian(Mixed(), "head.*", likelihoods.Categorical())
    posterior = fit(model, MeanFieldNormal, data, epochs=1, progress=None, device="cpu")
    posterior.save(tmp_path)
    again = Posterior.load(tmp_path, model, MeanFieldNormal)
    around = Laplace(linearised=False, structure="diagonal").around(
        partly_bayesian(Mixed(), "head.*", likelihoods.Categorical()), data
    )
    for each in (posterior, again, around):
        own = torch.stack([each.function(s)(x) for s in range(3)]).softmax(-1).mean(0)
        for given in (x, x.double(), x.numpy(), x.double().numpy()):
            torch.testing.assert_close(each.predict(given, draws=3).probs, own)
    with pytest.raises(ValueError, match=r"if the type is why, convert it to torch.float32"):
        posterior.predict(torch.zeros(1, 3, dtype=torch.int64))
    model.double()
    assert model.input_dtype == torch.float64


def test_a_prior_around_the_networks_own_values_in_any_model():
    assert priors.Centred(sigma=0.5).distribution("w", torch.ones(2)).base_dist.loc.tolist() == [1.0, 1.0]
