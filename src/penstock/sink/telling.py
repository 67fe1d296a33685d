"""`onPublish`: a function of the user is told what was published, at least once.

It is told by the ledger, as every reader of events is (`events`), and how far it was told is noted beside the ledger, as
`told-<number>.json`, once it has returned. So:

1. *The driver dies before it calls, or within the call.* The next start calls, with the same events.
2. *It dies behind the call, before the note.* The next start calls again: **at least once**. A function that must not do a thing twice
   goes by `path`, or by `sink` and `number`, which are the same again.
3. *The function fails.* What it was told of is committed and visible all the same. The batch ends with `CallbackFailed`, and the
   next start tells it again, before anything new is written: nothing is passed over.
4. *The keeper, `finish` or `retry` publish.* Nothing that a state file names is ever run (`existing`), so they call nobody. The query
   tells it with its next batch, or its next start.
5. *A driver that stood still goes on.* It may tell, late, what its successor has told. It is behind in its note, too: the note with
   the largest number counts.
6. *The function wants a part closed*: it returns names of parts or buckets, as `penstock finish --part` takes them, and they are closed and
   published by the driver that has the sink, which goes on. That is done before the note: whoever dies in between asks it again.

7. *The function does not return.* Nothing goes on, and nothing tells that from a batch that is large. A warning does, after half a minute
   and then every ten. It is not ended: nobody knows what it has half done.

It is called in the process that commits, between two batches: what it takes delays the next one.
"""

from __future__ import annotations

import logging
import re
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock import clock, failpoints
from penstock.arguments import check_done
from penstock.errors import AlreadyThere, CallbackFailed, DamagedState, NotThere
from penstock.query.records import checked, signed
from penstock.sink import eventrows
from penstock.sink.events import EventLog, EventPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sink.events import Event
    from penstock.sink.sink import Sink

    Told = Callable[[list[dict[str, Any]]], object]

_NOTE = re.compile(r"told-(\d{15})\.json")
_CALL_EVENTS = 1000  # of one call
_SILENT_SECONDS = 30.0  # of a function that does not return, until that is told
_AGAIN_SECONDS = 600.0
_log = logging.getLogger("penstock.sink")


class Telling:
    """Tells the function that `load` returns what a sink has published. Picklable; holds nothing but that."""

    def __init__(self, sink: Sink, name: str, load: Callable[[], Told]) -> None:
        self._sink = sink
        self._name = name
        self._load = load

    def check(self) -> None:
        """Raise `OptionError` unless the function can be loaded."""
        self._load()

    def begin(self, driver: str) -> bool:
        """Do as `tell` does, for a driver that has just taken the sink; told for the first time, note where its events begin."""
        if self._told() is None:
            self._note(self._log().end())
        return self.tell(driver)

    def tell(self, driver: str) -> bool:
        """Tell what was published and not told yet, while no batch is in flight; return whether parts were closed, as the function asked.

        Raises `CallbackFailed`, `EventsLost`, and what closing parts raises.
        """
        at, log, closed = self._told() or EventPosition(), self._log(), False
        while events := log.after(at, _CALL_EVENTS):
            shown = [event for event in events if event.is_shown]
            names = self._call(shown) if shown else []
            failpoints.hit("sink.told")
            closed |= bool(names and self._sink.roll(driver, names))
            at = events[-1].behind
            self._note(at)
        return closed

    def _call(self, events: list[Event]) -> list[str]:
        """Call the function; return the names of the parts that it wants closed."""
        facts = [eventrows.facts(event, self._sink.root) | {"number": event.number} for event in events]
        try:
            with _silence_told(self._name):
                wanted = self._load()(facts)
            check_done("it", wanted)
        except (Exception, SystemExit) as error:  # what a user's function raises; it ends no process of ours
            first = facts[0]["path"] or facts[0]["bucket"]
            msg = (
                f"onPublish={self._name!r} failed with {type(error).__name__}: {error}; told of {len(facts)} events from {first!r} on, "
                "which are published: mend the function and start again, and it is told of them again; or leave onPublish out"
            )
            raise CallbackFailed(msg) from error
        names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
        return [name for name in names if isinstance(name, str)]

    def _log(self) -> EventLog:
        remedy = (
            f"restore the ledger from a copy, or remove '{self._sink.state}/told-*.json', and the next start tells onPublish of what is "
            "published from then on"
        )
        return EventLog(self._sink.ledger, self._sink.sink_id, f"the ledger of {self._sink.state!r}", remedy)

    def _notes(self) -> list[int]:
        try:
            names = self._sink.storage.names(self._sink.state)
        except NotThere:
            return []
        return sorted(int(match[1]) for name in names if (match := _NOTE.fullmatch(name)))

    def _told(self) -> EventPosition | None:
        """Return how far it was told; `None` if it never was."""
        notes = self._notes()
        if not notes:
            return None
        path = self._path(notes[-1])
        record = checked(self._sink.storage.read(path), path)
        if (record.get("sink"), record.get("number")) != (self._sink.sink_id, notes[-1]) or "mark" not in record:
            msg = f"{path!r} is no note of how far onPublish was told: it was moved here; restore it from a copy"
            raise DamagedState(msg)
        return EventPosition(notes[-1], str(record["mark"]))

    def _note(self, at: EventPosition) -> None:
        record = {"sink": self._sink.sink_id, "number": at.number, "mark": at.mark}
        with suppress(AlreadyThere):  # a driver that stood still has told the same
            self._sink.storage.put_if_absent(self._path(at.number), signed(record))
        for number in self._notes():
            if number < at.number:
                self._sink.storage.delete(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._sink.state}/told-{number:015d}.json"


@contextmanager
def _silence_told(name: str) -> Iterator[None]:
    """Warn, as long as the block takes, that it does."""
    over, begun = threading.Event(), clock.monotonic()

    def tell() -> None:
        seconds = _SILENT_SECONDS
        while not over.wait(seconds):
            _log.warning(
                "onPublish=%r has not returned for %.0f s: the query waits for it, also to be stopped; whoever ends it by force loses "
                "nothing, and the next start calls it again",
                name,
                clock.monotonic() - begun,
            )
            seconds = _AGAIN_SECONDS

    thread = threading.Thread(target=tell, name="penstock-silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
