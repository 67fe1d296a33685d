"""The kinds of values that were seen in columns, and the types that hold all of them, as Spark infers them.

The code that examines values (`json.kinds`, `csv.kinds`, the footers of tables) enters the kinds that it finds, each
with one example. The resulting type depends only on which kinds there are: not on how often they occur, on the order of
the files, or on where a sample was cut. In some cases Spark's own answer for CSV depends on the order (`2024` before a
date is a number, after one a date); ours is then a string.

A kind is a type in DDL, or `struct`, `array` and `map`, whose parts are in `Seen` as well. Null, and the empty string,
which may stand for it, are not types: a column with nothing else is a string. If JSON has an empty string among other
values, that is reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import OptionError
from penstock.formats import ddl
from penstock.formats.malformed import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES_MAX = 20_000  # of columns and members together
DEPTH_MAX = 100
EMPTY = "empty string"  # in JSON; it indicates no type, and only a string column can hold it
_DIGITS_MAX = 38
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_WHOLE = tuple(_WHOLE_DIGITS)
_FLOATS = ("float", "double")
_NESTED = ("struct", "array", "map")
_IN_JSON = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


class ValueExample(NamedTuple):
    """A value, as text, and the file that has it."""

    path: str
    text: str


@dataclass(frozen=True)
class Conflict:
    """A column, by its path (`user.zip`, `items[].n`), whose values are of several kinds, and the type that it gets."""

    column: str
    type: str
    kinds: dict[str, ValueExample]

    def told(self) -> str:
        """Return a description on one line."""
        kinds = ", ".join(
            f"{kind} ({excerpt(example.text)!r} in {excerpt(example.path)!r})" for kind, example in self.kinds.items()
        )
        return f"{self.column!r} is {kinds}; taken as {self.type}"


@dataclass
class Seen:
    """What was seen of one column: kinds with an example, members of objects and values of maps, elements of arrays."""

    kinds: dict[str, ValueExample] = field(default_factory=dict)
    members: dict[str, Seen] = field(default_factory=dict)
    elements: Seen | None = None

    def add(self, kind: str, example: Callable[[], ValueExample]) -> None:
        """Note that there is a value of a kind; `example` is called for the first one."""
        if kind not in self.kinds:
            self.kinds[kind] = example()

    def member(self, name: str, room: Room) -> Seen:
        """Return what was seen of the member of this name."""
        member = self.members.get(name)
        if member is None:
            room.take(name)
            member = self.members[name] = Seen()
        return member

    def of_elements(self) -> Seen:
        """Return what was seen of the elements of arrays."""
        if self.elements is None:
            self.elements = Seen()
        return self.elements


@dataclass
class Room:
    """A limit for the number of names: keys that are data (`{"user-17": ...}`) would make a schema without end."""

    left: int = NAMES_MAX

    def take(self, name: str) -> None:
        """Count one name. Raises `OptionError` if there are too many."""
        self.left -= 1
        if self.left < 0:
            msg = (
                f"found more than {NAMES_MAX:,} names, the last one {excerpt(name)!r}; where keys are data give the schema yourself, "
                "with a map<string, ...> for them"
            )
            raise OptionError(msg)


def check_depth(depth: int) -> None:
    """Raise `OptionError` for values that are nested too deeply for a schema."""
    if depth > DEPTH_MAX:
        msg = f"found values in more than {DEPTH_MAX} levels; give the schema yourself, with a string where they become too deep"
        raise OptionError(msg)


@dataclass
class Types:
    """Derives types from the kinds that were seen. `partition`: by Spark's rules for names of directories, which widen less.

    `mixes_dates`: dates among times are read as times; not if a pattern says how either is written.
    """

    conflicts: list[Conflict] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    partition: bool = False
    mixes_dates: bool = True

    def fields(self, seen: Seen, *, ordered: bool, path: str = "") -> list[dict[str, Any]]:
        """Return the members as fields of Spark's JSON: `ordered` by name, otherwise in the order in which they were first seen.

        Members that cannot be written down are left out: objects that never had a member, and members without a name.
        """
        names = (
            sorted(seen.members, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
            if ordered
            else list(seen.members)
        )
        fields = []
        for name in names:
            kind = self.type(seen.members[name], f"{path}{name}", ordered=ordered)
            if name and kind is not None:
                fields.append({"metadata": {}, "name": name, "nullable": True, "type": kind})
            else:
                self.left_out.append(f"{path}{name}")
        return fields

    def type(self, seen: Seen, path: str, *, ordered: bool) -> Any:  # noqa: ANN401 - Spark's JSON of a type
        """Return the type that holds all values of a column; `None` for objects without any member."""
        kind = self._type(seen, path, ordered=ordered)
        if EMPTY in seen.kinds and kind is not None and kind != "string":
            self.conflicts.append(Conflict(path, ddl.type_written(kind), dict(seen.kinds)))
        return kind

    def _type(self, seen: Seen, path: str, *, ordered: bool) -> Any:  # noqa: ANN401 - Spark's JSON of a type
        kinds = [kind for kind in seen.kinds if kind != EMPTY]
        if not kinds:
            return "string"
        if len(kinds) == 1 and kinds[0] in _NESTED:
            return self._nested(kinds[0], seen, path, ordered=ordered)
        together = self._together(kinds)
        kind = together or "string"
        if together is None or _is_rounded(together, kinds):
            self.conflicts.append(Conflict(path, kind, {name: seen.kinds[name] for name in kinds}))
        return _IN_JSON.get(kind, kind)

    def _nested(self, kind: str, seen: Seen, path: str, *, ordered: bool) -> Any:  # noqa: ANN401 - Spark's JSON of a type
        if kind == "struct":
            members = self.fields(seen, ordered=ordered, path=f"{path}.")
            return {"fields": members, "type": "struct"} if members else None
        if kind == "array":
            element = self.type(seen.of_elements(), f"{path}[]", ordered=ordered)
            return None if element is None else {"containsNull": True, "elementType": element, "type": "array"}
        key, value = (self.type(seen.members[part], f"{path}.{part}", ordered=ordered) for part in ("key", "value"))
        return {"keyType": key, "type": "map", "valueContainsNull": True, "valueType": value}

    def _together(self, kinds: list[str]) -> str | None:
        """Return the type that holds values of all these kinds; `None` if only text does."""
        if len(kinds) == 1:
            return kinds[0]
        if set(kinds) == {"date", "timestamp"}:
            return "timestamp" if self.mixes_dates else None
        exact = {kind for kind in kinds if kind in _WHOLE_DIGITS or _DECIMAL.fullmatch(kind)}
        if not exact.union(_FLOATS).issuperset(kinds):
            return None
        if not exact.issuperset(kinds):
            loses = self.partition and not exact.issubset(set(_WHOLE) - {"bigint"})
            return None if loses else "float" if set(kinds) == {"float"} else "double"
        return _exact(kinds)


def _is_rounded(together: str, kinds: list[str]) -> bool:
    """Tell whether some values would become floats that were not floats."""
    return together in _FLOATS and together not in kinds


def _exact(kinds: list[str]) -> str:
    """Return the type that holds whole numbers and decimals of these types."""
    if set(kinds).issubset(_WHOLE):
        return max(kinds, key=_WHOLE.index)
    digits = [_digits(kind) for kind in kinds]
    scale = max(scale for _, scale in digits)
    precision = max(precision - scale for precision, scale in digits) + scale
    return f"decimal({precision},{scale})" if precision <= _DIGITS_MAX else "double"


def _digits(kind: str) -> tuple[int, int]:
    """Return how many digits a type has, and how many of them after the point."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else (_WHOLE_DIGITS[kind], 0)


def entered(seen: Seen, fields: list[dict[str, Any]], path: str, room: Room) -> None:
    """Enter the columns of a table file, given in Spark's JSON; `path` is the file."""
    for form in fields:
        _enter_type(seen.member(form["name"], room), form["type"], ValueExample(path, form["name"]), room, 1)


def _enter_type(seen: Seen, kind: Any, example: ValueExample, room: Room, depth: int) -> None:  # noqa: ANN401 - Spark's JSON of a type
    check_depth(depth)
    if isinstance(kind, str):
        named = next((name for name, word in _IN_JSON.items() if word == kind), kind)
        shown = ValueExample(example.path, named)
        if kind != "void":
            seen.add(named, lambda: shown)
        return
    seen.add(kind["type"], lambda: example)
    if kind["type"] == "struct":
        for form in kind["fields"]:
            _enter_type(
                seen.member(form["name"], room), form["type"], ValueExample(example.path, form["name"]), room, depth + 1
            )
    elif kind["type"] == "array":
        _enter_type(seen.of_elements(), kind["elementType"], example, room, depth + 1)
    else:
        _enter_type(seen.member("key", room), kind["keyType"], example, room, depth + 1)
        _enter_type(seen.member("value", room), kind["valueType"], example, room, depth + 1)
