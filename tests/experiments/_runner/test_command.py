"""Every experiment has one command line: help, refusals in one line, folders named after the changes."""

import inspect
import io
import os
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from commands import interpreter
from experiments._runner.command import command, folder_command, part_of, place
from experiments._runner.record import command_line
from experiments.paper import bandit, closed_form, table1
from experiments.paper import regression as paper_regression
from experiments.reproductions import gluon, grid, training_choices, underflow
from experiments.results import __main__ as results
from experiments.scoreboard import __main__ as scoreboard
from experiments.studies import bound, posterior_checks
from experiments.tutorial import mnist as tutorial_mnist
from experiments.tutorial import toy_regression
from paths import ROOT

COMMANDS = (
    bandit, bound, closed_form, gluon, grid, paper_regression, posterior_checks, scoreboard, table1,
    toy_regression, training_choices, tutorial_mnist, underflow,
)  # fmt: skip


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.__name__.split(".")[-1])
def test_every_experiment_has_the_same_command_line(module, monkeypatch, capsys, tmp_path):
    name = module.__name__.removesuffix(".__main__")
    assert f"`python -m {name} [" in inspect.getdoc(module), "its help says how it is called"
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["--folder=x"], "'--folder=x' is not a key=value, such as folder=runs/mine"),
        (["quick"], "'quick' is not a key=value"),
        (["nosuchkey=1"], "nosuchkey"),
        (["folder="], "folder"),
    ):
        monkeypatch.setattr("sys.argv", [name, *words])
        with pytest.raises(SystemExit) as stop:
            command(module.main, module.__doc__)
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.pt")), "nothing was begun"
    monkeypatch.setattr("sys.argv", [name, "--help"])
    command(module.main, module.__doc__)
    assert capsys.readouterr().out.startswith(inspect.getdoc(module))


@pytest.mark.parametrize("times", [1, 100_000])  # what a buffer holds until the end, and more
def test_what_nobody_reads_ends_quietly(times, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["it", "one", "two"])
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread:  # closing it flushes again, as Python does at its end
        monkeypatch.setattr("sys.stdout", unread)
        with pytest.raises(SystemExit, match="141"):
            folder_command("it", None, lambda folder: str(folder) * times)
    assert capsys.readouterr().err == ""


def test_what_stdout_cannot_say_is_printed_as_an_escape(monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, encoding="ascii"))
    monkeypatch.setattr("sys.argv", ["it", "runs"])
    folder_command("it", "", lambda folder: f"{folder}: 1 ± 2")
    assert printed.getvalue() == rb"runs: 1 \xb1 2" + b"\n"


def test_a_command_without_stdout_ends_like_any_other(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.argv", ["it", "runs"])
    folder_command("it", "", str)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize(
    ("word", "called"),
    [("runs", lambda: folder_command("it", "", str)), ("--help", lambda: command(lambda words: None, "It."))],
)
def test_a_full_disk_under_stdout_ends_in_a_line(word, called, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["it", word])
    with open("/dev/full", "w") as full:  # closing it flushes again, as Python does at its end
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(SystemExit, match="2"):
            called()
    assert capsys.readouterr().err == (
        "error: [Errno 28] cannot write standard output: No space left on device\n"
    )


def interrupted(*anything):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("whose", "said"), [("folder", "interrupted"), ("study", "interrupted; the same")])
def test_ctrl_c_ends_in_a_line(whose, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["it", "runs=x" if whose == "study" else "x"])
    with pytest.raises(SystemExit) as stop:
        command(interrupted, "") if whose == "study" else folder_command("it", "", interrupted)
    assert stop.value.code == 130
    assert capsys.readouterr().err.strip().startswith(said)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_while_a_command_is_imported_ends_in_a_line(number, tmp_path):
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # behind a shell's & it is ignored
    sent = f"os.kill(os.getpid(), signal.{number})"
    (tmp_path / "hydra.py").write_text(f"import os, signal; {heard}; {sent}\n")
    status = -signal.SIGINT
    done = interpreter("-m", "experiments.run", folder=tmp_path, status=status, PYTHONPATH=str(ROOT))
    assert done.stderr == "\ninterrupted\n"


def test_the_documents_of_a_folder_without_records_are_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["results", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        results.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} is not this repository: it has no folder docs/records\n"
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("seeds=[1,2]", "seeds=[1,2]"),
        ("methods=['Laplace, full',dropout]", "\"methods=['Laplace, full',dropout]\""),
        ("methods=[mean field]", "'methods=[mean field]'"),
        ("""name='of "$x"'""", """'name='"'"'of "$x"'"'"''"""),
    ],
)
def test_a_command_on_record_is_one_for_a_shell(word, said):
    command = command_line("experiments.x", [word, "folder=a b"])
    assert command == f"python -m experiments.x {said}"
    assert shlex.split(command)[3:] == [word]


def test_results_go_to_a_folder_named_after_what_is_changed():
    assert place(["folder=a", "folder=b", "seed=2"], "runs/x") == Path("b")
    assert place([], "runs/x") == Path("runs/x")
    words = ["optim.lr=1", "device=cpu", "+data.noise=0.1"]
    assert place(words, "runs/x") == Path("runs/x,data.noise=0.1,optim.lr=1")
    assert bandit.configuration(["arms=[greedy]"]).folder == "runs/bandit"
    assert bandit.configuration(["steps=20", "setting=showdown"]).folder == "runs/bandit_showdown,steps=20"
    assert bandit.configuration(["steps=20", "folder=f,g=[1]"]).folder == "f,g=[1]"
    long = place([f"+a{i}=1" for i in range(60)], "runs/x")
    assert len(long.name) == len("x,") + 200
    assert long.name.startswith("x,a0=1,a10=1,a11=1,")


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (table1, ["form=long"], "form must be one of short, full, got 'long'"),
        (table1, ["rows=[laplace]"], "rows must be one of sgd, dropout"),
        (table1, ["rows=[sgd]", "mixture.optim.lr=1"], "mixture.optim.lr: its row was not requested; rows"),
        (table1, ["seed=5"], "seed: this experiment sets it itself; say seeds=[...]"),
        (table1, ["model.hidden=[30]"], "model.hidden: this experiment sets it itself"),
        (table1, ["rows=[sgd]", "optim.lr=1"], "optim.lr: the point estimates of row sgd have their own"),
        (
            table1,
            ["hydra.run.dir=runs/x"],
            "hydra.run.dir: a study is not a Hydra job; folder=runs/mine says",
        ),
        (table1, ["data.validation=0"], "data.validation: Fig. 2 and the table need validation data"),
        (grid, ["top=many"], "top"),
        (grid, ["preset=all"], "preset must be one of"),
        (grid, ["presett=ghia"], "presett: there is no such key; did you mean 'preset'?"),
        (grid, ["epohcs=3"], "epohcs: there is no such key; did you mean 'epochs'?"),
        (grid, ["xyz=3"], "xyz: there is no such key; this experiment's own are preset,"),
        (grid, ["prior.pi=0.3"], "prior.pi: this experiment sets it itself"),
        (grid, ["samples=2"], "samples: this experiment sets it itself"),
        (grid, ["quick=true", "chains=3"], "chains: each point of this experiment is one training, got 3"),
        (training_choices, ["kl=geometric"], "kl: this experiment sets it itself"),
        (underflow, ["kl=full"], "kl: this experiment sets it itself"),
        (training_choices, ["optim.lr=1e-2"], "optim.lr: this experiment sets it itself"),
        (gluon, ["model=mlp"], "model: this experiment sets it itself"),
        (table1, ["rows=[sgd,dropout]", "prior.sigma1=0.3"], "row sgd is not a Bayesian network"),
        (table1, ["sgd.model.hidden=[50,50]"], "model.hidden: this experiment sets it itself; say widths"),
        (scoreboard, ["part=weather"], "part must be one of regressions, detection, agreement, got"),
        (scoreboard, ["methods=[magic]"], "methods must be one of plain network"),
        (scoreboard, ["tables=[boston]"], "tables must be one of"),
        (scoreboard, ["splits=[]", "gaps=[]"], "splits and gaps are both empty: name at least one of either"),
        (scoreboard, ["methods=[]"], "methods: must name at least one"),
        (scoreboard, ["splits=[0,1,0]"], "splits: 0 is named twice"),
        (scoreboard, ["quick=true", "tables=[yacht]"], "tables: this experiment sets it itself; quick=true"),
        (bound, ["quick=true", "networks=[conv]"], "networks: this experiment sets it itself; quick=true"),
        (table1, ["seeds=[1,1]"], "seeds: 1 is named twice"),
        (bandit, ["seeds=[4,4]"], "seeds: 4 is named twice"),
        (scoreboard, ["model.hidden=[3]"], "this experiment sets it itself"),
        (bound, ["kl.temperature=2"], "kl.temperature: this experiment sets it itself"),
        (bound, ["networks=[3x9]"], "networks must be one of 2x10"),
        (bound, ["priors=[flat]"], "priors must be one of mixture"),
        (bound, ["seeds=[]"], "seeds: must name at least one"),
        (tutorial_mnist, ["seed=2"], "seed: this experiment sets it itself"),
        (tutorial_mnist, ["seeds=[]"], "seeds: must name at least one"),
        (tutorial_mnist, ["quick=true", "model.hidden=[0]"], "hidden[0] must be a whole number"),
        (paper_regression, ["data=noisy_sine"], "this experiment is about paper_curve, got"),
        (paper_regression, ["priors=[laplace]"], "priors must be one of"),
        (posterior_checks, ["chains=two"], "chains: Value 'two' of type 'str' could not be converted to"),
        (posterior_checks, ["chains=0"], "chains must be a whole number of at least 1, got 0"),
        (posterior_checks, ["prior=normal"], "prior: this experiment sets it itself; it compares prior="),
        (closed_form, ["fast=auto"], "fast: this experiment sets it itself"),
        (bandit, ["setting=casino"], "setting must be one of paper, showdown"),
        (bandit, ["prior.pi=2"], "prior: pi must lie in [0, 1], got 2"),
        (bandit, ["likelihood.scale=-1"], "likelihood: scale must be greater than 0"),
        (bandit, ["guide=auto_normal"], "the guides must have flat `loc` and `rho`"),
        (bandit, ["seeds=5"], "seeds"),
        (bandit, ["seeds=[]"], "seeds: must name at least one"),
        (bandit, ["arms=thompson"], "arms"),
        (bandit, ["arms=[neither]"], "arms must be one of thompson, greedy, got 'neither'"),
        (bandit, ["lr=1e-3"], "lr"),
        (bandit, ["threads=0"], "threads must be a whole number"),
        (bandit, ["heads=maybe"], "heads"),
        (bandit, ["kl_over=heldd"], "kl_over must be one of held, capacity"),
        (bandit, ["epsilons=[2]"], "epsilons must lie in [0, 1]"),
        (bandit, ["report=true"], "nothing has been played in"),
    ],
)
def test_what_would_go_unheard_or_fail_is_refused_and_leaves_nothing(
    module, arguments, message, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "new" / "run"
    monkeypatch.setattr("sys.argv", [module.__name__, f"folder={folder}", *arguments])
    with pytest.raises(SystemExit):
        command(module.main, module.__doc__)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.yaml")), "the corrected command would be refused"


def test_tables_and_figures_of_a_part_have_a_folder_of_their_own():
    whole, keys = (
        table1.Part(rows=["sgd", "mixture"], widths=[400, 800], seeds=[1]),
        ("rows", "widths", "seeds"),
    )
    for changes, name in [
        ({}, ""),
        ({"widths": [400], "seeds": [1, 2]}, "widths=400,seeds=1+2"),
        ({"rows": ["mixture", "sgd"]}, "rows=mixture+sgd"),
        ({"rows": ["my row", "uci/yacht"]}, "rows=myrow+uci_yacht"),
    ]:
        assert part_of(replace(whole, **changes), whole, keys) == name


def test_the_folder_of_a_long_part_has_a_short_name():
    whole = table1.Part(rows=["sgd"], widths=[400], seeds=[1])
    names = [
        part_of(replace(whole, rows=["sgd"] * 80, seeds=seeds), whole, ("rows", "seeds"))
        for seeds in ([2, 3], [3, 2])
    ]
    assert all(re.fullmatch(r"rows=80,seeds=2,[0-9a-f]{6}", name) for name in names)
    assert names[0] != names[1]


def test_a_quick_study_keeps_what_is_given(tmp_path):
    for given, priors, part in (
        ([], ["learned", "ard"], ""),
        (["priors=[learned]"], ["learned"], "priors=learned"),
        (["seeds=[1,2,3]"], ["learned", "ard"], "seeds=1+2+3"),
    ):
        chosen, _, out = bound.STUDY.begin(["quick=true", *given, f"folder={tmp_path}"])
        assert (chosen.networks, chosen.priors) == (["2x400"], priors)
        assert out.folder == tmp_path / part
