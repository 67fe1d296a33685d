"""What is set aside instead of read: the lines about it, who takes them, and how much there was.

If the user has asked for it (`Policy`), a record that cannot be parsed, a file that cannot be read, and a range of a
file that is no longer there are set aside. The reader describes each on a line (`LINES`), with everything that is
needed to read it later: the bytes of a record, the version of a file. The writer takes the lines (`Aside`), stages them
beside the rows of the same task, and lets one record of the ledger decide both. So a line is there exactly once, as a
row is.

A name or a record that is not UTF-8 is stored as Base64, under another key (`path_base64`, `base64`), so a line is
exact.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadFile, BadRecord, FileChanged
from penstock.formats.format import ReadFormat, WriteFormat
from penstock.formats.trials import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

_UTC_MICROS = pa.timestamp("us", tz="UTC")
_COPY = pa.struct([("path", pa.string()), ("size", pa.int64()), ("modified_ns", pa.int64())])
LINES = pa.schema(
    [
        ("path", pa.string()),
        ("path_base64", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("modified_ns", pa.int64()),
        ("bytes", pa.string()),
        ("base64", pa.string()),
        ("reason", pa.string()),
        ("code", pa.string()),
        ("columns", pa.list_(pa.string())),
        ("batch", pa.int64()),
        ("time", _UTC_MICROS),
        ("copy", _COPY),
    ]
)
LINES_WRITTEN, LINES_READ = WriteFormat("json", LINES), ReadFormat("json", LINES)
RECORD, FILE, CHANGE = BadRecord.code, BadFile.code, FileChanged.code
RETRIED = "retried"  # instead of a code: the record or file was set aside, and has been taken in since
_COUNTS = {RECORD: "records", FILE: "files", CHANGE: "changes", RETRIED: "retried"}


class BeginAgain(Exception):
    """Rows that were yielded must be dropped, and requested again: they came from a file that turned out to be bad."""


@dataclass(frozen=True)
class Policy:
    """Which things are set aside: records that cannot be parsed, records not in the file's encoding, bad files, changed files."""

    records: bool = False
    text: bool = False
    files: bool = False
    changes: bool = False

    @property
    def any(self) -> bool:
        """Whether anything is set aside."""
        return self.records or self.text or self.files or self.changes


@dataclass(frozen=True)
class Tally:
    """How much was set aside: records, files, ranges of files that changed; and the finished files of lines about them.

    `retried`: how much of this was mended and taken in since; there is another line about each of these.
    """

    records: int = 0
    files: int = 0
    changes: int = 0
    parts: int = 0
    bytes: int = 0
    retried: int = 0

    @property
    def total(self) -> int:
        """How much was set aside in all."""
        return self.records + self.files + self.changes

    @property
    def lines(self) -> int:
        """How many lines there are about all of it."""
        return self.total + self.retried

    def plus(self, other: Tally) -> Tally:
        """Return the sum of both."""
        return Tally(*(mine + others for mine, others in zip(vars(self).values(), vars(other).values(), strict=True)))

    def finished(self, sizes: Sequence[int]) -> Tally:
        """Return the same tally plus finished files of these sizes."""
        return self.plus(Tally(parts=len(sizes), bytes=sum(sizes)))

    def to_json(self) -> dict[str, int]:
        """Return the counts in their stored form, without those that are 0."""
        return {name: count for name, count in vars(self).items() if count}

    @staticmethod
    def from_json(form: Mapping[str, Any]) -> Tally:
        """Return the counts from their stored form. Raises `TypeError` for an invalid one."""
        tally = Tally(**form)
        if not all(isinstance(count, int) and count >= 0 for count in vars(tally).values()):
            msg = f"counts that are none: {form!r}"
            raise TypeError(msg)
        return tally


class Aside:
    """Takes what one task sets aside. Lines go on to the caller of `begin`: at once or, if another thread set them aside, on request.

    `restarts`: at a `BeginAgain` the consumer drops its rows and requests them again. That happens once: the second
    time, nothing is yielded of a file before it was read to its end.
    """

    def __init__(self, *, restarts: bool = False) -> None:
        self.restarts = restarts
        self.tally = Tally()
        self._taker: Callable[[pa.RecordBatch], None] | None = None
        self._thread = 0
        self._waiting: list[pa.RecordBatch] = []

    def begin(self, taker: Callable[[pa.RecordBatch], None]) -> None:
        """Begin again: from now on `taker` is called with all lines, in the thread that calls `begin`."""
        self.tally, self._taker, self._waiting = Tally(), taker, []
        self._thread = threading.get_ident()

    def take(self, lines: pa.RecordBatch) -> None:
        """Set aside what the lines describe."""
        codes = pc.value_counts(lines.column("code")).to_pylist()
        self.tally = self.tally.plus(Tally(**{_COUNTS[count["values"]]: count["counts"] for count in codes}))
        if self._taker is not None and threading.get_ident() == self._thread:
            self._taker(lines)
        else:
            self._waiting.append(lines)

    @property
    def waits(self) -> bool:
        """Whether lines wait to be handed on."""
        return bool(self._waiting)

    def handed_on(self) -> list[pa.RecordBatch]:
        """Return the waiting lines, for a caller that has not called `begin`."""
        lines, self._waiting = self._waiting, []
        return lines

    def hand_on(self) -> None:
        """Pass on the lines that wait for the thread that called `begin`."""
        while self._waiting and self._taker is not None:
            self._taker(self._waiting.pop(0))


def about_records(
    path: str,
    offsets: npt.NDArray[np.int64],
    records: pa.Array,
    reasons: Sequence[str],
    *,
    modified_ns: int = 0,
    code: str = RECORD,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return lines about records of the file at `path`: their offsets in it, their bytes (binary), and why they cannot be read.

    `modified_ns` belongs to the version of the file; `columns` are those of its header, without which its records have
    no meaning.
    """
    sizes = pc.binary_length(records).cast(pa.int64())
    text, other = _told(records)
    modified = pa.repeat(pa.scalar(modified_ns, pa.int64()), len(records))
    values = {
        "offset": pa.array(offsets, pa.int64()),
        "size": sizes,
        "modified_ns": modified,
        "bytes": text,
        "base64": other,
        "reason": pa.array(reasons, pa.string()),
    }
    if columns is not None:
        values["columns"] = pa.repeat(pa.scalar(list(columns), LINES.field("columns").type), len(records))
    return _lines(path, len(records), values, code)


def about_file(
    path: str,
    *,
    offset: int,
    size: int,
    modified_ns: int,
    reason: str,
    code: str,
    copy: Mapping[str, Any] | None = None,
) -> pa.RecordBatch:
    """Return the line about a file, or about `size` bytes of it from `offset` on. `modified_ns` belongs to the version of the file.

    `copy` describes the file that was taken in instead: its version, and its path, which is only shown, never opened.
    """
    numbers = {"offset": offset, "size": size, "modified_ns": modified_ns}
    columns = {name: pa.array([number], pa.int64()) for name, number in numbers.items()}
    columns["copy"] = pa.array([copy], _COPY)
    return _lines(path, 1, columns | {"reason": pa.array([_utf8(reason)], pa.string())}, code)


def copied(path: str, size: int, modified_ns: int) -> dict[str, Any]:
    """Return how a line describes a file that was taken in instead of another."""
    return {"path": path.encode("utf-8", "backslashreplace").decode(), "size": size, "modified_ns": modified_ns}


def stamped(lines: pa.RecordBatch, batch: int, time_ns: int) -> pa.RecordBatch:
    """Return the lines with the number and the time of the batch that sets their records and files aside."""
    stamp = {"batch": pa.scalar(batch, pa.int64()), "time": pa.scalar(time_ns // 1000, _UTC_MICROS)}
    for name, value in stamp.items():
        lines = lines.set_column(
            lines.schema.get_field_index(name), LINES.field(name), pa.repeat(value, lines.num_rows)
        )
    return lines


def path_bytes(path: str) -> bytes:
    """Return the bytes of a path as the file system returned it."""
    return path.encode("utf-8", "surrogateescape")


def path_of(line: Mapping[str, Any]) -> bytes:
    """Return the path that a line names."""
    import base64

    return base64.b64decode(line["path_base64"]) if line.get("path_base64") else str(line.get("path")).encode()


def record_bytes(lines: pa.RecordBatch) -> pa.Array:
    """Return the records' bytes that lines contain, null for a line without."""
    from penstock.formats.scalars import parse_base64

    other = lines.column("base64")
    text = lines.column("bytes").cast(pa.binary())
    return text if other.null_count == len(other) else pc.coalesce(parse_base64(other), text)


def _lines(path: str, count: int, columns: dict[str, pa.Array], code: str) -> pa.RecordBatch:
    text, other = _told(pa.array([path_bytes(path)], pa.binary()))
    columns |= {"path": pa.repeat(text[0], count), "path_base64": pa.repeat(other[0], count)}
    columns |= {"code": pa.repeat(pa.scalar(code), count)}
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in LINES]
    return pa.RecordBatch.from_arrays(arrays, schema=LINES)


def _told(data: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return bytes as text if they are UTF-8, and as Base64 if not; the other array is null there."""
    from penstock.formats.scalars import render

    try:
        return data.cast(pa.string()), pa.nulls(len(data), pa.string())
    except pa.ArrowInvalid:
        others = refused(len(data), lambda low, high: _refusal(data.slice(low, high - low)))
    index = pa.array([place for place, _ in others])
    mask = pc.is_in(pa.array(range(len(data))), index)
    text = pc.if_else(mask, None, data).cast(pa.string())
    return text, render(pc.if_else(mask, data, None), "base64").cast(pa.string())


def _refusal(data: pa.Array) -> ValueError | None:
    try:
        data.cast(pa.string())
    except pa.ArrowInvalid as error:
        return ValueError(str(error))
    return None


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
