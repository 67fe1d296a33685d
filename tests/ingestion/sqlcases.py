"""SQL expressions, their rows, and the answers of Spark 4.3 (`spark_sql.json`) with default settings in Europe/Berlin.

Add a case with the answer `null`; `python -m tests.ingestion.sqlcases` asks Spark for the missing answers.
`tests/spark/test_sql.py` asks the installed Spark.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = Path(__file__).with_name("spark_sql.json")
ZONE = "Europe/Berlin"
ERROR = "error"
DDL = (
    "k int, t tinyint, i int, j int, l bigint, f float, d double, e double, c decimal(10,2), m decimal(12,4), b boolean, p boolean, "
    "x string, y string, z string, da date, db date, ts timestamp, tn timestamp_ntz, st struct<u: int, V: string>, `odd name` int"
)


def _utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc)


_INF, _NAN = math.inf, math.nan
_COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "t": (pa.int8(), [1, -1, 127, -128, 0, None, 5, 7]),
    "i": (pa.int32(), [1, -7, 2147483647, -2147483648, 0, None, 3, 10]),
    "j": (pa.int32(), [2, 2, 1, -1, 5, 4, None, 3]),
    "l": (pa.int64(), [1, -7, 9223372036854775807, -9223372036854775808, 0, None, 9007199254740993, 42]),
    "f": (pa.float32(), [1.5, -0.0, _NAN, _INF, 0.1, None, 1e10, 3.0]),
    "d": (pa.float64(), [1.5, -0.0, _NAN, -_INF, 0.1, None, 1e300, 1234567.891]),
    "e": (pa.float64(), [1.5, 0.0, _NAN, 2.0, 3.0, 4.0, None, -2.7]),
    "c": (
        pa.decimal128(10, 2),
        [*map(Decimal, ("1.50", "-0.01", "99999999.99", "0.00", "12.34", "5.00", "-7.70")), None],
    ),
    "m": (
        pa.decimal128(12, 4),
        [*map(Decimal, ("1.5000", "2.0001", "-99999999.9999", "0.0000", "3.3333")), None, Decimal(7), Decimal(1)],
    ),
    "b": (pa.bool_(), [True, False, True, False, None, None, True, None]),
    "p": (pa.bool_(), [True, True, False, False, True, None, None, False]),
    "x": (pa.string(), ["abc", "Straße", "", None, " a b ", "x_y%z", "ÄÖ\nü", "a\\b\U0001f600c"]),
    "y": (pa.string(), ["1", " 42 ", "-7.5", "1e3", "", None, "yes", "2024-02-29"]),
    "z": (pa.string(), ["abc", "straSSE", "a", "b", None, "%", "İΣ", "a\\b"]),
    "da": (
        pa.date32(),
        [
            dt.date(*day)
            for day in ((2024, 2, 29), (1970, 1, 1), (1969, 12, 31), (2023, 12, 31), (2021, 1, 3), (9999, 6, 1))
        ]
        + [None, dt.date(1, 1, 1)],
    ),
    "db": (
        pa.date32(),
        [dt.date(2024, 3, 1), None, dt.date(1970, 1, 1), dt.date(2024, 1, 1), *[dt.date(2020, 6, 7)] * 4],
    ),
    "ts": (
        pa.timestamp("us", "UTC"),
        [
            _utc("2024-03-31T01:30:00.123456"),
            _utc("2024-10-27T00:59:59"),
            _utc("1969-12-31T23:59:59.999999"),
            _utc("2050-07-01T22:30:00.5"),
            _utc("2023-12-31T23:00:00"),
            None,
            _utc("1890-01-01T12:00:00.100000"),
            _utc("2000-02-29T00:00:00"),
        ],
    ),
    "tn": (
        pa.timestamp("us"),
        [
            dt.datetime(2024, 3, 31, 2, 30),
            dt.datetime(2024, 10, 27, 2, 30),
            dt.datetime(1970, 1, 1),
            None,
            *[dt.datetime(2021, 1, 3, 4, 5, 6, 700000)] * 4,
        ],
    ),
    "st": (
        pa.struct([("u", pa.int32()), ("V", pa.string())]),
        [{"u": 1, "V": "a"}, None, {"u": None, "V": "b"}, {"u": 4, "V": None}, *[{"u": 5, "V": "e"}] * 4],
    ),
    "odd name": (pa.int32(), [1, 2, 3, 4, 5, 6, 7, 8]),
}
ROWS = 8
_AT_ONCE = 20


def rows() -> pa.RecordBatch:
    """Return the rows on which the cases are evaluated; `k` numbers them."""
    arrays = {"k": pa.array(range(ROWS), pa.int32())} | {
        name: pa.array(values, kind) for name, (kind, values) in _COLUMNS.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def plain(value: object) -> object:
    """Return a value in JSON's types; numbers that JSON cannot hold, times and decimals become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.timezone.utc).isoformat() if value.tzinfo else value.isoformat()
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def answers() -> dict[str, Any]:
    """Return Spark's answers by case: the type, and a value for each row, `error` for a row that failed."""
    kept: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["answers"]
    return {case: answer for case, answer in kept.items() if answer is not None}


def asked(spark: SparkSession, cases: list[str]) -> dict[str, Any]:
    """Return Spark's answers to cases: in one query if none fails, otherwise case by case and row by row."""
    spark.createDataFrame(pa.Table.from_batches([rows()]), schema=DDL).createOrReplaceTempView("input")
    try:
        return _together(spark, cases)
    except Exception:  # noqa: BLE001 - Spark raises several kinds, for one case of many
        if len(cases) > 1:
            half = len(cases) // 2
            return asked(spark, cases[:half]) | asked(spark, cases[half:])
    try:
        kind = spark.sql(f"select {cases[0]} as x from input").schema[0].dataType.simpleString()
    except Exception:  # noqa: BLE001 - Spark raises several kinds
        return {cases[0]: {"type": None, "values": [ERROR] * ROWS}}  # refused, whatever the rows hold
    return {cases[0]: {"type": kind, "values": [_row(spark, cases[0], number) for number in range(ROWS)]}}


def _together(spark: SparkSession, cases: list[str]) -> dict[str, Any]:
    columns = ", ".join(f"{case} as x{place}" for place, case in enumerate(cases))
    frame = spark.sql(f"select {columns} from input")
    table = frame.toArrow()
    kinds = [field.dataType.simpleString() for field in frame.schema]
    values = [list(map(plain, table.column(place).to_pylist())) for place in range(len(cases))]
    return {case: {"type": kinds[place], "values": values[place]} for place, case in enumerate(cases)}


def _row(spark: SparkSession, case: str, number: int) -> object:
    try:
        return plain(spark.sql(f"select {case} as x from input where k = {number}").toArrow().column(0)[0].as_py())
    except Exception:  # noqa: BLE001 - Spark raises several kinds
        return ERROR


def main() -> None:
    """Ask Spark for the missing answers, and store them."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    builder: Any = importlib.import_module("pyspark.sql").SparkSession.builder  # some Pythons have no PySpark
    settings = {
        "session.timeZone": ZONE,
        "codegen.factoryMode": "NO_CODEGEN",
        "codegen.wholeStage": "false",
    }  # compiling takes longer than answering
    for name, value in settings.items():
        builder = builder.config(f"spark.sql.{name}", value)
    spark = builder.master("local[1]").getOrCreate()
    open_cases = [case for case, answer in kept["answers"].items() if answer is None]
    for place in range(0, len(open_cases), _AT_ONCE):
        kept["answers"] |= asked(spark, open_cases[place : place + _AT_ONCE])
        _keep(kept["answers"], spark.version)


def _keep(answered: dict[str, Any], version: str) -> None:
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(answer)}" for case, answer in answered.items())
    FILE.write_text(f'{{"spark": "{version}", "zone": "{ZONE}", "answers": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
