"""Spark's schemas in Arrow and back, against PySpark's own mapping, and batches that must fit one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import OptionError
from penstock.formats.schema import conform, to_arrow, to_spark

LEAVES = [
    *("void", "string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "date"),
    *("decimal(10,2)", "decimal(38,18)", "decimal", "timestamp", "timestamp_ntz", "time(6)"),
    *("interval day to second", "interval hour to minute", "interval day"),
]


def struct(*fields: tuple[str, Any], nullable: bool = True, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the parsed JSON of a Spark struct."""
    return {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": nullable, "metadata": metadata or {}} for n, t in fields],
    }


def array(kind: Any, *, null: bool = True) -> dict[str, Any]:
    """Return the parsed JSON of a Spark array."""
    return {"type": "array", "elementType": kind, "containsNull": null}


def mapping(key: Any, value: Any, *, null: bool = True) -> dict[str, Any]:
    """Return the parsed JSON of a Spark map."""
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": null}


SCHEMAS = [
    *(struct(("a", leaf)) for leaf in LEAVES),
    struct(("a", "long"), ("b", "string"), nullable=False),
    struct(("a", "long"), metadata={"comment": "one \N{EURO SIGN}", "n": 1}),
    struct(("a", array("long"))),
    struct(("a", array(array("string", null=False), null=False)), nullable=False),
    struct(("m", mapping("string", "timestamp")), ("n", mapping("long", array("date"), null=False))),
    struct(
        (
            "s",
            struct(
                ("x", "long"),
                (
                    "y",
                    struct(("z", "decimal(5,0)")),
                ),
                nullable=False,
            ),
        )
    ),
    struct(("l", array(struct(("x", mapping("string", "binary")))))),
    struct(),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_to_arrow_is_what_pyspark_demands(schema: dict[str, Any]) -> None:
    """The Arrow schema equals PySpark's for a Python data source: types, field names, nullability and metadata."""
    types = pytest.importorskip("pyspark.sql.types")
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    expected = pandas_types.to_arrow_schema(types.StructType.fromJson(schema), timezone="UTC")
    found = to_arrow(json.dumps(schema))
    assert found.equals(expected, check_metadata=True)
    assert found.to_string() == expected.to_string()


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_to_spark_is_what_pyspark_writes(schema: dict[str, Any]) -> None:
    """Spark's JSON of an Arrow schema equals what PySpark makes of it, and leads back to the same Arrow schema."""
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    arrow = to_arrow(json.dumps(schema))
    assert to_spark(arrow) == pandas_types.from_arrow_schema(arrow).json()
    assert to_arrow(to_spark(arrow)).equals(arrow, check_metadata=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("varchar(10)", pa.string()),
        ("char(3)", pa.string()),
        ("string collate UNICODE", pa.string()),
        ({"type": "udt", "class": "x", "pyClass": None, "sqlType": "double"}, pa.float64()),
    ],
)
def test_other_names_of_types(name: Any, expected: pa.DataType) -> None:
    """Character types, collations and user-defined types are read as what they are stored as."""
    assert to_arrow(json.dumps(struct(("a", name)))).field("a").type == expected


def test_collations_are_no_metadata() -> None:
    """A column with a collation, which Spark's JSON keeps in the metadata, is a plain string."""
    schema = struct(("a", "string"), metadata={"__COLLATIONS": {"a": "icu.UNICODE"}})
    assert to_arrow(json.dumps(schema)).equals(pa.schema([("a", pa.string())]), check_metadata=True)


@pytest.mark.parametrize("kind", ["array<void>", "map<void, void>"])
def test_types_without_values_name_the_column(kind: str) -> None:
    """What `array()` and `map()` are to Spark, void where no null may be, is refused by name and not by Arrow's words."""
    element = {"type": "array", "elementType": "void", "containsNull": False}
    entries = {"type": "map", "keyType": "void", "valueType": "void", "valueContainsNull": False}
    field = {"name": "x", "nullable": True, "type": element if kind == "array<void>" else entries}
    inner = {"name": "s", "nullable": True, "type": {"type": "struct", "fields": [field]}}
    for where, name in ((field, "x"), (inner, "s.x")):
        with pytest.raises(OptionError, match=f"column '{name}' is of type void NOT NULL, or holds it"):
            to_arrow(json.dumps({"type": "struct", "fields": [where]}))


@pytest.mark.parametrize("name", ["variant", "interval", "interval year to month", "geometry(OGC:CRS84)", "nonsense"])
@pytest.mark.parametrize("wrap", [lambda t: t, array, lambda t: struct(("inner", t)), lambda t: mapping("string", t)])
def test_unsupported_types_name_the_column(name: str, wrap: Any) -> None:
    """A type that files cannot hold is refused, at any depth, with the column's name and the type."""
    with pytest.raises(OptionError, match=r"column 'bad(\.inner)?' has type") as caught:
        to_arrow(json.dumps(struct(("good", "long"), ("bad", wrap(name)))))
    assert name in caught.value.message


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.uint8(), "short"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("ms", tz="Europe/Paris"), "timestamp"),
        (pa.date64(), "date"),
        (pa.time32("s"), "time(6)"),
        (pa.duration("ns"), "interval day to second"),
        (pa.decimal256(20, 2), "decimal(20,2)"),
        (pa.large_list(pa.int64()), array("long")),
        (pa.list_(pa.int64(), 3), array("long")),
    ],
)
def test_other_encodings_have_sparks_type(kind: pa.DataType, expected: Any) -> None:
    """What a transform may make of a column is named by the Spark type that holds the same values, and then fits it."""
    schema = to_spark(pa.schema([("a", kind)]))
    assert json.loads(schema)["fields"][0]["type"] == expected
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, kind)], names=["a"])
    assert conform(batch, to_arrow(schema)).schema.equals(to_arrow(schema))


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_arrow_types_without_a_spark_type_are_refused(kind: pa.DataType) -> None:
    """A type Spark cannot hold is refused with the path of the column."""
    with pytest.raises(OptionError, match=r"column 'a\.b'"):
        to_spark(pa.schema([("a", pa.struct([("b", kind)]))]))


UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("found", "values", "expected", "expected_values"),
    [
        (pa.large_string(), ["a", None], pa.string(), ["a", None]),
        (pa.string_view(), ["a", None], pa.string(), ["a", None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], pa.string(), ["a", None, "a"]),
        (pa.binary(2), [b"ab", None], pa.binary(), [b"ab", None]),
        (pa.string(), ["a"], pa.binary(), [b"a"]),
        (pa.uint32(), [1, None], pa.int64(), [1, None]),
        (pa.int64(), [127, -128], pa.int8(), [127, -128]),
        (pa.int64(), [1, 1 << 53], pa.float64(), [1.0, 2.0**53]),
        (pa.float32(), [0.5], pa.float64(), [0.5]),
        (pa.int32(), [5], pa.decimal128(10, 2), [Decimal(5)]),
        (pa.decimal128(5, 1), [Decimal("1.5")], pa.decimal128(10, 2), [Decimal("1.50")]),
        (pa.list_(pa.int64()), [[5]], pa.list_(pa.decimal128(38, 19)), [[Decimal(5)]]),
        (pa.timestamp("ns", tz="UTC"), [1_000, None], UTC, [1, None]),
        (pa.timestamp("ms", tz="Europe/Paris"), [1], UTC, [1_000]),
        (pa.timestamp("us"), [1], UTC, [1]),
        (pa.date64(), [86_400_000], pa.date32(), [1]),
        (pa.null(), [None], pa.list_(pa.string()), [None]),
        (pa.large_list(pa.large_string()), [["a"], None], pa.list_(pa.string()), [["a"], None]),
        (pa.map_(pa.large_string(), pa.int32()), [[("k", 1)]], pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
    ],
    ids=str,
)
def test_conform_keeps_the_values(
    found: pa.DataType, values: list[Any], expected: pa.DataType, expected_values: list[Any]
) -> None:
    """Another encoding of the same values becomes exactly the expected type; no value changes."""
    schema = pa.schema([pa.field("a", expected, metadata={b"k": b"v"})])
    fitted = conform(pa.RecordBatch.from_arrays([pa.array(values, found)], names=["a"]), schema)
    assert fitted.schema.equals(schema, check_metadata=True)
    assert fitted.column(0).equals(pa.array(expected_values, expected))


def test_conform_selects_and_orders_by_name() -> None:
    """Columns are found by name, put in the schema's order, and others are left out; members of structs as well."""
    inner = pa.struct([("x", pa.int64()), ("y", pa.string())])
    schema = pa.schema([("b", pa.string()), ("a", inner)])
    batch = pa.RecordBatch.from_pylist([{"a": {"y": "why", "x": 1, "z": 0}, "c": 0, "b": "bee"}])
    assert conform(batch, schema).to_pylist() == [{"b": "bee", "a": {"x": 1, "y": "why"}}]
    assert conform(conform(batch, schema), schema).schema == schema


@pytest.mark.parametrize(
    ("found", "expected", "values", "words"),
    [
        (pa.string(), pa.int64(), ["1"], ["string", "bigint"]),
        (pa.int64(), pa.string(), [1], ["bigint", "string"]),
        (pa.float64(), pa.int64(), [1.0], ["double", "bigint"]),
        (pa.float64(), pa.float32(), [0.1], ["double", "float"]),
        (pa.int64(), pa.int8(), [300], ["bigint", "tinyint", "300"]),
        (pa.int64(), pa.float64(), [(1 << 53) + 1], ["bigint", "double"]),
        (UTC, pa.timestamp("us"), [0], ["timestamp", "timestamp_ntz"]),
        (pa.timestamp("ns"), pa.timestamp("us"), [1], ["timestamp_ntz", "lose data"]),
        (pa.decimal128(10, 2), pa.decimal128(10, 1), [Decimal("1.25")], ["decimal(10,2)", "decimal(10,1)"]),
        (pa.int64(), pa.decimal128(4, 2), [100], ["bigint", "decimal(4,2)"]),
        (pa.decimal128(2, 1), pa.decimal128(38, 38), [Decimal("7.6")], ["decimal(2,1)", "decimal(38,38)"]),
        (pa.list_(pa.decimal128(2, 1)), pa.list_(pa.decimal128(38, 38)), [[Decimal("7.6")]], ["array<decimal(38,38)>"]),
        (pa.list_(pa.int64()), pa.list_(pa.string()), [[1]], ["array<bigint>", "array<string>"]),
        (pa.struct([("x", pa.int64())]), pa.map_(pa.string(), pa.int64()), [{"x": 1}], ["struct<x: bigint>", "map<"]),
        (pa.bool_(), pa.int64(), [True], ["boolean", "bigint"]),
        (pa.binary(), pa.string(), [b"a"], ["binary", "string"]),
    ],
    ids=str,
)
def test_conform_refuses_what_would_change(
    found: pa.DataType, expected: pa.DataType, values: list[Any], words: list[str]
) -> None:
    """Another kind of value, or one that does not fit, is refused with the column, what was found and what expected."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, found)], names=["col"])
    with pytest.raises(OptionError, match="column 'col'") as caught:
        conform(batch, pa.schema([("col", expected)]))
    assert [word for word in words if word not in caught.value.message] == []


def test_conform_misses_columns_by_name() -> None:
    """A missing column is refused with its name, its type and the names that are there; so is one that is there twice."""
    batch = pa.RecordBatch.from_arrays([pa.array([1])] * 3, names=["a", "b", "b"])
    with pytest.raises(OptionError, match=r"'c' is missing.* found a, b, b; expected one of bigint"):
        conform(batch, pa.schema([("c", pa.int64())]))
    with pytest.raises(OptionError, match="'b' is missing or there twice"):
        conform(batch, pa.schema([("b", pa.int64())]))


NO_NULL = pa.field("element", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("loose", "strict", "values"),
    [
        (pa.int64(), pa.field("a", pa.int64(), nullable=False), [1, None]),
        (pa.list_(pa.int64()), pa.field("a", pa.list_(NO_NULL)), [[1, None]]),
        (pa.struct([("element", pa.int64())]), pa.field("a", pa.struct([NO_NULL])), [{"element": None}]),
        (pa.map_(pa.string(), pa.int64()), pa.field("a", pa.map_(pa.string(), NO_NULL)), [[("k", None)]]),
    ],
    ids=str,
)
def test_conform_refuses_nulls_where_there_must_be_none(
    loose: pa.DataType, strict: pa.Field, values: list[Any]
) -> None:
    """A null in a column, element, member or map value that the schema calls not nullable is refused."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, loose)], names=["a"])
    with pytest.raises(OptionError, match=r"column 'a' .*has nulls"):
        conform(batch, pa.schema([strict]))


def test_conform_allows_nulls_around_values_that_must_not_be_null() -> None:
    """A null struct or list has no members, so it does not break the rule that they are not null."""
    schema = pa.schema([("s", pa.struct([NO_NULL])), ("l", pa.list_(NO_NULL))])
    batch = pa.RecordBatch.from_pylist([{"s": None, "l": None}, {"s": {"element": 1}, "l": [1]}])
    assert conform(batch, schema).to_pylist() == batch.to_pylist()
