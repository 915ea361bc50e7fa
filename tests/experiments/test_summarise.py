"""The summary of run folders: against numbers worked out by hand, and folders that are damaged or hostile."""

import csv
import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path
from statistics import stdev

import pytest
import yaml
from matplotlib.image import imread
from torch.optim import Adam

from experiments import summarise
from experiments._runner.command import folder_command
from experiments._runner.find_runs import RunFolder, find, label, shown, varied
from experiments._runner.study import Outputs
from pyrobbb import likelihoods, priors
from pyrobbb.data import NoisySine
from pyrobbb.evaluation import arviz_io
from pyrobbb.experiment import Run
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp


def config(seed, prior="Normal", **values):
    return {
        "data": {"_target_": "pyrobbb.data.MNIST", "root": f"/somewhere/{seed}"},
        "model": {"_target_": "pyrobbb.models.mlp.mlp", "hidden": [8]},
        "prior": {"_target_": f"pyrobbb.priors.{prior}", {"Normal": "sigma"}.get(prior, "scale"): 1.0},
        "likelihood": {"_target_": "pyrobbb.likelihoods.Categorical"},
        "guide": {"_target_": "pyrobbb.mean_field.MeanFieldNormal"},
        "optim": {"_target_": "torch.optim.Adam", "lr": 0.001},
        "epochs": 4,
        "seed": seed,
        "folder": f"runs/{seed}",
        **values,
    }


def write(folder, config, value=None, **left):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if value is not None:
        part = {"error": value, "nll": value / 10}
        metrics = {"validation": part, "free_energy": 1.0, "train_seconds": 3.0, "seed": config["seed"]}
        if "Laplace" in config["prior"]["_target_"]:
            metrics |= {"trivial_free_energy": 2.4, "kl_ledger": {"0.weight": {"nats": 9.0}}}
        (folder / "metrics.json").write_text(json.dumps(metrics))
    for name, content in left.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path):
    """Three seeds of one prior, one run of another, one failed, one not done, one that is not a run."""
    for seed, value in ((1, 4.0), (2, 6.0), (3, 8.0)):
        write(tmp_path / f"a/seed={seed}", config(seed), value)
    write(tmp_path / "b", config(1, prior="Laplace"), 5.0)
    write(tmp_path / "c", config(1, epochs=9), error={"error": "not finite"})
    write(tmp_path / "d", config(2, epochs=9))
    write(tmp_path / "study/point", config(5), result={"accuracy": 1})
    return tmp_path


def test_groups_are_seeds_and_are_sorted_by_their_mean(root):
    ((measure, groups),) = summarise.groups(find(root)).items()
    assert measure == "validation error (%)"
    assert [[run.value for run in group] for group in groups] == [[5.0], [4.0, 6.0, 8.0]]


def test_a_run_that_is_older_than_a_key_is_a_seed_of_the_others(tmp_path):
    for seed, newer in ((1, {"tf32": False, "stacking": False}), (2, {})):
        write(tmp_path / f"seed={seed}", config(seed, **newer), 4.0)
    ((group,),) = summarise.groups(find(tmp_path)).values()
    assert len(group) == 2
    assert varied([run.config for run in group]) == []


def test_the_report_has_means_spread_numbers_and_errors(root):
    lines = [line.split() for line in summarise.summarise(root).splitlines()]
    assert ["prior=Laplace", "5.000", "-", "1", "0.5000", "1", "(2.4)", "3"] in lines
    assert ["prior=Normal", "6.000", f"{stdev([4, 6, 8]):.2g}", "3", "0.6000", "1", "3"] in lines
    assert ["c:", "not", "finite"] in lines
    assert ["d:", "after", "epoch", "0", "of", "9"] in lines
    assert imread(root / "summary.png").shape[0] > 100


def test_a_missing_number_is_a_dash(tmp_path):
    write(tmp_path / "a", config(1))
    (tmp_path / "a/metrics.json").write_text('{"validation": {"error": 4.0}, "seed": 1}')
    lines = [line.split() for line in summarise.summarise(tmp_path).splitlines()]
    assert ["default", "4.000", "-", "1", "-", "-", "-"] in lines


def test_the_csv_has_a_line_for_each_run_best_first(root):
    summarise.summarise(root)
    with (root / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["folder"], r["state"]) for r in rows] == [
        ("a/seed=1", "finished"),
        ("b", "finished"),
        ("a/seed=2", "finished"),
        ("a/seed=3", "finished"),
        ("c", "failed"),
        ("d", "unfinished"),
    ]
    assert [r["validation.error"] for r in rows] == ["4.0", "5.0", "6.0", "8.0", "", ""]
    assert [r["trivial_free_energy"] for r in rows] == ["", "2.4", "", "", "", ""]
    assert not any("kl_ledger" in key for key in rows[0])
    assert [r["seed"] for r in rows] == ["1", "1", "2", "3", "1", "2"]
    assert rows[4]["problem"] == "not finite"


@pytest.mark.parametrize(
    ("configs", "keys"),
    [
        ([{"a": 1}, {"a": 1}], []),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], ["b"]),
        ([{"a": 1}, {"a": 1, "rates.rho": 10}], ["rates.rho"]),
        ([{"p._target_": "x.A", "p.s": 1}, {"p._target_": "x.B", "p.t": 2}], ["p._target_"]),
        (
            [{"p._target_": "x.A", "p.s": 1}, {"p._target_": "x.A", "p.s": 2}, {"p._target_": "x.B"}],
            ["p._target_", "p.s"],
        ),
        (
            [{"g._target_": "x.A", "g.i._target_": "y.B"}, {"g._target_": "x.C"}],
            ["g._target_"],
        ),
        ([{"seed": 1, "folder": "a", "device": "cpu"}, {"seed": 2, "folder": "b", "device": "cuda"}], []),
    ],
)
def test_keys_that_tell_configurations_apart(configs, keys):
    assert varied(configs) == keys


def test_labels_are_short():
    one = {"p._target_": "a.b.C", "lr": 0.0012345678, "h": [8, 8]}
    assert label(one, shown(["p._target_", "lr", "h", "x"], [one])) == "p=C lr=0.001235 h=[8,8]"


def test_components_of_one_name_in_two_modules_are_told_apart(tmp_path):
    for value, target in ((4.0, "pyrobbb.priors.Normal"), (5.0, "mine.Normal"), (6.0, "mine.Other")):
        write(tmp_path / target, config(1) | {"prior": {"_target_": target}}, value)
    settings = [line.split()[0] for line in summarise.summarise(tmp_path).splitlines() if "prior=" in line]
    assert settings == ["prior=pyrobbb.priors.Normal", "prior=mine.Normal", "prior=Other"]


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_posteriors_are_compared_where_the_observations_are_the_same(tmp_path):
    for name, sigma, N, draws in (
        ("a", 0.5, 40, 25),
        ("b", 2.0, 40, 25),
        ("other_data", 2.0, 30, 25),
        ("few_draws", 3.0, 40, 24),
    ):
        run = Run(
            data=NoisySine(N=N),
            model=partial(mlp, hidden=[4]),
            prior=priors.Normal(sigma=sigma),
            likelihood=likelihoods.Normal(0.1),
            guide=MeanFieldNormal,
            optim=partial(Adam, lr=0.01),
            epochs=1,
            fast="eager",
            batch_size=20,
            draws=draws,
        )
        run.execute(tmp_path / name)
        settings = config(1) | {"prior": {"sigma": sigma}, "data": {"N": N}}
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(settings))
    said = summarise.summarise(tmp_path)
    with (tmp_path / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {r["run"] for r in rows} == {"data.N=40 prior.sigma=0.5 seed=1", "data.N=40 prior.sigma=2 seed=1"}
    az = arviz_io.import_arviz()
    elpd = float(rows[0]["elpd"])
    both = [az.loo(arviz_io.load(tmp_path / name / "posterior.nc")) for name in ("a", "b")]
    assert elpd == pytest.approx(
        max(float(getattr(loo, "elpd_loo", getattr(loo, "elpd", 0))) for loo in both)
    )
    assert "az.compare" in said


def test_other_numbers_of_the_same_configuration_and_seed_are_named(tmp_path):
    for name, value in (("before", 29.13), ("again", 29.13), ("changed", 23.1)):
        write(tmp_path / name, config(1), value)
    write(tmp_path / "unfinished", config(1))
    words = summarise.summarise(tmp_path)
    assert f"best run: {tmp_path / 'again'}, validation error (%) 29.13" in words
    assert len(json.loads((tmp_path / "record.json").read_text())["runs"]) == 1
    assert "not counted, since another run has the configuration and the seed, though" in words
    assert "data, code, device or number of processes: changed\n" in words
    assert "folders that repeat the run of another and are not counted again: 2" in words


def test_runs_behind_links_are_found_once(tmp_path):
    write(tmp_path / "disk/a", config(1), 4.0)
    write(tmp_path / "runs/b", config(2), 5.0)
    for name, target in (("a", "disk/a"), ("again", "runs/b"), ("loop", "runs")):
        (tmp_path / "runs" / name).symlink_to(tmp_path / target)
    assert [run.folder for run in find(tmp_path / "runs")] == [tmp_path / "runs/a", tmp_path / "runs/b"]


def test_nothing_in_a_folder_is_run(root, tmp_path):
    trap = tmp_path / "sprung"
    hostile = root / "hostile"
    hostile.mkdir()
    (hostile / "config.yaml").write_text(f'!!python/object/apply:os.system ["touch {trap}"]')
    target = {"_target_": "os.system", "command": f"touch {trap}"}
    write(root / "target", config(1, prior="Laplace") | {"prior": target, "data": target}, 7.0)
    said = summarise.summarise(root)
    assert not trap.exists()
    assert "hostile: cannot be read" in said
    assert "prior=system" in said


DAMAGED = [
    "",
    "{",
    "[]",
    '{"validation": 3}',
    '{"validation": {"error": "x"}}',
    '{"validation": {"error": NaN}}',
    '{"validation": {"error": 2.0, "nll": "x"}}',
    '{"validation": {"error": 2.0}, "train_seconds": null}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_metrics_are_named_and_the_rest_is_shown(root, content):
    (root / "b" / "metrics.json").write_text(content)
    said = summarise.summarise(root)
    assert "b: cannot be read" in said
    assert "best run" in said


def test_a_finished_run_whose_configuration_was_cut_off_is_named(root):
    path = root / "b" / "config.yaml"
    path.write_text(path.read_text()[: path.read_text().index("optim")])
    said = summarise.summarise(root)
    assert "b: cannot be read (the configuration in config.yaml is not that of a run: it lacks optim)" in said
    assert "best run" in said


def test_results_without_a_configuration_are_named(root):
    (root / "b" / "config.yaml").unlink()
    said = summarise.summarise(root)
    assert "b: cannot be read (metrics.json is there without the config.yaml" in said
    assert "best run" in said


def test_a_folder_that_cannot_be_looked_into_is_named(root, monkeypatch):
    scandir = os.scandir

    def denied(place):
        if Path(place) == root / "study":
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", denied)
    assert "study: cannot be read (Permission denied)" in summarise.summarise(root)


def test_only_failures_are_a_summary_too(root):
    summarise.summarise(root)
    (root / "compare.csv").touch()
    for name in ("a", "b", "d", "study"):
        shutil.rmtree(root / name)
    said = summarise.summarise(root)
    assert "1 failed:" in said
    assert not (root / "summary.png").exists()  # of an earlier summary, whose runs are gone
    assert not (root / "compare.csv").exists()


@pytest.mark.parametrize(("made", "words"), [(True, "holds no runs"), (False, "is not a folder")])
def test_a_folder_without_runs_is_one_clear_error(tmp_path, capsys, monkeypatch, made, words):
    folder = tmp_path / "nothing"
    if made:
        folder.mkdir()
    monkeypatch.setattr("sys.argv", ["summarise", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        folder_command("experiments.summarise", summarise.__doc__, summarise.summarise)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
    assert not made or not list(folder.iterdir())


def test_a_folder_whose_name_is_not_utf_8_has_a_line(tmp_path):
    run = RunFolder(tmp_path / os.fsdecode(b"\xff"), {}, "failed", error="why")
    summarise.write_csv([run], Outputs(tmp_path))
    lines = (tmp_path / "summary.csv").read_text().split()
    assert lines == ["folder,state,seed,problem", r"\udcff,failed,,why"]
