r"""Cutting CSV into records, by following its quotes.

Separators and line breaks inside quotes are data. Whether a record begins after a line break depends on whether the
line break is inside quotes, and that depends on all quotes before it. So a file of CSV cannot be cut anywhere, as lines
can. It can be cut after a known record start, the *anchor*, by following the quotes from there (`csv_cuts`). Records
end with `\n`, `\r\n` or a lone `\r` outside quotes.

Following them needs no step per character. A quote *opens* only at the start of a field: after a separator or a line
break; anywhere else outside quotes it is literal (`5" pipe`). What a quote does inside depends on the dialect.

*Doubled quotes* (RFC 4180, the default). Look at runs of adjacent quotes. Inside quotes a run of even length is escaped
quotes and changes nothing; a run of odd length closes. Outside, an odd run at the start of a field opens; an even one
there is an empty or self-contained value. So an even run never changes the state, an odd run at the start of a field
flips it, and after any other odd run the state is "outside", whatever it was before.

*Escaped quotes* (`escape` is another character, such as Spark's backslash). Look at each quote by itself, and at the
run of escapes before it. The run is all inside or all outside, because nothing in it changes the state. Inside, it is
read from its left: two escapes are one, and one that is left over belongs to the quote. So a quote after an odd run
changes nothing: inside it is data, and outside it is not at the start of a field. A quote after an even run, or none,
closes if it is inside; outside it opens at the start of a field and is literal elsewhere. So a quote at the start of a
field flips the state, and after any other the state is "outside". A run of escapes is never looked at in part: if more
may follow, a piece ends before the run.

In both dialects there are only two kinds of event. The state after each event is the parity of the flips since the last
event of the second kind: two cumulative sums in numpy.

*Comments* are records that begin with `comment`; quotes in them are text. Whether a line that begins like that is a
comment depends on the state at its beginning, and that depends on which lines before it were comments. But look at the
line as a whole, as a function of the state. If the state is outside, the line is a comment, and the state after it is
outside. If the state is inside, the events of the line are followed as usual. So if they lead from inside to inside,
the line leaves every state unchanged; otherwise the state after it is always "outside". That is no event, or one event
of the second kind, with no case to distinguish. The states at the beginnings of such lines follow; they say which lines
are comments, and the quotes of these are then left out.

These are the rules of Arrow's parser, which reads the records afterwards (`decoder`), as far as it has such rules.
Arrow takes text after a closing quote (`"a"b`) as more of the field, other readers do something else, and RFC 4180 does
not define it: such a record is refused here, in each dialect, and so is such a header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import BadRecord
from penstock.formats.format import Dialect
from penstock.formats.lines import (
    BLOCK_BYTES,
    BOM,
    RECORD_BYTES_MAX,
    assembled,
    not_blank,
    reads,
    record_at,
    without_bom,
)
from penstock.formats.malformed import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats.format import Refuse

    Offsets = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

RFC4180 = Dialect()
_LF, _CR = 10, 13
_SCAN_BYTES = 4 << 20
_HELD_BYTES_MAX = 64 << 20  # of consecutive quotes or escapes
_HEADER_BYTES = 64 << 10


def csv_cuts(
    read: Callable[[int, int], bytes], size: int, anchor: int, targets: Sequence[int], dialect: Dialect = RFC4180
) -> list[int]:
    """Return for each of `targets`, in their order, the first offset at or after it where a record begins, or `size` if there is none.

    Also `size` for a file that is quotes, or escapes, without end: its reader will refuse it, or read it whole.

    `anchor` is where a record begins. Targets ascend; for one before the anchor the result is the anchor. The file is
    read once from the anchor, in pieces. A comment and a blank line count as records. `read` is as in `lines.blocks`.
    Raises `FileChanged` when the file ends before `size`.
    """
    cuts = [anchor for target in targets if target <= anchor]
    wanted = np.array(targets[len(cuts) :], np.int64)
    if not dialect.quote:
        begins = (record_at(read, size, int(target), size, sep=None) for target in wanted)
        return cuts + [size if begin is None else begin for begin in begins]
    if not len(wanted):
        return cuts
    scan = QuoteScan(dialect)
    at, held = _content_start(read, size, anchor), b""
    for chunk in reads(read, at, size, _SCAN_BYTES):
        data = held + chunk
        known = len(data) if at + len(data) == size else scan.decided(data)
        ends = scan.ends(data[:known], max(int(wanted[0]) - at, 0))
        places = np.searchsorted(ends, wanted - at)
        places = places[places < len(ends)]
        cuts += (ends[places] + at).tolist()
        wanted = wanted[len(places) :]
        at, held = at + known, data[known:]
        if not len(wanted) or len(held) > _HELD_BYTES_MAX:
            break
    return cuts + [size] * len(wanted)


def csv_blocks(
    read: Callable[[int, int], bytes],
    size: int,
    start: int,
    end: int,
    block_bytes: int = BLOCK_BYTES,
    *,
    dialect: Dialect = RFC4180,
    record_bytes_max: int = RECORD_BYTES_MAX,
    refuse: Refuse | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield (file offset, bytes of whole records) of [start, end); both are where a record begins, or `size`.

    A byte order mark at 0 is left out. Blocks have about `block_bytes`, more for a longer record.

    Raises `BadRecord` with the offset of a record that is longer than `record_bytes_max`, or whose quote is never
    closed, or is followed by text after it is closed. If `refuse` is given, it is called with such records instead,
    except those that are too long. Raises `FileChanged` when the file ends before `end`.
    """
    begin = _content_start(read, size, start)
    chunks = reads(read, begin, min(end, size), block_bytes)
    yield from _blocks(chunks, begin, dialect, (block_bytes, record_bytes_max), refuse)


def are_whole(data: bytes, ends: Sequence[int], dialect: Dialect) -> bool:
    """Tell whether all quotes of `data` are closed at each of `ends`, and none of its records must be refused.

    Then files that were joined into `data`, and end there, have the same records as on their own: each begins outside
    of quotes.
    """
    scan = QuoteScan(dialect)
    closed = not scan.inside(data, np.array(ends)).any()
    return closed and not (scan.strays < len(data)).any()


def csv_stream_blocks(
    chunks: Iterable[bytes],
    block_bytes: int = BLOCK_BYTES,
    *,
    dialect: Dialect = RFC4180,
    refuse: Refuse | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks as `csv_blocks` does, of a whole file that comes as a stream; offsets are in its content."""
    offset, rest = without_bom(chunks)
    yield from _blocks(rest, offset, dialect, (block_bytes, RECORD_BYTES_MAX), refuse)


def csv_header(read: Callable[[int, int], bytes], size: int, dialect: Dialect) -> tuple[int, bytes]:
    """Return where the record after the header begins, and the header; `size` and an empty header if there is none.

    The header is the first record that is neither a blank line nor a comment.
    """
    begin = _content_start(read, size, 0)
    chunks = reads(read, begin, size, _HEADER_BYTES)
    cutter = _Cutter(dialect)
    for at, data in assembled(chunks, begin, cutter, block_bytes=_HEADER_BYTES, record_bytes_max=RECORD_BYTES_MAX):
        span = _first_row(data, dialect)
        if span:
            return at + span[1], data[slice(*span)]
    return size, b""


def csv_stream_header(
    blocks: Iterator[tuple[int, bytes]], dialect: Dialect
) -> tuple[bytes, Iterator[tuple[int, bytes]]]:
    """Return the header of a file that `csv_stream_blocks` reads, and the blocks after it."""
    for offset, data in blocks:
        span = _first_row(data, dialect)
        if span:
            rest = [(offset + span[1], data[span[1] :])] if span[1] < len(data) else []
            return data[slice(*span)], _chained(rest, blocks)
    return b"", blocks


def row_starts(block: bytes, dialect: Dialect, records: Offsets | None = None) -> Offsets:
    """Return the offset of each record in `block`, except blank lines and comments. A record must begin at the block's start.

    `records` is the result of `record_starts`, if that is known.
    """
    starts = not_blank(block, record_starts(block, dialect) if records is None else records, b"\r\n")
    if dialect.comment is None or not len(starts):
        return starts
    rows: Offsets = starts[np.frombuffer(block, np.uint8)[starts] != ord(dialect.comment)]
    return rows


def record_starts(block: bytes, dialect: Dialect) -> Offsets:
    """Return the offset of each record in `block`, including comments and blank lines. A record must begin at the block's start."""
    starts = np.concatenate((np.zeros(1, np.int64), QuoteScan(dialect).ends(block, 0)))
    return starts[starts < len(block)] if block else starts


def without_comments(block: bytes, dialect: Dialect) -> bytes:
    """Return `block` without its comments. A record must begin at its start."""
    mark = (dialect.comment or "").encode()
    if not mark or mark not in block:
        return block
    if not (block.startswith(mark) or b"\n" + mark in block or b"\r" + mark in block):
        return block
    view = np.frombuffer(block, np.uint8)
    bounds = np.append(record_starts(block, dialect), len(block))
    data = view[bounds[:-1]] != ord(mark)
    rows: bytes = view[np.repeat(data, np.diff(bounds))].tobytes()
    return rows


def with_doubled_quotes(block: bytes, dialect: Dialect) -> bytes:
    """Return `block`, which has no comments, with its quotes doubled instead of escaped. A record must begin at its start."""
    if dialect.escapes is None:
        return block
    quote, escape = dialect.quote.encode(), dialect.escapes.encode()
    if escape not in block or (escape + quote not in block and escape + escape not in block):
        return block
    view = np.frombuffer(block, np.uint8)
    escapes = np.flatnonzero(view == ord(escape))
    begins = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)
    counts = np.diff(begins, append=len(escapes))
    place = np.arange(len(escapes)) - np.repeat(begins, counts)
    following = np.append(view, np.uint8(0))[escapes + 1]
    inside = QuoteScan(dialect).inside(block, escapes[begins])
    acts = np.repeat(inside, counts) & (place % 2 == 0)
    doubled = view.copy()
    doubled[escapes[acts & (following == ord(quote))]] = ord(quote)
    single = escapes[acts & (following == ord(escape))]
    return (np.delete(doubled, single) if len(single) else doubled).tobytes()


class _Quotes(NamedTuple):
    """What may change the state, in order: where it is, the offset after it, whether it changes the state, and whether it opens.

    In a dialect with doubled quotes these are the runs of quotes, and only runs of odd length change the state.
    """

    at: Offsets
    after: Offsets
    changes: Flags
    opens: Flags

    def only(self, chosen: Flags) -> _Quotes:
        return _Quotes(self.at[chosen], self.after[chosen], self.changes[chosen], self.opens[chosen])


_NO_QUOTES = _Quotes(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0, np.bool_))


class QuoteScan:
    """Follows the quotes of records, piece by piece, from a known record start."""

    def __init__(self, dialect: Dialect) -> None:
        self._quote = dialect.quote.encode()
        self._escape = (dialect.escapes or "").encode()
        self._comment = (dialect.comment or "").encode()
        self._starts_field = np.zeros(256, np.bool_)
        self._starts_field[[ord(dialect.sep), _LF, _CR]] = True
        self._inside = False
        self._in_comment = False
        self._before = _LF
        self.strays = np.zeros(0, np.int64)  # where text follows a closing quote in the last piece

    def decided(self, data: bytes) -> int:
        r"""Return the length of `data` without an end whose meaning depends on what follows: quotes, escapes, `\r`."""
        return len(data.rstrip(self._quote + self._escape + b"\r"))

    def ends(self, data: bytes, target: int) -> Offsets:
        """Return the offsets in `data`, which follows the previous piece, from `target` on at which records end.

        If more follows, `data` must be `decided`.
        """
        at, states = self._states_of(data)
        ends = _line_ends(data, max(target - 1, 0))
        if len(at):
            ends = ends[~self._at(at, states, ends - 1)]
        elif self._inside:
            ends = ends[:0]
        self._inside = bool(states[-1]) if len(at) else self._inside
        self._before = data[-1] if data else self._before
        return ends

    def inside(self, data: bytes, places: Offsets) -> Flags:
        """Tell for each of `places` in `data`, which is the last piece, whether it is inside quotes."""
        return self._at(*self._states_of(data), places)

    def unclosed(self, data: bytes) -> bool:
        """Tell whether `data`, which is the last piece, ends inside quotes."""
        _, states = self._states_of(data)
        return bool(states[-1]) if len(states) else self._inside

    def _at(self, at: Offsets, states: Flags, places: Offsets) -> Flags:
        inside: Flags = np.concatenate((np.array([self._inside]), states))[np.searchsorted(at, places)]
        return inside

    def _states_of(self, data: bytes) -> tuple[Offsets, Flags]:
        """Return where the state may change, and whether each such place is followed by text inside quotes."""
        self.strays = np.zeros(0, np.int64)
        view = np.frombuffer(data, np.uint8)
        quotes = _NO_QUOTES
        if self._quote and self._quote in data:
            quotes = self._escaped_quotes(view, data) if self._escape else self._doubled_quotes(view)
        if self._comment and (self._in_comment or self._comment in data):
            quotes = self._outside_comments(quotes, view)
        at, _, changes, opens = quotes
        states = self._states(opens[changes])
        if len(at):
            self._find_stray(quotes, states, view)
        return at[changes], states

    def _doubled_quotes(self, view: npt.NDArray[np.uint8]) -> _Quotes:
        quotes = np.flatnonzero(view == ord(self._quote))
        begins = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
        counts = np.diff(begins, append=len(quotes))
        runs = quotes[begins]
        return _Quotes(runs, runs + counts, counts % 2 == 1, self._starts_field[self._in_front(view, runs)])

    def _escaped_quotes(self, view: npt.NDArray[np.uint8], data: bytes) -> _Quotes:
        quotes = np.flatnonzero(view == ord(self._quote))
        if self._escape in data:
            escapes = np.flatnonzero(view == ord(self._escape))
            begins = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)
            counts = np.diff(begins, append=len(escapes))
            escaped = np.zeros(len(view) + 1, np.bool_)
            escaped[(escapes[begins] + counts)[counts % 2 == 1]] = True
            quotes = quotes[~escaped[quotes]]
        opens = self._starts_field[self._in_front(view, quotes)]
        return _Quotes(quotes, quotes + 1, np.ones(len(quotes), np.bool_), opens)

    def _in_front(self, view: npt.NDArray[np.uint8], places: Offsets) -> npt.NDArray[np.uint8]:
        """Return the byte before each of `places`, which are in order."""
        before = view[places - 1]
        if len(places) and places[0] == 0:
            before[0] = self._before
        return before

    def _states(self, flips: Flags) -> Flags:
        """Return the state after each event: the parity of the flips since the last event that leaves the state "outside"."""
        flipped = np.cumsum(flips)
        outside_at = np.maximum.accumulate(np.where(flips, -1, np.arange(len(flips))))
        base = np.where(outside_at < 0, -int(self._inside), flipped[outside_at])
        states: Flags = np.equal((flipped - base) % 2, 1)
        return states

    def _find_stray(self, quotes: _Quotes, states: Flags, view: npt.NDArray[np.uint8]) -> None:
        changes = quotes.changes
        inside = np.concatenate((np.array([self._inside]), states))[np.cumsum(changes) - changes]
        closed = quotes.after[np.where(inside, changes, quotes.opens & ~changes)]
        closed = closed[: np.searchsorted(closed, len(view))]
        self.strays = closed[~self._starts_field[view[closed]]]

    def _outside_comments(self, quotes: _Quotes, view: npt.NDArray[np.uint8]) -> _Quotes:
        """Return those of `quotes` that are not in comments."""
        breaks = np.append(np.flatnonzero((view == _LF) | (view == _CR)), len(view))
        if self._in_comment:
            quotes = quotes.only(quotes.at >= breaks[0])
        begins = np.flatnonzero(view == ord(self._comment))
        front = self._in_front(view, begins)
        begins = begins[(front == _LF) | (front == _CR)]
        ends = breaks[np.searchsorted(breaks, begins)]
        comments = self._are_comments(quotes, begins, ends)
        begins, ends = begins[comments], ends[comments]
        self._in_comment = bool(ends[-1] == len(view) if len(ends) else self._in_comment and breaks[0] == len(view))
        if not len(begins):
            return quotes
        nearest = np.searchsorted(begins, quotes.at) - 1
        return quotes.only((nearest < 0) | (quotes.at > ends[nearest]))

    def _are_comments(self, quotes: _Quotes, begins: Offsets, ends: Offsets) -> Flags:
        """Tell for lines that begin with the mark of a comment whether they begin outside quotes."""
        at, flips = quotes.at[quotes.changes], quotes.opens[quotes.changes]
        first, last = np.searchsorted(at, begins), np.searchsorted(at, ends)
        flipped = np.concatenate((np.zeros(1, np.int64), np.cumsum(flips)))
        resets = np.maximum.accumulate(np.append(-1, np.where(flips, -1, np.arange(len(flips)))))[last]
        from_inside = np.where(resets < first, flipped[first] - 1, flipped[resets + 1])
        leaves_outside = (flipped[last] - from_inside) % 2 == 0
        depth = np.zeros(len(at) + 1, np.int64)
        np.add.at(depth, first, 1)
        np.add.at(depth, last, -1)
        kept = np.cumsum(depth)[:-1] == 0
        heads = first[leaves_outside]  # each stands for its line
        kept[heads] = True
        flips = flips.copy()
        flips[heads] = False
        states = np.concatenate((np.array([self._inside]), self._states(flips[kept])))
        outside: Flags = ~states[np.concatenate((np.zeros(1, np.int64), np.cumsum(kept)))[first]]
        return outside


class CsvTail:
    """The end of a growing file, from the record at `begin` on, of which no whole record is known yet; see `families.Tail`.

    Quotes are followed up to a place behind which there are only bytes whose meaning depends on what follows. These are read once more
    when something else has come.
    """

    def __init__(self, begin: int, dialect: Dialect) -> None:
        self.begin = self.searched = begin
        self._scan = QuoteScan(dialect)
        self._followed = begin

    def ended(self, read: Callable[[int, int], bytes], size: int) -> int:
        """Return where the last record ends that surely ends within the first `size` bytes; `begin` if there is none."""
        end = self.begin
        if self.searched == 0:
            if BOM.startswith(read(0, min(size, len(BOM) - 1))) and size < len(BOM):
                return end  # it may be the beginning of a mark
            self.searched = self._followed = _content_start(read, size, 0)
        while self.searched < size:
            upto = min(self.searched + BLOCK_BYTES, size)
            data = _bytes_of(read, self.searched, upto)
            if self._scan.decided(data):
                data = _bytes_of(read, self._followed, self.searched) + data
                known = self._scan.decided(data)
                ends = self._scan.ends(data[:known], 0)
                end = self._followed + int(ends[-1]) if len(ends) else end
                self._followed += known
            self.searched = upto
        return end


def _bytes_of(read: Callable[[int, int], bytes], start: int, end: int) -> bytes:
    return b"".join(reads(read, start, end, BLOCK_BYTES))


class _Cutter:
    """Finds where the last known record begins in data that begins with a record; `cut` and `scan` belong to the last call."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.cut = 0
        self.scan = QuoteScan(dialect)

    def __call__(self, data: bytes) -> int:
        self.scan = QuoteScan(self._dialect)
        ends = self.scan.ends(data[: self.scan.decided(data)], 0)
        self.cut = int(ends[-1]) if len(ends) else 0
        return self.cut


def _blocks(
    chunks: Iterable[bytes],
    offset: int,
    dialect: Dialect,
    sizes: tuple[int, int],
    refuse: Refuse | None,
) -> Iterator[tuple[int, bytes]]:
    cutter = _Cutter(dialect)
    block_bytes, record_bytes_max = sizes
    for at, data in assembled(chunks, offset, cutter, block_bytes=block_bytes, record_bytes_max=record_bytes_max):
        last = len(data) != cutter.cut
        scan = QuoteScan(dialect) if last else cutter.scan
        unclosed = last and scan.unclosed(data)
        strays = scan.strays[scan.strays < len(data)]
        cutter.cut = 0
        if len(strays) or unclosed:
            yield from _sound(data, at, _unsound(data, strays, dialect, unclosed=unclosed), refuse)
        else:
            yield at, data


def has_strays(record: bytes, dialect: Dialect) -> bool:
    """Tell whether text follows a closing quote in a record."""
    scan = QuoteScan(dialect)
    scan.unclosed(record)
    return len(scan.strays) > 0


def _unsound(data: bytes, strays: Offsets, dialect: Dialect, *, unclosed: bool) -> list[tuple[int, int, str]]:
    """Return the records (at least one) whose quotes do not close or are followed by text, and what was expected."""
    starts = np.append(record_starts(data, dialect), len(data))
    advice = "" if dialect.escapes is None else "; where quotes are doubled, set escape to the quote"
    places = np.unique(np.searchsorted(starts[:-1], strays) - 1).tolist()
    expected = dict.fromkeys(places, f"a separator or a line break after the closing quote{advice}")
    if unclosed:
        expected.setdefault(len(starts) - 2, "a closing quote before the end of the file")
    return [(int(starts[place]), int(starts[place + 1]), text) for place, text in sorted(expected.items())]


def _sound(
    data: bytes, at: int, unsound: list[tuple[int, int, str]], refuse: Refuse | None
) -> Iterator[tuple[int, bytes]]:
    """Yield what is between invalid records, and call `refuse` with these; without `refuse`, `BadRecord` for the first."""
    begin = 0
    for start, end, expected in unsound:
        if refuse is None:
            msg = f"found '{excerpt(data[start:])}', expected {expected}"
            raise BadRecord(msg, offset=at + start)
        if start > begin:
            yield at + begin, data[begin:start]
        refuse(at + start, data[start:end], f"expected {expected}")
        begin = end
    if begin < len(data):
        yield at + begin, data[begin:]


def _first_row(data: bytes, dialect: Dialect) -> tuple[int, int] | None:
    """Return where the first record of `data` that is neither blank nor a comment begins and ends; None if there is none."""
    begin = len(data) - len(data.lstrip(b"\r\n"))
    line = data[begin : data.find(b"\n", begin) + 1]
    marks = (dialect.quote.encode(), (dialect.comment or "").encode(), b"\r")
    if line and not any(mark and mark in line for mark in marks):
        return begin, begin + len(line)
    rows = row_starts(data, dialect)
    if not len(rows):
        return None
    begin = int(rows[0])
    ends = QuoteScan(dialect).ends(data[begin:], 0)
    return begin, begin + int(ends[0]) if len(ends) else len(data)


def _content_start(read: Callable[[int, int], bytes], size: int, start: int) -> int:
    """Return `start`, or the end of a byte order mark that begins there."""
    return len(BOM) if start == 0 and read(0, min(len(BOM), size)) == BOM else start


def _line_ends(data: bytes, begin: int) -> Offsets:
    r"""Return the offset after each `\n`, `\r\n` and lone `\r` of `data` from `begin` on, quoted or not."""
    view = np.frombuffer(data, np.uint8)[begin:]
    hit = view == _LF
    if data.find(b"\r", begin) >= 0:
        lone = view == _CR
        lone[:-1] &= view[1:] != _LF
        hit |= lone
    return np.flatnonzero(hit).astype(np.int64) + begin + 1


def _chained(first: list[tuple[int, bytes]], rest: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield from first
    yield from rest
