"""Records that were set aside, read again: what they are by now, with what the ingest noted of how it reads.

They are read where they were, as files of their own that hold nothing else, in memory: so directories name columns, a transform
is applied and a dialect is followed as ever. A record is text in UTF-8, whatever the encoding of its file: it was mended by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from penstock.errors import NotThere, OptionError
from penstock.formats.aside import RETRIED, Aside, Policy, about_records
from penstock.formats.codecs import codec_of
from penstock.formats.encryption import is_encrypted
from penstock.formats.families import RecordFormat
from penstock.source import configured
from penstock.source.cursor import FileVersion, Split
from penstock.storage import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.formats.account import Account
    from penstock.ingestion.stage import Stage
    from penstock.source.read import Reading
    from penstock.storage import Storage


class Key(NamedTuple):
    """Which record it is: the file's path, as bytes, the time of its version, and where in it the record begins."""

    path: bytes
    modified_ns: int
    offset: int


class Mended:
    """Records by their keys, as an ingest reads them. Raises `OptionError` where they mean nothing without their file."""

    def __init__(self, stage: Stage, records: Mapping[Key, bytes]) -> None:
        fmt = stage.reading.format
        if not isinstance(stage.reading.form, RecordFormat) or fmt.csv.header:
            reason = "header=true: the order of its columns is in the file" if fmt.csv.header else f"format={fmt.name}"
            msg = f"a record cannot be read by itself, found {reason}; put it into a file of its own in SRC"
            raise OptionError(msg)
        self._stage = stage
        self._records = records
        self._end = fmt.line_sep or b"\n"
        self._files: dict[str, list[Key]] = {}
        for key in records:
            self._files.setdefault(self._name(key), []).append(key)

    def bad(self) -> dict[Key, str]:
        """Return which records still cannot be read, and why."""
        aside, reasons = Aside(), {}
        reading = replace(self._reading(), policy=Policy(records=True, text=True), aside=aside)
        for _ in configured.rows(self._stage.options, reading, self._splits()):
            pass
        for lines in aside.handed_on():
            for line in lines.select(["path", "path_base64", "offset", "reason"]).to_pylist():
                keys = self._files[_path(line).removeprefix(f"{reading.root}/")]
                ends = np.cumsum([len(self._records[key]) + len(self._end) for key in keys])
                reasons[keys[int(np.searchsorted(ends, line["offset"], side="right"))]] = str(line["reason"])
        return reasons

    def rows(self, account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the ingest makes of the records."""
        stage = replace(self._stage, reading=replace(self._reading(), policy=Policy()))
        rows = stage.read(list(self._splits()), account, text=False, errors="fail")
        return (batch for batch in rows if isinstance(batch, pa.RecordBatch))

    def receipts(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines that say that the records are taken in."""
        versions: dict[tuple[bytes, int], list[Key]] = {}
        for key in self._records:
            versions.setdefault((key.path, key.modified_ns), []).append(key)
        for (path, modified_ns), keys in versions.items():
            offsets = np.array([key.offset for key in keys])
            data = pa.array([self._records[key] for key in keys], pa.binary())
            text, reasons = path.decode("utf-8", "surrogateescape"), ["taken in"] * len(keys)
            yield about_records(text, offsets, data, reasons, modified_ns=modified_ns, code=RETRIED)

    def _name(self, key: Key) -> str:
        """Return a path below the source for the records of a file: one that says nothing of a compression."""
        path = key.path.decode("utf-8", "surrogateescape").removeprefix(f"{self._stage.reading.root}/")
        return f"{path}.mended" if codec_of(path) or is_encrypted(path) else path

    def _splits(self) -> tuple[Split, ...]:
        sizes = {
            name: sum(len(self._records[key]) + len(self._end) for key in keys) for name, keys in self._files.items()
        }
        return tuple(Split(FileVersion(name, size, 0, ""), 0, size) for name, size in sizes.items())

    def _reading(self) -> Reading:
        reading, files = self._stage.reading, {}
        for name, keys in self._files.items():
            files[f"{reading.root}/{name}"] = b"".join(self._records[key] + self._end for key in keys)
        storage = cast("Storage", _Held(files))
        return replace(reading, storage=storage, format=replace(reading.format, encoding="UTF-8", errors="fail"))


def _path(line: dict[str, Any]) -> str:
    from penstock.formats.aside import path_of

    return path_of(line).decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class _Held:
    """Files in memory: as much of a storage as it takes to read them."""

    files: Mapping[str, bytes]
    tags_contents = False

    def open(self, path: str) -> _HeldFile:
        if path not in self.files:
            raise NotThere(path)
        return _HeldFile(path, self.files[path])


@dataclass(frozen=True)
class _HeldFile:
    path: str
    data: bytes

    def info(self) -> Entry:
        return Entry(self.path, is_directory=False, size=len(self.data), modified_ns=0, identity="")

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def close(self) -> None:
        """Do nothing: it is memory."""

    def __enter__(self) -> _HeldFile:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""
