"""The command `pyrobbb`: what its words do, and that TAB and near misses find the right name."""

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from experiments import run
from paths import ROOT
from pyrobbb import __main__ as command

PYROBBB = f'pyrobbb() {{ {sys.executable} -m pyrobbb "$@"; }}\n'
FISH = f"function pyrobbb; {sys.executable} -m pyrobbb $argv; end\n"


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["pyrobbb", *words])
    command.main()


def test_the_metadata_name_the_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (value,) = [value for name, value in scripts.items() if name == "pyrobbb"]
    assert EntryPoint("pyrobbb", value, "console_scripts").load() is command.main


def test_help_names_every_command(monkeypatch, capsys):
    call(monkeypatch, "--help")
    said = capsys.readouterr().out
    assert all(word in said for word in (*command.COMMANDS, "completion"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_full_disk_under_its_words_is_one_line(monkeypatch, capsys, word):
    with open("/dev/full", "w") as full:  # closing it flushes again, as Python does at its end
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit, match="2"):
            call(monkeypatch, word)
    assert capsys.readouterr().err == (
        "error: [Errno 28] cannot write standard output: No space left on device\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit"], "'fit' is not a command"),
        (["completion", "tcsh"], "bash|zsh|fish"),
        (["analyse", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, *words)
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert said in line


def test_without_a_checkout_it_says_where_the_commands_are(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "experiments.summarise", None)
    monkeypatch.setitem(sys.modules, "experiments", None)
    with pytest.raises(SystemExit):
        call(monkeypatch, "summarise", "runs")
    assert "clone it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("prior=nromal", "normal"),
        ("epcohs=3", "epochs"),
        ("prior.sgima1=1", "sigma1"),
        ("+sampels=2", "samples"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(monkeypatch, capsys, tmp_path, argument, near):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run", argument])
    with pytest.raises(SystemExit):
        run.main()
    assert f"did you mean {near!r}?" in capsys.readouterr().err


def said_by(shell, script):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout.split(), done.stderr


def test_tab_completes_in_bash():
    line = "COMP_LINE='pyrobbb run prior=la'; COMP_WORDS=(pyrobbb run prior=la); COMP_CWORD=2"
    script = f'{PYROBBB} source <(pyrobbb completion bash); {line}; _pyrobbb; echo "${{COMPREPLY[@]}}"'
    said, error = said_by("bash", script)
    assert said == ["prior=laplace"], error


def test_tab_completes_in_zsh():
    """`compadd` works within a completion alone, so a function of that name says what it was given."""
    fakes = "compdef() { :; }; compadd() { print -- ${@[-1]}; }; words=(pyrobbb run prior=la); CURRENT=3"
    said, error = said_by("zsh", f"{PYROBBB} {fakes}; source <(pyrobbb completion zsh); _pyrobbb")
    assert said == ["prior=laplace"], error


def test_tab_completes_in_fish():
    script = f"{FISH} pyrobbb completion fish | source; complete -C 'pyrobbb run prior=la'"
    said, error = said_by("fish", script)
    assert said == ["prior=laplace"], error
