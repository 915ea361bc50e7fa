"""How long the first commands of a fresh clone took, for the README."""

from __future__ import annotations

from experiments.results.records import Record, of


def _words(record: Record) -> str:
    """`make mnist` with the set-up, and what was timed after it."""
    (first, seconds), *others = record["seconds"].items()
    said = f"in a fresh clone `{first}` took {seconds:.0f} s, set-up included"
    said += "".join(f", then `{command}` {seconds:.0f} s" for command, seconds in others)
    return f"{said}, on {record['machine']}, {record['date']}."


first_run = of("first_run", _words, "nothing.")
