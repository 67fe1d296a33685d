"""Two schemas of one stream: what has changed from one to the other, and whether the stream can continue with that.

Additional columns are allowed: earlier rows lack them, and readers take null. Wider types are allowed, too, because
every reader accepts narrower values for them (Spark 4 also in Parquet): whole numbers and floats of more bits, doubles
for whole numbers of up to 32 bits, decimals with more digits before or after the point. A stream cannot continue
without a column, or with a column of another type: no single schema could read the output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from penstock.formats import ddl

_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_WHOLE = {"byte": 3, "short": 5, "integer": 10, "long": 20}
_DOUBLE = {"byte", "short", "integer", "float"}


@dataclass
class SchemaChanges:
    """The changes, as sentences: a stream continues with `added` and `widened`, not with `refused`. `columns` have gained something."""

    added: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    @staticmethod
    def between(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> SchemaChanges:
        """Return what has changed between two lists of fields in Spark's JSON."""
        changes = SchemaChanges()
        changes._compare(before, now, "")
        return changes

    def told(self) -> list[str]:
        """Return the changes that a stream continues with, one sentence per item."""
        return [*self.added, *self.widened]

    def _compare(self, before: list[dict[str, Any]], now: list[dict[str, Any]], path: str) -> None:
        known = {form["name"]: form for form in before}
        for form in now:
            name = f"{path}{form['name']}"
            if form["name"] not in known:
                self.added.append(f"column {name!r} ({ddl.type_written(form['type'])}) is new")
                self.columns.append(name)
            elif known[form["name"]]["nullable"] and not form["nullable"]:
                self.refused.append(f"column {name!r} is NOT NULL, and was not")
        kinds = {form["name"]: form["type"] for form in now}
        for form in before:
            name = f"{path}{form['name']}"
            if form["name"] in kinds:
                self._types(form["type"], kinds[form["name"]], name)
            else:
                self.refused.append(f"column {name!r} ({ddl.type_written(form['type'])}) is not there any more")

    def _types(self, before: Any, now: Any, path: str) -> None:  # noqa: ANN401 - Spark's JSON of types
        if before == now:
            return
        kinds = [kind["type"] if isinstance(kind, dict) else "" for kind in (before, now)]
        if kinds == ["struct", "struct"]:
            self._compare(before["fields"], now["fields"], f"{path}.")
        elif kinds == ["array", "array"] and now["containsNull"] >= before["containsNull"]:
            self._types(before["elementType"], now["elementType"], f"{path}[]")
        elif kinds == ["map", "map"] and now["valueContainsNull"] >= before["valueContainsNull"]:
            self._types(before["keyType"], now["keyType"], f"{path}.key")
            self._types(before["valueType"], now["valueType"], f"{path}.value")
        else:
            words = f"column {path!r} was {ddl.type_written(before)}, and is {ddl.type_written(now)} now"
            (self.widened if kinds == ["", ""] and _is_wider(before, now) else self.refused).append(words)


def _is_wider(before: str, now: str) -> bool:
    """Tell whether every value of one type is also a value of the other."""
    if now == "double" and before in _DOUBLE:
        return True
    if before in _WHOLE and now in _WHOLE:
        return _WHOLE[before] < _WHOLE[now]
    whole, digits = _digits(before), _digits(now)
    if whole is None or digits is None or now in _WHOLE:
        return False
    return whole[0] <= digits[0] and whole[1] <= digits[1]


def _digits(kind: str) -> tuple[int, int] | None:
    """Return how many digits a type has before and after the point; `None` if it is not an exact number."""
    if kind in _WHOLE:
        return _WHOLE[kind], 0
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]) - int(match[2]), int(match[2])) if match else None
