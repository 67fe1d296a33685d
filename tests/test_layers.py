"""The arrows of the architecture point down: a layer imports only what is below it.

    cli          on top: commands
    verify
    spark        bindings; with session and pyspark_penstock the only code that knows Spark
    ingestion    where source and sink meet, first of all in the ingest; beside it `metrics` for monitors and `catalogs` for tables
    source  sink  aio  windows  db  kafka  session     side by side: none knows another
    wal  formats  query                  side by side
    storage                              and beside it `testing`, which users import and we do not
    options  failpoints
    units  arguments
    errors  clock  unique  processes  tally

`penstock/__init__.py` re-exports lazily, so importing `penstock` costs nothing: Spark does it in six processes per query. Every
import counts, wherever it is: in a function, under `if TYPE_CHECKING`, or by name through `importlib`.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.trees import walked
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parent.parent / "src"

_BOTTOM = {"errors", "units", "arguments", "clock", "unique", "options", "failpoints", "processes", "tally"}
_BYTES = _BOTTOM | {"storage"}
_OPERATORS = {"source", "sink", "aio", "windows", "db", "kafka"}
_JOINED = _OPERATORS | {"session"}
_RECORDS = _BYTES | {"wal", "formats", "query"}
_BINDINGS = _RECORDS | _JOINED | {"ingestion", "metrics", "catalogs", "spark"}
_PLUGINS = {path.name for path in SOURCE.glob("pyspark_penstock*")}
ROOT = "penstock"  # the package itself: what its `__init__` re-exports

# Which other layers each layer may import; it may always import itself.
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "unique": set(),
    "tally": {"clock"},
    "units": {"errors"},
    "arguments": {"errors"},
    "processes": set(),
    "failpoints": {"errors", "clock", "processes"},
    "options": {"errors", "units"},
    "storage": _BOTTOM,
    "testing": _BYTES,
    "formats": _BYTES,
    "wal": _BYTES,
    "query": _BYTES,
    **dict.fromkeys(_OPERATORS, _RECORDS),
    "session": _RECORDS,
    "metrics": _BOTTOM,
    "catalogs": _RECORDS | {"sink"},
    "ingestion": _RECORDS | _JOINED,
    "spark": _RECORDS | _JOINED | {"ingestion", "metrics"},
    "verify": _BINDINGS,
    "cli": _BINDINGS | {ROOT, "verify"},
    "__main__": {"cli"},
    ROOT: _BINDINGS | {"verify", "cli"},  # the command's progress bar is the notebook's
    **dict.fromkeys(_PLUGINS, _BINDINGS | {ROOT}),
}

# Libraries that only some layers may know; all others are free.
ONLY_IN = {
    "pyspark": {"spark", "session", "ingestion", "cli", ROOT, *_PLUGINS},
    "py4j": {"spark", "session"},
    "typer": {"cli"},
    "prometheus_client": {"metrics"},
    "opentelemetry": {"metrics"},
    "rich": {"cli"},
    "confluent_kafka": {"kafka"},
    "pyiceberg": {"catalogs"},
    "deltalake": {"catalogs"},
}


def layer_of(module: str) -> str:
    """Return the layer of a dotted module or object; `penstock.x` belongs to `ROOT` if there is no layer `x`."""
    first, _, rest = module.partition(".")
    second = rest.partition(".")[0]
    if first != "penstock":
        return first
    return second if second in BELOW else ROOT


def imports(text: str, module: str, *, package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted target) of every import anywhere in a module; relative imports are made absolute."""
    for node in importing(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            here = parts[: len(parts) - node.level + package] if node.level else []
            target = ".".join([*here, *filter(None, [node.module])])
            yield from ((node.lineno, f"{target}.{alias.name}") for alias in node.names)
        else:
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield node.lineno, named.value


def upward(text: str, module: str, *, package: bool = False) -> list[str]:
    """Return the imports of a module that do not point down, as lines with file and line number for an editor."""
    layer = layer_of(module)
    found = []
    for line, target in imports(text, module, package=package):
        other = layer_of(target)
        ours = other in BELOW and other != layer and other not in BELOW[layer]
        foreign = layer not in ONLY_IN.get(other, {layer})
        if ours or foreign:
            found.append(f"{module}:{line}: {layer} imports {target}; it may import {sorted(BELOW[layer])}")
    return found


@cache
def importing(text: str) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    """Return the nodes of a file that import something."""
    return [
        node
        for node in walked(text)[1]
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Call) and _imports_by_name(node.func))
    ]


def _imports_by_name(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield (dotted name, file) of every module under src."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@pytest.mark.xdist_group("tidy")
def test_imports_point_down() -> None:
    """No module imports a layer above or beside its own, nor a library that belongs to another layer."""
    found = [
        breach
        for module, path in modules()
        for breach in upward(path.read_text(encoding="utf-8"), module, package=path.name == "__init__.py")
    ]
    assert not found, "\n".join(["", *found])


def files_of(text: str, module: str, known: set[str], *, package: bool = False) -> set[str]:
    """Return the modules in `known` that a module imports, wherever the import is."""
    targets = (target for _, target in imports(text, module, package=package))
    found = {target if target in known else target.rpartition(".")[0] for target in targets}
    return found & known - {module}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that reach each other; single modules are left out."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(module: str, ways: dict[str, set[str]], done: list[str]) -> None:
        seen.add(module)
        for other in sorted(ways[module] - seen):
            if other not in seen:
                visit(other, ways, done)
        done.append(module)

    for module in graph:
        if module not in seen:
            visit(module, graph, order)
    back: dict[str, set[str]] = {module: set() for module in graph}
    for module, others in graph.items():
        for other in others:
            back[other].add(module)
    seen.clear()
    groups: list[set[str]] = []
    for module in reversed(order):
        if module not in seen:
            group: list[str] = []
            visit(module, back, group)
            groups.append(set(group))
    return [group for group in groups if len(group) > 1]


@pytest.mark.xdist_group("tidy")
def test_no_files_import_each_other() -> None:
    """The files can be read in some order: no file imports one that imports it, even for types or in a function."""
    texts = {module: path for module, path in modules() if module != ROOT}  # its names are loaded on request
    graph = {
        module: files_of(path.read_text(encoding="utf-8"), module, set(texts), package=path.name == "__init__.py")
        for module, path in texts.items()
    }
    assert not circles(graph)


def test_circles_are_found() -> None:
    """Two modules that import each other are a circle, and three in a ring; a module that only one of them imports belongs to none."""
    graph = {"a": {"b", "e"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"f"}, "f": {"d"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b"], ["d", "e", "f"]]
    assert files_of("if TYPE_CHECKING:\n    from p.b import B", "p.a", {"p.a", "p.b"}) == {"p.b"}
    assert files_of("def f():\n    from p import b", "p.a", {"p.a", "p.b"}) == {"p.b"}


def test_every_module_has_a_layer() -> None:
    """A new module at the top of the package must have its place in `BELOW` before anything can import it."""
    placed = {*BELOW, "__init__"}
    names = {path.stem for path in (SOURCE / "penstock").iterdir() if path.suffix == ".py"}
    names |= {path.name for path in (SOURCE / "penstock").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert names <= placed, f"without a layer in BELOW: {sorted(names - placed)}"


BAD = [
    ("penstock.errors", "import penstock.units"),
    ("penstock.options", "from penstock.storage import Storage"),
    ("penstock.storage._local", "from penstock import wal"),
    ("penstock.formats.text", "from penstock.wal import Writer"),
    ("penstock.query.order", "from penstock.sink.ledger import Ledger"),
    ("penstock.query.checkpoint", "from pyspark import TaskContext"),
    ("penstock.source.plan", "def f():\n    from penstock.windows import WindowStore"),
    ("penstock.source.plan", "from ..sink import ledger"),
    ("penstock.sink.sink", "if TYPE_CHECKING:\n    from penstock.source.plan import Plan"),
    ("penstock.aio", "from pyspark.sql import Row"),
    ("penstock.ingestion.ingest", "from penstock.cli import console"),
    ("penstock.sink.publish", "import rich.console"),
    ("penstock.sink.publish", "from penstock.testing import CrashStorage"),
    ("penstock.db.sink", "from penstock import register"),
    ("penstock.db.sink", "importlib.import_module('penstock.spark')"),
    ("penstock.cli.demo", "from penstock.testing import failing"),
]
GOOD = [
    ("penstock.units", "from penstock.errors import OptionError"),
    ("penstock.failpoints", "from penstock import clock"),
    ("penstock.source.plan", "from penstock.source.cursor import Cursor\nfrom . import scan"),
    ("penstock.db.sink", "from penstock.query.order import place"),
    ("penstock.windows.store", "from penstock import wal\nimport pyarrow"),
    ("penstock.ingestion.ingest", "from penstock.sink import Sink\nfrom pyspark.sql import SparkSession"),
    ("penstock.cli.status", "import typer, penstock\nfrom penstock import ingest"),
    ("penstock.testing.storage", "from penstock.storage import Storage\nfrom penstock import failpoints"),
    ("pyspark_penstock", "from penstock.spark import datasource"),
]


@pytest.mark.parametrize(("module", "code"), BAD)
def test_checker_finds(module: str, code: str) -> None:
    """The checker finds each kind of import that points up or sideways."""
    assert upward(code, module)


@pytest.mark.parametrize(("module", "code"), GOOD)
def test_checker_leaves_alone(module: str, code: str) -> None:
    """The checker reports no import that points down or stays within its layer."""
    assert not upward(code, module)


def test_relative_imports_are_made_absolute() -> None:
    """A relative import means the same module in a package's `__init__` as in one of its modules."""
    text = "from . import a\nfrom .b import c\nfrom ..d import e"
    expected = ["penstock.sink.a", "penstock.sink.b.c", "penstock.d.e"]
    assert [target for _, target in imports(text, "penstock.sink.publish", package=False)] == expected
    assert [target for _, target in imports(text, "penstock.sink", package=True)] == expected


# Imports a package in a fresh interpreter and reports what was loaded and done meanwhile. The audit hook is Python's own record
# of opened files, started processes and created sockets, whatever the library.
_WATCHED_IMPORT = """
import importlib, json, sys

blocked, before, target = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

class Blocker:
    def find_spec(self, name, path=None, found=None):
        if any(name == each or name.startswith(each + ".") for each in blocked):
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

sys.meta_path.insert(0, Blocker())
for name in before:
    importlib.import_module(name)

LOADING = (".py", ".pyc", ".so", ".zip", ".egg")
WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.link", "subprocess.Popen", "socket.__new__", "os.fork"}
done, watching = [], True

def hook(event, args):
    if watching and event in WATCHED and not (event == "open" and str(args[0]).endswith(LOADING)):
        done.append(f"{event} {args!r}"[:200])

sys.addaudithook(hook)
known = set(sys.modules)
importlib.import_module(target)
watching = False
print(json.dumps({"loaded": sorted(set(sys.modules) - known), "done": done}))
"""


def watched_import(target: str, *, blocked: list[str], before: list[str]) -> dict[str, list[str]]:
    """Import `target` in a fresh interpreter, without `blocked` and after `before`; return what it loaded and did."""
    arguments = [sys.executable, "-B", "-c", _WATCHED_IMPORT, json.dumps(blocked), json.dumps(before), target]
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, list[str]] = json.loads(ended.stdout)
    return answer


def packages(names: list[str]) -> set[str]:
    """Return the top-level packages of dotted module names."""
    return {name.partition(".")[0] for name in names}


def test_importing_penstock_is_light() -> None:
    """`import penstock` loads only its own bottom layers, no PySpark, polars, Arrow or numpy, and does no I/O."""
    seen = watched_import("penstock", blocked=[], before=[])
    assert {layer_of(name) for name in seen["loaded"] if name.startswith("penstock.")} <= _BOTTOM
    assert not packages(seen["loaded"]) & {"pyspark", "py4j", "polars", "pyarrow", "numpy", "pandas"}
    assert not seen["done"]


@pytest.mark.parametrize("plugin", sorted(_PLUGINS))
@pytest.mark.parametrize("blocked", [["pyspark"], ["pyspark.sql"], ["pyspark", "pyarrow", "polars", "numpy"]])
def test_importing_the_spark_plugin_never_raises(blocked: list[str], plugin: str) -> None:
    """Spark imports any installed module named `pyspark_*`, so it must not raise even if libraries are missing."""
    watched_import(plugin, blocked=blocked, before=[])


@pytest.mark.parametrize("plugin", sorted(_PLUGINS))
def test_importing_the_spark_plugin_is_light(plugin: str) -> None:
    """Beyond what PySpark itself loads, a plugin loads no polars or Arrow, and adds no I/O to the start."""
    pytest.importorskip("pyspark")
    seen = watched_import(plugin, blocked=[], before=["pyspark.sql.datasource"])
    assert not packages(seen["loaded"]) & {"polars", "pyarrow", "numpy", "pandas"}
    assert not seen["done"]


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module whose import does everything that ours must not do."""
    (tmp_path / "heavy.py").write_text("import os, subprocess, sqlite3\nopen(os.devnull).close()\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "heavy"


def test_watched_import_sees_what_is_loaded_and_done(heavy: str) -> None:
    """The watch reports the libraries that a module loads and the files that it opens, so silence means something."""
    seen = watched_import(heavy, blocked=[], before=["os", "subprocess"])
    assert "sqlite3" in packages(seen["loaded"])
    assert [entry.split()[0] for entry in seen["done"]] == ["open"]


def test_watched_import_blocks(heavy: str) -> None:
    """A module that needs a blocked library fails the watch."""
    with pytest.raises(AssertionError, match="blocked"):
        watched_import(heavy, blocked=["sqlite3"], before=[])
