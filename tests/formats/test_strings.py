"""Strings with invalid UTF-8, in columns of any type: found, named, and replaced as Python replaces them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.strings import checked

PIECES = [
    b"",
    b"a",
    b"\n",
    b"\xff",
    b"\xc3",
    b"\xa9",
    "é".encode(),
    b"\xf0\x9f\x98",
    b"\xed\xa0\xbd",
    b"\0",
    "\ufffd".encode(),
]
VALUES = st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join)
KINDS: list[pa.DataType] = [
    pa.binary(),
    pa.struct([("s", pa.binary()), ("n", pa.int64())]),
    pa.list_(pa.binary()),
    pa.map_(pa.binary(), pa.binary()),
    pa.list_(pa.struct([("l", pa.list_(pa.binary()))])),
    pa.map_(pa.binary(), pa.struct([("s", pa.binary())])),
]


def drawn(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, some of them null."""
    if types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: drawn(field.type) for field in kind})
    if types.is_map(kind):
        return st.none() | st.lists(st.tuples(VALUES, drawn(kind.item_type)), max_size=3)
    if types.is_list(kind):
        return st.none() | st.lists(drawn(kind.value_type), max_size=3)
    return st.none() | (VALUES if types.is_binary(kind) else st.integers(0, 9))


def of_strings(kind: pa.DataType) -> pa.DataType:
    """Return the type with string in place of binary."""
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, of_strings(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(of_strings(kind.key_type), of_strings(kind.item_type))
    if types.is_list(kind):
        return pa.list_(of_strings(kind.value_type))
    return pa.string() if types.is_binary(kind) else kind


def as_strings(column: pa.Array) -> pa.Array:
    """Return binary data as unchecked strings, which is what Spark passes on."""
    kind = column.type
    if types.is_struct(kind):
        members = [as_strings(column.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, names=[field.name for field in kind], mask=column.is_null())
    if types.is_map(kind):
        parts = as_strings(column.keys), as_strings(column.items)
        return pa.MapArray.from_arrays(column.offsets, *parts, mask=column.is_null())
    if types.is_list(kind):
        return pa.ListArray.from_arrays(column.offsets, as_strings(column.values), mask=column.is_null())
    return column.view(pa.string()) if types.is_binary(kind) else column


def decoded(value: Any) -> Any:
    """Return Python values with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {name: decoded(member) for name, member in value.items()}
    return type(value)(map(decoded, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_bytes_that_are_no_text_are_replaced_or_named(kind: pa.DataType, data: st.DataObject) -> None:
    """At any depth and in any slice, each string equals the result of Python's own `replace`; and `fail` names the column."""
    values = data.draw(st.lists(drawn(kind), min_size=1, max_size=6))
    begin = data.draw(st.integers(0, len(values)))
    column = as_strings(pa.array(values, kind)).slice(begin)
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(column))), column], names=["n", "c"])
    found = checked(batch, "replace")
    found.validate()
    assert found.schema == batch.schema
    assert found.column(1).to_pylist() == decoded(pa.array(values, kind).slice(begin).to_pylist())
    if found is batch:
        assert checked(batch, "fail") is batch
        return
    assert not found.equals(batch)
    with pytest.raises(OptionError, match="column 'c': found '"):
        checked(batch, "fail")


def test_the_string_that_is_wrong_is_shown() -> None:
    """The message shows the first invalid string, at whatever depth, and says what to do."""
    wrong = pa.array([[b"good"], [b"also good", b"caf\xe9"]], pa.list_(pa.binary()))
    batch = pa.RecordBatch.from_arrays([as_strings(wrong)], names=["names"])
    with pytest.raises(
        OptionError, match=r"column 'names': found 'caf\\xe9', expected UTF-8; set encodingErrors=replace"
    ):
        checked(batch, "fail")


def test_characters_are_not_put_together_of_two_values() -> None:
    """Two values that each hold half of a character are both invalid, although concatenated they would be valid."""
    halves = pa.RecordBatch.from_arrays([as_strings(pa.array([b"\xc3", b"\xa9"]))], names=["c"])
    assert checked(halves, "replace").column(0).to_pylist() == ["\ufffd", "\ufffd"]


def test_what_lies_below_a_null_is_no_value() -> None:
    """Bytes in a member of a null struct are never read and must not cause a failure."""
    member = as_strings(pa.array([b"\xff", b"a"]))
    struct = pa.StructArray.from_arrays([member], names=["s"], mask=pa.array([True, False]))
    batch = pa.RecordBatch.from_arrays([struct], names=["c"])
    assert checked(batch, "fail") is batch
