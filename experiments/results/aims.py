"""Our own aims (`aims` of claims.yaml), and what was found."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean

from experiments._runner.tables import estimate, seeds, verdict
from experiments.results import own_tables
from experiments.results.records import Record
from experiments.scoreboard.agreement import YARDSTICK
from experiments.scoreboard.compare import REFERENCE, Row, of_one_network, pairs, rows_of, values
from experiments.scoreboard.published import GAP, OF_SPLITS, STANDARD, beside
from experiments.studies import recipes
from experiments.studies.bound import kinds, ranks

ENSEMBLE = "ensemble of 5"  # of the published
Found = tuple[str, str]  # ours, and whether it holds


def default_error(record: Record) -> Found:
    """The default recipe's test error, after its own number of epochs."""
    each = [run["metrics"] for run in record["runs"]]
    errors = [metrics["test"]["error"] for metrics in each]
    words = f"{estimate(errors, 2)} %, 100 draws, {seeds(len(errors))}"
    return words, f"{'reached' if fmean(errors) <= 2.3 else 'missed'}, after {each[0]['epochs']} epochs"


def below_ignoring(record: Record) -> Found:
    """The free energy beside that of a posterior that ignores the inputs."""
    ours, trivial = record["free_energy"], record["trivial_free_energy"]
    return (
        f"{ours:.2f} against {trivial:.2f} nats per datum, one seed",
        "reached" if ours < trivial else "missed",
    )


def short_code(energy: float, error: float, record: Record) -> Found:
    """The free energy and the error of the record's first row beside the most that they may be."""
    row = record["rows"][0]
    energies, errors = row["free_energy_each"], row["test_error_each"]
    words = f"{estimate(energies, 3)} nats, {estimate(errors, 2)} %, {seeds(len(errors))}"
    held = fmean(energies) <= energy and fmean(errors) <= error
    return words, "reached" if held else "missed"


def wider(prior: str, epochs: int, networks: Sequence[str], record: Record) -> Found:
    """The free energies of wider networks less that of the narrowest, trained alike, paired by seed."""
    energies = {  # by seed
        row["network"]: dict(zip(row["seeds"], row["free_energy_each"], strict=True))
        for row in rows_of(record["rows"], prior=prior, epochs=epochs)
    }
    narrow, *wide = (energies[name] for name in networks)
    gaps = [[each[seed] - narrow[seed] for seed in each] for each in wide]
    words = "; ".join(
        f"{name} {estimate(gap, 3, sign=True)}" for name, gap in zip(networks[1:], gaps, strict=True)
    )
    found = "reached" if all(fmean(gap) <= 0 for gap in gaps) else "missed"
    return f"{words} nats above {networks[0]}, {seeds(min(map(len, gaps)))}", found


def ranked(record: Record) -> Found:
    """The rank correlation of free energy and validation error, for each kind of prior."""
    found = {name: ranks(rows) for name, rows in kinds(record["rows"]).items()}
    words = "; ".join(
        f"{name} {'-' if rank is None else f'{rank:.2f}'} ({count} settings)"
        for name, (rank, count) in found.items()
    )
    learned = found["learned priors"][0]
    held = "too few settings" if learned is None else "reached" if learned >= 0.8 else "missed"
    return f"{words}; {seeds(len(record['seeds']))}", held


def beside_published(least: int | None, record: Record) -> Found:
    """Our best log-likelihood on the standard splits of each table beside the best that was published.

    It is reached if ours is ahead or level on at least so many tables, or on all; a table of which no method
    has a number on every split, or nobody published one, counts as one where it is not.
    """
    rows = [row for row in record["rows"] if row["kind"] == "standard"]
    places: dict[str, list[str]] = {}
    for name, *_, place in beside(rows, STANDARD):
        places.setdefault(place.split()[-1], []).append(name)
    words = "; ".join(f"{place} on {', '.join(places[place])}" for place in sorted(places))
    held = sum(len(names) for place, names in places.items() if place != "behind")
    least = least or len({row["table"] for row in rows})
    return words or "-", "missed" if not held else "reached" if held >= least else "in part"


def above_on_gaps(record: Record) -> Found:
    """Methods above the published ensembles on every table, on its gap splits and on its standard ones.

    A method counts if it has a number on every split that the plain network has.
    """
    tables = list(dict.fromkeys(row["table"] for row in record["rows"]))
    splits = _splits(rows_of(record["rows"], method=REFERENCE))
    found = []
    for name in dict.fromkeys(row["method"] for row in record["rows"]):
        own = rows_of(record["rows"], method=name)
        if not splits <= _splits(row for row in own if row.get("log_likelihood") is not None):
            continue
        ours = {
            (kind, table): fmean(values(rows_of(own, kind=kind, table=table), "log_likelihood"))
            for kind in OF_SPLITS
            for table in tables
        }
        if all(mean > OF_SPLITS[kind][table][ENSEMBLE] for (kind, table), mean in ours.items()):
            gaps = [f"{table} {ours['gap', table]:.2f} ({GAP[table][ENSEMBLE]:.2f})" for table in tables]
            found.append(f"{name}: {', '.join(gaps)}")
    return "; ".join(found) or "none", "reached" if found else "missed"


def _splits(rows: Iterable[Row]) -> set[tuple[str, str, int]]:
    return {(row["table"], row["kind"], row["split"]) for row in rows}


def told_apart(images: str, method: str, record: Record, *, beside: str = REFERENCE) -> Found:
    """AUROC of a method less that of another, by default the plain network, paired by seed."""
    rows = of_one_network(record["rows"])
    ours, theirs = (rows_of(rows, method=name) for name in (method, beside))
    gap = [a - b for a, b in pairs(ours, theirs, f"auroc {images}", "seed")]
    return f"AUROC {estimate(gap, 3, sign=True)}, {seeds(len(gap))}", verdict(gap)


def area(least: float, method: str, record: Record) -> Found:
    """AUROC of a method against clothes beside the least that it may be."""
    areas = values(rows_of(of_one_network(record["rows"]), method=method), "auroc Fashion-MNIST")
    words = f"{estimate(areas, 4)}, {seeds(len(areas))}: {method}"
    return words, "reached" if fmean(areas) >= least else "missed"


def spread(record: Record) -> Found:
    """Which methods have NUTS' spread on each model, between the data and away from them."""
    words = []
    for name in dict.fromkeys(row["model"] for row in record["rows"]):
        rows = rows_of(record["rows"], model=name)
        near = {row["method"]: row["near"] for row in rows if row["method"] != YARDSTICK and "near" in row}
        every = [f"`{method}`" for method, is_near in near.items() if is_near]
        if near:
            words.append(
                f"{_plain(name)}: {len(every)} of {len(near)} methods ({', '.join(every) or 'none'})"
            )
    field = [row["near"] for row in rows_of(record["rows"], method="mean field") if "near" in row]
    return "; ".join(words), "reached" if field and all(field) else "missed by the mean field"


def yardstick(record: Record) -> Found:
    """Whether the chains of NUTS agree on each model."""
    rows = rows_of(record["rows"], method=YARDSTICK)
    each = ", ".join(f"{row['r_hat']:.2f} on {_plain(row['model'])}" for row in rows)
    chains = " or ".join(str(count) for count in sorted({row["chains"] for row in rows}))
    reached = all(row["r_hat"] < 1.05 for row in rows)
    return f"R-hat at most {each}, between {chains} chains", "reached" if reached else "missed"


def _plain(model: str) -> str:
    return model.replace("_", " ")


def one_network(record: Record) -> Found:
    """The test error of the recipe that has the lowest on validation data."""
    found = record["found"]
    name = recipes.ranked(found)[0]
    errors = [one["test_error"] for one in found[name] if "test_error" in one]
    words = f"{estimate(errors, 2)} %, {seeds(len(errors))}: {recipes.RECIPES[name]['title']}"
    return words, "reached" if fmean(errors) <= 1.45 else "missed"


def five_restarts(record: Record) -> Found:
    """The test error of its seeds averaged."""
    name = recipes.ranked(record["found"])[0]
    count = sum("test_error" in one for one in record["found"][name])
    error = record["restarts"][name]["test_error"]
    found = "reached" if error <= 1.25 else "missed" if count >= 5 else "not tried with five"
    return f"{error:.2f} %, {count} restarts", found


def late_regret(record: Record) -> Found:
    """The bandit's regret after all steps and in the last fifth, beside the most that they may be."""
    agent = record["agents"]["Bayes by Backprop"]
    end, late = list(agent["expected"].values())[-1], agent["expected in the last fifth"]
    words = f"{estimate(end, 0)}, of which {estimate(late, 0)} in the last fifth; {seeds(len(late))}"
    return words, "reached" if fmean(end) < 7000 and fmean(late) < 800 else "missed"


def least_regret(record: Record) -> Found:
    """Showdown: Bayes by Backprop's regret in percent of choosing at random."""
    each = record["agents"]["Bayes by Backprop"]["percent of uniform, realised"]
    return f"{estimate(each, 1)} %, {seeds(len(each))}", "reached" if fmean(each) < 11.1 else "missed"


AIMS: dict[str, Callable[[Record], Found]] = {
    "own tables": own_tables.reached,
    "own tables, UCI": own_tables.reached_on_uci,
    "one network": one_network,
    "five restarts": five_restarts,
    "default error": default_error,
    "below ignoring": below_ignoring,
    "short code": partial(short_code, 0.12, 0.8),
    "short code, 2x400": partial(short_code, 0.30, 2.5),
    "wider": partial(wider, "learned", 40, ["2x400", "2x1200"]),
    "wider, by input": partial(wider, "learned_input", 100, ["2x50", "2x100", "2x200", "2x400"]),
    "wider, by input, longer": partial(wider, "learned_input", 300, ["2x50", "2x200"]),
    "ranks": ranked,
    "beside published": partial(beside_published, None),
    "beside published, six": partial(beside_published, 6),
    "above on gaps": above_on_gaps,
    "clothes": partial(told_apart, "Fashion-MNIST", "mean field"),
    "letters": partial(told_apart, "notMNIST", "mean field"),
    "clothes, cold": partial(told_apart, "Fashion-MNIST", "cold mean field"),
    "clothes, draws": partial(
        told_apart, "Fashion-MNIST", "cold mean field", beside="cold mean field, mean weights"
    ),
    "area, perceptron": partial(area, 0.975, "cold mean field"),
    "area, conv net": partial(area, 0.99, "cold mean field"),
    "late regret": late_regret,
    "least regret": least_regret,
    "spread": spread,
    "yardstick": yardstick,
}
