"""The records of a round: made from its seed and their own names, so that a reader of one can tell what it must be."""

from __future__ import annotations

import gzip
import io
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import xxhash
from pyarrow import orc

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = ("id", "k", "v", "t")
DDL = "id string, k bigint, v double, t string"
SCHEMA = pa.schema([("id", pa.string()), ("k", pa.int64()), ("v", pa.float64()), ("t", pa.string())])
TEXT = pa.schema([("value", pa.string())])
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": name, "type": ["null", kind]}
        for name, kind in zip(COLUMNS, ("string", "long", "double", "string"), strict=True)
    ],
}
TABLES = ("parquet", "orc", "avro")  # compressed inside, if at all
BUCKETS = 5
_TEXTS = ("", None, "plain", 'a "quote"', "com,ma", "ünï 🚰", " blanks ", "back\\slash", "two\nlines", "=1+1", "null")
_ROWS_MAX = 800

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Records:
    """The contents of a round's files; `form` is what is read, `to` what is written. Text has one column, the rest four."""

    seed: int
    form: str
    to: str
    packed: bool = False
    drops_bucket: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the output."""
        if self.form == "text":
            return TEXT
        return SCHEMA.remove(SCHEMA.get_field_index("k")) if self.drops_bucket else SCHEMA

    def ids(self, file: int) -> Iterator[str]:
        """Yield the ids of the records of input file number `file`; some files have none."""
        rows = random.Random(f"{self.seed} {file}").randrange(_ROWS_MAX)  # noqa: S311 - repeatable
        return (f"{file:06}-{row:04}" for row in range(rows if rows > _ROWS_MAX // 20 else 0))

    def row(self, name: str) -> Row:
        """Return the row that the record of this id becomes in the output."""
        drawn = self._drawn(name)
        text = _TEXTS[drawn % len(_TEXTS)]
        k = drawn // 16 % BUCKETS
        if self.form == "text":
            return (f"{name}\t{k}\t{(text or '').replace(chr(10), ' ')}",)
        row = (name, k, drawn % 100_000 / 4, text and f"{text} {'x' * (drawn % 97)}")
        return row[:1] + row[2:] if self.drops_bucket else row

    def _drawn(self, name: str) -> int:
        return xxhash.xxh3_64_intdigest(f"{self.seed} {name}".encode())

    @staticmethod
    def id_of(row: Row) -> str:
        """Return the id of the record that an output row claims to be."""
        return str(row[0]).partition("\t")[0]

    def bucket_of(self, row: Row) -> str:
        """Return the value of the record's bucket."""
        return str(self._drawn(self.id_of(row)) // 16 % BUCKETS)

    def name(self, file: int) -> str:
        """Return the name of input file number `file`, below the source."""
        return f"{file % 3}/{file:06}.{self.form}{'.gz' if self.packed and self.form not in TABLES else ''}"

    def contents(self, file: int) -> bytes:
        """Return the bytes of input file number `file`."""
        rows = [Records(self.seed, self.form, self.to).row(name) for name in self.ids(file)]
        data = _WRITERS[self.form](rows)
        return gzip.compress(data, 1) if self.packed and self.form not in TABLES else data

    def read(self, name: str, data: bytes, *, growing: bool = False) -> list[Row]:
        """Return the rows of an output file. A growing file may end in the middle of a record. Raises if the file is torn."""
        for extension, codec in ((".gz", "gzip"), (".zst", "zstd")):
            if name.endswith(extension):
                data = pa.CompressedInputStream(pa.BufferReader(data), codec).read()
        if growing:
            data = data[: data.rfind(b"\n") + 1]
        if self.to in TABLES:
            table = _READERS[self.to](data, self.schema)
        elif not data:
            return []
        elif self.to != "csv" and not data.endswith(b"\n"):
            msg = "ends in the middle of a record"
            raise ValueError(msg)
        else:
            table = _READERS[self.to](data, self.schema)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _text(rows: list[Row]) -> bytes:
    return "".join(f"{value}\n" for (value,) in rows).encode()


def _json(rows: list[Row]) -> bytes:
    return "".join(json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows).encode()


def _csv(rows: list[Row]) -> bytes:
    quoted = ("" if text is None else '"' + text.replace('"', '""') + '"' for *_, text in rows)
    return "".join(f"{i},{k},{v},{text}\n" for (i, k, v, _), text in zip(rows, quoted, strict=True)).encode()


def _table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], SCHEMA)


def _parquet(rows: list[Row]) -> bytes:
    data = io.BytesIO()
    pq.write_table(_table(rows), data)
    return data.getvalue()


def _orc(rows: list[Row]) -> bytes:
    data = io.BytesIO()
    orc.write_table(_table(rows), data)
    return data.getvalue()


def _avro(rows: list[Row]) -> bytes:
    data = io.BytesIO()
    fastavro.writer(
        data, AVRO, [dict(zip(COLUMNS, row, strict=True)) for row in rows], codec="deflate", sync_interval=4000
    )
    return data.getvalue()


def _lines(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa.table({"value": data.decode().removesuffix("\n").split("\n")}, schema)


def _objects(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([json.loads(line) for line in data.decode().removesuffix("\n").split("\n")], schema)


def _fields(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa.csv.read_csv(
        io.BytesIO(data),
        pa.csv.ReadOptions(column_names=schema.names),
        pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pa.csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def _containers(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(fastavro.reader(io.BytesIO(data))), schema)


_WRITERS = {"text": _text, "json": _json, "csv": _csv, "parquet": _parquet, "orc": _orc, "avro": _avro}
_READERS = {
    "text": _lines,
    "json": _objects,
    "csv": _fields,
    "parquet": lambda data, _: pq.read_table(io.BytesIO(data)),
    "orc": lambda data, _: orc.read_table(io.BytesIO(data)),
    "avro": _containers,
}
