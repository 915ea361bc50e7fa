"""The scoreboard: every method through one seam, refusals with their reason, tables from a record."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from experiments._runner.build import ConfigError
from experiments._runner.fit_points import _load
from experiments.results.records import Records
from experiments.scoreboard import agreement, regressions
from experiments.scoreboard.__main__ import main, report
from experiments.scoreboard.choose import markdown, read
from experiments.scoreboard.compare import cell, difference, distinct
from experiments.scoreboard.detection import turned
from experiments.scoreboard.methods import METHODS
from experiments.scoreboard.published import GAP, OF_SPLITS, SOURCES, STANDARD, beside
from pyrobbb.data import NoisySine
from pyrobbb.data.dataset import Dataset


def test_regressions_choose_on_validation_rows_and_keep_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["plain network", "ensemble of 5", "last layer", "SWAG"]
    words = ["part=regressions", "quick=true", "splits=[1]", f"methods={names}".replace("'", "")]
    words.append(f"folder={tmp_path}")
    record = main(words)
    rows = {row["method"]: row for row in record["rows"]}
    assert list(rows) == names
    assert {row["split"] for row in record["rows"]} == {1}
    plain, ensemble, swag = (rows[name] for name in ("plain network", "ensemble of 5", "SWAG"))
    assert [trial["prior.gain"] for trial in plain["trials"]] == [1.0, 2.0]
    assert ensemble["trials"] == plain["trials"], "an ensemble's members are fitted as its member is"
    assert ensemble["log_likelihood"] != plain["log_likelihood"]
    assert 0 <= plain["coverage_50"] <= plain["coverage_95"] <= 1
    assert 0 < plain["crps"] < plain["rmse"]
    assert "too few come after start for 30 snapshots" in swag["refused"]
    (path,) = tmp_path.rglob("record.json")
    kept = json.loads(path.read_text())
    assert kept["rows"] == record["rows"]
    assert kept["command"].startswith("python -m experiments.scoreboard part=regressions quick=true")
    said = capsys.readouterr().out
    assert "SWAG: of 40 steps too few come after start for 30 snapshots" in said
    main([f"record={path}"])
    printed = capsys.readouterr().out
    assert printed == report(record) + "\n"
    assert printed in said
    assert main(words)["rows"] == record["rows"]  # finished points are read back


def test_a_result_of_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "methods=[plain network,SWAG]"
    words = ["part=regressions", "quick=true", "splits=[0]", "trials=1", names, f"folder={tmp_path}"]
    assert "made_with" not in main(words)["rows"][0]
    load = NoisySine.load

    def other(self: NoisySine) -> Dataset:
        data = load(self)
        data.train.y.neg_()
        return data

    monkeypatch.setattr(NoisySine, "load", other)
    _load.cache_clear()
    with pytest.raises(ConfigError, match=r"plain network/result\.json was made with other training data"):
        main(words)
    _load.cache_clear()


def test_layers_and_noise_are_chosen_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, noises = regressions.NETWORKS["chosen"]
    assert layers == ([50], [50, 50], [100, 100])
    monkeypatch.setitem(regressions.NETWORKS, "chosen", (layers[:2], noises))
    names = "methods=[plain network,ensemble of 5]"
    words = ["part=regressions", "quick=true", "network=chosen", "splits=[0]", names, f"folder={tmp_path}"]
    record = main(words)
    plain, ensemble = record["rows"]
    tried = {(tuple(t["hidden"]), t["noise"], t["prior.gain"]): t["log_likelihood"] for t in plain["trials"]}
    assert len(tried) == record["budget"]["settings tried"] == 2 * 2 * 2
    assert {hidden for hidden, _, _ in tried} == {(50,), (50, 50)}
    assert {noise for _, noise, _ in tried} == {"one for all rows", "of the inputs"}
    of_mixture = [trial["log_likelihood"] for trial in ensemble["trials"]]
    assert not set(of_mixture) & set(tried.values()), "a mixture is chosen as a whole"


def test_noises_are_chosen_by_name(tmp_path: Path) -> None:
    noises = ["heavy tails", "mixture"]
    words = ["part=regressions", "quick=true", f"noises={noises}", "splits=[0]", f"folder={tmp_path}"]
    record = main([*words, "methods=[plain network,ensemble of 5]"])
    assert record["budget"]["noise"] == "heavy tails or mixture"
    alone, ensemble = ([trial["log_likelihood"] for trial in row["trials"]] for row in record["rows"])
    assert not set(alone) & set(ensemble), "a mixture is chosen as a whole"
    for row in record["rows"]:
        assert [trial["noise"] for trial in row["trials"]] == ["heavy tails"] * 2 + ["mixture"] * 2
        assert 0 < row["crps"] < row["rmse"]
    words[2] = "noises=[heavy tails]"
    with pytest.raises(ConfigError, match=r"holds a result of other settings .* give these another folder"):
        main([*words, "methods=[plain network]"])


def test_detection_stands_beside_a_plain_network(tmp_path: Path) -> None:
    record = main(
        [
            "part=detection",
            "quick=true",
            "trials=2",
            "methods=[plain network,mean field,NUTS]",
            f"folder={tmp_path}",
        ]
    )
    first = record["rows"][0]
    assert {"error", "nll", "ece", "brier", "auroc noise", "hits at 0.01 noise"} <= set(first)
    assert first["turned"]["0"]["accuracy"] == pytest.approx(100 - first["error"])
    tried = {trial["keys"]["prior.sigma"]: trial["log_likelihood"] for trial in first["tried"]}
    assert set(tried) == {0.1, 0.05}
    best = first["tried"][0]
    assert best["log_likelihood"] == max(tried.values())
    config = OmegaConf.load(tmp_path / "2x400" / "seed=2" / "plain network" / "config.yaml")
    assert config.prior.sigma == best["keys"]["prior.sigma"], "every seed takes what the first chose"
    names = ["plain network", "mean field", "mean field, mean weights", "NUTS"]
    assert [row["method"] for row in record["rows"]] == names * 2, (
        "a point estimate has no other mean weights"
    )
    drawn, at_means, nuts = record["rows"][1:4]
    assert nuts["refused"] == "NUTS is for hundreds of weights"
    assert drawn["nll"] != at_means["nll"]
    assert drawn["auroc noise"] != at_means["auroc noise"]
    timed = [(row["method"], row["seed"]) for row in record["rows"] if row.get("seconds_choosing", 0) > 0]
    assert timed == [("plain network", 1), ("mean field", 1)], "what is chosen is for both seeds"
    assert "AUROC above the plain network's" in report(record)
    few = ["part=detection", "quick=true", "methods=[plain network]", "seeds=[1]", f"folder={tmp_path}"]
    with pytest.raises(ConfigError, match=r"scores of 10000 images of a set, here they are 5; give these"):
        main([*few, "trials=2", "images=5"])
    with pytest.raises(ConfigError, match=r"trials: .* holds what 2 settings gave, here they are 1; give"):
        main([*few, "trials=1"])


def test_agreement_measures_the_yardstick_too(tmp_path: Path) -> None:
    methods = "methods=[plain network,NUTS]"
    record = main(
        ["part=agreement", "quick=true", "inference.max_tree_depth=3", methods, f"folder={tmp_path}"]
    )
    nuts, plain = record["rows"]
    assert nuts["method"] == "NUTS"
    assert nuts["sd_ratio"] == pytest.approx(1)
    assert nuts["r_hat"] > 0.9
    assert 0 <= nuts["asymmetry"] <= 1
    assert plain["near"] is False
    assert plain["sd_at"]["0"] == 0.0
    assert "not below 1.05" in report(record)
    (tmp_path / "six_points" / "NUTS" / "functions.npz").unlink()
    with pytest.raises(
        ConfigError, match=r"NUTS/functions\.npz is missing or damaged .*; remove \S*NUTS, and"
    ):
        main(["part=agreement", "quick=true", "inference.max_tree_depth=3", methods, f"folder={tmp_path}"])
    with pytest.raises(ConfigError, match="NUTS is the yardstick"):
        main(["part=agreement", "quick=true", "methods=[SWAG]", f"folder={tmp_path}"])


def test_a_yardstick_without_a_result_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "functions", lambda *_: {"refused": "NUTS takes the KL as it is"})
    with pytest.raises(ConfigError, match="NUTS on six_points is the yardstick, and failed: NUTS takes the"):
        main(["part=agreement", "quick=true", "methods=[NUTS]", f"folder={tmp_path}"])


def test_every_method_tries_as_many_settings() -> None:
    assert {len(method.trials) for method in METHODS.values()} == {3}


def test_a_paired_interval_is_students() -> None:
    own, other = ([{"split": k, "score": v} for k, v in enumerate(each)] for each in ((2, 3, 4, 5), (1,) * 4))
    half = 3.182446 * math.sqrt(5 / 3) / 2
    assert difference(own, other, "score", "split", 4) == f"+2.5000 [{2.5 - half:+.4f}, {2.5 + half:+.4f}]"
    assert difference(own[:1], other, "score", "split") == "-"
    own = [{"split": k, "score": float(k)} for k in range(4)]
    other = [{"split": k, "score": 0.5 * k} for k in range(3)]
    assert difference(own, other, "score", "split") == "+0.50 [-0.74, +1.74], no difference seen"
    higher = [{**row, "score": 10.0 + row["score"]} for row in own]
    assert difference(higher, own, "score", "split") == "+10.00 [+10.00, +10.00]"


def test_a_gap_that_an_earlier_feature_gave_is_no_second_test() -> None:
    """On energy features 0 and 1 leave out the same rows, so the first score counts once."""
    own, other = (
        [
            {
                "table": "energy",
                "kind": "gap",
                "split": split,
                "method": name,
                "log_likelihood": scale * score,
            }
            for split, score in enumerate((9.0, 9.0, 1.0, 2.0))
        ]
        for name, scale in (("mean field", 2.0), ("plain network", 1.0))
    )
    half = 4.302653 * math.sqrt(19 / 3)
    apart = f"+4.00 [{4 - half:+.2f}, {4 + half:+.2f}], no difference seen"
    assert difference(own, other, "log_likelihood", "split") == apart
    assert cell(own, "log_likelihood", 2) == f"10.50 ± {2 * math.sqrt(19 / 3):.2f}"
    assert distinct(own) == [own[0], *own[2:]]
    assert distinct(own[1:2]) == own[1:2], "without the earlier one it counts"
    failed = {key: own[0][key] for key in ("table", "kind", "split", "method")} | {"stopped": "not finite"}
    assert distinct([failed, *own[1:]]) == own[1:], "nor does one without a number stand for it"
    assert "energy, gap splits, each test set once" in report(
        {"part": "regressions", "budget": {}, "rows": [*other, *own]}
    )


def test_a_cell_says_how_many_failed() -> None:
    assert cell([{"a": 1.0}, {"a": 3.0}], "a", 1) == "2.0 ± 1.0"
    assert cell([{"a": 1.0}, {"stopped": "not finite"}], "a", 1) == "1.0 (1 failed)"
    assert cell([{"refused": "why"}], "a", 1) == "-"


def test_published_numbers_have_sources() -> None:
    assert set(STANDARD) == set(GAP)
    assert len(STANDARD) == 8
    for of_tables in OF_SPLITS.values():
        assert {name for found in of_tables.values() for name in found} <= set(SOURCES)


def test_an_image_turns_about_its_centre() -> None:
    image = torch.rand(2, 784)
    torch.testing.assert_close(turned(image, 0.0), image, atol=1e-5, rtol=0)
    half = image.reshape(2, 28, 28).flip(1, 2).flatten(1)
    torch.testing.assert_close(turned(image, 180.0), half, atol=1e-4, rtol=0)
    quarter = torch.tensor(np.rot90(image.reshape(2, 28, 28).numpy(), axes=(1, 2)).copy()).flatten(1)
    turned_back = turned(turned(image, 90.0), 270.0)
    torch.testing.assert_close(turned_back, image, atol=1e-3, rtol=0)
    found = turned(image, 90.0)
    other = quarter.reshape(2, 28, 28).flip(1, 2).flatten(1)
    assert min(float((found - quarter).abs().max()), float((found - other).abs().max())) < 1e-3


def test_our_best_method_beside_the_best_published() -> None:
    rows = [
        {"table": table, "method": method, "split": split, "log_likelihood": score}
        for table, method, scores in (
            ("wine", "a", (-0.9, -1.0)),
            ("wine", "b", (-0.5, -0.7)),
            ("yacht", "a", (-1.0, -1.2)),
            ("power", "a", (-3.0, -3.02)),
            ("naval", "a", (1.0, 2.0)),
        )
        for split, score in enumerate(scores)
    ]
    others = {"wine": {"x": -0.8, "y": -0.9}, "yacht": {"x": -1.05}, "power": {"x": -2.9}}
    assert beside(rows, others) == [
        ("wine", "-0.60 ± 0.10", "b", "-0.80", "x", "ahead"),
        ("yacht", "-1.10 ± 0.10", "a", "-1.05", "x", "level"),
        ("power", "-3.01 ± 0.01", "a", "-2.90", "x", "0.11 behind"),
    ]


def test_the_best_of_ours_has_a_number_on_every_split() -> None:
    def row(method: str, split: int, **found: object) -> dict[str, object]:
        return {"table": "yacht", "method": method, "split": split, **found}

    whole = [row("a", split, log_likelihood=score) for split, score in enumerate((-1.0, -3.0))]
    failed = [row("b", 0, log_likelihood=-1.1), row("b", 1, stopped="not finite")]
    elsewhere = row("c", 0, log_likelihood=-0.5)  # not run on the hard split
    others = {"yacht": {"x": -2.5}}
    expected = [("yacht", "-2.00 ± 1.00", "a", "-2.50", "x", "level")]
    assert beside([*whole, *failed, elsewhere], others) == expected
    assert beside(failed, others) == []


def test_a_part_that_is_run_again_takes_the_place_of_its_rows(tmp_path: Path) -> None:
    def record(*rows: tuple[str, int, float]) -> dict[str, object]:
        each = [{"network": "2x400", "method": method, "seed": seed, "error": e} for method, seed, e in rows]
        return {"part": "detection", "budget": {"epochs": 1}, "rows": each}

    first = record(("plain network", 1, 1.6), ("natural gradient", 1, 5.6), ("natural gradient", 2, 5.4))
    again = record(("natural gradient", 1, 2.0), ("natural gradient", 2, 2.1))
    for i, content in enumerate((first, again), 1):
        (tmp_path / f"scoreboard_detection-{i}.json").write_text(json.dumps(content))
    rows = read(tmp_path)["detection"]["rows"]
    assert [row["error"] for row in rows] == [1.6, 2.0, 2.1]
    joined = Records(tmp_path).get("scoreboard_detection")
    assert joined is not None
    assert joined["rows"] == rows
    assert len(joined["each"]) == 2


def test_parts_of_other_budgets_on_the_same_data_are_refused(tmp_path: Path) -> None:
    def keep(part: int, splits: list[int], **budget: object) -> None:
        rows = [{"table": "yacht", "kind": "gap", "split": k, "method": "SWAG"} for k in splits]
        content = {"part": "regressions", "budget": {"network": "deep", **budget}, "rows": rows}
        (tmp_path / f"scoreboard_regressions-{part}.json").write_text(json.dumps(content))

    keep(1, [0, 1], **{"steps of a fit": 1000})  # an older record does not say its noise
    keep(2, [1, 2], **{"steps of a fit": 1000, "noise": "heavy tails"})
    assert len(read(tmp_path)["regressions"]["rows"]) == 3
    keep(2, [1, 2], **{"steps of a fit": 5000})
    with pytest.raises(ConfigError, match=r"-1\.json and .*-2\.json have .* steps of a fit 1000 and 5000:"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="steps of a fit 1000 and 5000"):
        Records(tmp_path).get("scoreboard_regressions")
    keep(2, [2, 3], **{"steps of a fit": 5000})
    assert len(read(tmp_path)["regressions"]["rows"]) == 4


def test_a_result_without_a_number_is_of_its_settings_too(tmp_path: Path) -> None:
    words = ["part=regressions", "quick=true", "splits=[0]", "methods=[SWAG]", f"folder={tmp_path}"]
    (row,) = main([*words, "trials=1"])["rows"]
    assert "too few come after start" in row["refused"]
    assert main([*words, "trials=1"])["rows"] == [row]
    with pytest.raises(ConfigError, match=r"holds a result of other settings .* give these another folder"):
        main([*words, "trials=2"])


def test_a_method_is_counted_against_the_plain_network_of_its_own_record() -> None:
    def record(**each: tuple[float, ...]) -> dict[str, object]:
        return {
            "part": "regressions",
            "rows": [
                {"table": "yacht", "kind": "standard", "split": i, "method": name.replace("_", " "),
                 "log_likelihood": score, "coverage_95": 0.9, "seconds": len(name)}
                for name, scores in each.items()
                for i, score in enumerate(scores)
            ],
        }  # fmt: skip

    records = {
        "regressions": record(plain_network=(-1.0, -1.0), SWAG=(-0.5, -2.0), dropout=(0.0, 0.0)),
        "eight_tables": record(plain_network=(1.0, 1.0, 1.0), dropout=(2.0, 0.5, 0.5)),
    }
    uses, _, worth = markdown(records).partition("\n\n")
    found = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1] for line in worth.splitlines()}
    assert found["dropout"] == "1 of 3"
    assert found["SWAG"] == "1 of 2"
    assert found["plain network"] == ""
    assert uses.splitlines()[-1].endswith(f"| {len('SWAG') / len('plain network'):.1f} x |")


def test_a_method_that_only_the_longer_fits_have_is_shown_beside_the_plain_network_of_that_length() -> None:
    def record(epochs: int, **each: float) -> dict[str, object]:
        rows = [{"method": name.replace("_", " "), "auroc Fashion-MNIST": x} for name, x in each.items()]
        return {"part": "detection", "budget": {"epochs": epochs}, "rows": rows}

    short, longer = record(10, plain_network=0.9), record(40, plain_network=0.94, cold_mean_field=0.977)
    _, _, worth = markdown({"detection": short, "long_detection": longer}).partition("\n\n")
    found = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[-1] for line in worth.splitlines()}
    assert found["plain network"] == "0.900 |"
    assert found["cold mean field"] == "0.977 (40 epochs; plain: 0.940) |"
    for row, network in zip(longer["rows"], ("2x400", "conv"), strict=True):
        row["network"] = network
    with pytest.raises(ConfigError, match="several networks"):
        markdown({"detection": short, "long_detection": longer})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "or is not there"),
        ("{}", "is not a record of the scoreboard"),
        ('{"part": "agreement"}', "is not a record of the scoreboard"),
        ("{", "is damaged"),
    ],
    ids=["absent", "another's", "cut short", "not JSON"],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    """By itself, or in a folder of records."""
    path = tmp_path / "scoreboard_x.json"
    if content is not None:
        path.write_text(content)
        with pytest.raises(ValueError, match=f"{path}.* {reason}"):
            main([f"record={tmp_path}"])
    with pytest.raises(ValueError, match=f"{path}.* {reason}"):
        main([f"record={path}"])
