"""`penstock doctor`: what is right and what is wrong, on one screen, with advice; it starts no Spark."""

from __future__ import annotations

import subprocess
import sys
from shlex import quote
from typing import TYPE_CHECKING

import pytest

from penstock.session import archive, machine
from penstock.session.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Said

SCREEN_LINES = 40


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the doctor find this machine healthy."""
    monkeypatch.setattr(machine, "everything", lambda: [Finding("python", "ok", "3.11"), Finding("java", "ok", "17")])
    monkeypatch.setattr(archive, "finding", lambda: Finding("archive", "ok", "there"))


def test_this_machine(penstock: Callable[..., Said]) -> None:
    """Everything is fine here except what could be faster; the output fits on a screen, and JSON has the same facts."""
    pytest.importorskip("pyspark")
    said = penstock("doctor")
    assert said.status == 0, said.out
    lines = said.out.splitlines()
    assert len(lines) < SCREEN_LINES
    assert lines[-1].startswith("everything ")
    facts = penstock("doctor", "--json").facts
    assert facts["ok"]
    assert {"python", "pyspark", "java", "workers", "cache", "locale"} <= {check["name"] for check in facts["checks"]}


def test_problem_is_told_with_what_to_do(penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem that would prevent a start makes the status 1, and the line after it says what to do."""
    findings = [Finding("python", "ok", "3.11"), Finding("java", "problem", "there is none", "install one")]
    monkeypatch.setattr(machine, "everything", lambda: [*findings, Finding("cache", "note", "far away", "set X")])
    said = penstock("doctor")
    assert said.status == 1
    lines = said.out.splitlines()
    assert lines[2].split() == ["PROBLEM", "java", "there", "is", "none"]
    assert lines[3].strip() == "-> install one"
    assert lines[-1].startswith("1 of these stops ")
    assert penstock("doctor", "--json").facts["ok"] is False


def test_notes_are_no_failure(penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes about what only costs time leave the status 0."""
    monkeypatch.setattr(machine, "everything", lambda: [Finding("cache", "note", "far away", "set X")])
    monkeypatch.setattr(archive, "finding", lambda: Finding("archive", "note", "none", "make it"))
    said = penstock("doctor")
    assert (said.status, said.out.splitlines()[-1]) == (0, "everything works; 2 could be better")


@pytest.mark.usefixtures("healthy")
def test_place_for_output(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """A directory, one that does not exist yet, and a file: URL are tried, and nothing is left there."""
    for url in (str(tmp_path), f"{tmp_path}/new/deep", f"file://{tmp_path}"):
        said = penstock("doctor", url)
        assert said.status == 0, said.out
        assert f"{tmp_path}: what an output needs holds" in said.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("url", "told"),
    [("/sys/out", "a directory can be made"), ("ftp://host/x", "is not a file system this version knows")],
)
def test_place_where_no_output_can_be(penstock: Callable[..., Said], url: str, told: str) -> None:
    """A place that cannot be written to, or of an unknown kind, is a problem with its reason."""
    said = penstock("doctor", url)
    assert said.status == 1
    assert told in said.out


@pytest.mark.usefixtures("healthy")
def test_file_where_output_should_be(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """A file cannot be the place for an output."""
    (tmp_path / "file").touch()
    said = penstock("doctor", tmp_path / "file")
    assert (said.status, "is a file; expected a directory" in said.out) == (1, True)


@pytest.mark.slow
def test_place_without_room(tmp_path: Path) -> None:
    """If nothing fits (here, files may not have a single byte), the advice is to free space, not to ask for permissions."""
    command = f"ulimit -f 0; exec {quote(sys.executable)} -m penstock doctor {quote(str(tmp_path))}"
    said = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False).stdout
    assert "cannot write" in said
    assert "-> free some space there, or choose another place" in said
    assert "let this user write there" not in said


@pytest.mark.slow
def test_doctor_without_pyspark(tmp_path: Path) -> None:
    """The doctor runs without PySpark, as on Python 3.10, and reports that: it must not need what it checks."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('not here', name='pyspark')\n")
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from penstock.cli import main; sys.argv[1:] = ['doctor']; main()"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "PySpark is not installed" in done.stdout
    assert done.stderr == ""
