"""report.html of a run and summary.html of a sweep: left by the commands, made again, never in the way."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
import yaml

from experiments import analyse, check, report
from experiments import run as run_module
from experiments._runner.build import ConfigError
from experiments._runner.compose import declared
from experiments._runner.find_runs import RunFolder
from experiments._runner.reopen import reopen
from experiments.paper import pruning
from experiments.summarise import summarise
from pyrobbb.checkup import check as check_posterior
from pyrobbb.checkup import recorded
from pyrobbb.data import from_arrays
from pyrobbb.evaluation import arviz_io, arviz_plots
from pyrobbb.experiment import Run
from pyrobbb.report import run_page
from pyrobbb.report.predictions import without_inputs
from pyrobbb.report.sweep import Line, sweep_page

SMALL = [
    "data=blobs",
    "data.N=90",
    "model.hidden=[4]",
    "epochs=2",
    "batch_size=30",
    "draws=25",
    "observations=20",
]
VALUES = ["data=noisy_sine", "likelihood=normal"]


def execute(folder, *overrides):
    return run_module.execute(declared("run", [*SMALL, "figures=false", f"folder={folder}", *overrides]))


def page(folder, name="report.html"):
    return without_vega((folder / name).read_text(encoding="utf-8"))


def without_vega(html):
    return re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


def headings(html):
    return re.findall(r"<h2[^>]*>(.*?)</h2>", html)


ALWAYS = ["What was run", "Can it be trusted?", "How good it is"]
LATER = ["Calibration", "Most uncertain inputs", "Weights", "In ArviZ", "Versions, hardware and files"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "default"
    return folder, execute(folder, "published=someone 1.5")


def test_a_run_leaves_its_page_with_its_numbers(finished):
    folder, metrics = finished
    html = page(folder)
    assert headings(html) == [*ALWAYS, "How training went", "Where the KL goes", "As a code", *LATER]
    assert f"{metrics['test']['error']:.2f} %" in html
    assert "someone 1.5" in html
    assert "Leave-one-out (az.loo)" in html
    assert f"{metrics['parameters']} " in html or f">{metrics['parameters']}<" in html
    assert html.count(f"python -m experiments.check {folder}") == 2  # in the head and with the checks
    assert html.count("by the command below") == 2
    assert torch.__version__ in html
    assert f"ignoring the inputs: {metrics['trivial_free_energy']:.3g}" in html


def test_the_page_says_how_good_it_would_be_to_ignore_the_inputs(finished):
    folder, _ = finished
    data = arviz_io.load(folder / "posterior.nc")
    y = data["predictions_constant_data"]["y"].values
    seen = data["observed_data"]["y"].values
    wrong = 100 * (y != np.bincount(seen.astype(int)).argmax()).mean()
    said = f"most common class of {len(seen)} training rows for every test row: {wrong:.2f}\u00a0% wrong."
    assert said in page(folder)
    test = {"y": xr.DataArray([1.0, 4.0])}
    assert without_inputs(test, np.array([0.0, 2.0])).endswith("RMSE 2.121.")  # sqrt(9 / 2)
    assert without_inputs(test, np.array([0.0, 1.0]), np.array([0.0, 2.0])).endswith("RMSE 2.121.")
    test = {"y": xr.DataArray([1, 1]), "probs": 0}
    assert without_inputs(test, np.array([0, 0, 1]), np.array([1.0, 1.0, 3.0])).endswith(": 0.00 % wrong.")


@pytest.mark.parametrize(
    ("what", "lead"),
    [("draws=24", report.LEAD), ("guide=auto_delta", report.MODE), ("inference=map", report.MODE)],
)
def test_a_run_with_few_draws_or_a_point_leaves_its_page_without_loo(tmp_path, what, lead):
    execute(tmp_path, what)
    html = page(tmp_path)
    assert "In ArviZ" in headings(html)
    assert "Leave-one-out" not in html
    assert lead in html


def test_a_page_says_which_picture_is_missing_and_why(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.setattr(arviz_plots, "pictures", lambda *_: {"ppc": "no density", "khat": b"PNG"})
    html = without_vega(run_page(folder))
    assert "(plot_ppc) is missing, for ArviZ failed: no density." in html
    assert html.count('<img class="plot"') == 1


def test_what_a_command_killed_at_the_page_left_is_swept(finished):
    folder, _ = finished
    (folder / "figures").mkdir(exist_ok=True)
    left = [folder / ".report.html.1-ab.part", folder / "figures" / ".weights.png.1-ab.part"]
    for path in left:
        path.write_text("half")
    execute(folder, "published=someone 1.5")
    assert not any(path.exists() for path in left)


def test_the_check_brings_its_verdict_onto_the_page(finished):
    folder, _ = finished
    said = check.checked(folder)
    found = json.loads((folder / "check.json").read_text())
    assert "report.html" in said
    html = page(folder)
    assert found["verdict"][1:] in html
    assert "by the command below" not in html
    assert all(f">{finding['name'].capitalize()}<" in html for finding in found["findings"])


def test_the_files_of_a_run_tell_as_much_of_its_faults_as_the_check(finished):
    folder, metrics = finished
    bound, calibration = recorded(folder)
    assert bound.value == metrics["free_energy"] - metrics["trivial_free_energy"]
    opened = reopen(folder)
    again = {finding.name: finding for finding in check_posterior(opened.posterior, opened.data, steps=1)}
    assert again["trivial bound"].passed == bound.passed
    assert again["calibration"].passed == calibration.passed
    assert recorded(folder.parent / "nothing") == []


def test_others_numbers_stand_beside_those_of_the_run(finished, tmp_path):
    rows = [["paper", 1.36, "Table 1"], ["paper", 1.24], ["JINKEHE", "1.5 / -"]]
    said = {"score": "test.error", "of": "wide prior, 2x400", "rows": rows}
    in_words = "test error %, wide prior, 2x400: paper 1.36 (Table 1), paper 1.24, JINKEHE 1.5 / -"
    assert analyse.sentence(said) == in_words
    folder = shutil.copytree(finished[0], tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"published": said}))
    report.report(folder)
    own = f"{finished[1]['test']['error']:.2f} %"
    rows = re.findall(r"<th scope=\"row\">(.*?)</th>\s*<td>(.*?)</td>", page(folder))
    assert [row for row in rows if row[0][:3] in ("Thi", "Pap", "JIN")] == [
        ("This run", own),
        ("Paper<small>Table 1</small>", "1.36 %"),
        ("Paper", "1.24 %"),
        ("JINKEHE", "1.5 / - %"),
    ]
    assert "Error on test data beside what others published: wide prior, 2x400" in page(folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"published": said | {"score": "test.rmse"}}))
    report.report(folder)  # of a score that this run has not
    assert "1.5 / -" in page(folder)
    assert own not in page(folder).partition("what others published")[2].partition("</table>")[0]


def test_published_numbers_of_another_form_are_refused_before_the_run(tmp_path):
    for said in ("{score: test.error, rows: []}", "{score: test.error, of: x, rows: [[paper]]}"):
        with pytest.raises(ConfigError, match=r"^published: .* score, of and rows, each row"):
            execute(tmp_path, f"published={said}")
    assert not (tmp_path / "config.yaml").exists()


def test_pruning_brings_its_curve_onto_the_page(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    pruning.analyse(folder, [0.0, 0.5], draws=0)
    assert "Pruning" in headings(page(folder))
    rows = json.loads((folder / "pruning" / "record.json").read_text())["rows"]
    assert rows[1]["left"] == 13
    assert '<td class="number" data-sort="13.0">13</td>' in page(folder)


def test_of_values_there_is_a_band_and_no_code(tmp_path):
    execute(tmp_path, *VALUES, "chains=2")
    html = page(tmp_path)
    later = [f"{name} of chain 0" if name == "Weights" else name for name in LATER]
    training = ["How training went", "Where the KL of chain 0 goes"]
    assert headings(html) == [*ALWAYS, *training, "Predictions", *later]
    assert "chain 1" in html


@pytest.mark.parametrize("prior", ["deterministic", "normal"])
def test_what_has_no_posterior_or_no_steps_has_a_page_too(tmp_path, prior):
    few = ["inference=nuts", "inference.warmup=2", "inference.draws=4", "inference.max_tree_depth=2"]
    execute(tmp_path, f"prior={prior}", *(few if prior == "normal" else []))
    html = page(tmp_path)
    found = headings(html)
    assert ("Weights" in found) == (prior == "normal")
    assert ("How training went" in found) == (prior == "deterministic")
    assert "free energy" not in html.lower()


def test_without_the_extra_a_line_says_so_and_the_run_is_finished(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("pyrobbb.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    metrics = execute(tmp_path)
    assert metrics["epochs"] == 2
    assert "'.[report]' in your clone" in capsys.readouterr().out.splitlines()[-1]
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(ConfigError, match=r"\.\[report\]"):
        report.report(tmp_path)


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config\.yaml$"):
        report.report(tmp_path)
    (tmp_path / "seed=1").mkdir()
    (tmp_path / "seed=1" / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"no config\.yaml; .*seed=1 is one$"):
        report.report(tmp_path)
    (tmp_path / "seed=2" / "config.yaml").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read \(Is a directory\)$"):
        report.report(tmp_path / "seed=2")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"table\.csv is a file, not a run folder"):
        report.report(tmp_path / "table.csv")
    (tmp_path / "config.yaml").write_text("prior: {_target_: os.system}\n")
    with pytest.raises(ConfigError, match="not a part of this library"):
        report.report(tmp_path)
    (tmp_path / "config.yaml").write_text("prior: {_target_: pyrobbb.priors.Normal}\n")
    with pytest.raises(ValueError, match="the run is not finished"):
        report.report(tmp_path)


def test_the_command_that_repeats_a_run_and_a_page_that_is_made_later(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "figures=false", "report=false", "prior.sigma1=2", "folder=here"]
    monkeypatch.setattr(sys, "argv", ["run", *words])
    run_module.main()
    said = json.loads((tmp_path / "here" / "provenance.json").read_text())["command"]
    assert said.startswith("python -m experiments.run ")
    assert all(word in said for word in ("prior.sigma1=2", "'model.hidden=[4]'", "folder=here"))
    assert not (tmp_path / "here" / "report.html").exists()
    monkeypatch.setattr(sys, "argv", ["report", "here"])
    report.main()
    assert str(Path("here", "report.html")) in capsys.readouterr().out
    assert "Weights" in headings(page(tmp_path / "here"))
    for name, said in {
        "check.json": "or make it again: python -m experiments.check here$",
        "provenance.json": "remove it: the page does without$",
        "posterior.nc": "remove it, and the run's command writes it again$",
    }.items():
        (tmp_path / "here" / name).write_text("{")
        with pytest.raises(ValueError, match=said):
            report.report(Path("here"))
        (tmp_path / "here" / name).unlink()
    (tmp_path / "here" / "pruning").mkdir()
    for name in ("check.json", "pruning/record.json"):
        (tmp_path / "here" / name).write_text('{"of": "another program"}')
        with pytest.raises(ValueError, match=rf"{name} does not hold what .* reads \(KeyError: '"):
            report.report(Path("here"))
        (tmp_path / "here" / name).unlink()
    (tmp_path / "here" / "pruning" / "record.json").write_text('{"rows": []}')
    with pytest.raises(
        ValueError, match=r"pruning/record.json does not hold .* \(IndexError: rows is empty\)"
    ):
        report.report(Path("here"))
    (tmp_path / "here" / "pruning" / "record.json").unlink()
    (tmp_path / "mine.yaml").write_text("defaults: [run, _self_]\nname: mine\n")
    monkeypatch.setattr(sys, "argv", ["run", "mine.yaml", *words[:-1], "seed=2", "folder=there"])
    run_module.main()
    said = json.loads((tmp_path / "there" / "provenance.json").read_text())["command"]
    assert f"python -m experiments.run {tmp_path / 'mine.yaml'} data=blobs" in said
    shutil.copy(tmp_path / "there" / "posterior.nc", tmp_path / "here" / "posterior.nc")
    for read in (report.report, analyse.figures, recorded):
        with pytest.raises(ValueError, match=r"here/posterior\.nc is not the file that this run wrote"):
            read(Path("here"))


class Images:
    """Random 8 x 8 images of two classes."""

    def load(self):
        rng = np.random.default_rng(0)
        x, y = rng.random((60, 64), dtype=np.float32), np.arange(60) % 2
        return from_arrays(x, y, task="classification", test=(x[:20], y[:20]))


class Targets:
    """Two targets."""

    def load(self):
        x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
        return from_arrays(x, x[:, :2], task="regression", test=(x[:20], x[:20, :2]))


@pytest.mark.parametrize(("source", "likelihood"), [(Images, "categorical"), (Targets, "normal")])
def test_a_library_s_own_run_without_a_configuration(tmp_path, source, likelihood):
    from experiments._runner.build import build

    made = build(declared("run", [*SMALL, f"likelihood={likelihood}"]))
    options = {
        name: getattr(made, name) for name in ("model", "prior", "likelihood", "guide", "epochs", "draws")
    }
    Run(data=source(), **options).execute(tmp_path)
    html = without_vega(run_page(tmp_path))
    assert html.count('<img class="input"') == (12 if source is Images else 0)
    assert "Weights" in headings(html)


def test_a_sweep_has_a_page_that_links_to_each_run(finished, tmp_path):
    for lr in (0.01, 0.001):
        folder = shutil.copytree(finished[0], tmp_path / "a b" / str(lr))
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["optim"]["lr"] = lr
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "a b" / "0.001" / "report.html").unlink()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "error.json").write_text(json.dumps({"error": "it <broke>"}))
    said = summarise(tmp_path)
    assert "summary.html" in said
    html = page(tmp_path, "summary.html")
    assert headings(html) == ["All runs", "Which settings do well", "Without result"]
    assert 'href="a%20b/0.01/report.html"' in html
    assert "0.001/report.html" not in html
    assert "it &lt;broke&gt;" in html
    assert ">optim.lr</button>" in html
    assert "test" not in html.partition("<main")[2]


def test_files_and_components_of_one_name_in_several_places_are_different_settings(tmp_path):
    metrics = {"validation": {"rmse": 1.0, "nll": 1.0}, "parameters": 1, "train_seconds": 1.0}
    settings = [("a.csv", "mine.Normal"), ("b.csv", "pyrobbb.priors.Normal"), ("b.csv", "mine.Laplace")]
    runs = [
        RunFolder(
            tmp_path / str(i),
            {"data.source": source, "prior._target_": prior, "seed": 1},
            "finished",
            metrics,
        )
        for i, (source, prior) in enumerate(settings)
    ]
    report.summary(runs, tmp_path)
    html = page(tmp_path, "summary.html").partition("<main")[2]
    found = [re.findall(r"<td[^>]*>([^<]*)", row)[:2] for row in html.split("run\u00a0")[1:4]]
    assert "seeds" not in html
    assert found == [["a.csv", "mine.Normal"], ["b.csv", "pyrobbb.priors.Normal"], ["b.csv", "Laplace"]]


def test_a_sweep_over_seeds_is_led_by_the_best_mean_and_not_by_the_best_seed():
    scores = {("a", 1): 0.1, ("a", 2): 0.9, ("b", 1): 0.3, ("b", 2): 0.5}
    seconds = {"a": 3.0, "b": 2.0}
    runs = [
        Line(
            f"{prior}{seed}",
            None,
            {"prior": prior, "seed": seed},
            {"validation rmse": score, "training (s)": seconds[prior]},
        )
        for (prior, seed), score in sorted(scores.items(), key=lambda item: item[1])
    ]
    html = without_vega(sweep_page("Runs", runs))
    assert headings(html) == ["Settings", "All runs", "Which settings do well"]
    assert re.findall(r"Best mean validation rmse.*?0\.4.*?±\D*0\.14, 2\D*seeds", html, flags=re.DOTALL)
    first, second = re.findall(r'<th scope="row">([ab])</th>', html.partition("All runs</h2>")[0])
    assert (first, second) == ("b", "a")  # 0.4 and 0.5
    assert re.findall(r"Mean training \(s\).*?>2<.*?>3<", html.partition("All runs</h2>")[0], flags=re.DOTALL)
    assert headings(without_vega(sweep_page("Runs", runs[1:3]))) == ["All runs", "Which settings do well"]
