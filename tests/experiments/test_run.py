"""The YAML declarations: every one builds, runs, and is refused with one clear message when it is wrong."""

import json
import re
import sys
from contextlib import nullcontext
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf

import data_fakes
from commands import command
from experiments import analyse
from experiments import run as run_module
from experiments._runner import folder as folder_module
from experiments._runner import schema
from experiments._runner.build import KNOWN, NOT_OF_THE_RUN, ConfigError, build, changes
from experiments._runner.compose import declared
from experiments._runner.folder import CLAIMING, claim, differences
from experiments._runner.own_parts import own_content
from experiments._runner.reopen import reopen
from paths import ROOT
from pyrobbb import likelihoods, moments, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb._support.files import locked
from pyrobbb._support.settings import flat
from pyrobbb.data import MNIST, Blobs
from pyrobbb.evaluation import arviz_io, layer_summary
from pyrobbb.evaluation.trivial_bound import trivial_free_energy
from pyrobbb.experiment import Run
from pyrobbb.initializers import kaiming
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp
from pyrobbb.training import history

FOLDER = ROOT / "experiments"
GROUPS = ("data", "model", "prior", "likelihood", "guide", "inference", "kl", "optim", "schedule")
COMPONENTS = [(g, p.stem) for g in GROUPS for p in sorted((FOLDER / g).glob("*.yaml"))]
EXPERIMENTS = sorted(p.stem for p in (FOLDER / "experiment").glob("*.yaml"))
TINY = ["data=blobs", "model.hidden=[8]", "epochs=2", "batch_size=150", "draws=5", "validation_draws=1"]
TINY += ["figures=false", "report=false"]


composed = cache(declared)  # a third of a second each; what comes of it is not to be changed


def config(*overrides):
    return deepcopy(composed("run", overrides))


# where those are run that need other data than the runs below: real images, files, counts
ELSEWHERE = {
    "convnet": "test_models",
    "trained": "_runner/test_trained_network",
    **dict.fromkeys(("on_disk", "table", "uci"), "tests/data and tests/tabular"),
    **dict.fromkeys(("bernoulli", "poisson", "negative_binomial"), "test_contracts and test_likelihoods"),
    **{name: "make mnist" for group, name in COMPONENTS if group == "data" and "mnist" in name},
}
RUN = [c for c in COMPONENTS if c[1] not in ELSEWHERE and c[0] != "inference"]


@pytest.mark.parametrize(("group", "name"), [c for c in COMPONENTS if c not in RUN])
def test_every_component_builds_by_name(group, name):
    given = {"on_disk": ["data.x=x.npy", "data.y=y.npy"], "table": ["data.source=x.csv"]}
    layer = "network={_target_: torch.nn.Linear, in_features: 784, out_features: 10}"
    given["trained"] = [f"model.{layer}"]
    run = build(config(f"{group}={name}", *given.get(name, [])))
    assert isinstance(run, Run)


DECLARED = [("run", ()), ("paper/bandit", ()), ("paper/bandit_showdown", ())]
DECLARED += [("run", (f"experiment={name}",)) for name in EXPERIMENTS]


@pytest.mark.parametrize(("name", "overrides"), DECLARED, ids=lambda value: str(value))
def test_what_a_declaration_says_is_what_is_run(name, overrides):
    path = (
        FOLDER / "experiment" / f"{overrides[0].partition('=')[2]}.yaml"
        if overrides
        else FOLDER / f"{name}.yaml"
    )
    said = yaml.safe_load(path.read_text())
    for key in ("defaults", "hydra"):
        said.pop(key, None)
    found = flat(OmegaConf.to_container(composed(name, overrides)))
    wrong = {key: found.get(key) for key, value in flat(said).items() if found.get(key) != value}
    assert not wrong, "a component's file overrules the declaration: write _self_ after it"


# Runs of which each has several components at once; what is not named is as in TINY
TOGETHER = [
    "data=blobs model=mlp prior=scale_mixture likelihood=categorical guide=mean_field",
    "prior=normal likelihood=double_softmax kl=geometric optim=sgd schedule=steps",
    "prior=laplace likelihood=mean_logits samples=2 vectorize=true fast=off kl=full schedule=constant",
    "data=noisy_sine likelihood=normal prior=student_t kl=tempered schedule=exponential",
    "data=toy_points likelihood=unit_normal prior=fan_in_normal kl=warm_up optim=adam schedule=cosine",
    "data=paper_curve likelihood=normal_mixture prior=learned_normal kl=uniform",
    "data=one_point likelihood=normal batch_size=1 observations=1 model=linear guide=auto_delta",
    "data=noisy_sine batch_size=50 likelihood=heteroscedastic_normal prior=mixture_weights_point_biases",
    "data=noisy_sine batch_size=50 likelihood=student_t prior=learned_mixture",
    "prior=ard guide=non_centred",
    "prior=horseshoe",
    "prior=group_horseshoe guide=auto_normal",
    "prior=deterministic model=plain_mlp export_weights=[*]",
    "guide=auto_low_rank_multivariate_normal model=gluon_as_printed model.hidden=[8,8]",
    "guide=low_rank prior=laplace",
    "guide=auto_multivariate_normal model.hidden=[2]",
    "guide=auto_iaf_normal model.hidden=[2]",
    "guide=matrix_normal prior=centred",
]


def test_every_component_is_built_or_run():
    together = {tuple(word.split("=")) for words in TOGETHER for word in words.split()}
    assert set(RUN) <= together


# what a method needs around it to be done within two epochs of two steps
METHODS = {
    "dropout": [],
    "ensemble": ["chains=2", "stacking=true"],
    "laplace": ["prior=normal"],
    "map": [],
    "natural_gradient": [],
    "nuts": ["prior=normal", "inference.warmup=2", "inference.draws=4", "inference.max_tree_depth=2"],
    "sghmc": ["inference.cycles=1", "inference.draws=2", "inference.exploring=0.25"],
    "svi": [],
    "swag": ["inference.snapshots=2", "inference.rank=2", "inference.start=0.25"],
}


def test_every_method_is_run():
    assert sorted(METHODS) == [name for group, name in COMPONENTS if group == "inference"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_runs_from_the_command_and_again_at_once(name, tmp_path, capsys, monkeypatch):
    told = [*TINY, f"inference={name}", *METHODS[name], f"folder={tmp_path}"]
    declared = config(*told)
    metrics = run_module.execute(declared)
    assert (tmp_path / "posterior.nc").exists()
    assert not (tmp_path / "figures").exists()
    assert metrics["test"]["nll"] > 0
    bound = name in {"svi", "natural_gradient"}
    assert ("free_energy" in metrics) == ("code_length" in metrics) == bound
    assert ("train_loss" in metrics) == (not bound and name != "nuts")
    assert len(metrics.get("log_evidence", [])) == (name == "laplace")
    assert ("chain_weights" in metrics) == (name == "ensemble")
    if name != "svi":  # the others' figures are made and not drawn, which takes longest
        monkeypatch.setattr(analyse.draw, "save", lambda figure, path: path.touch())
    declared.figures = True
    assert run_module.execute(declared) == metrics
    assert analyse.has_figures(tmp_path)
    found = reopen(tmp_path)
    weights = [found.posterior.draw(2, chain=c) for c in range(found.run.chains)]
    assert found.posterior.chain_weights == (tuple(metrics["chain_weights"]) if name == "ensemble" else None)
    assert all(bool(w.isfinite().all()) for drawn in weights for w in drawn.values())
    first, _, again = capsys.readouterr().out.partition("is finished")
    assert "figures" not in first
    assert "figures/ (" in again


def test_the_free_energy_of_stacked_chains_is_by_their_weights(tmp_path, monkeypatch):
    """The weighted mean bounds the mixture; a chain that predicts nothing decides nothing."""
    found = {}
    for weights in (None, (1.0, 1.0), (1e-9, 1.0)):
        words = [*TINY, "chains=2", f"stacking={weights is not None}".lower()]
        monkeypatch.setattr("pyrobbb.experiment.stacking_weights", lambda *_, chosen=weights, **__: chosen)
        run = build(config(*words, f"folder={tmp_path}"))
        result = run.execute()
        ends = [history.rows[-1].free_energy for history in result.posterior.histories]
        found[weights] = result.metrics["free_energy"], result.metrics["code_length"]["bits"]
    assert found[None] == found[1.0, 1.0]
    assert found[None][0] == fmean(ends)
    assert abs(ends[0] - ends[1]) > 1e-4
    assert found[1e-9, 1.0][0] == pytest.approx(ends[1], rel=1e-7)
    assert found[1e-9, 1.0][1] / found[None][1] == pytest.approx(ends[1] / fmean(ends), rel=1e-6)


def test_the_free_energy_is_not_that_of_one_epoch_alone():
    """With one step an epoch it would be that of one draw of the weights."""
    result = build(config(*TINY, "epochs=60")).execute()
    last = [row.free_energy for row in result.posterior.history.rows[-3:]]
    assert len(set(last)) == 3
    assert result.metrics["free_energy"] == fmean(last)


def test_the_free_energy_of_stacked_chains_stands_beside_the_main_ones_bound(monkeypatch):
    """Each restart learns a prior of its own, under which ignoring the inputs costs something else."""
    monkeypatch.setattr("pyrobbb.experiment.stacking_weights", lambda *_, **__: (1e-9, 1.0))
    learned = ["prior=learned_normal", "prior.every=1"]
    result = build(config(*TINY, *learned, "chains=2", "stacking=true")).execute()
    each = [trivial_free_energy(model, result.data.train) for model, _ in result.posterior.chains]
    assert each[0] != each[1]
    assert result.metrics["trivial_free_energy"] == each[1]


def test_a_point_estimate_is_summed_up_as_other_runs_are(tmp_path, capsys):
    run_module.execute(config(*TINY, "prior=deterministic", "model=plain_mlp", f"folder={tmp_path}"))
    said = capsys.readouterr().out
    assert "test error " in said
    assert f"{tmp_path}: metrics.json, history.csv" in said
    assert "mean weights" not in said


@pytest.mark.parametrize("words", TOGETHER)
def test_every_component_runs_for_two_epochs(words, tmp_path, monkeypatch):
    again = []  # a second ledger of the KL, whose draws take as long as the first one's
    monkeypatch.setattr(layer_summary, "kl_ledger", lambda *given, **options: again.append(given))
    monkeypatch.setattr(moments, "DRAWS", 10)  # for the guides whose moments are those of draws
    overrides = [o for o in TINY if not ("model=linear" in words and o.startswith("model."))]
    result = build(config(*overrides, *words.split())).execute(tmp_path)
    found = (
        {"F": result.metrics.get("free_energy", result.metrics.get("train_loss"))}
        if result.data.test is None
        else result.metrics["test"]
    )
    assert all(torch.isfinite(torch.tensor(v)) for v in found.values())
    if "guide=auto_delta" in words:  # a point
        assert "train_loss" in result.metrics
        assert not {"free_energy", "trivial_free_energy", "kl_ledger"} & set(result.metrics)
    assert len(history.read(tmp_path / "history.csv")) == 2
    if ledger := result.metrics.get("kl_ledger"):
        assert not again
        kl = arviz_io.load(tmp_path / "posterior.nc")["variational"].get("kl")
        assert kl is None or kl.values.tolist() == [ledger[name]["nats"] for name in kl["layer"].values]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_how_it_is_run(name):
    header = (FOLDER / "experiment" / f"{name}.yaml").read_text().splitlines()
    comments = " ".join(line for line in header if line.startswith("#"))
    assert f"experiment={name}" in comments
    assert "Command: " in comments
    assert "TODO" not in comments


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_trains_and_predicts_as_declared(name, tmp_path, monkeypatch):
    """On thirty images in place of MNIST's, with the declared prior, shares, samples and schedule."""
    declared = config(f"experiment={name}")
    build(declared)
    monkeypatch.setattr(MNIST, "files", data_fakes.TINY)
    small = ["epochs=1", "draws=2", "observations=5", "export_weights=5"]
    if "MNIST" in declared.data._target_:
        small += ["model.hidden=[4,4]", f"data.root={data_fakes.put(tmp_path / 'data')}"]
        small += ["data.validation=5"] if declared.data.validation else []
    smaller = OmegaConf.merge(declared, OmegaConf.from_dotlist(small))
    result = build(smaller).execute(tmp_path / "run")
    found = result.metrics if result.data.test is None else result.metrics["test"]
    numbers = [v for v in flat(found).values() if not isinstance(v, str) and v is not None]
    assert np.isfinite(numbers).all()
    bayesian = bool(result.posterior.model.sites)  # a point estimate has no posterior to export
    assert (tmp_path / "run" / "posterior.nc").exists() == bayesian


WRONG = [
    (["prior.pi=1.5"], "prior: pi must lie in [0, 1]"),
    (["prior.sigma1=1e-4"], "prior: sigma1 must be greater than sigma2"),
    (["prior=normal", "prior.sigma=-1"], "prior: sigma must be greater than 0"),
    (["+prior.sigmma=1"], "prior: "),
    (["+optim.lrr=1"], "optim: Adam got an unexpected keyword argument 'lrr'; it takes params, lr"),
    (["+model.hiden=[3]"], "activation; did you mean 'hidden'?"),
    (["+guide.rho=-3"], "guide: "),
    (["kl=tempered", "kl.temperature=0"], "kl: temperature must be greater than 0"),
    (["kl=warm_up", "kl.epochs=0"], "kl: epochs must be a whole number"),
    (["likelihood=normal", "likelihood.scale=0"], "likelihood: scale must be greater than 0"),
    (["data.scale=-1"], "data: scale"),
    (["epochs=0"], "epochs must be a whole number of at least 1"),
    (["batch_size=-3"], "batch_size must be a whole number of at least 1"),
    (["samples=0"], "samples must be a whole number of at least 1"),
    (["seed=-1"], "seed must be a whole number of at least 0"),
    (["seed=99999999999999999999"], "seed must be less than 2^63"),
    (["chains=0"], "chains must be a whole number of at least 1, got 0"),
    (["draws=0"], "draws must be a whole number of at least 1, got 0"),
    (["observations=-1"], "observations must be a whole number of at least 1, got -1"),
    (["export_weights=0"], "export_weights must be a whole number of at least 1, got 0"),
    (["export_weights=1.5"], "export_weights must be a whole number of at least 1, got 1.5"),
    (["export_weights=[]"], "export_weights must be a number or a list of names, got []"),
    (["export_weights=[1,2]"], "export_weights must be a number or a list of names, got [1, 2]"),
    (["export_weights={a: 1}"], "export_weights must be a number or a list of names, got {'a': 1}"),
    (["checkpoint_seconds=-1"], "checkpoint_seconds must lie in [0, inf], got -1"),
    (["fast=slow"], "fast must be one of auto, compiled, eager, off, got 'slow'"),
    (["device=tpu"], "device must be auto, cpu, cuda or cuda:NUMBER, got 'tpu'"),
    (["device=cuda:99"], "device 'cuda:99' was requested, but torch finds"),
    (["stacking=true"], "stacking weighs chains, of which there is one: ask for more, such as chains=5"),
    (["likelihood=mean_logits"], "needs samples=2 or more, vectorize=true and fast=off, got samples=1"),
    (["likelihood=mean_logits", "samples=5", "vectorize=true"], "vectorize=true and fast=auto"),
    (["prior._target_=pyrobbb.priors.Cauchy"], "prior: pyrobbb.priors has no 'Cauchy'"),
    (
        ["prior._target_=pyrobbb.priors.Lapalce"],
        "prior: pyrobbb.priors has no 'Lapalce'; did you mean 'Laplace'?",
    ),
    (["prior._target_=pyrobbb.prior.Normal"], "prior: pyrobbb has no 'prior'; did you mean 'priors'?"),
    (["prior._target_=pyrobb.priors.Normal"], "prior: there is no module 'pyrobb'; did you mean 'pyrobbb'?"),
    (["optim._target_=torch.optim.Adm"], "optim: torch.optim has no 'Adm'; did you mean 'Adam'?"),
    (
        ["guide=auto_normal", "guide.init_loc_fn._partial_=false"],
        "guide.init_loc_fn: kaiming() missing 1 required positional argument: 'site'; is it a function to be "
        "called later? Then write _partial_: true beside its _target_",
    ),
    (
        ["guide=auto_normal", "~guide.init_loc_fn", "+guide.init_loc_fn=pyrobbb.initializers.kaiming"],
        "guide.init_loc_fn must be a function, got the text 'pyrobbb.initializers.kaiming'; name one by its",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_wrong_values_name_the_key_before_data_is_loaded(overrides, message, monkeypatch):
    monkeypatch.setattr(
        "pyrobbb.data.images.mnist.IdxImages.load", lambda self: pytest.fail("data was loaded")
    )
    by_name = [word for word in overrides if word[0] in "+~" or "." not in word.partition("=")[0]]
    values = OmegaConf.from_dotlist([word for word in overrides if word not in by_name])
    with pytest.raises(ConfigError) as error:
        build(OmegaConf.merge(config(*by_name), values))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


ON_THE_WAY = [
    (["likelihood=normal"], "likelihood Normal is for regression, but Blobs is a classification data set"),
    (["model.hidden=4"], "hidden must be a list of whole numbers, got 4"),
    (["model.hidden=[0]"], "hidden[0] must be a whole number of at least 1, got 0"),
    (["model.activation=swish"], "activation must be one of relu, sigmoid, tanh, gelu, got 'swish'"),
    (["model=convnet", "model.hidden=4"], "convnet needs images of shape (channels, height, width)"),
    (["+rates.rhoo=2"], "rates: 'rhoo' matches no parameter; the parameters are guide.loc, guide.rho"),
    (["export_weights=[nope]"], "'nope' matches no weight; the parameters are 0.weight"),
    (["guide=auto_normal", "guide.init_scale=-1"], "Expected init_scale > 0. but got -1"),
    (
        ["prior=mixture_weights_point_biases", "+prior.where.nine={_target_:pyrobbb.priors.Normal}"],
        "the prior's pattern 'nine' matches no parameter",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), ON_THE_WAY, ids=[" ".join(o) for o, _ in ON_THE_WAY])
def test_wrong_values_that_the_data_show_leave_nothing(overrides, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        run_module.execute(config(*TINY, *overrides, f"folder={tmp_path}/run"), quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_a_signal_ends_right_after_its_results_says_how_it_was_made(tmp_path, monkeypatch):
    def ends(self, folder, *anything):
        (folder / "metrics.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_execute", ends)
    with pytest.raises(KeyboardInterrupt):
        run_module.execute(config(*TINY, f"folder={tmp_path}"), quiet=True)
    assert "versions" in json.loads((tmp_path / "provenance.json").read_text())


def test_of_two_runs_that_begin_at_once_the_second_leaves_the_folder_to_the_first(tmp_path):
    """It had removed their common config.yaml, without which the first could neither end nor resume."""
    with locked(tmp_path), pytest.raises(BlockingIOError, match="another run is working in"):
        run_module.execute(config(*TINY, f"folder={tmp_path}"), quiet=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", ".lock"}


def test_of_two_processes_one_draws_and_both_say_what_was_found(tmp_path, capsys, monkeypatch):
    """A second start removed the half-written figures of the first, which then failed."""
    monkeypatch.setattr(analyse.draw, "save", lambda figure, path: path.touch())  # which takes longest
    config_ = config(*TINY, f"folder={tmp_path}", "figures=true")
    run_module.execute(config_, quiet=True)
    (tmp_path / "figures" / "weights.png").unlink()
    (part := tmp_path / "figures" / ".weights.png.1-ab.part").write_text("half")
    (lock := tmp_path / CLAIMING).touch()  # of a command killed at its claim
    with locked(tmp_path):
        run_module.execute(config_)
    assert "another process is working in" in capsys.readouterr().err
    assert part.exists()
    assert lock.exists()
    run_module.execute(config_)
    assert not part.exists()
    assert not lock.exists()
    assert (tmp_path / "figures" / "weights.png").exists()
    with locked(tmp_path):
        run_module.execute(config_)
    assert not capsys.readouterr().err, "nothing is left to draw"


def test_a_run_needs_the_name_of_a_folder():
    with pytest.raises(ConfigError, match="folder: must name a folder, got nothing"):
        claim(config("folder="))
    for name in ("", "../elsewhere"):
        with pytest.raises(ConfigError, match="name: must name a folder in runs/, got"):
            claim(config(f"name={name}"))
    with pytest.raises(ConfigError, match=r"folder: x{200} cannot be written \(File name too long\)$"):
        run_module.execute(config("folder=" + 300 * "x"))


def test_python_is_the_same_expression_as_yaml():
    by_yaml = build(config(*TINY)).execute()
    by_hand = Run(
        data=Blobs(),
        model=partial(mlp, hidden=[8]),
        prior=priors.ScaleMixture(pi=0.5, sigma1=1.0),
        likelihood=likelihoods.Categorical(),
        guide=partial(MeanFieldNormal, init_loc=kaiming, init_rho=-5.0),
        optim=partial(torch.optim.Adam, lr=1e-3, fused=True),
        schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=2),
        epochs=2,
        batch_size=150,
        draws=5,
        validation_draws=1,
    ).execute()
    one, other = (r.posterior.chains[0][1].state_dict() for r in (by_yaml, by_hand))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[k], other[k]) for k in one)


def test_chains_are_independent_restarts(tmp_path):
    result = build(config(*TINY, "chains=2")).execute(tmp_path)
    a, b = (guide.loc for _, guide in result.posterior.chains)
    assert not torch.equal(a, b)
    posterior = arviz_io.load(tmp_path / "posterior.nc")["posterior"]
    assert dict(posterior.sizes) == {"chain": 2, "draw": 5, "parameter": 51}
    assert {row.chain for row in history.read(tmp_path / "history.csv")} == {0, 1}


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    c = config(*TINY, f"folder={tmp_path}")
    claim(c)
    c.device = "cpu"
    claim(c)  # where it runs is free to change
    c.epochs = 3
    with pytest.raises(ConfigError, match=r"epochs: 2 -> 3"):
        claim(c)


@pytest.mark.parametrize("epochs", [2, 3])
def test_of_two_configurations_claimed_at_once_the_first_stays(epochs, tmp_path, monkeypatch):
    """Another command writes the first one after this one has seen that there is none."""
    first, second = (config(*TINY, f"folder={tmp_path}/run", f"epochs={n}") for n in (2, epochs))

    def made_by_another(folder):
        monkeypatch.undo()
        claim(first)

    monkeypatch.setattr(folder_module, "make_folder", made_by_another)
    if epochs == 2:
        assert claim(second) == (tmp_path / "run", False)
    else:
        with pytest.raises(ConfigError, match=r"another configuration \(epochs: 2 -> 3;"):
            claim(second)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.yaml"}
    assert not differences(first)
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("epochs: 2", "epochs: '2'"))  # by hand, as text
    assert differences(first) == ["epochs: '2' -> 2"]


def test_command_line_from_a_yaml_file_outside_the_repository(tmp_path):
    tiny = {"data": {"N": 90}, "model": {"hidden": [8]}, "epochs": 2, "draws": 5, "report": False}
    defaults = ["run", {"override data": "blobs"}, {"override prior": "normal"}, "_self_"]
    mine = {"defaults": defaults, "name": "mine", **tiny}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    folder = tmp_path / "out"
    done = command(ROOT, "experiments.run", str(tmp_path / "mine.yaml"), "seed=3", f"folder={folder}")
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2: free energy" in done.stderr
    assert "test error" in done.stdout
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert (written["seed"], written["prior"]["_target_"]) == (3, "pyrobbb.priors.Normal")
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {"error", "error_mean_weights", "nll", "brier", "ece"} <= metrics["test"].keys()
    assert {"error", "error_mean_weights", "nll", "brier", "ece"} <= metrics["validation"].keys()
    assert {"train_seconds", "epochs", "parameters"} <= metrics.keys()
    pictures = {p.stem for p in (folder / "figures").glob("*.png")}
    assert pictures == {"kl_by_layer", "learning_curves", "weights", "signal_to_noise", "reliability"}
    ledger = metrics["kl_ledger"]
    assert set(ledger) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    stored = arviz_io.load(folder / "posterior.nc")["variational"]
    for name, row in ledger.items():
        assert float(stored["kl"].sel(layer=name)) == pytest.approx(row["nats"])
    energy, trivial = metrics["free_energy"], metrics["trivial_free_energy"]
    assert f"free energy {energy:.4g} nats per datum (ignoring the inputs: {trivial:.3g})" in done.stdout
    assert ("worse than ignoring the inputs" in done.stdout) == (energy > trivial)
    assert metrics["code_length"]["bits"] == pytest.approx(90 * energy / np.log(2))
    assert metrics["code_length"]["plain_bits"] == pytest.approx(90 * np.log2(3))
    assert "as a code for the training labels: 0." in done.stdout
    moved = folder.rename(tmp_path / "moved")  # figures and words need the folder alone
    assert "test error" in analyse.report(moved)


@pytest.mark.parametrize("name", [name for group, name in COMPONENTS if group == "prior"])
def test_figures_find_the_prior_of_every_run(name):
    schema.register()
    found = OmegaConf.to_container(OmegaConf.load(FOLDER / "prior" / f"{name}.yaml"), resolve=True)
    density = analyse.prior_density(found)
    of_each = ("fan_in_normal", "mixture_weights_point_biases", "deterministic")  # not one for all weights
    found_later = ("learned_normal", "learned_mixture", "ard", "horseshoe", "group_horseshoe")
    if name in of_each + found_later:
        assert density is None
    else:
        assert density is not None
        assert density(np.zeros(3)).shape == (3,)


@pytest.mark.parametrize(
    "prior",
    [
        {"_target_": "own_priors.Learned"},
        {
            "_target_": "pyrobbb.priors.PerParameter",
            "default": {"_target_": "pyrobbb.priors.Learned", "prior": {"_target_": "pyrobbb.priors.Normal"}},
        },
        {"_target_": "own_priors.OfOneNetwork"},
        {"_target_": "own_priors.OfOneShape"},
    ],
    ids=["trained", "learned in part", "of one network", "of one shape"],
)
def test_figures_leave_out_a_prior_that_only_the_fit_knows(prior):
    assert analyse.prior_density(prior) is None


def test_help_lists_what_can_be_swapped():
    done = command(ROOT, "experiments.run", "--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for group, name in COMPONENTS:
        row = next(line for line in lines[lines.index(group) :] if line.split()[:1] == [name])
        assert len(row.split()) > 1, f"{name} is not explained"


def test_what_others_published_stands_under_the_numbers_and_changes_no_run(tmp_path):
    c = config("experiment=ghia", *TINY, "samples=1", f"folder={tmp_path}/run")
    folder, _ = claim(c)
    build(c).execute(folder)
    lines = analyse.report(folder).splitlines()
    assert lines[-2].startswith(
        "published: Ghia's repository, with its faults, test error % of one draw after 1,"
    )
    assert lines[-2].endswith("8.67, 9.80, 11.55, 11.59")
    c.published = "otherwise"
    assert not differences(c)


def test_a_folder_is_named_after_the_last_value_of_a_key():
    assert changes(["epochs=60", "+rates.rho=3", "epochs=2"]) == "epochs=2,rates.rho=3"


def test_one_epoch_is_not_said_to_be_several():
    metrics = {"epochs": 1, "parameters": 5, "train_seconds": 0.2, "device": "cpu"}
    assert analyse.words(metrics, None)[0] == "5 weights, 1 epoch in 0 s on cpu"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("=3", "'=3' has no key; write key=value"),
        ("prior=3", "prior: 3 is not a name; there are"),
        ("kl=1e-3", "kl: 0.001 is not a name; there are"),
        ("experiment=null", "experiment: null is not a name; there are best, bound"),
        ("experiment=mnist", ""),
        ("prior={_target_:my.Prior,scale:2}", "keys of prior are given one by one, prior._target_=my.Prior"),
        (
            "+callbacks={stop: {_target_: a.Stop, patience: 3}}",
            "given one by one, +callbacks.stop._target_=a.Stop +callbacks.stop.patience=3",
        ),
        ("model=[400,400]", ""),  # a list of names, which Hydra looks for
        ("prior=normal", ""),
        ("prior=normal,laplace", ""),
        ("~prior", ""),
        ("prior=", ""),
        ("seed=3", ""),
        ("vectorize=2", "vectorize must be true or false, got 2"),
        ("vectorize=1", ""),
        ("epochs=)", "epochs=) cannot be read: "),
        ("name=größe", "quote it, \"name='...'\""),
        ("--help", ""),
        ("--config-name=x", ""),
        ("--epochs=3", "--epochs=3: a key has no dashes, write epochs=..."),
        ("--model.hidden", "--model.hidden: a key has no dashes, write model.hidden=..."),
    ],
)
def test_what_hydra_would_answer_with_a_traceback_is_put_into_words(argument, words):
    with pytest.raises(ConfigError, match=re.escape(words)) if words else nullcontext():
        run_module.check_argument(argument)


EVERY_KEY = f"there are {', '.join(sorted({*KNOWN, *NOT_OF_THE_RUN}))}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prior=scale_mixtur"], "prior: "),
        (["prior.pi=2"], "prior: pi must lie in [0, 1], got 2"),
        (["prior._target_=''"], "prior: '' is not a dotted path: a part of your own is named as in"),
        (["prior._target_=./my_prior.py"], "prior: './my_prior.py' is not a dotted path: a part of your own"),
        (["nowhere.yaml"], "nowhere.yaml does not exist"),
        (["schedule=null"], "schedule: null is not a name; there are constant"),
        *(([f"{plus}foo=1"], f"foo: there is no such key; {EVERY_KEY}") for plus in ("", "+")),
        (["~prior"], "prior: the configuration lacks this key: either ~prior took it out, or `run` is not"),
        (["model.hidden=[20"], "model.hidden=[20 cannot be read: "),
        (["epochs=five"], "epochs: Value 'five' of type 'str' could not be converted to Integer"),
        (["modl.hidden=[20]"], "modl: there is no such key; did you mean 'model'?"),
        (["data.scal=2"], "data.scal: there is no such key; did you mean 'scale'?"),
        (["data=table", "source=t.csv"], "source: there is no such key; did you mean 'data.source'?"),
        (
            ["prior=laplace", "scale=2"],
            "scale: there is no such key; did you mean 'data.scale' or 'prior.scale'?",
        ),
        (
            ["kl=warm_up", "kl.speed=2"],
            "kl.speed: there is no such key; kl has epochs; +kl.speed=... adds it",
        ),
        (["data=on_disk", "data.y=y.npy"], "data.x has no value; write data.x=..."),
        (["seed=1,2"], "seed=1,2 are several values: -m runs a sweep over them; a list is written [1,2]"),
        (
            ["data=noisy_sine", "data.gap=0.5"],
            "data: gap must be two numbers in order, between -1 and 1, got",
        ),
        (["data=noisy_sine", "data.gap=[a,b]"], "data: gap must be two numbers in order, between -1 and 1"),
        (["data=noisy_sine", "data.gap=[]"], "data: gap must be two numbers in order, between -1 and 1"),
        (["rates.rho=10"], "rates.rho: there is no such key; +rates.rho=... adds it"),
        (
            ["studies=recipes"],
            "studies: there is no such group of components; there are callbacks, data, elbo,",
        ),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said_in_plain_words(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        run_module.main()
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {said}")
    assert printed.count("\n") == 1
    assert "full_key" not in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("defaults: [run, _self_]\nepoch: 10\n", "epoch: there is no such key; did you mean 'epochs'?"),
        (
            "defaults: [run, override likelihoods: normal, _self_]\n",
            "likelihoods: there is no such group of components; did you mean 'likelihood'?",
        ),
        (
            "defaults: [run, priro: laplace, _self_]\n",
            "priro: there is no such group of components; did you mean 'prior'?",
        ),
        ("defaults: [run, other, _self_]\n", "defaults: there is no file other.yaml, beside yours or here"),
        (
            "defaults: [run, mine, _self_]\n",
            "mine.yaml is among its own defaults: mine -> mine; leave it out there",
        ),
        *(
            (
                f"defaults: [run, _self_]\n{group}: {part}\n",
                f"mine.yaml: {group} must be a mapping of values here, got {said}; "
                f"one of ours is named among the defaults, `- override {group}: NAME`",
            )
            for group, part, said in (
                ("prior", "laplace", "'laplace'"),
                ("prior", "[{scale: 1}]", "[{'scale': 1}]"),
                ("callbacks", "[]", "[]"),
                ("experiment", "mnist", "'mnist'"),
            )
        ),
        (
            "defaults: [run, _self_]\nseed: 2.5\n",
            "seed: Value '2.5' of type 'float' could not be converted to Integer",
        ),
        ("defaults: [run, _self_]\nrates: [1]\n", "In 'mine': Cannot merge DictConfig with ListConfig"),
        (
            "defaults: [run, _self_]\nresults: claims\n",
            f"results: there is no such key; {EVERY_KEY}",
        ),
    ],
)
def test_what_is_wrong_in_a_file_of_ones_own_is_said_in_plain_words(
    content, said, monkeypatch, capsys, tmp_path
):
    (tmp_path / "mine.yaml").write_text(content)
    monkeypatch.setattr("sys.argv", ["run.py", str(tmp_path / "mine.yaml")])
    with pytest.raises(SystemExit, match="2"):
        run_module.main()
    assert capsys.readouterr().err == f"error: {said}\n"


def test_defaults_of_a_file_in_a_folder_lie_there(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "mine.yaml").write_text("defaults: [run, sub/base, _self_]\n")
    (tmp_path / "sub" / "base.yaml").write_text("defaults: [mine]\nepochs: 2\n")
    (tmp_path / "sub" / "mine.yaml").write_text("seed: 2\n")
    found = own_content(tmp_path, "mine")
    assert found == {"defaults": ["mine", "run", "sub/base", "_self_"], "seed": 2, "epochs": 2}
    (tmp_path / "sub" / "mine.yaml").write_text("defaults: [/mine]\n")
    with pytest.raises(ConfigError, match="its own defaults: mine -> base -> mine -> mine; leave it out"):
        own_content(tmp_path, "mine")
    (tmp_path / "sub" / "mine.yaml").write_text("defaults:\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: defaults must be a list, got None; leave it out if"):
        own_content(tmp_path, "mine")


def test_a_sweep_may_be_asked_for_anywhere_among_the_arguments(monkeypatch):
    seen = []
    monkeypatch.setattr(run_module, "hydra_main", lambda: seen.append(sys.argv[1:]))
    monkeypatch.setattr("sys.argv", ["run", "experiment=mnist", "-m", "seed=1,2"])
    run_module.main()
    assert seen == [["-m", "experiment=mnist", "seed=1,2"]]


MINE = "defaults: [run]\nepochs: 1\n"


def test_a_file_of_ones_own_in_a_folder_with_an_equals_sign(tmp_path, monkeypatch):
    seen = []
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / "lr=0.1" / "my.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "hydra_main", lambda: seen.append(sys.argv[1:]))
    monkeypatch.setattr("sys.argv", ["run", "lr=0.1/my.yaml"])
    run_module.main()
    assert seen == [["--config-dir", str(tmp_path / "lr=0.1"), "--config-name", "my"]]


def test_a_link_to_a_file_of_ones_own_goes_by_its_own_name(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "run.yaml").write_text(MINE)
    (tmp_path / "mine.yaml").symlink_to("kept/run.yaml")
    assert run_module.own_file(str(tmp_path / "mine.yaml"))[-1] == "mine"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("mine.yaml", None, "mine.yaml does not exist"),
        ("", None, "is not a file"),
        ("mine.yaml", "", "needs a list `defaults:` with `- run` as its first entry"),
        ("mine.yaml", "epochs: 3\n", "needs a list `defaults:`"),
        ("mine.yaml", "- run\n", "needs a list `defaults:`"),
        ("mine.yaml", "defaults: [run]\nepochs:\t3\n\tx: 1\n", "mine.yaml is not a configuration: "),
        ("mine.yaml", MINE + "epochs: 2\n", "mine.yaml is not a configuration: while constructing a mapping"),
        ("mine.yaml", MINE + "name: \xff\n", "mine.yaml is not a configuration: 'utf-8' codec can't decode"),
        ("run.yaml", MINE, "run.yaml: run is the name of a configuration here; give yours another"),
        ("mine.yml", MINE, "mine.yml: the name of a configuration ends in .yaml; rename it"),
        ("schema.yml", MINE, "schema is the name of a configuration here"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_run(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=re.escape(words)):
        run_module.own_file(str(tmp_path / name))


def test_a_refused_run_leaves_nothing_and_the_right_one_follows(tmp_path):
    folder = tmp_path / "new" / "run"
    right = config(*TINY, f"folder={folder}")
    refused, other = (
        OmegaConf.merge(right, {group: values})
        for group, values in (("optim", {"lr": -1}), ("model", {"hidden": [9]}))
    )
    with pytest.raises(ValueError, match="Invalid learning rate"):
        run_module.execute(refused, quiet=True)
    assert not (tmp_path / "new").exists()
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="Invalid learning rate"):
        run_module.execute(refused, quiet=True)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    metrics = run_module.execute(right, quiet=True)
    assert metrics["epochs"] == 2

    for lose in (Path.unlink, partial(Path.write_text, data="")):  # of a finished run: made again
        lose(folder / "posterior.nc")
        again = run_module.execute(right, quiet=True)
        assert again["test"] == metrics["test"]
        assert (folder / "posterior.nc").stat().st_size
    wrong = {"test": None, "validation": {"error": "x"}, "free_energy": "x", "parameters": None}
    changed = [json.dumps({**metrics, key: value}) for key, value in wrong.items()]
    for content in ("[]", '{"test"', "{}", '{"a": 1}', *changed):
        (folder / "metrics.json").write_text(content)
        with pytest.raises(ConfigError, match=r"metrics.json is damaged .*remove it, and the command"):
            run_module.execute(right, quiet=True)
    (folder / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"holds \S+ without the config.yaml that says which run"):
        run_module.execute(other, quiet=True)
    assert not (folder / "config.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"foo": 1}, "foo: there is no such key; there are batch_size, callbacks, chains"),
        ({"prior": None}, "prior: the configuration lacks this key"),
    ],
)
def test_keys_that_a_run_has_not_and_lacks(changes, words):
    content = OmegaConf.to_container(config(*TINY))
    content |= changes
    with pytest.raises(ConfigError, match=words):
        build(OmegaConf.create({k: v for k, v in content.items() if v is not None}))


@pytest.mark.parametrize("kind", ["blobs", "on_disk"])
def test_a_run_is_reopened_with_its_history_and_the_reach_of_its_data(kind, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(60) % 3)
    files = [f"data.x={tmp_path / 'x.npy'}", f"data.y={tmp_path / 'y.npy'}"] if kind == "on_disk" else []
    words = [
        f"data={kind}",
        *files,
        "model.hidden=[3]",
        "epochs=2",
        "chains=2",
        "figures=false",
        "report=false",
    ]
    run_module.execute(config(*words, f"folder={tmp_path / 'out'}"), quiet=True)
    found = reopen(tmp_path / "out")
    assert [[row.epoch for row in history.rows] for history in found.posterior.histories] == [[1, 2], [1, 2]]
    seen = found.data.train.take(torch.arange(len(found.data.train))).x
    assert found.posterior.reach == float(seen.abs().max())


def test_a_configuration_or_data_that_changed_after_the_training_are_refused(tmp_path, monkeypatch):
    """Of the data only 64 of the inputs had been compared, unlike where a training resumes."""
    run_module.execute(config(*TINY, "prior=normal", f"folder={tmp_path}"), quiet=True)
    path = tmp_path / "config.yaml"
    text = path.read_text()
    for before, after, what in [
        ("sigma: 1.0", "sigma: 2.0", "prior"),
        ("seed: 0", "seed: 4", "other training data"),
        ("\nseed: 1", "\nseed: 7", "seed 1, this is 7"),
    ]:
        assert text.count(before) == 1
        path.write_text(text.replace(before, after))
        with pytest.raises(CheckpointError, match=rf"config\.yaml or its data changed: .*{what}"):
            reopen(tmp_path)
    path.write_text(text)
    reopen(tmp_path)

    load = Blobs.load
    for part, said in [("train", "training"), ("validation", "validation")]:

        def changed(self, part=part):
            data = load(self)
            getattr(data, part).x[1] += 1.0  # no row of the 64
            return data

        monkeypatch.setattr(Blobs, "load", changed)
        with pytest.raises(CheckpointError, match=f"made with other {said} data"):
            reopen(tmp_path)
