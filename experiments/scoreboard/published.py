"""What others published, with sources, and our best method beside the best of theirs."""

from collections.abc import Mapping, Sequence

from experiments.scoreboard.compare import Row, mean_se, rows_of, shown, values

# of mean test log-likelihoods of the eight UCI regressions
SOURCES: Mapping[str, str] = {
    "MFVI": "github.com/cambridge-mlg/DUN, regression_and_image_PLOTS.ipynb",
    "ensemble of 5": "github.com/cambridge-mlg/DUN, regression_and_image_PLOTS.ipynb",
    "MC dropout": "github.com/yaringal/DropoutUncertaintyExps",
    "VI, one layer": "github.com/google/uncertainty-baselines",
}
STANDARD: Mapping[str, Mapping[str, float]] = {  # mean over the standard splits
    "concrete": {"MFVI": -3.19, "ensemble of 5": -2.89, "MC dropout": -2.94, "VI, one layer": -3.22},
    "energy": {"MFVI": -1.96, "ensemble of 5": -1.30, "MC dropout": -1.21, "VI, one layer": -0.93},
    "kin8nm": {"MFVI": 1.06, "MC dropout": 1.14, "VI, one layer": 1.03},
    "naval": {"MFVI": 3.39, "ensemble of 5": 5.08, "MC dropout": 4.45, "VI, one layer": 6.12},
    "power": {"MFVI": -2.88, "ensemble of 5": -2.66, "MC dropout": -2.81, "VI, one layer": -2.85},
    "protein": {"MFVI": -2.93, "ensemble of 5": -2.56, "MC dropout": -2.87, "VI, one layer": -2.93},
    "wine": {"MFVI": -1.01, "MC dropout": -0.93, "VI, one layer": -1.00},
    "yacht": {"MFVI": -2.24, "ensemble of 5": -2.44, "MC dropout": -1.25, "VI, one layer": -2.01},
}
GAP: Mapping[str, Mapping[str, float]] = {  # mean over the gap splits
    "concrete": {"MFVI": -3.46, "ensemble of 5": -3.63},
    "energy": {"MFVI": -9.1, "ensemble of 5": -5.4},
    "kin8nm": {"MFVI": 0.94},
    "naval": {"MFVI": -15.2, "ensemble of 5": -4.6},
    "power": {"MFVI": -2.98, "ensemble of 5": -2.90},
    "protein": {"MFVI": -3.08, "ensemble of 5": -3.07},
    "wine": {"MFVI": -0.97},
    "yacht": {"MFVI": -2.11, "ensemble of 5": -2.57},
}
OF_SPLITS: Mapping[str, Mapping[str, Mapping[str, float]]] = {"standard": STANDARD, "gap": GAP}
# areas under the ROC curve, by a conv net (github.com/wiseodd/lula)
FASHION_FROM_MNIST: Mapping[str, float] = {"plain network": 0.984, "ensemble of 5": 0.986}

Line = tuple[str, str, str, str, str, str]
HEAD = ("", "best of ours", "", "best published", "", "ours is")


def beside(rows: Sequence[Row], others: Mapping[str, Mapping[str, float]]) -> list[Line]:
    """A line for each table of which both are known, by test log-likelihood.

    The best of ours is picked by these very scores, as that of the others is, among the methods that have one
    on every split. "level" is within one standard error over our splits.
    """
    lines = []
    for table in dict.fromkeys(row["table"] for row in rows):
        own, published = rows_of(rows, table=table), others.get(table)
        splits = len({row["split"] for row in own})
        each = {
            method: mean_se(mine, "log_likelihood")
            for method in dict.fromkeys(row["method"] for row in own)
            if len(values(mine := rows_of(own, method=method), "log_likelihood")) == splits
        }
        if not each or not published:
            continue
        method = max(each, key=lambda name: each[name][0])
        theirs = max(published, key=published.__getitem__)
        reached, (mean, error) = published[theirs], each[method]
        place = _place(mean - reached, error or 0.0)
        lines.append((table, shown(mean, error, 2), method, f"{reached:.2f}", theirs, place))
    return lines


def _place(apart: float, error: float) -> str:
    return "ahead" if apart > error else "level" if apart >= -error else f"{-apart:.2f} behind"
