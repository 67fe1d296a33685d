"""What all commands have in common, and what is refused before Spark is started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_group

from penstock import __version__
from penstock.cli import ingest, main, process, state
from penstock.cli.answer import console
from penstock.cli.app import app
from penstock.cli.progress import Course
from penstock.ingestion.ingested import Ingested
from penstock.options.formats import WRITTEN
from penstock.session import archive, extras
from tests.docs.markdown import DOCS, REPOSITORY
from tests.support.follows import follows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Said

COMMANDS = [
    "ingest",
    "status",
    "files",
    "verify",
    "finish",
    "clean",
    "late",
    "adopt",
    "warmup",
    "demo",
    "run",
    "check",
    "init",
    "catalog",
]
HEAVY = ["pyspark", "py4j", "polars", "pyarrow", "numpy", "pandas"]


@pytest.fixture
def src(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    return tmp_path / "in"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything here starts Spark."""

    def started(master: str | None) -> None:
        pytest.fail(f"Spark would have been started (master {master})")

    monkeypatch.setattr(ingest, "session", started)


@pytest.mark.slow
def test_help_names_every_command(penstock: Callable[..., Said]) -> None:
    """The help lists the commands of the product, and each command has a help text."""
    said = penstock("--help")
    assert said.status == 0
    assert all(command in said.out for command in COMMANDS)
    assert [penstock(command, "--help").status for command in COMMANDS] == [0] * len(COMMANDS)


def test_help_breaks_lines_where_the_terminal_ends(
    penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paragraph of the help fills the width of the terminal: line breaks of the source are not visible."""
    monkeypatch.setenv("COLUMNS", "400")
    assert "goes on from there. It ends with 0 when" in penstock("ingest", "--help").out


def test_importing_the_command_is_light() -> None:
    """Neither `import penstock.cli` nor the definitions of flags load Spark, Arrow or polars, so the help appears at once."""
    code = f"import sys, penstock.cli.app; print([name for name in {HEAVY} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["penstock", "penstock.cli"])
def test_it_runs_as_a_module(module: str) -> None:
    """`python -m penstock` is the command, also if its script is not installed."""
    ended = subprocess.run([sys.executable, "-m", module, "files"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "Missing argument" in ended.stderr


def test_version_says_what_there_is(penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    """--version lists the versions of what a start needs, and for a missing part the install command or the reason."""
    said = penstock("--version")
    assert said.status == 0
    names = [
        "penstock",
        "Python",
        "Java",
        "PySpark",
        "hdfs",
        "s3",
        "db",
        "avro",
        "age",
        "connect",
        "kafka",
        "iceberg",
        "delta",
        "run",
        "otel",
    ]
    assert [line.split()[0] for line in said.out.splitlines()] == names
    assert f"penstock {__version__}" in said.out
    monkeypatch.setattr(extras, "_version", lambda package: None if package != "boto3" else "1.44.5")
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    lines = penstock("--version").out.splitlines()
    assert lines[2].startswith("Java JAVA_HOME='/nowhere' has no bin/java; unset it, or install Java 17 or newer")
    assert lines[3:6] == [
        "PySpark none; pip install 'penstock[spark]'",
        "hdfs none; pip install 'penstock[hdfs]'",
        "s3 without obstore; pip install 'penstock[s3]'",
    ]
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert penstock("--version").out.splitlines()[3] == "PySpark none; it needs Python 3.11"


def test_the_doctor_says_the_same_of_extras(penstock: Callable[..., Said]) -> None:
    """--version and the doctor say the same about each extra: there is only one list."""
    (line,) = [check["text"] for check in penstock("doctor", "--json").facts["checks"] if check["name"] == "extras"]
    for extra in extras.extras():
        assert str(extra) in line


def test_a_java_that_does_not_run(
    penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Java does not report its version, --version shows what Java said."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'no such JVM' >&2\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not run: 'no such JVM'" in penstock("--version").out


@pytest.mark.slow
def test_a_shell_completes_commands_and_flags() -> None:
    """The shell completion that typer installs lists our commands and flags, and loads nothing heavy."""
    code = f"import sys\nfrom penstock.cli import main\ntry:\n main()\nfinally:\n print([n for n in {HEAVY} if n in sys.modules])"
    for words, expected in (("penstock ing", "ingest\n"), ("penstock ingest --roll-s", "--roll-size\n")):
        asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-c", f"import sys\nsys.argv = ['penstock']\n{code}"]
        ended = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
        assert ended.stdout == f"{expected}[]\n", ended.stderr


def test_an_unknown_flag_is_refused_with_a_suggestion(penstock: Callable[..., Said], src: Path) -> None:
    """A mistyped flag ends with status 2, the suggested flag on stderr and nothing on stdout."""
    said = penstock("ingest", src, src.parent / "out", "--rol-size", "1m")
    assert said.status == 2
    assert "--roll-size" in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (["status"], "Missing argument"),
        (["status", "a", "b"], "extra argument"),
        (["ingest", "a", "b", "--rol-size", "1m"], "--roll-size"),
        (["wal", "info"], "Missing argument"),
        (["statu", "a"], "No such command 'statu'"),
    ],
)
def test_a_call_that_no_command_takes_is_an_object_with_json(
    penstock: Callable[..., Said], call: list[str], told: str
) -> None:
    """For a program that reads stdout, a usage error is a JSON object too, as every other error is."""
    said = penstock(*call, "--json")
    assert said.status == 2
    assert said.facts["ok"] is False
    assert said.facts["error"]["code"] == "PST-100"
    assert told in said.facts["error"]["message"]
    assert not penstock(*call).out


def test_an_unknown_option_is_refused_with_a_suggestion(penstock: Callable[..., Said], src: Path) -> None:
    """A mistyped option of source or sink ends with status 2 and a suggestion of the right name."""
    for flag, option, meant in (("--sink-option", "rolSize=1m", "rollSize"), ("--source-option", "setle=1s", "settle")):
        said = penstock("ingest", src, src.parent / "out", flag, option)
        assert said.status == 2
        assert f"did you mean {meant!r}?" in said.err
        assert "[PST-101]" in said.err


@pytest.mark.parametrize(
    "command", [name for name in get_group(app).commands if name not in {"demo", "doctor", "warmup"}]
)
def test_a_command_without_arguments_says_how_it_is_used(penstock: Callable[..., Said], command: str) -> None:
    """Missing arguments are reported with status 2, without a traceback."""
    said = penstock(command)
    assert said.status == 2
    assert "Usage: " in said.out + said.err


REFUSED = {
    "missing source": (["nowhere", "out"], "does not exist"),
    "output in the source": (["in", "in/out"], "lies in SRC"),
    "source in the output": (["in", "."], "lies in DST"),
    "bad size": (["in", "out", "--roll-size", "3x"], "rollSize='3x' is not a size"),
    "bad count": (["in", "out", "--max-files", "0"], "maxFilesPerTrigger='0' is not a count"),
    "bad duration": (["in", "out", "--roll-interval", "15"], "rollInterval='15' is not a duration"),
    "interval of no watch": (["in", "out", "--interval", "5s"], "--interval 5s is for --watch"),
    "bad interval": (["in", "out", "--watch", "--interval", "5"], "--interval='5' is not a duration"),
    "bad format": (["in", "out", "--format", "jsn"], "did you mean 'json'?"),
    "binary output": (["in", "out", "--format", "binary"], "--to is needed"),
    "binary as a string": (
        ["in", "out", "--format", "binary", "--to", "parquet", "--schema", "value string"],
        "format=binary has one column, value binary; found value string",
    ),
    "bad schema": (
        ["in", "out", "--format", "json", "--schema", "id bigin, name string"],
        "column 'id': 'bigin' is not a type; did you mean 'bigint'?",
    ),
    "schema that files cannot hold": (
        ["in", "out", "--format", "json", "--schema", "id bigint, at struct<>", "--to", "csv"],
        "at",
    ),
    "column named twice": (
        ["in", "out", "--format", "json", "--schema", "a int, b int, a string"],
        "the schema has the column 'a' twice",
    ),
    "bucket of no column": (["in", "out", "--bucket-by", "{country}"], "country"),
    "option of Spark": (
        ["in", "out", "--source-option", "latestFirst=true"],
        "unknown option 'latestFirst' for the penstock source: files are read from the oldest on",
    ),
    "no schema": (["in", "out", "--format", "json"], "--schema is needed for format=json"),
    "no pair": (["in", "out", "--sink-option", "rollSize"], "expected NAME=VALUE"),
    "twice": (["in", "out", "--roll-size", "1m", "--sink-option", "ROLLSIZE=2m"], "rollSize is given twice"),
    "flag twice": (["in", "out", "--to", "json", "--to", "csv"], "--to is given twice"),
    "path": (["in", "out", "--source-option", "path=x"], "path is given by SRC and DST"),
    "checkpoint": (["in", "out", "--sink-option", "checkpointLocation=x"], "is given by --checkpoint"),
    "format option": (["in", "out", "--source-option", "header=true"], "header is for format=csv"),
    "file name": (["in", "out", "--sink-option", "fileName=a/b"], "must be the name of a visible file"),
    "pattern": (["in", "out", "--pattern", "("], "is not a regular expression"),
    "wildcard": (["in", "out", "--pattern", "*.csv"], "or pathGlobFilter=*.csv"),
    "topics unnamed": (
        ["kafka://localhost:9092", "out"],
        "such as subscribe=orders (of an ingest also SRC kafka://HOST:PORT/orders)",
    ),
    "device": (["/dev/null", "out"], "SRC: '/dev/null' is a pipe, a socket or a device"),
    "module to tell": (["in", "out", "--sink-option", "onpublish=nope:none"], "No module named 'nope'"),
    "transform's form": (["in", "out", "--transform", "module"], "expected MODULE:FUNCTION"),
    "transform's file": (
        ["in", "out", "--transform", "cleaning.py:f"],
        "expected MODULE:FUNCTION, such as cleaning:drop_empty",
    ),
    "transform's path": (["in", "out", "--transform", "lib/cleaning:f"], "expected MODULE:FUNCTION"),
    "transform's module": (["in", "out", "--transform", "nowhere:f"], "No module named 'nowhere'"),
    "transform's function": (["in", "out", "--transform", "json:nothing"], "has no attribute 'nothing'"),
    "transform's kind": (["in", "out", "--transform", "os:sep"], "expected a function"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_an_ingest_that_cannot_work_is_refused(
    penstock: Callable[..., Said], src: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A call that cannot work is refused before Spark is started, with status 2, on stderr only, and nothing is created."""
    monkeypatch.chdir(src.parent)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    arguments, message = REFUSED[case]
    said = penstock("ingest", *arguments)
    assert said.status == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert not said.out
    assert os.listdir(src.parent) == ["in"]


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [
        ("--transform", "exits:f", "import sys\nsys.exit(0)\n"),
        ("--transform", "exits:f", "import sys\ndef f(batch):\n    sys.exit(0)\n"),
        ("--sink-option", "onPublish=exits:f", "import sys\nsys.exit(0)\n"),
    ],
    ids=["module", "function", "module to tell"],
)
def test_a_module_that_exits_is_no_success(
    penstock: Callable[..., Said], src: Path, monkeypatch: pytest.MonkeyPatch, flag: str, value: str, text: str
) -> None:
    """A script that ends in `sys.exit(main())` was named: nothing would be ingested, and its status, 0, would say that all is well."""
    monkeypatch.chdir(src.parent)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.delitem(sys.modules, "exits", raising=False)
    Path("exits.py").write_text(text)
    said = penstock("ingest", "in", "out", flag, value)
    assert said.status == 2
    assert "SystemExit: 0" in said.err
    assert not Path("out").exists()


@pytest.mark.parametrize("written", sorted({*WRITTEN} - {"csv"}))
def test_what_only_can_be_read_is_written_as_something_else(src: Path, written: str) -> None:
    """The message that binary files need `--to` can be followed: any format that can hold bytes works."""
    request = ingest.Request.of(
        [str(src)], str(src.parent / "o"), ({"format": "binary"}, []), ({"format": written}, []), None, None
    )
    assert request.sink["format"] == written


def test_an_ingest_that_takes_no_file_says_how_to_see_why(
    penstock: Callable[..., Said], src: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a pattern that matches no file, the summary names a way to see the reason, and that way works."""
    source: dict[str, str | None] = {"pattern": "b*.txt"}
    request = ingest.Request.of([str(src)], str(src.parent / "out"), (source, []), ({}, []), None, None)
    none = Ingested(-1, 0, 0, 0, 0, 0, 0, 0, 0)
    ingest._answer(ingest._facts(request, Course(), none, 1.0)).show(console())
    assert "nothing to read; with --dry-run the same command says what is left out, and why" in capsys.readouterr().out
    said = penstock("ingest", src, src.parent / "out", "--pattern", source["pattern"], "--dry-run")
    assert "1 of other names than asked for (path, pattern, pathGlobFilter): a.txt" in said.out
    some = Ingested(0, 1, 5, 1, 0, 1, 1, 1, 0)
    course = Course()
    course.update(some)
    ingest._answer(ingest._facts(request, course, some, 1.0)).show(console())
    assert capsys.readouterr().out.startswith("nothing new to read\n")


@pytest.mark.parametrize("schema", ["id bigint", "id bigint, name varchar(10)"])
@pytest.mark.parametrize("arguments", [["file/out"], ["/sys/out"], ["out", "--checkpoint", "/sys/checkpoint"]])
def test_an_output_that_cannot_be_written_is_told_before_spark(
    penstock: Callable[..., Said], src: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], schema: str
) -> None:
    """An output or a checkpoint that cannot be created is one message, with status 1, before Spark is started."""
    monkeypatch.chdir(src.parent)
    (src.parent / "file").write_text("x")
    said = penstock("ingest", "in", *arguments, "--format", "json", "--schema", schema)
    assert said.status == 1
    assert "[PST-50" in said.err
    assert arguments[-1] in said.err
    assert len(said.err.splitlines()) == 1


def test_what_an_ingest_will_need_is_made_before_spark(src: Path) -> None:
    """The check leaves the directories that the ingest writes to, empty."""
    ingest.Request.of([str(src)], str(src.parent / "out"), ({}, []), ({}, []), None, str(src.parent / "ck"))
    made = sorted(path.relative_to(src.parent).as_posix() for path in src.parent.rglob("*"))
    assert made == ["ck", "in", "in/a.txt", "out", "out/_penstock"]


@pytest.mark.skipif(os.geteuid() == 0, reason="to root every directory can be listed")
def test_an_input_that_cannot_be_listed_is_told_before_spark(penstock: Callable[..., Said], src: Path) -> None:
    """A source that may not be read is refused, and nothing is created."""
    src.chmod(0o300)
    try:
        said = penstock("ingest", src, src.parent / "out")
    finally:
        src.chmod(0o700)
    assert (said.status, os.listdir(src.parent)) == (1, ["in"])


def test_an_error_is_an_object_with_json(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """With --json an error is also exactly one object on stdout, with its code; the message is on stderr too."""
    said = penstock("status", tmp_path, "--json")
    assert said.status == 2
    assert said.facts["ok"] is False
    assert said.facts["error"]["code"] == "PST-100"
    assert said.facts["error"]["message"] in said.err


def test_an_unforeseen_error_is_one_message(
    penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any unexpected error ends with status 1 and one message; PENSTOCK_DEBUG=1 shows the traceback."""

    def broken(dst: str) -> None:
        raise ValueError("\n".join(f"line {number} of {dst}" for number in range(10)))

    monkeypatch.setattr(state, "status", broken)
    said = penstock("status", tmp_path)
    assert said.status == 1
    assert said.err.startswith("error: ValueError: line 0")
    assert len(said.err.splitlines()) == 4
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert "Traceback" in penstock("status", tmp_path).err


def test_interrupted(penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a command with nothing to finish ends it with one message and status 130, without a traceback."""

    def interrupted(dst: str) -> None:
        raise KeyboardInterrupt(dst)

    monkeypatch.setattr(state, "files", interrupted)
    said = penstock("files", tmp_path, "--json")
    assert said.status == 130
    assert said.facts["error"]["message"] == "interrupted"


_FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")


def _ended(place: Path, *arguments: str, full: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own whose stdout or stderr is a disk that is full."""
    with open("/dev/full", "w") as disk:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {full: disk}
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments], cwd=place, text=True, check=False, **streams
        )


@_FULL
@follows("PST-503")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 1, ""),
        (["schema", "in"], 1, ""),
        (["ingest", "in", "out"], 1, ""),
        (["ingest", "in", "out", "--json"], 1, ""),
        (["status", "nowhere", "--json"], 2, "no output of Penstock"),
        (["unknown", "--json"], 2, ""),
    ],
)
def test_a_disk_that_is_full_where_a_command_prints(
    tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    """Output that cannot be printed is a typed message and no success, once; a status that says more is kept. It was a bare `Errno 28`."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    os.utime(tmp_path / "in" / "a.txt", (1, 1))
    ended = _ended(tmp_path, *arguments, full="stdout")
    assert ended.returncode == status
    assert said in ended.stderr
    assert ended.stderr.count("[PST-503] cannot print to 'standard output': No space left on device") == 1
    assert "Traceback" not in ended.stderr
    assert "ignored" not in ended.stderr
    if arguments[0] == "ingest":
        again = subprocess.run(
            [sys.executable, "-m", "penstock", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "Traceback" not in again.stderr
        assert [path.read_text() for path in (tmp_path / "out").glob("*.txt")] == ["a\n"]


@_FULL
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["status", "nowhere"], 2, ""),
        (["status", "nowhere", "--json"], 2, "no output of Penstock"),
        (["unknown"], 2, ""),
        (["ingest", "in", "out"], 0, "1 row in 1 file"),
    ],
)
def test_a_disk_that_is_full_where_a_command_says_why(
    tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    """A status is kept if the message, or the progress, cannot be written; it was 1, and an ingest stopped."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    os.utime(tmp_path / "in" / "a.txt", (1, 1))
    ended = _ended(tmp_path, *arguments, full="stderr")
    assert (ended.returncode, said in ended.stdout) == (status, True)


@pytest.mark.parametrize("left", [0, 1], ids=["no thread", "one thread"])
def test_no_more_threads(
    penstock: Callable[..., Said], src: Path, monkeypatch: pytest.MonkeyPatch, *, left: int
) -> None:
    """Under `ulimit -u` an ingest said that it cannot join a thread before it is started; it names the limit now, and goes on later."""
    started = iter([True] * left)
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if not next(started, False):
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", limited)
        said = penstock("ingest", src, src.parent / "out")
    assert said.status == 1
    assert "[PST-000] RuntimeError: can't start new thread; this user may start no more threads" in said.err
    assert penstock("ingest", src, src.parent / "out").status == 0


def test_relative_paths_where_the_directory_was_removed(
    penstock: Callable[..., Said], src: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current directory of a shell may be removed: absolute paths work there, and a relative one gives an error with advice."""
    gone = src.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for location in ("out", "file:out"):
        said = penstock("status", location, "--json")
        assert (said.status, said.facts["error"]["code"]) == (2, "PST-101")
        assert "DST='out' is relative, and the current directory has been removed" in said.err
    assert penstock("schema", src).status == 0
    process.load_transform("json:loads", name="--transform")


@pytest.mark.slow  # a run of the command
@follows("PST-103")
def test_names_of_files_in_a_locale_without_utf_8(tmp_path: Path) -> None:
    """A run in a locale with ISO-8859-1 noted other names for what it read, so that the next run in UTF-8 read it again."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ä.txt").write_text("a\n")
    command = [sys.executable, "-m", "penstock"]
    ingest = [*command, "ingest", "in", "out", "--bucket-by", "v={value}ß", "--source-option", "settle=0s"]
    ascii_names = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    refused = subprocess.run(ingest, cwd=tmp_path, env=ascii_names, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "Python takes names of files for ascii in this locale, expected utf-8" in refused.stderr
    assert not (tmp_path / "out").exists()
    told = subprocess.run(
        [*command, "doctor"], cwd=tmp_path, env=ascii_names, capture_output=True, text=True, check=False
    )
    assert "Python takes names of files for ascii" in told.stdout
    (advice,) = re.findall(r"set (\w+)=(\w+) in the environment", refused.stderr)
    subprocess.run(ingest, cwd=tmp_path, env=ascii_names | dict([advice]), capture_output=True, check=True)
    assert [path.parent.name for path in (tmp_path / "out").glob("v=*/*")] == ["v=aß"]


def test_a_command_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may run a command in a thread, where Python allows no signal handlers: it runs, and handles no signals."""
    monkeypatch.setattr(sys, "argv", ["penstock", "--version"])
    with ThreadPoolExecutor(1) as thread:
        assert isinstance(error := thread.submit(main).exception(), SystemExit)
    assert error.code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_told_by_the_exit_status(
    penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A command that cleans up after a signal exits with the shell's convention: 128 plus the signal's number."""

    def interrupted(dst: str) -> None:
        with process.interrupted_by_signals():
            os.kill(os.getpid(), number)

    monkeypatch.setattr(state, "files", interrupted)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, and so would these tests
    try:
        assert penstock("files", tmp_path).status == 128 + number
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("command", ["status", "files", "verify", "finish", "clean"])
def test_a_directory_that_is_no_output(penstock: Callable[..., Said], tmp_path: Path, command: str) -> None:
    """Commands on an output report a directory that is not one as a usage error, and create nothing in it."""
    for place in (tmp_path, tmp_path / "nowhere"):
        said = penstock(command, place)
        assert said.status == 2
        assert "is no output of Penstock" in said.err
    assert "there is nothing of that name" in said.err
    assert not os.listdir(tmp_path)
    (tmp_path / "file").touch()
    assert "it is a file" in penstock(command, tmp_path / "file").err
    (tmp_path / "spark" / "_spark_metadata").mkdir(parents=True)
    told = " ".join(penstock(command, tmp_path / "spark").err.split())
    assert f"Spark's own sink has written it; penstock adopt {quote(str(tmp_path / 'spark'))} takes it over" in told


@pytest.mark.parametrize("command", ["status", "files", "verify", "finish", "clean"])
def test_an_output_without_a_batch(penstock: Callable[..., Said], tmp_path: Path, command: str) -> None:
    """An output in which no query has written yet is valid: there is nothing to show, to finish or to remove."""
    (tmp_path / "_penstock" / "checkpoint").mkdir(parents=True)
    assert penstock(command, tmp_path).status == 0
    assert penstock(command, tmp_path, "--json").facts["ok"] is True


@pytest.mark.slow
@pytest.mark.parametrize("follows", [[], ["--follow"]])
def test_a_reader_that_goes_away(tmp_path: Path, follows: list[str]) -> None:
    """`penstock files | head` ends without a traceback after head has exited, also if nothing more is published."""
    (tmp_path / "_penstock").mkdir()
    command = [sys.executable, "-m", "penstock.cli", "files", str(tmp_path), "--json", *follows]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    os.close(writing)
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_the_formats_follow_the_source(src: Path) -> None:
    """The output has the source's format unless the user names another."""
    flags: dict[str, str | None] = {"format": "json", "schema": "a bigint"}
    made = ingest.Request.of([str(src)], str(src.parent / "out"), (flags, []), ({"format": None}, []), None, None)
    assert made.sink["format"] == "json"
    made = ingest.Request.of([str(src)], str(src.parent / "out"), (flags, []), ({"format": "parquet"}, []), None, None)
    assert made.sink["format"] == "parquet"


def commands(command: Any, words: tuple[str, ...] = ("penstock",)) -> Iterator[tuple[str, Any]]:
    """Yield each command that does something, by its words."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield " ".join(words), command
    for name, each in inner.items():
        yield from commands(each, (*words, name))


def test_every_command_is_on_a_page_and_answers_as_json() -> None:
    """A command that no page shows will not be found, and one without --json is of no use to a program."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in [*DOCS.rglob("*.md"), REPOSITORY / "README.md"])
    found = dict(commands(get_group(app)))
    assert [words for words in found if not re.search(rf"\b{words}\b", pages)] == []
    assert [
        words for words, command in found.items() if "--json" not in {n for p in command.params for n in p.opts}
    ] == []


def test_warmup(penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """warmup makes the archive and prints its path and size; the note that it takes a while is on stderr only."""
    pytest.importorskip("pyspark")
    (tmp_path / "classes.jsa").write_bytes(b"x" * 2048)
    monkeypatch.setattr(archive, "make", lambda: str(tmp_path / "classes.jsa"))
    facts = penstock("warmup", "--json").facts
    assert (facts["ok"], facts["path"], facts["bytes"]) == (True, str(tmp_path / "classes.jsa"), 2048)
    said = penstock("warmup")
    assert "(2.0 KiB)" in said.out
    assert "half a minute, or minutes where much else runs" in said.err


def test_a_linked_environment_has_the_archive_of_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java is started from PySpark's real directory, by whatever path it was found: one archive is made, and it is found."""
    pyspark = pytest.importorskip("pyspark")
    made = archive.location()
    (tmp_path / "linked").symlink_to(Path(pyspark.__file__).parent)
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "linked" / "__init__.py"))
    assert archive.location() == made


@pytest.mark.parametrize("module", ["typer", "penstock.cli.flags", "penstock.options.formats"])
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_in_the_first_moment(tmp_path: Path, module: str, *, ignored: bool) -> None:
    """A signal while the command is still being imported gives the usual message, without a traceback; an ignored SIGINT has no effect."""
    hook = f"import os, sys; sys.addaudithook(lambda event, of: event == 'import' and of[0] == {module!r} and os.kill(os.getpid(), 2))"
    (tmp_path / "sitecustomize.py").write_text(hook)
    # Set in any case: what a shell starts in the background ignores SIGINT, and so would these tests.
    chosen = "signal.signal(2, signal.SIG_IGN if sys.argv.pop(1) == 'True' else signal.default_int_handler)"
    code = f"import signal, sys; {chosen}; import penstock.cli; penstock.cli.main()"
    command = [sys.executable, "-c", code, str(ignored), "files", "--help"]
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == ((0, "") if ignored else (130, "error: [PST-000] interrupted\n"))


PARSED = """
import os, signal, sys
import typer.main
signal.signal(signal.SIGINT, signal.default_int_handler)
from penstock.cli import main

parsed = typer.main.get_command
typer.main.get_command = lambda *given: os.kill(os.getpid(), signal.SIGINT) or parsed(*given)
main()
"""


def test_ctrl_c_before_a_command_begins() -> None:
    """The same holds while typer parses flags and arguments."""
    done = subprocess.run([sys.executable, "-c", PARSED, "files", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: [PST-000] interrupted\n")


def test_json_is_json(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """A path whose bytes are not UTF-8 does not break the JSON object."""
    (tmp_path / "_penstock").mkdir()
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    (odd / "_penstock").mkdir(parents=True)
    assert json.loads(penstock("status", odd, "--json").out)["path"] == str(odd)
    assert penstock("status", odd).status == 0
