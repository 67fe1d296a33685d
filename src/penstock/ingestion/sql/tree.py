"""The syntax tree of a text of SQL. `at` is the position in the text, in characters from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from penstock.errors import SqlError


@dataclass(frozen=True)
class Constant:
    """A literal.

    `kind` is string, integer, decimal, double, boolean, null, date, timestamp, timestamp_ntz, or a type that a suffix names.
    """

    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Name:
    """A column, or a member of one: `a`, `input.a`, `a.b.c`."""

    parts: tuple[str, ...]
    at: int


@dataclass(frozen=True)
class SqlCall:
    """A function or an operator, by its name in lower case."""

    name: str
    arguments: tuple[Tree, ...]
    at: int


@dataclass(frozen=True)
class CastTo:
    """`cast(value as type)`; `lenient`: a value that cannot be cast is null. `kind` is a type as in DDL."""

    value: Tree
    kind: str
    lenient: bool
    at: int


@dataclass(frozen=True)
class Case:
    """`case when ... then ... else ... end`; if there was a subject, each branch compares it."""

    branches: tuple[tuple[Tree, Tree], ...]
    otherwise: Tree | None
    at: int


Tree: TypeAlias = Constant | Name | SqlCall | CastTo | Case


@dataclass(frozen=True)
class Star:
    """All columns except some."""

    without: tuple[Name, ...]
    at: int


@dataclass(frozen=True)
class Item:
    """One column of the output; `name` is `None` if none was given."""

    value: Tree
    name: str | None
    at: int


@dataclass(frozen=True)
class Select:
    """A whole select. `alias` is another name for the input."""

    items: tuple[Star | Item, ...]
    alias: str
    where: Tree | None


def refusal(at: int, why: str) -> SqlError:
    """Return an error that gives the position in the text, and the reason."""
    return SqlError(f"sql, character {at + 1}: {why}")


def refuse(at: int, why: str) -> NoReturn:
    """Raise the error that `refusal` returns."""
    raise refusal(at, why)
