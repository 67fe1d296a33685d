"""Tests of the soak: its random choices follow from a seed, and its reader finds the faults that it is there to find."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import use
from penstock.db.sink import DatabaseSink
from penstock.errors import CommitError
from penstock.formats import families, scalars
from penstock.formats.csv.encoder import CsvEncoder
from penstock.formats.json import quick
from penstock.formats.scalars import joined
from penstock.query.order import Standing
from penstock.sink import tableparts
from penstock.testing import FakeClock
from tests.soak import pairfiles, pairs, reads, tables, texts, writes
from tests.soak import rows as rows_module
from tests.soak.reader import Reader
from tests.soak.records import Records
from tests.soak.scripts import script
from tests.soak.settings import Settings, start_of
from tests.soak.settings import settings as settings_of
from tests.support.extras import WITH_AVRO

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

LINES = Settings("ingest", Records(7, "text", "text"), {"format": "text"})


def rows(file: int) -> str:
    """Return the contents of an output file with the records of an input file."""
    return LINES.records.contents(file).decode()


@pytest.mark.slow
def test_same_seed_same_script_same_states() -> None:
    """A script drawn and explored twice with one seed is the same and reaches the same states."""
    reports = [script(5).explore(1000) for _ in range(2)]
    assert script(5) == script(5) != script(6)
    assert reports[0] == reports[1]
    assert reports[0].states >= 1000


def test_same_seed_same_round() -> None:
    """Options and data of a round follow from its seed alone."""
    assert all(settings_of(seed) == settings_of(seed) for seed in range(50))
    assert len({str(settings_of(seed)) for seed in range(50)}) > 30
    assert start_of(settings_of(1), 2) == start_of(settings_of(1), 2) != start_of(settings_of(1), 3)
    assert settings_of(1).records.contents(3) == settings_of(1).records.contents(3)


@pytest.mark.slow
@given(st.integers(0, 1 << 40))
def test_texts_are_read_as_python_reads_them(seed: int) -> None:
    """Files in any encoding, cut in any way, compared with Python's codecs, `csv` and `json` on whole files; the soak takes hours."""
    with tempfile.TemporaryDirectory() as directory:
        texts.Case(seed).run(Path(directory))


def test_same_seed_same_text() -> None:
    """A case follows from its seed alone, and the cases cover every choice."""
    assert str(texts.Case(3)) == str(texts.Case(3)) != str(texts.Case(4))
    cases = [texts.Case(seed) for seed in range(300)]
    assert {case.format for case in cases} == {"text", "json", "csv"}
    assert len({case.encoding for case in cases}) > 40
    assert any(case.binary for case in cases)
    assert any(case.dirty for case in cases)


@pytest.mark.slow
def test_texts_see_a_reader_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first cases exposes a reader that looks for its separator in bytes, regardless of characters."""
    monkeypatch.setattr(families.RecordFormat, "in_bytes", lambda _, fmt: True)
    for seed in range(200):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            texts.Case(seed).run(directory)
        except Exception:  # noqa: BLE001 - any is one
            return
    pytest.fail("none has seen it")


def test_same_seed_same_reads() -> None:
    """A case of reads follows from its seed alone, and the cases cover every choice."""
    assert reads.Case(3).records == reads.Case(3).records != reads.Case(4).records
    cases = [reads.Case(seed) for seed in range(60)]
    assert {case.format for case in cases} == {"json", "csv", "parquet"}
    assert len({case.schema for case in cases}) > 6


def test_reads_see_a_reader_that_is_wrong(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that our reader passes exposes a reader that rounds decimals as Arrow does, some of them wrongly."""
    session = spark.newSession()
    case = next(case for case in map(reads.Case, range(100)) if "decimal(38,2)" in case.schema)
    (tmp_path / "ours").mkdir()
    case.run(tmp_path / "ours", session)
    for module in (scalars, quick):
        monkeypatch.setattr(module, "rounded", lambda values, scale: pc.round(values, scale, "half_towards_infinity"))
    (tmp_path / "wrong").mkdir()
    with pytest.raises(AssertionError, match="9223372036797685899.3"):
        case.run(tmp_path / "wrong", session)


def test_same_seed_same_pairs() -> None:
    """A case of pairs follows from its seed alone, and the cases have every value of every option, most of them with every other."""
    assert str(pairs.Case(3)) == str(pairs.Case(3)) != str(pairs.Case(4))
    cases = [pairs.Case(seed).chosen for seed in range(600)]
    values = {(name, value) for case in cases for name, value in case.items()}
    tables = {"source.": pairs._SOURCE, "sink.": pairs._SINK, "": pairs._OTHERS}
    drawn = {(f"{side}{name}", value) for side, table in tables.items() for name, of in table.items() for value in of}
    assert {(name, value) for name, value in drawn if value is not None} <= values
    together = {frozenset(pair) for case in cases for pair in combinations(case.items(), 2)}
    assert len(together) > 14_000


def test_same_seed_same_table() -> None:
    """A case of tables follows from its seed alone, and the cases cover every choice."""
    assert str(tables.Case(3)) == str(tables.Case(3)) != str(tables.Case(4))
    cases = [tables.Case(seed) for seed in range(100)]
    drawn = {(case.format, case.mode, case.quarantines) for case in cases}
    assert len(drawn) == 2 * (1 + 2 * 2)
    assert len({kind for case in cases for kind in case.schema.types}) == 12


def test_tables_see_a_batch_that_is_applied_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that passes exposes a sink that takes a repeated batch for the next one."""
    case = next(case for case in map(tables.Case, range(100)) if (case.format, case.mode) == ("sqlite", "append"))
    (tmp_path / "right").mkdir()
    with use(FakeClock()):
        tables.Case(case.seed).run(tmp_path / "right", None)
        monkeypatch.setattr(DatabaseSink, "_place", lambda *_: Standing.NEXT)
        with pytest.raises(AssertionError, match="too many Counter"):
            tables.Case(case.seed).run(tmp_path, None)


@pytest.mark.slow
def test_options_in_pairs(tmp_path: Path) -> None:
    """Four cases with everything but kills; the soak runs them by the hundred."""
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        pairs.Case(seed).run(tmp_path / str(seed), None)


def test_pairs_see_a_row_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of which the case knows a row more than the ingest reads."""
    content = pairfiles.Files._content
    less = lambda files, made, **how: content(files, replace(made, rows=made.rows[1:]), **how)  # noqa: E731
    monkeypatch.setattr(pairfiles.Files, "_content", less)
    case = next(case for case in map(pairs.Case, range(100)) if case.format == "parquet")
    with pytest.raises(AssertionError, match="missing Counter"):
        case.run(tmp_path, None)


def test_same_seed_same_writes() -> None:
    """A case of writes follows from its seed alone, and the cases cover every choice."""
    assert str(writes.Case(3)) == str(writes.Case(3)) != str(writes.Case(4))
    cases = [writes.Case(seed) for seed in range(100)]
    assert {case.format for case in cases} == {"text", "json", "csv", "parquet", "orc"}
    assert len({case.zone for case in cases}) > 3
    assert any(case.by for case in cases)
    assert any(case.dirty for case in cases)


def test_writes_see_a_sink_that_is_wrong(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that our sink passes exposes a sink that does not escape quotes in CSV values."""
    session = spark.newSession()
    for name, value in writes.SPARK_CONFIGURATION.items():
        session.conf.set(name, value)
    cases = (case for case in map(writes.Case, range(200)) if case.format == "csv" and not case.dirty)
    case = next(case for case in cases if '5" x' in str(case.table.to_pylist()))
    (tmp_path / "ours").mkdir()
    case.run(tmp_path / "ours", session)
    monkeypatch.setattr(
        CsvEncoder, "_in_quotes", lambda self, text: joined(self._dialect.quote, text, self._dialect.quote)
    )
    (tmp_path / "wrong").mkdir()
    with pytest.raises(AssertionError, match="(?s)case [0-9]+: csv.*\nours  .*\nSpark's "):
        case.run(tmp_path / "wrong", session)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 1 << 40))
def test_rows_are_read_by_others_as_they_were_written(seed: int) -> None:
    """Any type, in any way in which a part is written, is read by Arrow, DuckDB, polars or Python; in the soak also by Spark."""
    with tempfile.TemporaryDirectory() as directory:
        rows_module.Case(seed).run(Path(directory))


@pytest.mark.slow
def test_same_seed_same_rows() -> None:
    """A case of rows follows from its seed alone, and the cases cover every choice."""
    assert str(rows_module.Case(3)) == str(rows_module.Case(3)) != str(rows_module.Case(4))
    cases = [rows_module.Case(seed) for seed in range(100)]
    assert {case.format for case in cases} == {"text", "json", "csv", "parquet", "orc", *WITH_AVRO}
    assert {case.compression for case in cases} == {"none", "gzip", "zstd", "snappy"}
    assert all(sum(case.expected.values()) == case.count for case in cases)


def test_rows_see_a_sink_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first cases exposes a sink that leaves out the last row of what it assembles."""
    copied = tableparts.read_batches
    monkeypatch.setattr(
        tableparts, "read_batches", lambda *given: (batch.slice(0, batch.num_rows - 1) for batch in copied(*given))
    )
    for seed in range(20):
        case = rows_module.Case(seed)
        if case.format == "parquet":
            try:
                case.run(tmp_path / str(seed))
            except (AssertionError, CommitError):  # the ledger may count before a reader does
                return
    pytest.fail("none has seen it")


@pytest.mark.parametrize("form", ["text", "json", "csv", "parquet"])
def test_records_are_read_as_they_were_made(form: str) -> None:
    """Input records are read back from an output of the same format, also compressed, with every odd value."""
    for packed in (False, True):
        records = Records(3, form, form, packed)
        expected = [records.row(name) for name in records.ids(1)]
        assert len(expected) > 100
        assert records.read(records.name(1), records.contents(1)) == expected


FAULTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "doubled": ("is there 2 times", lambda out: (out / "b").write_text(rows(0))),
    "torn": ("in the middle of a record", lambda out: (out / "b").write_text(rows(2)[:-1])),
    "foreign": ("expected", lambda out: (out / "b").write_text("000009-0001\t1\tnever made\n")),
    "vanished": ("is gone", lambda out: (out / "a").unlink()),
    "changed": ("a was", lambda out: os.utime(out / "a", (1, 1))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_reader_sees(tmp_path: Path, fault: str) -> None:
    """A record twice, in part or never made, a file that disappears or changes: the reader reports these, and nothing before them."""
    said, break_it = FAULTS[fault]
    (tmp_path / "_penstock").mkdir()
    (tmp_path / "_penstock" / "hidden").write_text("nothing to look at")
    (tmp_path / "a").write_text(rows(0))
    reader = Reader(tmp_path, LINES)
    reader.poll()
    assert (reader.wrong, reader.ids) == ([], set(LINES.records.ids(0)))
    break_it(tmp_path)
    reader.poll()
    assert said in reader.wrong[0]
