"""Every method of inference on the same models and data, as they are chosen by name.

`python -m experiments.scoreboard [key=value ...]` fits what is missing, writes `record.json` and
prints its tables. A finished point is read back, so the same command resumes.

part=regressions     the default; UCI tables: log-likelihood, RMSE, coverage, CRPS, beside published numbers
    tables=[yacht,energy,concrete]    also kin8nm, naval, power, protein and wine
    splits=[0,1,2,3,4]                which of the standard splits
    gaps=[0,1,2,3]                    by which features the gap splits are; [-1]: none
    network=one_layer                 50 units, 100 for protein; two_layers: two such; deep: three of 200,
                                      400 for protein; chosen: depth and width by validation rows
    noises=[heavy tails]              among which to choose, instead of the network's own: one for all rows,
                                      of the inputs, heavy tails, mixture
    trials=3                          settings that each method tries on validation rows
part=detection       MNIST, and what is told apart from it: clothes, letters, noise; digits turned
    networks=[2x400]                  also conv
    seeds=[1,2,3]                     of the fits
part=agreement       with NUTS: six points, the paper's curve, yacht
    models=[six_points,curve,yacht]   which
methods=[...]        which methods, for every part
steps=1000           training steps of a fit
quick=true           few and small fits on synthetic data, for a test
record=FILE          print the tables of a record, and fit nothing; of a folder of records, which method when
Other arguments are for every run, as in `experiments.run`.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments._runner.build import ConfigError
from experiments._runner.command import command
from experiments._runner.fit_points import Result
from experiments.scoreboard import choose
from experiments.scoreboard.choose import PARTS, report
from pyrobbb._support import checks


def main(arguments: Sequence[str]) -> Result:
    """Fit what is missing of a part, keep the record and print its tables; or those of a record."""
    own = dict(word.split("=", 1) for word in arguments if word.startswith(("part=", "record=")))
    rest = [word for word in arguments if not word.startswith(("part=", "record="))]
    if "record" in own:
        path = Path(own["record"])
        if own["record"] and path.is_dir():
            records = choose.read(path)
            if not records:
                raise ConfigError(f"record: {path} holds no scoreboard_*.json")
            print(choose.markdown(records))
            return records
        record = choose.read_record(path)
        print(report(record))
        return record
    part = own.get("part", "regressions")
    checks.one_of("part", part, PARTS)
    out, found = PARTS[part].run(rest)
    out.end(report(found))
    return found


if __name__ == "__main__":
    command(main, __doc__)
