"""Every text by the name that stands in the documents' markers."""

from __future__ import annotations

from experiments.results.claims import claims, not_run
from experiments.results.own_tables import uci
from experiments.results.scoreboard import SCOREBOARD
from experiments.results.tables import TABLES, Text
from experiments.results.targets import TARGETS

TEXTS: dict[str, Text] = {**TABLES, "claims": claims, "not_run": not_run, "uci": uci, **TARGETS, **SCOREBOARD}
