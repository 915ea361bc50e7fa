"""A wrong declaration is named."""

import pytest

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose


def test_compose_names_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="epoch"):
        compose("toy_regression", ["epoch=3"], folder=tmp_path)
    with pytest.raises(ConfigError, match="no_such"):
        compose("no_such", [], folder=tmp_path)
