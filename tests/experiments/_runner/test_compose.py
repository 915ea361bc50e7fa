"""A wrong declaration is named."""

import pytest
import torch
from torch import nn

from experiments._runner.build import ConfigError, build
from experiments._runner.compose import compose


def test_compose_names_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="epoch"):
        compose("toy_regression", ["epoch=3"], folder=tmp_path)
    with pytest.raises(ConfigError, match="no_such"):
        compose("no_such", [], folder=tmp_path)


def test_a_part_can_be_left_out(tmp_path):
    words = ["data=blobs", "data.N=90", "model.hidden=[4]", "~optim", "~schedule"]
    run = build(compose("mnist", words, folder=tmp_path))
    assert run.schedule is None
    assert isinstance(run.optim([nn.Parameter(torch.zeros(1))]), torch.optim.Adam)  # the library's own
