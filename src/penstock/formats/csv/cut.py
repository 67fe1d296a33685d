r"""Where records of CSV begin: following its quotes.

Separators and line breaks inside quotes are data. Where a record begins depends on whether a line break is inside quotes,
which depends on all quotes before it. So a file cannot be cut anywhere, as lines can; it can be cut behind a known record
start, the *anchor*, by following the quotes from there (`csv_cuts`). Records end with `\n`, `\r\n` or a lone `\r` outside
quotes.

Following them needs no step per character. A quote *opens* only at the start of a field: behind a separator or a line
break; anywhere else outside quotes it is literal (`5" pipe`). What a quote does inside depends on the dialect.

*Doubled quotes* (RFC 4180, the default). Look at runs of adjacent quotes. Inside quotes a run of even length is escaped
quotes and changes nothing, one of odd length closes. Outside, an odd run at the start of a field opens, and an even one
there is an empty or self-contained value. So an even run never changes the state, an odd one at the start of a field
flips it, and any other odd one leaves "outside" behind, whatever was before.

*Escaped quotes* (`escape` is another character, such as Spark's backslash). Look at each quote by itself, and at the run
of escapes in front of it. The run is all inside or all outside, as nothing in it changes the state, and inside it is read
from its left: two escapes are one, and one that is left over belongs to the quote. So a quote behind an odd run changes
nothing: inside it is data, and outside it is not at the start of a field. Behind an even run, or none, it closes if it is
inside; outside it opens at the start of a field and is literal elsewhere. So one at the start of a field flips the state,
and any other leaves "outside" behind. A run of escapes is never looked at in part: where more may follow, a piece ends
in front of it.

In both dialects there are but two kinds of event. The state behind each is the parity of the flips since the last event
of the second kind: two cumulative sums in numpy.

*Comments* are records that begin with `comment`; quotes in them are text. Whether a line that begins so is one depends on
the state at its beginning, and that on which lines before it were. But look at the line as a whole, as a function of the
state. From outside it is a comment, and outside is behind it. From inside its events are followed as ever. So it leaves
every state as it is, if they lead from inside to inside, and else leaves "outside" behind: no event or one of the second
kind, which no choice enters into. The states at the beginnings of such lines follow; they say which are comments, whose
quotes are then left out.

These are the rules of Arrow's parser, as far as it has them, which reads the records afterwards (`decoder`). It takes
text behind a closing quote (`"a"b`) for more of the field, others take it otherwise, and RFC 4180 has none: such a record
is refused here, in each dialect.
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
_HELD_BYTES_MAX = 64 << 20  # of quotes or escapes one behind the other
_HEADER_BYTES = 64 << 10


def csv_cuts(
    read: Callable[[int, int], bytes], size: int, anchor: int, targets: Sequence[int], dialect: Dialect = RFC4180
) -> list[int]:
    """Return for each of `targets`, in their order, the first offset at or behind it where a record begins, or `size` if none does.

    Also `size` for a file that is quotes, or escapes, without end: its reader will refuse it, or take it whole.

    `anchor` is where a record begins, at or in front of the targets, which ascend: one in front of it has the anchor. The file is read
    once from there, in pieces. A comment and a blank line count as records. `read` is as in `lines.blocks`. Raises `FileChanged` when the
    file ends before `size`.
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


def csv_ended(read: Callable[[int, int], bytes], begin: int, size: int, dialect: Dialect = RFC4180) -> int:
    """Return where the last record ends that surely ends in the first `size` bytes of a file that still grows; see `lines.ended`."""
    cutter, at, wanted = _Cutter(dialect), begin, BLOCK_BYTES
    while at < size:
        cut = cutter(b"".join(reads(read, at, min(at + wanted, size), wanted)))
        if not cut and at + wanted >= size:
            break
        at, wanted = at + cut, BLOCK_BYTES if cut else 2 * wanted
    return at


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
    """Yield (file offset, bytes of whole records) of [start, end), both of which are where a record begins, or `size`.

    A byte order mark at 0 is left out. Blocks are of about `block_bytes`, larger for a longer record.

    Raises `BadRecord` with the offset of a record above `record_bytes_max`, or whose quote is never closed or is followed
    by text when it is (but for the length, `refuse` is called with these instead), and `FileChanged` when the file ends
    before `end`.
    """
    begin = _content_start(read, size, start)
    chunks = reads(read, begin, min(end, size), block_bytes)
    yield from _blocks(chunks, begin, dialect, (block_bytes, record_bytes_max), refuse)


def are_whole(data: bytes, ends: Sequence[int], dialect: Dialect) -> bool:
    """Tell whether at each of `ends` all quotes of `data` are closed, and no record of it is one that has to be refused.

    Then files that were joined to it, and end there, have the records that they have by themselves: each begins outside of quotes.
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
    """Return where the record behind the header begins, and the header; `size` and nothing if there is none.

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
    """Return the header of a file that `csv_stream_blocks` reads, and the blocks behind it."""
    for offset, data in blocks:
        span = _first_row(data, dialect)
        if span:
            rest = [(offset + span[1], data[span[1] :])] if span[1] < len(data) else []
            return data[slice(*span)], _chained(rest, blocks)
    return b"", blocks


def row_starts(block: bytes, dialect: Dialect, records: Offsets | None = None) -> Offsets:
    """Return the offset in `block`, which begins a record, of each record that is neither a blank line nor a comment.

    `records` is what `record_starts` returns, where that is known.
    """
    starts = not_blank(block, record_starts(block, dialect) if records is None else records, b"\r\n")
    if dialect.comment is None or not len(starts):
        return starts
    rows: Offsets = starts[np.frombuffer(block, np.uint8)[starts] != ord(dialect.comment)]
    return rows


def record_starts(block: bytes, dialect: Dialect) -> Offsets:
    """Return the offset in `block`, which begins a record, of each record in it, comments and blank lines included."""
    starts = np.concatenate((np.zeros(1, np.int64), QuoteScan(dialect).ends(block, 0)))
    return starts[starts < len(block)] if block else starts


def without_comments(block: bytes, dialect: Dialect) -> bytes:
    """Return `block`, which begins a record, without its comments."""
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
    """Return `block`, which begins a record and has no comments, with its quotes doubled instead of escaped."""
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
    behind = np.append(view, np.uint8(0))[escapes + 1]
    inside = QuoteScan(dialect).inside(block, escapes[begins])
    acts = np.repeat(inside, counts) & (place % 2 == 0)
    doubled = view.copy()
    doubled[escapes[acts & (behind == ord(quote))]] = ord(quote)
    single = escapes[acts & (behind == ord(escape))]
    return (np.delete(doubled, single) if len(single) else doubled).tobytes()


class _Quotes(NamedTuple):
    """What may change the state, in order: where it is, what is behind it, whether it does, and whether it opens.

    Of a dialect with doubled quotes these are the runs of quotes, and only those of odd length change the state.
    """

    at: Offsets
    behind: Offsets
    changes: Flags
    opens: Flags

    def only(self, chosen: Flags) -> _Quotes:
        return _Quotes(self.at[chosen], self.behind[chosen], self.changes[chosen], self.opens[chosen])


_NO_QUOTES = _Quotes(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0, np.bool_))


class QuoteScan:
    """Follows the quotes of records from one known record start, piece by piece."""

    def __init__(self, dialect: Dialect) -> None:
        self._quote = dialect.quote.encode()
        self._escape = (dialect.escapes or "").encode()
        self._comment = (dialect.comment or "").encode()
        self._starts_field = np.zeros(256, np.bool_)
        self._starts_field[[ord(dialect.sep), _LF, _CR]] = True
        self._inside = False
        self._in_comment = False
        self._before = _LF
        self.strays = np.zeros(0, np.int64)  # where text is behind a closing quote in the data looked at last

    def decided(self, data: bytes) -> int:
        r"""Return the length of `data` without what is at its end and what follows may change: quotes, escapes, `\r`."""
        return len(data.rstrip(self._quote + self._escape + b"\r"))

    def ends(self, data: bytes, target: int) -> Offsets:
        """Return the offsets in `data`, which follows what was given before, from `target` on at which records end.

        Where more follows, `data` is `decided`.
        """
        at, behind = self._states_of(data)
        ends = _line_ends(data, max(target - 1, 0))
        if len(at):
            ends = ends[~self._at(at, behind, ends - 1)]
        elif self._inside:
            ends = ends[:0]
        self._inside = bool(behind[-1]) if len(at) else self._inside
        self._before = data[-1] if data else self._before
        return ends

    def inside(self, data: bytes, places: Offsets) -> Flags:
        """Tell of each of `places` in `data`, which is the rest, whether it is inside quotes."""
        return self._at(*self._states_of(data), places)

    def unclosed(self, data: bytes) -> bool:
        """Tell whether `data`, which is the rest, ends inside quotes."""
        _, behind = self._states_of(data)
        return bool(behind[-1]) if len(behind) else self._inside

    def _at(self, at: Offsets, behind: Flags, places: Offsets) -> Flags:
        inside: Flags = np.concatenate((np.array([self._inside]), behind))[np.searchsorted(at, places)]
        return inside

    def _states_of(self, data: bytes) -> tuple[Offsets, Flags]:
        """Return where the state may change, and whether what is behind each such place is inside quotes."""
        self.strays = np.zeros(0, np.int64)
        view = np.frombuffer(data, np.uint8)
        quotes = _NO_QUOTES
        if self._quote and self._quote in data:
            quotes = self._escaped_quotes(view, data) if self._escape else self._doubled_quotes(view)
        if self._comment and (self._in_comment or self._comment in data):
            quotes = self._outside_comments(quotes, view)
        at, _, changes, opens = quotes
        behind = self._states(opens[changes])
        if len(at):
            self._find_stray(quotes, behind, view)
        return at[changes], behind

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
        """Return the byte in front of each of `places`, which are in order."""
        before = view[places - 1]
        if len(places) and places[0] == 0:
            before[0] = self._before
        return before

    def _states(self, flips: Flags) -> Flags:
        """Return the state behind each event: the parity of the flips since the last one that leaves "outside" behind."""
        flipped = np.cumsum(flips)
        outside_at = np.maximum.accumulate(np.where(flips, -1, np.arange(len(flips))))
        base = np.where(outside_at < 0, -int(self._inside), flipped[outside_at])
        states: Flags = np.equal((flipped - base) % 2, 1)
        return states

    def _find_stray(self, quotes: _Quotes, behind: Flags, view: npt.NDArray[np.uint8]) -> None:
        changes = quotes.changes
        inside = np.concatenate((np.array([self._inside]), behind))[np.cumsum(changes) - changes]
        closed = quotes.behind[np.where(inside, changes, quotes.opens & ~changes)]
        closed = closed[: np.searchsorted(closed, len(view))]
        self.strays = closed[~self._starts_field[view[closed]]]

    def _outside_comments(self, quotes: _Quotes, view: npt.NDArray[np.uint8]) -> _Quotes:
        """Return those of `quotes` that are in no comment."""
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
        """Tell of lines that begin with the mark of a comment whether they begin outside quotes."""
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


class _Cutter:
    """Finds where the last known record begins in data that begins at one; `cut` and `scan` are of the last time."""

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


def _unsound(data: bytes, strays: Offsets, dialect: Dialect, *, unclosed: bool) -> list[tuple[int, int, str]]:
    """Return the records, of which there are some, whose quotes do not close or have text behind them, and what was expected."""
    starts = np.append(record_starts(data, dialect), len(data))
    advice = "" if dialect.escapes is None else "; where quotes are doubled, set escape to the quote"
    places = np.unique(np.searchsorted(starts[:-1], strays) - 1).tolist()
    expected = dict.fromkeys(places, f"a separator or a line break behind the closing quote{advice}")
    if unclosed:
        expected.setdefault(len(starts) - 2, "a closing quote before the end of the file")
    return [(int(starts[place]), int(starts[place + 1]), text) for place, text in sorted(expected.items())]


def _sound(
    data: bytes, at: int, unsound: list[tuple[int, int, str]], refuse: Refuse | None
) -> Iterator[tuple[int, bytes]]:
    """Yield what is between records that cannot be, which `refuse` is called with; `BadRecord` for the first without it."""
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
    """Return where the first record of `data` that is neither blank nor a comment begins and ends, if there is one."""
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
    """Return `start`, or where a byte order mark ends that begins there."""
    return len(BOM) if start == 0 and read(0, min(len(BOM), size)) == BOM else start


def _line_ends(data: bytes, begin: int) -> Offsets:
    r"""Return the offset behind each `\n`, `\r\n` and lone `\r` of `data` from `begin` on, quoted or not."""
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
