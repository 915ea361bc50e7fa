"""The notebooks run from top to bottom, and say what their text promises."""

import nbformat
import pytest
from nbclient import NotebookClient

from paths import ROOT

SHIFTED = f"import sys; sys.path.append({str(ROOT / 'tests/support')!r}); import seeds; seeds.shift()"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def words(notebook):
    """Everything that the cells printed."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")


@pytest.fixture(scope="module")
def executed():
    done = {}
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(SHIFTED))
        client = NotebookClient(notebook, timeout=240, kernel_name="python3")
        client.execute(cwd=str(ROOT))  # raises CellExecutionError with the cell and its traceback
        done[path.stem] = notebook
    return done


def test_both_run_and_leave_no_warning(executed):
    assert set(executed) == {"tutorial", "arviz"}
    for notebook in executed.values():
        outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
        warnings = [o.text for o in outputs if o.get("name") == "stderr"]
        assert [w for w in warnings if "IProgress not found" not in w] == []  # Pyro's tqdm wants ipywidgets
        assert sum("image/png" in o.get("data", {}) for o in outputs) >= 1


def test_the_tutorial_s_intervals_widen_off_the_data(executed):
    text = words(executed["tutorial"])
    inside, _, outside = (
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("interquartile")
    )
    assert outside > 1.25 * inside


def test_restarts_agree_on_functions_and_not_on_weights(executed):
    lines = words(executed["arviz"]).splitlines()
    of_weights, of_functions = (float(line.split()[-1]) for line in lines if line.startswith("median R-hat"))
    assert of_functions < of_weights - 0.3
