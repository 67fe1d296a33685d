"""Every link, command, Python block and JSON block of the documents is tested.

`/data` in a block stands for a directory that is made anew for each document, with some input in it. The shell blocks of a document run
one after another, as a reader would run them; so do its Python blocks, as one program. A plain command of `penstock` runs in an
interpreter whose JVM is warm, which takes a tenth of the time.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.query.records import checked
from tests.docs.markdown import DOCS, REPOSITORY, anchors, blocks, commands, documents, links, name

if TYPE_CHECKING:
    from tests.support.interpreter import Interpreter

SHELL = ("sh", "bash", "console")
DOCUMENTS = documents()
_SHELLS = re.compile(r"[|&;<>$`*?~]")  # characters that a shell would interpret

# Commands that are not run, each with the reason; all others are run.
NOT_RUN = {
    "make run": "it is the demo, which reads this machine's files for minutes",
    "make test": "it is what runs this",
    "pip install 'penstock[spark]'": "it needs a package index",
    "pip install 'penstock[spark,hdfs]'": "it needs a package index",
    "pip install 'penstock[spark,s3]'": "it needs a package index",
    "pip install 'penstock[iceberg,delta]'": "it needs a package index",
    "penstock warmup": "it writes to the user's cache, which other processes use",
}


def uses_spark(path: Path) -> bool:
    """Tell whether the Python blocks of a document start Spark."""
    return any("local_session" in block.text for block in blocks(path, "python"))


def parameters(paths: list[Path], *, spark: bool | None = None) -> list[object]:
    """Return documents as parameters; `spark` marks all or none of them, and `None` marks those whose Python blocks need it."""
    marks = [pytest.mark.spark, pytest.mark.xdist_group("programs"), pytest.mark.timeout(600)]
    needs = {path: uses_spark(path) if spark is None else spark for path in paths}
    return [pytest.param(path, id=name(path), marks=marks if needs[path] else []) for path in paths]


@pytest.mark.parametrize("path", parameters(DOCUMENTS, spark=False))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file that exists and, after `#`, one of its headings; every other link is https."""
    dead = []
    for line, target in links(path):
        if ":" in target:
            alive = target.startswith("https://")
        else:
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            alive = there.exists() and (not anchor or anchor in anchors(there))
        if not alive:
            dead.append(f"{name(path)}:{line}: {target}")
    assert not dead, "\n".join(["", *dead])


@pytest.mark.parametrize("path", parameters(DOCUMENTS, spark=False))
def test_named_tests_exist(path: Path) -> None:
    """Every test, or file of tests, that a document names exists, so that each promise is tested."""
    missing = []
    for file, function in re.findall(
        r"`((?:tests|examples)/[\w/]+\.py)(?:::(\w+))?`", path.read_text(encoding="utf-8")
    ):
        there = REPOSITORY / file
        if not there.is_file() or (function and f"def {function}(" not in there.read_text(encoding="utf-8")):
            missing.append(f"{file}::{function}")
    assert not missing, "\n".join(["", *missing])


@pytest.mark.parametrize("path", parameters([path for path in DOCUMENTS if blocks(path, "json")], spark=False))
def test_json_blocks_are_real(path: Path) -> None:
    """Every JSON example parses, and the ledger's own reader accepts each one with a checksum."""
    for block in blocks(path, "json"):
        form = json.loads(block.text)
        if "checksum" in form:
            line = json.dumps(form, sort_keys=True, separators=(",", ":")) + "\n"
            assert checked(line.encode(), f"{name(path)}:{block.line}") == form["record"]


def test_exceptions_are_needed() -> None:
    """Every exception is a command in a document, and its reason is longer than a word."""
    there = {command.text for path in DOCUMENTS for block in blocks(path, *SHELL) for command in commands(block)}
    assert set(NOT_RUN) <= there
    assert all(len(reason.split()) > 2 for reason in NOT_RUN.values())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the directory for `/data`: `logs` with 600 lines, `events` with 30 JSON objects, and nothing else."""
    directory = tmp_path / "data"
    for folder in ("logs", "events"):
        (directory / folder).mkdir(parents=True)
    for i, letter in enumerate("abc"):
        lines = [f"{letter} line {number}\n" for number in range(1, 201)]
        days = [f"2026-01-{20 + number:02}T12:00:00Z" for number in range(10)]
        events = [{"ts": day, "country": ("de", "fr")[i % 2], "id": 10 * i + n} for n, day in enumerate(days, 1)]
        put(directory / "logs" / f"{letter}.log", lines)
        put(directory / "events" / f"{letter}.json", [f"{json.dumps(event)}\n" for event in events])
    return directory


def put(path: Path, lines: list[str]) -> None:
    """Write an input file, dated back so that it has settled."""
    path.write_text("".join(lines), encoding="utf-8")
    long_ago = path.stat().st_mtime - 60
    os.utime(path, (long_ago, long_ago))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `penstock` is this interpreter's."""
    program = tmp_path / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock.cli "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}


def masked(line: str) -> str:
    """Return a line of output without the parts that change from run to run: numbers, units of time and size, ids, blanks."""
    line = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "ID", line)
    line = re.sub(r"\d[\d,.]*( (B|KiB|MiB|s|min)\b)?", "N", line)
    return " ".join(line.split())


def in_a_shell(command: str, place: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with several programs, or with variables, as a shell does."""
    shell = shutil.which("bash")
    assert shell is not None
    return subprocess.run(
        [shell, "-c", command], env=environment, cwd=place, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("path", parameters([path for path in DOCUMENTS if blocks(path, *SHELL)], spark=True))
def test_commands_run(path: Path, data: Path, environment: dict[str, str], python: Interpreter) -> None:
    """Every command runs as written and succeeds, and prints the lines that a console block shows."""
    for block in blocks(path, *SHELL):
        for command in commands(block):
            if command.text in NOT_RUN:
                continue
            where = f"{name(path)}:{command.line}: {command.text}"
            text = command.text.replace("/data/", f"{data}/")
            if text.startswith("penstock ") and not _SHELLS.search(text):
                done = python.penstock(*shlex.split(text)[1:], cwd=data)
            else:
                done = in_a_shell(text, REPOSITORY if text.startswith("make") else data, environment)
            assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr[-2000:]}"
            said = {masked(line) for line in done.stdout.replace(f"{data}/", "/data/").splitlines()}
            unsaid = [line for line in command.output if masked(line) not in said]
            assert not unsaid, f"{where}\nsaid\n{done.stdout}\nand not\n" + "\n".join(unsaid)


@pytest.mark.slow
@pytest.mark.parametrize("path", parameters([path for path in DOCUMENTS if blocks(path, "python")]))
def test_python_blocks_run(path: Path, data: Path, tmp_path: Path, python: Interpreter) -> None:
    """A document's Python blocks, one after another, are a program that ends without an error."""
    program, at = "", 1
    for block in blocks(path, "python"):
        program += "\n" * (block.line - at) + block.text  # so that a traceback has the document's line numbers
        at = block.line + block.text.count("\n")
    script = tmp_path / path.with_suffix(".py").name
    script.write_text(program.replace("/data/", f"{data}/"), encoding="utf-8")
    done = python.run(script, timeout=280)
    assert done.returncode == 0, f"{name(path)}\n{done.stdout}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("path", parameters([path for path in DOCUMENTS if blocks(path, "toml")], spark=False))
def test_files_of_pipelines_are_good(path: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`penstock check` accepts every file of pipelines in a document."""
    for block in blocks(path, "toml"):
        file = tmp_path / "pipelines.toml"
        file.write_text(block.text.replace("/data/", f"{data}/"), encoding="utf-8")
        monkeypatch.chdir(data)
        done = CliRunner().invoke(app, ["check", str(file)])
        assert done.exit_code == 0, f"{name(path)}:{block.line}\n{done.output}"


def test_documents_are_found() -> None:
    """The search finds documents: an empty search must not pass."""
    assert {"README.md", "CHANGELOG.md", "docs/options.md", "docs/formats/ledger.md"} <= set(map(name, DOCUMENTS))
    assert [command.text for block in blocks(DOCS.parent / "README.md", "sh") for command in commands(block)][:2] == [
        "make run",
        "make test",
    ]
