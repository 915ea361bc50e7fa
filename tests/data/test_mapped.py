"""Training rows that stay on the disk: the same training as in memory, in a memory that does not grow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commands import interpreter
from engine_fakes import classes, classifier, values
from pyrobbb import BayesianNetwork, likelihoods, priors
from pyrobbb.data import BadFileError, Dataset, Mapped, OnDisk, Split, from_arrays
from pyrobbb.data.images import idx
from pyrobbb.experiment import Run
from pyrobbb.inference import NUTS
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.trainer import Training, fit

LAST = 20  # rows for validation


def on_disk(folder: Path, x: Any, y: Any, **options: Any) -> OnDisk:
    for name, array in (("x", x), ("y", y)):
        np.save(folder / f"{name}.npy", np.asarray(array))
    return OnDisk(x=str(folder / "x.npy"), y=str(folder / "y.npy"), **options)


def trained(data: Dataset) -> list[torch.Tensor]:
    training = Training(*classifier(data), data, epochs=3, batch_size=7, fast="eager")
    training.run()
    return [p.detach() for p in training.named.values()]


def test_the_same_rows_give_the_same_training(tmp_path: Path) -> None:
    made = classes(61)
    disk = on_disk(tmp_path, made.train.x, made.train.y, validation=LAST).load()
    x, y = made.train.x, made.train.y
    memory = from_arrays(
        x[:-LAST], y[:-LAST], task="classification", classes=3, validation=(x[-LAST:], y[-LAST:])
    )
    assert isinstance(disk.train.x, Mapped)
    assert disk.spec == memory.spec
    assert disk.validation is not None
    assert memory.validation is not None
    assert torch.equal(disk.validation.x, memory.validation.x)
    assert all(torch.equal(a, b) for a, b in zip(trained(disk), trained(memory), strict=True))


def test_a_method_of_all_rows_at_once_reads_them(tmp_path: Path) -> None:
    made, method = classes(20), NUTS(warmup=4, draws=4, max_tree_depth=2)
    disk = on_disk(tmp_path, made.train.x, made.train.y, classes=3).load()
    of_disk, of_memory = (
        fit(classifier(data)[0], None, data, inference=method, epochs=3, seed=1, progress=None)
        for data in (disk, made)
    )
    one, other = (posterior.draw(4)["0.weight"] for posterior in (of_disk, of_memory))
    assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "f4", "f8", ">f4", "longdouble", "?"])
def test_rows_in_any_order_and_type(dtype: str) -> None:
    array = np.arange(24).reshape(6, 2, 2).astype(dtype)
    rows = Mapped(array, torch.float32, scale=4.0)
    wanted = torch.tensor([4, 0, 5, 0])
    expected = torch.from_numpy(array.astype("f4")) / 4
    assert torch.equal(rows[wanted], expected[wanted])
    assert torch.equal(rows[1:3], expected[1:3])
    assert rows[wanted].dtype == torch.float32
    assert (len(rows), rows.shape) == (6, torch.Size([6, 2, 2]))
    assert rows[wanted[:0]].shape == (0, 2, 2)


def test_what_is_given_out_is_a_copy() -> None:
    array = np.ones((3, 2), dtype="f4")
    Mapped(array, torch.float32)[:].zero_()
    Mapped(array, torch.float32, scale=2.0)[torch.arange(3)].zero_()
    assert (array == 1).all()


def test_idx_files_are_mapped(tmp_path: Path) -> None:
    images = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
    (tmp_path / "images-idx3-ubyte").write_bytes(idx.pack(images))
    (tmp_path / "labels-idx1-ubyte").write_bytes(idx.pack(np.array([0, 1, 2, 1, 0], dtype=np.uint8)))
    paths = {"x": str(tmp_path / "images-idx3-ubyte"), "y": str(tmp_path / "labels-idx1-ubyte")}
    data = OnDisk(**paths, scale=126.0, flatten=True).load()
    assert data.spec.features == (4,)
    assert data.spec.outputs == 3
    assert torch.equal(data.train.x[2:3], torch.from_numpy(images[2:3]).reshape(1, 4).float() / 126)
    (tmp_path / "images-idx3-ubyte").write_bytes(idx.pack(images)[:-3])
    with pytest.raises(BadFileError, match="the file is cut"):
        OnDisk(**paths).load()


X, Y = np.zeros((5, 2), dtype="f4"), np.arange(5) % 3
NAN = np.where(np.arange(10).reshape(5, 2) == 7, np.nan, 0)
WRONG = [
    (X[:4], Y, {}, r"x.npy has 4 rows and .*y.npy 5; they must agree"),
    (X[:, 0], Y, {}, r"x.npy must have the shape \(N, features...\), got \(5,\)"),
    (X, Y[:, None], {}, r"y.npy must have the shape \(N,\) for classification"),
    (X, Y * 1000, {}, r"y.npy holds the label 2,000, but there are 5 rows: number the classes"),
    (X, Y * 1.0, {}, r"y.npy must hold integer class labels, got float64"),
    (X, Y - 1, {}, r"y.npy holds the label -1 in row 0; labels start at 0"),
    (X, Y, {"classes": 2}, r"y.npy holds the label 2; labels run from 0 to 1"),
    (X, Y, {"validation": 5}, r"validation: 5 of the 5 rows of .*x.npy leaves none for training"),
    (NAN, Y, {"validation": 2}, r"x.npy holds nan in row 3, which is not a finite number"),
    (X, NAN, {"task": "regression"}, r"y.npy holds nan in row 3, which is not a finite number"),
    (X.astype("f8") + 1e300, Y, {"validation": 1}, r"x.npy holds 1e\+300 in row 4, which is too large"),
    (np.array(["a"] * 5), Y, {}, r"x.npy: found <U1; expected a .npy file of real numbers"),
    (X, Y, {"scale": 0}, r"scale must be greater than 0"),
    (X, Y, {"validation": -1}, r"validation must be a whole number of at least 0"),
    (X, Y, {"test_x": "x.npy"}, r"test_x and test_y go together"),
    (X, Y, {"task": "both"}, r"task must be one of"),
    (X, Y, {"classes": 0}, r"classes must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("x", "y", "options", "message"), WRONG, ids=[w[-1] for w in WRONG])
def test_wrong_files_are_refused(x: Any, y: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        on_disk(tmp_path, x, y, **options).load()


def test_files_that_are_not_there_or_no_arrays_are_refused(tmp_path: Path) -> None:
    source = on_disk(tmp_path, X, Y)
    (tmp_path / "x.npy").write_bytes(b"<html>not found</html>")
    with pytest.raises(BadFileError, match=r"x.npy: found a file that cannot be read"):
        source.load()
    (tmp_path / "x.npy").unlink()
    with pytest.raises(BadFileError, match=r"x.npy: found a file that cannot be read"):
        source.load()


def test_a_bad_input_is_found_before_training(tmp_path: Path) -> None:
    data = on_disk(tmp_path, NAN.astype("f4"), Y).load()
    with pytest.raises(ValueError, match="row 3"):
        Training(*classifier(data), data, epochs=1, batch_size=2)


def test_a_whole_run_with_a_test_set(tmp_path: Path) -> None:
    made = values(40)
    for name, array in (("tx", made.train.x[:9]), ("ty", made.train.y[:9])):
        np.save(tmp_path / f"{name}.npy", array)
    held = {"test_x": str(tmp_path / "tx.npy"), "test_y": str(tmp_path / "ty.npy"), "validation": 10}
    source = on_disk(tmp_path, made.train.x, made.train.y, task="regression", **held)

    def model(spec: Any, prior: Any, likelihood: Any) -> BayesianNetwork:
        return BayesianNetwork(torch.nn.Linear(3, 2), prior, likelihood, spec.N)

    result = Run(
        data=source, model=model, prior=priors.Normal(), likelihood=likelihoods.Normal(0.1),
        guide=MeanFieldNormal, optim=torch.optim.Adam, epochs=2, batch_size=8, draws=4,
    ).execute(tmp_path / "run")  # fmt: skip
    assert set(result.metrics) >= {"test", "validation"}
    assert (tmp_path / "run" / "posterior.nc").exists()


def test_a_file_larger_than_the_memory_allowed(tmp_path: Path) -> None:
    """The benchmark, small: the whole file does not fit, minibatches of it do."""
    sizes = ["--megabytes", "192", "--allowed", "96", "--steps", "20"]
    done = interpreter("-m", "benchmarks.large_data", *sizes, "--folder", str(tmp_path), "--json")
    seen = json.loads(done.stdout)
    assert seen["whole"] == "MemoryError"
    assert seen["steps"] == 20
    assert seen["megabytes_added"] < 96 < seen["megabytes"]


def test_a_split_of_mapped_rows_goes_to_a_device() -> None:
    split = Split(Mapped(X, torch.float32), Mapped(Y, torch.int64)).to("cpu")  # type: ignore[arg-type]
    first = split.head(2)
    assert first.x.shape == (2, 2)
    assert first.y.tolist() == [0, 1]


FAR = 1.1e9 + np.random.default_rng(0).standard_normal((100, 2)) * [1.0, 1e6]


@pytest.mark.parametrize("dtype", ["f8", ">f8", "i8"])
def test_targets_that_float32_rounds_away_are_refused(dtype: str, tmp_path: Path) -> None:
    for y in (FAR[:, 0], FAR):
        with pytest.raises(
            ValueError, match=r"y.npy lies so far from zero, about 1.*e\+09, that float32 rounds"
        ):
            on_disk(tmp_path, np.zeros((100, 1)), y.astype(dtype), task="regression").load()


def test_the_spread_of_targets_is_that_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order of their size the targets of each block lie close together."""
    y = np.sort(1e9 * np.random.default_rng(0).random(1000) + np.arange(1000))
    monkeypatch.setattr("pyrobbb.data.mapped.BLOCK", 8 * 7)
    data = on_disk(tmp_path, np.zeros((1000, 1)), y, task="regression").load()
    assert data.train.y[:].double().std() == pytest.approx(y.std(ddof=1), rel=1e-3)
    on_disk(tmp_path, np.zeros((1000, 1)), np.full(1000, 0.1), task="regression").load()
    with pytest.raises(ValueError, match="so far from zero"):
        on_disk(tmp_path, np.zeros((1000, 1)), 1e14 + y, task="regression", validation=3).load()


def test_rows_that_are_not_written_one_after_the_other_are_not_flattened(tmp_path: Path) -> None:
    x = np.zeros((2, 3, 5)).T
    assert on_disk(tmp_path, x, Y).load().spec.features == (3, 2)
    with pytest.raises(ValueError, match=r"x.npy is in Fortran order, .* read it as a whole: write it row"):
        on_disk(tmp_path, x, Y, flatten=True).load()


def test_numpys_whole_numbers_are_plain_ones(tmp_path: Path) -> None:
    data = on_disk(tmp_path, X, Y, classes=np.int64(4), validation=np.int64(2)).load()
    assert (type(data.spec.N), type(data.spec.outputs)) == (int, int)


def test_rows_on_the_disk_that_a_network_cannot_take_are_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(6, 2))
    np.save(tmp_path / "y.npy", np.arange(6) % 2)
    data = OnDisk(x=str(tmp_path / "x.npy"), y=str(tmp_path / "y.npy")).load()
    for network, why in (
        (nn.Linear(3, 2), r"\(1x2 and 3x2\)"),
        (nn.Sequential(nn.Embedding(12, 3), nn.Flatten(), nn.Linear(6, 2)), "convert it to torch.int64"),
    ):
        model = BayesianNetwork(network, likelihood=likelihoods.Categorical())
        with pytest.raises(
            ValueError, match=rf"cannot take a row of x, torch.float32 of shape \(2,\): .*{why}"
        ):
            fit(model, MeanFieldNormal, data, epochs=1, progress=None)
