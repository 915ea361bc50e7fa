"""The recorded table of the bound: `python -m experiments.bound`.

Prints the free energy under each prior and network beside that of ignoring the inputs, as
`docs/records/bound.json` has them. Trains nothing: `python -m experiments.studies.bound` trains anew.
"""

import argparse
from pathlib import Path

from experiments._runner.command import ended_in_a_line
from experiments.studies.bound import report
from pyrobbb._support.files import read_json

RECORD = Path(__file__).parents[1] / "docs" / "records" / "bound.json"
AGAIN = "python -m experiments.studies.bound trains anew; --help says which networks, priors and seeds"


def recorded(path: Path) -> str:
    """The table of a record, and the command that trains anew."""
    record = read_json(path)
    if not record:
        raise FileNotFoundError(f"{path} is not there; `make results` makes it from bound_mnist-*.json there")
    return f"{report(record)}\n{AGAIN}"


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(prog="python -m experiments.bound", description=__doc__).parse_args()
    with ended_in_a_line():
        print(recorded(RECORD))


if __name__ == "__main__":
    main()
