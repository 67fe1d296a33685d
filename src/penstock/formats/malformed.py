"""Finding the records that cannot be read in a block that could not be decoded.

Decoders work on whole blocks and report only that something in a block is wrong. Because records do not depend on each
other, halving finds the first bad one with about as much work as two more passes over the block; only then are records
read one by one. If bad records are set aside, all of them are found (`sifted`): many at once, by what a format knows
about them, and the rest by trying groups.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecord
from penstock.formats.charsets import is_utf8
from penstock.formats.trials import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    # Which records are bad, and what was expected instead of each.
    Found: TypeAlias = tuple[npt.NDArray[np.int64], list[str]]
    Pass: TypeAlias = Callable[[bytes, npt.NDArray[np.int64]], Found]  # arguments: a block, and where its records begin

EXCERPT_CHARACTERS = 80
_BLANK = b" \t\r\n"  # nothing else: other white space may be the fault


class MalformedError(ValueError):
    """Something in a block does not fit the format or the schema; the message says what was expected."""


def excerpt(data: bytes | str) -> str:
    """Return the beginning of `data` for a message: one line of at most 80 characters, escaped if necessary."""
    text = data[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    shown = text[: EXCERPT_CHARACTERS + 1]
    if not shown.isprintable():
        shown = "".join(map(_printable, shown))
    return shown if len(shown) <= EXCERPT_CHARACTERS else shown[: EXCERPT_CHARACTERS - 3] + "..."


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def raise_bad_record(
    block: bytes,
    starts: npt.NDArray[np.int64],
    decode: Callable[[bytes], pa.RecordBatch],
    error: MalformedError,
) -> NoReturn:
    """Raise `BadRecord` for the first record of `block` that `decode` refuses; `starts` is where each record begins.

    `error` is the error of `decode` for the whole block.
    """
    bounds = [*starts.tolist(), len(block)]
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        refused = _refusal(decode, block[bounds[low] : bounds[middle]])
        low, high = (low, middle) if refused else (middle, high)
    record = block[bounds[low] : bounds[high]]
    reason = _refusal(decode, record) or error
    msg = f"found '{excerpt(record.rstrip(_BLANK))}', expected {reason}"
    raise BadRecord(msg, offset=bounds[low]) from reason


def _refusal(decode: Callable[[bytes], pa.RecordBatch], records: bytes) -> MalformedError | None:
    try:
        decode(records)
    except MalformedError as error:
        return error
    return None


class Sifted(NamedTuple):
    """A block in two parts: the rows of the readable records; and where the others are, with what was expected instead of each."""

    rows: pa.RecordBatch
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    reasons: list[str]

    def until(self, bounds: npt.NDArray[np.int64]) -> Sifted:
        """Return the same with each bad record only up to the next of `bounds`: where a record, a blank line or a comment begins.

        So the text of a bad record does not depend on what stands behind it in the block, and on where a file was cut.
        """
        if not len(self.starts):
            return self
        places = np.searchsorted(bounds, self.starts, side="right")
        return self._replace(ends=np.append(bounds, self.ends[-1])[places])


def nothing_bad(rows: pa.RecordBatch) -> Sifted:
    """Return the rows of a block without bad records."""
    return Sifted(rows, np.zeros(0, np.int64), np.zeros(0, np.int64), [])


def sifted(
    block: bytes,
    starts: npt.NDArray[np.int64],
    decode: Callable[[bytes], pa.RecordBatch],
    rounds: Sequence[Sequence[Pass]] = (),
) -> Sifted:
    """Return the rows of `block` without the records that `decode` refuses, and these; `starts` is where each record begins.

    Each pass of a round gets what earlier passes have left, and finds some of the bad records at once. Rounds of cheap
    passes come first; once `decode` accepts what a pass has left, no other pass runs. A pass must be right about each
    record that it names; records that all passes have missed are found by trying groups.
    """
    left = _Left(block, starts)
    for passes in rounds:
        shrunk = [left.take_out(find) for find in passes]
        if any(shrunk) and (rows := _taken(decode, left.data)) is not None:
            return left.sifted(rows)
    left.take_out(partial(_by_trial, decode))
    return left.sifted(decode(left.data))


class _Left:
    """The rest of a block, and what was taken out of it."""

    def __init__(self, block: bytes, starts: npt.NDArray[np.int64]) -> None:
        self._block = block
        self._starts = starts
        self._ends = np.append(starts[1:], len(block))[: len(starts)]
        self._left = np.arange(len(starts))
        self._reasons: dict[int, str] = {}
        self.data = of_records(block, self._starts, self._ends)

    def take_out(self, find: Pass) -> bool:
        """Take out what a pass finds; tell whether it found anything."""
        sizes = self._ends[self._left] - self._starts[self._left]
        bad, expected = find(self.data, (np.cumsum(sizes) - sizes).astype(np.int64))
        self._reasons.update(zip(self._left[bad].tolist(), expected, strict=True))
        if len(bad):
            self._left = np.delete(self._left, bad)
            self.data = of_records(self._block, self._starts[self._left], self._ends[self._left])
        return len(bad) > 0

    def sifted(self, rows: pa.RecordBatch) -> Sifted:
        """Return the rows of the rest with what was taken out."""
        places = sorted(self._reasons)
        return Sifted(
            rows, self._starts[places], self._ends[places], [f"expected {self._reasons[place]}" for place in places]
        )


def misfitting(text: pa.Array, read: Callable[[pa.Array], object]) -> list[tuple[int, MalformedError]]:
    """Return the values that `read` refuses, in order, each with its error.

    Values that differ only in their digits and letters are tried together: what is wrong with one of them is likely to
    be wrong with all, and with no others.
    """
    if _refused(text, read) is None:
        return []
    shapes = pc.replace_substring_regex(pc.replace_substring_regex(text, "[0-9]+", "0"), "[A-Za-z]+", "a")
    index = shapes.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(index, kind="stable")
    sorted_text = text.take(pa.array(order))
    bad = refused(len(text), lambda low, high: _refused(pa.concat_arrays([sorted_text.slice(low, high - low)]), read))
    return sorted(((int(order[place]), error) for place, error in bad), key=itemgetter(0))


def _refused(text: pa.Array, read: Callable[[pa.Array], object]) -> MalformedError | None:
    try:
        read(text)
    except MalformedError as error:
        return error
    return None


def unreadable(block: bytes, starts: npt.NDArray[np.int64]) -> Found:
    """Find the records that are not UTF-8."""
    if is_utf8(block):
        return np.zeros(0, np.int64), []
    bounds = [*starts.tolist(), len(block)]
    refusal = MalformedError("UTF-8")
    bad = refused(len(starts), lambda low, high: None if is_utf8(block[bounds[low] : bounds[high]]) else refusal)
    return np.array([place for place, _ in bad], np.int64), ["UTF-8"] * len(bad)


def _taken(decode: Callable[[bytes], pa.RecordBatch], records: bytes) -> pa.RecordBatch | None:
    """Return the rows of records, `None` if one of them is refused."""
    try:
        return decode(records)
    except MalformedError:
        return None


def _by_trial(decode: Callable[[bytes], pa.RecordBatch], data: bytes, starts: npt.NDArray[np.int64]) -> Found:
    """Find the records that are refused by decoding groups of them."""
    bounds = [*starts.tolist(), len(data)]
    bad = refused(len(starts), lambda low, high: _refusal(decode, data[bounds[low] : bounds[high]]))
    return np.array([place for place, _ in bad], np.int64), [str(error) for _, error in bad]


def of_records(block: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> bytes:
    """Return the records of `block` with these beginnings and ends, in order."""
    if int((ends - starts).sum()) == len(block):
        return block
    begins = np.flatnonzero(starts[1:] != ends[:-1]) + 1  # of runs of adjacent records, except the first
    bounds = zip(
        [*starts[:1].tolist(), *starts[begins].tolist()], [*ends[begins - 1].tolist(), *ends[-1:].tolist()], strict=True
    )
    return b"".join([block[start:end] for start, end in bounds])
