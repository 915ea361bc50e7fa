"""The reports' grids: their points, the prior that each was trained under, and the files."""

import json
import math

import pytest
import torch

from experiments._runner.build import ConfigError, build
from experiments._runner.compose import compose
from experiments._runner.fit_points import Fitted, changed
from experiments._runner.study import SMALL
from experiments.reproductions import grid, grid_points
from pyrobbb.training.trainer import Training


def test_presets_hold_the_points_of_the_reports():
    sizes = {name: len(grid_points.points(name)[0]) for name in grid_points.PRESETS}
    assert sizes == {"reduced": 27 + 14, "ghia": 324, "rahmanto": 27}
    assert all(len(set(grid_points.points(name)[0])) == size for name, size in sizes.items())


@pytest.mark.parametrize("point", grid_points.points("reduced")[0][:27:5], ids=str)
def test_the_prior_that_a_point_claims_is_the_prior_that_it_uses(point, tmp_path):
    """Read from the trained network's trace, and recomputed from the paper's formula."""
    run = build(changed(compose("grid", [*SMALL, "epochs=1"], folder=tmp_path), tmp_path, point.values()))
    result = run.execute()
    fit = Fitted(run, result.data, result.posterior, [])
    used = grid.used_prior(fit)
    claimed = point.pi, math.exp(-point.log_sigma1), math.exp(-point.log_sigma2)
    assert tuple(used.values()) == pytest.approx(claimed, rel=1e-6)
    w = torch.linspace(-2, 2, 101, dtype=torch.float64)
    distribution = result.posterior.model.prior.distribution("0.weight", w)
    parts = [
        math.log(share) - math.log(sigma) - 0.5 * (w / sigma) ** 2 - 0.5 * math.log(2 * math.pi)
        for share, sigma in ((claimed[0], claimed[1]), (1 - claimed[0], claimed[2]))
    ]
    expected = torch.stack(parts).logsumexp(0).sum()
    torch.testing.assert_close(distribution.log_prob(w), expected)


def test_a_point_under_another_prior_than_it_claims_is_refused(tmp_path):
    base = compose("grid", [*SMALL, "epochs=1"], folder=tmp_path)
    one, other = (
        build(changed(base, tmp_path, p.values()))
        for p in (grid_points.Point(0.25, 0, 8), grid_points.Point(0.5, 0, 8))
    )
    result = one.execute()
    with pytest.raises(ConfigError, match="was trained under the prior"):
        grid.used_prior(Fitted(other, result.data, result.posterior, []))


def test_grid_trains_each_point_from_the_same_start_and_writes_it_all(tmp_path, monkeypatch, capsys):
    started = []
    run = Training.run

    def watched(self):
        started.append(self.guide.loc.detach().clone())
        return run(self)

    monkeypatch.setattr(Training, "run", watched)
    results = grid.main(["quick=true", f"folder={tmp_path}"])
    assert len(started) == 4
    assert all(torch.equal(loc, started[0]) for loc in started)
    assert len({result["free_energy"] for result in results.values()}) == 4
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [row["accuracy"] for row in rows] == [result["accuracy"] for result in results.values()]
    for point, row in zip(results, rows, strict=True):
        used = [row[f"{name}_used"] for name in ("pi", "sigma1", "sigma2")]
        assert used == pytest.approx([point.pi, *point.sigmas], rel=1e-6)
    assert (tmp_path / "prior_lr=0.001_samples=1.png").exists()
    assert "97.95" in capsys.readouterr().out  # Rahmanto's number beside ours
    assert grid.main(["quick=true", f"folder={tmp_path}"]) == results
    assert len(started) == 4
    with pytest.raises(ConfigError, match="another configuration"):
        grid.main(["quick=true", "epochs=3", f"folder={tmp_path}"])
