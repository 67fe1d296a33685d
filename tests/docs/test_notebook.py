"""The notebook of the examples, executed as Jupyter executes it."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from penstock.cli import progress
from penstock.ingestion.ingested import Ingested
from tests.docs.markdown import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

NOTEBOOK = REPOSITORY / "examples" / "notebook.ipynb"
STATE = Ingested(0, 1, 10, 1, 10, 5, 0, 0, 5)


def test_lines_where_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a bar cannot be shown, as in a log, the command's progress lines go to stderr."""
    with progress.progress_bar() as bar:
        bar(STATE)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "batch 0: 1 file, 10 B of 20 B, 5 rows\n")


def test_lines_in_a_notebook_without_widgets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook that cannot show a bar gets the lines instead, and no warning."""
    monkeypatch.setattr("rich.console.Console.is_jupyter", True, raising=False)
    monkeypatch.setattr("penstock.cli.progress.find_spec", lambda _: None)
    with progress.progress_bar() as bar:
        bar(STATE)
    assert "5 rows" in capsys.readouterr().err


def test_what_is_told_once_is_shown_in_the_end() -> None:
    """If an ingest ends before its progress was shown twice, the bar shows the result, and does not stay at planning."""
    course, file = progress.Course(), io.StringIO()
    course.update(replace(STATE, left_files=0, left_bytes=0))
    with progress._bar(Console(file=file, width=200)) as shown:
        shown(course)
    assert "5 rows" in file.getvalue()
    assert "planning" not in file.getvalue()


@pytest.mark.spark
@pytest.mark.soak  # it starts a kernel and a JVM: about 15 s of processor time
def test_notebook_runs_and_shows_its_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs, the bar is a widget that has reached its end, and the printed text is the result."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat, nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="notebooks need nbformat, nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="notebooks need nbformat, nbclient and ipykernel")
    pytest.importorskip("ipywidgets", reason="the bar in a notebook needs ipywidgets")
    pytest.importorskip("pyspark")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv(
        "JUPYTER_COLUMNS", "200"
    )  # the bar is cut to a notebook's width, and its text depends on its pace
    kernel = tmp_path / "jupyter_data_dir" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(_kernel())
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # Outputs travel on a separate channel, and may come seconds after the reply of a cell. By default nbclient waits 4 s for them and then
    # goes on without: on a loaded machine a cell then lacked its printed text, or a widget its contents.
    waits = {"timeout": 240, "iopub_timeout": 240, "raise_on_iopub_timeout": True}
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **waits).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(
        output["text"] for output in outputs if output["output_type"] == "stream" and output["name"] == "stdout"
    )
    assert printed == "3000 rows in 3 files\n3001 rows in 4 files\n"
    assert any("Output()" in str(output) for output in outputs), "the bar is a widget"
    texts = _texts(notebook.metadata["widgets"])
    assert any("3,000 rows" in text for text in texts), texts
    nbformat.validate(notebook)


def _kernel() -> str:
    import json  # noqa: PLC0415 - for this one place

    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"})


def _texts(widgets: dict[str, Any]) -> list[str]:
    """Return what the widgets of a notebook show at the end."""
    states = [state for kind in widgets.values() for state in kind["state"].values()]
    return [str(output) for state in states for output in state.get("state", {}).get("outputs", [])]


def test_notebook_is_kept_without_outputs() -> None:
    """The repository holds the notebook without outputs: they would be of one machine, and change with every run."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
