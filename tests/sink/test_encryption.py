"""A sink that encrypts: no file that readers see is in clear text; each is for the recipients named when its part was opened."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyrage
import pytest
from pyarrow import orc

from penstock import failpoints
from penstock.errors import DamagedState, NoSpace, OptionError, TemplateError, WrongKey
from penstock.formats.aside import Aside, about_records
from penstock.formats.encryption import MAGIC, room
from penstock.sink.existing import noted
from penstock.sink.sink import Batch, Sink
from penstock.storage import LocalStorage
from tests.support.damage import damages, put_back, tree
from tests.support.follows import follows
from tests.support.keys import (
    ENCRYPTED,
    OTHER,
    OTHER_KEY,
    READER,
    READER_KEY,
    STAGING,
    STAGING_KEY,
    STAGING_VARIABLE,
    opened,
)
from tests.support.output import QUERY, Output

CLEAR = ENCRYPTED | {"encryptionKey": "none"}
SECRET = "no-one-must-read-this"  # noqa: S105 - a row


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)


def seen(output: Output, key: str = READER_KEY) -> dict[str, bytes]:
    """Return the visible files as a reader with the key reads them."""
    return {n: opened(data, key) for n, data in tree(output.root).items() if not n.startswith("_penstock")}


def inside(data: bytes, key: str) -> list[bytes]:
    """Return the content of a file if the key opens it, else nothing."""
    try:
        return [opened(data, key)]
    except pyrage.DecryptError:
        return []


def told(output: Output, secret: str = SECRET) -> list[str]:
    """Return the files in which anybody can read the row."""
    return [name for name, data in tree(output.root).items() if secret.encode() in data]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json", "csv", "parquet", "orc"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_nothing_is_clear_but_for_those_who_are_named(output: Output, form: str, compression: str) -> None:
    """No row is in clear text in any file of any format, staged or finished; a recipient reads each row once, nobody else reads any."""
    options = ENCRYPTED | {"format": form, "compression": compression}
    sink = output.sink(**options)
    for batch in range(3):
        output.batch(sink, batch, {w: [f"{SECRET}-{batch}-{w}-{n}" for n in range(20)] for w in range(2)})
        assert told(output) == []
    sink.finish()
    assert told(output) == []
    files = seen(output)
    assert files
    assert all(name.endswith(".age") for name in files)
    if compression == "none" and form in {"text", "json", "csv"}:
        assert sum(data.count(SECRET.encode()) for data in files.values()) == 120
    if form == "parquet":
        assert sum(pq.read_table(io.BytesIO(data)).num_rows for data in files.values()) == 120
    for name in files:
        with pytest.raises(Exception, match="No matching keys"):
            opened((output.root / name).read_bytes(), OTHER_KEY)
        with pytest.raises(Exception, match="No matching keys"):
            opened((output.root / name).read_bytes(), STAGING_KEY)


def test_rows_wait_in_clear_only_by_their_users_word(output: Output) -> None:
    """`encryptTo` alone is refused, and the error names both ways; `encryptionKey=none` leaves staged files clear, never finished ones."""
    with pytest.raises(OptionError, match="encryptionKey=none leaves them clear"):
        output.sink(encryptTo=READER)
    with pytest.raises(OptionError, match="encryptionKey is for encryptTo"):
        output.sink(encryptionKey="none")
    sink = output.sink(**CLEAR)
    output.batch(sink, 0, {0: [SECRET]})
    assert [name.partition("staging/")[1] for name in told(output)] == ["staging/"]
    sink.finish()
    assert told(output) == []
    assert list(seen(output).values()) == [f"{SECRET}\n".encode()]


def test_large_parts_wait_in_the_pack(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that exceed the memory limit are staged in pieces, each encrypted; the file made of them is one age file."""
    monkeypatch.setattr("penstock.sink.byteparts.BytePart.stage_bytes", 100)
    sink = output.sink(**ENCRYPTED, rollRows="50")
    output.schema = pa.schema([("value", pa.string())])
    for batch in range(2):
        begun = sink.begin("d1", Batch(QUERY, batch))
        pieces = [output.batches([f"{SECRET}-{batch}-{n}-{m}" for m in range(10)]) for n in range(7)]
        rows = (rows for piece in pieces for rows in piece)
        sink.commit(Batch(QUERY, batch), [sink.write(begun, QUERY, batch, 0, output.schema, rows)])
        assert told(output) == []
        assert not [name for name in output.staged() if name.endswith(".part")]
    sink.finish()
    assert sorted(data.count(b"\n") for data in seen(output).values()) == [40, 50, 50]
    assert {data.count(MAGIC) for name, data in tree(output.root).items() if name.endswith(".age")} == {1}


def test_what_is_complete_in_a_batch_is_encrypted_once(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fills within the batch may hold more in memory, so that it skips the pack; a part that stays open goes there."""
    monkeypatch.setattr("penstock.sink.byteparts.BytePart.stage_bytes", 500)
    sink = output.sink(**CLEAR, rollRows="50")
    begun = sink.begin("d1", Batch(QUERY, 0))
    pieces = [output.batches([f"{SECRET}-{n}-{m}" for m in range(10)]) for n in range(7)]
    rows = (rows for piece in pieces for rows in piece)
    result = sink.write(begun, QUERY, 0, 0, output.schema, rows)
    packed = [data for name, data in tree(output.root).items() if name.endswith(".pack")]
    assert [data.count(SECRET.encode()) for data in packed] == [20]
    sink.commit(Batch(QUERY, 0), [result])
    sink.finish()
    assert sorted(data.count(b"\n") for data in seen(output).values()) == [20, 50]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("ending", "sizes"), [("final", [50, 50, 20]), ("rollBatches", [40])])
def test_what_ends_with_its_batch_is_encrypted_as_it_comes(
    output: Output, monkeypatch: pytest.MonkeyPatch, ending: str, sizes: list[int], compression: str
) -> None:
    """Of a part that is known to end here nothing waits, clear or under a key: earlier rows come first, and each row once."""
    monkeypatch.setattr("penstock.sink.byteparts.BytePart.stage_bytes", 100)
    monkeypatch.setattr("penstock.sink.byteparts._MEMBER_BYTES", 100)
    rolls = {"rollBatches": "2"} if ending == "rollBatches" else {}
    sink = output.sink(
        **CLEAR, **rolls, rollRows="50", mergeBelow="200", header="true", format="csv", compression=compression
    )
    output.batch(sink, 0, {0: [f"{SECRET}-{n}" for n in range(20)]})
    last = Batch(QUERY, 1, final=ending == "final")
    begun = sink.begin("d1", last)
    before = set(tree(output.root))
    pieces = [output.batches([f"{SECRET}-{n}" for n in range(m, m + 10)]) for m in range(20, sum(sizes), 10)]
    result = sink.write(begun, QUERY, 1, 0, output.schema, (rows for piece in pieces for rows in piece))
    assert [name.rpartition(".")[2] for name in tree(output.root).keys() - before] == ["part"] * len(sizes)
    assert result.open == ()
    sink.commit(last, [result])
    files = [opened(data, READER_KEY) for name, data in tree(output.root).items() if name.endswith(".age")]
    texts = [(gzip.decompress(data) if compression == "gzip" else data).decode().splitlines() for data in files]
    assert sorted(len(text) - 1 for text in texts) == sorted(sizes)
    rows = [row for text in sorted(texts, key=lambda text: int(text[1].rpartition("-")[2])) for row in text[1:]]
    assert rows == [f"{SECRET}-{n}" for n in range(sum(sizes))]


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_a_table_that_ends_with_its_batch_is_encrypted_as_it_comes(
    output: Output, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Row groups go straight into the age file, whose size is an estimate; the file is closed here even if the estimate was too high."""
    monkeypatch.setattr("penstock.sink.tableparts.ArrowPart.stage_bytes", 100)
    sink = output.sink(**CLEAR, format=form, rollRows="5000", mergeBelow="15k")
    output.batch(sink, 0, {0: [f"{SECRET}-{n}" for n in range(20)]})
    last = Batch(QUERY, 1, final=True)
    begun = sink.begin("d1", last)
    before = set(tree(output.root))
    pieces = [output.batches([f"{SECRET}-{n}" for n in range(m, m + 980)]) for m in range(20, 11_780, 980)]
    result = sink.write(begun, QUERY, 1, 0, output.schema, (rows for piece in pieces for rows in piece))
    made = {name: data for name, data in tree(output.root).items() if name not in before}
    assert [data.count(SECRET.encode()) for name, data in made.items() if name.endswith(".part")] == [0, 0, 0]
    assert result.open == ()
    sink.commit(last, [result])
    tables = [
        (pq.read_table if form == "parquet" else orc.read_table)(io.BytesIO(data)) for data in seen(output).values()
    ]
    assert sorted(table.num_rows for table in tables) == [1780, 5000, 5000]
    rows = [value for table in tables for value in table.column("value").to_pylist()]
    assert sorted(rows, key=lambda row: int(row.rpartition("-")[2])) == [f"{SECRET}-{n}" for n in range(11_780)]


def test_a_table_that_becomes_smaller_than_it_seemed(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is an estimate until a row group is written: a part begun for its readers alone is closed here, however small it is."""
    monkeypatch.setattr("penstock.sink.tableparts.ArrowPart.stage_bytes", 100)
    monkeypatch.setattr("penstock.sink.tableparts._ROW_GROUP_BYTES", 50_000)
    sink = output.sink(**ENCRYPTED, format="parquet", mergeBelow="20k")
    last = Batch(QUERY, 0, final=True)
    begun = sink.begin("d1", last)
    pieces = list(output.batches([SECRET * 5] * 1000))
    result = sink.write(begun, QUERY, 0, 0, output.schema, iter(pieces * 3))
    assert result.open == ()
    assert [(part.rows, part.bytes < 20_000) for part in result.closed] == [(3000, True)]
    sink.commit(last, [result])
    [data] = seen(output).values()
    assert pq.read_table(io.BytesIO(data)).column("value").to_pylist() == [SECRET * 5] * 3000


def test_what_is_encrypted_as_it_comes_and_given_up(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or the rows fail, in the middle of such a part: the original error is raised, and no thread is left running."""
    monkeypatch.setattr("penstock.sink.byteparts.BytePart.stage_bytes", 100)
    sink = output.sink(**CLEAR, mergeBelow="1")
    last = Batch(QUERY, 0, final=True)
    pieces = list(output.batches(["x" * 60_000]))

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(5):
            yield from pieces
        raise ZeroDivisionError

    begun = sink.begin("d1", last)
    with pytest.raises(ZeroDivisionError):
        sink.write(begun, QUERY, 0, 0, output.schema, rows())
    failpoints.arm("storage.write=nospace@2")
    with pytest.raises(NoSpace):
        sink.write(begun, QUERY, 0, 0, output.schema, iter(pieces * 5))
    failpoints.arm("")
    assert [thread for thread in threading.enumerate() if thread.name == "penstock-encrypting"] == []
    sink.commit(last, [sink.write(begun, QUERY, 0, 0, output.schema, iter(pieces))])
    assert [data.count(b"x") for data in seen(output).values()] == [60_000]


@pytest.mark.parametrize("size", [2000, 70_000])
def test_files_are_no_larger_than_they_may_be(output: Output, size: int) -> None:
    """`rollSize` is the size of the visible file including the encryption, also if the driver joins the parts of several tasks."""
    sink = output.sink(**ENCRYPTED, rollSize=str(size), mergeBelow="1g")
    for batch in range(4):
        output.batch(sink, batch, {w: ["x" * 99] * (size // 250) for w in range(2)})
    sink.finish()
    sizes = [len(data) for name, data in tree(output.root).items() if name.endswith(".age")]
    assert max(sizes) <= size
    assert sum(n >= room(size, (READER,)) - 200 for n in sizes) >= 2


def test_recipients_that_change_between_batches(output: Output, tmp_path: Path) -> None:
    """A file of recipients is read at each batch: parts opened before are for the former recipients only, the rest for the new ones."""
    (tmp_path / "to").write_text(f"{READER}\n")
    sink = output.sink(encryptTo=f"file:{tmp_path}/to", encryptionKey="none")
    output.batch(sink, 0, {0: ["a"]})
    (tmp_path / "to").write_text(f"# the same\n\n{READER}\n{READER}\n")
    output.batch(sink, 1, {0: ["a"]})
    assert len(sink.ledger.head().open) == 1
    (tmp_path / "to").write_text(f"# since March\n{OTHER}\n")
    output.batch(sink, 2, {0: ["b"]})
    (tmp_path / "to").unlink()  # completing open parts no longer needs it
    sink.finish()
    files = [data for name, data in tree(output.root).items() if name.endswith(".age")]
    readers = {inner: key for data in files for key in (READER_KEY, OTHER_KEY) for inner in inside(data, key)}
    assert readers == {b"a\na\n": READER_KEY, b"b\n": OTHER_KEY}
    (tmp_path / "to").write_text("nobody\n")
    with pytest.raises(OptionError, match="entry 1 of 1"):
        sink.begin("d1", Batch(QUERY, 3))


def test_parts_of_a_run_without_encryption_are_never_published_by_one_with_it(output: Output) -> None:
    """They would be in clear text: the start is refused, changes nothing, and says what to do; the other way round they stay encrypted."""
    output.batch(output.sink(), 0, {0: ["before"]})
    encrypting = output.sink(**ENCRYPTED)
    before = tree(output.root)
    with pytest.raises(OptionError, match="1 open parts of a run without it.*penstock finish"):
        output.batch(encrypting, 1, {0: [SECRET]}, owner="d2")
    assert tree(output.root) == before
    Sink.existing(LocalStorage(), str(output.root), "s").finish()
    output.batch(encrypting, 1, {0: [SECRET]}, owner="d2")
    plain = output.sink(encryptTo=READER, encryptionKey="none")
    output.batch(plain, 2, {1: ["after"]}, owner="d3")  # it has no key of the staged part, and leaves it open
    with pytest.raises(OptionError, match="set encryptionKey to where the key of that is"):
        plain.finish()
    output.sink(**ENCRYPTED).finish()
    assert sorted(b"".join(opened(file.read_bytes()) for file in output.root.glob("*.age")).splitlines()) == [
        b"after",
        SECRET.encode(),
    ]


@follows("PST-520")
def test_another_staging_key(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait under another key are `WrongKey`, and none is lost: with the former key listed after the new one it continues."""
    sink = output.sink(**ENCRYPTED)
    output.batch(sink, 0, {0: [SECRET]})
    monkeypatch.setenv(STAGING_VARIABLE, OTHER_KEY)
    output.batch(sink, 1, {1: ["another writer"]}, owner="d2")
    with pytest.raises(WrongKey, match=f"encrypted to {STAGING}.*put the former key after the new one"):
        sink.finish()
    monkeypatch.setenv(STAGING_VARIABLE, f"{OTHER_KEY}\n{STAGING_KEY}")
    sink.finish()
    assert sorted(b"".join(seen(output).values()).splitlines()) == [b"another writer", SECRET.encode()]


@pytest.mark.slow
def test_staged_rows_that_are_damaged_anywhere(output: Output) -> None:
    """Any change of rows that wait under the key is `DamagedState`, and none of them is published: the digest is of the cipher text."""
    sink = output.sink(**ENCRYPTED)
    output.batch(sink, 0, {0: [SECRET]})
    (path,) = (output.root / "_penstock/s/staging").iterdir()
    for what, broken in damages(path.read_bytes(), every=3):
        if "doubled" in what:
            continue  # after the bytes that the record names
        with put_back(output.root):
            path.write_bytes(broken)
            with pytest.raises(DamagedState):
                sink.finish()
            assert not list(output.root.glob("*.age")), what
    sink.finish()
    assert list(seen(output).values()) == [f"{SECRET}\n".encode()]


def test_what_is_set_aside_is_encrypted_too(output: Output) -> None:
    """Lines about bad records contain the records, so they are encrypted to the same readers, and wait as rows do."""
    sink = output.sink(**ENCRYPTED)
    begun, aside = sink.begin("d1", Batch(QUERY, 0)), Aside()
    records = pa.array([SECRET.encode()])

    def rows() -> Iterator[pa.RecordBatch]:
        aside.take(about_records("/in/a", pa.array([0]).to_numpy(), records, ["not good"], modified_ns=1))
        yield from output.batches(["a"])

    sink.commit(Batch(QUERY, 0), [sink.write(begun, QUERY, 0, 0, output.schema, rows(), aside=aside)])
    assert told(output) == []
    sink.finish()
    assert told(output) == []
    (lines,) = output.root.glob("_penstock/s/quarantine/*.json.age")
    assert SECRET in opened(lines.read_bytes()).decode()


def test_no_secret_leaves_the_process(output: Output) -> None:
    """What travels to tasks, is noted, or is reported says where a key is, and never contains the key."""
    sink = output.sink(**ENCRYPTED)
    begun = sink.begin("d1", Batch(QUERY, 0))
    places = {"sink": pickle.dumps(sink), "begun": pickle.dumps(begun), "text": f"{sink.options} {begun}".encode()}
    result = output.write(sink, begun, 0, {0: ["a"]})
    places |= {"result": pickle.dumps(result), **tree(output.root)}
    sink.commit(Batch(QUERY, 0), result)
    sink.finish()
    places |= tree(output.root)
    for place, data in places.items():
        for key in (STAGING_KEY, READER_KEY):
            assert key.encode() not in data, place
            assert key[20:40].encode() not in data, place
    assert noted(LocalStorage(), sink.state).options["encryptionKey"] == f"env:{STAGING_VARIABLE}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encryptTo": STAGING_KEY}, "entry 1 of 1 is not a recipient"),
        ({"encryptTo": f"{READER},hunter2"}, "entry 2 of 2 is not a recipient"),
        ({"encryptTo": READER, "encryptionKey": STAGING_KEY}, "never what it is"),
        (ENCRYPTED | {"growing": "true", "fileName": "a.txt"}, "what is encrypted cannot be appended to"),
    ],
)
def test_options_that_cannot_be(output: Output, options: dict[str, str], message: str) -> None:
    """Each mistake is refused when the sink is made, by a message that shows no secret."""
    with pytest.raises((OptionError, TemplateError), match=message) as caught:
        output.sink(**options)
    assert STAGING_KEY not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_keys_that_are_not_there(output: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A query is refused before it begins if either key is missing."""
    monkeypatch.delenv(STAGING_VARIABLE)
    with pytest.raises(OptionError, match=f"no variable '{STAGING_VARIABLE}'"):
        output.sink(**ENCRYPTED).check(output.schema)
    (tmp_path / "key").write_text("hunter2\n")
    with pytest.raises(OptionError, match="is not a valid key") as caught:
        output.sink(encryptTo=READER, encryptionKey=f"file:{tmp_path}/key").check(output.schema)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(OptionError, match="finds no such file"):
        output.sink(encryptTo=f"file:{tmp_path}/nobody", encryptionKey="none").check(output.schema)
    os.mkfifo(tmp_path / "pipe")
    for what in ("pipe", "."):
        with pytest.raises(OptionError, match="a directory, a pipe or a device, .* expected a file, or env:NAME"):
            output.sink(encryptTo=READER, encryptionKey=f"file:{tmp_path}/{what}").check(output.schema)


def test_a_claim_that_was_not_noted_is_noted_by_the_next_batch(output: Output) -> None:
    """A driver that failed between its claim and its note continues as the same owner; what it stages can be finished nonetheless."""
    sink = output.sink(**ENCRYPTED)
    sink.begin("d1", Batch(QUERY, 0))
    (output.root / "_penstock/s/options-000000000001.json").unlink()
    output.batch(sink, 0, {0: [SECRET]})
    Sink.existing(LocalStorage(), str(output.root), "s").finish()
    assert list(seen(output).values()) == [f"{SECRET}\n".encode()]


def test_a_query_that_is_started_again_in_its_process_notes_its_options(output: Output) -> None:
    """The driver is the same one, and its options are not: what is finished later by the note is encrypted to the new recipient."""
    output.batch(output.sink(**ENCRYPTED), 0, {0: [SECRET]}, final=True)
    sink = output.sink(**ENCRYPTED | {"encryptTo": OTHER, "rollBatches": "9"})
    output.batch(sink, 1, {0: [SECRET]})
    noted = Sink.existing(LocalStorage(), str(output.root), "s")
    assert noted.options["encryptTo"] == (OTHER,)
    assert noted.note.changed == {"encryptTo", "rollBatches"}
    epoch = noted.ledger.head().epoch
    output.batch(sink, 2, {0: [SECRET]})
    assert noted.ledger.head().epoch == epoch, "the same options claim nothing"


@pytest.mark.parametrize(
    "point", ["sink.ledger.before-put", "sink.ledger.after-put", "sink.publish.one", "sink.forget"]
)
def test_a_driver_that_dies_at_assembly(output: Output, point: str) -> None:
    """The next driver publishes what was decided, or encrypts it again under another name: each row once, nothing in clear text."""
    sink = output.sink(**ENCRYPTED)
    output.batch(sink, 0, {0: [SECRET], 1: ["b"]})
    failpoints.arm(f"{point}=error")
    try:
        with pytest.raises(OSError, match="failpoint"):
            sink.finish()
    finally:
        failpoints.arm("")
    assert told(output) == []
    Sink.existing(LocalStorage(), str(output.root), "s").finish()
    assert sorted(b"".join(seen(output).values()).splitlines()) == [b"b", SECRET.encode()]


def test_what_is_compressed_and_then_encrypted(output: Output) -> None:
    """M15: ten batches of a thousand rows, encrypted gzip: after decryption, any gzip reader finds the 10,000 lines in order."""
    sink = output.sink(**ENCRYPTED, compression="gzip", rollSize="1g", rollRows="100000")
    lines = [[f"{batch} {number:04}" for number in range(1000)] for batch in range(10)]
    for batch, rows in enumerate(lines):
        output.batch(sink, batch, {0: rows})
    sink.finish()
    ((name, data),) = seen(output).items()
    assert name.endswith(".gz.age")
    assert gzip.decompress(data).decode().splitlines() == [line for rows in lines for line in rows]
