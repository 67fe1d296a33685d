"""When a source lists its directory: not before `initialDelay`, not more often than `sleepTime`, and not while there is none.

With `strictMode=true`, a directory that is not there fails the query, at its start and later: a wrong name is reported, not waited for.
With `strictMode=false` the query waits for it, at the start and whenever it disappears, for example with a mount: nothing is read,
nothing that is known is forgotten, and what was read before is not read again when the directory is back. What is in the directory is
listed wholly or not at all, as before; a directory below it that cannot be listed is an error in either mode.

If a trigger asks as often as it can and there is nothing new, looks are delayed by a hundredth of the time without news, by 0.1 s at
most. Each look costs Spark and us half a millisecond, and eighty a second are a twentieth of a core for nothing.

A run of what is there (AvailableNow, Once) waits for `initialDelay`, because it does not come again, and looks once: `sleepTime` does
not apply to it. Between two triggers a source does not look at all, whatever these options say.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.storage import entry_at

if TYPE_CHECKING:
    from penstock.options import Options
    from penstock.storage import Storage

_log = logging.getLogger("penstock.source")
_SILENCE_SHARE = 0.01
_APART_SECONDS_MAX = 0.1


class ScanPace:
    """The pace of one planner, which begins when the object is made. Not shared between threads."""

    def __init__(self, storage: Storage, root: str, options: Options) -> None:
        self._storage = storage
        self._root = root
        self._strict: bool = options["strictMode"]
        self._sleep_seconds = options["sleepTime"] / SECOND_NS
        delay_seconds = options["initialDelay"] / SECOND_NS
        self._begins_at: float | None = clock.monotonic() + delay_seconds if delay_seconds else None
        self._listed_at: float | None = None
        self._told = False

    def is_closed(self, *, bounded: bool) -> bool:
        """Tell whether there is nothing to look at now. Called before a batch is planned; a `bounded` run waits here for its time."""
        if self._begins_at is not None:
            wait_seconds = self._begins_at - clock.monotonic()
            if wait_seconds > 0 and not bounded:
                return True
            clock.sleep(max(wait_seconds, 0))
            self._begins_at = None
        return self.is_missing()

    def is_missing(self) -> bool:
        """Tell whether the source waits for its directory; logged once, and again when the directory is there."""
        if self._strict:
            return False
        missing = entry_at(self._storage, self._root) is None
        if missing != self._told:
            self._told = missing
            state = "is not there; it is waited for (strictMode=false)" if missing else "is there, and is read"
            _log.warning("%r %s", self._root, state)
        return missing

    def is_due(self) -> bool:
        """Tell whether the directory is to be listed again; if so, note that it is listed now."""
        now = clock.monotonic()
        if self._sleep_seconds and self._listed_at is not None and now < self._listed_at + self._sleep_seconds:
            return False
        self._listed_at = now
        return True


class Silence:
    """Spaces out the looks of one source while they find nothing. Not shared between threads."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked_at = 0.0

    def wait(self) -> None:
        """Wait until it is time to look. Called before each look."""
        if self._since is not None:
            now = clock.monotonic()
            apart = min((now - self._since) * _SILENCE_SHARE, _APART_SECONDS_MAX)
            clock.sleep(max(self._looked_at + apart - now, 0))

    def looked(self, *, found: bool) -> None:
        """Note whether a look has found something to read."""
        self._looked_at = clock.monotonic()
        if found:
            self._since = None
        elif self._since is None:
            self._since = self._looked_at
