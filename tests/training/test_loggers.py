"""What the history has reaches TensorBoard, MLflow and Weights & Biases, and a resumption continues it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from engine_fakes import Listens, classes, classifier
from pyrobbb.training.history import Epoch
from pyrobbb.training.loggers import LOGGED, Logger, MLflow, TensorBoard, WandB
from pyrobbb.training.trainer import Training, fit
from wandb_files import history_of

OPTIONS: dict[str, Any] = {"batch_size": 6, "device": "cpu", "fast": "eager"}


def training(callback: Any, *, epochs: int = 2, **options: Any) -> Training:
    data = classes(20, validation=8)
    return Training(*classifier(data), data, epochs=epochs, callbacks=[callback], **OPTIONS, **options)


def logged(rows: list[Epoch]) -> dict[str, list[tuple[int, float]]]:
    return {name: [(row.epoch, getattr(row, name)) for row in rows] for name in LOGGED}


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("torch.utils.tensorboard", "tensorboard", lambda: TensorBoard(".")),
        ("mlflow", "mlflow", MLflow),
        ("wandb", "wandb", WandB),
    ],
)
def test_each_is_an_extra(module: str, extra: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install '\.\[{extra}\]' in your clone"):
        make()


def test_tensorboard_gets_what_the_history_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str, float, int]] = []
    closed: list[str] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def flush(self) -> None: ...

        def close(self) -> None:
            closed.append(self.folder)

        def add_scalar(self, name: str, value: float, epoch: int) -> None:
            written.append((self.folder, name, value, epoch))

    module: Any = type(sys)("tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    rows = training(TensorBoard(tmp_path)).run().rows
    folder = str(tmp_path / "chain-0")
    assert written == [(folder, name, getattr(row, name), row.epoch) for row in rows for name in LOGGED]
    assert closed == [folder]  # one file for all epochs


def test_a_logger_that_fails_does_not_end_the_training() -> None:
    class Gone(Logger):
        def write(self, row: Epoch) -> None:
            raise ConnectionError("no server")

    progress = Listens()
    history = training(Gone(), epochs=3, progress=progress).run()
    assert len(history.rows) == 3
    assert progress.said == ["Gone failed and logs no more of chain 0: ConnectionError('no server')"]


@pytest.mark.filterwarnings("ignore")  # of the package's own
def test_mlflow_gets_what_the_history_has_through_a_resumption(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def callback() -> MLflow:
        return MLflow("small", uri=uri, settings={"prior": "normal"})

    before = mlflow.get_tracking_uri()
    training(callback(), folder=tmp_path).run()
    more = training(callback(), epochs=4, folder=tmp_path)
    assert more.resume()
    rows = more.run().rows
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == (
        "chain-0",
        "FINISHED",
        {"prior": "normal"},
    )
    for name, values in logged(rows).items():
        found = [(entry.step, entry.value) for entry in client.get_metric_history(run.info.run_id, name)]
        assert sorted(found) == values
    assert mlflow.active_run() is None
    assert mlflow.get_tracking_uri() == before


@pytest.mark.filterwarnings("ignore")  # of the package's own
def test_wandb_keeps_in_files_what_the_history_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    data = classes(20, validation=8)
    posterior = fit(
        lambda: classifier(data)[0], type(classifier(data)[1]), data, chains=2, epochs=2, progress=None,
        callbacks=[WandB("small", folder=tmp_path, settings={"prior": "normal"})], **OPTIONS,
    )  # fmt: skip
    assert wandb.run is None
    wandb.teardown()  # its writer has then put everything into the files
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    found = [history_of(path) for path in files]
    expected = [logged(history.rows) for history in posterior.histories]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    with pytest.raises(ValueError, match="mode must be one of offline, online"):
        WandB(mode="loud")
