"""Files made to break their reader: each is read, or refused with a typed error, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.security.decode import TYPES, outcomes
from tests.support.effort import effort

MILLION = 1_000_000
SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), *((n, TYPES[n]) for n in ("list", "struct", "map", "time"))])


def put(directory: Path, **files: bytes) -> Path:
    """Write the files into a new directory."""
    directory.mkdir()
    for name, data in files.items():
        (directory / name.replace("__", ".")).write_bytes(data)
    return directory


DEEP = 100_000
NESTED = {
    "arrays": b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}\n",
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"\n",
    "unclosed arrays": b'{"a":' + b"[" * DEEP + b"\n",
    "unclosed objects": b'{"a":' * DEEP + b"\n",
    "in a key that is not read": b'{"a":1,"z":' + b"[" * DEEP + b"]" * DEEP + b"}\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", effort(["string", "struct"], ["long", "string", "list", "struct", "map"]))
def test_deep_nesting_is_a_bad_record(tmp_path: Path, kind: str) -> None:
    """JSON nested 100,000 deep is refused whatever the column is, and does not exhaust the stack."""
    found = outcomes(put(tmp_path / "in", **NESTED), "json", {"a": kind})
    assert [said for said in found.values() if not said.startswith("[PST-201]")] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", effort(["long", "decimal"], ["long", "double", "decimal"]))
def test_numbers_of_a_million_digits_are_bad_records(tmp_path: Path, kind: str) -> None:
    """A number with a million digits is refused, also in a string; it does not become another number."""
    ones = b"1" * MILLION
    files = {
        "bare": b'{"a":' + ones + b"}\n",
        "exponent": b'{"a":1e' + ones + b"}\n",
        "minus": b'{"a":-' + ones + b"}\n",
    }
    if kind != "double":  # a string of digits is a valid double: infinity
        files["quoted"] = b'{"a":"' + ones + b'"}\n'
    found = outcomes(put(tmp_path / "in", **files), "json", {"a": kind})
    assert [said for said in found.values() if not said.startswith("[PST-201]")] == []


@pytest.mark.slow
def test_wide_records_are_read_or_refused(tmp_path: Path) -> None:
    """A million fields, quotes or blank lines, and a fifth as many keys, are read; what is not a record is refused."""
    keys = b"{" + b",".join(b'"k%d":1' % i for i in range(effort(MILLION // 5, MILLION))) + b',"a":7}\n'
    assert outcomes(put(tmp_path / "json", keys=keys, blank=b"\n" * MILLION), "json", {"a": "long"}) == {
        "keys": "rows: 1",
        "blank": "rows: 0",
    }
    fields, quotes = b"x," * MILLION + b"\n", b'"' * (2 * MILLION) + b",1\n"
    found = outcomes(
        put(tmp_path / "csv", fields=fields, quotes=quotes, odd=b'"' + quotes, blank=b"\r" * MILLION, nul=b"\0,1\n"),
        "csv",
        {"a": "string", "b": "long"},
    )
    assert found.pop("fields").startswith("[PST-201]")
    assert found.pop("odd").startswith("[PST-201]")
    assert found == {"quotes": "rows: 1", "blank": "rows: 0", "nul": "rows: 1"}


@pytest.mark.slow
@pytest.mark.parametrize("form", effort(["json"], ["text", "json"]))
def test_a_record_without_end_is_refused_in_bounded_memory(tmp_path: Path, form: str) -> None:
    """Ten gigabytes without a line break are refused at the first gigabyte, with the place and the limit."""
    (tmp_path / "in").mkdir()
    with open(tmp_path / "in" / "endless", "wb") as file:
        file.truncate(10 << 30)
    found = outcomes(tmp_path / "in", form, {"value": "string"})
    assert "byte 0: found a record of more than 1.0 GiB" in found["endless"]


@pytest.mark.slow
def test_compressed_bombs_are_bad_files(tmp_path: Path) -> None:
    """A file that unpacks without end is refused; one packed twice gives only its inner file, and 100,000 empty members give nothing."""
    zeros = bytes(64 << 20)
    once = {"gz": gzip.compress(zeros), "zst": zstandard.compress(zeros), "bz2": bz2.compress(zeros)}
    empty = {"gz": gzip.compress(b""), "zst": zstandard.compress(b""), "bz2": bz2.compress(b"")}
    window = b"\x28\xb5\x2f\xfd\x00\xf8\x01\x00\x00"  # a Zstandard frame that requests a window of two terabytes
    skipped = b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + bytes(100)  # a skippable frame of four gigabytes
    bombs = {f"many__{name}": data * 50 for name, data in once.items()} | {
        "window__zst": window,
        "skipped__zst": skipped,
    }
    found = outcomes(put(tmp_path / "bombs", **bombs), "text", {"value": "string"}, memory_bytes=2 << 30)
    assert [said for said in found.values() if not said.startswith("[PST-202]")] == []
    empties = put(tmp_path / "empty", **{f"none__{name}": data * 100_000 for name, data in empty.items()})
    assert set(outcomes(empties, "text", {"value": "string"}).values()) == {"rows: 0"}
    twice = put(tmp_path / "twice", twice__gz=gzip.compress(once["bz2"].hex().encode()))
    assert outcomes(twice, "text", {"value": "string"}) == {"twice.gz": "rows: 1"}


# -- Parquet


def parquet_files() -> list[bytes]:
    """Return the same 200 rows as several programs would write them."""
    rows = [
        {"a": i, "s": f"v{i % 7}", "list": [i, i + 1], "struct": {"x": i, "y": "q"}, "map": [("k", i)], "time": i}
        for i in range(200)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    made = []
    for codec in ("none", "snappy", "gzip", "zstd"):
        for version in ("1.0", "2.0"):
            file = io.BytesIO()
            how = {"compression": codec, "data_page_version": version, "use_dictionary": codec != "none"}
            pq.write_table(table, file, row_group_size=60, **how)
            made.append(file.getvalue())
    return made


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return a file with damage: bytes changed anywhere or in its footer, a piece lost, or a piece replaced."""
    changed = bytearray(data)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    how = draw.randrange(4)
    if how < 2:
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange((0, footer)[how], len(data))] = draw.choice((0, 127, 128, 255, draw.randrange(256)))
    elif how == 2:
        changed = changed[: draw.randrange(footer)] + changed[footer:]
    else:
        at = draw.randrange(len(data))
        changed[at : at + draw.randint(1, 50)] = draw.randbytes(draw.randint(0, 50))
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(effort(1, 3)))
def test_damaged_parquet_files_are_refused_or_whole(tmp_path: Path, seed: int) -> None:
    """Hundreds of damaged files: each is a `BadFile` or has all its rows; none kills the process, none loses rows silently."""
    draw = random.Random(seed)  # noqa: S311 - the same files in every run
    seeds = parquet_files()
    files = {f"{number:04}": damaged(draw.choice(seeds), draw) for number in range(effort(300, 1_000))}
    columns = {"a": "long", "s": "string"} | {name: name for name in ("list", "struct", "map", "time")}
    found = outcomes(put(tmp_path / "in", **files), "parquet", columns)
    odd = {name: said for name, said in found.items() if not said.startswith("[PST-202]") and said != "rows: 200"}
    assert odd == {}
    assert "rows: 200" in found.values()


@pytest.mark.slow
def test_parquet_value_repeated_without_end(tmp_path: Path) -> None:
    """421 bytes that stand for 64 GiB of text, a long value that the dictionary repeats, are refused when memory runs out."""
    file = io.BytesIO()
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 65_536, pa.int32()), pa.array(["x" * (1 << 20)]))
    table = pa.table({"s": column})
    how = {"write_statistics": False, "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pq.write_table(table, file, compression="zstd", **how)
    assert len(file.getvalue()) < 1_000
    found = outcomes(put(tmp_path / "in", bomb=file.getvalue()), "parquet", {"s": "string"}, memory_bytes=1 << 30)
    assert found["bomb"].startswith("[PST-202]")
    assert "row group 0 cannot be read" in found["bomb"]
