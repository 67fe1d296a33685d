"""Parts of text-like files: any run of their bytes is a segment, and the segments one after the other are the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.codecs import compress, expansion
from penstock.sink.parts import BYTES, Desk, Part, required
from penstock.sink.payload import Encoded

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.sink.ledger import Destination, Kind, OpenPart, Segment
    from penstock.sink.staging import Output

_MEMBER_BYTES = 1 << 20  # bytes of text in one compressed member
_HELD_LONGER = 8  # times as much is held in memory before encryption: a part that is complete before it is staged is encrypted once


class BytePart(Part[Encoded]):
    """A part of a text-like file, whose segments are concatenated.

    With a compression, rows are held as text and become members (gzip) or frames (zstd) of about `_MEMBER_BYTES`.
    """

    def __init__(self, desk: Desk, place: Destination, kind: Kind, before: OpenPart | None) -> None:
        super().__init__(desk, place, kind, before)
        self._codec, self._level = kind.compression, kind.level
        self._header = kind.header_bytes
        self._text: list[Encoded] = []  # not compressed yet
        self._text_bytes = 0

    @property
    def rows(self) -> int:
        """Return the part's rows, committed or not."""
        return super().rows + sum(p.rows for p in self._text)

    @property
    def size(self) -> int:
        """Return the bytes the finished file would have now."""
        return super().size + len(self._header)

    @property
    def is_to_be_staged(self) -> bool:
        """Whether more of the part is in memory than should be."""
        if self.buffered < self.stage_bytes:
            return False
        return self.buffered >= self.stage_bytes * (1 if self._has_own_file else _HELD_LONGER)

    def add(self, payload: Encoded) -> None:
        """Take the rows; a full member is compressed at once."""
        if self._codec == "none":
            super().add(payload)
            return
        self._text.append(payload)
        self._text_bytes += len(payload.data)
        self._grew = True
        self._hold(len(payload.data))
        if self._text_bytes >= _MEMBER_BYTES:
            self.settle()

    def settle(self) -> bool:
        """Compress the text that is held, so that its size is known; tell whether enough room is left to add more rows."""
        if not self._text:
            return False
        data = compress(b"".join(p.data for p in self._text), self._codec, self._level)
        rows = sum(p.rows for p in self._text)
        self._hold(-self._text_bytes)
        self._text, self._text_bytes = [], 0
        super().add(Encoded(data, rows))
        return self._limit - self.size > self._limit // 16

    def relieve(self) -> None:
        """Move what is in memory to disk."""
        self.settle()
        super().relieve()

    def close(self) -> None:
        """Bring the part into one complete file."""
        self.settle()
        super().close()

    def leave(self, *, durable: bool) -> OpenPart:
        """Stage what is in memory."""
        self.settle()
        return super().leave(durable=durable)

    def _weigh(self, payload: Encoded) -> int:
        return len(payload.data)

    def _held_size(self) -> int:
        held = sum(len(p.data) for p in self._held) + self._text_bytes
        return held if self._codec == "none" else held + expansion(self._text_bytes)

    def _own_size(self) -> int:
        return self._own.tell() - self._own.header_bytes if self._own else 0

    def _fitting(self, payload: Encoded, room: int, room_rows: int | None) -> int:
        return payload.fitting(room, room_rows)

    def _begin_own(self) -> None:
        """Begin the part's own file, which may become the finished file. An encrypted one will, so it begins with all staged segments."""
        own, staging = required(self._own), self._desk.staging
        own.begin(self._header)
        if self.is_encrypted_now:
            for data in (data for segment in self._segments for data in staging.read(segment)):
                own.write(data)
            self._own_rows = sum(segment.rows for segment in self._segments)
            self._segments = []

    def _write_own(self) -> int:
        for held in self._held:
            required(self._own).write(held.data)
        return sum(held.rows for held in self._held)

    def _packed(self, absorbed: list[Segment]) -> Segment:
        staging = self._desk.staging
        data = [data for segment in absorbed for data in staging.read(segment)] + [held.data for held in self._held]
        whole = b"".join(data)
        rows = sum(s.rows for s in absorbed) + sum(held.rows for held in self._held)
        return staging.pack(whole, rows, BYTES, len(whole))

    def _end_own(self) -> int:
        required(self._own).end()
        return 0

    def _own_segments(self, own: Output) -> list[Segment]:
        return [own.segment(self._own_rows, BYTES)]

    def _assembled(self) -> Generator[bytes | memoryview, None, None]:
        staging, own = self._desk.staging, self._own
        if self._header:
            yield self._header
        for segment in [*self._segments, *(self._own_segments(own) if own else [])]:
            yield from staging.read(segment)
        for held in self._held:
            yield held.data
        if own is not None:
            own.discard()
