"""`make results` leaves the documents as they are: their numbers and figures are those of the records."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.image import imread

from experiments._runner.build import ConfigError
from experiments.paper import table1_report
from experiments.results import examples
from experiments.results.__main__ import MARKED, TEXTS, filled, make
from experiments.results.aims import above_on_gaps, area, beside_published, ranked, told_apart
from experiments.results.bound import worth
from experiments.results.claims import DECLARED, FOUND, claims, runs
from experiments.results.figures import source
from experiments.results.records import NOT_RUN, Records, made_by, seconds_of, seeds_of
from experiments.scoreboard.published import OF_SPLITS
from experiments.studies.bound import Settings
from experiments.tutorial.mnist_uncertainty import NOISE
from paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "README.md", root)
    shutil.copytree(ROOT / "docs" / "records", root / "docs" / "records")
    for page in PAGES[1:]:
        (root / page.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(page, root / page.relative_to(ROOT))
    make(root)
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_what_the_records_make(page, copy):
    assert (copy / page.relative_to(ROOT)).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_the_joined_record_of_the_bound_has_the_rows_of_its_parts(copy):
    path = Path("docs", "records", "bound.json")
    assert (copy / path).read_text() == (ROOT / path).read_text()


def test_every_figure_is_what_the_records_make_and_has_a_page(copy):
    folder = ROOT / "docs" / "figures"
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (copy / "docs" / "figures").iterdir()}
    for name in names:
        ours, made = imread(folder / name), imread(copy / "docs" / "figures" / name)
        assert ours.shape == made.shape
        assert float(np.abs(ours - made).mean()) < 0.005  # a letter drawn otherwise by another release
    shown = set(
        re.findall(r"\]\((?:\.\./)?figures/([\w.]+)\)", "".join(p.read_text(encoding="utf-8") for p in PAGES))
    )
    assert shown == names


def test_every_text_has_its_place_and_every_mark_a_text():
    marks = [found[2] for page in PAGES for found in MARKED.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(marks) == sorted(TEXTS)
    with pytest.raises(ValueError, match="there is no text named 'x'"):
        filled("a <!-- x -->1<!-- /x -->", Records(Path()))


def test_a_figure_names_the_records_that_it_is_of():
    assert source("bandit", {"command": "x"}) == "From `docs/records/bandit.json`."
    assert source("a", {"each": [{}]}) == "From `docs/records/a-1.json`."
    assert source("a", {"each": [{}] * 3}) == "From `docs/records/a-1.json` to `docs/records/a-3.json`."


def test_without_records_no_number_is_left(tmp_path):
    page = "<!-- first_run -->9 s<!-- /first_run -->, <!-- mnist -->\n1.93\n<!-- /mnist -->"
    kept = filled(page, Records(tmp_path))
    assert kept == (
        "<!-- first_run -->nothing.<!-- /first_run -->, "
        "<!-- mnist -->\nNot run on today's code.\n<!-- /mnist -->"
    )
    assert len(re.findall("not run on today's code", claims(Records(tmp_path)))) == len(DECLARED["claims"])
    assert filled("no marks", Records(tmp_path)) == "no marks"


def test_every_claim_names_a_function_that_reads_it():
    every = [*DECLARED["claims"], *DECLARED["aims"]]
    assert {claim["found"] for claim in every if "found" in claim} == set(FOUND)
    text = (ROOT / "experiments" / "results" / "claims.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == DECLARED


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "reproduction").iterdir()), ids=lambda path: path.stem
)
def test_every_page_of_a_reproduction_begins_with_its_claims_and_its_runs(path):
    head = path.read_text(encoding="utf-8").partition("\n## ")[0]
    marks = [found[2] for found in MARKED.finditer(head)]
    assert marks[:2] == [f"claims.{path.stem}", f"runs.{path.stem}"]
    records = Records(ROOT / "docs" / "records")
    for run in DECLARED["runs"][path.stem]:
        record = records.get(run["record"])
        assert run["mind"]
        assert record is None or seeds_of(record) or run["seeds"]
    assert "toctree" in (results := (ROOT / "docs" / "results.md").read_text(encoding="utf-8"))
    assert f"reproduction/{path.stem}\n" in results


def test_the_bound_was_run_for_every_network_prior_and_seed_of_its_study(tmp_path):
    """The page ranks priors by it, seed by seed."""
    assert worth(Records(tmp_path)) == "Not run on today's code."
    usual, record = Settings(), Records(ROOT / "docs" / "records").get("bound_mnist")
    run = {(row["network"], row["prior"], seed) for row in record["rows"] for seed in row["seeds"]}
    assert {*product(usual.networks, usual.priors, usual.seeds)} <= run


def test_an_aim_that_is_missed_says_by_how_much(tmp_path):
    found = {"2x400": {"ratio_learned": 1.06}, "2x1200": {"ratio_learned": 1.02}}
    (tmp_path / "bench_steps.json").write_text(json.dumps({"estimators": found}))
    perceptron = {"greatest_z": 6.0, "ratio_of_variance": 0.08}
    (tmp_path / "bench_gradients.json").write_text(json.dumps({"gradients": {"perceptron": perceptron}}))
    said = [line.split(" | ")[-1] for line in TEXTS["bench.aims"](Records(tmp_path)).splitlines()[2:]]
    assert said == ["missed by 1.0 % |", "holds |", "missed by 100.0 % |", "holds |"]


def test_what_was_run_has_the_seeds_and_times_of_its_record(tmp_path):
    assert set(runs(Records(tmp_path), "bandit").splitlines()[-1].split(" | ")) >= {
        "-",
        "not run on today's code",
    }
    row = {"seconds": 60, "seconds_choosing": 30, "seed": 2}
    assert seconds_of({"rows": [row, {"seconds_each": [90, 180]}, "a name"]}) == 360
    assert seconds_of({"train_seconds": 5, "seconds": 99}) == 5
    assert seconds_of({"rows": [{}]}) is None
    arms = {"thompson": 10.0, "greedy": 100.0}
    games = {"Bayes by Backprop": {"steps": 50}, "greedy": {"steps": 50}, "5 % greedy": {"steps": 50}}
    assert seconds_of({"agents": games, "seeds": [1, 2], "interactions per second": arms}) == 10 + 2
    assert seeds_of({"rows": [row], "found": {"x": [{"seed": 1}]}}) == [1, 2]


def test_times_are_said_where_a_record_has_them(tmp_path):
    timed = {"machine": "4 cores", "date": "2030-01-01", "seconds": {"make mnist": 99.6, "make test": 500}}
    (tmp_path / "first_run.json").write_text(json.dumps(timed))
    assert TEXTS["first_run"](Records(tmp_path)) == (
        "in a fresh clone `make mnist` took 100 s, set-up included, then `make test` 500 s, "
        "on 4 cores, 2030-01-01."
    )
    for i, device in enumerate(("cpu", "cuda"), start=1):
        metrics = {"device": device, "epochs": 9, "train_seconds": 4.6}
        part = {"machine": "4 cores; a card", "date": "2030-01-01", "widths": [20], "weights": {}}
        part |= {"seeds": [i], "epochs": 9, "command": "python -m x", "versions": {"torch": "2"}}
        part["cells"] = [{"row": "sgd", "width": 20, "seed": i, "metrics": metrics}]
        (tmp_path / f"table1_full-{i}.json").write_text(json.dumps(part))
    said = "9 epochs of Table 1's `sgd` row, 2x20, took 5 s (a card, 2030-01-01)"
    assert TEXTS["table1.gpu"](Records(tmp_path)) == said
    part |= {"seeds": [3, 4], "cells": [part["cells"][0] | {"width": 40, "seed": seed} for seed in (3, 4)]}
    (tmp_path / "table1_full-3.json").write_text(json.dumps(part))
    assert "2x40" not in TEXTS["table1.gpu"](Records(tmp_path))
    assert TEXTS["table1.side_by_side"](Records(tmp_path)).splitlines()[-2:] == [
        "| `sgd` | 40 | 3 | 5 |",
        "| `sgd` | 40 | 4 | 5 |",
    ]
    record = {"command": "a", "machine": "b", "date": "c", "versions": {"torch": "2"}}
    assert made_by(record) == "`a`; b, torch 2, c."
    record["runs"] = [{"metrics": {"train_seconds": 90}}]
    record["found"] = {"x": [{"seconds": 40}, {"seconds": 50}], "y": {"seconds": 60}, "z": {}}
    assert made_by(record) == "`a`; b, torch 2, c; trainings of 4 minutes in all."


def test_few_settings_have_no_rank_correlation():
    rows = [{"prior": "learned", "free_energy": i, "validation_error": i} for i in range(4)]
    words = "the fixed mixture - (0 settings); learned priors - (4 settings); one seed"
    assert ranked({"rows": rows, "seeds": [1]}) == (words, "too few settings")


@pytest.mark.parametrize(
    ("bayes", "fewer", "more", "found"),
    [
        (1000.0, 2000.0, 3000.0, "holds"),
        (1000.0, 3000.0, 2000.0, "in part"),
        (3000.0, 2000.0, 1000.0, "does not hold"),
        (2000.0, 2000.0, 1000.0, "does not hold"),
        (2000.0, 2000.0, 2000.0, "undecided"),
    ],
)
def test_a_reversed_order_of_regret_is_no_order(bayes, fewer, more, found):
    ends = {"Bayes by Backprop": bayes, "1 % greedy": fewer, "5 % greedy": more}
    spreads = ((-1.0, 0.0, 1.0), (0.0, 1.0, -1.0), (1.0, -1.0, 0.0))
    agents = {
        name: {"expected": {"50000": [end + each for each in spread]}}
        for (name, end), spread in zip(ends.items(), spreads, strict=True)
    }
    assert FOUND["order of regret"]({"agents": agents})[1] == found


@pytest.mark.parametrize(
    ("each", "found"),
    [
        ([5.0, 6.0, 7.0], "lower than that run"),
        ([91.0, 92.0, 90.0], "higher than that run"),
        ([20.0, 30.0, 26.0], "undecided"),
        ([5.0], "one seed"),
    ],
)
def test_a_regret_is_lower_or_higher_than_that_run(each, found):
    agents = {"Bayes by Backprop": {"percent of uniform, realised": each}}
    assert FOUND["regret"]({"agents": agents})[1] == found


def test_a_method_that_failed_on_a_split_is_not_above_the_published():
    rows = [
        {"table": "yacht", "kind": kind, "split": split, "method": method, "log_likelihood": score}
        for kind, published in OF_SPLITS.items()
        for split in range(3)
        for method, score in (("plain network", -9.0), ("SWAG", published["yacht"]["ensemble of 5"] + 0.5))
    ]
    assert above_on_gaps({"rows": rows})[1] == "reached"
    last = rows.pop()
    assert above_on_gaps({"rows": rows}) == ("none", "missed")
    failed = {key: value for key, value in last.items() if key != "log_likelihood"} | {"stopped": "why"}
    assert above_on_gaps({"rows": [*rows, failed]}) == ("none", "missed")
    every = [{**row, "stopped": "why"} | {"log_likelihood": None} for row in rows if row["method"] == "SWAG"]
    plain = [row for row in rows if row["method"] != "SWAG"]
    assert above_on_gaps({"rows": [*plain, *every]}) == ("none", "missed")


def test_the_command_of_the_examples_says_how_it_is_called(capsys):
    with pytest.raises(SystemExit) as stop:
        examples.main(["--help"])
    assert not stop.value.code
    assert "python -m experiments.results.examples" in capsys.readouterr().out


def test_a_table_without_a_whole_method_is_not_level_with_the_published():
    row = {"table": "wine", "kind": "standard", "method": "m", "log_likelihood": 9.0}
    whole = [{**row, "split": 0}, {**row, "split": 1}]
    half = [{**whole[0], "table": "yacht"}, {**whole[1], "table": "yacht", "log_likelihood": None}]
    assert beside_published(None, {"rows": whole}) == ("ahead on wine", "reached")
    assert beside_published(None, {"rows": [*whole, *half]}) == ("ahead on wine", "in part")
    assert beside_published(None, {"rows": half}) == ("-", "missed")


@pytest.mark.filterwarnings("error")  # an interval of one seed is NaN, and warns
def test_one_seed_settles_no_claim():
    noise = {"uncertainty": {NOISE: {"printed": 0.99}}, "scores": {"bnn_accuracy_5": 99.0}}
    assert FOUND["tutorial's images"]({"found": {"1": noise}})[1] == "one seed"
    found = {"drawn": [{"error": 1.8}], "closed": [{"error": 1.8}]}
    assert FOUND["same error"]({"seeds": [1], "found": found})[1] == "one seed"
    weights = {"weights": {"SGD": {"sd": 0.1}}, "widths": [400], "cells": [], "epochs": 1}
    assert FOUND["widest weights"](weights)[1] == NOT_RUN


def test_aims_compare_means_and_count_what_ended():
    runs = [{"metrics": {"test": {"error": error}, "epochs": 10}} for error in (1.0, 2.9)]
    assert FOUND["default error"]({"runs": runs})[1] == "reached, after 10 epochs"
    found = {"mixture": [{"test_error": 1.3, "validation_error": 1.4}] * 4 + [{"stopped": "not finite"}]}
    restarts = {"mixture": {"test_error": 1.3}}
    said = FOUND["five restarts"]({"found": found, "restarts": restarts})
    assert said == ("1.30 %, 4 restarts", "not tried with five")


def test_sigma_that_differs_does_not_settle_the_order_of_pruning():
    pruned = [{"snr": {"mean": 2.0}, "magnitude": {"mean": 2.5}}]
    for high, verdict in ((0.05, "does not hold"), (0.5, "not settled")):
        found = {"gluon_as_printed": {"sigma": [0.049, high], "pruned": pruned}}
        words, said = FOUND["notebook's order"]({"found": found})
        assert said == verdict
        assert ("is not nearly" in words) is (high == 0.5)
        assert "0.5 points apart" in words


def test_detection_by_several_networks_is_not_taken_for_one():
    rows = [
        {"network": network, "seed": seed, "method": method, "auroc Fashion-MNIST": score + 0.001 * seed}
        for network in ("2x400", "conv")
        for seed in (1, 2)
        for method, score in (("plain network", 0.9), ("mean field", 0.95))
    ]
    record = {"rows": rows[:4]}
    assert told_apart("Fashion-MNIST", "mean field", record)[0].endswith("2 seeds")
    assert area(0.9, "mean field", record)[1] == "reached"
    several = r"its rows are of several networks \(2x400, conv\), not of one"
    with pytest.raises(ConfigError, match=several):
        told_apart("Fashion-MNIST", "mean field", {"rows": rows})
    with pytest.raises(ConfigError, match=several):
        area(0.9, "mean field", {"rows": rows})


def test_a_full_table_1_that_is_still_to_come_fills_its_claims(tmp_path):
    """Made up in the form of its command."""
    short = Records(ROOT / "docs" / "records").get("table1_short")
    narrow = [cell for cell in short["cells"] if cell["width"] == 400]
    cells = [cell | {"width": width} for cell in narrow for width in (400, 800, 1200)]
    full = short | {"cells": cells, "widths": [400, 800, 1200], "epochs": 600}
    (tmp_path / "table1_full.json").write_text(json.dumps(full))
    first, *_, below = (line for line in claims(Records(tmp_path)).splitlines() if "table1 form=full" in line)
    assert "| does not hold |" in first
    assert "| after 600 epochs: holds |" in below


def test_parts_of_table_1_are_one_table(tmp_path):
    """As it grows cell by cell, on whatever machines."""
    short = Records(ROOT / "docs" / "records").get("table1_short")
    del short["each"]
    whole = TEXTS["table1.full"]
    (tmp_path / "table1_full.json").write_text(json.dumps(short))
    expected = whole(Records(tmp_path)).partition("\n\n")[2]
    (tmp_path / "table1_full.json").unlink()
    titles = {
        "mixture": "BbB, scale mixture",
        "sgd": "SGD",
        "dropout": "SGD, dropout",
        "gaussian": "BbB, Gaussian",
    }
    for i, (name, title) in enumerate(titles.items(), 1):
        cells = [cell for cell in short["cells"] if cell["row"] == name]
        part = short | {
            "rows": [name],
            "cells": cells,
            "weights": {title: short["weights"][title]},
            "command": name,
        }
        (tmp_path / f"table1_full-{i}.json").write_text(json.dumps(part))
    commands, _, table = whole(Records(tmp_path)).partition("\n\n")
    assert table == expected
    assert [line.split(";")[0] for line in commands.splitlines()] == [f"`{name}`" for name in titles]
    joined = Records(tmp_path).get("table1_full")
    assert (joined["rows"], joined["widths"]) == (list(titles), [400, 800, 1200])
    assert set(joined["weights"]) == set(short["weights"])


def test_figure_3_names_the_seed_of_its_weights(tmp_path):
    short = Records(ROOT / "docs" / "records").get("table1_short")
    sgd, mixture = (table1_report.DECLARED.rows[name].title for name in ("sgd", "mixture"))

    def keep(i, seeds, *titles):
        cells = [{"row": "sgd", "width": 400, "seed": seed} for seed in seeds]
        weights = {title: short["weights"][title] | {"sd": seeds[0]} for title in titles}
        part = {"seeds": seeds, "widths": [400], "cells": cells, "weights": weights, "epochs": 9}
        (tmp_path / f"table1_full-{i}.json").write_text(json.dumps(part))

    def drawn():
        record = Records(tmp_path).get("table1_full")
        title = table1_report.figure3(record).texts[0].get_text()
        return {name: kept["sd"] for name, kept in record["weights"].items()}, title

    keep(1, [2, 1], sgd)
    keep(2, [3], sgd)
    weights, title = drawn()
    assert weights == {sgd: 2}
    assert "2x400, seed 2;" in title
    keep(3, [1], mixture)
    weights, title = drawn()
    assert weights == {sgd: 2, mixture: 1}
    assert "2x400, seeds 1, 2;" in title
    keep(4, [1], sgd)
    assert drawn()[0] == {sgd: 1, mixture: 1}


def test_each_table_is_from_the_last_record_that_has_it(tmp_path):
    """Not from the one with the higher score."""

    def row(table, score):
        return {"table": table, "kind": "standard", "split": 0, "method": "MAP", "log_likelihood": score}

    kept = {"a": [row("concrete", -2.0), row("yacht", 0.0)], "b": [row("concrete", -3.0)]}
    for name, rows in kept.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    records = Records(tmp_path)
    assert records.tables(["a", "b"])["rows"] == [*kept["b"], kept["a"][1]]
    assert records.tables(["a", "c"]) is None
    joined = records.tables(["a", "b"])
    assert beside_published(None, joined) == ("ahead on yacht; behind on concrete", "in part")
    assert beside_published(1, joined)[1] == "reached"


def test_every_part_of_a_record_is_read(tmp_path):
    for part in range(1, 23):
        (tmp_path / f"made-{part}.json").write_text(json.dumps({"number": part}))
    found = Records(tmp_path).get("made")
    assert [part["number"] for part in found["each"]] == list(range(1, 23))


def test_arms_that_were_played_apart_are_one_record(tmp_path):
    """Each with its own rate of play: 100 steps at 10 a second, and 100 at 50."""
    for part, (name, arm, rate) in enumerate(
        [("Bayes by Backprop", "thompson", 10), ("greedy", "greedy", 50)], 1
    ):
        games = {name: {"steps": 50, "expected": {"50": [part, part]}}}
        content = {"agents": games, "seeds": [1, 2], "interactions per second": {arm: rate}}
        (tmp_path / f"bandit-{part}.json").write_text(json.dumps(content | {"number": part}))
    found = Records(tmp_path).get("bandit")
    assert {name: games["expected"] for name, games in found["agents"].items()} == {
        "Bayes by Backprop": {"50": [1, 1]},
        "greedy": {"50": [2, 2]},
    }
    assert seconds_of(found) == 10 + 2
