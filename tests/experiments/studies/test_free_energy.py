"""The free-energy study in short form."""

import math

import pytest

from experiments._runner.build import ConfigError
from experiments.studies import free_energy


def test_free_energy_study_measures_at_temperature_one(tmp_path, capsys):
    results = free_energy.main(["quick=true", f"folder={tmp_path}"])
    assert len(results) == 2 * 3  # two seeds; the paths share the base
    for (setting, _), result in results.items():
        assert result["free_energy"] == pytest.approx(result["kl"] + result["train_nll"])
        assert result["objective"] == pytest.approx(setting[1] * result["kl"] + result["train_nll"])
        assert 0 <= result["above_noise"] <= 100
    sigma = {rate: results[(rate, 1.0), 1]["scale"] for rate in (1.0, 10.0)}
    start = math.log1p(math.exp(-5))
    assert abs(sigma[10.0] - start) > 3 * abs(sigma[1.0] - start)
    assert (tmp_path / "free_energy.png").exists()
    assert "seeds 1, 2; mean ± standard deviation over them" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="needs prior=scale_mixture"):
        free_energy.main(["quick=true", f"folder={tmp_path / 'other'}", "prior=normal"])
