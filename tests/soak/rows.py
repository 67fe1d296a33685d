"""Rows of every type, in every way in which a part is written, and what other readers find in the files.

A seed is a case: columns and their types, values with the odd ones of each type, format and compression, when files are
closed, how much is kept in memory, how many tasks and batches, and after which batches another driver takes over, with other
options. Then programs that know nothing of Penstock read each file.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import orc

from penstock import clock
from penstock.formats.schema import to_arrow
from penstock.options import SINK, parse
from penstock.query.batch import Batch
from penstock.sink import byteparts, parts, tableparts, writer
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from penstock.testing import FakeClock
from penstock.verify import verify
from tests.support.extras import WITH_AVRO, avro_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Any  # a type in Spark's JSON

_NAMES = ("a", "B", "c.d", "ü", "x y", "select", 'q"q', "-", "_e", "Ω", "f,g", "tab\t", "{h}", "`i`", "j=k", "0", "%25")
_WORDS = (
    "",
    " ",
    "a",
    "ä\0€",
    '"',
    "\\",
    "\\n",
    "\r\n",
    "\n",
    ",",
    "null",
    "NULL",
    "NaN",
    "😀",
    "'",
    "\u2028",
    '5" pipe, x',
    "#",
    "\t",
)
_EPOCH = datetime(1970, 1, 1)
_DAYS = (
    date(1, 1, 1),
    date(1582, 10, 4),
    date(1582, 10, 15),
    date(1969, 12, 31),
    date(2026, 2, 28),
    date(9999, 12, 31),
)
_TIMES = (
    datetime(1, 1, 1, 0, 0, 0, 1),
    datetime(1883, 11, 18, 12, 3, 57, 999999),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2026, 3, 29, 2, 30),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
)
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    1e20,
    1e-7,
    0.1,
    3.4028234663852886e38,
    1e-45,
    float("nan"),
    float("inf"),
    float("-inf"),
)
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_SCALARS = (
    *_BITS,
    "boolean",
    "string",
    "float",
    "double",
    "decimal(1,1)",
    "decimal(9,0)",
    "decimal(18,3)",
    "decimal(38,38)",
)
_WITH_TIMES = (*_SCALARS, "date", "timestamp", "timestamp_ntz")
_PARQUET_ONLY = ("binary", "void", "time(0)", "time(6)", "interval day to second", "interval hour")
_ONLY = {
    "parquet": _PARQUET_ONLY,
    "orc": ("binary",),
    "avro": ("binary",),
}
_TABLES = tuple(_ONLY)
_DUCKDB = {
    "byte": "tinyint",
    "short": "smallint",
    "long": "bigint",
    "string": "varchar",
    "timestamp_ntz": "timestamp",
    "timestamp": "timestamptz",
}
SPARK_CONFIGURATION = {
    "spark.sql.timeType.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
}
_ROWS_MAX = 30
_EXACT = Context(prec=60)
_NESTED = 0.3
_HOMES = {
    "_STAGE_BYTES": parts,
    "_BUFFER_BYTES": writer,
    "_ROW_GROUP_BYTES": tableparts,
    "_MEMBER_BYTES": byteparts,
    "_OWN_FILES_MAX": parts,
    "_SEGMENTS_MAX": parts,
}
_DEPTH = 3


@dataclass
class Step:
    """One batch: the rows of each task, the options of the sink, and the driver."""

    tasks: list[list[pa.RecordBatch]]
    options: dict[str, str]
    owner: str
    pause: float


class Case:
    """All random choices, drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = chance = random.Random(f"{seed} rows")  # noqa: S311 - repeatable
        self.format = chance.choice(("parquet", "parquet", "orc", *WITH_AVRO, "json", "csv", "text"))
        self.compression = chance.choice(("none", "gzip", "zstd", *(["snappy"] if self.format in _TABLES else [])))
        self.schema: Spark = self._schema()
        self.arrow = to_arrow(json.dumps(self.schema))
        many = self.format != "text" and chance.random() < 0.1  # a directory for each row
        self.csv = {name: value for name, value in (("header", "true"), ("escape", "\\")) if chance.random() < 0.3}
        self.fixed = (self.csv if self.format == "csv" else {}) | ({"bucketBy": "{id}"} if many else {})
        self.memory = {
            "_STAGE_BYTES": chance.choice((1, 300, 4 << 20)),
            "_BUFFER_BYTES": chance.choice((1, 2000, 64 << 20)),
            "_ROW_GROUP_BYTES": chance.choice((1, 700, 32 << 20)),
            "_MEMBER_BYTES": chance.choice((1, 100, 1 << 20)),
            "_OWN_FILES_MAX": chance.choice((0, 1, 64)),
            "_SEGMENTS_MAX": chance.choice((1, 2, 16)),
        }
        self.expected: Counter[str] = Counter()
        self.count = 0
        self._rows = 0
        self.steps = [self._step(number) for number in range(chance.randint(1, 6))]

    def __str__(self) -> str:
        steps = "\n".join(
            f"  {step.owner} {[[batch.num_rows for batch in task] for task in step.tasks]} {step.options}"
            for step in self.steps
        )
        return (
            f"case {self.seed}: {self.format} {self.compression} {self.fixed} {self.memory}\n"
            f"  {json.dumps(self.schema['fields'])}\n{steps}"
        )

    def run(self, directory: Path, spark: SparkSession | None = None) -> None:
        """Write all rows, and let every reader read them; `AssertionError` if one finds anything other than what was written."""
        out = directory / "out"
        with ExitStack() as stack:
            stack.enter_context(clock.use(FakeClock()))
            for name, value in self.memory.items():
                stack.enter_context(patch.object(_HOMES[name], name, value))
            stack.enter_context(patch.object(tableparts.ArrowPart, "stage_bytes", self.memory["_ROW_GROUP_BYTES"]))
            stack.enter_context(patch.object(byteparts.BytePart, "stage_bytes", self.memory["_STAGE_BYTES"]))
            self._write(out)
            assert verify(str(out)).ok
        files = [path for path in sorted(out.rglob("*.*")) if not path.relative_to(out).parts[0].startswith("_")]
        for reader, seen in self._readers(files, spark):
            found, expected = Counter(shown(seen)), self.expected
            if (reader, self.format) == (
                "Spark",
                "orc",
            ):  # this reader takes a column of 0.0 and -0.0, in its own files too, for the first of the two
                found, expected = _without_signs_of_zeros(found), _without_signs_of_zeros(expected)
            assert found == expected, f"{reader} reads {_difference(found, expected)}"

    def _write(self, out: Path) -> None:
        for number, step in enumerate(self.steps):
            sink = self._sink(out, step.options)
            batch = Batch("q", number)
            begun = sink.begin(step.owner, batch)
            results = [
                sink.write(begun, "q", number, writer, self.arrow, iter(task)) for writer, task in enumerate(step.tasks)
            ]
            sink.commit(batch, results)
            clock.sleep(step.pause)
            sink.roll(step.owner)
        self._sink(out, {}).finish()

    def _sink(self, out: Path, options: dict[str, str]) -> Sink:
        given = {"path": str(out), "format": self.format, "compression": self.compression} | options
        given |= self.fixed
        sink = Sink(LocalStorage(), str(out), parse(SINK, given, what="sink"), "s")
        sink.layout.check(self.arrow)
        return sink

    # -- what is drawn -----------------------------------------------------------------------------------------------

    def _schema(self) -> Spark:
        if self.format == "text":
            return {"type": "struct", "fields": [_field("value", "string", nullable=False)]}
        names = self._chance.sample(self._names, self._chance.randint(1, 6))
        fields = [_field(name, self._type(_DEPTH), nullable=self._chance.random() < 0.8) for name in names]
        schema = {"type": "struct", "fields": [_field("id", "long", nullable=False), *map(_nullable_void, fields)]}
        # Structs in structs are refused, because Arrow writes other rows than those given.
        return self._schema() if self.format == "orc" and json.dumps(schema).count('"struct"') > 2 else schema

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(f"c{index}" for index in range(8)) if self.format == "avro" else _NAMES

    def _type(self, depth: int) -> Spark:
        if self.format == "csv":
            return self._chance.choice(_WITH_TIMES)
        if depth == 0 or self._chance.random() > _NESTED:
            return self._chance.choice(_WITH_TIMES + _ONLY.get(self.format, ()))
        kind = self._chance.choice(("struct", "array", "map"))
        null = self._chance.random() < 0.7
        if kind == "array":
            inner = self._type(depth - 1)
            return {"type": "array", "elementType": inner, "containsNull": null or inner == "void"}
        if kind == "map":
            inner = self._type(depth - 1)
            key = (
                "string"
                if self.format in {"json", "avro"}
                else self._chance.choice(("string", "long", "date", "boolean"))
            )
            return {"type": "map", "keyType": key, "valueType": inner, "valueContainsNull": null or inner == "void"}
        names = self._chance.sample(self._names, self._chance.randint(1, 3))
        fields = [_field(name, self._type(depth - 1), nullable=self._chance.random() < 0.7) for name in names]
        return {"type": "struct", "fields": list(map(_nullable_void, fields))}

    def _step(self, number: int) -> Step:
        chance = self._chance
        tasks = [[self._batch() for _ in range(chance.randint(0, 3))] for _ in range(chance.randint(1, 3))]
        rolling = {
            "rollRows": ("1", "3", "20"),
            "rollSize": ("1k", "10k"),
            "rollBatches": ("1", "2"),
            "rollInterval": ("1s", "1m"),
            "rollInactivity": ("1s", "1m"),
            "mergeBelow": ("1", "1k", "1m"),
        }
        options = {name: chance.choice(values) for name, values in rolling.items() if chance.random() < 0.25}
        return Step(tasks, options, f"driver {number // chance.randint(1, 3)}", chance.choice((0, 0.1, 2, 100)))

    def _batch(self) -> pa.RecordBatch:
        """Return rows as a slice of more rows, as Spark never gives them but Arrow may; the rows of the slice are expected."""
        chance = self._chance
        count, before = chance.randint(0, _ROWS_MAX), chance.randint(0, 2)
        rows = [self._row() for _ in range(before + count + chance.randint(0, 2))]
        columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(self.arrow)]
        taken = rows[before : before + count]
        self.count += count
        self.expected.update(
            shown(
                [_plain(value, f["type"]) for value, f in zip(row, self.schema["fields"], strict=True)] for row in taken
            )
        )
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow).slice(before, count)

    def _row(self) -> list[Any]:
        self._rows += 1
        row = [self._value(field["type"], null=field["nullable"]) for field in self.schema["fields"]]
        if self.format == "text":
            return [str(row[0]).replace("\n", " ").replace("\r", " ")]
        return [self._rows, *row[1:]]

    def _value(self, kind: Spark, *, null: bool) -> Any:
        chance = self._chance
        if kind == "void" or (null and chance.random() < 0.2):
            return None
        if isinstance(kind, str):
            return self._scalar(kind)
        if kind["type"] == "struct":
            return {f["name"]: self._value(f["type"], null=f["nullable"]) for f in kind["fields"]}
        count = chance.choice((0, 1, 1, 2, 5))
        if kind["type"] == "array":
            return [self._value(kind["elementType"], null=kind["containsNull"]) for _ in range(count)]
        keys = {self._value(kind["keyType"], null=False) for _ in range(count)}
        return [(key, self._value(kind["valueType"], null=kind["valueContainsNull"])) for key in sorted(keys)]

    def _scalar(self, kind: str) -> Any:
        chance = self._chance
        if kind in _BITS:
            most = 1 << (_BITS[kind] - 1)
            return chance.choice((0, 1, -1, most - 1, -most, chance.randrange(-most, most)))
        if kind in {"float", "double"}:
            number = chance.choice((*_FLOATS, chance.uniform(-1e6, 1e6)))
            return float(np.float32(number)) if kind == "float" else number
        if kind.startswith("decimal"):
            digits, scale = map(int, kind[8:-1].split(","))
            whole = chance.choice((0, 1, 10**digits - 1, chance.randrange(10**digits)))
            return Decimal(whole * chance.choice((1, -1))).scaleb(-scale, _EXACT)
        if kind == "string":
            return "".join(chance.choice(_WORDS) for _ in range(chance.randint(0, 3)))[:9]
        # Arrow reads ORC's times in nanoseconds, and writes fractions before 1970 differently from all others.
        held = [at for at in _TIMES if 1677 < at.year < 2262 and (at.year >= 1970 or not at.microsecond)]
        times = held if self.format == "orc" else list(_TIMES)
        days = [day for day in _DAYS if self.format != "orc" or day >= date(1582, 10, 15)]
        drawn: dict[str, Callable[[], Any]] = {
            "boolean": lambda: chance.random() < 0.5,
            "binary": lambda: chance.randbytes(chance.randint(0, 5)),
            "date": lambda: chance.choice(days),
            "timestamp_ntz": lambda: chance.choice(times),
            "timestamp": lambda: chance.choice(times).replace(tzinfo=timezone.utc),
            "time(0)": lambda: time(chance.randrange(24), 59, 59),
            "time(6)": lambda: time(chance.randrange(24), 0, 1, chance.randrange(1_000_000)),
            "interval hour": lambda: timedelta(hours=chance.randint(-100, 100)),
            "interval day to second": lambda: timedelta(
                days=chance.randint(-9999, 9999), microseconds=chance.randint(0, 99)
            ),
        }
        return drawn[kind]()

    # -- readers -----------------------------------------------------------------------------------------------------

    def _readers(self, files: list[Path], spark: SparkSession | None) -> Iterator[tuple[str, Iterator[list[Any]]]]:
        """Yield the name of each reader, and the rows that it finds, as plain values."""
        fields = self.schema["fields"]
        if self.format == "parquet" and files:
            yield "Arrow", self._of_arrow(table for path in files for table in [pq.ParquetFile(path).read()])
            if "void" not in json.dumps(self.schema):  # only Arrow and Spark know this type
                tables = (_of_duckdb("select * from read_parquet(?)", path) for path in files)
                yield "DuckDB", self._of_arrow(tables)
                yield "polars", self._of_arrow(pl.read_parquet(path).to_arrow() for path in files)
        elif self.format == "orc":
            yield "Arrow", self._of_arrow(orc.ORCFile(path).read() for path in files)
        elif self.format == "avro":
            yield "fastavro", self._of_avro(files)
        elif self.format == "json":
            lines = (json.loads(line, parse_float=Decimal) for path in files for line in _text(path).split("\n")[:-1])
            yield "Python", ([_of_json(line.get(f["name"]), f["type"]) for f in fields] for line in lines)
        elif self.format == "csv":
            yield "Python", self._of_csv(files)
        elif self.format == "text":
            yield "Python", ([line] for path in files for line in _text(path).split("\n")[:-1])
        # Of a name in ORC, in its own files too, Spark uses only the part between backticks.
        is_cut = self.format == "orc" and "`" in json.dumps(self.schema)
        if spark is not None and files and self.format not in {"csv", "avro"} and not is_cut:
            yield "Spark", self._of_spark(spark, files)

    def _of_arrow(self, tables: Iterator[pa.Table]) -> Iterator[list[Any]]:
        for table in tables:
            columns = [table.column(field["name"]).to_pylist() for field in self.schema["fields"]]
            for row in zip(*columns, strict=True):
                yield [_plain(value, field["type"]) for value, field in zip(row, self.schema["fields"], strict=True)]

    def _of_avro(self, files: list[Path]) -> Iterator[list[Any]]:
        for path in files:
            for row in avro_rows(path.read_bytes()):
                yield [_plain(row[field["name"]], field["type"]) for field in self.schema["fields"]]

    def _of_csv(self, files: list[Path]) -> Iterator[list[Any]]:
        names = {
            f"c{index}": _DUCKDB.get(field["type"], field["type"]) for index, field in enumerate(self.schema["fields"])
        }
        options = f"""columns={names}, delim=',', quote='"', escape='{self.csv.get("escape", '"')}', allow_quoted_nulls=false,
            header={self.csv.get("header", "false")}, nullstr='', auto_detect=false, new_line='\\n', parallel=false"""
        for path in files:
            found = _of_duckdb(f"select * from read_csv(?, {options})", path)
            for row in zip(*(column.to_pylist() for column in found.columns), strict=True):
                yield [_plain(value, field["type"]) for value, field in zip(row, self.schema["fields"], strict=True)]

    def _of_spark(self, spark: SparkSession, files: list[Path]) -> Iterator[list[Any]]:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only the soak needs Spark

        schema = _all_nullable(StructType.fromJson(self.schema))
        reader = spark.read.format(self.format)
        if self.format == "json":
            reader = reader.schema(schema).options(mode="FAILFAST")
        rows = reader.load([str(path) for path in files])
        if self.format == "parquet":
            assert rows.schema == schema, f"Spark takes the columns for {rows.schema.simpleString()}"
        tables = (pa.Table.from_batches([batch]) for batch in rows._collect_as_arrow())  # type: ignore[operator]  # one of the classic class alone
        return self._of_arrow(tables)


def _field(name: str, kind: Spark, *, nullable: bool) -> Spark:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def _nullable_void(field: Spark) -> Spark:
    return field | {"nullable": True} if field["type"] == "void" else field


def _all_nullable(schema: Any) -> Any:
    """Return the schema that Spark makes of the schema of files."""
    text = schema.json()
    for name in ("nullable", "containsNull", "valueContainsNull"):
        text = text.replace(f'"{name}":false', f'"{name}":true')
    return type(schema).fromJson(json.loads(text))


def _of_duckdb(query: str, path: Path) -> pa.Table:
    found = duckdb.sql(query, params=[str(path)])
    assert found is not None  # it always is, for statements
    return found.to_arrow_table()


def _text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data.decode()


def _of_json(value: Any, kind: Spark) -> Any:
    """Return the plain value that JSON represents for this type."""
    if value is None:
        return None
    if isinstance(kind, str):
        read: dict[str, Callable[[Any], Any]] = {
            "date": date.fromisoformat,
            "timestamp": datetime.fromisoformat,
            "timestamp_ntz": datetime.fromisoformat,
            "float": float,
            "double": float,
        }
        return _plain(read.get(kind, lambda same: same)(value), kind)
    if kind["type"] == "struct":
        return [_of_json(value.get(f["name"]), f["type"]) for f in kind["fields"]]
    if kind["type"] == "array":
        return [_of_json(element, kind["elementType"]) for element in value]
    return sorted([key, _of_json(item, kind["valueType"])] for key, item in value.items())


def _plain(value: Any, kind: Spark) -> Any:  # noqa: PLR0911 - what a reader gives
    """Return a value in a common plain form: members in order, times as microseconds, maps sorted."""
    if value is None:
        return None
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            return [_plain(value[f["name"]], f["type"]) for f in kind["fields"]]
        if kind["type"] == "array":
            return [_plain(element, kind["elementType"]) for element in value]
        pairs = value.items() if isinstance(value, dict) else value
        pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in pairs]
        return sorted([_plain(key, kind["keyType"]), _plain(item, kind["valueType"])] for key, item in pairs)
    if kind in {"float", "double"}:
        return repr(np.float32(value)) if kind == "float" else repr(float(value))
    if kind.startswith("decimal"):
        return str(Decimal(value).quantize(Decimal(1).scaleb(-int(kind[8:-1].split(",")[1])), context=_EXACT))
    if isinstance(value, datetime):
        return _since_epoch(value)
    if isinstance(value, time):
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    if kind.startswith("interval") and isinstance(value, int):
        return timedelta(microseconds=value)
    return bytes(value) if kind == "binary" else value


def _since_epoch(moment: datetime) -> timedelta:
    if hasattr(moment, "to_pydatetime"):  # pandas' type, which Arrow uses for nanoseconds
        moment = moment.to_pydatetime()
    return (moment.astimezone(timezone.utc).replace(tzinfo=None) if moment.tzinfo else moment) - _EPOCH


def shown(rows: Any) -> Iterator[str]:
    """Return rows as text, so that they can be counted."""
    return (repr(list(row)) for row in rows)


def _without_signs_of_zeros(rows: Counter[str]) -> Counter[str]:
    return Counter(row.replace("'-0.0'", "'0.0'") for row in rows.elements())


def _difference(found: Counter[str], expected: Counter[str]) -> str:
    more, less = list((found - expected).elements()), list((expected - found).elements())
    return f"{len(more)} rows that were not written and not {len(less)} that were:\n{more[:3]}\n{less[:3]}"
