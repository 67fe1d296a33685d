"""Arrow batches as the rows that functions see, and outcomes as Arrow batches.

A row is a position in a batch. A whole column becomes Python objects when the first call asks for it, and never if none
does. The columns of the input go to the output by `take`, and stay Arrow all the way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.aio.function import outputs_of
from penstock.aio.outcome import RESULT, Failure, RowOutcome
from penstock.errors import OptionError, without_credentials
from penstock.formats.pythonvalues import of_values

ERROR_COLUMN = "_error"
ERROR_TYPE = pa.struct(
    [
        pa.field("kind", pa.string()),
        pa.field("message", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("elapsed_ms", pa.int64()),
    ]
)


def _as_python(column: pa.Array) -> list[Any]:
    """Return a column's values as Spark gives them to Python: a map is a dict, at any depth; of equal keys the last one counts."""
    if not _has_map(column.type):
        values: list[Any] = column.to_pylist()
        return values
    try:
        values = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError):  # a duplicate key, or one that Python cannot hash: a struct
        values = [_with_dicts(value, column.type) for value in column.to_pylist()]
    return values


def _as_written(column: pa.Array) -> list[Hashable]:
    """Return times as numbers, and other values as Python prints them."""
    if types.is_timestamp(column.type):
        numbers: list[Hashable] = column.cast(pa.int64()).to_pylist()
        return numbers
    if types.is_floating(column.type):
        return list(map(repr, pc.add(column, 0.0).to_pylist()))  # turns -0.0 into 0.0: SQL has one zero
    values = column.to_pylist()
    return list(map(repr, map(_with_one_zero, values) if types.is_nested(column.type) else values))


def _with_one_zero(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return a value in which each -0.0, at any depth, has become 0.0."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _with_one_zero(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_one_zero(item) for item in value]
    return value


def _has_map(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return True
    if types.is_struct(kind):
        return any(_has_map(field.type) for field in kind)
    return bool(types.is_nested(kind) and _has_map(kind.value_type))


def _with_dicts(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value
    """Return a value in which maps, which are lists of pairs, are dicts."""
    if value is None or not types.is_nested(kind):
        return value
    if types.is_map(kind):
        return {_as_key(key): _with_dicts(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    return [_with_dicts(item, kind.value_type) for item in value]


def _as_key(value: Any) -> Hashable:  # noqa: ANN401 - any value
    """Return a hashable key: a struct or an array becomes a tuple, to which Spark's `Row` is equal."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return value  # type: ignore[no-any-return]  # - all other values from Arrow are hashable
    return tuple(map(_as_key, value))


class Columns:
    """A batch of the input, and as lists those of its columns that were asked for. `ids` are the ids of its rows, if they have any."""

    __slots__ = ("_lists", "batch", "ids")

    def __init__(self, batch: pa.RecordBatch, ids: Sequence[str] = ()) -> None:
        self.batch = batch
        self.ids = ids
        self._lists: dict[Any, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        values = self._lists.get(name)
        if values is None:
            index = self.batch.schema.get_field_index(name)
            if index < 0:
                raise KeyError(name)
            values = self._lists[name] = _as_python(self.batch.column(index))
        return values

    def comparable(self, name: str) -> list[Hashable]:
        """Return a column's values in a form that is equal for equal values; a value that cannot be a Python key (a list, NaN) as its text.

        A time is its number: in the hour that is repeated when clocks go back, Python takes two instants for one.
        """
        comparable = (name,)
        values = self._lists.get(comparable)
        if values is None:
            kind = self.batch.schema.field(name).type
            is_plain = not (types.is_nested(kind) or types.is_floating(kind) or types.is_timestamp(kind))
            values = self._lists[comparable] = self[name] if is_plain else _as_written(self.batch.column(name))
        return values

    @property
    def names(self) -> list[str]:
        """Return the names of all columns."""
        return list(self.batch.schema.names)

    def rows(self) -> list[Row]:
        """Return the rows."""
        return [Row(self, place) for place in range(self.batch.num_rows)]


class Row(Mapping[str, Any]):
    """A row of the input: `row.user` or `row["user"]`; a mapping of all its columns in order. It cannot be changed.

    A column with the name of a mapping's method (`items`) is available only as `row["items"]`.
    """

    __slots__ = ("_columns", "_place")

    def __init__(self, columns: Columns, place: int) -> None:
        self._columns = columns
        self._place = place

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - values of any column
        try:
            return self._columns[name][self._place]
        except KeyError:
            msg = f"the row has no column {name!r}; it has {', '.join(self._columns.names)}"
            raise AttributeError(msg) from None

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - values of any column
        return self._columns[name][self._place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.names)

    def __len__(self) -> int:
        return len(self._columns.names)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a pool of processes, without the rest of the batch."""
        return Row, (
            Columns(self._columns.batch.take(pa.array([self._place])), self._columns.ids[self._place :][:1]),
            0,
        )


def values_of(names: tuple[str, ...]) -> Callable[[Row], Hashable] | None:
    """Return a function of a row that returns the values of these columns in a form to compare; None if there are no columns."""

    def values(row: Row) -> Hashable:
        return tuple(row._columns.comparable(name)[row._place] for name in names)  # noqa: SLF001 - the row's own place

    return values if names else None


@dataclass(frozen=True)
class Shape:
    """The columns of the output: those of the input if `keep_input`, those of the function, and the error if `with_error`."""

    schema: pa.Schema
    keep_input: bool
    with_error: bool

    def whole(self, carried: pa.Schema) -> pa.Schema:
        """Return the schema of the output for the input's schema."""
        error = [pa.field(ERROR_COLUMN, ERROR_TYPE)] if self.with_error else []
        return pa.schema([*(carried if self.keep_input else ()), *self._fields(), *error])

    def _fields(self) -> list[pa.Field]:
        """Return the columns of the function; with an error column all of them are nullable."""
        return [field.with_nullable(True) for field in self.schema] if self.with_error else list(self.schema)  # noqa: FBT003 - Arrow's

    def _misfit(self, outputs: list[tuple[Any, ...]]) -> str | None:
        """Return why outputs cannot become columns, or None if they can."""
        try:
            for field, values in zip(self.schema, zip(*outputs, strict=True), strict=False):
                of_values(values, field)
        except OptionError as error:
            return error.message
        return None

    def batches(self, outcomes: list[RowOutcome], on_error: Any) -> list[pa.RecordBatch]:  # noqa: ANN401 - see `Operator`
        """Return the output of outcomes: one batch for each batch of the input that they come from.

        If outputs do not fit their columns, their row has failed, and `on_error` decides about it. `Unplaced` for the
        first failure that the output has no column for.
        """
        try:
            return self._batches(outcomes)
        except OptionError:
            return self._batches([self.checked(outcome, on_error) for outcome in outcomes])

    def _batches(self, outcomes: list[RowOutcome]) -> list[pa.RecordBatch]:
        groups: dict[int, list[RowOutcome]] = {}
        last, group = None, []
        for outcome in outcomes:
            if outcome.failure and not self.with_error:
                raise Unplaced(outcome)
            columns = outcome.row._columns  # noqa: SLF001 - the row's own place
            if columns is not last:
                last, group = columns, groups.setdefault(id(columns), [])
            group.append(outcome)
        return [batch for batch in map(self._batch, groups.values()) if batch.num_rows]

    def _batch(self, outcomes: list[RowOutcome]) -> pa.RecordBatch:
        """Return the output of rows of one batch of the input."""
        self._check_required(outcomes)
        lists = self._outputs(outcomes)
        origins = [outcome for outcome, outputs in zip(outcomes, lists, strict=True) for _ in outputs]
        source = outcomes[0].row._columns.batch  # noqa: SLF001 - the row's own place
        columns: list[pa.Array] = []
        if self.keep_input:
            columns += _taken(source, [origin.row._place for origin in origins]).columns  # noqa: SLF001 - the row's own place
        columns += self._columns(list(chain.from_iterable(lists)))
        if self.with_error:
            errors = [origin.failure and origin.failure.told() for origin in origins]
            columns.append(pa.array(errors, ERROR_TYPE))
        return pa.RecordBatch.from_arrays(columns, schema=self.whole(source.schema))

    def _outputs(self, outcomes: list[RowOutcome]) -> list[list[tuple[Any, ...]]]:
        """Return the outputs of each row; a row that failed has one output of nulls."""
        failed: list[tuple[Any, ...]] = [(None,) * len(self.schema)]
        return [failed if outcome.failure else outcome.outputs for outcome in outcomes]

    def _columns(self, outputs: list[tuple[Any, ...]]) -> list[pa.Array]:
        """Return the columns of the function; with an error column they are null for rows that failed."""
        values = zip(*outputs, strict=True) if outputs else [()] * len(self.schema)
        return [of_values(column, field) for field, column in zip(self._fields(), values, strict=True)]

    def _check_required(self, outcomes: list[RowOutcome]) -> None:
        """Refuse a null of a row that did not fail in a column that must not be null; the output's column has the nulls of failed rows."""
        required = [at for at, field in enumerate(self.schema) if not field.nullable]
        if not required or not self.with_error:
            return
        outputs = list(chain.from_iterable(outcome.outputs for outcome in outcomes if not outcome.failure))
        for at in required:
            of_values([output[at] for output in outputs], self.schema.field(at))

    def checked(self, outcome: RowOutcome, on_error: Any) -> RowOutcome:  # noqa: ANN401 - see `Operator`
        """Return the outcome, or what `on_error` makes of it if its outputs do not fit their columns."""
        wrong = self._misfit(outcome.outputs)
        if wrong is None:
            return outcome
        if callable(on_error):
            try:
                outputs = outputs_of(on_error(outcome.row, ValueError(wrong)), tuple(self.schema.names))
                wrong = self._misfit(outputs)
            except Exception as own:  # noqa: BLE001 - the user's function may raise anything, and nothing else can decide
                wrong = f"on_error raised {type(own).__name__}: {own}"
            if wrong is None:
                return RowOutcome(outcome.index, outcome.row, outputs)
        failure = Failure(RESULT, without_credentials(wrong), outcome.attempts, 0)
        return RowOutcome(outcome.index, outcome.row, [], failure)


class Unplaced(Exception):
    """A failure that has no place in the output; it ends the task."""

    def __init__(self, outcome: RowOutcome) -> None:
        super().__init__(outcome.index)
        self.outcome = outcome


def _taken(batch: pa.RecordBatch, places: list[int]) -> pa.RecordBatch:
    """Return these rows of a batch; adjacent rows are not copied."""
    if places and places == list(range(places[0], places[0] + len(places))):
        return batch.slice(places[0], len(places))
    return batch.take(pa.array(places, pa.int64()))
