"""Encrypted input: a reader with the key gets the content, whole or not at all; nobody else gets any of it."""

from __future__ import annotations

import base64
import gzip
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as parquet_encryption
import pytest
from pyarrow import orc

from penstock.errors import BadFile, OptionError, WrongKey
from penstock.formats import ReadFormat
from penstock.formats.aside import FILE, Aside, Policy, path_of
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.cursor import FileVersion, Split
from penstock.source.inferred import format_by_names
from penstock.source.read import Reading
from penstock.storage import LocalStorage
from tests.support.damage import damages
from tests.support.keys import OTHER, OTHER_KEY, READER, READER_KEY, encrypted

VARIABLE = "PENSTOCK_TEST_KEY"
COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS: list[dict[str, Any]] = [{"n": n, "text": f"line {n}"} for n in range(3000)]
SAMPLES = Path(__file__).resolve().parent.parent / "data/age"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, READER_KEY)


def version(path: Path) -> FileVersion:
    entry = LocalStorage().stat(str(path))
    return FileVersion(path.name, entry.size, entry.modified_ns, entry.identity)


def reading(
    path: Path, form: str = "json", schema: pa.Schema = COLUMNS, key: str | None = f"env:{VARIABLE}", **options: Any
) -> Reading:
    return Reading(LocalStorage(), str(path.parent), ReadFormat(form, schema), key=key, **options)


def rows(path: Path, form: str = "json", schema: pa.Schema = COLUMNS, **options: Any) -> list[dict[str, Any]]:
    split = Split(version(path), 0, path.stat().st_size)
    how = reading(path, form, schema, **options)
    return [row for batch in how.batches([split]) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", ["lines.json.age", "lines.json.gz.age", "nothing.json.age"])
def test_files_of_the_reference_implementation(name: str, tmp_path: Path) -> None:
    """Files from the age program itself are read as one range, compressed or not; offsets of records count in the decrypted content."""
    path = tmp_path / name
    path.write_bytes((SAMPLES / name).read_bytes())
    assert rows(path) == (ROWS if name.startswith("lines") else [])
    assert not reading(path).divisible(name)
    with_place = reading(path, metadata="m", columns=("n", "text", "m"))
    places = [
        row["m"] for b in with_place.batches([Split(version(path), 0, path.stat().st_size)]) for row in b.to_pylist()
    ]
    assert [place["offset"] for place in places[:2]] == [0, 27][: len(places[:2])]
    assert {place["size"] for place in places} <= {path.stat().st_size}


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "text", "binary"])
def test_every_format(form: str, tmp_path: Path) -> None:
    """Tables are read in any order of their bytes, which are held until all of them are verified."""
    table, buffer = pa.Table.from_pylist(ROWS, COLUMNS), io.BytesIO()
    if form == "parquet":
        pq.write_table(table, buffer, row_group_size=500)
    elif form == "orc":
        orc.write_table(table, buffer)
    else:
        buffer.write(b"".join(b"%d,%s\n" % (row["n"], str(row["text"]).encode()) for row in ROWS))
    path = tmp_path / f"a.{form}.age"
    path.write_bytes(encrypted(buffer.getvalue()))
    if form == "binary":
        assert rows(path, form, pa.schema([("value", pa.binary())])) == [{"value": buffer.getvalue()}]
    elif form == "text":
        values = [row["value"] for row in rows(path, form, pa.schema([("value", pa.string())]))]
        assert values == buffer.getvalue().decode().splitlines()
    else:
        assert rows(path, form) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("held", [1 << 20, 0], ids=["in memory", "in a file"])
def test_nothing_leaves_of_a_damaged_file(
    form: str, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens to any byte, the damage is found before any row is returned, even a right one."""
    monkeypatch.setattr("penstock.storage._scratch._MEMORY_BYTES", held)
    buffer = io.BytesIO(b'{"n": 1, "text": "a"}\n')
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS[:2], COLUMNS), buffer, compression="none", write_statistics=False)
    path = tmp_path / f"a.{form}.age"
    good = encrypted(buffer.getvalue())
    for what, broken in damages(good, every=1 if form == "json" else 7):
        path.write_bytes(broken)
        split = Split(version(path), 0, len(broken))
        came: list[pa.RecordBatch] = []
        with pytest.raises((BadFile, WrongKey), match="a\\.(json|parquet)\\.age"):
            came.extend(reading(path, form).batches([split]))
        assert not came, what
    path.write_bytes(good)
    assert rows(path, form) == (ROWS[:2] if form == "parquet" else [{"n": 1, "text": "a"}])


CHUNK_BYTES = (64 << 10) + 16


def chunks_of(data: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """Return an age file's header, the nonce after it, and its chunks."""
    begin = data.index(b"\n", data.index(b"\n---") + 1) + 1
    body = data[begin + 16 :]
    return (
        data[:begin],
        data[begin : begin + 16],
        [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)],
    )


@pytest.mark.parametrize("held", [1 << 25, 0], ids=["in memory", "in a file"])
def test_chunks_that_somebody_exchanged(held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole chunks that are moved, doubled or missing, chunks of another file, two files in one: no row of them is returned."""
    monkeypatch.setattr("penstock.storage._scratch._MEMORY_BYTES", held)
    text = b"".join(b'{"n": %d, "text": "line %d"}\n' % (n, n) for n in range(9000))
    good, other = encrypted(text), encrypted(text)
    header, nonce, chunks = chunks_of(good)
    others_header, others_nonce, others = chunks_of(other)
    assert len(chunks) > 3
    whole = b"".join(chunks)
    exchanged = {
        "the first two change places": header + nonce + chunks[1] + chunks[0] + b"".join(chunks[2:]),
        "one in the middle is gone": header + nonce + chunks[0] + b"".join(chunks[2:]),
        "the last is gone": header + nonce + b"".join(chunks[:-1]),
        "the first comes twice": header + nonce + chunks[0] + whole,
        "the last of another file": header + nonce + b"".join(chunks[:-1]) + others[-1],
        "the header of another file": others_header + nonce + whole,
        "header and nonce of another file": others_header + others_nonce + whole,
        "two files in one": good + other,
        "a line break behind it": good + b"\n",
        "zeros behind it": good + bytes(512),
        "cut between two chunks": header + nonce + chunks[0],
        "cut behind the header": header + nonce,
    }
    path = tmp_path / "a.json.age"
    for what, data in exchanged.items():
        path.write_bytes(data)
        aside = Aside()
        assert rows(path, policy=Policy(files=True), aside=aside) == [], what
        (line,) = [line for about in aside.handed_on() for line in about.to_pylist()]
        assert "line 1" not in repr(line), what
        with pytest.raises(BadFile) as caught:
            rows(path)
        assert "line 1" not in str(caught.value), what


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["none", "gzip"])
def test_nothing_leaves_of_damaged_lines_that_are_only_carried(inner: str, tmp_path: Path) -> None:
    """Lines that an ingest passes on as bytes are held back like rows, for several recipients, compressed or not."""
    lines = b"no-one-must-read-this\n" * 5
    path = tmp_path / ("a.txt.age" if inner == "none" else "a.txt.gz.age")
    good = encrypted(lines if inner == "none" else gzip.compress(lines), READER, OTHER)
    for what, broken in damages(good):
        path.write_bytes(broken)
        aside = Aside()
        came: list[Any] = []
        how = reading(path, "text", pa.schema([("value", pa.string())]), policy=Policy(files=True), aside=aside)
        with suppress(WrongKey):
            came.extend(how.text([Split(version(path), 0, len(broken))]))
        assert not b"".join(came), what
        assert "must-read" not in repr([about.to_pylist() for about in aside.handed_on()]), what


@pytest.mark.parametrize("footer", ["clear", "encrypted"])
@pytest.mark.parametrize("cipher", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
def test_parquet_that_its_own_modules_encrypt(footer: str, cipher: str, tmp_path: Path) -> None:
    """Not damaged: the error says what it is and what to do; it can be set aside; clear columns with a clear footer can be read."""
    keys = parquet_encryption.CryptoFactory(lambda _: Wrapping())
    how = parquet_encryption.EncryptionConfiguration(
        footer_key="footer",
        column_keys={"column": ["text"]},
        plaintext_footer=footer == "clear",
        encryption_algorithm=cipher,
    )
    properties = keys.file_encryption_properties(parquet_encryption.KmsConnectionConfig(), how)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, COLUMNS, encryption_properties=properties) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS, COLUMNS), row_group_size=500)
    with pytest.raises(BadFile, match="own modules.*write it again without encryption, or as a file of age"):
        rows(path, "parquet")
    aside = Aside()
    assert rows(path, "parquet", policy=Policy(files=True), aside=aside) == []
    assert [path_of(line) for about in aside.handed_on() for line in about.to_pylist()] == [os.fsencode(path)]
    if footer == "clear":
        assert rows(path, "parquet", pa.schema([("n", pa.int64())])) == [{"n": row["n"]} for row in ROWS]


class Wrapping(parquet_encryption.KmsClient):  # type: ignore[misc]
    """A key server that wraps keys without encrypting them."""

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: str, _: str) -> bytes:
        return base64.b64decode(wrapped)


def test_a_damaged_file_is_set_aside_and_one_for_others_never(tmp_path: Path) -> None:
    """`badFiles=quarantine` sets a damaged file aside without reading any of it; a wrong key stops the query: the file may be fine."""
    path, data = tmp_path / "a.json.age", (SAMPLES / "lines.json.age").read_bytes()
    path.write_bytes(data[:-1])
    aside = Aside()
    assert rows(path, policy=Policy(files=True), aside=aside) == []
    (line,) = [line for about in aside.handed_on() for line in about.to_pylist()]
    assert (line["code"], path_of(line)) == (FILE, os.fsencode(path))
    path.write_bytes(encrypted(b"{}\n", OTHER))
    for policy in (Policy(), Policy(files=True)):
        with pytest.raises(WrongKey, match="a.json.age.*none of the keys"):
            rows(path, policy=policy, aside=Aside())


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_without_a_key(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose name says that it is encrypted is neither text nor damaged: the error names the missing option, or the missing key."""
    path = tmp_path / f"a.{form}.age"
    path.write_bytes(encrypted(b"{}\n"))
    for policy in (Policy(), Policy(files=True)):
        with pytest.raises(OptionError, match="set decryptionKey"):
            rows(path, form, key=None, policy=policy, aside=Aside())
        monkeypatch.delenv(VARIABLE, raising=False)
        with pytest.raises(OptionError, match=f"no variable '{VARIABLE}'"):
            rows(path, form, policy=policy, aside=Aside())
    assert rows(path, "binary", pa.schema([("value", pa.binary())]), key=None) == [{"value": path.read_bytes()}]


def test_keys_in_a_file(tmp_path: Path) -> None:
    """One file may hold the keys of several recipients; a key given as the option itself is refused, and not shown."""
    (tmp_path / "keys").write_text(f"# mine\n{READER_KEY}\n# until May\n{OTHER_KEY}\n")
    for number, to in enumerate((OTHER,)):
        path = tmp_path / f"{number}.json.age"
        path.write_bytes(encrypted(b'{"n": 1}\n', to))
        assert rows(path, key=f"file:{tmp_path}/keys") == [{"n": 1, "text": None}]
    with pytest.raises(OptionError, match="never what it is") as caught:
        parse(SOURCE, {"path": "/in", "decryptionKey": READER_KEY}, what="source")
    assert READER_KEY not in str(caught.value)


def test_formats_are_known_by_their_names_inside(tmp_path: Path) -> None:
    """`.json.gz.age` is JSON, and an encrypted archive is not a file of lines."""
    (tmp_path / "a.json.gz.age").write_bytes(encrypted(gzip.compress(b"{}\n")))
    options = parse(SOURCE, {"path": str(tmp_path), "decryptionKey": f"env:{VARIABLE}", "settle": "0s"}, what="source")
    assert format_by_names(options) == "json"
    with pytest.raises(BadFile, match="a tar archive"):
        configured.unread(options).files.admit("a.tar.gz.age")
