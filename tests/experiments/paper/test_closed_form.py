"""The KL in closed form beside the sampled one."""

import pytest

from experiments.paper import closed_form


def test_closed_form_compares_both_ways_from_one_start(tmp_path):
    small = ["data=blobs", "data.N=200", "data.features=5", "model.hidden=[8]", "epochs=2", "batch_size=50"]
    found = closed_form.main([*small, "seeds=[1,2]", f"folder={tmp_path}"])
    for drawn, closed in zip(found["drawn"], found["closed"], strict=True):
        assert drawn["free_energy"] == pytest.approx(closed["free_energy"], rel=1e-3)  # sd 4e-6 over 20 seeds
        assert drawn["free_energy"] != closed["free_energy"]
    assert closed_form.main([*small, "seeds=[1,2]", f"folder={tmp_path}"]) == found
