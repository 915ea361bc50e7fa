"""The study of recipes: its table from few small runs, its average over the last epochs, its restarts."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose
from experiments.results.records import Records
from experiments.studies.recipes import RECIPES, LastThird, averaged, main, ranked, report
from paths import ROOT
from pyrobbb._support import checkpoint


def test_it_compares_recipes_and_keeps_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = main(["quick=true", f"folder={tmp_path}"])
    assert {name: [one["seed"] for one in each] for name, each in record["found"].items()} == {
        "mixture": [1, 2],
        "average": [1, 2],
    }
    kept = json.loads((tmp_path / "record.json").read_text())
    assert kept["found"] == record["found"]
    first = capsys.readouterr().out
    assert "2 restarts averaged" in first
    assert "seeds 1, 2" in first
    again = main(["quick=true", f"folder={tmp_path}"])
    assert again["found"] == record["found"]  # what is finished is read back
    assert again["restarts"] == record["restarts"]
    assert report(again) in capsys.readouterr().out


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_composed(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    words = [*recipe.get("words", ()), "epochs=20"]
    config = compose(recipe.get("experiment", "table1_mixture"), words, folder=tmp_path)
    assert config.epochs == 20
    assert "temperature" not in config.kl
    said = recipe["title"].partition("KL warm-up over ")[2].split(",")[0].split(" of ")[0]
    assert config.kl.get("epochs", 0) == {"half": 10, "three quarters": 15}.get(said, 0)


def test_the_average_is_that_of_the_last_third() -> None:
    average, guide = LastThird(epochs=9), torch.nn.Linear(1, 1, bias=False)
    for epoch in range(1, 10):
        torch.nn.init.constant_(guide.weight, epoch)
        average.on_epoch(SimpleNamespace(guide=guide), SimpleNamespace(epoch=epoch))  # type: ignore[arg-type]
    assert average.mean["weight"].item() == pytest.approx((7 + 8 + 9) / 3)


def test_restarts_average_probabilities(tmp_path: Path) -> None:
    y = torch.tensor([0, 1])
    each = [torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([[0.7, 0.3], [0.1, 0.9]])]
    for i, probs in enumerate(each):
        (tmp_path / str(i)).mkdir()
        part = {"probs": probs, "y": y}
        checkpoint.save(tmp_path / str(i) / "probabilities.pt", {"validation": part, "test": part})
    found = averaged([tmp_path / "0", tmp_path / "1"])
    assert found["test_error"] == 0
    assert found["test_nll"] == pytest.approx(-float(torch.tensor([0.8, 0.55]).log().mean()))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 cut"], ids=["gone", "empty", "cut"])
def test_probabilities_that_cannot_be_read_name_the_folder_to_remove(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "probabilities.pt"
    if content is not None:
        path.write_bytes(content)
    message = (
        f"{path} is missing or damaged .*; remove {tmp_path}, and the command that made it makes it again"
    )
    with pytest.raises(ConfigError, match=message):
        averaged([tmp_path])


def test_a_flipped_bit_of_probabilities_is_found(tmp_path: Path) -> None:
    path, probs = tmp_path / "probabilities.pt", torch.tensor([[0.9, 0.1]])
    checkpoint.save(path, {"test": {"probs": probs, "y": torch.tensor([0])}})
    content = bytearray(path.read_bytes())
    content[content.index(probs.numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"\.pt is missing or damaged .*; remove .*, and the command"):
        averaged([tmp_path])


def test_trained_on_every_image_only_test_scores_are_shown(tmp_path: Path) -> None:
    part = {"probs": torch.tensor([[0.9, 0.1], [0.8, 0.2]]), "y": torch.tensor([0, 1])}
    checkpoint.save(tmp_path / "probabilities.pt", {"test": part})
    restarts = averaged([tmp_path, tmp_path])
    assert restarts["test_error"] == 50
    row = {"test_error": 50.0, "test_nll": 0.9, "test_ece": 0.4, "free_energy": 2.0, "seconds": 1.0}
    rows = [row | {"seed": seed} for seed in (1, 2)]
    shown = report({"seeds": [1, 2], "found": {"slow_rho": rows}, "restarts": {"slow_rho": restarts}})
    assert "50.00" in shown
    assert "validation" not in shown


def test_a_recipe_is_compared_with_the_centre_on_the_seeds_that_both_have() -> None:
    def rows(**errors: float) -> list[dict[str, object]]:
        return [
            {"seed": seed, "validation_error": 1.0, "test_error": error} for seed, error in errors.items()
        ]

    centre = [{"seed": "c", "stopped": "not finite"}, *rows(a=1.0, b=2.0)]
    record = {"seeds": "abc", "found": {"mixture": centre, "slow_rho": rows(b=1.5, c=9.0)}, "restarts": {}}
    line = next(line for line in report(record).splitlines() if RECIPES["slow_rho"]["title"] in line)
    assert line.endswith(" -0.50")


def test_a_seed_that_diverged_is_counted_and_its_reason_said() -> None:
    one = {"validation_error": 3.0, "test_error": 3.5}
    failed = {"stopped": "the loss is not finite in epoch 2"}
    found = {
        "mixture": [{"seed": 1, **one}, {"seed": 2, **one}, {"seed": 3, **failed}],
        "slow_rho": [{"seed": seed, **failed} for seed in (1, 2, 3)],
    }
    restarts = {"mixture": one}
    shown = report({"seeds": [1, 2, 3], "found": found, "restarts": restarts}).splitlines()
    title, other = (RECIPES[name]["title"] for name in ("mixture", "slow_rho"))
    assert sum(line.startswith(f"{title} (1 failed) ") for line in shown) == 2  # among the restarts too
    assert sum(line.startswith(f"{other} (3 failed) ") for line in shown) == 1
    assert shown[-2:] == [f"- {name}: {failed['stopped']}" for name in (title, other)]


def test_an_unknown_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="recipes must be one of mixture"):
        main(["recipes=[magic]", f"folder={tmp_path}"])


def test_experiment_best_is_the_recipe_with_the_lowest_validation_error_on_record(tmp_path: Path) -> None:
    """At its own width."""
    record = Records(ROOT / "docs" / "records").get("recipes_wide")
    assert record is not None
    winner = RECIPES[ranked(record["found"])[0]]
    theirs = compose("table1_mixture", [*winner["words"], "epochs=20"], folder=tmp_path)
    best = compose("best", [], folder=tmp_path)
    for part in ("prior", "guide", "kl", "optim", "schedule", "estimator", "rates", "epochs", "samples"):
        assert best[part] == theirs[part], part
