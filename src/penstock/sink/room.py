"""Checks, before anything is committed, that the names that a sink will choose are short enough for its storage."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.errors import TemplateError
from penstock.sink.ledger import Destination

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sink.decide import Rules
    from penstock.sink.ledger import Kind
    from penstock.sink.parts import Origin

_NUMBER_MAX = 10**12 - 1  # the largest number of a file that a name must have room for


def room(root: str, most: int, rules: Rules, origin: Origin, kind: Kind) -> Callable[[Destination], None]:
    """Return a function that raises `TemplateError` if a part at a destination would get a name or a path that is too long for a file.

    `most` is how many bytes a path below `root` may have (`Storage.bytes_below`).

    The function checks the name with the highest number that a file may have. It is called for each new part. Thousands of parts
    in different buckets share one name, which is made once.
    """
    opener = {"writer": origin.writer, "batch": origin.batch, "host": origin.host, "pid": origin.pid}
    opener |= {"seq": _NUMBER_MAX, "attempt": origin.attempt, "time": origin.time_ns}

    @lru_cache(maxsize=1)
    def longest(name: str) -> str:
        return rules.path(Destination("", name), kind, **opener)

    def check(place: Destination) -> None:
        path = f"{place.bucket}/{longest(place.name)}"
        size = len(path.encode())
        if size > most:
            msg = (
                f"bucketBy and fileName make a path of {size} bytes ({path[:60]!r}...), and below {root[:60]!r} at most {most} are "
                "possible; bucket and name by something shorter"
            )
            raise TemplateError(msg)

    return check
