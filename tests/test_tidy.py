"""The project's own style, as tests over the syntax trees of `src/penstock`; each failure names the replacement.

A file call outside `storage/` or a clock outside `clock.py` silently breaks a promise: it works on this disk, today. Linters do
not know these borders, so the tests check them. Names are followed through imports and aliases, and a mention counts like a
call (`map(os.stat, paths)`). A file that has to break a rule is entered in `EXCEPTIONS` with the reason.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.trees import no_collection, parsed, walked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.xdist_group("tidy")  # with two other modules, so that the package is parsed once

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "penstock"
TESTS = REPOSITORY / "tests"

# rule -> {file: reason}. An entry that is no longer needed fails `test_every_exception_is_needed`.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "files": {
        "cli/__init__.py": "the device that swallows what cannot be printed",
        "cli/outset.py": "standard streams that are closed lead nowhere before anything is imported, the storage included",
        "failpoints.py": "the mark of a failpoint that acts once must not go through the storage that is made to fail",
    },
    "many": {
        "db/database.py": "the verbs of a transaction, and a hook for each thing in which PostgreSQL and SQLite are unlike",
        "sink/parts.py": "ten of them are the hooks in which parts of bytes and of tables are unlike; the rest is one state",
        "source/arrivals.py": "one state, what is known of arrivals, which every question reads and many change",
        "source/clean.py": "the steps of one cleaning over the notes of one reader, each of which may be where it died",
        "source/plan.py": "what a planner is asked, by Spark and by commands, over one cursor",
        "source/scan.py": "one tree of directories, which each of them reads or brings up to date",
        "source/read.py": "it has no state but its settings, which travel to tasks; half of it is what tasks do with them",
        "storage/_base.py": "one for each verb of a storage",
        "storage/_hdfs.py": "one for each verb of a storage, and what these share",
        "storage/_local.py": "one for each verb of a storage, and what these share",
        "storage/_objects.py": "one for each verb of a storage, and what these share",
        "testing/disk.py": "one for each call of an operating system, over one set of inodes and names",
        "testing/hdfs.py": "one for each call of a client of HDFS, over one set of blocks and names",
        "wal/walk.py": "one position, and the few moves from it that its essay derives from each other",
        "wal/writer.py": "one place at the end of a log, which each of them reads and moves",
    },
    "vague": {
        "cli/page/draw.py": "x and y are places in a picture",
    },
    "effects": {
        "kafka/client.py": "only looked for, so that its absence is told by what to install",
        "session/local.py": "what Spark imports when it starts, while its JVM does",
        "spark/local.py": "what an ingest will import, while the JVM starts",
    },
    "unsafe": {
        "session/functions.py": "what users give as a function travels as Spark sends its own functions; nothing durable holds it",
        "session/forkserver.py": "a fork becomes the module of Spark's that Spark has named: no text of a user, nothing durable",
        "ingestion/workers.py": "the module that this program's own ingest names when it begins a process",
        "formats/registry.py": "the file of a format that the registry has, by its name there",
        "cli/process.py": "the transform that is named on this command line, or in a file that it names",
        "spark/lanes.py": "two libraries, named there",
        "__init__.py": "our own modules and homes, named there",
    },
}

# The places that implement what the rules tell everybody else to use, where they do not apply.
HOMES: dict[str, str | tuple[str, ...]] = {
    "files": "storage/",
    "temporary": "storage/",
    "storages": ("storage/", "testing/"),
    "clock": "clock.py",
    "print": "cli/",
}

_CREATE = "storage.create, which is exclusive and durable after sync"
_READ = "storage.open or storage.read"
_LIST = "storage.list or storage.names"
_STAT = "storage.stat"
_DELETE = "storage.delete"
_DIRECTORY = "storage.make_directory"
_PUBLISH = "storage.publish, which never replaces"
_SYNC = "WriteHandle.sync, which also makes the name durable"
_NOTHING = "nothing: no storage but a local disk can do that"

# A name that ends in a dot stands for everything below it.
FILES = {
    **dict.fromkeys(("open", "io.open", "codecs.open", "io.FileIO", "os.fdopen"), f"{_READ}, or {_CREATE}"),
    **dict.fromkeys(("os.open", "mmap.", "pyarrow.fs.", "pyarrow.OSFile"), f"{_READ}, or {_CREATE}"),
    **dict.fromkeys(("pyarrow.memory_map", "pyarrow.create_memory_map", "polars.scan_"), _READ),
    **dict.fromkeys(("os.rename", "os.renames", "os.replace", "os.link", "shutil.move"), _PUBLISH),
    **dict.fromkeys(("os.remove", "os.unlink", "os.rmdir", "os.removedirs", "shutil.rmtree"), _DELETE),
    **dict.fromkeys(("os.mkdir", "os.makedirs"), _DIRECTORY),
    **dict.fromkeys(("os.fsync", "os.fdatasync", "os.sync"), _SYNC),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob."), _LIST),
    **dict.fromkeys(("os.stat", "os.lstat", "os.fstat", "os.access"), _STAT),
    **dict.fromkeys(("os.path.exists", "os.path.lexists", "os.path.isfile", "os.path.isdir", "os.path.islink"), _STAT),
    **dict.fromkeys(("os.path.getsize", "os.path.getmtime", "os.path.getctime", "os.path.getatime"), _STAT),
    **dict.fromkeys(("os.symlink", "os.truncate", "os.ftruncate", "os.utime", "os.chmod", "os.chown"), _NOTHING),
    "shutil.": "the verbs of penstock.storage",
}
FILES_ALLOWED = {"shutil.which", "shutil.get_terminal_size"}  # ask about the machine, not about our files
PATH_METHODS = {
    **dict.fromkeys(("read_text", "read_bytes"), _READ),
    **dict.fromkeys(("write_text", "write_bytes", "touch"), _CREATE),
    **dict.fromkeys(("iterdir", "glob", "rglob", "walk"), _LIST),
    **dict.fromkeys(("stat", "lstat", "exists", "is_file", "is_dir", "is_symlink"), _STAT),
    **dict.fromkeys(("rename", "replace", "hardlink_to", "move"), _PUBLISH),
    **dict.fromkeys(("unlink", "rmdir"), _DELETE),
    **dict.fromkeys(("symlink_to", "chmod", "lchmod"), _NOTHING),
    "mkdir": _DIRECTORY,
    "open": f"{_READ}, or {_CREATE}",
}
PATH_TO_PATH = {"parent", "joinpath", "with_name", "with_stem", "with_suffix", "resolve", "absolute", "expanduser"}
CLOCK = {
    **dict.fromkeys(("time.time", "time.time_ns", "datetime.date.today"), "penstock.clock.now_ns"),
    **dict.fromkeys((f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")), "penstock.clock.now_ns"),
    **dict.fromkeys(
        ("time.localtime", "time.ctime", "time.gmtime", "time.strftime"),
        "penstock.clock.now_ns, and the time zone that the user chose",
    ),
    **dict.fromkeys(("time.monotonic", "time.monotonic_ns"), "penstock.clock.monotonic"),
    **dict.fromkeys(("time.perf_counter", "time.perf_counter_ns"), "penstock.clock.monotonic"),
    "time.sleep": "penstock.clock.sleep",
}
UNSAFE = {
    **dict.fromkeys(("pickle", "cloudpickle", "marshal", "shelve", "dill"), "JSON with a checksum, or Arrow IPC"),
    **dict.fromkeys(
        ("jsonpickle", "joblib.", "numpy.load", "pandas.read_pickle"), "JSON with a checksum, or Arrow IPC"
    ),
    **dict.fromkeys(
        ("eval", "exec", "compile", "builtins.", "runpy.", "code."), "a parser: what a user wrote is never run"
    ),
    **dict.fromkeys(("yaml.load", "yaml.unsafe_load", "yaml.full_load"), "yaml.safe_load"),
    "hash": "xxhash: hash() differs from process to process",
}


@dataclass(frozen=True)
class Finding:
    """One breach: `rule`, where (`path` within the package, `line`), `what` was found, and what to use `instead`."""

    rule: str
    path: str
    line: int
    what: str
    instead: str

    def __str__(self) -> str:
        return f"src/penstock/{self.path}:{self.line}: {self.what} -> {self.instead}"


@dataclass
class Module:
    """A source file, parsed: its path within the package, text, tree, the tree's nodes, and the dotted names of its imports."""

    path: str
    text: str
    tree: ast.Module = field(init=False)
    nodes: list[ast.AST] = field(init=False)
    imported: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.tree, self.nodes = walked(self.text)
        self.imported = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    self.imported[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def dotted(self, node: ast.expr) -> str:
        """Return the dotted name that a name or a chain of attributes means (`os.path.exists`), or "".

        A name that no import binds means itself, like a built-in; its attributes mean nothing known.
        """
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            known = not isinstance(node.value, ast.Name) or node.value.id in self.imported
            before = self.dotted(node.value) if known else ""
            return f"{before}.{node.attr}" if before else ""
        return ""

    @cached_property
    def mentions(self) -> list[tuple[int, str]]:
        """Return (line, dotted name) of every import and of every name that is used."""
        return list(self._mentions())

    def _mentions(self) -> Iterator[tuple[int, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield node.lineno, self.dotted(node)

    @cached_property
    def comments(self) -> dict[int, str]:
        """Return the comment of every line that has one."""
        return comments(self.text)


def comments(text: str) -> dict[int, str]:
    """Return the comment of every line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def banned(name: str, table: dict[str, str]) -> str | None:
    """Return the replacement in `table` for a dotted name, or None if the name is not banned."""
    if name in table:
        return table[name]
    ends = (at + 1 for at, letter in enumerate(name) if letter in "._")
    return next((table[name[:end]] for end in ends if name[:end] in table), None)


def files(module: Module) -> Iterator[Finding]:
    """Find file calls; a method of `pathlib.Path` counts if its object is recognised as a path."""
    for line, name in module.mentions:
        kind, _, method = name.rpartition(".")
        instead = PATH_METHODS.get(method) if kind == "pathlib.Path" else banned(name, FILES)
        if instead and name not in FILES_ALLOWED:
            yield Finding("files", module.path, line, name, instead)
    if "pathlib" in module.text:  # following names through scopes takes longer than everything else
        yield from (
            Finding("files", module.path, line, f"Path.{method}", PATH_METHODS[method])
            for line, method in path_methods(module, module.tree, set())
        )


def path_methods(module: Module, scope: ast.AST, outer: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, method) of every file method of a `pathlib.Path` in a scope; `outer` are the names of paths around it."""
    inside = list(_nodes_of(scope))
    paths = outer | _annotated_paths(module, scope, inside)
    paths |= {
        ast.unparse(target)
        for node in inside
        if isinstance(node, ast.Assign) and _is_path(module, node.value, paths)
        for target in node.targets
    }
    for node in inside:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from path_methods(module, node, paths)
        elif isinstance(node, ast.Attribute) and node.attr in PATH_METHODS and _is_path(module, node.value, paths):
            yield node.lineno, node.attr


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of one scope in source order; nested functions and classes are yielded, but not entered."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _nodes_of(child)


def _annotated_paths(module: Module, scope: ast.AST, inside: list[ast.AST]) -> set[str]:
    """Return the names annotated as `Path` (also `Path | None`); those of a class also with `self.`."""
    declared = [(ast.unparse(node.target), node.annotation) for node in inside if isinstance(node, ast.AnnAssign)]
    declared += [(node.arg, node.annotation) for node in inside if isinstance(node, ast.arg) and node.annotation]
    names = {
        name
        for name, annotation in declared
        if any(module.dotted(part) == "pathlib.Path" for part in ast.walk(annotation) if isinstance(part, ast.expr))
    }
    return names | {f"self.{name}" for name in names} if isinstance(scope, ast.ClassDef) else names


def _is_path(module: Module, node: ast.expr, paths: set[str]) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_path(module, node.left, paths) and isinstance(node.op, ast.Div)
    if isinstance(node, ast.Call):
        return module.dotted(node.func).startswith("pathlib.Path") or _is_path(module, node.func, paths)
    if isinstance(node, ast.Attribute) and node.attr in PATH_TO_PATH:
        return _is_path(module, node.value, paths)
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in paths


def temporary(module: Module) -> Iterator[Finding]:
    """Find temporary files: they are on another file system than the output, and a crash leaves them behind."""
    for line, name in module.mentions:
        if name.split(".")[0] == "tempfile":
            yield Finding("temporary", module.path, line, name, "storage.create in the sink's own staging directory")


STORAGES = {"LocalStorage", "HdfsStorage", "ObjectStorage"}
SCHEME = re.compile(r"(hdfs|s3a?|az|gs):(//)?")


def storages(module: Module) -> Iterator[Finding]:
    """Find code that asks which storage it has: by its class or the class's name, the scheme of its paths, or its module.

    For files that are always on this host, such as Java's or a cache, `LocalStorage()` may be made on the spot.
    """
    instead = "an attribute or a verb of `Storage`, which it answers for itself"
    made = {id(node.func) for node in module.nodes if isinstance(node, ast.Call) and not node.args}
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = module.dotted(node)
            if name.rpartition(".")[2] in STORAGES and not (id(node) in made and name.endswith(".LocalStorage")):
                yield Finding("storages", module.path, node.lineno, name, instead)
        elif isinstance(node, ast.Constant) and (node.value in STORAGES or SCHEME.fullmatch(str(node.value))):
            yield Finding("storages", module.path, node.lineno, str(node.value), instead)
    for line, name in module.mentions:
        if name.startswith("penstock.storage._"):
            yield Finding("storages", module.path, line, name, "penstock.storage")


def effects(module: Module) -> Iterator[Finding]:
    """Find imports of what nobody uses: the process depends on their effects, and nothing shows it."""
    for line, comment in module.comments.items():
        if re.search(r"\bF401\b", comment):
            yield Finding(
                "effects", module.path, line, "import for its effect", "a call of what it does, where it is needed"
            )


def clocks(module: Module) -> Iterator[Finding]:
    """Find clocks that a test cannot set."""
    for line, name in module.mentions:
        if instead := banned(name, CLOCK):
            yield Finding("clock", module.path, line, name, instead)


def unsafe(module: Module) -> Iterator[Finding]:
    """Find code that runs data, or gives another result in another process; also an import by a name that data may contain."""
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    for call in calls:
        by_name = module.dotted(call.func) in {"importlib.import_module", "__import__"}
        if by_name and not (call.args and isinstance(call.args[0], ast.Constant)):
            yield Finding(
                "unsafe", module.path, call.lineno, "import by name", "an import: names in data are not loaded"
            )
    for line, name in module.mentions:
        libraries = [part for part in name.split(".") if part in {"pickle", "cloudpickle", "marshal", "shelve", "dill"}]
        if instead := banned(name, UNSAFE) or (UNSAFE[libraries[0]] if libraries else None):
            yield Finding("unsafe", module.path, line, name, instead)


def prints(module: Module) -> Iterator[Finding]:
    """Find `print`: a library speaks through logging, errors and return values."""
    for line, name in module.mentions:
        if name == "print":
            yield Finding("print", module.path, line, name, "logging, or rich's console in cli/")


def handlers(module: Module) -> Iterator[Finding]:
    """Find handlers of all exceptions without a comment that says why, on the line of the `except`."""
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = [module.dotted(each) if each else "bare except" for each in caught]
            broad = [name for name in names if name.split(".")[-1] in {"bare except", "Exception", "BaseException"}]
            head = range(node.lineno, max(node.body[0].lineno, node.lineno + 1))
            if broad and not has_reason(" ".join(module.comments.get(line, "") for line in head)):
                instead = "the errors that can happen, or a reason in a comment beside it"
                yield Finding("handlers", module.path, node.lineno, f"except {broad[0]}", instead)


SWITCHED_OFF = re.compile(r"\bnoqa\b|type:\s*ignore")


def reasons(module: Module) -> Iterator[Finding]:
    """Find linter rules that are switched off without a reason on the same line."""
    for line, comment in module.comments.items() if SWITCHED_OFF.search(module.text) else ():
        if SWITCHED_OFF.search(comment) and not has_reason(comment):
            yield Finding("reasons", module.path, line, comment, "the same, with its codes and ` - reason`")


ELSEWHERE = re.compile(r"\b(as|see) (above|below|there|in)\b")


def has_reason(comment: str) -> bool:
    """Tell whether a comment has at least two words besides instructions to tools, and does not refer to another reason."""
    if ELSEWHERE.search(comment):
        return False
    said = re.sub(r"noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?|type:\s*ignore(\[[^]]*\])?|pragma: no \w+", "", comment)
    return len(re.findall(r"[A-Za-z]\w*", said)) > 1


def unfinished(module: Module) -> Iterator[Finding]:
    """Find notes of unfinished work."""
    for line, text in enumerate(module.text.splitlines(), 1):
        if note := re.search(r"\b(TODO|FIXME)\b", text):
            yield Finding("unfinished", module.path, line, note[0], "the work itself, or an issue")


def docstrings(module: Module) -> Iterator[Finding]:
    """Find modules, public classes and public functions without a docstring."""
    if not ast.get_docstring(module.tree):
        yield Finding("docstrings", module.path, 1, "module without docstring", "what it is for, in a sentence")
    for name, node in public(module.tree, ""):
        if not ast.get_docstring(node):
            what = f"{name} without docstring"
            yield Finding("docstrings", module.path, node.lineno, what, "its contract, in a sentence")


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(scope: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Yield the public definitions of a module or class, also those under `if` and `try`, and of its public classes.

    Overloads, setters and marked overrides add nothing new, so they are left out.
    """
    for node in _nodes_of(scope):
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
        if not marks & {"overload", "override", "setter", "deleter"}:
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public(node, f"{prefix}{node.name}.")


# Names that do not say what they hold. A parameter may have one if its callers pass it by that name.
VAGUE = {"each", "found", "how", "made", "one", "said", "some", "there", "told", "what"}
SHORT = 5  # lines: in a function of this length or less the name is read next to its value


def vague(module: Module) -> Iterator[Finding]:
    """Find locals in functions of more than five lines with names, words or letters, that do not say what they hold."""
    for function in module.nodes:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _is_long(function):
            nodes = list(_nodes_of(function))
            targets = [node.target for node in nodes if isinstance(node, ast.comprehension)]
            brief = {name for target in targets for name in ast.walk(target)}  # they end with their expression
            names = [node for node in nodes if isinstance(node, ast.Name) and node not in brief]
            for name in names:
                is_vague = name.id in VAGUE or (len(name.id) == 1 and name.id != "_")
                if isinstance(name.ctx, ast.Store) and is_vague:
                    yield Finding("vague", module.path, name.lineno, name.id, "a noun for what it holds")


def _is_long(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return (function.end_lineno or function.lineno) - function.body[0].lineno >= SHORT


DENSE = 12  # paths through a function
BRANCHES_MEAN = 2.4


def dense(module: Module) -> Iterator[Finding]:
    """Find functions with too many paths: what they decide deserves its own noun, or there is a reason against it."""
    for function in module.nodes:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and ways(function) > DENSE:
            yield Finding(
                "dense", module.path, function.lineno, function.name, "a function or class where a noun appears"
            )


def ways(function: ast.AST) -> int:
    """Return the cyclomatic complexity: one, plus one for each branch, loop, handler, condition and comprehension clause."""
    return sum(_counted(function))


def branches(function: ast.AST) -> int:
    """Return McCabe's original count: what is within an expression, except for a conditional, is no path."""
    return _counted(function)[0]


_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert)


@cache  # takes most of the time of a look at all functions
def _counted(function: ast.AST) -> tuple[int, int]:
    """Return the number of branches of a function, and of the further paths through its expressions."""
    count, inside = 1, 0
    for node in ast.walk(function):
        if isinstance(node, _BRANCHES):
            count += 1
        elif isinstance(node, ast.Match):
            count += len(node.cases)
        elif isinstance(node, ast.BoolOp):
            inside += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            inside += 1 + len(node.ifs)
    return count, inside


METHODS = 20


def many(module: Module) -> Iterator[Finding]:
    """Find classes of more than twenty methods: their state can be divided, or there is a reason against it."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > METHODS:
                yield Finding("many", module.path, node.lineno, node.name, "a class for each thing it knows")


RULES: dict[str, Callable[[Module], Iterator[Finding]]] = {
    "files": files,
    "temporary": temporary,
    "storages": storages,
    "effects": effects,
    "clock": clocks,
    "unsafe": unsafe,
    "print": prints,
    "handlers": handlers,
    "reasons": reasons,
    "unfinished": unfinished,
    "docstrings": docstrings,
    "vague": vague,
    "dense": dense,
    "many": many,
}


@cache
def modules() -> list[Module]:
    """Return all modules of the package, parsed once for all rules."""
    paths = sorted(PACKAGE.rglob("*.py"))
    with no_collection():
        return [Module(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@cache
def breaches(rule: str) -> list[Finding]:
    """Return every breach of a rule outside its home, with or without an exception, each once."""
    looked_at = [module for module in modules() if rule not in HOMES or not module.path.startswith(HOMES[rule])]
    return list(dict.fromkeys(finding for module in looked_at for finding in RULES[rule](module)))


def listing(findings: list[Finding]) -> str:
    """Return findings as lines with file and line number, which an editor can jump to."""
    return "\n".join(["", *map(str, findings)])


@pytest.mark.parametrize("rule", RULES)
def test_source_keeps(rule: str) -> None:
    """No module of the package breaks the rule, except for those with a reason."""
    found = [finding for finding in breaches(rule) if finding.path not in EXCEPTIONS.get(rule, {})]
    assert not found, listing(found)


@pytest.mark.parametrize("rule", EXCEPTIONS)
def test_every_exception_is_needed(rule: str) -> None:
    """An exception is removed with the breach that it excuses, and its reason has more than two words."""
    assert set(EXCEPTIONS[rule]) <= {finding.path for finding in breaches(rule)}
    assert all(len(reason.split()) > 2 for reason in EXCEPTIONS[rule].values())


def test_functions_are_simple_on_the_whole() -> None:
    """Most functions have no branch, or one: a higher mean shows that decisions are made in more places than necessary."""
    functions = [
        branches(node)
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sum(functions) / len(functions) < BRANCHES_MEAN


def test_class_names_are_unique() -> None:
    """No two classes of the package share a name: a reader of a message or an import knows which class it is."""
    homes: dict[str, list[str]] = {}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module.path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_reason_points_elsewhere() -> None:
    """A switched-off rule has its reason on its line, also in the tests and benchmarks: other places move."""
    folders = ("src", "tests", "benchmarks", "examples")
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    pointing = [
        f"{path.relative_to(REPOSITORY)}:{line}: {comment}"
        for path, text in texts.items()
        if any(SWITCHED_OFF.search(line) for line in text.splitlines() if ELSEWHERE.search(line))
        for line, comment in comments(text).items()
        if SWITCHED_OFF.search(comment) and ELSEWHERE.search(comment)
    ]
    assert not pointing, "\n".join(["", *pointing])


def test_every_test_says_what_it_proves() -> None:
    """Every test has a docstring whose first paragraph is a sentence."""
    silent = []
    for path in sorted(TESTS.rglob("*.py")):
        for name, node in public(parsed(path.read_text(encoding="utf-8")), ""):
            said = (ast.get_docstring(node) or "").split("\n\n")[0]
            is_test = name.split(".")[-1].startswith("test_") and not isinstance(node, ast.ClassDef)
            if is_test and not is_sentence(said):
                silent.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}")
    assert not silent, "\n".join(["a sentence that says what it proves is missing in", *silent])


def is_sentence(text: str) -> bool:
    """Tell whether a text has three words or more and ends like a sentence."""
    return len(text.split()) > 2 and text.rstrip().endswith((".", "!", "?"))


BAD = [
    ("files", "f = open('x')", "open"),
    ("files", "import os\nos.rename(a, b)", "os.rename"),
    ("files", "import os as o\no.replace(a, b)", "os.replace"),
    ("files", "from os import unlink as gone\ngone(a)", "os.unlink"),
    ("files", "import os\nsizes = map(os.stat, names)", "os.stat"),
    ("files", "def f():\n    import os.path\n    return os.path.exists(a)", "os.path.exists"),
    ("files", "import shutil\nshutil.rmtree(a)", "shutil.rmtree"),
    ("files", "import pyarrow as pa\npa.memory_map(a)", "pyarrow.memory_map"),
    ("files", "import polars as pl\npl.scan_csv(a)", "polars.scan_csv"),
    ("files", "from pathlib import Path\nPath(a).write_text('x')", "Path.write_text"),
    ("files", "from pathlib import Path\n(Path(a) / 'b').resolve().stat()", "Path.stat"),
    ("files", "import pathlib\ndef f(p: pathlib.Path | None): p.rename(b)", "Path.rename"),
    ("files", "from pathlib import Path\ndef f():\n    p = Path(a)\n    with p.open() as g: pass", "Path.open"),
    ("files", "from pathlib import Path\nclass C:\n    root: Path\n    def f(self): self.root.mkdir()", "Path.mkdir"),
    ("files", "from pathlib import Path\nlist(map(Path.unlink, a))", "pathlib.Path.unlink"),
    ("temporary", "from tempfile import mkdtemp", "tempfile.mkdtemp"),
    (
        "storages",
        "from penstock.storage import HdfsStorage\nisinstance(a, HdfsStorage)",
        "penstock.storage.HdfsStorage",
    ),
    (
        "storages",
        "from penstock.storage import LocalStorage\ntype(a) is LocalStorage",
        "penstock.storage.LocalStorage",
    ),
    ("storages", "from penstock import storage\nstorage.ObjectStorage('s3://b')", "penstock.storage.ObjectStorage"),
    ("storages", "type(a).__name__ == 'ObjectStorage'", "ObjectStorage"),
    ("storages", "path.startswith('hdfs:')", "hdfs:"),
    ("storages", "path.startswith(('s3://', 'az://'))", "s3://"),
    ("storages", "def f():\n    from penstock.storage._local import locked", "penstock.storage._local.locked"),
    ("storages", "from penstock.storage import _local", "penstock.storage._local"),
    ("effects", "import penstock.formats.known.parquet  # noqa: F401 - so that it is there", "import for its effect"),
    ("clock", "import time\ntime.time()", "time.time"),
    ("clock", "from time import sleep\nsleep(1)", "time.sleep"),
    ("clock", "from datetime import datetime, timezone\ndatetime.now(timezone.utc)", "datetime.datetime.now"),
    ("clock", "import datetime as dt\nf(key=dt.datetime.utcnow)", "datetime.datetime.utcnow"),
    ("unsafe", "import pickle", "pickle"),
    ("unsafe", "from pyspark import cloudpickle", "pyspark.cloudpickle"),
    ("unsafe", "eval(text)", "eval"),
    ("unsafe", "code = compile(text, 'a', 'exec')", "compile"),
    ("unsafe", "import builtins\nrun = builtins.exec", "builtins.exec"),
    ("unsafe", "import numpy as np\nnp.load(file, allow_pickle=True)", "numpy.load"),
    ("unsafe", "import marshal as m\nm.loads(data)", "marshal.loads"),
    ("unsafe", "from shelve import open as db\ndb(path)", "shelve.open"),
    ("unsafe", "import yaml\nyaml.load(text)", "yaml.load"),
    ("unsafe", "lane = hash(key) % 8", "hash"),
    ("unsafe", "import importlib\nimportlib.import_module(record['module'])", "import by name"),
    ("print", "print('done')", "print"),
    ("handlers", "try: f()\nexcept Exception: pass", "except Exception"),
    ("handlers", "try: f()\nexcept (OSError, BaseException):  # noqa: BLE001\n    pass", "except BaseException"),
    ("handlers", "try: f()\nexcept: pass", "except bare except"),
    ("reasons", "x = 1  # noqa: E501", "# noqa: E501"),
    ("reasons", "x = 1  # type: ignore[assignment]", "# type: ignore[assignment]"),
    ("reasons", "x = 1  # noqa: E501 - as above", "# noqa: E501 - as above"),
    ("unfinished", "# TODO: all of it", "TODO"),
    ("vague", "def f():\n    found = 1\n    a()\n    b()\n    c()\n    d()\n    return found", "found"),
    ("vague", "def f(rows):\n    a()\n    b()\n    c()\n    for each in rows:\n        d()\n    e()", "each"),
    ("vague", "def f():\n    n = 1\n    a()\n    b()\n    c()\n    d()\n    return n", "n"),
    ("dense", f"def f(x):\n    return {' or '.join(['x'] * (DENSE + 1))}", "f"),
    ("dense", "def f(x):\n" + "    if x: pass\n" * DENSE, "f"),
    ("many", "class A:\n" + "".join(f"    def f{n}(self): pass\n" for n in range(METHODS + 1)), "A"),
    ("docstrings", "x = 1", "module without docstring"),
    ("docstrings", "'''Doc.'''\nclass A:\n    '''Doc.'''\n    def f(self): pass", "A.f without docstring"),
    ("docstrings", "'''Doc.'''\nif x:\n    async def f(): pass", "f without docstring"),
]

GOOD = [
    ("files", "storage.open(path).read(0, 1)"),
    ("files", "text.replace('a', 'b')"),
    ("files", "glob.pattern"),
    ("files", "from pathlib import Path\nname = str(Path(a)).replace('a', 'b')"),
    ("files", "from pathlib import PurePosixPath\nPurePosixPath(a).parent"),
    ("files", "from pathlib import Path\ndef f(p: Path): return p.name\ndef g(p): return p.replace('a', 'b')"),
    ("files", "import shutil\nshutil.which('java')"),
    ("files", "from dataclasses import replace\nreplace(a, b=1)"),
    ("storages", "from penstock.storage import LocalStorage\nLocalStorage().read(path)"),
    ("storages", "msg = 'expected hdfs://cluster/data or s3://bucket/data'"),
    ("effects", "from penstock.storage import locate\nlocate(path)"),
    ("clock", "from penstock import clock\nclock.sleep(1); clock.now_ns()"),
    ("clock", "from datetime import datetime\ndatetime.fromtimestamp(0, zone)"),
    ("unsafe", "import importlib\nimportlib.import_module('penstock.spark')"),
    ("unsafe", "def __hash__(self): return xxhash.xxh64_intdigest(self.key)"),
    ("handlers", "try: f()\nexcept Exception:  # noqa: BLE001 - the user's function may raise anything\n    pass"),
    ("handlers", "try: f()\nexcept OSError: pass"),
    ("reasons", "x = 1  # noqa: PLW0603 - one clock a process"),
    ("vague", "def f():\n    found = 1\n    return found"),
    ("vague", "def f(rows):\n    a()\n    b()\n    c()\n    d()\n    return [each for each in rows]"),
    ("vague", "def f(what):\n    a()\n    b()\n    c()\n    d()\n    return what"),
    ("dense", "def f(x):\n" + "    if x: pass\n" * (DENSE - 1)),
    ("many", "class A:\n" + "".join(f"    def f{n}(self): pass\n" for n in range(METHODS))),
    ("docstrings", "'''Doc.'''\nclass _A:\n    def f(self): pass\ndef _g(): pass"),
    ("docstrings", "'''Doc.'''\ndef f():\n    '''Doc.'''\n    def inner(): pass"),
]


@pytest.mark.parametrize(("rule", "code", "what"), BAD)
def test_checker_finds(rule: str, code: str, what: str) -> None:
    """The checker finds each kind of breach and names a replacement, so silence means something."""
    found = {finding.what: finding.instead for finding in RULES[rule](Module("bad.py", code))}
    assert found.get(what)


@pytest.mark.parametrize(("rule", "code"), GOOD)
def test_checker_leaves_alone(rule: str, code: str) -> None:
    """The checker reports nothing if a name only looks like a breach."""
    assert not list(RULES[rule](Module("good.py", code)))


def test_checker_sees_the_package() -> None:
    """The rules are applied to existing files: an empty search must not pass as a clean one."""
    assert {"errors.py", "units.py", "clock.py", "storage/__init__.py"} <= {module.path for module in modules()}


@pytest.mark.parametrize("text", ["", "Works.", "test of the sink", "No row\nis lost"])
def test_checker_wants_sentences(text: str) -> None:
    """A docstring of one word, or without an end, is no sentence."""
    assert not is_sentence(text)
