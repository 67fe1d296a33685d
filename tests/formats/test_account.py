"""What is reported about records besides their rows: names in the data that have no column, and columns that have no value."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import Dialect, ReadFormat, decoder
from penstock.formats.account import NAMES_MAX, Account, Watch
from penstock.formats.parquet import parquet_batches

ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("contry", pa.string()),
        ("u", pa.struct([("name", pa.string()), ("zip", pa.int64())])),
        ("items", pa.list_(pa.struct([("n", pa.int64())]))),
    ]
)


def unknown(records: list[dict[str, Any]], schema: pa.Schema = ORDERS, **options: Any) -> Account:
    """Return the account of the records as one block of JSON."""
    account = Account()
    block = "".join(json.dumps(record) + "\n" for record in records).encode()
    decoder(ReadFormat("json", schema, **options), account).decode(block)
    return account


def by_hand(records: list[dict[str, Any]]) -> Counter[str]:
    """Return how often each key that has no column occurs in the objects of ORDERS."""
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(key for key in record if key not in ORDERS.names)
        counts.update(f"u.{key}" for key in record.get("u") or {} if key not in {"name", "zip"})
        counts.update(f"items.{key}" for item in record.get("items") or [] for key in item or {} if key != "n")
    return counts


def test_a_misspelt_column_is_told() -> None:
    """`contry` for `country`: the report names the column that is null in every row and, next to it, the name that has no column."""
    records = [{"id": number, "country": "de"} for number in range(150)]
    account = Account()
    block = "".join(json.dumps(record) + "\n" for record in records).encode()
    schema = pa.schema([("id", pa.int64()), ("contry", pa.string())])
    rows = [decoder(ReadFormat("json", schema), account).decode(block)]
    assert sum(batch.num_rows for batch in Watch(schema, account).through(rows)) == 150
    assert account.null_columns == ["contry"]
    assert account.unknown == {"country": 150}
    assert account.told() == [
        "null in every row: 'contry'",
        "in the data, and in no column: 'country' 150 times (is that column 'contry'?)",
    ]


_KEYS = st.sampled_from(["id", "contry", "country", "", "x.y", "é", 'q"', "u\\n"])
_OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(0, 9),
        "u": st.none() | st.dictionaries(st.sampled_from(["name", "nme", "x"]), st.just(None)),
        "items": st.none() | st.lists(st.none() | st.dictionaries(st.sampled_from(["n", "m"]), st.none()), max_size=2),
        "other": st.none() | st.dictionaries(_KEYS, st.integers()),
        "é": st.just([{"n": 1}]),
        'q"\n': st.text(max_size=3),
    },
)


@pytest.mark.slow
@given(records=st.lists(_OBJECTS, max_size=6))
def test_each_key_without_a_column_is_counted(records: list[dict[str, Any]]) -> None:
    """A key that has no column is counted every time it occurs, at any depth and in any spelling."""
    assert unknown(records).unknown == by_hand(records)


def test_names_are_bounded_whatever_the_data() -> None:
    """A thousand names, or names of a megabyte, are reduced to a hundred short ones, the most frequent; the others are only a number."""
    many = [{f"k{number}": 1 for number in range(1000)} | {"often": 1}, {"often": 1}]
    account = unknown(many)
    assert len(account.unknown) == NAMES_MAX
    assert account.unknown["often"] == 2
    assert sum(account.unknown.values()) + account.more == 1002
    assert account.partial
    assert [len(name) for name in unknown([{"x" * 1_000_000: 1}]).unknown] == [100]
    for number in range(20):
        account = account.followed_by(Account(1, unknown={f"other{number}-{each}": 1 for each in range(100)}))
    assert len(account.unknown) == NAMES_MAX
    assert len(json.dumps(account.to_json())) < 20_000
    assert len("; ".join(account.told())) < 2_000


def test_counts_of_later_blocks_say_that_they_are_partial() -> None:
    """If block after block has keys without a column, only some of the data is examined, and the account says so."""
    account = Account()
    read = decoder(ReadFormat("json", pa.schema([("id", pa.int64())])), account)
    block = b'{"id": 1, "more": "%b"}\n' % (b"x" * 100) * 20_000
    for _ in range(4):
        read.decode(block)
    assert account.partial
    assert 1_000 < account.unknown["more"] < 80_000
    assert "at least" in account.told()[0]


def test_damaged_keys_are_counted_in_each_block() -> None:
    """A damaged letter in a key, block after block, was mistaken for a schema that omits columns, and some keys were not counted."""
    account = Account()
    reading = decoder(ReadFormat("json", pa.schema([("id", pa.int64()), ("name", pa.string())])), account)
    for block in range(8):
        lines = [json.dumps({"id": number, "name": f"user{number}"}) for number in range(4000)]
        lines[3900 - block] = lines[3900 - block].replace('"name"', '"nbme"')
        lines[-1] = lines[-1][:-1]
        sifted = reading.sift("".join(f"{line}\n" for line in lines).encode())
        assert (sifted.rows.num_rows, len(sifted.starts)) == (3999, 1)
    assert account.unknown == {"nbme": 8}
    assert not account.partial


@given(split=st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_accounts_of_tasks_and_batches_add_up(split: list[int]) -> None:
    """A column is null in every row if it is null in every task and batch that has rows; the counts of names are added up."""
    batches = [pa.record_batch({"a": pa.nulls(count, pa.int64()), "b": pa.array([1] * count)}) for count in split]
    tasks = []
    for batch in batches:
        account = Account(unknown={"x": batch.num_rows} if batch.num_rows else {})
        assert list(Watch(batch.schema, account).through([batch])) == [batch]
        tasks.append(account)
    for whole in (tasks[0].beside(tasks[1]).beside(tasks[2]), tasks[0].followed_by(tasks[1]).followed_by(tasks[2])):
        assert whole.rows == sum(split)
        assert whole.null_columns == (["a"] if sum(split) else [])
        assert whole.unknown == ({"x": sum(split)} if sum(split) else {})
        assert Account.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_a_column_that_once_had_a_value_is_not_null_in_every_row() -> None:
    """One value in any batch, task or row is enough; what a later call reports is about its own rows."""
    first, second = Account(2, {"a": 2, "b": 2}), Account(3, {"a": 3})
    both = first.followed_by(second)
    assert both.null_columns == ["a"]
    assert both.followed_by(Account(1, {"b": 1})).null_columns == []
    assert both.followed_by(Account(4, {"b": 4})).since(both).null_columns == ["b"]
    assert both.since(both).told() == []


def test_members_of_a_null_column_are_not_told_besides() -> None:
    """Members of a struct that is null everywhere are not reported; of a struct that has values, the members that are always null are."""
    batch = pa.RecordBatch.from_pylist([{"id": 1, "u": {"name": None, "zip": 1}, "items": [{"n": None}]}, {}], ORDERS)
    account = Account()
    Watch(ORDERS, account).see(batch)
    assert account.null_columns == ["contry", "u.name", "items.n"]


def test_columns_of_a_header_that_are_not_read_are_told() -> None:
    """For CSV with a header, columns that are not in the schema are counted by their rows."""
    out = io.StringIO()
    csv.writer(out).writerows([[1, "de", "x"], [2, "fr", "y"]])
    fmt = ReadFormat(
        "csv", pa.schema([("id", pa.int64())]), csv=Dialect(header=True), columns=("id", "country", "more")
    )
    account = Account()
    assert decoder(fmt, account).decode(out.getvalue().encode()).num_rows == 2
    assert account.unknown == {"country": 2, "more": 2}


def test_columns_of_parquet_that_are_not_read_are_told() -> None:
    """For Parquet, columns that are not in the schema are counted by the rows of the row groups that were read."""
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"ID": [1, 2, 3], "country": ["de"] * 3}), out, row_group_size=2)
    file, account = pa.BufferReader(out.getvalue()), Account()
    rows = parquet_batches(file, 0, file.size(), pa.schema([("id", pa.int64())]), account=account)
    assert sum(batch.num_rows for batch in rows) == 3
    assert account.unknown == {"country": 3}
