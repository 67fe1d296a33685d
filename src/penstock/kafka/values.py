r"""The values of records as rows of a format: JSON and CSV parsed, text and bytes as they are, or set aside with their place.

A decoder works on blocks, and a Python statement for each record would cost more than everything it does. So the values of a batch are
joined into one block, each on a line of its own, and decoded together. These rules make the result the same as if each were decoded
alone:

1. *A value that is several records, or none, or half of one*: a quote that is not closed in CSV swallows the next value, and two
   objects in a value are two records. Rule: the output is compared with the input, by number and, if a record may have line breaks
   (`Format.anchored`), by where each begins. If they differ, the values are halved, down to the value that causes it.
2. *A line break in a value*: between the members of a JSON object it is white space, in a string it is an error. Rule: it becomes a tab
   there, which has the same effect in both cases. In CSV it stays, and rule 1 checks it.
3. *A mark (U+FEFF) before a value*: files may begin with one, and a decoder skips it at the beginning of a block. How records are
   grouped into blocks depends on the network, and a replay must give the same rows. Rule: no block begins with a mark.
4. *No value* (a tombstone): it is a record like any other, so it is a row, of nulls. An empty value is not a record of JSON or CSV, and
   bad.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecord
from penstock.formats import decoder, format_named
from penstock.formats.account import Account
from penstock.formats.aside import Aside, Policy, about_records
from penstock.formats.charsets import is_utf8
from penstock.formats.malformed import Sifted, excerpt, nothing_bad
from penstock.formats.trials import refused

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats import ReadFormat

_MARK = b"\xef\xbb\xbf"
_NO_VALUE, _EMPTY = -1, 0
_SET_ASIDE = "set badRecords=quarantine, which sets such records aside, and run the same again"


class Parsed(NamedTuple):
    """The rows of some records, in order, and the index of the record to which each belongs."""

    rows: pa.RecordBatch
    records: npt.NDArray[np.int64]


class _Refused(NamedTuple):
    """A value that is not a record of the format: its index among the values, and the reason."""

    place: int
    reason: str


@dataclass
class _Decoded:
    """The result for some values: rows, the values to which they belong, and the refused values."""

    rows: list[pa.RecordBatch]
    places: list[npt.NDArray[np.int64]]
    refused: list[_Refused]


class ValueReader:
    """Reads the values of one task's records. Records that `policy` sets aside go to `aside`, names without a column into `account`."""

    def __init__(self, fmt: ReadFormat, policy: Policy, account: Account, aside: Aside | None) -> None:
        form = format_named(fmt.name)
        self._anchored = form.anchored
        self._fmt = fmt if form.anchored else replace(fmt, line_sep=b"\n")
        self._policy, self._account, self._aside = policy, account, aside
        self._passes = form.as_lines or form.as_it_is
        self._entered = Account()  # entries of blocks that may have to be decoded again
        self._decoder = None if self._passes else decoder(self._fmt, self._entered)

    def rows(self, records: pa.RecordBatch, place: str) -> Parsed:
        """Return the rows of records of one partition, whose address is `place`. `BadRecord` unless bad records are set aside."""
        values = records.column("value")
        decoded = self._whole(values) if self._passes else self._parsed(values)
        if decoded.refused:
            decoded.refused.sort()
            self._refuse(records, decoded.refused, place)
        return self._in_order(decoded, values)

    # -- values as they are ----------------------------------------------------------------------------------------

    def _whole(self, values: pa.Array) -> _Decoded:
        """Return values that are not parsed: text after it is checked, and bytes."""
        every = np.arange(len(values))
        field = self._fmt.schema.field(0)
        if field.type == values.type:
            return _Decoded([_one_column(values, self._fmt)], [every], [])
        wrong = [place for place, _ in refused(len(values), lambda low, high: _no_text(values.slice(low, high - low)))]
        if not wrong:
            return _Decoded([_one_column(values.cast(field.type), self._fmt)], [every], [])
        if self._fmt.errors == "replace":
            texts = [values[place].as_py().decode("utf-8", "replace").encode() for place in wrong]
            mask = np.isin(every, wrong)
            mended = pc.replace_with_mask(values, pa.array(mask), pa.array(texts, values.type))
            return _Decoded([_one_column(mended.cast(field.type), self._fmt)], [every], [])
        right = np.setdiff1d(every, wrong)
        rows = _one_column(values.take(pa.array(right)).cast(field.type), self._fmt)
        return _Decoded([rows], [right], [_Refused(place, "expected UTF-8") for place in wrong])

    # -- values that are parsed ------------------------------------------------------------------------------------

    def _parsed(self, values: pa.Array) -> _Decoded:
        lengths = pc.fill_null(pc.binary_length(values), _NO_VALUE).to_numpy(zero_copy_only=False)
        present = np.flatnonzero(lengths > 0)
        decoded = _Decoded(
            [], [], [_Refused(place, "expected a record") for place in np.flatnonzero(lengths == _EMPTY).tolist()]
        )
        if not self._takes_none:
            missing = np.flatnonzero(lengths == _NO_VALUE).tolist()
            decoded.refused += [
                _Refused(place, "expected a value, of which a column must not be null") for place in missing
            ]
        if len(present):
            chosen = values if len(present) == len(values) else values.take(pa.array(present))
            self._decode(chosen, present, decoded)
        return decoded

    @property
    def _takes_none(self) -> bool:
        """Whether a record without a value can be a row."""
        return self._fmt.missing != "fail" and all(field.nullable for field in self._fmt.schema)

    def _decode(self, values: pa.Array, places: npt.NDArray[np.int64], decoded: _Decoded) -> None:
        """Decode the values at these places, in halves unless each is one record; stop at a refused value unless it is set aside."""
        if decoded.refused and not self._sifts:
            return
        sifted, starts, reason = self._tried(values)
        if sifted is not None:
            bad = np.searchsorted(starts, sifted.starts, side="right") - 1
            self._enter()
            decoded.rows.append(sifted.rows)
            decoded.places.append(np.delete(places, bad))
            decoded.refused += map(_Refused, places[bad].tolist(), sifted.reasons)
        elif len(values) == 1:
            decoded.refused.append(_Refused(int(places[0]), reason))
        else:
            middle = len(values) // 2
            self._decode(values.slice(0, middle), places[:middle], decoded)
            self._decode(values.slice(middle), places[middle:], decoded)

    def _tried(self, values: pa.Array) -> tuple[Sifted | None, npt.NDArray[np.int64], str]:
        """Return the contents of a block of these values, `None` unless that is one record for each; where each begins; and the fault."""
        block, starts = self._block(values)
        self._entered.clear()
        assert self._decoder is not None  # noqa: S101 - called only for values that are parsed
        try:
            sifted = self._decoder.sift(block) if self._sifts else nothing_bad(self._decoder.decode(block))
        except BadRecord as error:
            return None, starts, error.message
        count = sifted.rows.num_rows + len(sifted.starts)
        if count != len(values):
            return None, starts, f"expected one record in a value, found {count or 'none'}"
        if self._may_run_on(block, count) and not self._is_closed(block, starts):
            return None, starts, "expected one record in a value, with its quotes closed"
        return sifted, starts, ""

    def _is_closed(self, block: bytes, starts: npt.NDArray[np.int64]) -> bool:
        """Tell whether records begin where values do, and one more would begin after the last of them."""
        assert self._decoder is not None  # noqa: S101 - called only for values that are parsed
        return np.array_equal(self._decoder.starts(block + b"\n-"), np.append(starts, len(block) + 1))

    def _may_run_on(self, block: bytes, count: int) -> bool:
        """Tell whether a record may have line breaks, so that even with as many records as values their borders may differ."""
        if not self._anchored:
            return False
        quote = self._fmt.csv.quote
        return bool(quote and quote.encode() in block) or b"\r" in block or block.strip(b"\n").count(b"\n") != count - 1

    @property
    def _sifts(self) -> bool:
        return self._aside is not None and (self._policy.records or self._policy.text)

    def _block(self, values: pa.Array) -> tuple[bytes, npt.NDArray[np.int64]]:
        """Return values, none of them null, each on a line of its own, and where each begins."""
        lines = pc.binary_join_element_wise(values, pa.scalar(b"", values.type), pa.scalar(b"\n", values.type))
        block, starts = _bytes_of(lines)
        if not self._anchored and block.count(b"\n") != len(values) - 1:
            block, starts = _bytes_of(_with_tabs(values, lines))
        if block.startswith(_MARK):
            return b"\n" + block, starts + 1
        return block, starts

    def _enter(self) -> None:
        """Enter what was counted in the last block, all of whose records are taken or set aside."""
        entered = self._entered
        self._account.count(entered.unknown.items(), entered.more)
        self._account.partial |= entered.partial
        self._account.rescued += entered.rescued
        entered.clear()

    # -- both ------------------------------------------------------------------------------------------------------

    def _refuse(self, records: pa.RecordBatch, bad: list[_Refused], place: str) -> None:
        """Set aside values that are not records of the format; `BadRecord` for the first one that the policy does not set aside."""
        chosen = records.take(pa.array([each.place for each in bad]))
        held = pc.fill_null(chosen.column("value"), b"")
        offsets = chosen.column("offset").to_numpy()
        takes = (self._policy.records, self._policy.text) if self._aside is not None else (False, False)
        if not all(takes):
            for value, offset, (_, reason) in zip(held.to_pylist(), offsets.tolist(), bad, strict=True):
                if not takes[not is_utf8(value)]:
                    shown = reason if reason.startswith("found ") else f"found '{excerpt(value)}', {reason}"
                    msg = f"{place!r}, offset {offset}: {shown}; {_SET_ASIDE}"
                    raise BadRecord(msg, path=place, offset=offset)
        if self._aside is not None:
            self._aside.take(about_records(place, offsets, held, [each.reason for each in bad]))

    def _in_order(self, decoded: _Decoded, values: pa.Array) -> Parsed:
        """Return the rows in the order of the records, with a row of nulls for each record without a value."""
        rows = _together(decoded.rows, self._fmt.schema)
        places = np.concatenate(decoded.places) if decoded.places else np.zeros(0, np.int64)
        if self._passes or len(places) + len(decoded.refused) == len(values):
            return Parsed(rows, places)
        known = np.full(len(values), _NO_VALUE)
        known[places] = np.arange(len(places))
        kept = np.delete(np.arange(len(values)), [each.place for each in decoded.refused])
        index = known[kept]
        return Parsed(rows.take(pa.array(index, mask=index == _NO_VALUE)), kept)


def _one_column(values: pa.Array, fmt: ReadFormat) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([values], schema=fmt.schema)


def _no_text(values: pa.Array) -> ValueError | None:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid as error:
        return ValueError(str(error))
    return None


def _with_tabs(values: pa.Array, lines: pa.Array) -> pa.Array:
    """Return the lines of values that may have line breaks, with tabs in their place."""
    tabs = pc.replace_substring(values, b"\n", b"\t")
    return pc.binary_join_element_wise(tabs, pa.scalar(b"", lines.type), pa.scalar(b"\n", lines.type))


def _bytes_of(lines: pa.Array) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return lines joined without gaps, without the line break of the last one, and where each begins."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32, len(lines) + 1, lines.offset * 4).astype(np.int64)
    data = lines.buffers()[2]
    return data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]) - 1).to_pybytes(), offsets[:-1] - offsets[0]


def _together(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    return (
        table.to_batches()[0]
        if table.num_rows
        else pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
    )
