"""What other readers find in the output of a case of `pairs`, compared with its input, and with what `verify` and `status` say."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections import Counter
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import fastavro
import polars as pl
import zstandard
from pyarrow import orc

from tests.soak.pairfiles import DIRECTORIES, Files, Row
from tests.support import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.soak.pairs import Case

_STATE = "_penstock"


class Proof:
    """The output `dst` of a case, whose last run had the options `changed` besides; `key`: a file with the key of encrypted files."""

    def __init__(self, case: Case, files: Files, dst: Path, changed: dict[str, str], key: Path) -> None:
        self.case = case
        self.files = files
        self.dst = dst
        self.changed = changed
        self.key = key

    def prove(self) -> None:
        """Compare each row, and the file that it is in."""
        rows = {row["id"]: row for row in self.expected}
        counts, found = Counter(row["id"] for row in self.expected), list(self._found())
        there = Counter(row["id"] for row in found)
        assert there == counts, f"missing {counts - there}, too many {there - counts}"
        for row in found:
            self._compare(row, rows[row["id"]])
            if (
                not self.changed
                and "t" in rows[row["id"]]
                and self.case.format != "text"
                and self.case.get("to") != "text"
            ):
                self._compare_place(row, rows[row["id"]])
        if self.case.get("source.cleanSource"):
            left = [made.path for made in self.files.read if made.path.exists()]
            assert not left, f"not cleaned: {left}"

    def copied(self, copied: Path) -> None:
        """Compare with what an ingest has that reads each published file as one record."""
        rows = [row for path in copied.glob("*.parquet") for row in pl.read_parquet(path).to_dicts()]
        counts, there = Counter(str(path) for path in self._finished), Counter(row["_meta"]["path"] for row in rows)
        assert there == counts, f"not copied {counts - there}, copied too often {there - counts}"
        sizes = {str(path): path.stat().st_size for path in self._finished}
        assert all(row["value"] and row["_meta"]["size"] == sizes[row["_meta"]["path"]] for row in rows)

    def status(self, said: dict[str, Any]) -> None:
        """Compare with what `status` says."""
        (sink,) = said["sinks"]
        assert sink["rows"] == len(self.expected), f"status says {sink['rows']} rows, there are {len(self.expected)}"
        assert not sink["open"], f"open: {sink['open']}"
        if not self.case.on("sink.growing"):
            assert sink["files"] == len(self._finished), f"status says {sink['files']} files: {self._finished}"
        bad = sum(made.bad * made.times for made in self.files.read)
        files = sum(made.is_bad * made.times for made in self.files.read)
        aside = sink["aside"]
        assert (aside["records"], aside["files"]) == (bad, files), f"status says {aside}, there are {bad} and {files}"
        if bad + files and self.case.get("source.quarantineLocation"):
            assert aside["path"].startswith(str(self.files.room / "aside")), aside
        if self.case.get("sink.sinkId"):
            assert sink["sink"] == self.case.get("sink.sinkId")

    def verified(self, said: dict[str, Any]) -> None:
        """Compare with what `verify` says."""
        assert said["ok"], said
        if not self.case.on("sink.growing"):
            assert sum(sink["rows"] for sink in said["output"]["sinks"]) == len(self.expected), said["output"]

    # -- what is expected --------------------------------------------------------------------------------------------

    @cached_property
    def expected(self) -> list[Row]:
        """The rows that should be there, as often as they should be."""
        rows = []
        for made in self.files.read:
            more = {"_path": made.path.name}
            if self.files.columns_of_directories and self.case.format != "text":
                more["p"] = made.path.parent.name[2:]
            rows += [row | more for row in made.rows] * made.times
        if self.case.get("sql") != "where":
            return rows
        return [row for row in rows if ("3|" not in row["value"] if self.case.format == "text" else row["id"] % 3)]

    @cached_property
    def _finished(self) -> list[Path]:
        paths = [path for path in sorted(self.dst.rglob("*")) if path.is_file() and path.name[0] not in "._"]
        return [path for path in paths if _STATE not in path.relative_to(self.dst).parts]

    def _columns(self) -> list[str]:
        """Return the columns of the output, in their order."""
        case = self.case
        columns = (
            ["value"] if case.format == "text" else ["id", "k", "t", "v"] + ["p"] * self.files.columns_of_directories
        )
        columns += ["_rescued"] * bool(case.get("source.rescuedDataColumn")) + ["n"] * case.on("sql", "computed")
        if case.on("sink.dropBucketColumns"):
            template = f"{case.get('sink.bucketBy')}{case.get('sink.fileName')}"
            columns = [name for name in columns if not re.search(rf"\{{{name}\b", template)]
        return columns

    # -- what is there -----------------------------------------------------------------------------------------------

    def _found(self) -> Iterator[Row]:
        readers: dict[str, Callable[[bytes], list[Row]]] = {
            "text": lambda data: [{"value": line} for line in data.decode().split("\n")[:-1]],
            "json": lambda data: [json.loads(line) for line in data.decode().split("\n")[:-1]],
            "csv": self._csv,
            "parquet": lambda data: pl.read_parquet(io.BytesIO(data)).to_dicts(),
            "orc": lambda data: orc.read_table(io.BytesIO(data)).to_pylist(),
            "avro": lambda data: list(fastavro.reader(io.BytesIO(data))),  # type: ignore[arg-type]
        }
        limit = self.case.get("sink.rollRows")
        if limit:  # parts of before a change have the other limit
            limit = max(int(limit), int(self.changed.get("rollRows", limit)))
        for path in self._finished:
            rows = readers[self.case.get("to")](self._content(path))
            assert not limit or len(rows) <= int(limit), f"{path} has {len(rows)} rows, rollRows={limit}"
            for row in rows:
                row["id"] = int(row["id"] if "id" in row else row["value"].split("|")[0])
                yield row | {"_file": path.name, "_bucket": "/".join(path.relative_to(self.dst).parts[:-1])}

    def _content(self, path: Path) -> bytes:
        """Return what the file holds, decrypted and decompressed."""
        data, name = path.read_bytes(), path.name
        assert name.endswith(".age") or not self.case.get("sink.encryptTo"), f"not encrypted: {path}"
        if name.endswith(".age"):
            data, name = keys.opened(data), name[:-4]
        if name.endswith(".gz"):
            return gzip.decompress(data)
        if name.endswith(".zst"):
            return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        return data

    def _csv(self, data: bytes) -> list[Row]:
        case, escape = self.case, self.case.get("sink.escape")
        quote = case.get("sink.quote") or '"'
        text = io.StringIO(data.decode(), newline="")
        lines = list(csv.reader(text, quotechar=quote, doublequote=escape is None, escapechar=escape))
        columns = self._columns()
        if case.on("sink.header"):
            columns = lines.pop(0)
        means = {case.get("sink.nullValue"): None, case.get("sink.emptyValue") or "": ""}
        return [dict(zip(columns, [means.get(cell, cell) for cell in line], strict=True)) for line in lines]

    # -- one row -----------------------------------------------------------------------------------------------------

    def _compare(self, row: Row, wanted: Row) -> None:
        """Compare the values of a row."""
        case = self.case
        has_null = case.get("to") != "csv" or case.get("sink.nullValue")
        for name in row.keys() & {"k", "v", "p"}:
            values = row[name], wanted[name]
            assert values[0] == values[1] or (not has_null and not any(values)), (name, row, wanted)
        if "t" in row:
            assert _instant(row["t"]) == wanted["t"], (row, wanted)
        if "value" in row:
            shown = wanted.get("value") or f"{wanted['id']}|{wanted['k']}|{wanted['v'] or ''}"
            assert row["value"] == shown, (row, wanted)
        if "n" in row:
            assert int(row["n"]) == (len(wanted["value"]) if case.format == "text" else wanted["id"] * 2), (row, wanted)
        if case.get("source.rescuedDataColumn") and case.get("to") != "text":
            assert bool(row.get("_rescued")) == bool(wanted.get("_rescued")), ("rescued", row, wanted)
        if "_meta" in row:
            name = str(row["_meta"]["path"]).rpartition("/")[2]
            assert name.lstrip("9f") == wanted["_path"].lstrip("9f"), (name, wanted)

    def _compare_place(self, row: Row, wanted: Row) -> None:
        """Compare the directory and the file that the row is in."""
        case = self.case
        at = wanted["t"].astimezone(ZoneInfo(case.get("sink.timeZone") or "UTC"))
        key, template = DIRECTORIES[wanted["k"]], case.get("sink.bucketBy") or ""
        bucket = re.sub(r"\{t:([^}]*)\}", lambda match: at.strftime(match[1]), template).replace("{k}", key)
        assert row["_bucket"] == bucket, (row, bucket)
        if "{k}" in (case.get("sink.fileName") or ""):
            assert key.lstrip("_.") in row["_file"], (row, key)
        dropped = case.on("sink.dropBucketColumns") and "{k}" in f"{template}{case.get('sink.fileName')}"
        assert not (dropped and "k" in row), f"not dropped: {row}"


def _instant(value: Any) -> datetime:
    """Return a time as other readers give it."""
    found: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found
