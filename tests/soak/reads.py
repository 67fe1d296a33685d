"""Files of every type by other writers: each record is read by our reader and by Spark's own, and the results are compared.

A seed is a case. Each record of JSON and CSV is text with odd values in it, and some are invalid: both readers set the same ones aside,
and read the same from the others, which stand in one block, whichever of our readers takes the block. Known differences are not drawn:
`docs/options.md` lists them. Parquet is written by Arrow, polars and DuckDB, in all forms that they have.
"""

from __future__ import annotations

import json
import math
import os
import random
import warnings
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from penstock.formats.schema import to_arrow
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.inferred import infer
from penstock.source.schemas import BAD

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    Row = tuple[Any, ...]

_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia")
_SCHEMAS = (
    "id int, a tinyint, b smallint, c int, d bigint",
    "id int, f float, g double, h boolean, s string",
    "id int, t timestamp, n timestamp_ntz, d date",
    "id int, x decimal(10,4), y decimal(38,2), z decimal(38,38), w decimal(5,0)",
    "id int, s string, r string, `a.b` int, `ü` string",
)
_NESTED = (
    "id int, l array<bigint>, m map<string,bigint>, p struct<x:bigint,y:string>",
    "id int, l array<array<double>>, m map<string,struct<a:int,b:array<string>>>, p struct<q:struct<r:decimal(12,3)>,d:date>",
    "id int, l array<timestamp>, m map<string,date>, p array<struct<a:int,b:string>>, s string",
)
_WHOLE = [
    "0",
    "-0",
    "1",
    "-1",
    "127",
    "-128",
    "-129",
    "32767",
    "32768",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
]
_NUMBERS = (
    *_WHOLE,
    *[
        "1.0",
        "1.5",
        "0.1",
        "1e0",
        "1E2",
        "1e-2",
        "1.0e+3",
        "-0.0",
        "1e-400",
        "1e-46",
        "4.9e-324",
        "12345678901234567890123456789012345678",
        "1e37",
        "0.12345678901234567890123456789012345678",
        "99999.99995",
        "999999.99994",
        "0.00005",
        "0.00015",
        "9007199254740993",
        "16777217",
        "0.30000000000000004",
    ],
)
_EXACT = Context(prec=99)
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NO_NUMBERS = ["1e", "-", "--", "1_000", "0x", "true", "1.5.2", "nul"]
_TIMES = [
    "2026-01-31",
    "0001-01-01",
    "9999-12-31",
    "1582-10-10",
    "2026-1-3",
    "2026-01",
    "2026",
    "2026-02-30",
    "2026-01-31T12:34:56",
    "2026-01-31T12:34:56Z",
    "2026-01-31T12:34:56.123456789Z",
    "2026-01-31T12:34:56.123456+01:00",
    "2026-01-31T24:00:00Z",
    "2026-06-30T23:59:60Z",
    "2026-01-31T12:34",
    "2026-01-31T12:34:56+0100",
    "2026-01-31T12:34:56+18:00",
    "2026-01-31T12:34:56-00:00",
    "2026-01-31T12:34:56.",
    "0000-01-01",
    "2026-01-31T1:2:3",
    "2026-03-29T02:30:00",
    "2026-10-25T02:30:00",
    "1883-11-18T12:03:57",
    "2026-01-31T12:34:56GMT+1",
    "1969-12-31T23:59:59.9999999Z",
    "2024-02-29",
    "1900-02-29",
    "2026-13-01",
    "now",
    "today",
]
_TEXTS = (
    "",
    "a",
    "ä€😀",
    "x" * 50,
    " ",
    "null",
    "true",
    "1.5",
    "\u2028",
    "\x7f",
    "é" * 20,
    "#",
    "\\",
    '"',
    "'",
    ",",
    "a\nb",
    "\r",
)
_IN_JSON = (*map(json.dumps, _TEXTS), r'"\ud83d\ude00"', r'"\ud83d"', r'"\udc00x"', r'"\u0000"', '"ü"', '"😀"')


def _split(text: str) -> list[str]:
    """Return the parts between the commas that are not in brackets."""
    parts, depth = [""], 0
    for mark in text:
        depth += (mark in "<(") - (mark in ">)")
        if mark == "," and not depth:
            parts.append("")
        else:
            parts[-1] += mark
    return parts


@cache
def _fitting(kind: str) -> tuple[str, ...]:
    """Return the numbers that fit a type."""
    if kind in _BITS:
        bound = 1 << _BITS[kind] - 1
        return tuple(text for text in _WHOLE if -bound <= int(text) < bound)
    if not kind.startswith("decimal("):
        return _NUMBERS
    precision, scale = map(int, kind[8:-1].split(","))
    unit, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)
    return tuple(text for text in _NUMBERS if abs(Decimal(text).quantize(unit, ROUND_HALF_UP, _EXACT)) < limit)


class Case:
    """All random choices, drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(f"{seed} reads")  # noqa: S311 - repeatable
        self.format = chance.choice(("json", "json", "csv", "parquet"))
        self.zone = chance.choice(_ZONES)
        self.schema = "" if self.format == "parquet" else chance.choice(
            (*_SCHEMAS, *_NESTED) if self.format == "json" else _SCHEMAS
        )  # fmt: skip
        self.columns = [part.strip().split(" ", 1) for part in _split(self.schema)] if self.schema else []
        self.options: dict[str, str] = {}
        if self.format == "csv":
            self.options = {
                "sep": chance.choice(",;|\t"),
                "header": chance.choice(("true", "false")),
                "escape": chance.choice(('"', "\\")),
                "emptyValue": "",
            }
        records = 0 if self.format == "parquet" else 200
        self.records = [getattr(self, f"_{self.format}")(number) for number in range(records)]

    def __str__(self) -> str:
        return f"case {self.seed}: {self.format} {self.schema} in {self.zone} {self.options}"

    # -- what is written -----------------------------------------------------------------------------------------

    def _json(self, number: int) -> str:
        chance = self.chance
        members = [f'"id":{number}']
        for name, kind in self.columns[1:]:
            key = json.dumps(name.strip("`"), ensure_ascii=chance.random() < 0.5)
            if chance.random() < 0.9:
                members.append(f"{key}{chance.choice(('', ' '))}:{chance.choice(('', ' '))}{self._value(kind)}")
        if chance.random() < 0.1:
            members.append(f'"other":{self._value("string")}')
        if chance.random() < 0.1:
            members.append(members[-1])
        record = f"{{{','.join(members)}}}"
        return record[:-1] if chance.random() < 0.01 else record

    def _value(self, kind: str) -> str:
        """Return JSON that usually fits a type."""
        chance = self.chance
        if chance.random() < 0.1:
            return "null"
        if chance.random() < 0.02:
            return chance.choice(("[]", "{}", "true", '"x"', "-1.5"))
        if "<" in kind:
            return self._nested(kind)
        if kind == "string":
            other = chance.choice(("double", "array<string>", "struct<a:string>"))
            return chance.choice((chance.choice(_IN_JSON), self._value(other)))
        text = self._text(kind)
        return json.dumps(text) if text in _TIMES else text

    def _nested(self, kind: str) -> str:
        chance = self.chance
        outer, inner = kind[:-1].split("<", 1)
        some = range(chance.choice((0, 1, 2, 3)))
        if outer == "array":
            return "[" + ",".join(self._value(inner) for _ in some) + "]"
        if outer == "map":
            keys = [json.dumps(chance.choice("kqü")) for _ in some]
            return "{" + ",".join(f"{key}:{self._value(_split(inner)[1])}" for key in keys) + "}"
        fields = [field.split(":", 1) for field in _split(inner) if chance.random() < 0.9]
        return "{" + ",".join(f"{json.dumps(name)}:{self._value(member)}" for name, member in fields) + "}"

    def _text(self, kind: str) -> str:
        """Return the text of a value without quotes; for `string` any text."""
        chance = self.chance
        if kind in {"timestamp", "timestamp_ntz", "date"}:
            return chance.choice(_TIMES)
        if kind == "boolean":
            return chance.choice(("true", "false"))
        if kind == "string":
            return chance.choice(_TEXTS)
        numbers = _WHOLE if kind in _BITS else _NUMBERS
        return chance.choice(_fitting(kind) if chance.random() < 0.98 else numbers)

    def _csv(self, number: int) -> str:
        chance, sep, escape = self.chance, self.options["sep"], self.options["escape"]
        fields = [str(number)]
        for _, kind in self.columns[1:]:
            text = self._text(kind) if chance.random() < 0.9 else chance.choice((*_NO_NUMBERS, ""))
            if chance.random() < 0.2 or any(mark in text for mark in f'{sep}"\\\r\n#'):
                text = text.replace("\\", "\\\\") if escape == "\\" else text
                text = f'"{text.replace(chr(34), escape + chr(34))}"'
            fields.append(text)
        if chance.random() < 0.02:
            fields = chance.choice((fields[:-1], [*fields, "more"]))
        return sep.join(fields)

    # -- what is compared ----------------------------------------------------------------------------------------

    def run(self, directory: Path, spark: SparkSession) -> None:
        """Write the file and let both read it; `AssertionError` names the difference."""
        spark.conf.set("spark.sql.session.timeZone", self.zone)
        if self.format == "parquet":
            self._compare_table(directory, spark)
        else:
            self._compare_records(directory, spark)

    def _compare_records(self, directory: Path, spark: SparkSession) -> None:
        path = directory / f"a.{self.format}"
        head = self.options["sep"].join(name.strip("`") for name, _ in self.columns) if self.options else ""
        lines = [*([head] if self.options.get("header") == "true" else []), *self.records]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
        os.utime(path, (1e9, 1e9))
        given = dict(self.options) | ({} if self.format == "json" else _SPARKS_CSV)
        reader = spark.read.schema(f"{self.schema}, _bad string").options(**given)
        read = reader.option("columnNameOfCorruptRecord", "_bad").format(self.format).load(str(directory)).toArrow()
        sparks = {row[0]: row[:-1] for row in rows_of(read) if row[-1] is None}
        whole = spark.createDataFrame([], f"{self.schema}, _bad {BAD}").schema
        aside = {"badRecords": "quarantine", "badRecordColumn": "_bad", "timeZone": self.zone}
        table = rows_at(directory, whole.json(), {**self.options, **aside, "format": self.format})
        ours = {row[0]: row[:-1] for row in rows_of(table) if row[-1] is None}
        assert len(ours) == sum(row[-1] is None for row in rows_of(table)), f"{self}: records are there twice"
        for number, record in enumerate(self.records):
            assert ours.get(number) == sparks.get(number), (
                f"{self}\n{record}\nours   {ours.get(number)}\nSpark's {sparks.get(number)}"
            )

    def _compare_table(self, directory: Path, spark: SparkSession) -> None:
        table, path = self._table(), directory / "a.parquet"
        try:
            written = self._write(table, path)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return
        os.utime(path, (1e9, 1e9))
        try:
            frame = spark.read.parquet(str(path))
            sparks = rows_of(frame.toArrow())
            pq.read_table(path)  # DuckDB writes some columns of nulls in a form that Arrow cannot read
        except Exception:  # noqa: BLE001 - what one of them has not, or cannot read, is no case
            return
        inferred = infer(parse(SOURCE, {"path": str(path), "format": "parquet", "settle": "0"}, what="source"))
        kinds = [(field["name"], _nullable(field["type"])) for field in inferred.fields]
        expected = [(field.name, _nullable(field.dataType.jsonValue())) for field in frame.schema]
        assert kinds == expected, f"{self}: {written}\ninferred {kinds}\nSpark's  {expected}"
        ours = rows_of(rows_at(path, frame.schema.json(), {"format": "parquet", "timeZone": self.zone}))
        assert ours == sparks, f"{self}: {written}\n{table.schema}\nours    {ours[:5]}\nSpark's {sparks[:5]}"

    def _table(self) -> pa.Table:
        chance = self.chance
        rows = chance.choice((0, 1, 3, 20, 200))
        names = chance.sample(["a", "B", "ü", "x y", "c.d", "id", "_p", "a`b", "%", "long_" * 10], chance.randint(1, 5))
        fields = [pa.field(name, self._kind(), nullable=chance.random() < 0.8) for name in names]
        columns = [
            pa.array([self._made(field.type, 0.2 if field.nullable else 0) for _ in range(rows)], field.type)
            for field in fields
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _kind(self, depth: int = 0) -> pa.DataType:
        chance = self.chance
        if depth < 3 and chance.random() < 0.25:
            inner = self._kind(depth + 1)
            return chance.choice((
                pa.list_(inner), pa.large_list(inner), pa.struct([("a", inner), ("X", pa.int64())]),
                pa.map_(chance.choice((pa.string(), pa.int32(), pa.date32())), inner),
            ))  # fmt: skip
        precision = chance.randint(1, 38)
        return chance.choice((
            pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(),
            pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.binary(7), pa.date32(), pa.timestamp("ms"), pa.timestamp("us"),
            pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.decimal128(precision, chance.randint(0, precision)),
        ))  # fmt: skip

    def _made(self, kind: pa.DataType, nulls: float = 0.2) -> Any:
        chance = self.chance
        if chance.random() < nulls:
            return None
        some = range(chance.choice((0, 1, 2, 4)))
        made: Any
        if types.is_map(kind):
            made = list({self._made(kind.key_type, 0): self._made(kind.item_type) for _ in some}.items())
        elif types.is_list(kind) or types.is_large_list(kind):
            made = [self._made(kind.value_type) for _ in some]
        elif types.is_struct(kind):
            made = {field.name: self._made(field.type) for field in kind}
        elif types.is_integer(kind):
            signed = types.is_signed_integer(kind)
            low, high = (-(1 << kind.bit_width - 1) if signed else 0), (1 << kind.bit_width - signed) - 1
            made = chance.choice((low, high, 0, 1, chance.randint(low, high)))
        elif types.is_floating(kind):
            made = chance.choice((0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 0.25))
        elif types.is_decimal(kind):
            most = 10**kind.precision - 1
            made = Decimal(chance.choice((0, 1, most, -most, chance.randint(-most, most)))).scaleb(-kind.scale, _EXACT)
        else:
            made = chance.choice(_VALUES[next(name for name in _VALUES if str(kind).startswith(name))])
        return made

    def _write(self, table: pa.Table, path: Path) -> str:
        """Write a file and say how. Raises if the writer does not support the case."""
        chance = self.chance
        writer = chance.choice(("arrow", "arrow", "polars", "duckdb"))
        if writer == "duckdb":
            how = f"compression {chance.choice(('snappy', 'zstd', 'gzip', 'uncompressed'))}, parquet_version {chance.choice(('v1', 'v2'))}"
            with duckdb.connect() as database:
                database.register("input", table)
                database.execute(f"copy (select * from input) to '{path}' (format parquet, {how})")
            return f"duckdb {how}"
        if writer == "polars":
            options: dict[str, Any] = {
                "compression": chance.choice(("uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli")),
                "statistics": chance.random() < 0.5,
                "row_group_size": chance.choice((None, 1, 7)),
                "data_page_size": chance.choice((None, 100)),
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pl.DataFrame(table).write_parquet(path, **options)
            return f"polars {options}"
        options = {
            "version": chance.choice(("1.0", "2.4", "2.6")),
            "data_page_version": chance.choice(("1.0", "2.0")),
            "compression": chance.choice(("none", "snappy", "gzip", "zstd", "lz4", "brotli")),
            "use_dictionary": chance.random() < 0.5,
            "write_statistics": chance.random() < 0.5,
            "row_group_size": chance.choice((1, 7, 1000)),
            "data_page_size": chance.choice((100, 1 << 20)),
            "use_deprecated_int96_timestamps": chance.random() < 0.15,
            "store_schema": chance.random() < 0.6,
            "write_page_index": chance.random() < 0.3,
            "use_compliant_nested_type": chance.random() < 0.7,
            "store_decimal_as_integer": chance.random() < 0.3,
            "write_page_checksum": chance.random() < 0.3,
        }
        pq.write_table(table, path, **options)
        return f"arrow {options}"


# Spark's reader with our settings: a quote is doubled unless said otherwise, white space counts, and only a line feed ends a line.
_SPARKS_CSV = {
    "multiLine": "true",
    "lineSep": "\n",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    "enforceSchema": "false",
}
_VALUES: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "large_string": _TEXTS,
    "string": _TEXTS,
    "binary": (b"", b"\xff\0", b"abc"),
    "fixed_size_binary": (b"\xff\0abcde", b"0123456"),
    "date": (date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4), date(1969, 12, 31)),
    "timestamp": (
        datetime(1970, 1, 1),
        datetime(2026, 1, 31, 12, 34, 56, 123000),
        datetime(1900, 1, 1),
        datetime(1969, 12, 31, 23, 59, 59),
    ),
}


def rows_at(path: Path, schema: str, given: dict[str, str]) -> pa.Table:
    """Return the rows of the files at a path, without Spark."""
    options = parse(SOURCE, {"path": str(path), "settle": "0", **given}, what="source")
    how = configured.reading(options, schema)
    planner = configured.planner(options, how)
    end = planner.latest(planner.initial())
    batches = [batch for task in planner.tasks(end) for batch in configured.rows(options, how, tuple(task))]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, to_arrow(schema) if not batches else batches[0].schema)


def rows_of(table: pa.Table) -> list[Row]:
    """Return rows in comparable form: times as numbers, floats by their digits, NaN equal to itself."""
    columns = [_plain(column.combine_chunks()) for column in table.columns]
    return list(zip(*columns, strict=True))


def _plain(values: pa.Array) -> list[Any]:
    kind, valid = values.type, values.is_valid().to_pylist()
    if types.is_struct(kind):
        members = [_plain(values.field(place)) for place in range(kind.num_fields)]
        return [tuple(member[row] for member in members) if there else None for row, there in enumerate(valid)]
    if types.is_map(kind):
        values = values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        kind = values.type
    if types.is_list(kind) or types.is_large_list(kind):
        inner, at = _plain(values.values), values.offsets.to_pylist()
        return [inner[at[row] : at[row + 1]] if there else None for row, there in enumerate(valid)]
    if types.is_timestamp(kind) or types.is_date32(kind):
        return list(values.cast(pa.int64() if types.is_timestamp(kind) else pa.int32()).to_pylist())
    if types.is_floating(kind):
        return [None if value is None else repr(value) for value in values.to_pylist()]
    return list(values.to_pylist())


def _nullable(kind: Any) -> Any:
    """Return a type without its nullability and comments."""
    if isinstance(kind, dict):
        dropped = {"nullable", "containsNull", "valueContainsNull", "metadata"}
        return {name: _nullable(value) for name, value in kind.items() if name not in dropped}
    return [_nullable(value) for value in kind] if isinstance(kind, list) else kind
