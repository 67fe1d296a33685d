"""Whatever the package's texts tell people to type exists: commands and their flags, options, functions, extras and pages.

The search covers every text that is not a docstring, wherever it is used: an error, a help text, a note on the page.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from typer.main import get_command

import penstock
import penstock.options
from penstock.cli.app import app
from penstock.cli.run.model import PipelineTable, RetryTable, ScheduleTable
from penstock.options import Option
from penstock.session.extras import PACKAGES
from tests.docs.markdown import REPOSITORY
from tests.support.trees import walked

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("tidy")  # the package is parsed once

SOURCE = REPOSITORY / "src" / "penstock"
PROSE = {"has", "row", "sink", "staged", "target", "writes"}  # words after the package's name that are not commands
# From Spark, a url, directories in examples, HTML and the JVM.
OF_SPARK = {"availableNow", "processingTime", "datetimeRebaseModeInWrite"}
OTHERS = OF_SPARK | {"options", "dt", "country", "hour", "width", "all"}

OF_KAFKA = {"--bootstrap-server", "--partition", "--start-offset", "--topic"}  # flags of kafka-transactions.sh
OF_SUBMIT = {"--conf"}  # of spark-submit


class Text(NamedTuple):
    """A text of the package, and its place; computed parts of it are `{}`."""

    place: str
    said: str


def texts_of(code: str, name: str) -> Iterator[Text]:
    """Yield the texts of a module except for its docstrings."""
    _, nodes = walked(code)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in nodes if isinstance(node, documented)]
    passed = {id(statement.value) for statement in first if isinstance(statement, ast.Expr)}
    for node in nodes:
        if id(node) in passed:
            continue
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in ast.walk(node)}
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield Text(f"{name}:{node.lineno}", "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(f"{name}:{node.lineno}", node.value)


@cache
def texts() -> list[Text]:
    files = sorted(SOURCE.rglob("*.py"))
    return [text for path in files for text in texts_of(path.read_text("utf-8"), str(path.relative_to(SOURCE)))]


@cache
def commands() -> dict[str, set[str]]:
    """Return the flags of each command, by the command's words."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
        flags = {name for given in command.params for name in (*given.opts, *given.secondary_opts)}
        yield " ".join(words), flags | {"--help"}
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return dict(walk(get_command(app), ()))


@cache
def every_flag() -> set[str]:
    """Return the flags of all commands, and those of other programs that the texts mention."""
    return OF_KAFKA.union(OF_SUBMIT, *commands().values())


@cache
def options() -> set[str]:
    """Return everything that users give by name: options of every table, arguments of public functions, keys of pipelines."""
    known = {"first", "most", *PipelineTable.model_fields, *RetryTable.model_fields, *ScheduleTable.model_fields}
    for found in pkgutil.iter_modules(penstock.options.__path__):
        tables = vars(importlib.import_module(f"penstock.options.{found.name}")).values()
        entries = [entry for table in tables if isinstance(table, tuple) for entry in table]
        known |= {name for entry in entries if isinstance(entry, Option) for name in (entry.name, *entry.aliases)}
    for module in (penstock, importlib.import_module("penstock.wal"), importlib.import_module("penstock.windows")):
        for public in (getattr(module, name) for name in module.__all__):
            methods = vars(public).values() if isinstance(public, type) else ()
            known |= {name for called in (public, *methods) for name in parameters(called)}
    return known


def parameters(called: Any) -> list[str]:
    """Return the arguments of a function or a class; none if it has no signature, as an exception."""
    try:
        return list(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return []


def unknown_commands(said: str) -> Iterator[str]:
    """Yield unknown commands, and flags that the command before them does not have."""
    for match in re.finditer(r"\bpenstock (wal (?=[a-z]))?([a-z]+)\b([^;:,()]*)", said):
        words = f"{match[1] or ''}{match[2]}"
        if words in commands():
            behind = re.split(r" (?:or|and|with) |\. ", match[3])[0]
            yield from (f"{words} {flag}" for flag in flags(behind) if flag not in commands()[words])
        elif words not in PROSE:
            yield f"penstock {words}"


def flags(said: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z][a-z-]*", said)


def unknown_flags(said: str) -> Iterator[str]:
    """Yield flags that no command has."""
    yield from (flag for flag in flags(said) if flag not in every_flag())


def unknown_options(said: str) -> Iterator[str]:
    """Yield options and arguments that nothing accepts."""
    given = re.findall(r"(?<![\w.%-])([a-z][A-Za-z]+)=(?![=\"])", said) + re.findall(r"option\(\"([A-Za-z]+)\"", said)
    yield from (name for name in given if name not in options() | OTHERS)


def unknown_names(said: str) -> Iterator[str]:
    """Yield functions, extras and pages that do not exist."""
    yield from (name for name in re.findall(r"\bpenstock\.([a-z_]+)\(", said) if not hasattr(penstock, name))
    yield from (name for name in re.findall(r"'penstock\[([a-z0-9]+)\]'", said) if name not in PACKAGES)
    yield from (path for path in re.findall(r"docs/[\w/-]+\.\w+", said) if not (REPOSITORY / path).exists())


RULES = [unknown_commands, unknown_flags, unknown_options, unknown_names]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_texts_name_is_there(rule: Any) -> None:
    """A user who follows a message finds the command, the flag, the option, the function or the page that it names."""
    assert [(text.place, found) for text in texts() for found in rule(text.said)] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise E(f'see penstock veryfy {path}')", ["penstock veryfy"]),
        ("raise E('penstock wal mend LOG')", ["penstock wal mend"]),
        ("raise E('penstock verify DST --yes, or --no-such')", ["verify --yes", "--no-such"]),
        ("raise E(f'set rolSize={size}')", ["rolSize"]),
        ("raise E('add .option(\"fromat\", \"csv\")')", ["fromat"]),
        ("raise E(\"pip install 'penstock[kafak]' or penstock.regster(spark), see docs/no.md\")", ["regster", "kafak", "docs/no.md"]),
        ('"""Only penstock nonsense, and rolSize=1."""', []),
        ("raise E('penstock clean DST --yes; rollSize=1, docs/run.md, penstock.register(spark)')", []),
    ],
)  # fmt: skip
def test_checker_finds(code: str, found: list[str]) -> None:
    """The checker notices misspelt names in plain and computed texts, so that its silence means something."""
    said = [text.said for text in texts_of(code, "bad.py")]
    assert [name for rule in RULES for text in said for name in rule(text)] == found


def test_checker_sees_the_package() -> None:
    """There are texts, commands and options to compare: an empty search must not pass."""
    assert len(texts()) > 5000
    assert {"ingest", "wal read", "verify"} <= commands().keys()
    assert {"rollSize", "transform", "first"} <= options()
