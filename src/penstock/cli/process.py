"""The process around an ingest: who may write to stdout, what of Spark's output is shown, and how a signal ends it.

Spark's JVM inherits our stdout and stderr and prints things on both that no user asked for. While the JVM starts, both
lead into a pipe, which a thread empties for as long as the JVM lives. The thread keeps the last lines in case Spark
does not start, and passes our own warnings on (the source reports late files from one of Spark's processes). With
PENSTOCK_DEBUG=1 everything is shown.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import select
import signal
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from penstock import clock
from penstock.cli.outset import refuse
from penstock.errors import OptionError, PenstockError, debugging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from pyspark.sql import SparkSession

_OURS = re.compile(  # how our own warnings begin; some begin with a path
    r"not read: |\d+ files are older than the cursor |\d+ files of .+ that were read stay, "
    r"|Spark's start: |transaction open: |failOnDataLoss=false: |partition \S+ is new here: |onPublish=\S+ has not returned "
    r"|partitionReady was set |records of the past are not merged: "
    r"|sink '.+' of .+ names its files as sink "
    r"|['\"].+['\"](: its first \d+ bytes were read | was read and cannot be cleaned| was (replaced|cut|removed) | has a _spark_metadata)"
    r"|['\"].+['\"] was a file, and is a directory now"
    r"|['\"].+['\"] is (not there; it is waited for|there, and is read|read with the schema that was inferred from )"
)
# Lines that do not explain why Spark does not start.
_ASIDE = re.compile(r"\s+at |\s*\.\.\. \d+ more|.*:\d+: \w*Warning: |\s+(_?warnings\.)?warn\(")
_CRASHED = "hs_err_pid"  # part of the name of the file that Java writes then
_KEPT_LINES = 50
_LAST_WORDS_SECONDS = 1.0
_STDOUT, _STDERR = 1, 2


@contextlib.contextmanager
def jsonable_stdout(as_json: bool) -> Iterator[Callable[[str], None]]:  # noqa: FBT001 - the one thing it is about
    """Yield a function that writes a line to stdout; with `as_json`, everything else that the block writes there goes to stderr.

    That includes what a transform prints, and what processes write that inherit stdout.
    """
    if not as_json or not _is_real(sys.stdout):
        yield typer.echo
        return
    sys.stdout.flush()
    ours = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield lambda line: _print(ours, line)
    finally:
        sys.stdout.flush()
        os.dup2(ours, _STDOUT)
        os.close(ours)


def check_read() -> None:
    """Raise `BrokenPipeError` if the reader of our stdout has gone (`| head -1`): the next line would raise it, but may never come."""
    if _is_real(sys.stdout):
        asked = select.poll()
        asked.register(_STDOUT, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0)):
            raise BrokenPipeError


def _print(descriptor: int, line: str) -> None:
    """Write a line to our stdout, whose errors are those of `outset.begin`."""
    try:
        _write(descriptor, line)
    except BrokenPipeError:
        raise
    except OSError as error:
        refuse(error)


def _write(descriptor: int, line: str) -> None:
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _is_real(stream: Any) -> bool:  # noqa: ANN401 - a test may have replaced it by anything
    try:
        return bool(stream.fileno() == _STDOUT)
    except (OSError, AttributeError):
        return False


def importable_here() -> list[str]:
    """Let this process import modules of the current directory, as `python -m` does; return it, or nothing if it is gone."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # the directory was removed, and its modules with it
        return []
    if here not in sys.path:
        sys.path.insert(0, here)
    return [here]


def importable_by_workers() -> None:
    """Let this process, and the processes that Spark will start, import modules of the current directory."""
    here = importable_here()
    others = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place not in here]
    os.environ["PYTHONPATH"] = os.pathsep.join([*here, *others])


def load_told(sink: Mapping[str, str]) -> None:
    """Load the function that the sink is to call for what it publishes, as `load_transform` does; `OptionError` if it cannot be loaded."""
    text = next((text for name, text in sink.items() if name.lower() == "onpublish"), None)
    if text is not None:
        from penstock.session.functions import told

        importable_by_workers()
        told(text)


def load_transform(text: str, *, name: str) -> None:
    """Load the transform that `name` gives, from the current directory too: here, and in the workers that Spark will start."""
    module, colon, attribute = text.partition(":")
    if not colon or not module or not attribute or module.endswith(".py") or os.sep in module:
        msg = f"{name} {text!r}: expected MODULE:FUNCTION, such as cleaning:drop_empty (a file cleaning.py here)"
        raise OptionError(msg)
    importable_by_workers()
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing a user's module may raise anything
        msg = f"{name} {text!r} cannot be loaded: {type(error).__name__}: {error}"
        raise OptionError(msg) from error
    if not callable(function) and not hasattr(function, "stream"):
        msg = f"{name} {text!r} is a {type(function).__name__}; expected a function of a pyarrow.RecordBatch, or an AsyncMap"
        raise OptionError(msg)


@contextlib.contextmanager
def session(master: str | None, config: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield a session whose noise is not shown: the existing one, or a new one.

    A new session is not stopped: that takes PySpark up to a second, and its JVM ends by itself when this process does.
    A signal to the whole process group (Ctrl-C in a terminal) is handled by this process alone.

    Raises `DependencyError` without PySpark, `PenstockError` if Spark does not start.
    """
    from penstock.session.local import require_pyspark
    from penstock.spark.local import session_of

    require_pyspark()
    try:
        with interrupted_by_signals(), _quiet():
            spark = session_of(master or "local[*]", config or {}, rows_in_jvm=False, apart=True)
    except PenstockError:
        raise
    except Exception as error:  # Spark's own, of many kinds; what it said is the message
        raise _not_started(_said.whole(), error) from error
    yield spark


@contextlib.contextmanager
def begun_session(master: str | None, *, wanted: bool) -> Iterator[None]:
    """Have the JVM of the coming `session` start within the block, if it is `wanted`; it ends after the block, unless a session took it.

    Its output is hidden as that of a session is. SIGTERM and SIGHUP are handled like SIGINT, so that the JVM ends at once with
    any of them.
    """
    if not wanted:
        yield
        return
    from penstock.session.local import begin, end_begun

    with interrupted_by_signals():
        try:
            if debugging():
                begin(master or "local[*]", output=None)
            else:
                writing = _said.pipe()
                begin(master or "local[*]", output=writing)
                os.close(writing)
            yield
        finally:
            end_begun()


def _not_started(lines: list[str], error: Exception) -> PenstockError:
    """Return the error of a failed start, with the last of Spark's lines, without Java's stacks and Python's warnings."""
    words = [text for line in lines if not _ASIDE.match(line) and (text := line.strip("# \t"))]
    why = "; ".join(words[-3:]) or f"{type(error).__name__}: {error}".splitlines()[0]
    advice = "find out what is wrong with: penstock doctor"
    if any(_CRASHED in line for line in lines):
        advice = "Java has crashed; if that happens again, remake its archive of classes: penstock warmup"
    return PenstockError(f"Spark did not start: {why}; {advice}")


class _Said:
    """The last lines that Spark has written; they come through pipes, which threads empty."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._drains: list[threading.Thread] = []

    def pipe(self) -> int:
        """Return a descriptor for Spark to write to; our own warnings that arrive there go on to the present stderr."""
        reading, writing = os.pipe()
        drain = threading.Thread(target=_drain, args=(reading, os.dup(_STDERR), self.lines), daemon=True)
        drain.start()
        self._drains.append(drain)
        return writing

    def whole(self) -> list[str]:
        """Return the lines when all have arrived, or after a second: a JVM that has ended may have said why just before."""
        until = clock.monotonic() + _LAST_WORDS_SECONDS
        for drain in self._drains:
            drain.join(max(until - clock.monotonic(), 0))
        return list(self.lines)


_said = _Said()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Redirect stdout and stderr of processes that the block starts into a pipe of `_said`."""
    if debugging():
        yield
        return
    writing = _said.pipe()
    before = {descriptor: os.dup(descriptor) for descriptor in (_STDOUT, _STDERR)}
    for descriptor in before:
        os.dup2(writing, descriptor)
    os.close(writing)
    try:
        yield
    finally:
        for descriptor, kept in before.items():
            os.dup2(kept, descriptor)
            os.close(kept)


def _drain(reading: int, errors: int, last_lines: deque[str]) -> None:
    """Empty the pipe until its last writer has gone; our own warnings go on to `errors`."""
    rest = b""
    while data := os.read(reading, 1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            text = line.decode("utf-8", "replace")
            last_lines.append(text)
            if _OURS.match(text):
                # The disk of the log may be full. The pipe must be emptied even then, because the JVM would stand still.
                with contextlib.suppress(OSError):
                    _write(errors, f"warning: {text}")


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Show those warnings of this process that would be shown if one of Spark's processes logged them, in the same form."""
    handler = _Warnings()
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Warnings(logging.Handler):
    """Writes our own warnings to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning."""
        text = record.getMessage()
        if record.levelno < logging.WARNING:
            return
        if record.name == "penstock.ingest":  # the driver logs it under this name with Spark, too
            typer.echo(text, err=True)
        elif _OURS.match(text) or debugging():
            typer.echo(f"warning: {text}", err=True)


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end; `number` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a command that a signal ended: 128 plus its number, as in a shell; 130 for Ctrl-C."""
    return 128 + (interrupt.number if isinstance(interrupt, Interrupted) else signal.SIGINT)


@dataclass
class Stop:
    """Whether a signal has asked the command to end, and which one. `due` is true once, so that the query is ended once."""

    interrupt: Interrupted | None = None
    _taken: bool = False

    @property
    def requested(self) -> bool:
        """Tell whether a signal has."""
        return self.interrupt is not None

    def due(self) -> bool:
        """Tell whether to end now."""
        due, self._taken = self.requested and not self._taken, self._taken or self.requested
        return due


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Yield an object that SIGINT, SIGTERM and SIGHUP set instead of ending the process; a second signal ends it as usual."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def requested(number: int, frame: object) -> None:  # noqa: ARG001 - what signal calls
        if stop.requested:
            raise Interrupted(number)
        stop.interrupt = Interrupted(number)

    with _handled(requested):
        yield stop


@contextlib.contextmanager
def hangups() -> Iterator[threading.Event]:
    """Yield an event that SIGHUP sets instead of ending the process; the code that handles it clears it."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGHUP, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise `Interrupted` for SIGINT, SIGTERM and SIGHUP, so that unfinished work is cleaned up; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:  # noqa: ARG001 - what signal calls
        raise Interrupted(number)

    with _handled(interrupt):
        yield


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # neither ignored (`nohup`) nor a reload (`hangups`)
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
