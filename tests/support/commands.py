"""A command in a process of its own: forked from one that has the libraries, or in a fresh interpreter.

Importing the libraries takes longer than what most tests let a command do.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from paths import ROOT

LIBRARIES = (
    "altair", "arviz", "h5netcdf", "hydra", "matplotlib.backends.backend_agg", "pandas",
    "pyro.infer.autoguide", "pyrobbb.checkup", "pyrobbb.experiment", "pyrobbb.report.run", "torch._dynamo",
    "xarray",
)  # fmt: skip


def forks() -> ForkServerContext:
    """Makes processes that have the libraries."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


def command(folder: Path, *arguments: str, **environment: str) -> CompletedProcess[str]:
    """`python -m` with these arguments in `folder`, to its end."""
    with TemporaryDirectory() as place:
        said = [Path(place, name) for name in ("stdout", "stderr")]
        process = forks().Process(target=_run, args=(folder, arguments, {**os.environ, **environment}, said))
        process.start()
        process.join(600)
        if process.is_alive():
            process.kill()
            process.join()
        stdout, stderr = (path.read_text() if path.exists() else "" for path in said)
    assert process.exitcode is not None
    return CompletedProcess(arguments, process.exitcode, stdout, stderr)


def interpreter(
    *arguments: str, folder: Path = ROOT, status: int | None = 0, **environment: str
) -> CompletedProcess[str]:
    """A fresh interpreter with these arguments in `folder`, to its end, which has this status (None: any)."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, **environment}, text=True,
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert status in (None, done.returncode), done.stderr
    return done


def _run(folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str], said: list[Path]) -> None:
    """What `python -m` does, in this process."""
    for descriptor, path in enumerate(said, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tests = str(ROOT / "tests")
    sys.path[:] = [str(folder), str(ROOT), *(place for place in sys.path if not place.startswith(tests))]
    sys.argv = list(arguments)
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which a process of multiprocessing leaves out
        sys.stdout.flush()
