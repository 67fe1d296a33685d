"""The columns of a table file, fitted to a schema: found by name, of a type that fits, returned as exactly the schema.

Columns, and members of structs, are found by name, exactly or else ignoring case, as Spark does; a missing column is
null. Numbers may be narrower in the file, and times may have another unit. Bytes may stand for text, and numbers for
intervals, which Spark stores without marking them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from penstock.errors import BadFile, OptionError
from penstock.formats.conforming import castable, fitted, recast, relabelled
from penstock.formats.nested import leaves
from penstock.formats.schema import nullable, spark_name
from penstock.formats.zones import UTC, instants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.formats.account import Account

_LOCAL_MICROS = pa.timestamp("us")
_BOUNDED = re.compile(r"decimal|time(?:32|64)")  # types whose values may be outside of them
_TIME_NANOS, _TIME_MICROS = pa.time64("ns"), pa.time64("us")


def count_others(stored: pa.Schema, names: Mapping[str, str], rows: int, account: Account | None) -> None:
    """Count in the account the columns of a file that are not in the schema, for `rows` rows."""
    if account is not None:
        taken = set(names.values())
        account.count((name, rows) for name in stored.names if name not in taken)


def found(stored: pa.Schema, schema: pa.Schema) -> dict[str, str]:
    """Return, by the name of each column of `schema`, its name in the file; `BadFile` for another type, or for two of one name."""
    names = _matches("column", stored.names, schema.names)
    for wanted, name in names.items():
        _check_type(stored.field(name).type, schema.field(wanted))
    return names


def _matches(noun: str, stored: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """Return which name in the file each wanted name means: the same, or else the only one that differs in case alone. `BadFile`."""
    folded: dict[str, list[str]] = {}
    for name in stored:
        folded.setdefault(name.lower(), []).append(name)
    names: dict[str, str] = {}
    for name in wanted:
        like = folded.get(name.lower(), [])
        same = [other for other in like if other == name] or like
        if len(same) > 1:
            msg = f"{noun} {name!r} is ambiguous: found {', '.join(stored)}, expected one of that name"
            raise BadFile(msg)
        if same:
            names[name] = same[0]
    return names


def _check_type(kind: pa.DataType, field: pa.Field) -> None:
    if not castable(_meant(_named(kind, field.type), field.type), field.type):
        msg = f"column {field.name!r} has another type: found {spark_name(kind)}, expected {spark_name(field.type)}"
        raise BadFile(msg)


def _named(found: pa.DataType, expected: pa.DataType) -> pa.DataType:
    """Return a file's type with members of structs named as in the schema, at any depth; `BadFile` if a name is ambiguous."""
    if types.is_struct(found) and types.is_struct(expected):
        return _named_struct(found, expected)
    if types.is_map(found) and types.is_map(expected):
        key = found.key_field.with_type(_named(found.key_type, expected.key_type))
        return pa.map_(key, found.item_field.with_type(_named(found.item_type, expected.item_type)))
    make = next((make for is_kind, make in _LISTS if is_kind(found) and types.is_list(expected)), None)
    return (
        found
        if make is None
        else make(found.value_field.with_type(_named(found.value_type, expected.value_type)), found)
    )


_LISTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Field, pa.DataType], pa.DataType]], ...] = (
    (types.is_list, lambda element, _: pa.list_(element)),
    (types.is_large_list, lambda element, _: pa.large_list(element)),
    (types.is_list_view, lambda element, _: pa.list_view(element)),
    (types.is_large_list_view, lambda element, _: pa.large_list_view(element)),
    (types.is_fixed_size_list, lambda element, found: pa.list_(element, found.list_size)),
)


def _named_struct(found: pa.StructType, expected: pa.StructType) -> pa.DataType:
    names = _matches("member", [member.name for member in found], [member.name for member in expected])
    wanted = {name: expected.field(meant) for meant, name in names.items()}
    members = []
    for member in found:
        meant = wanted.get(member.name)
        members.append(
            member if meant is None else member.with_name(meant.name).with_type(_named(member.type, meant.type))
        )
    return pa.struct(members)


def _meant(found: pa.DataType, expected: pa.DataType) -> pa.DataType:
    """Return what a file's type stands for, at any depth, if the file does not say it, or if a day is wanted as a time.

    Old writers do not mark text; each value is checked for UTF-8. Spark stores a day-time interval as a number of
    microseconds, and says so only in its own key.
    """
    if types.is_struct(found) and types.is_struct(expected):
        known = {member.name: member.type for member in expected}
        return pa.struct([m.with_type(_meant(m.type, known[m.name])) if m.name in known else m for m in found])
    if types.is_list(found) and types.is_list(expected):
        return pa.list_(found.value_field.with_type(_meant(found.value_type, expected.value_type)))
    if types.is_map(found) and types.is_map(expected):
        key = found.key_field.with_type(_meant(found.key_type, expected.key_type))
        return pa.map_(key, found.item_field.with_type(_meant(found.item_type, expected.item_type)))
    return _meant_leaf(found, expected)


def _meant_leaf(found: pa.DataType, expected: pa.DataType) -> pa.DataType:
    if types.is_string(expected) and types.is_binary(found):
        return pa.string()
    if expected == _LOCAL_MICROS and types.is_date(found):
        return expected  # its midnight, as in Spark
    return expected if types.is_duration(expected) and types.is_int64(found) else found


def conformed(batch: pa.RecordBatch, schema: pa.Schema, names: Mapping[str, str], zone: str = UTC) -> pa.RecordBatch:
    """Return rows of a file as exactly `schema`; `names` is the result of `found`, `zone` applies to times without one. `BadFile`."""
    try:
        batch = _renamed(batch, schema, names)
        columns = [_conformed_column(batch, field, names.get(field.name), zone) for field in schema]
    except (OptionError, pa.ArrowInvalid) as error:
        raise BadFile(getattr(error, "message", str(error))) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _renamed(batch: pa.RecordBatch, schema: pa.Schema, names: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows with the members of structs named as in the schema. Names of columns stay."""
    expected = {names[field.name]: field.type for field in schema if field.name in names}
    named = [
        field.with_type(_named(field.type, expected[field.name])) if field.name in expected else field
        for field in batch.schema
    ]
    return batch if named == list(batch.schema) else relabelled(batch, pa.schema(named))


def _conformed_column(batch: pa.RecordBatch, field: pa.Field, name: str | None, zone: str) -> pa.Array:
    if name is None:
        return fitted(pa.nulls(batch.num_rows, field.type), field)
    column = batch.column(batch.schema.get_field_index(name))
    _check_values(column, field)
    meant = _meant(column.type, field.type)
    if meant != column.type:
        column = recast(column, nullable(meant))
    if zone != UTC:
        column = _in_zone(column, field, zone)
    if _time_in_micros(column.type) != column.type:
        _check_times(column, field)
    return fitted(column, field)


def _check_values(column: pa.Array, field: pa.Field) -> None:
    """Raise `OptionError` for times of day outside of a day, and for decimals with more digits than the file declares.

    A column type with room for these digits would hide them.
    """
    if not _BOUNDED.search(str(column.type)):
        return
    for leaf in leaves(column):
        is_time = types.is_time(leaf.type)
        if is_time or types.is_decimal(leaf.type):
            try:
                leaf.validate(full=True)
            except pa.ArrowInvalid as error:
                value = "outside of a day" if is_time else "of more digits"
                msg = f"column {field.name!r} is {spark_name(leaf.type)} in the file, and has a value {value}: {error}"
                raise OptionError(msg) from error


def _check_times(column: pa.Array, field: pa.Field) -> None:
    """Raise `OptionError` for times of day with digits that Spark's type has no room for: Arrow also has nanoseconds."""
    try:
        recast(column, nullable(_time_in_micros(column.type)))
    except pa.ArrowInvalid as error:
        msg = (
            f"column {field.name!r} has a time of day with digits after its microseconds, found {error}; expected "
            "time(6), which ends there: write the file with microseconds, or leave the column out"
        )
        raise OptionError(msg) from error


def _time_in_micros(kind: pa.DataType) -> pa.DataType:
    """Return a file's type with times of day in microseconds instead of nanoseconds, at any depth."""
    return _with_leaves(kind, lambda leaf: _TIME_MICROS if leaf == _TIME_NANOS else leaf)


def without_extensions(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a file with their storage types, which is how Spark sees Arrow's own types (JSON, UUID), at any depth."""
    return pa.schema([column.with_type(_with_leaves(column.type, _in_file)) for column in schema])


def in_file(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a file with its columns as their storage types."""
    plain = without_extensions(rows.schema)
    return rows if plain.equals(rows.schema) else relabelled(rows, plain)


def _in_file(kind: pa.DataType) -> pa.DataType:
    return _with_leaves(kind.storage_type, _in_file) if isinstance(kind, pa.BaseExtensionType) else kind


def _with_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with `change` applied to its leaves, and everything around them unchanged."""
    if types.is_struct(kind):
        return pa.struct([member.with_type(_with_leaves(member.type, change)) for member in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(_with_leaves(kind.key_type, change))
        return pa.map_(key, kind.item_field.with_type(_with_leaves(kind.item_type, change)))
    for is_kind, make in _LISTS:
        if is_kind(kind):
            return make(kind.value_field.with_type(_with_leaves(kind.value_type, change)), kind)
    return change(kind)


def _in_zone(column: pa.Array, field: pa.Field, zone: str) -> pa.Array:
    """Return times without a zone as the instants at which a clock of `zone` shows them, if instants are wanted."""
    kind = column.type
    if types.is_nested(kind) and _has_local(kind, field.type):
        msg = (
            f"column {field.name!r} has times without a zone inside, which are read as UTC only; set timeZone=UTC, or read them as "
            "timestamp_ntz"
        )
        raise OptionError(msg)
    return instants(recast(column, _LOCAL_MICROS), zone) if _is_local(kind, field.type) else column


def _is_local(found: pa.DataType, expected: pa.DataType) -> bool:
    return types.is_timestamp(found) and found.tz is None and types.is_timestamp(expected) and expected.tz is not None


def _has_local(found: pa.DataType, expected: pa.DataType) -> bool:
    """Tell whether a nested type has times without a zone for which instants are wanted. Called for types that are castable."""
    if types.is_struct(found):
        return any(
            _has_local(found.field(member.name).type, member.type)
            for member in expected
            if found.get_field_index(member.name) >= 0
        )
    if types.is_map(found):
        pairs = (found.key_type, expected.key_type), (found.item_type, expected.item_type)
        return any(_has_local(*pair) for pair in pairs)
    if types.is_nested(found):
        return _has_local(found.value_type, expected.value_type)
    return _is_local(found, expected)
