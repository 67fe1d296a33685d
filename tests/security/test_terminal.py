"""An attacker's text in a name or a record must not act on the terminal of the user who looks at it."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.answer import console, printable
from tests.cli.conftest import Pipeline, Said, penstock, pipeline
from tests.security.test_links import Input
from tests.support.output import Output

EVIL = "\x1b]0;owned\x07\x1b[2J[bold]:smile:[link=http://x]\u202etxt.exe\x9b31m\rok"
__all__ = ["penstock", "pipeline"]  # fixtures
UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_commands_show_buckets_and_foreign_files_escaped(penstock: Callable[..., Said], output: Output) -> None:
    """status, files, finish, clean and verify print no control character for an output with hostile values and files."""
    sink = output.sink(bucketBy="b={value}")
    output.batch(sink, 0, {0: [EVIL]})
    said = [penstock("status", output.root), penstock("finish", output.root), penstock("files", output.root)]
    (output.root / f"foreign {EVIL.replace('/', '')}\n").write_text("x")
    (output.root / "_penstock/s/staging" / f"000000000000-{EVIL.replace('/', '')}.part").write_text("x")
    said += [penstock("clean", output.root), penstock("verify", output.root)]
    assert [one.status for one in said] == [0, 0, 0, 0, 1]
    for one in said:
        assert "smile" in one.out
        assert UNSEEN.findall(one.out + one.err) == []
    assert "\\x1b" in said[-1].out
    assert "[bold]:smile:[link=http:" in said[-1].out.replace("\n", "")


def test_records_in_a_report_are_escaped(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """The example of a record that verify shows is an attacker's text, too."""
    line = pipeline(corrupt=lambda lines: lines[1:])
    line.put("a.log", f"lost {EVIL}".replace("\r", ""), "kept")
    line.run()
    said = penstock("verify", line.dst, "--source", line.src)
    assert said.status == 1
    assert "lost" in said.out
    assert UNSEEN.findall(said.out + said.err) == []


def test_errors_and_json_are_escaped(penstock: Callable[..., Said], output: Output) -> None:
    """A path in an error, for people and as JSON, has no control character; the JSON decodes to the path."""
    output.batch(output.sink(), 0, {0: ["x"]})
    missing = f"{output.root}/{EVIL}".replace("\0", "")
    said = penstock("status", missing, "--json")
    assert said.status != 0
    assert UNSEEN.findall(said.out + said.err) == []
    assert "owned" in json.loads(said.out)["error"]["message"]


def test_log_lines_are_escaped(tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file's name in a warning is escaped: it can neither act on a terminal nor begin a new line."""
    name = f"{EVIL}\n2026-01-01 INFO all is well".replace("/", "")
    source = Input(tmp_path / "in")
    (source.path / name).symlink_to(elsewhere)
    (source.path / f"future {name}").write_text("x")
    os.utime(source.path / f"future {name}", (1 << 33, 1 << 33))
    with caplog.at_level(logging.DEBUG):
        source.planner.latest(source.planner.initial())
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert UNSEEN.findall(record.getMessage()) == []
        assert "\n" not in record.getMessage()


def test_what_can_be_seen_is_left_alone() -> None:
    """Printable text of any script stays as it is; other characters are escaped, and so are bytes that are not UTF-8."""
    assert printable("Zürich 東京 \N{GRINNING FACE} a/b [x]") == "Zürich 東京 \N{GRINNING FACE} a/b [x]"
    assert printable("a\x1b\n\x9b\u202e\udcff") == "a\\x1b\\n\\x9b\\u202e\\udcff"
    out = console()
    with out.capture() as shown:
        out.print("[bold]x[/bold] :smile: \x1b[2J")
    assert shown.get() == "[bold]x[/bold] :smile: \\x1b[2J\n"
