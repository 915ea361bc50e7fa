"""A finished run's network, some of whose weights become Bayesian in another run."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from experiments._runner.build import ConfigError, build
from experiments._runner.compose import declared, fitted
from experiments._runner.reopen import reopen
from experiments._runner.trained_network import network_of
from experiments._runner.trust import strangers
from pyrobbb.inference import Laplace
from pyrobbb.initializers import from_network, kaiming

SMALL = ["name=test", "data=blobs", "batch_size=150", "draws=20", "validation_draws=0"]
METHODS = ("dropout", "ensemble", "laplace", "map", "sghmc", "swag")  # those that say where the weights start
GUIDES = (
    "mean_field", "matrix_normal", "non_centred", "auto_normal", "auto_delta", "auto_multivariate_normal",
    "auto_low_rank_multivariate_normal", "low_rank",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a point estimate under a normal prior."""
    folder: Path = tmp_path_factory.mktemp("trained")
    _fit(folder, ["model.hidden=[8]", "inference=map", "prior=normal", "epochs=20", "optim.lr=0.05"])
    return folder


def _fit(folder: Path, words: Sequence[str]) -> None:
    config = declared("run", [*SMALL, *words])
    config.folder = str(folder)
    fitted(config)


def test_the_chosen_weights_are_bayesian_and_the_rest_as_trained(trained: Path, tmp_path: Path) -> None:
    words = [
        "model=trained",
        f"model.network={trained}",
        "model.where=[2.*]",
        "prior=centred",
        "epochs=2",
    ]
    _fit(tmp_path / "partly", words)
    posterior, given = (
        reopen(tmp_path / "partly").posterior,
        dict(network_of(trained).named_parameters()),
    )
    assert posterior.model.sites == ("2.weight", "2.bias")
    drawn = posterior.function().state_dict()
    for name, value in given.items():
        assert torch.equal(drawn[name], value) == (name[0] == "0"), name
    for name in posterior.model.sites:
        prior = posterior.model.prior_of(name).base_dist
        torch.testing.assert_close(prior.loc, given[name].detach(), rtol=0, atol=0)
        assert bool((prior.scale == 0.1).all())


def test_of_a_run_that_was_partly_bayesian_every_weight_may_be_chosen(trained: Path, tmp_path: Path) -> None:
    words = ["model=trained", f"model.network={trained}", "model.where=[2.*]", "prior=centred", "epochs=1"]
    _fit(tmp_path / "partly", words)
    network = network_of(tmp_path / "partly")
    assert [name for name, _ in network.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    config = declared("run", [*SMALL, *words[2:], f"model.network={tmp_path / 'partly'}", "model=trained"])
    config.model.where = ["0.*"]
    run = build(config)
    data = run.data.load()
    assert run.model(data.spec, run.prior, run.likelihood).sites == ("0.weight", "0.bias")


def test_laplace_around_a_run_is_that_of_its_posterior(trained: Path, tmp_path: Path) -> None:
    words = ["model=trained", f"model.network={trained}", "prior=normal", "inference=laplace"]
    _fit(tmp_path / "around", [*words, "epochs=1", "optim.lr=0"])
    source = reopen(trained)
    there = Laplace().around(source.posterior, source.data).predict(source.data.train.x, draws=20).probs
    here = reopen(tmp_path / "around").posterior.predict(source.data.train.x, draws=20).probs
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("words", [*(f"inference={m}" for m in METHODS), *(f"guide={g}" for g in GUIDES)])
def test_every_guide_and_method_starts_at_the_trained_weights(words: str, trained: Path) -> None:
    part = words.partition("=")[0]
    own = declared("run", [*SMALL, words])
    theirs = declared("run", [*SMALL, words, "model=trained", f"model.network={trained}"])
    starts = [getattr(build(config), part) for config in (own, theirs)]
    options = [vars(start) if part == "inference" else start.keywords for start in starts]
    found = [given.get("init_loc") or given["init_loc_fn"] for given in options]
    assert [start.func for start in found] == [kaiming, from_network]


def test_a_run_that_is_not_there_or_not_finished_is_refused(trained: Path, tmp_path: Path) -> None:
    words = [*SMALL, "model=trained"]
    with pytest.raises(ConfigError, match=r"model\.network has no value; write model\.network="):
        build(declared("run", words))
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=r"model: folder: .*missing is not a run folder"):
        build(declared("run", [*words, f"model.network={missing}"]))
    (trained / "metrics.json").rename(tmp_path / "metrics.json")
    try:
        with pytest.raises(ConfigError, match="is not finished: it ended in epoch 20 of 20"):
            build(declared("run", [*words, f"model.network={trained}"]))
    finally:
        (tmp_path / "metrics.json").rename(trained / "metrics.json")


def test_of_a_run_with_parts_of_ones_own_a_function_gives_the_network(trained: Path) -> None:
    config = trained / "config.yaml"
    whole = config.read_text()
    config.write_text(whole.replace("pyrobbb.priors.Normal", "own_priors.Own"))
    try:
        with pytest.raises(
            ConfigError, match=r"has parts of your own, .*model\.network=\{_target_: my_parts"
        ):
            network_of(trained)
    finally:
        config.write_text(whole)


def test_a_configuration_may_name_the_network_and_not_what_trusts() -> None:
    assert not strangers({"_target_": "experiments._runner.trained_network.Trained"})
    for name in ("trained_network.reopen", "reopen.reopen"):
        assert strangers({"_target_": f"experiments._runner.{name}"})
