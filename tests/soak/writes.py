"""The same rows written by our sink and by Spark's own writer: Spark reads both, and the directories are compared.

A seed is a case: columns of any type and name, rows with the odd values of each type, a format with its options, and often a column that
names directories. Either both write the rows, and Spark reads the same from both, or both refuse them. Known differences are not
drawn: `docs/options.md` lists them. What other readers find in files of the sink is checked by `rows`.
"""

from __future__ import annotations

import json
import math
import random
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import types

from penstock.errors import PenstockError, of
from penstock.formats import WriteFormat
from penstock.formats.parquet import ParquetWriter
from penstock.formats.schema import to_arrow
from tests.soak.reads import rows_at, rows_of
from tests.support.frames import arrow, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = ("parquet", "orc", "json", "csv", "csv", "text")
_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia")
_NAMES = (
    "a", "B", "b", "c.d", "ü", "x y", "select", 'q"q', "-", "_e", "Ω", "f,g", "tab\t", "{h}", "`i`", "j=k", "0", "%25", "p", "#n", "'",
    "\\", "l\nf", "\u2028", "😀", "long" * 30, " ",
)  # fmt: skip
_PLAIN = {"a", "B", "b", "ü", "select", "_e", "Ω", "0", "p"}  # as in the template and the directory
_WORDS = (
    "", " ", "a", "ä\0€", '"', "\\", "\\n", "\r\n", "\n", "\r", ",", ";", "null", "NULL", "\\N", "NaN", "😀", "'",
    "\u2028", "\x85", "\ufeff", '5" x', "#", "\t",
    "EMPTY", "e\u0301", "\x7f", "\x1f", "1", "true", "2026-01-31", "{}", "//", "x" * 5000, "../a", ".h", "_h", "a=b", "%41", "a.tmp",
    "-0.0", "𝄞",
)  # fmt: skip
_SCALARS = (
    "byte", "short", "integer", "long", "boolean", "string", "string", "float", "double", "decimal(1,1)", "decimal(9,0)", "decimal(18,3)",
    "decimal(38,38)", "decimal(38,0)", "decimal(38,6)", "date", "timestamp", "timestamp_ntz", "binary",
)  # fmt: skip
_MORE: dict[str, tuple[str, ...]] = {
    "parquet": ("void", "time(6)", "interval day to second"),
    "json": ("interval day to second",),
    "csv": ("interval day to second",),
    "orc": (),
}
_LEFT_OUT: dict[str, tuple[str, ...]] = {"parquet": (), "json": (), "csv": ("binary",), "orc": ("timestamp_ntz",)}
_NAMING = (
    "byte",
    "short",
    "integer",
    "long",
    "boolean",
    "string",
    "decimal(9,0)",
    "decimal(38,6)",
    "date",
    "timestamp",
    "timestamp_ntz",
)
_NO_TEXT = (
    b"\xff",
    b"a\xe2\x82b",
    b"\xf0\x9f\x98",
    b"\xed\xa0\x80x",
    b"\xc0\x80",
    b"\xe4\xff\xe4",
    b"\xf8\x88\x80\x80\x80",
    b'"\x80,',
)
_NOT_OURS = ("compression", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace")
_FLOATS = (0.0, -0.0, 1.0, -1.5, 1e20, 1e-7, 0.1, 1e7, 123456789.125, 0.001, 1e-3, 9999999.0, 3.4028234663852886e38, 1.401298464324817e-45,
           math.nan, math.inf, -math.inf, 4.9e-324, 1.7976931348623157e308)  # fmt: skip
_DAY = 86_400_000_000
_DAYS = (
    -719_162,
    -141_427,
    -141_428,
    -1,
    0,
    1,
    19_782,
    2_932_896,
)  # from 0001-01-01 to 9999-12-31, over the change of calendars
_EXACT = Context(prec=99)
_ROWS_MAX = 12


class Case:
    """All random choices, drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = chance = random.Random(f"{seed} writes")  # noqa: S311 - repeatable
        self.format = chance.choice(_FORMATS)
        self.zone = chance.choice(_ZONES)
        self.schema = self._schema()
        self.options = self._options()
        self.by = self._partition()
        self.dirty = self.format in {"json", "csv"} and chance.random() < 0.2
        self.table = self._table()

    def __str__(self) -> str:
        columns = json.dumps(self.schema["fields"])
        return f"case {self.seed}: {self.format} {self.options} by {self.by} in {self.zone}\n{columns}\n{self.table}"

    # -- what is drawn -----------------------------------------------------------------------------------------------

    def _schema(self) -> Any:
        chance = self._chance
        if self.format == "text":
            return _struct([("value", "string")])
        names = chance.sample(self._names, chance.randint(1, 5))
        schema = _struct([("id", "long"), *((name, self._type(3)) for name in names)])
        return self._schema() if self.format == "orc" and json.dumps(schema).count('"struct"') > 2 else schema

    @property
    def _names(self) -> list[str]:
        return [name for name in _NAMES if self.format != "orc" or "`" not in name]

    def _type(self, depth: int) -> Any:
        chance = self._chance
        if self.format == "csv" or depth == 0 or chance.random() < 0.7:
            return chance.choice([kind for kind in _SCALARS + _MORE[self.format] if kind not in _LEFT_OUT[self.format]])
        kind = chance.choice(("struct", "array", "map"))
        if kind == "array":
            return {"type": "array", "elementType": self._type(depth - 1), "containsNull": True}
        if kind == "map":
            keys = ("string", "long", "date", "boolean", "timestamp", "decimal(9,0)", "double", "binary")
            key = "string" if self.format == "json" else chance.choice(keys)
            return {"type": "map", "keyType": key, "valueType": self._type(depth - 1), "valueContainsNull": True}
        names = chance.sample(self._names, chance.randint(1, 3))
        return _struct([(name, self._type(depth - 1)) for name in names])

    def _options(self) -> dict[str, str]:
        chance = self._chance
        codec = "zstd" if self.format == "orc" else "gzip"
        options = {"compression": chance.choice(("none", codec))} if chance.random() < 0.3 else {}
        if self.format == "csv":
            drawn = {
                "header": ("true", "false"),
                "nullValue": ("NULL", "\\N", "-"),
                "emptyValue": ("EMPTY", ""),
            }
            options |= {name: chance.choice(values) for name, values in drawn.items() if chance.random() < 0.4}
            quote = chance.choice(('"', '"', "'"))
            options |= {"quote": quote, "escape": chance.choice(("\\", quote))}
            options |= {
                "emptyValue": options.get("emptyValue", quote * 2)
            }  # Spark writes two double quotes whatever the quote is
        return options

    def _partition(self) -> str | None:
        fields = self.schema["fields"]
        plain = [field["name"] for field in fields[1:] if field["name"] in _PLAIN and str(field["type"]) in _NAMING]
        return self._chance.choice(plain) if len(fields) > 2 and plain and self._chance.random() < 0.3 else None

    def _table(self) -> pa.Table:
        schema = to_arrow(json.dumps(self.schema))
        rows = self._chance.randint(1, _ROWS_MAX)
        columns = [self._column(field, rows) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def _column(self, field: pa.Field, rows: int) -> pa.Array:
        if self.dirty and types.is_string(field.type) and field.name != self.by:
            made = [self._chance.choice((None, b"", b"a", *_NO_TEXT)) for _ in range(rows)]
            return pa.array(made, pa.binary()).view(pa.string())
        return pa.array([self._made(field.type) for _ in range(rows)], field.type)

    def _made(self, kind: pa.DataType, nulls: float = 0.15) -> Any:
        chance = self._chance
        if types.is_null(kind) or chance.random() < nulls:
            return None
        some = range(chance.choice((0, 1, 1, 2, 4)))
        if types.is_map(kind):
            some = some[:1] if self.format == "orc" else some  # Spark writes more in its own order
            keys = {repr(key): key for key in (self._made(kind.key_type, 0) for _ in some)}
            return [(key, self._made(kind.item_type)) for key in keys.values()]
        if types.is_list(kind):
            return [self._made(kind.value_type) for _ in some]
        if types.is_struct(kind):
            return {field.name: self._made(field.type) for field in kind}
        return self._scalar(kind)

    def _scalar(self, kind: pa.DataType) -> Any:  # noqa: PLR0911 - a kind of type each
        chance = self._chance
        if types.is_integer(kind):
            most = 1 << kind.bit_width - 1
            return chance.choice((0, 1, -1, most - 1, -most, chance.randrange(-most, most)))
        if types.is_floating(kind):
            return chance.choice(_FLOATS)
        if types.is_decimal(kind):
            most = 10**kind.precision - 1
            return Decimal(chance.choice((0, 1, most, -most, chance.randint(-most, most)))).scaleb(-kind.scale, _EXACT)
        if types.is_boolean(kind):
            return chance.random() < 0.5
        if types.is_string(kind):
            return "".join(chance.choice(_WORDS) for _ in range(chance.choice((0, 1, 1, 2, 3))))
        if types.is_binary(kind):
            return chance.randbytes(chance.randint(0, 5))
        return self._time(kind)

    def _time(self, kind: pa.DataType) -> int:
        """Return a time of any kind, as its number."""
        chance = self._chance
        if types.is_time(kind):
            return chance.choice((0, 1, _DAY - 1, 3_600_000_000)) * (1000 if kind.unit == "ns" else 1)
        if types.is_duration(kind):
            return chance.choice((0, -1, _DAY, -_DAY - 1, 3_600_000_000, 10**15))
        days = chance.choice([day for day in _DAYS if self.format != "orc" or day > -141_427])
        if self.format == "parquet" and self.by is None and chance.random() < 0.05:
            days = chance.choice((-800_000, 3_000_000, 10**8, -(10**8), 15_000_000))
        if types.is_date(kind):
            return days
        if self.format == "orc":  # whole seconds from 1970 on
            return max(min(days, 100_000), 0) * _DAY + chance.choice((0, 1_000_000))
        if days in {_DAYS[0], _DAYS[-1]} and self.format in {"json", "csv"}:
            days -= int(math.copysign(1, days))  # so that no zone shows a year 0 or 10000
        return days * _DAY + chance.choice((0, 1, 123_000, _DAY - 1, 5_400_000_000))

    # -- what is compared --------------------------------------------------------------------------------------------

    def run(self, directory: Path, spark: SparkSession) -> None:
        """Write with both, and read; `AssertionError` names the difference."""
        spark.conf.set("spark.sql.session.timeZone", self.zone)
        rows = self._rows(directory / "rows.parquet", spark)
        ours, sparks = str(directory / "ours"), str(directory / "sparks")
        refused, refused_by_spark = self._ours(rows, ours), self._sparks(rows, sparks)
        assert (refused is None) == (refused_by_spark is None), f"{self}\nours    {refused}\nSpark's {refused_by_spark}"
        if refused is None:
            self._compare(spark, ours, sparks)
            self._crossing(spark, sparks)

    def _rows(self, path: Path, spark: SparkSession) -> DataFrame:
        """Return the rows as Spark has them, read from a file: Spark's conversion of Arrow tables goes through an Arrow cast."""
        with path.open("wb") as file:
            writer = ParquetWriter(file, WriteFormat("parquet", self.table.schema, "none"))
            for batch in self.table.to_batches():
                writer.write(batch)
            writer.close()
        return spark.read.parquet(str(path))

    def _ours(self, rows: DataFrame, path: str) -> Exception | None:
        """Write the rows with our sink; return what it refuses."""
        by = {"bucketBy": f"{_quoted(self.by)}={{`{self.by}`}}", "dropBucketColumns": "true"} if self.by else {}
        by |= {"encodingErrors": "replace"} if self.dirty else {}
        try:
            written(rows, Path(path), format=self.format, timeZone=self.zone, **self.options, **by)
        except Exception as error:
            if isinstance(error, PenstockError) or of(error) is not None:
                return error
            raise
        return None

    def _sparks(self, rows: DataFrame, path: str) -> Exception | None:
        """Write the rows with Spark; return what it refuses."""
        writer = rows.coalesce(1).write.format(self.format).options(**self.options, **_SPARKS.get(self.format, {}))
        try:
            (writer.partitionBy(self.by) if self.by else writer).save(path)
        except Exception as error:  # noqa: BLE001 - of any class of Spark's or of the JVM's
            return error
        return None

    def _compare(self, spark: SparkSession, ours: str, sparks: str) -> None:
        read = [self._read(spark, path) for path in (ours, sparks)]
        schemas = [frame.schema.simpleString() for frame in read]
        assert schemas[0] == schemas[1], f"{self}\nours    {schemas[0]}\nSpark's {schemas[1]}"
        of_ours, of_sparks = (sorted(self._shown(frame)) for frame in read)
        more, less = [row for row in of_ours if row not in of_sparks], [row for row in of_sparks if row not in of_ours]
        assert of_ours == of_sparks, f"{self}\nours    {more[:3]}\nSpark's {less[:3]}"
        if self.by:
            directories = [_directories(Path(path)) for path in (ours, sparks)]
            assert directories[0] == directories[1], f"{self}\nours    {directories[0]}\nSpark's {directories[1]}"

    def _crossing(self, spark: SparkSession, path: str) -> None:
        """Let our source read Spark's files, and Spark, too."""
        text = json.dumps(self.schema)
        if (self.format == "orc" and '"timestamp' in text) or (self.format in {"json", "csv"} and "interval" in text):
            return  # its times are in the zone of the JVM, and our source reads intervals as strings
        frame = self._read(spark, path)
        given = {
            name: value
            for name, value in (_SPARKS.get(self.format, {}) | self.options).items()
            if name not in _NOT_OURS
        }
        options = {"format": self.format, "timeZone": self.zone, "pathGlobFilter": "part-*", **given}
        ours = sorted(map(repr, rows_of(rows_at(Path(path), frame.schema.json(), options))))
        sparks = sorted(self._shown(frame))
        more, less = [row for row in ours if row not in sparks], [row for row in sparks if row not in ours]
        assert ours == sparks, f"{self}\nread by us    {more[:3]}\nread by Spark {less[:3]}"

    @staticmethod
    def _shown(frame: DataFrame) -> list[str]:
        schema = to_arrow(frame.schema.json())
        return [repr(row) for batch in arrow(frame, schema) for row in rows_of(pa.Table.from_batches([batch]))]

    def _read(self, spark: SparkSession, path: str) -> DataFrame:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only the soak needs Spark

        reader = spark.read.format(self.format)
        if self.format in {"json", "csv"}:
            given = {name: value for name, value in self.options.items() if name != "compression"}
            reader = reader.schema(StructType.fromJson(self.schema)).options(**given, **_READ[self.format])
        return reader.load(path)


_SPARKS = {
    "csv": {
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    },
    "json": {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    },
}
_READ = {"csv": {"multiLine": "true", "lineSep": "\n", "mode": "FAILFAST"}, "json": {"mode": "FAILFAST"}}
SPARK_CONFIGURATION = {"spark.sql.timeType.enabled": "true", "spark.sql.caseSensitive": "true"}


def _directories(path: Path) -> list[str]:
    """Return the names of the directories with rows, without their escaped characters."""
    names = [
        unquote(child.name, errors="surrogateescape")
        for child in path.iterdir()
        if child.is_dir() and "=" in child.name
    ]
    return sorted(names)


def _struct(fields: list[tuple[str, Any]]) -> Any:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


def _quoted(name: str) -> str:
    """Return a name in the syntax of a template."""
    return name.replace("{", "{{").replace("}", "}}")
