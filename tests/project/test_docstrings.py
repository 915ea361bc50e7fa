"""The examples in docstrings run as they stand."""

import doctest
import importlib
import pkgutil
from functools import partial
from importlib.util import find_spec

import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample

import pyrobbb
from engine_fakes import classes, classifier


class WhatIsSaid(doctest.OutputChecker):
    """An example that shows no output need only run."""

    def check_output(self, want, got, flags):
        return not want or super().check_output(want, got, flags)


def examples():
    for module in pkgutil.walk_packages(pyrobbb.__path__, "pyrobbb."):
        if module.name == "pyrobbb.estimators" and find_spec("sklearn") is None:
            continue
        loaded = importlib.import_module(module.name)
        yield from (test for test in doctest.DocTestFinder().find(loaded) if test.examples)


EXAMPLES = list(examples())


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_example_runs(example, tmp_path, monkeypatch):
    """In a folder with a table, with torch, a small data set, a model of it, and the names of the root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "houses.csv").write_text("size,price\n" + "".join(f"{i},{7 * i}\n" for i in range(30)))
    data = classes(200)
    model, guide = classifier(data)
    made = {"torch": torch, "partial": partial, "data": data, "model": model, "guide": guide}
    made |= {"x": data.train.x, "y": data.train.y, "dist": dist, "PyroModule": PyroModule}
    made |= {"priors": pyrobbb.priors, "PyroSample": PyroSample, "make_model": lambda: classifier(data)[0]}
    root = {name: getattr(pyrobbb, name) for name in pyrobbb.__all__}
    example.globs = {**root, "MeanFieldNormal": type(guide), **made, **example.globs}
    said = []
    result = doctest.DocTestRunner(WhatIsSaid()).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
