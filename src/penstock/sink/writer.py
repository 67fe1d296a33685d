"""Writes the rows of one task attempt into the parts of their buckets; begins, continues, relieves and closes parts by their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.formats import format_named
from penstock.formats.families import TableFormat
from penstock.formats.registry import table_format
from penstock.sink.byteparts import BytePart
from penstock.sink.ledger import Destination
from penstock.sink.payload import ArrowRows, Encoded, lines
from penstock.sink.ready import Progress
from penstock.sink.tableparts import ArrowPart
from penstock.sink.timebuckets import TimesSeen

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from penstock.formats import Encoder
    from penstock.sink.batch import ClosedPart
    from penstock.sink.ledger import Kind, OpenPart
    from penstock.sink.parts import Desk
    from penstock.sink.places import Places
    from penstock.sink.timebuckets import TimeBuckets

_BUFFER_BYTES = 64 << 20
_NOTHING = Encoded(b"", 0)


def new_part(desk: Desk, place: Destination, kind: Kind, before: OpenPart | None) -> BytePart | ArrowPart:
    """Return a part for rows of this kind; it continues `before` if the ledger has that open part."""
    make = ArrowPart if isinstance(format_named(kind.format), TableFormat) else BytePart
    return make(desk, place, kind, before)


@dataclass(frozen=True)
class AsideParts:
    """The place, the kind and the encoder of files of what is set aside."""

    place: Destination
    kind: Kind
    encoder: Encoder


class TaskWriter:
    """The rows of one task attempt, from Arrow (or lines of text) to staged files. Use it once, then `finish` or `discard`.

    `before` are the open parts of this writer. Parts whose time was up when the batch began, or that have another kind than the
    sink writes now, are not continued: new rows open another part. `check_name` is called once for each new part, and raises if
    its files could not be named.
    """

    def __init__(
        self,
        desk: Desk,
        kind: Kind,
        *,
        before: list[OpenPart],
        places: Places,
        drop: tuple[str, ...] = (),
        encode: Encoder | None = None,
        aside: AsideParts,
        times: TimeBuckets | None = None,
        check_name: Callable[[Destination], object],
    ) -> None:
        self._desk = desk
        self._kind = kind
        self._aside = aside
        self._places = places
        self._check_name = check_name
        self._drop = drop
        self._encode = encode
        self._times = TimesSeen(times, desk.origin.time_ns) if times else None
        self._parts: dict[Destination, BytePart | ArrowPart] = {}
        self._before = {
            p.place: p
            for p in before
            if p.kind == self._kind_of(p.place) and not desk.limits_of(p.bucket).expired(p, desk.origin.time_ns)
        }
        self._consumed: list[Destination] = []
        self._expired = [p for p in before if p.place not in self._before]

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch."""
        if self._places.is_one:
            self._write(Destination(""), batch)
            return
        if self._times is not None and batch.num_rows:
            self._times.rows(batch)
        for place, rows in self._places.split(batch, self._desk.origin.time_ns):
            if self._times is not None:
                self._times.bucket(place.bucket, rows)
            self._write(place, rows.drop_columns(list(self._drop)) if self._drop else rows)

    @property
    def progress(self) -> Progress:
        """The watermark and the buckets of time of the rows so far."""
        return self._times.progress if self._times is not None else Progress()

    def write_text(self, data: bytes) -> int:
        """Take lines of text unchanged (UTF-8, each ends with a line feed; no buckets); return how many."""
        if not self._places.is_one:
            msg = "lines came as bytes to a sink that places them by columns"
            raise RuntimeError(msg)
        payload = lines(data)
        self._place(Destination(""), payload)
        return payload.rows

    def set_aside(self, about: pa.RecordBatch) -> None:
        """Take lines about what is set aside: they are rows of a part like others, with a bucket and a kind of their own."""
        data, encode = self._aside.encoder.encode(about), self._aside.encoder
        self._place(self._aside.place, Encoded(data, about.num_rows, lambda: encode.ends(about, data)))

    def _kind_of(self, place: Destination) -> Kind:
        return self._aside.kind if place == self._aside.place else self._kind

    def _write(self, place: Destination, batch: pa.RecordBatch) -> None:
        if self._encode is None:
            table_format(self._kind.format).check(batch)
            self._place(place, ArrowRows(batch))
            return
        data, encode = self._encode.encode(batch), self._encode
        self._place(place, Encoded(data, batch.num_rows, lambda: encode.ends(batch, data)))

    def _place(self, place: Destination, payload: Any) -> None:  # noqa: ANN401 - Encoded or ArrowRows, as the parts of this kind take
        while payload.rows:
            part = self._part(place)
            fit = part.fitting(payload)
            if fit == 0 and (part.settle() or part.rows):
                if not part.fitting(payload):
                    self._parts.pop(place).close()
                continue
            fit = max(fit, 1)
            head, payload = (payload, _NOTHING) if fit >= payload.rows else payload.cut(fit)
            part.add(head)
            if part.full() and not part.settle():
                self._parts.pop(place).close()
            elif part.is_to_be_staged:
                part.relieve()
            elif self._desk.buffered >= _BUFFER_BYTES:
                self._relieve_many()

    def _relieve_many(self) -> None:
        """Move the largest parts to disk until half of the memory is free.

        One at a time, thousands of parts would be searched each time.
        """
        for part in sorted(self._parts.values(), key=lambda part: part.buffered, reverse=True):
            if self._desk.buffered <= _BUFFER_BYTES // 2:
                return
            part.relieve()

    def _part(self, place: Destination) -> BytePart | ArrowPart:
        if place not in self._parts:
            before = self._before.pop(place, None)
            if before is not None:
                self._consumed.append(place)
            else:
                self._check_name(place)
            self._parts[place] = new_part(self._desk, place, self._kind_of(place), before)
        return self._parts[place]

    def finish(self) -> tuple[list[ClosedPart], list[OpenPart], list[Destination]]:
        """Bring everything to disk; return (closed parts, parts left open, places whose earlier part they continue).

        Parts that end are closed here if they have at least `merge_below` bytes; smaller ones are left open, and the driver
        merges those of several writers.
        """
        self._close_untouched()
        left, stays = [], False
        for part in self._parts.values():
            ends = self._desk.ends(part.opened)
            if part.is_encrypted_now or (ends and part.size >= self._desk.merge_below):
                part.close()
            else:
                left.append(part.leave(durable=not ends))
                stays |= not ends
        failpoints.hit("sink.write.staged")
        self._desk.staging.finish(durable=stays)
        return [describe() for describe in self._desk.closed], left, self._consumed

    def _close_untouched(self) -> None:
        """Close the large parts that end with this batch but got no rows in it."""
        ending = [part for part in self._before.values() if self._desk.ends(part)]
        for part in self._expired + ending:
            if part.size >= self._desk.merge_below:
                new_part(self._desk, part.place, part.kind, part).close()
                self._consumed.append(part.place)

    def discard(self, after: BaseException) -> None:
        """Give up after a failure."""
        self._desk.staging.discard(after)
