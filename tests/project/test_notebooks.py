"""The notebooks run from top to bottom, and say what their text promises."""

import re
from statistics import geometric_mean

import nbformat
from nbclient import NotebookClient

from paths import ROOT

SHIFTED = f"import sys; sys.path.append({str(ROOT / 'tests/support')!r}); import seeds; seeds.shift()"
# Pyro's tqdm wants ipywidgets; under the wide normal prior the residuals lie so near the limit of the advice
# (noise over residuals 0.80, sd 0.05 over six seeds, the limit 0.7) that rounding decides whether it comes.
EXPECTED = ("IProgress not found", "the training rows have residuals of")


def words(name: str) -> str:
    """Everything that the notebook's cells print; it draws, and warns of nothing."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SHIFTED))
    # raises CellExecutionError with the cell and its traceback
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(ROOT))
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    warnings = [o.text for o in outputs if o.get("name") == "stderr"]
    assert [w for w in warnings if not any(words in w for words in EXPECTED)] == []
    assert any("image/png" in o.get("data", {}) for o in outputs)
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")


def test_the_tutorial_s_intervals_widen_off_the_data() -> None:
    """On average over the three priors that it compares."""
    found = re.findall(r"IQR inside ([\d.]+), at x = 1.2 ([\d.]+)", words("tutorial"))
    assert len(found) == 3
    assert (
        geometric_mean(float(outside) / float(inside) for inside, outside in found) > 1.25
    )  # its log: mean 0.97 over four seeds


def test_restarts_agree_on_functions_and_not_on_weights() -> None:
    lines = words("arviz").splitlines()
    of_weights, of_functions = (float(line.split()[-1]) for line in lines if line.startswith("median R-hat"))
    assert of_functions < of_weights - 0.1  # by 1.2, sd 0.2 over five seeds


def test_there_are_no_others() -> None:
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == {"tutorial", "arviz"}


def test_they_need_no_package_of_the_repository_but_the_library() -> None:
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert not re.search(r"\b(from|import) (models|guides|experiments)\b", path.read_text("utf-8"))
