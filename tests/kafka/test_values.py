"""Values of records as rows, without a broker: a value in a block gives what it gives alone, whatever its neighbours are."""

from __future__ import annotations

import csv
import io
import json
import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRecord
from penstock.formats.account import Account
from penstock.formats.aside import Aside, Policy
from penstock.formats.format import Dialect, ReadFormat
from penstock.kafka.values import ValueReader

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACE = "kafka://broker:9092/orders/0"
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
TEXT = pa.schema([("value", pa.string())])
ALL = Policy(records=True, text=True)

Answer = tuple[list[dict[str, Any]], list[int], dict[int, str]]


def records(values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return records with these values; a record's offset is its number."""
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())], names=["value", "offset"]
    )


def parsed(fmt: ReadFormat, values: Sequence[bytes | None], account: Account | None = None) -> Answer:
    """Return the rows, the records that they come from, and the records set aside, by offset."""
    aside = Aside()
    answer = ValueReader(fmt, ALL, account or Account(), aside).rows(records(values), PLACE)
    lines = [line for batch in aside.handed_on() for line in batch.to_pylist()]
    assert all(line["path"] == PLACE for line in lines)
    return answer.rows.to_pylist(), answer.records.tolist(), {line["offset"]: line["reason"] for line in lines}


def form(name: str) -> ReadFormat:
    """Return a format of two columns."""
    return ReadFormat(name, COLUMNS, csv=Dialect())


@cache
def alone(name: str, value: bytes | None) -> Answer:
    """Return the rows of a value that comes alone."""
    return parsed(form(name), [value])


JSON = [
    b'{"id":1}', b'{"id":2,\n "name":"x"}\r\n', b'{"id":3,"name":"a\nb"}', b"", b" ", b'{"id":4}{"id":5}', b"{bad", b'{"id":"x"}',
    b'\xef\xbb\xbf{"id":6}', b'[{"id":7}]', b"null", b'{"id":8,"name":"\xff"}', None, b'{"name":"\\n"}',
]  # fmt: skip
CSV = [
    b"1,x", b'2,"a\nb"', b'3,"open', b"4,a\n5,b", b"", b"x,y", b"6,z\n", b"7", b"\r", b'8,"a"', b"9,a\rb,2", b'"',
    None, b'10,"a""b"', b"\xff,1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kinds"), [("json", JSON), ("csv", CSV)])
@settings(max_examples=30)
@given(data=st.data())
def test_neighbours_change_nothing(name: str, kinds: list[bytes | None], data: st.DataObject) -> None:
    """Values that run on into the next one, or hold two records or none, give the same as if each had come alone."""
    values = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=12))
    rows, places, bad = parsed(form(name), values)
    assert sorted([*places, *bad]) == list(range(len(values))), "each record is a row, or set aside, once"
    for place, row in zip(places, rows, strict=True):
        assert alone(name, values[place])[0] == [row]
    for place, reason in bad.items():
        assert alone(name, values[place])[2] == {0: reason}


def test_what_other_makers_write() -> None:
    """Objects of `json`, pretty-printed or not, and rows of `csv`, with every kind of quoting, come back as they were given."""
    chance = random.Random(5)  # noqa: S311 - test data
    rows = [{"id": n, "name": "".join(chance.choices('ab",\n\r é', k=chance.randrange(8)))} for n in range(500)]
    values = [json.dumps(row, indent=chance.choice([None, 2])).encode() for row in rows]
    assert parsed(form("json"), values) == (rows, list(range(500)), {})
    lines = []
    for row in rows:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="").writerow(row.values())
        lines.append(out.getvalue().encode())
    assert parsed(form("csv"), lines) == (rows, list(range(500)), {})


def test_text_and_bytes_pass() -> None:
    """A value is one row whatever it holds; invalid text is set aside or replaced, and bytes stay bytes."""
    values = [b"a\nb", b"", None, b"\xff", b"z"]
    text = ReadFormat("text", TEXT)
    rows, places, bad = parsed(text, values)
    assert ([row["value"] for row in rows], places, list(bad)) == (["a\nb", "", None, "z"], [0, 1, 2, 4], [3])
    replaced, _, _ = parsed(ReadFormat("text", TEXT, errors="replace"), values)
    assert [row["value"] for row in replaced] == ["a\nb", "", None, "�", "z"]
    raw, _, _ = parsed(ReadFormat("binary", pa.schema([("value", pa.binary())])), values)
    assert [row["value"] for row in raw] == values


def test_tombstones_are_rows() -> None:
    """A record without a value is a row of nulls at its place; if a column is not nullable, or is required, the record is bad."""
    values = [b'{"id":1}', None, b'{"id":2}']
    assert parsed(form("json"), values)[0] == [
        {"id": 1, "name": None},
        {"id": None, "name": None},
        {"id": 2, "name": None},
    ]
    whole = ReadFormat("json", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    assert parsed(whole, values)[1:] == ([0, 2], {1: "expected a value, of which a column must not be null"})
    assert parsed(form("json"), [None, None])[0] == [{"id": None, "name": None}] * 2


def test_the_first_bad_record_is_named() -> None:
    """A bad record that is not set aside ends the read; the error has its partition and offset, and advises the option."""
    for name, values, offset in (
        ("json", [b'{"id":1}', b"{bad", b"{worse"], 1),
        ("csv", [b"1,x", b"2,y", b'3,"open', b"4,z"], 2),
    ):
        with pytest.raises(BadRecord, match="badRecords=quarantine") as raised:
            ValueReader(form(name), Policy(), Account(), None).rows(records(values), PLACE)
        assert (raised.value.path, raised.value.offset) == (PLACE, offset)
    with pytest.raises(BadRecord, match="expected UTF-8"):
        ValueReader(ReadFormat("text", TEXT), Policy(records=True), Account(), Aside()).rows(records([b"\xff"]), PLACE)


def test_names_are_counted_once() -> None:
    """If a block must be decoded again in halves, its unknown names are still counted only as often as they occur."""
    account = Account()
    parsed(form("json"), [b'{"id":1,"nme":2}', b" ", b'{"id":1,"nme":2}', b'{"id":3,"nme":"x"}'], account)
    assert account.unknown == {"nme": 3}
