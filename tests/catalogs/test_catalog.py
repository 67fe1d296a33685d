"""Finished files in tables of Delta and Iceberg, each exactly once."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.catalogs import follower
from penstock.catalogs.delta import Delta
from penstock.catalogs.follower import catalog
from penstock.catalogs.footers import table_file
from penstock.catalogs.iceberg import Iceberg
from penstock.catalogs.statistics import column_statistics
from penstock.errors import CatalogError, DependencyError, EventsLost, OptionError
from penstock.sink import ledger
from penstock.sink.events import Event
from penstock.storage import LocalStorage
from tests.catalogs.tables import COLUMNS, TABLE, Table, Writer, write
from tests.support.effort import effort
from tests.support.follows import follows
from tests.support.output import Output
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from tests.cli.conftest import Said
    from tests.support.forked import Commands

KILLS = effort(6, 30)  # the same number of each kind
POINTS = ("catalog.commit=kill", "catalog.committed=kill", "")  # before a commit, after it, at any time


def refused(table: Table, match: str, *passed: str) -> str:
    """Return the file that a follower refuses, with `--skip` as advice; the files in `passed` are skipped already."""
    with pytest.raises(CatalogError, match=match) as error:
        table.follow(skip=passed)
    assert "--skip" in error.value.message
    path = re.search(rf"'{table.root}/([^']+)'", error.value.message)
    assert path
    return path[1]


def passes_over(table: Table, match: str) -> None:
    """Check that a file is refused by name, skip it as the message advises, and check that the one other new file is added."""
    path = refused(table, match)
    done = table.follow(skip=[path])
    assert (done.files, done.skipped) == (1, (path,))


def rival_comes_first(monkeypatch: pytest.MonkeyPatch, rival: Callable[[], object]) -> None:
    """Let a rival act between the first look and the first commit."""
    for kind in (Delta, Iceberg):

        def add(self: Any, *given: Any, kept: Any = kind.add) -> None:
            monkeypatch.undo()
            monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
            rival()
            kept(self, *given)

        monkeypatch.setattr(kind, "add", add)


def reply_lost(add: Callable[..., None]) -> Callable[..., None]:
    """Return a commit that succeeds but raises an error."""

    def done(*given: Any) -> None:
        add(*given)
        raise OSError("the reply was lost")  # noqa: TRY003, EM101 - a test

    return done


def test_what_is_published_is_in_the_table_once(output: Output, table: Table) -> None:
    """First the existing files are added, then new ones, then none; polars and DuckDB count them."""
    writer = Writer(output)
    writer.publish([(1, "a"), (2, "b")], [(3, "c")])
    first = table.follow()
    assert (first.files, first.rows, first.commits) == (2, 3, 1)
    writer.publish([(4, "d")])
    assert (table.follow().files, table.follow().files) == (1, 0)
    assert table.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert table.count() == 4


@pytest.mark.slow
def test_kills_lose_and_double_nothing(output: Output, table: Table, followers: Commands) -> None:
    """Followers are killed again and again, before, after and during their commits, while files are published."""
    writer = Writer(output)
    for number in range(KILLS):
        writer.publish([(number, "a")], [(number, "b"), (number, "c")])
        point = POINTS[number % len(POINTS)]
        follower = followers.begin("catalog", output.root, *table.flags, points=point)
        if not point:
            time.sleep(random.uniform(0.005, 0.4))  # noqa: S311 - at any moment
            with suppress(ProcessLookupError):  # it has ended already
                follower.signal(signal.SIGKILL)
        ended = follower.ended(check=False)
        assert ended.returncode == -signal.SIGKILL or not (point or ended.returncode), ended.stderr
    table.follow()
    expected = [(number, name) for number in range(KILLS) for name in "abc"]
    assert table.rows() == sorted(expected, key=repr)
    assert table.count() == len(expected)


def test_two_followers_of_one_moment(output: Output, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival commits exactly what this follower is about to commit: nothing is there twice, and no library adds it again by a retry."""
    writer = Writer(output)
    writer.publish([(0, "a")])
    table.follow()
    writer.publish([(1, "b")], [(2, "c")])
    rival_comes_first(monkeypatch, lambda: table.follow())
    assert table.follow().files == 0
    assert table.rows() == [(0, "a"), (1, "b"), (2, "c")]
    assert table.count() == 3


def test_followers_that_make_the_table_together(output: Output, table: Table) -> None:
    """Four followers start while there is no table: one creates it, and it has each file once."""
    writer = Writer(output)
    for number in range(4):
        writer.publish([(number, "a")])
    with ThreadPoolExecutor(4) as pool:
        done = [running.result() for running in [pool.submit(table.follow) for _ in range(4)]]
    assert sum(answer.files for answer in done) >= 4
    assert table.rows() == [(number, "a") for number in range(4)]
    assert table.count() == 4


@pytest.mark.parametrize("table", ["iceberg"], indirect=True)
def test_others_make_each_table_of_the_catalogue_first(output: Output, table: Table) -> None:
    """The catalogue creates its own tables one after another: if a rival creates any of them at that moment, its table is used."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables  # noqa: PLC0415 - optional
    from sqlalchemy import create_engine, event  # noqa: PLC0415 - optional

    theirs = create_engine(f"sqlite:///{table.root}/_iceberg/catalog.db")
    made = []

    def rival_first(one: Any, *_: Any, **__: Any) -> None:
        if one not in made:
            made.append(one)
            one.create(theirs)

    own = [IcebergTables.__table__, IcebergNamespaceProperties.__table__]
    Writer(output).publish([(1, "a")])
    for one in own:
        event.listen(one, "before_create", rival_first)
    try:
        assert table.follow().files == 1
    finally:
        for one in own:
            event.remove(one, "before_create", rival_first)
    assert len(made) == len(own)
    assert table.rows() == [(1, "a")]


def test_somebody_else_writes_meanwhile(output: Output, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that another program appends between look and commit stay, and ours are added: the commit is made again on the new state."""
    writer = Writer(output)
    writer.publish([(0, "a")])
    table.follow()
    writer.publish([(1, "b")])
    rival_comes_first(monkeypatch, lambda: table.append([(7, "theirs")]))
    assert table.follow().files == 1
    assert table.rows() == [(0, "a"), (1, "b"), (7, "theirs")]


def test_rows_that_somebody_deletes_do_not_come_back(output: Output, table: Table) -> None:
    """The table's position is kept apart from its files: what others delete or compact is not added again."""
    writer = Writer(output)
    writer.publish([(0, "a")], [(1, "b")])
    table.follow()
    table.opened().delete("id = 0")
    if table.kind == "delta":
        table.opened().optimize.compact()
    writer.publish([(2, "c")])
    assert table.follow().files == 1
    assert table.rows() == [(1, "b"), (2, "c")]


@pytest.mark.slow
def test_lost_reply_is_recognised(output: Output, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit succeeds but is reported as failed: the table shows that it succeeded, and nothing is committed again."""
    Writer(output).publish([(0, "a")])
    for kind in (Delta, Iceberg):
        monkeypatch.setattr(kind, "add", reply_lost(kind.add))
    done = table.follow()
    assert (done.files, done.commits) == (1, 1)
    assert table.count() == 1


def test_columns_that_come_later(output: Output, table: Table) -> None:
    """A new column: the table has it, with null for the older files."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    table.follow()
    more = COLUMNS.append(pa.field("price", pa.float64()))
    writer.publish([(2, "b", 1.5)], schema=more)
    writer.publish([(3, "c")])
    assert table.follow().files == 2
    assert table.rows("id", "name", "price") == [(1, "a", None), (2, "b", 1.5), (3, "c", None)]


@pytest.mark.parametrize("table", ["iceberg"], indirect=True)
def test_columns_that_somebody_renames_stay_what_they_are(output: Output, table: Table) -> None:
    """Files keep their old column names: the columns were once added anew, and those with the new names were null in all rows."""
    schema = pa.schema([*COLUMNS, ("s", pa.struct({"x": pa.int64()})), ("l", pa.list_(pa.struct({"y": pa.int64()})))])

    def publish(number: int, name: str) -> None:
        row = {"id": number, "name": name, "s": {"x": number}, "l": [{"y": number}]}
        write(output, number, pa.Table.from_pylist([row], schema))
        assert table.follow().files == 1

    publish(0, "a")
    with table.opened().update_schema() as change:
        for old, new in (("name", "label"), ("s.x", "z"), ("l.y", "w")):
            change.rename_column(old, new)
    publish(1, "b")
    publish(2, "c")
    assert table.scan().columns == ["id", "label", "s", "l"]
    rows = [(n, name, {"z": n}, [{"w": n}]) for n, name in enumerate("abc")]
    assert table.rows("id", "label", "s", "l") == rows
    assert table.opened().scan("label = 'c'").to_arrow().num_rows == 1, "by its statistics"


@pytest.mark.parametrize("table", ["iceberg"], indirect=True)
def test_a_column_that_somebody_drops_does_not_come_back(output: Output, table: Table) -> None:
    """Like deleted rows: the next file's values of the column are not in the table, and those of older files do not come back."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    table.follow()
    with table.opened().update_schema() as change:
        change.delete_column("name")
    writer.publish([(2, "b")])
    more = COLUMNS.append(pa.field("price", pa.float64()))
    writer.publish([(3, "c", 1.5)], schema=more)
    assert table.follow().files == 2
    assert table.scan().columns == ["id", "price"]
    assert table.rows("id", "price") == [(1, None), (2, None), (3, 1.5)]


@follows("PST-910")
@pytest.mark.parametrize("table", ["iceberg"], indirect=True)
def test_a_partition_of_others_that_a_file_does_not_fit(output: Output, table: Table) -> None:
    """A file with several values of another program's partition column is refused by name, and skipped if the user says so."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    table.follow()
    with table.opened().update_spec() as change:
        change.add_identity("id")
    writer.publish([(2, "b"), (3, "c")])
    writer.publish([(4, "d")])
    passes_over(table, "more than one partition value")
    assert table.rows() == [(1, "a"), (4, "d")]


@follows("PST-910")
@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_a_constraint_of_others_is_not_passed_over(output: Output, table: Table) -> None:
    """Nobody has checked a constraint for the rows of files: nothing is added until it is dropped, as the message advises."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    table.follow()
    table.opened().alter.add_constraint({"positive": "id > 0"})
    writer.publish([(-2, "b")])
    with pytest.raises(CatalogError, match=r"DROP CONSTRAINT positive"):
        table.follow()
    assert table.rows() == [(1, "a")]
    table.opened().alter.drop_constraint("positive")
    assert table.follow().files == 1
    assert table.rows() == [(-2, "b"), (1, "a")]


@follows("PST-910")
def test_null_in_a_column_that_others_require(output: Output, table: Table) -> None:
    """A file with null in the column, or without it, is refused by name, and skipped if the user says so; others are added."""
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    if table.kind == "delta":
        import deltalake  # noqa: PLC0415 - optional

        deltalake.DeltaTable.create(str(output.root), deltalake.Schema.from_arrow(required))
    else:
        (output.root / "_iceberg").mkdir(parents=True)
        table.catalogue().create_namespace("logs")
        table.catalogue().create_table("logs.events", required)
    write(output, 0, pa.Table.from_pylist([{"id": 1, "name": "a"}], COLUMNS))
    write(output, 1, pa.Table.from_pylist([{"id": None, "name": "b"}], COLUMNS))
    write(output, 2, pa.Table.from_pylist([{"name": "c"}], pa.schema([("name", pa.string())])))
    passed: list[str] = []
    for _ in range(2):
        passed.append(refused(table, "null in the column 'id'", *passed))
    assert table.follow(skip=passed).files == 1
    assert table.rows() == [(1, "a")]


@follows("PST-910")
@pytest.mark.parametrize("first", [False, True])
def test_a_type_that_tables_do_not_have(output: Output, table: Table, first: bool) -> None:
    """For an interval, which Parquet can hold, the file is refused by name, and skipped on request, also if it would create the table."""
    if not first:
        write(output, 0, pa.Table.from_pylist([{"id": 1}], pa.schema([("id", pa.int64())])))
        table.follow()
    schema = pa.schema([("id", pa.int64()), ("took", pa.duration("us"))])
    number = 0 if first else 1
    write(output, number, pa.Table.from_pylist([{"id": 2, "took": timedelta(1)}], schema))
    write(output, number + 1, pa.Table.from_pylist([{"id": 3}], pa.schema([("id", pa.int64())])))
    passes_over(table, "(?i)duration")
    assert table.rows("id") == ([] if first else [(1,)]) + [(3,)]


@follows("PST-910")
@pytest.mark.parametrize("table", ["delta"], indirect=True)
@pytest.mark.parametrize("first", [False, True])
def test_names_that_differ_in_case_alone(output: Output, table: Table, first: bool) -> None:
    """Delta does not distinguish them: the file is refused by name, and skipped if the user says so."""
    both = COLUMNS.append(pa.field("Id", pa.int64()))
    writer = Writer(output)
    if not first:
        writer.publish([(1, "a")])
        table.follow()
    writer.publish([(2, "b", 2)], schema=both)
    writer.publish([(3, "c")])
    passes_over(table, "'Id'")
    assert table.rows() == ([] if first else [(1, "a")]) + [(3, "c")]


def test_structs_that_grow(output: Output, table: Table) -> None:
    """A struct gains a field, and a later file lacks it again."""
    small, large = {"x": pa.int64()}, {"x": pa.int64(), "y": pa.string()}
    for number, members in enumerate((small, large, small)):
        schema = pa.schema([("id", pa.int64()), ("s", pa.struct(members))])
        struct = {"x": number} | ({"y": "why"} if "y" in members else {})
        write(output, number, pa.Table.from_pylist([{"id": number, "s": struct}], schema))
        assert table.follow().files == 1
    assert table.rows("id", "s") == [
        (0, {"x": 0, "y": None}),
        (1, {"x": 1, "y": "why"}),
        (2, {"x": 2, "y": None}),
    ]


def test_every_type_that_files_have(output: Output, table: Table) -> None:
    """Values of Spark's column types are read from the table exactly as from the files."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)
    row: dict[str, tuple[pa.DataType, Any]] = {
        "byte": (pa.int8(), -1),
        "short": (pa.int16(), 2),
        "int": (pa.int32(), 3),
        "long": (pa.int64(), 2**60),
        "float": (pa.float32(), 1.5),
        "double": (pa.float64(), float("inf")),
        "decimal": (pa.decimal128(20, 3), Decimal("12345678901234567.125")),
        "bool": (pa.bool_(), True),
        "binary": (pa.binary(), b"\0\xff"),
        "date": (pa.date32(), date(2026, 1, 2)),
        "instant": (pa.timestamp("us", "UTC"), moment.replace(tzinfo=timezone.utc)),
        "local": (pa.timestamp("us"), moment),
        "list": (pa.list_(pa.string()), ["a", None]),
        "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    }
    schema = pa.schema([(name, kind) for name, (kind, _) in row.items()])
    write(output, 0, pa.Table.from_pylist([{name: value for name, (_, value) in row.items()}, {}], schema))
    table.follow()
    assert table.opened().to_pyarrow_table().num_rows == 2 if table.kind == "delta" else True
    frame = table.scan().sort("long", nulls_last=True)
    (place,) = table.places()
    assert frame.rows() == pl.read_parquet(place).select(frame.columns).sort("long", nulls_last=True).rows()


def test_directories_are_columns_where_the_files_have_them_not(output: Output, table: Table) -> None:
    """A day from a directory name is a text column of the table; a column in the files stays as it is; null is null."""
    writer = Writer(output, bucketBy="day={time:%Y-%m-%d}/name={name}", dropBucketColumns="true")
    hostile = ["a b", "50%", "x=y/z", "#?", "*[1]", "ü🙂", ""]
    if table.kind == "iceberg":  # for Delta, polars reads this text as null
        hostile.append("__HIVE_DEFAULT_PARTITION__")
    writer.publish([(number, name) for number, name in enumerate(hostile)])
    assert table.follow().files == len(set(hostile))
    assert set(table.scan()["day"]) == {directory.name.removeprefix("day=") for directory in output.root.glob("day=*")}
    names: dict[int, str | None] = dict(table.rows())
    assert [names[number] or "" for number in range(len(hostile))] == hostile


def test_directories_that_come_later(output: Output, table: Table) -> None:
    """A second sink has another template: Iceberg gets another partition, Delta cannot and says so; both keep what they have."""
    Writer(output).publish([(1, "a")])
    table.follow()
    Writer(output, "t", bucketBy="day={time:%Y}").publish([(2, "b")])
    if table.kind == "delta":
        with pytest.raises(CatalogError, match="has no such partition"):
            table.follow()
        assert table.follow(sink="s").files == 0
        return
    assert table.follow().files == 1
    assert [(row, day is None) for row, day in table.rows("id", "day")] == [(1, True), (2, False)]


def test_history_that_was_folded(output: Output, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that comes after most was folded, or falls behind a fold, gets every file once; two sinks share a table."""
    monkeypatch.setattr(ledger, "FOLD", 4)
    monkeypatch.setattr(follower, "_COMMIT_FILES", 3)
    one, other = Writer(output), Writer(output, "t")
    for number in range(7):
        one.publish([(number, "one")])
        other.publish([(number, "other")], [(number, "again")])
        if number == 1:
            table.follow()
    assert list((output.root / "_penstock/s/ledger").glob("*-*"))
    table.follow()
    assert table.count() == 21
    assert Counter(table.rows()) == Counter((n, name) for n in range(7) for name in ("one", "other", "again"))


@follows("PST-910")
def test_a_column_of_another_type_is_refused_and_passed_over(output: Output, table: Table) -> None:
    """The error names file, column and both types; --skip skips the file, and later files are added."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    table.follow()
    before = table.opened().version() if table.kind == "delta" else table.opened().current_snapshot()
    writer.publish([(2, "3")], schema=pa.schema([("id", pa.int64()), ("name", pa.int64())]))
    writer.publish([(4, "d")])
    refused(table, "name")
    assert (table.opened().version() if table.kind == "delta" else table.opened().current_snapshot()) == before
    passes_over(table, "name")
    assert table.follow().files == 0
    assert table.rows() == [(1, "a"), (4, "d")]


@follows("PST-910")
def test_files_that_are_gone_or_altered(output: Output, table: Table) -> None:
    """A file that a consumer removed, and a truncated one: both are named before anything is committed; a pattern skips them."""
    Writer(output).publish([(1, "a")], [(2, "b")], [(3, "c")])
    gone, cut, _ = sorted(output.root.glob("*.parquet"))
    gone.unlink()
    with pytest.raises(CatalogError, match="is gone"):
        table.follow()
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(CatalogError, match="it was altered"):
        table.follow(skip=[gone.name])
    assert table.follow(skip=["part-*"]).files == 1
    assert table.rows() == [(3, "c")]


def test_files_that_are_no_tables(output: Output, table: Table) -> None:
    """A text file is refused, because a table cannot contain it."""
    output.batch(output.sink(rollBatches="1"), 0, {0: ["a"]})
    with pytest.raises(CatalogError, match="no Parquet file"):
        table.follow()


def test_a_name_that_is_no_text() -> None:
    """No list of a table can hold a file name that is not UTF-8, as adopted files may have: the error shows it in ASCII."""
    file = ledger.FinishedFile(os.fsdecode(b"caf\xe9.parquet"), "", 1, 1, "", 0, 0, "")
    with pytest.raises(CatalogError, match=r"'caf\\udce9.parquet' has a name that a table cannot hold"):
        table_file(LocalStorage(), "/data", Event("s", 0, file))


def test_a_ledger_that_was_put_back(output: Output, table: Table, tmp_path: Path) -> None:
    """The output is restored from a copy and written to: the table belongs to another history, and the error says so."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    shutil.copytree(output.root / "_penstock", tmp_path / "copy")
    writer.publish([(2, "b")])
    table.follow()
    shutil.rmtree(output.root / "_penstock")
    shutil.copytree(tmp_path / "copy", output.root / "_penstock")
    (output.root / "part-s-0-1.parquet").unlink()
    again = Writer(output)
    again.start_at(1)
    again.publish([(3, "other"), (4, "more")])
    with pytest.raises(EventsLost, match="begin a new table"):
        table.follow()


def test_a_table_that_was_dropped_gets_all(output: Output, table: Table) -> None:
    """A new table has no position, so it gets everything in the ledgers."""
    writer = Writer(output)
    writer.publish([(1, "a")])
    table.follow()
    shutil.rmtree(output.root / ("_delta_log" if table.kind == "delta" else "_iceberg"))
    writer.publish([(2, "b")])
    assert table.follow().files == 2
    assert table.rows() == [(1, "a"), (2, "b")]


def test_the_output_is_what_it_was(output: Output, table: Table, penstock: Callable[..., Said]) -> None:
    """Neither verify, nor clean, nor a reader of the directory sees the files of a table."""
    Writer(output).publish([(1, "a")])
    table.follow()
    assert penstock("verify", output.root).status == 0
    assert penstock("clean", output.root, "--json").facts["files"] == []
    assert [path.name for path in output.root.iterdir() if path.name[0] not in "._"] == ["part-s-0-0.parquet"]


def test_the_command(output: Output, table: Table, penstock: Callable[..., Said]) -> None:
    """The command's output, for people and as JSON; flags that exclude each other; an output with nothing in it yet."""
    output.root.mkdir()
    assert "nothing is published yet" in penstock("catalog", output.root, *table.flags).out
    Writer(output).publish([(1, "a")], [(2, "b")])
    facts = penstock("catalog", output.root, *table.flags, "--json").facts
    assert (facts["ok"], facts["kind"], facts["files"], facts["rows"]) == (True, table.kind, 2, 2)
    assert "0 files with 0 rows in 0 commits; at " in penstock("catalog", output.root, *table.flags).out
    assert "expected one kind of table" in penstock("catalog", output.root).err
    assert "--interval is for --watch" in penstock("catalog", output.root, *table.flags, "--interval", "1s").err
    assert "is not there" in penstock("catalog", output.root / "no", *table.flags).err
    assert "there are: s" in penstock("catalog", output.root, *table.flags, "--sink", "S").err, "it may be misspelt"
    assert "sink='../s': expected" in penstock("catalog", output.root, *table.flags, "--sink", "../s").err


@pytest.mark.slow
def test_watching(output: Output) -> None:
    """With --watch new files are added until a signal ends the command successfully; its answer counts all of them."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'penstock[delta]')")
    writer = Writer(output)
    writer.publish([(1, "a")])
    command = ["-m", "penstock.cli", "catalog", output.root, "--delta", "--watch", "--interval", "100ms", "--json"]
    with subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE) as process:
        wait_for(lambda: (output.root / "_delta_log").exists(), "what is there")
        writer.publish([(2, "b")], [(3, "c")])
        wait_for(lambda: len(deltalake.DeltaTable(str(output.root)).file_uris()) == 3, "what came")
        process.send_signal(signal.SIGTERM)
        facts = json.loads(process.communicate(timeout=60)[0])
    assert (process.returncode, facts["ok"], facts["files"], facts["rows"]) == (0, True, 3, 3)


def test_names_and_catalogues_that_are_none(output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no table's name, no catalogue, or for the other kind, is told before anything is written."""
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install 'penstock[iceberg]')")
    output.root.mkdir()
    with pytest.raises(OptionError, match="a namespace and a table"):
        catalog(output.root, iceberg="events")
    with pytest.raises(OptionError, match="not in pyiceberg's configuration"):
        catalog(output.root, iceberg=TABLE, catalog="nobody")
    with pytest.raises(OptionError, match="expected a whole path"):
        catalog(output.root, iceberg=TABLE, catalog="sqlite:///catalog.db")
    (tmp_path / "catalog.db").write_bytes(b"no database, " * 100)
    with pytest.raises(
        CatalogError, match=f"the catalogue of the table '{TABLE}' cannot be read .*not a database; see to that"
    ):
        catalog(output.root, iceberg=TABLE, catalog=f"sqlite:///{tmp_path}/catalog.db")
    with pytest.raises(OptionError, match="leave it out"):
        catalog(output.root, delta=True, catalog="x")
    monkeypatch.setattr(follower, "_LIBRARIES", {"delta": ("no_such_library",)})
    with pytest.raises(DependencyError, match=r"pip install 'penstock\[delta\]'"):
        catalog(output.root, delta=True)
    assert not list(output.root.iterdir())


def test_a_catalogue_of_the_users(output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue given as an object, and one given by its address."""
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install 'penstock[iceberg]')")
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - optional

    Writer(output).publish([(1, "a")])
    given = load_catalog("mine", type="sql", uri=f"sqlite:///{tmp_path}/mine.db", warehouse=str(tmp_path / "tables"))
    assert catalog(output.root, iceberg=TABLE, catalog=given).files == 1
    assert catalog(output.root, iceberg=TABLE, catalog=f"sqlite:///{tmp_path}/other.db").files == 1
    assert given.load_table(TABLE).scan().to_arrow().num_rows == 1
    assert not (output.root / "_iceberg").exists()


@pytest.mark.slow
def test_a_catalogue_of_pyicebergs_configuration(output: Output, tmp_path: Path) -> None:
    """A catalogue named in pyiceberg's configuration is found by its name; here the environment configures it."""
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install 'penstock[iceberg]')")
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - optional

    Writer(output).publish([(1, "a")])
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/mine.db", "warehouse": str(tmp_path / "tables")}
    configured = {f"PYICEBERG_CATALOG__MINE__{name.upper()}": value for name, value in settings.items()}
    command = ["-m", "penstock", "catalog", output.root, "--iceberg", TABLE, "--catalog", "mine", "--json"]
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=os.environ | configured, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 1
    assert load_catalog("mine", **settings).load_table(TABLE).scan().to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("kind", "values", "bounds"),
    [
        (pa.int64(), [3, None, -2], (-2, 3)),
        (pa.date32(), [date(2026, 1, 2)], ("2026-01-02", "2026-01-02")),
        (pa.string(), ["b", "a"], ("a", "b")),
        (pa.string(), ["x" * 65], None),
        (pa.float64(), [1.0, float("nan")], None),
        (pa.bool_(), [True], None),
        (pa.int64(), [None], None),
        (
            pa.timestamp("us", "UTC"),
            [datetime(2026, 1, 1, 0, 0, 0, 1500, timezone.utc)],
            ("2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z"),
        ),
        (pa.timestamp("us"), [datetime(9999, 12, 31, 23, 59, 59, 999999)], None),
    ],
)
def test_bounds_are_exact_or_not_there(kind: pa.DataType, values: list[Any], bounds: tuple[Any, Any] | None) -> None:
    """The bounds by which Delta's readers skip files are rounded outwards, over all row groups; none if Parquet's bounds are incomplete."""
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": pa.array(values, kind)}), written, row_group_size=1)
    footer = pq.read_metadata(pa.BufferReader(written.getvalue()))
    told = column_statistics(footer, pa.schema([("v", kind)]))
    assert (told["minValues"], told["maxValues"]) == (({"v": bounds[0]}, {"v": bounds[1]}) if bounds else ({}, {}))
    assert told["nullCount"] == {"v": values.count(None)}
    assert told["numRecords"] == len(values)
