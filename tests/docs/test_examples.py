"""The programs in `examples` run as they are, and print what they claim; those that take long are killed once here, not three times."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.markdown import REPOSITORY
from tests.support.effort import effort

if TYPE_CHECKING:
    from tests.support.interpreter import Interpreter

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))

# What each example must print; add a line for each new example.
SAYS = {
    "source.py": "batch 2: [40, 41, 42, 50, 51, 52]",
    "sink.py": "3 batches of 4 tasks, 2 files:",
    "named_files.py": "5 files named, 15 records read, 15 different",
    "ingest.py": "tuesday.json: batch 1; 2 files read in all, 1800 rows written in all",
    "kvstore.py": "every acknowledged put is there, once",
    "replay_feed.py": "60 items arrived, 60 of them different; the feed was told of 60",
    "count_store.py": "PostgreSQL the same: True; SQLite the same: True",
    "enrich.py": "200 users scored, 200 of them different, all right: True\n200 idempotency keys",
    "lookup.py": "2000 users looked up, 30 of them not there, 2000 answers right",
    "dead_letter.py": "36 converted, 4 set aside:",
    "catalogue.py": "the same in the catalogue: True\n300 rows in them; complete: dt=2026-01-30",
    "encrypted.py": "in clear below the output: 0 files\n  alice reads 1200 rows\n  bob reads 1200 rows\n  the cluster reads nothing",
    "kafka_to_files.py": "different; the same as an independent consumer gets: True",
    "kill_me.py": "verified: True; 15000 records read, 15000 written",
}


# Examples that take long: each kill starts a JVM again, and real files have a million words. `make explore` runs them unchanged.
LESS = {
    "kafka_to_files.py": ["--kills", "1"],
    "count_store.py": [f"{sysconfig.get_paths()['stdlib']}/json", "--kills", "1"],
}

# The same for an example that has a list of its kills.
ONCE = {"replay_feed.py": "KILLED_AT"}
_KILLED_ONCE = """
import importlib.util, sys
path, kills = sys.argv.pop(1), sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("example", path)
example = sys.modules["example"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
setattr(example, kills, getattr(example, kills)[:1])
example.main()
"""

# Examples that set environment variables that Spark's workers inherit from the JVM, and so need a JVM that starts afterwards.
IN_A_JVM_OF_ITS_OWN = {"encrypted.py"}


@pytest.mark.spark
@pytest.mark.xdist_group("programs")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path: Path, python: Interpreter) -> None:
    """The example exits with 0, prints what it shows, and leaves nothing in its working directory."""
    if path.name in IN_A_JVM_OF_ITS_OWN:
        command = [sys.executable, str(path)]
        done = subprocess.run(command, cwd=python.directory, capture_output=True, text=True, timeout=800, check=False)
    elif effort(path.name in ONCE, everything=False):
        done = python.run(_KILLED_ONCE, str(path), ONCE[path.name], timeout=800)
    else:
        done = python.run(path, *effort(LESS.get(path.name, []), []), timeout=800)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert SAYS[path.name] in done.stdout
    assert not list(python.directory.iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_says_what_it_shows(path: Path) -> None:
    """Every example begins with what it shows and how to run it, and has a check of its output."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"python examples/{path.name}" in said
    assert path.name in SAYS


def test_every_example_is_there() -> None:
    """Every example with a check of its output exists."""
    assert {path.name for path in EXAMPLES} == set(SAYS)
