"""Compiles a select for rows of one schema: finds columns, determines types, chooses kernels."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.ingestion.sql import casts, functions
from penstock.ingestion.sql.columns import column, place_of, without_views
from penstock.ingestion.sql.expression import Expression, Rows, written
from penstock.ingestion.sql.parser import parsed
from penstock.ingestion.sql.tree import Case, CastTo, Constant, Name, SqlCall, Star, refusal, refuse

if TYPE_CHECKING:
    from penstock.ingestion.sql.tree import Item, Select, Tree

_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_CAST = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}


@dataclass(frozen=True)
class Compiled:
    """A compiled select over rows of one schema."""

    names: tuple[str, ...]
    values: tuple[Expression | int, ...]  # an expression, or the index of a column that passes unchanged
    where: Expression | None

    def answer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the result of the select for a batch."""
        batch = without_views(batch)
        if self.where is not None:
            rows = Rows(batch)
            batch = batch.filter(rows.spread(self.where.run(rows)))
        rows = Rows(batch)
        columns = [
            batch.column(value) if isinstance(value, int) else rows.spread(value.run(rows)) for value in self.values
        ]
        fields = [
            batch.schema.field(value).with_name(name) if isinstance(value, int) else pa.field(name, value.type)
            for name, value in zip(self.names, self.values, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@lru_cache(maxsize=32)
def compiled(text: str, zone: str, schema: pa.Schema) -> Compiled:
    """Return the compiled select of a text for batches of a schema. Raises `SqlError`."""
    try:
        return _Compiler(parsed(text), zone, schema).compiled()
    except RecursionError as error:
        raise refusal(0, "it is nested too deeply; have fewer values in each other") from error


class _Compiler:
    """Compiles one select for one schema."""

    def __init__(self, select: Select, zone: str, schema: pa.Schema) -> None:
        self._select = select
        self._zone = zone
        self._schema = schema

    def compiled(self) -> Compiled:
        named: list[tuple[str, Expression | int]] = []
        for item in self._select.items:
            named += self._all(item) if isinstance(item, Star) else [self._one(item)]
        where = None if self._select.where is None else self._condition(self._select.where)
        names, values = zip(*named, strict=True) if named else ((), ())
        self._check_names(list(names))
        return Compiled(tuple(names), tuple(values), where)

    def _check_names(self, names: list[str]) -> None:
        if not names:
            refuse(0, "it has no columns; select one at least")
        for place, name in enumerate(names):
            if name.lower() in {other.lower() for other in names[:place]}:
                refuse(self._select.items[0].at, f"two columns are called {name!r}; give one another name: as x")

    def _all(self, star: Star) -> list[tuple[str, Expression | int]]:
        fields = list(self._schema)
        out = {place_of(name.parts[0], fields, name.at, "input") for name in star.without}
        return [(field.name, place) for place, field in enumerate(fields) if place not in out]

    def _one(self, item: Item) -> tuple[str, Expression | int]:
        tree = item.value
        if isinstance(tree, Name):
            name = item.name or tree.parts[-1]
            places = [place for place, field in enumerate(self._schema) if field.name.lower() == tree.parts[-1].lower()]
            is_whole = len(tree.parts) == 1 and len(places) == 1
            return name, places[0] if is_whole else column(tree, self._schema, self._select.alias)
        if item.name is None:
            refuse(item.at, "a value that is computed needs a name: as x")
        value = self._expression(tree)
        if pa.types.is_null(value.type):
            refuse(item.at, "null has no type; write cast(null as string)")
        return item.name, value

    def _condition(self, tree: Tree) -> Expression:
        condition = self._expression(tree)
        if not pa.types.is_boolean(condition.type):
            refuse(tree.at, "where takes a condition; compare the value with another")
        return condition

    def _expression(self, tree: Tree) -> Expression:
        if isinstance(tree, Name):
            return column(tree, self._schema, self._select.alias)
        if isinstance(tree, Constant):
            return self._constant(tree)
        if isinstance(tree, CastTo):
            return casts.cast(
                self._expression(tree.value),
                casts.kind_named(tree.kind, tree.at),
                self._zone,
                tree.at,
                lenient=tree.lenient,
            )
        if isinstance(tree, Case):
            trees = [part for branch in tree.branches for part in branch]
            tree = SqlCall("case", (*trees, tree.otherwise or Constant("null", "null", tree.at)), tree.at)
        return functions.made(
            tree.name, [self._expression(argument) for argument in tree.arguments], tree.at, self._zone
        )

    def _constant(self, tree: Constant) -> Expression:
        kind, text = tree.kind, tree.text
        constant = kind, text
        if kind == "string":
            return written(text, pa.string(), constant)
        if kind in {"null", "boolean"}:
            return written(
                None if kind == "null" else text == "true", pa.null() if kind == "null" else pa.bool_(), constant
            )
        if kind in _CAST:
            return self._time(tree)
        try:
            return _number(kind, text)
        except (OverflowError, pa.ArrowInvalid):
            refuse(tree.at, f"{text} is too large a number")

    def _time(self, tree: Constant) -> Expression:
        kind = _CAST[tree.kind]
        try:
            scalar = casts.read_exact(pa.scalar(tree.text), kind, self._zone)
        except pa.ArrowInvalid as error:
            raise refusal(tree.at, f"{tree.text!r} is no {tree.kind}: {error}") from error
        return Expression(kind, lambda _: scalar, constant=(tree.kind, tree.text))


def _number(kind: str, text: str) -> Expression:
    """Return a number literal. Raises `OverflowError` or `ArrowInvalid` if it is too large."""
    if kind == "integer":
        whole = int(text)
        if not -(2**63) <= whole < 2**63:
            return _number("decimal", text)
        return written(whole, pa.int32() if -(2**31) <= whole < 2**31 else pa.int64(), (kind, text))
    if kind == "decimal":
        digits = Decimal(text)
        _, figures, exponent = digits.as_tuple()
        scale = max(-int(exponent), 0)
        return written(digits, pa.decimal128(max(len(figures), scale), scale), (kind, text))
    number = float(text) if kind in {"float", "double"} else int(text)
    return written(number, _TYPES[kind], (kind, text))
