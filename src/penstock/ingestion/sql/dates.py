"""Functions on times and days; `times` has their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.ingestion.sql import casts, times
from penstock.ingestion.sql.coercion import WHOLE, converted
from penstock.ingestion.sql.expression import applied
from penstock.ingestion.sql.given import DAY, INTEGER, TEXT

if TYPE_CHECKING:
    from penstock.ingestion.sql.expression import Expression
    from penstock.ingestion.sql.given import Given, Maker


def _timely(kind: pa.DataType) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _part_of_time(given: Given) -> Expression:
    given.count(1)
    is_clock = given.name in times.CLOCKS
    operand = given.expect(0, types.is_timestamp if is_clock else _timely, "timestamp" if is_clock else "date")
    if types.is_null(operand.type):
        given.refuse("null is no time; leave it out")
    return applied(lambda values: times.part(given.name, values, given.zone), INTEGER, operand)


def _cast_by_name(kind: pa.DataType) -> Maker:
    def maker(given: Given) -> Expression:
        if len(given.operands) == 2:  # noqa: PLR2004 - value, pattern
            given.refuse(
                "with a pattern is not taken; the source option dateFormat or timestampFormat reads times by one"
            )
        given.count(1)
        return casts.cast(given.operands[0], kind, given.zone, given.at, lenient=False)

    return maker


_TIME_UNITS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def _formatted(given: Given) -> Expression:
    given.count(2)
    operand, pattern = given.expect(0, _timely, "timestamp"), given.words(1)
    pieces, place = [], 0
    while place < len(pattern):
        unit = next((unit for unit in _TIME_UNITS if pattern.startswith(unit, place)), pattern[place])
        following = pattern[place + len(unit) : place + len(unit) + 1]
        if (len(unit) > 1 and following == unit[0]) or (len(unit) == 1 and (unit.isalpha() or unit in "'[]{}#%")):
            given.refuse(f"pattern {pattern!r}: expected yyyy, MM, dd, HH, mm, ss and signs between them")
        pieces.append(_TIME_UNITS.get(unit, unit))
        place += len(unit)
    form = "".join(pieces)
    if types.is_null(operand.type):
        given.refuse("null is no time; leave it out")
    return applied(lambda values: times.formatted(values, form, given.zone), TEXT, operand)


def _moved(given: Given) -> Expression:
    given.count(2)
    day = given.expect(0, types.is_date, "date")
    count = given.expect(1, lambda kind: kind in WHOLE[:3], "int")
    if given.name == "date_sub":
        count = applied(pc.negate_checked, INTEGER, converted(count, INTEGER), fails=(given.at, given.name))
    return applied(times.moved, DAY, converted(day, DAY), converted(count, INTEGER), fails=(given.at, given.name))


def _days_between(given: Given) -> Expression:
    given.count(2)
    days = [converted(given.expect(place, types.is_date, "date"), DAY) for place in range(2)]
    return applied(times.between, INTEGER, *days, fails=(given.at, given.name))


MAKERS: dict[str, Maker] = {
    **dict.fromkeys((*times.DAYS, *times.CLOCKS), _part_of_time),
    **dict.fromkeys(("to_date", "date"), _cast_by_name(DAY)),
    "to_timestamp": _cast_by_name(pa.timestamp("us", "UTC")),
    "date_format": _formatted,
    **dict.fromkeys(("date_add", "date_sub"), _moved),
    **dict.fromkeys(("datediff", "date_diff"), _days_between),
}
