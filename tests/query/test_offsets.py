"""Invalid offsets in a checkpoint: Spark does not check its log, so each source checks whether an offset is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import DamagedState
from penstock.kafka.offset import Positions
from penstock.query import offset
from penstock.sink import published
from penstock.wal import runs
from penstock.windows import replay

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES: dict[str, Callable[[Any], object]] = {
    "files": offset.check,
    "published": published._positions,
    "topics": Positions.of,
    "windows": replay._window,
    "log": lambda form: runs.runs(form, form),
}
_AT = {"v": 1, "log": "", "position": "0:0", "cuts": []}
NONE_OF_THEM: list[Any] = [
    *(None, 5, "x", [], [{}], True, {"v": 1}),
    *({"v": 1, "window": True}, {"v": 1, "window": -5}),
    *(_AT | {"begin": True, "from": "x"}, _AT | {"begin": True, "from": None}),
    *(_AT | {"position": "x"}, _AT | {"cuts": 5}, _AT | {"cuts": ["x"]}, _AT | {"log": None}),
]


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_no_offset_is_damage(source: str) -> None:
    """Any JSON in the place of an offset is `DamagedState` with advice, and not an error of Python's own."""
    for form in NONE_OF_THEM:
        with pytest.raises(DamagedState, match="the offset .*(restore it|restore the checkpoint|new checkpoint)"):
            SOURCES[source](form)


def test_an_offset_of_sparks_own_file_source_is_named() -> None:
    """Whoever changes `readStream.json` to our source and keeps the checkpoint is told what it is, and where to begin instead."""
    with pytest.raises(DamagedState, match="Spark's own file source.*a new checkpoint.*startingFrom"):
        offset.check({"logOffset": 3})
