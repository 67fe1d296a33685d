"""Which syncs of a program are needed: the syncs of one place after another are left out, until a check fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing import Program, explore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Making = Callable[[], Program]


def places_of_syncs(programs: Iterable[Making]) -> list[str]:
    """Return every place in the code from which the programs sync."""
    found: set[str] = set()

    def note(place: str) -> bool:
        found.add(place)
        return False

    for make in programs:
        explore(make(), depth=0, omit=note)
    return sorted(found)


def not_missed(places: Mapping[str, Sequence[Making]], *, states_max: int) -> list[str]:
    """Return the places whose syncs no program misses; for the other places, print what goes wrong without them."""
    table = {place: _missed(place, programs, states_max) for place, programs in places.items()}
    print("\n".join(f"{place}: {found or 'NOT MISSED'}" for place, found in table.items()))  # noqa: T201 - the table is asked for
    return [place for place, found in table.items() if not found]


def _missed(omitted: str, programs: Sequence[Making], states_max: int) -> str:
    """Return the first complaint of the programs without the syncs of one place; the shallow programs run first."""
    for depth in (1, 2):
        for make in programs:
            report = explore(make(), depth=depth, states_max=states_max, omit=lambda place: place == omitted)
            if report.complaints:
                return str(report.complaints[0])
    return ""
