"""`penstock schema`: stdout is only the result, other messages are on stderr, and nothing needs Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.formats import ddl
from tests.source.github import write_day

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Said


def test_the_ddl_is_alone_on_stdout(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """One line of DDL for `--schema`; conflicts with examples, and the amount of data used, are on stderr."""
    write_day(tmp_path)
    said = penstock("schema", tmp_path, "--all")
    assert ddl.parsed(said.out.strip()) is not None
    assert said.out.count("\n") == 1
    assert "from     24 json files" in said.err
    assert "'id' is bigint ('0' in " in said.err
    assert "taken as string" in said.err
    sampled = penstock("schema", tmp_path, "--sample", "16k")
    assert " of 24, " in sampled.err


def test_json_has_all_of_it(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """With --json one object has the schema in both forms, the sources it was inferred from, and the conflicts."""
    (tmp_path / "a.csv").write_text("a;b\n1;x\n2;\nz;\n", encoding="utf-8")
    facts = penstock("schema", tmp_path, "--json", "--source-option", "header=true", "--source-option", "sep=;").facts
    assert (facts["format"], facts["ddl"], facts["rows"], facts["files"]) == ("csv", "a string, b string", 3, 1)
    assert facts["schema"]["fields"][0] == {"name": "a", "type": "string", "nullable": True, "metadata": {}}
    path = str(tmp_path / "a.csv")
    assert facts["conflicts"] == [
        {
            "column": "a",
            "type": "string",
            "kinds": {"int": {"path": path, "text": "1"}, "string": {"path": path, "text": "z"}},
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--all", "--sample", "1m"), "--all looks at everything, --sample 1m at some of it"),
        (("--sample", "many"), "--sample"),
        (("--format", "xml"), "xml"),
        (("--source-option", "schema=a int"), "schema is given by"),
    ],
)
def test_bad_calls_are_refused(
    penstock: Callable[..., Said], tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    """A call that makes no sense is a usage error."""
    said = penstock("schema", tmp_path, *arguments)
    assert said.status == 2
    assert expected in said.err
    missing = penstock("schema", tmp_path / "nowhere")
    assert (missing.status, "does not exist; expected a directory or a file to read" in missing.err) == (2, True)


def test_hostile_names_do_not_reach_the_terminal(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """Keys and values from records are printed with everything escaped that a terminal would interpret."""
    (tmp_path / "a.json").write_text(
        json.dumps({"\x1b[31mred": 1}) + "\n" + json.dumps({"\x1b[31mred": "\x1b]0;x\x07"}) + "\n", encoding="utf-8"
    )
    said = penstock("schema", tmp_path)
    assert "\x1b" not in said.out + said.err
    assert (
        json.loads(json.dumps(penstock("schema", tmp_path, "--json").facts))["schema"]["fields"][0]["name"]
        == "\x1b[31mred"
    )


def test_several_paths_and_globs(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """SRC may be several paths and globs, as for an ingest; the names of the files found decide the format."""
    for name, text in {"a/x.csv": "1\n", "b/y.csv": "2.5\n", "c/z.json": "{}\n"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert penstock("schema", tmp_path / "a", tmp_path / "b").out == "_c0 double\n"
    assert penstock("schema", tmp_path / "[ab]").out == "_c0 double\n"
    said = penstock("schema", tmp_path / "a", tmp_path / "b", "--source-option", "paths=[]")
    assert said.status == 2
