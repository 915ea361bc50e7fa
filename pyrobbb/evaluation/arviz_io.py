"""Posterior arrays to ArviZ and to `posterior.nc`; the only file that knows which ArviZ is installed.

ArviZ 0.x holds its groups in an `InferenceData`, ArviZ 1.x in xarray's `DataTree`. The file is the same
for both: netCDF4, one netCDF group per ArviZ group. Needs numpy, xarray and ArviZ, and no torch.
"""

import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import file_digest, sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from pyrobbb import __version__
from pyrobbb._support.files import replacing

SAMPLE_GROUPS = (
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    "prior",
    "prior_predictive",
    "log_prior",
    "predictions",
    "sample_stats",
)
"""Groups whose every variable begins with the axes (chain, draw)."""

DATA_GROUPS = ("observed_data", "constant_data", "predictions_constant_data", "variational")
"""Groups without draws; `variational` is ours, the rest are ArviZ's."""

ARVIZ_GENERATION = int(version("arviz").split(".")[0])
LIBRARY = "pyrobbb"
UNTIED = 1e-9  # nats, at most subtracted at export from draws that are all alike
COMPRESS_ABOVE = 8192  # bytes; for less, HDF5's index of chunks is larger than what it saves
SUMMARY_COLUMNS = [
    *("mean", "sd", "hdi_lower", "hdi_upper"),
    *("mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"),
]


def to_arviz(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    *,
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    attrs: Mapping[str, str | int | float] | None = None,
) -> Any:
    """Arrays by group and variable, as the container of the installed ArviZ.

    The variables of `SAMPLE_GROUPS` have shape `(chain, draw, *dims[variable])`, a chain being an
    independent restart; those of `DATA_GROUPS` have shape `dims[variable]`. `posterior_predictive`,
    `log_likelihood` (in nats) and `observed_data` refer to the training observations, as `az.loo`
    requires; test data goes to `predictions` and `predictions_constant_data`.

    Args:
        groups: `{group: {variable: array}}`.
        dims: Names of a variable's axes, (chain, draw) left out. The key is the variable's name, or
            `"group/variable"` where it differs between groups; a scalar needs no entry.
        coords: Labels along a dimension; 0, 1, 2, ... for a dimension that is not named here.
        attrs: Strings and numbers to keep with the whole.

    Returns:
        `arviz.InferenceData` (ArviZ 0.x) or `xarray.DataTree` (ArviZ 1.x).

    Raises:
        ValueError: An unknown group, or an array that does not fit its dimensions and coordinates.
    """
    datasets = {group: _dataset(group, variables, dims, coords or {}) for group, variables in groups.items()}
    return _container(datasets, {**(attrs or {}), "inference_library": LIBRARY, "version": __version__})


def save(data: Any, path: Path | str) -> str:
    """Write an `InferenceData` or `DataTree` to `path` as netCDF4, whole or not at all.

    The file is built in memory, because HDF5 crashes the whole process when a disk is full.

    Returns:
        The SHA-256 of its bytes, for `load`.

    Raises:
        OSError: It cannot be written; an existing file stays.
    """
    memory = io.BytesIO()
    with h5netcdf.File(memory, "w") as file:
        xr.Dataset(attrs=dict(data.attrs)).dump_to_store(H5NetCDFStore(file))
        for group, dataset in _datasets(data).items():
            packed = {
                name: {"zlib": True, "shuffle": True}
                for name, variable in dataset.variables.items()
                if variable.dtype.kind in "iuf" and variable.nbytes > COMPRESS_ABOVE
            }
            dataset.dump_to_store(H5NetCDFStore(file.create_group(group)), encoding=packed)
    with replacing(path) as temporary, temporary.open("wb") as file, memory.getbuffer() as content:
        file.write(content)
        return sha256(content).hexdigest()


def load(path: Path | str, checksum: str | None = None) -> Any:
    """Read a file written by `save`, under either ArviZ, into memory.

    Args:
        path: The file.
        checksum: What `save` returned.

    Returns:
        `arviz.InferenceData` (ArviZ 0.x) or `xarray.DataTree` (ArviZ 1.x); the file is closed again.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is truncated, was not written by `save`, or is not the one of that checksum;
            without one, damage to a variable of less than 8 kB goes unnoticed.
    """
    path = Path(path)
    with path.open("rb") as opened:  # missing, a folder, not permitted: Python's own message is the clearest
        found = checksum and file_digest(opened, "sha256").hexdigest()
    try:
        with h5py.File(path, mode="r") as file:
            ours = file.attrs.get("inference_library") == LIBRARY
            groups = [name for name, item in file.items() if isinstance(item, h5py.Group)] if ours else []
        attrs = xr.load_dataset(path, engine="h5netcdf").attrs if ours else {}
        datasets = {group: xr.load_dataset(path, engine="h5netcdf", group=group) for group in groups}
    except Exception as error:  # h5py and xarray raise many kinds for damaged bytes
        raise ValueError(
            f"{path} cannot be read as a posterior: {path.stat().st_size} bytes, truncated, "
            f"damaged or not in netCDF4 format ({error}); if experiments.run left it, remove it, and the "
            f"run's command writes it again"
        ) from error
    if not ours:
        raise ValueError(f"{path} is a netCDF4 file that pyrobbb did not write; open it with ArviZ itself")
    if found != checksum:
        raise ValueError(
            f"{path} is not the file that this run wrote: it is another run's, or was changed; keep what you "
            f"want of it under another name and remove it, and the run's command writes its own again"
        )
    return _container(datasets, attrs)


def load_of(folder: Path | str, metrics: Mapping[str, Any]) -> Any:
    """The `posterior.nc` in a run's folder, as `load`; refused if it is not the one of these `metrics`."""
    return load(Path(folder) / "posterior.nc", metrics.get("posterior_sha256"))


def summary(
    data: Any, var_names: Sequence[str] | None = None, *, group: str = "posterior", ci_prob: float = 0.95
) -> Any:
    """`az.summary` with the same columns and unrounded numbers in both generations.

    A pandas table, one row per scalar: mean, sd, hdi_lower, hdi_upper (highest-density interval of mass
    `ci_prob`), mcse_mean, mcse_sd, ess_bulk, ess_tail, r_hat. With one chain r_hat is NaN: there is no
    other restart to disagree with.
    """
    if group not in _datasets(data):
        raise ValueError(f"group must be one of {', '.join(_datasets(data))}, got {group!r}")
    az = import_arviz()
    names = None if var_names is None else list(var_names)
    interval = {"hdi_prob": ci_prob} if ARVIZ_GENERATION == 0 else {"ci_prob": ci_prob, "ci_kind": "hdi"}
    with _quiet(az):
        table = az.summary(data, var_names=names, group=group, round_to="none", **interval)
    lower, upper = (name for name in table.columns if name.startswith("hdi"))
    table = table.rename(columns={lower: "hdi_lower", upper: "hdi_upper"})
    return table[SUMMARY_COLUMNS].astype(float)


def r_hat(data: Any, name: str) -> np.ndarray:
    """Rank-normalised split R-hat of each value of a variable in `posterior`; NaN with a single chain."""
    az = import_arviz()
    with _quiet(az):
        return np.asarray(az.rhat(data, var_names=[name])[name])


@contextmanager
def _quiet(az: Any) -> Iterator[None]:
    """ArviZ without a word on a single chain, or on draws that never vary (AutoDelta), whose sd is 0."""
    log = getattr(az, "_log", logging.getLogger("arviz"))  # of ArviZ 0.x, which logging does not know
    log.addFilter(_of_several_chains)
    try:
        with np.errstate(invalid="ignore", divide="ignore"):
            yield
    finally:
        log.removeFilter(_of_several_chains)


def _of_several_chains(record: logging.LogRecord) -> bool:
    """Not that one chain has no R-hat, as the table says itself."""
    return "Shape validation failed" not in record.getMessage()


def group_names(data: Any) -> set[str]:
    """The names of the groups of an `InferenceData` or a `DataTree`."""
    return set(_datasets(data))


def group(data: Any, name: str) -> Any:
    """A group by its name; nothing of one that is not there."""
    return data[name] if name in group_names(data) else {}


def images(x: np.ndarray) -> np.ndarray | None:
    """Stored inputs as square grey images, or None for what looks like the columns of a table.

    A table may well have 25 or 64 columns, but then some are negative, standardised as they are.

    Shapes: `x` is `(M, pixels)`; the images are `(M, side, side)`.
    """
    side = round(x.shape[1] ** 0.5)
    square = side * side == x.shape[1] and side > 4
    return x.reshape(-1, side, side) if square and (side > 10 or x.min(initial=0) >= 0) else None


def one_input(data: Any) -> tuple[np.ndarray, str, str]:
    """The one input of the test rows, `(M,)`, in its table's units, and the names of input and target."""
    x = data["predictions_constant_data"]["x"].values[:, 0].astype(float)
    attrs = data.attrs
    x = x * attrs.get("x_sd", 1.0) + attrs.get("x_mean", 0.0)
    return x, attrs.get("x_name", "x"), attrs.get("y_name", "y")


def row_weights(test: Any) -> np.ndarray | None:
    """How often each test row counts, `(M,)`; None is once."""
    return np.array(test["row_weight"].values) if "row_weight" in test else None


def import_arviz() -> Any:
    """The module arviz, without the notice that ArviZ 0.x shows once a day, or a log of its parts."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.INFO))  # Hydra shows whatever is logged at this level
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
            try:
                return import_module("arviz")
            except OSError:
                return _import_with_own_cache()
    finally:
        logging.disable(disabled)


def _import_with_own_cache() -> Any:
    """The module arviz where it cannot make the cache folder that its notice wants: with a temporary one."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        with TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            return import_module("arviz")
    finally:
        os.environ.pop("XDG_CACHE_HOME", None)
        if cache is not None:
            os.environ["XDG_CACHE_HOME"] = cache


def _dataset(
    group: str,
    variables: Mapping[str, np.ndarray],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Any] | np.ndarray],
) -> xr.Dataset:
    if group not in SAMPLE_GROUPS + DATA_GROUPS:
        raise ValueError(f"groups has {group!r}; known are {', '.join(SAMPLE_GROUPS + DATA_GROUPS)}")
    arrays = {}
    for name, array in variables.items():
        axes = tuple(dims.get(f"{group}/{name}", dims.get(name, ())))
        if group in SAMPLE_GROUPS:
            axes = ("chain", "draw", *axes)
        if set(axes) & set(variables) or "/" in name:
            raise ValueError(
                f"groups[{group!r}][{name!r}] has axes {axes}: no axis may be named like a variable or "
                f"contain '/'"
            )
        half = array.dtype == np.float16  # which netCDF has not
        arrays[name] = (axes, array.astype(np.float32) if half else array)
    made = xr.Dataset(arrays)
    labels = {a: np.asarray(coords.get(str(a), np.arange(size))) for a, size in made.sizes.items()}
    return made.assign_coords(labels)


def _container(datasets: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    if ARVIZ_GENERATION == 0:
        return import_arviz().InferenceData(attrs=dict(attrs), **datasets)
    tree = xr.DataTree.from_dict(dict(datasets))
    tree.attrs = dict(attrs)
    return tree


def _datasets(data: Any) -> dict[str, xr.Dataset]:
    """The groups of an `InferenceData` or a `DataTree`."""
    if hasattr(data, "children"):
        return {name: node.to_dataset() for name, node in data.children.items()}
    return {name: data[name] for name in data.groups()}
