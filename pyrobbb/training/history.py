"""The course of a training: one row per epoch, in memory and in `history.csv`."""

import csv
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isclose, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from pyrobbb._support.files import named_errors, replacing

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """What one epoch did.

    `free_energy` = `kl` + `nll`, all in nats per training datum and averaged over the epoch's steps; where
    the loss is not a bound, as for a point estimate, `kl` holds the prior's part of it, and `free_energy`
    the loss; `validation_error` is in percent for classification, the root mean squared error otherwise, and
    `validation_nll` in nats per datum, both NaN without a validation set.
    """

    chain: int
    epoch: int
    free_energy: float
    kl: float
    nll: float
    validation_error: float
    validation_nll: float
    lr: float
    seconds: float


@dataclass
class History:
    """All recorded epochs of one chain so far; `stopped` says why a callback stopped it."""

    rows: list[Epoch] = field(default_factory=list)
    stopped: str | None = None
    finishing: float = 0.0  # seconds that the method took after the last step

    def __repr__(self) -> str:
        last = f", the last {self.rows[-1]}" if self.rows else ""
        return f"{type(self).__name__} of {len(self.rows)} epoch{'s' * (len(self.rows) != 1)}{last}"

    @property
    def train_seconds(self) -> float:
        """Time spent in training steps and in finishing, validation not counted."""
        return sum(row.seconds for row in self.rows) + self.finishing


def by_chain(rows: Sequence[Epoch]) -> dict[int, list[Epoch]]:
    """The rows of each chain, in the chains' order."""
    return {chain: [row for row in rows if row.chain == chain] for chain in sorted({r.chain for r in rows})}


def final_mean(rows: Sequence[Epoch], column: str = "free_energy") -> float:
    """The mean of a column over the last twentieth of one chain's epochs, or over the last epoch alone.

    An epoch's own value is an estimate by as many draws as it has steps, which may be one.
    """
    return fmean(getattr(row, column) for row in rows[-max(1, len(rows) // 20) :])


def from_plain(kept: Sequence[Mapping[str, Any]]) -> list[History]:
    """What `asdict` made of each chain's history; of earlier versions the rows of the first alone."""
    each = [{"rows": kept}] if kept and "rows" not in kept[0] else kept
    return [History(**{**one, "rows": [Epoch(**row) for row in one["rows"]]}) for one in each]


def write(path: Path | str, rows: list[Epoch]) -> None:
    """Write a whole history, replacing what was there."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Epoch)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def append(path: Path | str, row: Epoch) -> None:
    """Add one row to the file; the next reader sees it."""
    with named_errors(path), Path(path).open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, [f.name for f in fields(Epoch)]).writerow(asdict(row))


def read_if_there(path: Path | str) -> list[Epoch]:
    """Read a history back; no file is an empty history, and so is a damaged one, which is logged."""
    try:
        return read(path) if Path(path).exists() else []
    except ValueError as error:
        logger.warning("%s; it will be rewritten from the checkpoints", error)
        return []


def read_finished(path: Path | str, metrics: Mapping[str, Any]) -> list[Epoch]:
    """The history of a finished run with these metrics; no file is an empty one, one cut off is logged."""
    rows = read(path) if Path(path).exists() else []
    chains = by_chain(rows).values()
    given = metrics.get("chain_weights")
    weights = given if given and len(given) == len(chains) else None
    told = metrics.get("free_energy", metrics.get("train_loss"))  # the mean over the chains' ends
    ends, lasts = [final_mean(own) for own in chains], [own[-1].free_energy for own in chains]
    here = [fmean(each, by) for each, by in ((ends, weights), (lasts, weights), (lasts, None)) if each]
    if Path(path).exists() and told is not None and not any(isclose(loss, told) for loss in here):
        logger.warning(  # earlier versions took the last epoch's, and once no weights
            "%s was cut off, or belongs to another run: its last loss is %.6g, the run's is %.6g",
            path, here[0] if here else nan, told,
        )  # fmt: skip
    return rows


def read(path: Path | str) -> list[Epoch]:
    """Read a history back; a last line truncated by a crash is left out.

    Raises:
        ValueError: If the file is damaged or something else.
    """
    types = {f.name: int if f.type is int else float for f in fields(Epoch)}
    with Path(path).open(newline="", encoding="utf-8", errors="backslashreplace") as file:
        text = file.read()
    whole = text[: text.rfind("\n") + 1].splitlines()
    reader = csv.DictReader(whole, restval="")
    try:
        return [
            Epoch(**{name: kind(record[name]) for name, kind in types.items()})  # type: ignore[arg-type]
            for record in reader
        ]
    except KeyError as error:
        raise ValueError(f"{path} is not a training history: it has no column {error}") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not a training history: line {reader.line_num}: {error}") from error
