"""The documents' figures, each drawn from one record; None without it."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from experiments.paper import pruning_report, regression_report, table1_report
from experiments.reproductions import training_choices
from experiments.results import pictures
from experiments.results.records import Records, of

Draw = Callable[[Records], Figure | None]


FIGURES: dict[str, Draw] = {
    "figure2": of("table1_400", table1_report.figure2, None),
    "figure2_full": of("table1_full", table1_report.figure2, None),
    "figure3": of("table1_400", table1_report.figure3, None),
    "figure4": of("pruning", pruning_report.figure4, None),
    "table2": of("pruning", pruning_report.error_figure, None),
    "figure5": of("regression", regression_report.figure, None),
    "posteriors": of("agreement_gap", pictures.bands, None),
    "coverage": of("eight_tables", pictures.coverage, None),
    "training_choices": of("training_choices", training_choices.figure, None),
    "bound": of("bound_ranks", pictures.bound, None),
}
