"""Turning blocks of JSON lines into rows: quickly if that is certain to be right, otherwise exactly.

Four readers give the same rows. `frame` reads flat records that one program has written, and broken lines among them do
not slow it down; `dense` reads flat records without nulls; of these two the faster one is asked first (`race`). `quick`
reads everything usual, at the speed of Arrow's parser; `exact` reads everything, at a quarter of that speed. A block
that the quick reader refuses is cut into pieces, so that an unusual record (a bad value, a repeated key, half a
character) slows down only its own piece. If most pieces need the exact reader, it gets the next blocks directly.

The quick reader is first told to refuse keys that no column has: that costs nothing if there are none, so none is ever
missed. A piece with such keys is read without them, and they are counted separately, which takes about as long again.
If piece after piece has some (a schema that leaves columns out on purpose), blocks are read without them from then on,
and only their first lines are examined; the account then says that it is partial.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.formats.account import Account
from penstock.formats.json.arrow import Lines
from penstock.formats.json.dense import DenseReader
from penstock.formats.json.doubt import Doubt, merged
from penstock.formats.json.exact import count_unknown, exact
from penstock.formats.json.frame import FrameReader
from penstock.formats.json.quick import QuickReader
from penstock.formats.json.race import MEASURED_BYTES, race_of
from penstock.formats.lines import not_blank, record_starts
from penstock.formats.malformed import MalformedError, of_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from penstock.formats.json.doubt import Most
    from penstock.formats.patterns import TimeForms

_PIECE_BYTES = 256 << 10
# The reader for dense records first gets this much: most data is dense throughout, or nowhere.
_PROBE_BYTES = 64 << 10
_LOOK_BYTES = 64 << 10  # of each block, if many blocks have keys that no column has
_PIECES_WITH_UNKNOWN = 4  # consecutive pieces: the rest is likely to have some, too
_BLOCKS_AFTER_A_MISS = 8  # the next blocks are likely to have the same problem
_DENSE, _FRAME = "dense", "frame"


class JsonReader:
    """Reads blocks of one schema. What it remembers changes its speed and what it counts, never a row."""

    def __init__(self, schema: pa.Schema, times: TimeForms) -> None:
        self._schema = schema
        self._times = times
        self._dense = DenseReader(schema, times) if DenseReader.takes(schema) else None
        self._frame = FrameReader(schema, times) if FrameReader.takes(schema) else None
        self._quick = QuickReader(schema, times) if QuickReader.takes(schema) else None
        self._doubt = None if self._quick is None else Doubt(self._quick)
        self._race = race_of(schema, _DENSE, _FRAME)
        self._is_dense = False  # whether the previous block was
        self._not_dense = self._not_quick = 0  # number of blocks for which they will not be asked
        self._unknown_pieces = 0
        self.exact_bytes = 0

    def read(self, data: bytes, account: Account) -> pa.RecordBatch:
        """Return the rows of the lines in `data`, each ended by a line feed, and count the keys that no column has in the account.

        Raises `MalformedError`; then the content of the account is useless.
        """
        dense = self.dense_first(data)
        if dense is not None:
            return dense
        framed = self._framed(data, account)
        return self._unframed(data, account) if framed is None else framed

    def dense_first(self, data: bytes) -> pa.RecordBatch | None:
        """Return the rows of `data` if the reader for dense records is asked first, and accepts them. Called once per block."""
        runs = partial(self._trials, data) if len(data) >= MEASURED_BYTES else None
        return self._densely(data) if self._race.first(runs) == _DENSE else None

    def _trials(self, data: bytes) -> dict[str, Callable[[], object | None]]:
        """Return how each of the two readers that race reads the first lines of a block; see `Race.first`."""
        piece = data[: data.rfind(b"\n", 0, MEASURED_BYTES) + 1] or data
        dense, frame = self._dense, self._frame
        if dense is None or frame is None:
            return {}
        return {_DENSE: lambda: dense.read(piece), _FRAME: lambda: frame.most(piece, cache(partial(_starts, piece)))}

    def _framed(self, data: bytes, account: Account) -> pa.RecordBatch | None:
        """Return the same if most lines have one form, and the others can be read, too. Raises `MalformedError`."""
        starts = cache(partial(_starts, data))
        most = self.framed(data, starts)
        if most is None or not len(most.doubtful):
            return None if most is None else most.rows
        ends = np.append(starts()[1:], len(data))
        others = self.apart(of_records(data, starts()[most.doubtful], ends[most.doubtful]), account)
        return merged(most.rows, others, most.doubtful)

    def _unframed(self, data: bytes, account: Account) -> pa.RecordBatch:
        """Do the same with the other readers."""
        dense = self._densely(data)
        if dense is not None:
            return dense
        if self._quick is None or self._not_quick:
            self._not_quick = max(self._not_quick - 1, 0)
            return self._exactly(data, account)
        try:
            lines = Lines(data)
        except MalformedError:
            return self._exactly(data, account)
        before = self.exact_bytes
        batches = list(self._batches(self._quick, lines, account))
        if 2 * (self.exact_bytes - before) > len(data) > _PIECE_BYTES:
            self._not_quick = _BLOCKS_AFTER_A_MISS
        return batches[0] if len(batches) == 1 else _joined(batches, self._schema)

    def apart(self, data: bytes, account: Account) -> pa.RecordBatch:
        """Do the same for a few lines that were put aside; nothing is learned from them about the others.

        A key with a damaged letter is a key that no column has, and each block of a damaged file has a few such lines.
        If they were taken as typical of the file, all of it would be read without checking its keys.
        """
        before = self._is_dense, self._not_dense, self._not_quick, self._unknown_pieces
        self._not_dense, self._not_quick, self._unknown_pieces = _BLOCKS_AFTER_A_MISS, 0, 0
        try:
            return self._unframed(data, account)
        finally:
            self._is_dense, self._not_dense, self._not_quick, self._unknown_pieces = before

    def framed(self, data: bytes, starts: Callable[[], npt.NDArray[np.int64]]) -> Most | None:
        """Return the rows of most lines if these have one form; see `frame`."""
        frame = self._frame
        return None if frame is None else self._race.ask(_FRAME, lambda: frame.most(data, starts))

    def at_once(self, data: bytes) -> pa.RecordBatch | None:
        """Return the same if a faster reader accepts all of it, and each key has a column; `None` if that is not certain."""
        dense = self._densely(data)
        if dense is not None or self._quick is None or self._not_quick:
            return dense
        try:
            return None if self._unknown_pieces else self._quick.read(Lines(data), unknown=False)
        except MalformedError:
            return None

    def most(self, data: bytes, starts: npt.NDArray[np.int64], account: Account) -> Most | None:
        """Return the rows of most lines of `data`, quickly, though some cannot be read; see `doubt`."""
        many = self._unknown_pieces >= _PIECES_WITH_UNKNOWN
        most = None if self._doubt is None else self._doubt.most(data, starts, unknown=many)
        if most is not None and most.lines is not None and many:
            self._look_at_some(most.lines, account)
        return most

    def _densely(self, data: bytes) -> pa.RecordBatch | None:
        dense = self._dense
        if dense is None or self._not_dense:
            self._not_dense = max(self._not_dense - 1, 0)
            return None
        first = b"" if self._is_dense else data[: data.rfind(b"\n", 0, _PROBE_BYTES) + 1]
        batch = self._race.ask(_DENSE, lambda: None if first and dense.read(first) is None else dense.read(data))
        self._is_dense = batch is not None
        self._not_dense = 0 if self._is_dense else _BLOCKS_AFTER_A_MISS
        return batch

    def _batches(self, quick: QuickReader, lines: Lines, account: Account) -> Iterator[pa.RecordBatch]:
        many = self._unknown_pieces >= _PIECES_WITH_UNKNOWN
        try:
            whole = quick.read(lines, unknown=many)
        except MalformedError:
            whole = None
        if whole is not None:
            if many:
                self._look_at_some(lines, account)
            yield whole
            return
        rest = lines.pieces(_PIECE_BYTES)
        while rest:
            yield self._piece(quick, rest.pop(0), account)
            if not many and self._unknown_pieces >= _PIECES_WITH_UNKNOWN and rest:
                yield from self._batches(quick, Lines(b"".join(piece.data for piece in rest)), account)
                return

    def _piece(self, quick: QuickReader, piece: Lines, account: Account) -> pa.RecordBatch:
        for unknown in (False, True):
            try:
                batch = quick.read(piece, unknown=unknown)
            except MalformedError:
                continue
            self._unknown_pieces = self._unknown_pieces + 1 if unknown else 0
            if unknown:
                count_unknown(piece.data, self._schema, account)
            return batch
        return self._exactly(piece.data, account)

    def _look_at_some(self, lines: Lines, account: Account) -> None:
        """Count the unknown keys of the first piece of a block; if it has none, the next block is checked for them again."""
        first = lines.first(_LOOK_BYTES)
        seen = Account()
        count_unknown(first.data, self._schema, seen)
        account.count(seen.unknown.items(), seen.more)
        account.partial = account.partial or len(first) < len(lines)
        if not seen.unknown:
            self._unknown_pieces = 0

    def _exactly(self, data: bytes, account: Account) -> pa.RecordBatch:
        self.exact_bytes += len(data)
        return exact(data, self._schema, self._times, account)


def _starts(data: bytes) -> npt.NDArray[np.int64]:
    """Return where each non-blank line begins."""
    return not_blank(data, record_starts(data, sep=b"\n"), b" \t\r\n")


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    whole = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole[0] if whole else schema.empty_table().to_batches()[0]
