"""Every cell of the notebooks runs in order, and its outputs are formatted."""

import json
from pathlib import Path

import pytest

from tests.test_docs_examples import short_searches as short_searches

#: {text of cells: text of a smaller case that is run instead}.
SMALLER = {
    "mesh(32, 32)": "mesh(8, 8)",
    "allgather(1024)": "allgather(64)",
    "(16 * 32 + 15, 16 * 32 + 16)": "(4 * 8 + 3, 4 * 8 + 4)",
    "(16, 20, 24, 32)": "(4, 8)",
    "100x100x100": "20x20x20",
    "switch16@100,switch64@100": "switch4@100,switch8@100",
    "switch16@100,switch8@100,switch8@100": "switch4@100,switch2@100,switch4@100",
    "switch4@100,switch8@100,switch8@100,switch4@100": "switch2@100,switch4@100,switch4@100,switch2@100",
}

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def code_of(notebook):
    """Code cells of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """An IPython shell that runs cells in this process."""
    import matplotlib
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    matplotlib.use("Agg")
    shell = InteractiveShell.instance()  # the one that `display` looks for
    shell.display_formatter.active_types = list(shell.display_formatter.formatters)
    shell.history_manager.enabled = False
    yield shell
    InteractiveShell.clear_instance()
    pyplot.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_runs(notebook, shell, short_searches):
    """No cell raises, and outputs can be shown. Cells with 1,000 ranks run with fewer."""
    for number, source in enumerate(code_of(notebook), 1):
        for text, smaller in SMALLER.items():
            source = source.replace(text, smaller)
        done = shell.run_cell(source)
        assert done.success, (
            f"cell {number} of {notebook.name}: {done.error_in_exec or done.error_before_exec!r}"
        )


@pytest.mark.slow
def test_a_cell_that_raises_is_no_success(shell):
    """A cell that raises is reported, so the test above can fail."""
    assert shell.run_cell("1 + 1").success
    assert not shell.run_cell("1 / 0").success
