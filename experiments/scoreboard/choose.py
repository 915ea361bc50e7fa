"""Which method when, what it costs and what it is worth: Markdown from the records of all parts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import ModuleType

from experiments._runner.build import ConfigError
from experiments._runner.fit_points import Result
from experiments._runner.tables import markdown as table
from experiments.scoreboard import agreement, compare, detection, regressions
from experiments.scoreboard.compare import (
    REFERENCE,
    Row,
    joined,
    of_one_network,
    pairs,
    refuse_other_budgets,
    rows_of,
    values,
)
from pyrobbb._support.files import read_json

PARTS: dict[str, ModuleType] = {  # `run` of each fits and leaves a record, `report` prints one
    "regressions": regressions,
    "detection": detection,
    "agreement": agreement,
}
LARGER = "eight_tables"  # a record of regressions: fewer methods, more tables
LONGER = "long_detection"  # a record of detection: fewer methods, more epochs
AUROC = "auroc Fashion-MNIST"
WHEN = {  # method -> how it is said to `experiments.run`, and when to take it
    "plain network": ("`inference=map`", "a first answer, and what the others must beat"),
    "ensemble of 5": ("`inference=ensemble`", "better predictions, for several fits"),
    "dropout": ("`inference=dropout`", "a baseline"),
    "SWAG": ("`inference=swag`", "a baseline"),
    "mean field": (
        "`inference=svi estimator=local guide.init_rho=-6`",
        "large networks, any prior, a bound to watch, pruning",
    ),
    "5 mean fields": ("the same, `chains=5`", "the same, with several modes"),
    "5 mean fields, Laplace": (
        "the same, then `Laplace(...).around(posterior, rows)`",
        "tables with regions without rows",
    ),
    "cold mean field": (
        "the mean field, `kl=tempered kl.temperature=0.1`",
        "telling apart what is unlike the training data; its bound is of no use",
    ),
    "low rank": ("`guide=low_rank`", "weights whose correlations matter"),
    "full covariance": ("`guide=auto_multivariate_normal`", "a few hundred weights"),
    "last layer": ("a prior on the last layer", "a trained network, or features that are good already"),
    "natural gradient": ("`inference=natural_gradient`", "the mean field of a large network"),
    "Laplace, last layer": (
        "`inference=laplace inference.structure=full inference.layers=last`",
        "a trained network, at once",
    ),
    "Laplace, diagonal": ("`inference=laplace inference.structure=diagonal`", "many weights, little memory"),
    "Laplace, Kronecker": ("`inference=laplace`", "after any fit with a normal prior"),
    "5 Laplace, Kronecker": (
        "`inference=laplace chains=5`",
        "telling apart what is unlike the training data",
    ),
    "Laplace, full": ("`inference=laplace inference.structure=full`", "up to some thousand weights"),
    "5 Laplace, full": (
        "`inference=laplace inference.structure=full chains=5`",
        "tables, under the noise that held-back rows choose",
    ),
    "SGHMC": ("`inference=sghmc`", "draws from large networks, with patience for its rate"),
    "NUTS": ("`inference=nuts`", "the posterior itself, of up to hundreds of weights"),
}


def markdown(records: Mapping[str, Result]) -> str:
    """What each method is for and costs, and what it is worth: two tables from the records by part.

    A method is compared with the plain network of the same record: of `LARGER` if it is there. The AUROC of a
    method that no shorter record has is that of `LONGER`.
    """
    images, functions = (records.get(part, {}).get("rows", []) for part in ("detection", "agreement"))
    tables = [records[name]["rows"] for name in (LARGER, "regressions") if name in records]
    found = [*tables, functions, images, records.get(LONGER, {}).get("rows", [])]
    names = [name for name in WHEN if any(rows_of(rows, method=name) for rows in found)]
    models = [row["model"] for row in rows_of(functions, method=agreement.YARDSTICK)]
    uses, worth = [], []
    for name in names:
        rows: Sequence[Row] = next((rows for rows in tables if rows_of(rows, method=name)), [])
        standard, gaps = ([*rows_of(rows, kind=kind)] for kind in ("standard", "gap"))
        uses.append([name, *WHEN[name], _time(standard, name)])
        fewer = bool(rows) and rows is not tables[0]
        line = [name, _above(standard, name)]
        line += [_covered(kind, name, beside=fewer) for kind in (standard, gaps)]
        if functions:
            line.append(_spreads(functions, name, models))
        if images:
            line.append(_told_apart(images, name, records.get(LONGER)))
        worth.append(line)
    head = ["method", "better than the plain network", "in 95 % interval", "the same within gaps"]
    head += [f"spread on {', '.join(models).replace('_', ' ')}"] if functions else []
    head += ["Fashion-MNIST, AUROC"] if images else []
    time = "time of a fit to a small table, as a multiple of the plain network's"
    return "\n\n".join([table(["method", "how", "take it for", time], uses), table(head, worth)])


def report(record: Result) -> str:
    """The tables of a record, of whatever part."""
    return PARTS[record["part"]].report(record)


def spent(record: Result) -> str:
    """What a part compares, on how much, and what each method could spend."""
    rows = record["rows"]
    if record["part"] == "agreement":
        nuts = {row["model"]: row["r_hat"] for row in rows if "r_hat" in row}
        over = [f"{name.replace('_', ' ')} (NUTS: R-hat at most {r_hat:.2f})" for name, r_hat in nuts.items()]
    else:
        plain = rows_of(rows, method=REFERENCE)
        counts = Counter((row.get("table") or row["network"], row.get("kind", "seeds")) for row in plain)
        over = [f"{name} ({count} {kind})" for (name, kind), count in counts.items()]
    return f"{record['part']}: {', '.join(over)}; {compare.spent(record['budget'])}."


def _pairs(rows: Sequence[Row], name: str, measure: str) -> list[tuple[float, float]]:
    """A method's measure and the plain network's, for each split of each table that both have."""
    own, plain = (rows_of(rows, method=one) for one in (name, REFERENCE))
    return pairs(own, plain, measure, "table", "split")


def _above(rows: Sequence[Row], name: str) -> str:
    """On how many splits the log-likelihood is above the plain network's.

    A count, because one split of one table, thousands of nats off, would decide any mean.
    """
    both = _pairs(rows, name, "log_likelihood")
    if name == REFERENCE or not both:
        return "" if name == REFERENCE else "-"
    return f"{sum(own > plain for own, plain in both)} of {len(both)}"


def _covered(rows: Sequence[Row], name: str, *, beside: bool) -> str:
    """Of the test rows, in a method's 95 % interval; `beside` a plain network's of the same rows."""
    own = _mean(rows_of(rows, method=name), "coverage_95", "{:.0%}")
    both = _pairs(rows, name, "coverage_95")
    said = f"{own} (plain: {fmean(plain for _, plain in both):.0%})" if beside and both else own
    return said.replace("%", " %")


def _time(rows: Sequence[Row], name: str) -> str:
    """As a multiple of the plain network's."""
    both = _pairs(rows, name, "seconds")
    return f"{sum(own for own, _ in both) / sum(plain for _, plain in both):.1f} x" if both else "-"


def _spreads(rows: Sequence[Row], name: str, models: Sequence[str]) -> str:
    """As a multiple of the yardstick's, on each model."""
    found = {row["model"]: row["sd_ratio"] for row in rows_of(rows, method=name) if "sd_ratio" in row}
    return ", ".join(f"{found[model]:.2f}" if model in found else "-" for model in models) if found else "-"


def _told_apart(rows: Sequence[Row], name: str, longer: Result | None) -> str:
    """AUROC; of a method that only the longer fits have, with a plain network's of that length."""
    own = _mean(rows_of(of_one_network(rows), method=name), AUROC, "{:.3f}")
    if own != "-" or longer is None or not rows_of(longer["rows"], method=name):
        return own
    rows = of_one_network(longer["rows"])
    own, plain = (_mean(rows_of(rows, method=one), AUROC, "{:.3f}") for one in (name, REFERENCE))
    return f"{own} ({longer['budget']['epochs']} epochs; plain: {plain})"


def _mean(rows: Sequence[Row], measure: str, form: str) -> str:
    found = values(rows, measure)
    return form.format(fmean(found)) if found else "-"


def read(folder: Path) -> dict[str, Result]:
    """The records of a folder by part, and the larger and the longer one, if they are there.

    Raises:
        ConfigError: A file is not a record, or two of one part have different budgets on the same data.
    """
    found = {path: read_record(path) for path in sorted(folder.glob("scoreboard_*.json"))}
    records = {}
    for name in PARTS:
        own = {path: record for path, record in found.items() if record["part"] == name}
        refuse_other_budgets(own)
        if each := list(own.values()):
            records[name] = {**each[0], "each": each, "rows": joined([record["rows"] for record in each])}
    others = {name: folder / f"{name}.json" for name in (LARGER, LONGER)}
    return records | {name: read_record(path) for name, path in others.items() if path.exists()}


def read_record(path: Path) -> Result:
    """A record of the scoreboard; ConfigError if the file is not one."""
    record: Result = read_json(path)
    if record.get("part") not in PARTS or not {"rows", "budget"} <= record.keys():
        raise ConfigError(f"record: {path} is not a record of the scoreboard, or is not there")
    return record
