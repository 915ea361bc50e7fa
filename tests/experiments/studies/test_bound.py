"""The study of the bound: its table from few small runs, and its record."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import bound as recorded_bound
from experiments.studies.bound import Setting, Settings, correlation, joined, main, places, report, rows


def test_it_compares_priors_and_keeps_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = main(["quick=true", f"folder={tmp_path}"])
    assert [(row["network"], row["prior"], row["seeds"]) for row in found] == [
        ("2x400", "learned", [1, 2]),
        ("2x400", "ard", [1, 2]),
    ]
    learned, ard = found
    assert learned["free_energy"] == pytest.approx(learned["kl"] + learned["train_nll"])
    assert (learned["learned_numbers"], ard["learned_numbers"]) == (4, 0)
    assert 0 < learned["trivial_free_energy"] < 3
    assert 0 < ard["trivial_free_energy"] < 10
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["command"] == "python -m experiments.studies.bound quick=true"
    assert record["rows"] == found
    assert (learned["epochs"], learned["images"]) == (ard["epochs"], ard["images"]) == (2, 300)
    printed = capsys.readouterr().out
    assert report({"rows": found}) in printed
    assert "rank correlation" not in printed
    tempered = main(["quick=true", "priors=[learned]", "temperatures=[1,0.1]", f"folder={tmp_path}"])
    assert [row["temperature"] for row in tempered] == [1, 0.1]
    assert tempered[0] == learned  # finished points are read back, to the seconds
    assert tempered[1]["kl"] > tempered[0]["kl"]  # and a cold posterior pays less for leaving the prior
    assert tempered[1]["free_energy"] == pytest.approx(tempered[1]["kl"] + tempered[1]["train_nll"])
    assert report({"rows": tempered}).split("\n")[0].split()[7] == "temperature"
    assert "temperature" not in report({"rows": found})


def test_seeds_that_were_run_apart_are_in_one_row_if_they_were_trained_alike() -> None:
    """A number that the earlier run did not have is of the later seeds alone."""

    def part(rest: str, seeds: list[int], F: float, prior: str = "ard", **more: float) -> dict[str, Any]:
        point: dict[str, Any] = {"free_energy": F, "epochs": [40], "images": 100, **more}
        found = rows({(Setting("2x400", prior), seed): point for seed in seeds})
        return {
            "command": f"python -m experiments.studies.bound seeds={','.join(map(str, seeds))} {rest}",
            "rows": found,
        }

    first, again = (
        part("epochs=40", [1, 2], 3.0),
        part("epochs=40 name=again", [2, 3], 1.0, trivial_free_energy=2.0),
    )
    other, cosine = part("epochs=40", [1], 5.0, prior="mixture"), part("epochs=40 schedule=cosine", [1], 7.0)
    together, *apart = joined([first, other, again, cosine])
    assert apart == [*other["rows"], *cosine["rows"]]
    assert (together["seeds"], together["free_energy_each"]) == ([1, 2, 3], [3.0, 1.0, 1.0])
    assert together["free_energy"] == pytest.approx(5 / 3)
    assert (together["trivial_free_energy"], together["trivial_free_energy_each"]) == (2.0, [2.0, 2.0])
    failed = {(Setting("2x400", "ard"), seed): {"stopped": f"{seed} failed"} for seed in (3, 4)}
    (together,) = joined([{**first, "rows": rows(failed)}, again])
    assert (together["seeds"], together["stopped"], together["epochs"]) == ([2, 3], ["4 failed"], 40)


def test_a_failed_point_is_left_out_and_a_rank_correlation_needs_ten() -> None:
    point = {"free_energy": 1.0, "validation_error": 2.0, "kl": 0.5, "epochs": [1, 2, 3]}
    setting = Setting("2x400", "mixture")
    results = {(setting, 1): point, (setting, 2): {"stopped": "not finite"}}
    (row,) = rows(results)
    assert (row["seeds"], row["epochs"], row["images"]) == ([1], 3, None)
    (sorted_row,) = rows({(setting, 3): point | {"free_energy": 3.0}, (setting, 2): point})
    assert (sorted_row["seeds"], sorted_row["free_energy_each"]) == ([2, 3], [1.0, 3.0])
    none = rows({(Setting("2x400", "ard"), 1): {"stopped": "infinite"}})
    _, first, second, *words = report({"rows": [row, *none]}).splitlines()
    assert "mixture (1 failed)" in first
    assert "ard (1 failed)" in second
    assert words == ["seed 1", "- 2x400, mixture: not finite", "- 2x400, ard: infinite"]
    assert report({"rows": none}).splitlines()[2:] == ["- 2x400, ard: infinite"]
    assert correlation(("few", [row] * 9)) == ""
    errors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 9.0]  # 1 - 6 * 2 / (10 * 99)
    each = [{"free_energy": float(F), "validation_error": error} for F, error in enumerate(errors)]
    assert "0.99 over 10 settings" in correlation(("some", each))
    without = {"free_energy": 0.0, "validation_error": None}  # data.validation=0
    assert "0.99 over 10 settings" in correlation(("some", [*each, without]))


def test_where_rho_starts_is_compared_like_its_rate() -> None:
    points = places(Settings(["2x50"], ["learned"], rates=[1.0], starts=[-5.0, -8.0], seeds=[1]))
    assert list(points) == [
        "network=2x50,prior=learned,rate=1,seed=1",
        "network=2x50,prior=learned,rate=1,start=-8,seed=1",
    ]
    results = {place: {"free_energy": 1.0, "validation_error": 2.0} for place in points.values()}
    head, *_ = report({"rows": rows(results)}).split("\n")
    assert "rate of rho" in head
    assert "rho from" in head
    assert "temperature" not in head


def test_the_recorded_table_is_printed_without_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["bound"])
    recorded_bound.main()
    *table, last = capsys.readouterr().out.splitlines()
    rows = json.loads(recorded_bound.RECORD.read_text(encoding="utf-8"))["rows"]
    assert "\n".join(table) == report({"rows": rows})
    assert last.startswith("python -m experiments.studies.bound trains anew")
    monkeypatch.setattr("sys.argv", ["bound", "--help"])
    with pytest.raises(SystemExit, match="0"):
        recorded_bound.main()
    assert "docs/records/bound.json" in capsys.readouterr().out
    monkeypatch.setattr(recorded_bound, "RECORD", tmp_path / "bound.json")
    monkeypatch.setattr("sys.argv", ["bound"])
    with pytest.raises(SystemExit, match="2"):
        recorded_bound.main()
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "make results" in error
