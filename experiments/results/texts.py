"""Every text by the name that stands in the documents' markers."""

from __future__ import annotations

from experiments.results.claims import CLAIMS, not_run
from experiments.results.first_run import first_run
from experiments.results.own_tables import uci
from experiments.results.scoreboard import SCOREBOARD
from experiments.results.tables import TABLES, Text

TEXTS: dict[str, Text] = {
    **TABLES,
    **CLAIMS,
    "not_run": not_run,
    "first_run": first_run,
    "uci": uci,
    **SCOREBOARD,
}
