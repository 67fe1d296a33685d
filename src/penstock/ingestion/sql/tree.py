"""What a text of SQL says. `at` is where in the text, in characters from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from penstock.errors import SqlError


@dataclass(frozen=True)
class Constant:
    """A value that is written down; `kind` is string, integer, decimal, double, boolean, null, date, timestamp or timestamp_ntz."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Name:
    """A column, or what lies in one: `a`, `input.a`, `a.b.c`."""

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
    """`cast(value as type)`; `lenient`: what cannot be cast is null. `kind` is a type as DDL has it."""

    value: Tree
    kind: str
    lenient: bool
    at: int


@dataclass(frozen=True)
class Case:
    """`case when ... then ... else ... end`, with the subject compared in each branch if there was one."""

    branches: tuple[tuple[Tree, Tree], ...]
    otherwise: Tree | None
    at: int


Tree: TypeAlias = Constant | Name | SqlCall | CastTo | Case


@dataclass(frozen=True)
class Star:
    """All columns, but for some."""

    without: tuple[Name, ...]
    at: int


@dataclass(frozen=True)
class Item:
    """One column of the output; `name` is `None` where none was given."""

    value: Tree
    name: str | None
    at: int


@dataclass(frozen=True)
class Select:
    """A whole text. `alias` is what the input may be called."""

    items: tuple[Star | Item, ...]
    alias: str
    where: Tree | None


def refusal(at: int, why: str) -> SqlError:
    """Return an error that says where in the text, and why."""
    return SqlError(f"sql, character {at + 1}: {why}")


def refuse(at: int, why: str) -> NoReturn:
    """Raise it."""
    raise refusal(at, why)
