"""What every record format must do, whatever its records are: each registered format that can be written runs all these tests."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, OptionError
from penstock.formats import ReadFormat, WriteFormat, format_named
from penstock.formats.account import Account
from penstock.formats.charsets import UTF_8_CHARSET
from penstock.formats.codecs import codec_of
from penstock.formats.format import FIELD_OPTIONS
from penstock.formats.registry import names, record_format
from penstock.options.formats import VALUES, WRITTEN
from tests.formats import batches
from tests.formats.batches import same_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORDS = names(lambda form: hasattr(form, "decoder"), WRITTEN)
COLUMNS = pa.schema([("id", pa.int64()), ("s", pa.string())])
ROWS = [{"id": 1, "s": "plain"}, {"id": -2, "s": 'öne "two", three'}, {"id": 3, "s": "a\\tb: c"}, {"id": 4, "s": "end"}]
BAD = b"\xff"  # not valid text in UTF-8, wherever it occurs

record = pytest.mark.parametrize("name", RECORDS)
of_columns = pytest.mark.parametrize("name", [name for name in RECORDS if name not in VALUES])
by_label = pytest.mark.parametrize(
    "name", [name for name in RECORDS if format_named(name).read_options.issuperset(FIELD_OPTIONS) and name != "csv"]
)  # CSV names the columns of its records in the header of its file


def rows(name: str, begin: int = 0, end: int = len(ROWS)) -> pa.RecordBatch:
    """Return rows that the format can hold; if it has only one column, only that one."""
    if name in VALUES:
        return pa.RecordBatch.from_pydict({"value": [row["s"] for row in ROWS[begin:end]]})
    return pa.RecordBatch.from_pylist(ROWS[begin:end], COLUMNS)


def written(name: str, batch: pa.RecordBatch) -> bytes:
    """Return the records of the rows."""
    return bytes(record_format(name).encoder(WriteFormat(name, batch.schema, "none")).encode(batch))


def read(name: str, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a block of records."""
    found = record_format(name).decoder(ReadFormat(name, schema), Account()).decode(data)
    found.validate(full=True)
    return found


def joined(blocks: Iterable[tuple[int, bytes]]) -> tuple[int, bytes]:
    """Return adjacent blocks joined into one, with the offset of the first."""
    start, data = 0, b""
    for offset, block in blocks:
        start = start if data else offset
        assert offset == start + len(data)
        data += block
    return start, data


@record
def test_rows_survive(name: str) -> None:
    """Written rows are read back unchanged, and a slice of a batch gives exactly its own rows."""
    batch = rows(name)
    for view in (batch, batch.slice(1, 2), batch.slice(3), batch.slice(2, 0)):
        assert read(name, written(name, view), batch.schema).equals(view)


@pytest.mark.slow
@of_columns
@given(st.data())
def test_any_columns_survive(name: str, data: st.DataObject) -> None:
    """Columns of any non-nested type come back, also nulls and rows of only nulls, except for what `read_back` lists."""
    form, count = record_format(name), data.draw(st.integers(0, 6))
    kinds = data.draw(st.lists(st.sampled_from(list(batches.VALUES)), min_size=1, max_size=4))
    arrays = [
        pa.array(data.draw(st.lists(st.none() | batches.VALUES[kind], min_size=count, max_size=count)), kind)
        for kind in kinds
    ]
    batch = pa.RecordBatch.from_arrays(arrays, [f"c{number}" for number in range(len(kinds))])
    fmt = WriteFormat(name, batch.schema, "none")
    assert same_rows(read(name, written(name, batch), batch.schema), form.read_back(fmt, batch))


@record
def test_records_are_joined_as_bytes(name: str) -> None:
    """The bytes of two batches concatenated are those of the joined batch, and no rows give no bytes; staging and merging rely on this."""
    whole = rows(name)
    assert written(name, whole) == b"".join(written(name, rows(name, at, at + 1)) for at in range(len(ROWS)))
    assert written(name, whole.slice(0, 0)) == b""
    assert read(name, b"", whole.schema).num_rows == 0


@record
def test_ends_and_starts_are_where_records_end_and_begin(name: str) -> None:
    """Encoder, decoder and format agree on where a record ends, so a part can be cut there and a bad record can be found."""
    batch, form = rows(name), record_format(name)
    data, fmt = written(name, batch), ReadFormat(name, batch.schema)
    ends = form.encoder(WriteFormat(name, batch.schema, "none")).ends(batch, data).tolist()
    assert [read(name, data[:end], batch.schema).num_rows for end in ends] == [1, 2, 3, 4]
    assert form.decoder(fmt, Account()).starts(data).tolist() == [0, *ends[:-1]]
    assert form.record_starts(fmt, data, UTF_8_CHARSET).tolist() == [0, *ends[:-1]]


@record
def test_ranges_have_each_record_once(name: str) -> None:
    """Whatever the cuts, adjacent ranges contain all records, in order, each in the range where it begins."""
    form, batch, chance = record_format(name), rows(name), random.Random(name)  # noqa: S311 - a case
    data, fmt = written(name, batch) * 5, ReadFormat(name, batch.schema)

    def at(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    assert form.divisible(fmt, f"a{form.extension}")
    assert not form.divisible(fmt, f"a{form.extension}.gz")
    for count in (1, 2, 7, 30):
        cuts = sorted(chance.sample(range(1, len(data)), count))
        if form.anchored:
            cuts = form.boundaries(fmt, at, len(data), 0, cuts)
        pieces = [
            joined(form.ranged(fmt, at, len(data), span, UTF_8_CHARSET)[1]) for span in pairwise([0, *cuts, len(data)])
        ]
        assert b"".join(piece for _, piece in pieces) == data
        found = [read(name, piece, batch.schema) for _, piece in pieces if piece]
        assert pa.Table.from_batches(found) == pa.Table.from_batches([batch] * 5)


@record
def test_streams_have_the_same_records(name: str) -> None:
    """A file that arrives in chunks of any size, as a compressed one does, has the same records as in ranges."""
    batch = rows(name)
    data = written(name, batch)
    for size in (1, 2, 7, len(data)):
        chunks = (data[at : at + size] for at in range(0, len(data), size))
        _, blocks = record_format(name).streamed(ReadFormat(name, batch.schema), chunks, UTF_8_CHARSET)
        assert read(name, joined(blocks)[1], batch.schema).equals(batch)


@record
def test_a_record_that_is_still_written_is_left(name: str) -> None:
    """From a growing file only records that are certainly complete are taken, at whatever length it is read."""
    form, batch = record_format(name), rows(name)
    data, fmt = written(name, batch), ReadFormat(name, batch.schema)
    ends = [0, *form.encoder(WriteFormat(name, batch.schema, "none")).ends(batch, data).tolist()]
    for size in range(len(data) + 1):
        tail = form.tail(fmt, 0, UTF_8_CHARSET)
        end = tail.ended(lambda offset, length: data[offset : offset + length], size)
        assert end == max(place for place in ends if place <= size)


@record
def test_a_bad_record_is_told_and_set_aside_alone(name: str) -> None:
    """One record that is not valid text: the error gives its offset, only this record is set aside, and all others are read."""
    batch = rows(name)
    decoder = record_format(name).decoder(ReadFormat(name, batch.schema), Account())
    data = written(name, batch)
    starts = [*decoder.starts(data).tolist(), len(data)]
    good = decoder.sift(data)
    assert good.rows.equals(batch)
    assert not good.reasons
    for place, (start, end) in enumerate(pairwise(starts)):
        middle = (start + end) // 2
        damaged = data[:middle] + BAD + data[middle:]
        with pytest.raises(BadRecord, match="expected") as error:
            decoder.decode(damaged)
        assert error.value.offset == start
        sifted = decoder.sift(damaged)
        others = pa.Table.from_batches([batch.slice(0, place), batch.slice(place + 1)])
        assert pa.Table.from_batches([sifted.rows]) == others
        assert (sifted.starts.tolist(), sifted.ends.tolist()) == ([start], [end + 1])
        assert [reason.startswith("expected") for reason in sifted.reasons] == [True]


@of_columns
@pytest.mark.parametrize("damage", [BAD, b"x"])
def test_blank_lines_are_not_part_of_the_bad_record_before_them(name: str, damage: bytes) -> None:
    """What is set aside of a record ends with it, wherever the file is cut; blank lines after it were often set aside as well."""
    batch = rows(name)
    decoder = record_format(name).decoder(ReadFormat(name, batch.schema), Account())
    data = written(name, batch)
    begin, end = decoder.starts(data)[1:3].tolist()
    sifted = decoder.sift(data[:begin] + damage + data[begin:end] + b"\n\r\n\n" + data[end:])
    assert (sifted.starts.tolist(), sifted.ends.tolist()) == ([begin], [end + len(damage)])
    assert pa.Table.from_batches([sifted.rows]) == pa.Table.from_batches([batch.slice(0, 1), batch.slice(2)])


@of_columns
def test_what_does_not_fit_is_refused(name: str) -> None:
    """A value of another type, and a null where none is allowed, make a bad record with the column's name, never a null."""
    number = pa.schema([("id", pa.int64()), ("s", pa.int64())])
    required = pa.schema([("id", pa.int64()), pa.field("s", pa.string(), nullable=False)])
    nothing = pa.RecordBatch.from_pylist([{"id": 1, "s": "x"}, {"id": 2, "s": None}], COLUMNS)
    for batch, schema, offset in ((rows(name), number, 0), (nothing, required, None)):
        with pytest.raises(BadRecord, match="'s'") as error:
            read(name, written(name, batch), schema)
        assert error.value.offset == (len(written(name, batch.slice(0, 1))) if offset is None else offset)


@by_label
def test_columns_are_found_by_name(name: str) -> None:
    """Values come in the order of the schema; a column that a record lacks is null, and names without a column are counted."""
    data = written(name, pa.RecordBatch.from_pydict({"other": [2], "s": ["x"], "id": [1]}))
    account, schema = Account(), pa.schema([("id", pa.int64()), ("new", pa.date32()), ("s", pa.string())])
    found = record_format(name).decoder(ReadFormat(name, schema), account).decode(data)
    assert found.to_pylist() == [{"id": 1, "new": None, "s": "x"}]
    assert account.unknown == {"other": 1}


@record
def test_what_cannot_be_held_is_refused_before_rows_come(name: str) -> None:
    """A type that no record of the format can hold is refused when the encoder is made, before anything is staged."""
    for kind in (pa.month_day_nano_interval(), pa.dense_union([pa.field("x", pa.int64())])):
        with pytest.raises(OptionError, match="column"):
            record_format(name).encoder(WriteFormat(name, pa.schema([("x", kind)]), "none"))


@record
def test_names_of_files_tell_the_codec(name: str) -> None:
    """The end of a file's name decides how the file is decompressed, whatever wrote it."""
    form = record_format(name)
    for codec in form.codecs:
        found = codec_of(f"a{form.file_extension(codec)}")
        assert (found or "none") == codec
