"""`penstock wal`: append lines to a log, read them, inspect it, check it, mend it. None of this needs Spark or Java."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

import typer

from penstock import clock
from penstock.cli.answer import Answer, printable
from penstock.cli.process import Stop, stop_signals
from penstock.errors import PenstockError, UsageError
from penstock.storage import locate
from penstock.units import counted, format_size
from penstock.wal import RECORD_BYTES_MAX, Log, Position, Reader, Writer
from penstock.wal.segment import check_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from penstock.wal import Info

_CHUNK_BYTES = 1 << 20
_FOLLOW_SECONDS = 0.1


def append(directory: str, segment_size: str) -> Answer:
    """Append the lines of standard input as records; all lines that were read at once are flushed together."""
    if sys.stdin is None:
        msg = "standard input is closed; give the lines to append, as in: penstock wal append DIR < FILE"
        raise UsageError(msg)
    count = 0
    with Writer(directory, segment_size=segment_size) as writer:
        try:
            for lines in _lines():
                writer.append_many(lines)
                writer.flush()
                count += len(lines)
        except PenstockError as error:
            msg = (
                f"{error.message}; durable of the input: {counted(count, 'line')}; lines after them may be there or not"
            )
            raise type(error)(msg) from error
        position = str(writer.position)
    facts = {"ok": True, "path": directory, "records": count, "position": position}
    return Answer(facts, lambda out: out.print(position))


def _lines() -> Iterator[list[bytes]]:
    """Yield the lines of standard input as soon as there is a complete one. A line that is too long is not read to its end."""
    rest, read = bytearray(), _standard_input()
    while len(rest) <= RECORD_BYTES_MAX and (data := read()):
        rest += data
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield lines
    if rest:
        yield [bytes(rest)]


def _standard_input() -> Callable[[], bytes]:
    """Return a function that waits for input and returns the bytes that are there, none at the end; input may be a buffer, not a file."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:
        buffer = cast("io.BufferedIOBase", sys.stdin.buffer)  # such as that of a test runner
        return lambda: buffer.read1(_CHUNK_BYTES)
    return lambda: os.read(descriptor, _CHUNK_BYTES)


def read(directory: str, start: str | None, mode: str, *, follow: bool, as_json: bool) -> Answer:
    """Print the records from `start` on, one on each line, unchanged; escaped on a terminal, or as JSON.

    With `follow`, a signal ends it, with status 0.
    """
    _log_in(directory)
    first = None if start is None else Position.parse(start)
    with Reader(directory, start=first, mode=mode) as reader, stop_signals() if follow else nullcontext(Stop()) as stop:
        count = _print_all(reader, stop, as_json=as_json)
        while follow and not stop.requested:
            clock.sleep(_FOLLOW_SECONDS)
            count += _print_all(reader, stop, as_json=as_json)
    if not as_json:
        _warn_of_skipped(reader)
    skipped = list(map(asdict, reader.skipped))
    facts = {"ok": True, "path": directory, "records": count, "position": str(reader.position), "skipped": skipped}
    return Answer(facts)


def _print_all(reader: Reader, stop: Stop, *, as_json: bool) -> int:
    """Print the records that are there and were not printed yet, until a stop is asked for; return how many."""
    count = 0
    for batch in reader.batches():
        if stop.requested:
            break
        count += batch.count
        for index, record in enumerate(batch.records()):
            _print(record, str(batch.position(index)), as_json=as_json)
    sys.stdout.flush()
    return count


def _warn_of_skipped(reader: Reader) -> None:
    for passed in reader.skipped:
        typer.secho(f"skipped: bytes {passed.start} to {passed.end} of {printable(passed.path)}", err=True)


def _print(record: bytes, position: str, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"position": position, "record": record.decode(errors="surrogateescape")})
        sys.stdout.buffer.write(text.encode() + b"\n")
    elif sys.stdout.isatty():
        sys.stdout.buffer.write(printable(record.decode(errors="backslashreplace")).encode() + b"\n")
    else:
        sys.stdout.buffer.write(record + b"\n")


def info(directory: str) -> Answer:
    """Return what the log contains, without reading all of it."""
    return _answer(directory, _log_in(directory).info())


def verify(directory: str) -> Answer:
    """Read the whole log; `DamagedState` at the first damage."""
    return _answer(directory, _log_in(directory).verify(), headline="verified: every record is right")


def repair(directory: str) -> Answer:
    """Cut the log after the last valid record, and keep what is cut."""
    copies = _log_in(directory).repair()

    def show(out: Console) -> None:
        for copy in copies:
            out.print(f"cut, and kept as {copy}")
        if not copies:
            out.print("nothing had to be repaired")

    return Answer({"ok": True, "path": directory, "copies": copies}, show)


def _log_in(directory: str) -> Log:
    """Return the log in a directory; raises what `check_directory` raises if there is none."""
    check_directory(*locate(directory, name="DIR"))
    return Log(directory)


def _answer(directory: str, info: Info, *, headline: str = "") -> Answer:
    facts = {"ok": True, "path": directory} | asdict(info) | {"records": info.records}
    facts |= {"start": str(info.start), "end": str(info.end)}

    def show(out: Console) -> None:
        if headline:
            out.print(headline)
        out.print(f"{counted(info.records, 'record')}, from {info.start} to {info.end}")
        segments = f"{counted(len(info.segments), 'segment')}, {format_size(info.size)}"
        out.print(f"{segments}, written by {counted(info.epoch, 'writer')}")
        if info.torn:
            out.print(f"torn end: {format_size(info.torn)} of a write that was not acknowledged; harmless")

    return Answer(facts, show)
