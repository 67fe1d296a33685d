"""Which syncs of a program are needed: the syncs of one place after another are left out, until a check fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing import Program, explore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Making = Callable[[], Program]


def places_of_syncs(programs: Iterable[Making]) -> list[str]:
    """Return every place in the code from which the programs sync."""
    return sorted(set().union(*map(_places_of, programs)))


def _places_of(make: Making) -> set[str]:
    """Return the places from which a program syncs if nothing crashes."""
    found: set[str] = set()

    def note(place: str) -> bool:
        found.add(place)
        return False

    explore(make(), depth=0, omit=note)
    return found


def not_missed(places: Mapping[str, Sequence[Making]], *, states_max: int) -> list[str]:
    """Return the places whose syncs no program misses; for the other places, print what goes wrong without them."""
    reached = {make: _places_of(make) for make in set().union(*places.values())}
    table = {
        place: _missed(place, sorted(programs, key=lambda make: place not in reached[make]), states_max)
        for place, programs in places.items()
    }
    print("\n".join(f"{place}: {found or 'NOT MISSED'}" for place, found in table.items()))  # noqa: T201 - the table is asked for
    return [place for place, found in table.items() if not found]


def _missed(omitted: str, programs: Sequence[Making], states_max: int) -> str:
    """Return the first complaint of the programs without the syncs of one place; the shallow explorations run first.

    The programs that reach the place without a crash come first: most others only repeat what is explored elsewhere.
    """
    for depth in (1, 2):
        for make in programs:
            report = explore(make(), depth=depth, states_max=states_max, omit=lambda place: place == omitted)
            if report.complaints:
                return str(report.complaints[0])
    return ""
