"""Reads records again that were set aside and may be mended by now, in the way that the ingest noted.

They are read under the paths of their files, from files in memory that hold nothing else. So directories name columns, a
transform is applied and a dialect is used as always. The columns of the file's header are on the records' lines in the
quarantine. A record is text in UTF-8, whatever the encoding of its file, because it was mended by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats.aside import RETRIED, Aside, Policy, about_records, path_of
from penstock.formats.codecs import codec_of
from penstock.formats.encryption import is_encrypted
from penstock.formats.families import RecordFormat
from penstock.source import configured
from penstock.source.cursor import FileVersion, Split
from penstock.storage import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.formats.account import Account
    from penstock.ingestion.stage import Stage
    from penstock.source.read import Reading

Version: TypeAlias = "tuple[bytes, int]"  # a version of a file: its path and its time
Header: TypeAlias = "tuple[str, ...]"
Files: TypeAlias = "Mapping[str, list[Key]]"
_NO_HEADER = "the order of its columns, which is in the header of its file and not on this line; put it into a file of its own in SRC"


class Key(NamedTuple):
    """The key of a record: the file's path, as bytes, the time of the file's version, and the offset at which the record begins."""

    path: bytes
    modified_ns: int
    offset: int


class Mended:
    """Records by their keys, as an ingest reads them; `headers` are the columns in the files' headers, by path and time of the version.

    Raises `OptionError` if a record cannot be read without its file.
    """

    def __init__(self, stage: Stage, records: Mapping[Key, bytes], headers: Mapping[Version, Header]) -> None:
        if not isinstance(stage.reading.form, RecordFormat):
            msg = f"a record cannot be read by itself, found format={stage.reading.format.name}; put it into a file of its own in SRC"
            raise OptionError(msg)
        self._stage = stage
        self._records = records
        self._headers = headers
        self._end = stage.reading.format.line_sep or b"\n"
        self._groups: dict[Header | None, dict[str, list[Key]]] = {}
        self._without: dict[Key, str] = {}
        for key in records:
            header = headers.get(key[:2])
            if header is None and stage.reading.format.csv.header:
                self._without[key] = _NO_HEADER
            else:
                self._groups.setdefault(header, {}).setdefault(self._name(key), []).append(key)

    def bad(self) -> dict[Key, str]:
        """Return which records still cannot be read, and why."""
        reasons = dict(self._without)
        for header, files in self._groups.items():
            aside = Aside()
            reading = replace(self._reading(header, files), policy=Policy(records=True, text=True), aside=aside)
            for _ in configured.rows(self._stage.options, reading, self._splits(files)):
                pass
            for lines in aside.handed_on():
                for line in lines.select(["path", "path_base64", "offset", "reason"]).to_pylist():
                    keys = files[_path(line).removeprefix(f"{reading.root}/")]
                    ends = np.cumsum([len(self._records[key]) + len(self._end) for key in keys])
                    reasons[keys[int(np.searchsorted(ends, line["offset"], side="right"))]] = str(line["reason"])
        return reasons

    def rows(self, account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the ingest makes of the records."""
        for header, files in self._groups.items():
            stage = replace(self._stage, reading=replace(self._reading(header, files), policy=Policy()))
            rows = stage.read(list(self._splits(files)), account, text=False, errors="fail")
            yield from (batch for batch in rows if isinstance(batch, pa.RecordBatch))

    def receipts(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines that say that the records are taken in."""
        versions: dict[tuple[bytes, int], list[Key]] = {}
        for key in self._records:
            versions.setdefault((key.path, key.modified_ns), []).append(key)
        for (path, modified_ns), keys in versions.items():
            offsets = np.array([key.offset for key in keys])
            data = pa.array([self._records[key] for key in keys], pa.binary())
            text, reasons = path.decode("utf-8", "surrogateescape"), ["taken in"] * len(keys)
            header = self._headers.get((path, modified_ns))
            yield about_records(text, offsets, data, reasons, modified_ns=modified_ns, code=RETRIED, columns=header)

    def _name(self, key: Key) -> str:
        """Return a path below the source for the records of a file, without a compression's ending."""
        path = key.path.decode("utf-8", "surrogateescape").removeprefix(f"{self._stage.reading.root}/")
        return f"{path}.mended" if codec_of(path) or is_encrypted(path) else path

    def _splits(self, files: Files) -> tuple[Split, ...]:
        sizes = {name: sum(len(self._records[key]) + len(self._end) for key in keys) for name, keys in files.items()}
        return tuple(Split(FileVersion(name, size, 0, ""), 0, size) for name, size in sizes.items())

    def _reading(self, header: Header | None, files: Files) -> Reading:
        reading = self._stage.reading
        held = {
            f"{reading.root}/{name}": MemoryFile(b"".join(self._records[key] + self._end for key in keys))
            for name, keys in files.items()
        }
        fmt = replace(reading.format, encoding="UTF-8", errors="fail")
        if header is not None:
            fmt = replace(fmt, csv=replace(fmt.csv, header=False), columns=header)
        return replace(reading, opens=held.__getitem__, format=fmt)


def header_of(line: Mapping[str, Any]) -> dict[Version, Header]:
    """Return the header that a line has of its file, by the version of the file; empty if it has none."""
    columns = line.get("columns")
    return {} if columns is None else {(path_of(line), line["modified_ns"] or 0): tuple(columns)}


def _path(line: dict[str, Any]) -> str:
    return path_of(line).decode("utf-8", "surrogateescape")
