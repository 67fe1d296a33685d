"""Conversion between Spark's schemas and Arrow's, compared with PySpark's own mapping; and batches that must fit a schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import OptionError
from penstock.formats.conforming import conform
from penstock.formats.schema import to_arrow, to_spark

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


EXACT = b"penstock.spark"


def without_exact(fields: Any) -> Any:
    """Return a schema, or fields, without the record of the exact Spark type that Arrow cannot express."""
    plain = []
    for field in fields:
        metadata = {key: value for key, value in (field.metadata or {}).items() if key != EXACT}
        kind = pa.struct(without_exact(field.type)) if pa.types.is_struct(field.type) else field.type
        plain.append(field.with_type(kind).with_metadata(metadata or None))
    return pa.schema(plain)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_to_arrow_is_what_pyspark_demands(schema: dict[str, Any]) -> None:
    """The Arrow schema equals PySpark's for a Python data source: types, field names, nullability and metadata."""
    types = pytest.importorskip("pyspark.sql.types")
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    expected = pandas_types.to_arrow_schema(types.StructType.fromJson(schema), timezone="UTC")
    found = without_exact(to_arrow(json.dumps(schema)))
    assert found.equals(expected, check_metadata=True)
    assert found.to_string() == expected.to_string()


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_to_spark_is_what_pyspark_writes(schema: dict[str, Any]) -> None:
    """The Spark JSON of an Arrow schema equals the JSON it was made from, as PySpark writes it, and converts back to the same schema."""
    types = pytest.importorskip("pyspark.sql.types")
    arrow = to_arrow(json.dumps(schema))
    assert to_spark(arrow) == types.StructType.fromJson(schema).json()
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
    """Character types, collations and user-defined types are read as the types in which they are stored."""
    assert to_arrow(json.dumps(struct(("a", name)))).field("a").type == expected


def test_collations_are_no_metadata() -> None:
    """A column with a collation, which Spark's JSON keeps in the metadata, is a plain string column."""
    schema = struct(("a", "string"), metadata={"__COLLATIONS": {"a": "icu.UNICODE"}})
    arrow = to_arrow(json.dumps(schema))
    assert without_exact(arrow).equals(pa.schema([("a", pa.string())]), check_metadata=True)
    assert json.loads(to_spark(arrow)) == schema


@pytest.mark.parametrize("change", [{"type": pa.int64()}, {"name": "other"}])
def test_a_column_that_became_another_one_is_what_it_is_now(change: dict[str, Any]) -> None:
    """The exact Spark type recorded for a column is ignored once a transform has renamed the column or changed its type."""
    field = to_arrow(json.dumps(struct(("a", "interval day")))).field("a")
    field = field.with_type(change.get("type", field.type)).with_name(change.get("name", field.name))
    expected = "long" if "type" in change else "interval day to second"
    assert json.loads(to_spark(pa.schema([field])))["fields"][0]["type"] == expected


def test_a_type_in_many_others() -> None:
    """Documents of pages nest dozens of structs and arrays: a walk through all below for each level above would never end."""
    kind: Any = "long"
    for _ in range(60):
        member = {"metadata": {"comment": "m"}, "name": "m", "nullable": True, "type": kind}
        kind = {"containsNull": True, "elementType": {"fields": [member], "type": "struct"}, "type": "array"}
    spark = {"fields": [{"metadata": {}, "name": "c", "nullable": True, "type": kind}], "type": "struct"}
    assert json.loads(to_spark(to_arrow(json.dumps(spark)))) == spark


def test_user_defined_types_are_what_they_are_stored_as() -> None:
    """The class name of a user-defined type, which a reader of the schema would load, is dropped at any depth."""
    udt = {
        "type": "udt",
        "class": "x",
        "pyClass": "os.system",
        "serializedClass": "cG93bmVk",
        "sqlType": "interval day",
    }
    for kind in (udt, array(udt), mapping("string", udt), struct(("inner", udt)), array(struct(("inner", udt)))):
        arrow = to_arrow(json.dumps(struct(("a", kind))))
        assert "pyClass" not in to_spark(arrow)
        assert '"interval day"' in to_spark(arrow)
        assert b"pyClass" not in arrow.serialize().to_pybytes()


def test_nulls_of_structs_whose_members_may_not_be_null() -> None:
    """A null struct breaks no rule about its members, also if only metadata or the order of the columns differ."""
    member = pa.field("x", pa.int32(), nullable=False)
    column = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32())], fields=[member], mask=pa.array([False, True])
    )
    for metadata in ({b"k": b"v"}, None):
        inner = pa.struct([member.with_metadata(metadata)])
        for schema in (
            pa.schema([pa.field("a", pa.int64()), pa.field("s", inner)]),
            pa.schema([pa.field("s", inner), pa.field("a", pa.int64())]),
            pa.schema([pa.field("s", pa.struct([pa.field("x", pa.int64(), nullable=False)]))]),
        ):
            found = conform(pa.RecordBatch.from_arrays([pa.array([1, 2]), column], names=["a", "s"]), schema)
            found.validate(full=True)
            assert found.schema.equals(schema, check_metadata=True)
            assert found.column("s").to_pylist() == [{"x": 1}, None]
    missing = pa.StructArray.from_arrays([pa.array([1, None], pa.int32())], names=["x"])
    with pytest.raises(OptionError, match="nulls where the schema allows none"):
        conform(pa.RecordBatch.from_arrays([missing], names=["s"]), pa.schema([pa.field("s", pa.struct([member]))]))


@pytest.mark.parametrize("kind", ["array<void>", "map<void, void>"])
def test_types_without_values_name_the_column(kind: str) -> None:
    """The Spark types of `array()` and `map()`, void where no null is allowed, are refused with the column's name, not Arrow's error."""
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
    """A type that files cannot hold is refused at any depth, with the column's name and the type."""
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
    """A type that a transform may produce is mapped to the Spark type with the same values, and the batch then fits that type."""
    schema = to_spark(pa.schema([("a", kind)]))
    assert json.loads(schema)["fields"][0]["type"] == expected
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, kind)], names=["a"])
    assert conform(batch, to_arrow(schema)).schema.equals(to_arrow(schema))


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_arrow_types_without_a_spark_type_are_refused(kind: pa.DataType) -> None:
    """An Arrow type without a Spark type is refused with the path of the column."""
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
    """The same values in another encoding become exactly the expected type; no value changes."""
    schema = pa.schema([pa.field("a", expected, metadata={b"k": b"v"})])
    fitted = conform(pa.RecordBatch.from_arrays([pa.array(values, found)], names=["a"]), schema)
    assert fitted.schema.equals(schema, check_metadata=True)
    assert fitted.column(0).equals(pa.array(expected_values, expected))


def test_conform_selects_and_orders_by_name() -> None:
    """Columns are matched by name and put in the schema's order, and extra ones are left out; so are members of structs."""
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
    """A value of another kind, or one that does not fit, is refused with the column, what was found and what was expected."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, found)], names=["col"])
    with pytest.raises(OptionError, match="column 'col'") as caught:
        conform(batch, pa.schema([("col", expected)]))
    assert [word for word in words if word not in caught.value.message] == []


def test_conform_misses_columns_by_name() -> None:
    """A missing column is refused with its name, its type and the names that exist; so is a repeated column."""
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
    """A null struct or list has no members, so the rule that members may not be null does not apply to it."""
    schema = pa.schema([("s", pa.struct([NO_NULL])), ("l", pa.list_(NO_NULL))])
    batch = pa.RecordBatch.from_pylist([{"s": None, "l": None}, {"s": {"element": 1}, "l": [1]}])
    assert conform(batch, schema).to_pylist() == batch.to_pylist()


LISTS_OF_NULLS = [[None, None, None], [], None, [None]]


@pytest.mark.parametrize("begin", range(4))
def test_nulls_in_lists_and_slices_are_cast_as_they_are(begin: int) -> None:
    """Lists and maps that contain only nulls, and slices of nested columns, keep their lengths when another column is cast."""

    def kind(number: pa.DataType) -> pa.DataType:
        member = pa.struct([("l", pa.list_(pa.null())), ("m", pa.map_(pa.string(), pa.null())), ("n", number)])
        return pa.struct([("inner", pa.list_(member)), ("by", pa.map_(number, pa.list_(pa.null()))), ("n", number)])

    value = [{"l": nulls, "m": [("a", None), ("b", None)], "n": 7} for nulls in LISTS_OF_NULLS]
    rows = [{"inner": value, "by": [(1, [None, None]), (2, [])], "n": count} for count in range(3)] + [None]
    column = pa.array(rows, kind(pa.int32()))
    for length in range(1, 5 - begin):
        batch = pa.RecordBatch.from_arrays([column.slice(begin, length)], names=["c"])
        [found] = conform(batch, pa.schema([("c", kind(pa.int64()))])).columns
        found.validate(full=True)
        assert found.to_pylist() == rows[begin : begin + length]


def test_null_structs_as_values_of_a_map() -> None:
    """A map with null structs as values, whose members may not be null, breaks no rule."""
    kind = pa.map_(pa.string(), pa.struct([pa.field("x", pa.int64(), nullable=False)]))
    batch = pa.RecordBatch.from_arrays([pa.array([[("a", None), ("b", {"x": 1})]], kind)], names=["m"])
    found = conform(batch, pa.schema([pa.field("m", kind, nullable=False)]))
    assert found.column("m").to_pylist() == [[("a", None), ("b", {"x": 1})]]
