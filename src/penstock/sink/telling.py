"""`onPublish`: calls a function of the user with what was published, at least once for each event.

The events come from the ledger, as for every reader of events (`events`). When the function has returned, a note beside the
ledger, `told-<number>.json`, says how far it was called. So:

1. *The driver dies before the call, or during it.* The next start calls the function with the same events.
2. *The driver dies after the call, before the note.* The next start calls it again: **at least once**. A function that must not
   do a thing twice can recognise events by `path`, or by `sink` and `number`, which are the same again.
3. *The function fails.* The events that it was given are committed and visible all the same. The batch ends with
   `CallbackFailed`, and the next start calls it again with the same events, before anything new is written: no event is passed
   over.
4. *The keeper, `finish` or `retry` publish.* Code that a state file names is never run (`existing`), so they do not call the
   function. The query calls it with its next batch, or at its next start.
5. *A stalled driver continues.* It may call the function, late, with events that its successor has given already. Its note has a
   smaller number, too, and the note with the largest number counts.
6. *The function wants a part closed.* It returns names of parts or buckets, as `penstock finish --part` takes them. The driver
   that has the sink closes and publishes them, and keeps the sink. That is done before the note, so if the driver dies in
   between, the function is called again.

7. *The function does not return.* The query waits, and that looks like a large batch. So a warning is logged after half a minute
   and then every ten minutes. The function is not interrupted, because nobody knows what it has half done.

The function is called in the process that commits, between two batches: the time that it takes delays the next batch.
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
from penstock.query.records import checked_at, signed
from penstock.sink import eventrows
from penstock.sink.events import EventLog, EventPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sink.events import Event
    from penstock.sink.sink import Sink

    Told = Callable[[list[dict[str, Any]]], object]

_NOTE = re.compile(r"told-(\d{15})\.json")
_CALL_EVENTS = 1000  # events in one call
_SILENT_SECONDS = 30.0  # how long a function may run before the first warning
_AGAIN_SECONDS = 600.0
_log = logging.getLogger("penstock.sink")


class Telling:
    """Calls the function that `load` returns with what a sink has published. Picklable; holds no other state."""

    def __init__(self, sink: Sink, name: str, load: Callable[[], Told]) -> None:
        self._sink = sink
        self._name = name
        self._load = load

    def check(self) -> None:
        """Raise `OptionError` unless the function can be loaded."""
        self._load()

    def begin(self, driver: str) -> bool:
        """Do what `tell` does, for a driver that has just taken the sink. The very first time, only note where the events begin."""
        if self._told() is None:
            self._note(self._log().end())
        return self.tell(driver)

    def tell(self, driver: str) -> bool:
        """Call the function with what was published since the last call; return whether parts were closed because it asked for it.

        Called while no batch is in flight. Raises `CallbackFailed`, `EventsLost`, and what closing parts raises.
        """
        at, log, closed = self._told() or EventPosition(), self._log(), False
        while events := log.after(at, _CALL_EVENTS):
            shown = [event for event in events if event.is_shown]
            names = self._call(shown) if shown else []
            failpoints.hit("sink.told")
            closed |= bool(names and self._sink.roll(driver, names))
            at = events[-1].position_after
            self._note(at)
        return closed

    def _call(self, events: list[Event]) -> list[str]:
        """Call the function; return the names of the parts that it wants closed."""
        facts = [eventrows.facts(event, self._sink.root) | {"number": event.number} for event in events]
        try:
            with _silence_told(self._name):
                wanted = self._load()(facts)
            check_done("it", wanted)
        except (Exception, SystemExit) as error:  # whatever a user's function raises must not end our process
            first = facts[0]["path"] or facts[0]["bucket"]
            msg = (
                f"onPublish={self._name!r} failed with {type(error).__name__}: {error}; it was given {len(facts)} events from {first!r} "
                "on, which are published: mend the function and start again, and it gets them again; or leave onPublish out"
            )
            raise CallbackFailed(msg) from error
        names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
        return [name for name in names if isinstance(name, str)]

    def _log(self) -> EventLog:
        remedy = (
            f"restore the ledger from a copy, or remove '{self._sink.state}/told-*.json', and the next start gives onPublish what is "
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
        """Return the position that the last note has; `None` if there is no note."""
        notes = self._notes()
        if not notes:
            return None
        path = self._path(notes[-1])
        record = checked_at(self._sink.storage, path)
        if (record.get("sink"), record.get("number")) != (self._sink.sink_id, notes[-1]) or "mark" not in record:
            msg = f"{path!r} is not the note of the last event that onPublish was given: it was moved here; restore it from a copy"
            raise DamagedState(msg)
        return EventPosition(notes[-1], str(record["mark"]))

    def _note(self, at: EventPosition) -> None:
        record = {"sink": self._sink.sink_id, "number": at.number, "mark": at.mark}
        with suppress(AlreadyThere):  # a stalled driver has noted the same position
            self._sink.storage.put_if_absent(self._path(at.number), signed(record))
        for number in self._notes():
            if number < at.number:
                self._sink.storage.delete(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._sink.state}/told-{number:015d}.json"


@contextmanager
def _silence_told(name: str) -> Iterator[None]:
    """Log warnings while the block runs for long."""
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
