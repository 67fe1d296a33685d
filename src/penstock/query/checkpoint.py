"""Reads the checkpoint of a query: only here, because Spark, which writes it, does not document it.

An ingest that runs without Spark writes the same entries (`query.entries`).

- `<checkpoint>/metadata` holds the query id, before any batch.
- `<checkpoint>/offsets/<b>` is written before batch b runs and never changes: the last one is the batch in flight, its content is the
  batch's fingerprint, and it has the sources' offsets (`query.offsetlog`).
- `<checkpoint>/commits/<b>` is there when batch b is done.

`tests/spark/test_contract.py` checks each of these against the installed Spark.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from operator import or_
from shlex import quote
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import AlreadyThere, CheckpointMismatch, DamagedState, NotThere, OptionError
from penstock.query.batch import Batch
from penstock.query.offset import check, is_ours
from penstock.query.offsetlog import NOTHING, LogEntry
from penstock.query.records import state_bytes
from penstock.storage import entry_at, locate, names_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage import Storage

_UNFINISHED = re.compile(r"\.[^/]+\.tmp")  # Spark writes an entry of a log under such a name, and then renames it


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint says at one moment, as far as it can be read: the query to which it belongs, and the batch in flight."""

    query: str | None = None
    batch: Batch | None = None


def _json(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line of an offset log; empty if the line does not hold one."""
    try:
        form = json.loads(line)
    except ValueError:
        return {}
    return form if isinstance(form, dict) else {}


class Checkpoint:
    """The checkpoint of one query, as far as this process can read it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._storage: Storage | None
        try:
            self._storage, self._path = locate(location, name="checkpointLocation")
        except OptionError:
            self._storage, self._path = None, location  # Spark may know file systems that we do not

    def query_id(self) -> str | None:
        """Return the query's id, `None` if it cannot be read here; `DamagedState` if the file does not hold an id."""
        text = self._read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{self._path + '/metadata'!r} is damaged: found {text[:80]!r}, expected the query's id; restore it from a copy"
            raise DamagedState(msg) from error

    def numbers(self, log: str) -> list[int]:
        """Return the batches in Spark's log `offsets` or `commits`, in order; empty if it cannot be read here."""
        if self._storage is None:
            return []
        return sorted(int(name) for name in names_at(self._storage, f"{self._path}/{log}") if name.isdecimal())

    def snapshot(self) -> Snapshot:
        """Return the query and the batch in flight; each file is read once. `DamagedState`."""
        query = self.query_id()
        numbers = self.numbers("offsets") if query is not None else []
        return Snapshot(query, self.batch(query, numbers[-1]) if query is not None and numbers else None)

    def current(self) -> Batch | None:
        """Return the batch in flight, `None` if it cannot be read here. `DamagedState`."""
        return self.snapshot().batch

    def batch(self, query: str, number: int) -> Batch:
        """Return batch `number` with its fingerprint, and what its sources say: whether it ends the run, and what is read by then.

        Raises `DamagedState`, and `CheckpointMismatch` if sources have changed places.
        """
        text = self._read(f"offsets/{number}")
        if text is None:
            return Batch(query, number)
        sources = LogEntry.of(text).sources
        offsets = [self._ours(line, number) for line in sources.values() if line != NOTHING]
        until = _read_until(offsets, waiting=len(sources) - len(offsets))
        plans = (*filter(None, offsets), *self._events(sources, number))
        if len(sources) > 1:
            self._check_order(sources, number)
        return Batch(query, number, xxhash.xxh3_64_hexdigest(text), self._is_last(number, sources), until, plans=plans)

    def fingerprint(self, number: int) -> str:
        """Return the fingerprint of batch `number`, `""` if it cannot be read here."""
        text = self._read(f"offsets/{number}")
        return "" if text is None else xxhash.xxh3_64_hexdigest(text)

    def _check_order(self, sources: dict[str, bytes], number: int) -> None:
        """Raise `CheckpointMismatch` if a source has begun where another one had stopped: it would read again what it has read.

        Spark tells sources without names by their order in the query, and gives each the offset of its place.
        """
        before = {name: _json(line).get("root") for name, line in self.entry(number - 1).sources.items()}
        now = {name: _json(line).get("root") for name, line in sources.items()}
        moved = {name: root for name, root in now.items() if root != before.get(name)}
        for name, root in before.items():
            if root is not None and name in moved and root in moved.values():
                msg = (
                    f"the sources of the query stand in another order than in batch {number - 1} of {self.location!r}, and Spark gives "
                    f"each the offset of its place, so files would be read again: run `penstock replan {quote(self.location)} DST`, which "
                    "takes this batch back, and start again with the sources in their former order"
                )
                raise CheckpointMismatch(msg)

    def _events(self, sources: dict[str, bytes], number: int) -> Iterator[dict[str, Any]]:
        """Yield, for each source of published files in batch `number`, its range: from `before` up to `published`, by sink."""
        ends = {name: _json(line) for name, line in sources.items()}
        if not any("published" in end for end in ends.values()):
            return
        earlier = self.entry(number - 1).sources
        for name, end in ends.items():
            if "published" in end:
                before = _json(earlier.get(name, b""))
                yield {"published": end["published"], "before": end.get("from") or before.get("published", {})}

    def offsets(self, number: int) -> list[dict[str, Any] | None]:
        """Return the end offset of each source of batch `number`, `None` for a source that is not ours.

        Empty if the offsets cannot be read here. `DamagedState` if one of ours is not as it was given to Spark.
        """
        return [self._ours(line, number) for line in self.entry(number).sources.values() if line != NOTHING]

    def only_offset(self, number: int) -> dict[str, Any]:
        """Return the end offset of batch `number` of a query whose only source is ours. `DamagedState` if it is not there."""
        offsets = self.offsets(number)
        if len(offsets) != 1 or offsets[0] is None:
            place = f"{self.location}/offsets/{number}"
            msg = (
                f"{place!r} is damaged or missing: it has no offset of this source; restore the checkpoint from a copy"
            )
            raise DamagedState(msg)
        return offsets[0]

    def sole_offset(self, number: int, what: str, read: Callable[[Any], object]) -> dict[str, Any]:
        """Return the end offset of batch `number` of a query with one source, of kind `what`; `read` raises for anything but its offsets.

        Raises `DamagedState` if the offset is not there, or not as it was planned.
        """
        try:
            (form,) = map(json.loads, self.entry(number).sources.values())
            read(form)
        except (DamagedState, ValueError, TypeError) as error:
            reason = (
                error.message
                if isinstance(error, DamagedState)
                else f"it has no offset of {what}; restore the checkpoint from a copy"
            )
            place = f"{self.location}/offsets/{number}"
            msg = f"{place!r} is damaged or missing: {reason}"
            raise DamagedState(msg) from error
        offset: dict[str, Any] = form
        return offset

    def _is_last(self, number: int, sources: dict[str, bytes]) -> bool:
        """Tell whether a batch is the last of its run, from its offsets and those of the batch before it.

        Each source must say so in its offset, or have had nothing for the batch: in an AvailableNow run it will then have nothing for
        another batch. The offset of an idle source is that of an earlier batch, perhaps of an earlier run.
        """
        offsets = {name: self._ours(line, number) or {} for name, line in sources.items()}
        last = [offset.get("last") is True for offset in offsets.values()]
        if not any(last):
            return False
        earlier = self.entry(number - 1).sources
        still = [
            line in {NOTHING, earlier.get(name)} or offsets[name].get("plan") == [] for name, line in sources.items()
        ]
        return all(map(or_, last, still))

    def _ours(self, line: bytes, number: int) -> dict[str, Any] | None:
        try:
            form = json.loads(line)
        except ValueError:
            return None
        if not is_ours(form):
            return None
        try:
            check(form)
        except DamagedState as error:
            msg = f"{self._path}/offsets/{number}: {error.message}"
            raise DamagedState(msg) from error
        ours: dict[str, Any] = form
        return ours

    def entry(self, number: int) -> LogEntry:
        """Return a batch's entry in the offset log, one without sources if it is not there or cannot be read here."""
        return LogEntry.of(self._read(f"offsets/{number}") or b"")

    def abandon(self, number: int) -> str | None:
        """Remove the plan of a batch from Spark's offset log: nothing of it was decided, and it will be planned anew.

        Returns where a copy of the plan is kept; `None` if there is no plan, or the checkpoint cannot be reached here.
        """
        text = self._read(f"offsets/{number}")
        if self._storage is None or text is None:
            return None
        kept = f"{self._path}/penstock/replanned-{number}-{xxhash.xxh3_64_hexdigest(text)}"
        self._storage.make_directory(f"{self._path}/penstock")
        with suppress(AlreadyThere):  # put by a call that died before it had deleted the entry
            self._storage.put_if_absent(kept, text)
        for name in (f".{number}.crc", str(number)):  # no checksum is ever left without its file, see `put`
            self._storage.delete(f"{self._path}/offsets/{name}")
        return kept

    def forget_unfinished(self) -> None:
        """Remove what a driver that was killed during its first write left in the offset log, if no batch is planned.

        1. A driver is killed while it writes `offsets/0`: there is a temporary file, and no batch.
        2. Each later start finds no batch in a directory that is not empty, and Spark 4.3 takes that for the checkpoint of another
           query: `STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`, for good.

        If a batch is planned, Spark does not look at temporary files. A driver that is alive and in the middle of this first write
        loses its file and fails; it had decided nothing.
        """
        if self._storage is None:
            return
        names = names_at(self._storage, f"{self._path}/offsets")
        if not any(name.isdecimal() for name in names):
            for name in filter(_UNFINISHED.fullmatch, names):
                self._storage.delete(f"{self._path}/offsets/{name}")

    def put(self, name: str, entry: bytes) -> None:
        """Put a file of the checkpoint, such as `offsets/7`, durably; `AlreadyThere` if it is there.

        Spark keeps a checksum beside each of its files. It accepts a file without one, and takes a file with the checksum of another
        one for damaged. So a checksum that is left without its file is deleted first.
        """
        assert self._storage is not None  # noqa: S101 - the caller has read the checkpoint
        log, _, own = f"{self._path}/{name}".rpartition("/")
        if entry_at(self._storage, f"{log}/{own}") is None:
            self._storage.delete(f"{log}/.{own}.crc")
        self._storage.put_if_absent(f"{log}/{own}", entry)

    def persist(self, number: int) -> None:
        """Make batch `number` durable in the checkpoint, which Spark does not.

        Otherwise a power cut could remove the plan of a batch that the ledger has. Spark would then plan the batch again, and the sink
        would have to refuse it. Called before the batch begins; earlier batches were made durable in the same way.
        """
        if self._storage is None:
            return
        parent, _, name = self._path.rpartition("/")
        if number == 0:
            self._storage.persist(parent or "/", [name])
            self._storage.persist(self._path, ["metadata", ".metadata.crc", "offsets"])
        self._storage.persist(f"{self._path}/offsets", [f"{number}", f".{number}.crc"])

    def _read(self, name: str) -> bytes | None:
        if self._storage is None:
            return None
        try:
            return state_bytes(self._storage, f"{self._path}/{name}")
        except NotThere:
            return None


def _read_until(offsets: list[dict[str, Any] | None], *, waiting: int) -> int | None:
    """Return the time before which all files are read; `waiting` is the number of sources that have no offset yet.

    0 if nothing was read, `None` if a source is not ours or follows files that grow, or if there is no source.
    """
    if any(offset is None or "follow" in offset for offset in offsets):
        return None
    read = [offset["cursor"][0] if offset and offset["cursor"] else 0 for offset in offsets]
    return min(read + [0] * waiting, default=None)
