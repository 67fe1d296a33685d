"""The benchmark harness: its arithmetic, its input and its report are right, and it runs from end to end.

No test asserts a time: `make bench` says what is fast.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.json as arrow_json
import pyarrow.parquet as pq
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.alone import halves
from benchmarks.cases import CASES
from benchmarks.data import COLUMNS, LONG_AGO, DataSet, Recipe, backlog, made, schema
from benchmarks.figures import Figure, Series, shown, spread
from benchmarks.logs import repeated
from benchmarks.measure import Bench, Contender
from benchmarks.memory import Watch
from benchmarks.output import Same, WrongResult, expect, rows
from benchmarks.profiling import share_of
from benchmarks.report import Report, Taken, draw, drawn, markdown, speeds, table
from benchmarks.room import REPOSITORY, ContenderFailed, Room, environment, worker
from benchmarks.shapes import SHAPES
from benchmarks.works import WORKS
from penstock.formats.schema import to_arrow
from penstock.session import archive

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.slow

OURS = Series("ours", (2.0, 1.0, 3.0))
SPARK = Series("Spark", (4.0, 3.0, 9.0))


def digest(data: DataSet) -> str:
    return hashlib.sha256(b"".join(Path(path).read_bytes() for path in data.paths)).hexdigest()


# -- figures ---------------------------------------------------------------------------------------------------------


def test_median_and_spread_are_of_all_values() -> None:
    """A series is described by its median, minimum and maximum, in whatever order the values came."""
    assert (OURS.median, OURS.spread) == (2.0, (1.0, 3.0))


def test_ratio_is_of_medians_and_its_spread_of_neighbours() -> None:
    """The ratio compares medians; its spread compares only values that were measured side by side."""
    figure = Figure("case", "what", OURS, SPARK)
    assert figure.ratio == 2
    assert figure.ratio_spread == (2, 3)


def test_ratio_spread_where_one_side_ran_once() -> None:
    """A slow contender that ran once is compared with every run of the other."""
    figure = Figure("case", "what", OURS, Series("Spark", (6.0,)))
    assert figure.ratio_spread == (2, 6)


@pytest.mark.parametrize(
    ("figure", "passed"),
    [
        (Figure("c", "w", OURS, SPARK, "faster", 2), True),
        (Figure("c", "w", OURS, SPARK, "faster", 2.1), False),
        (Figure("c", "w", OURS, SPARK, "longer", 0.5), True),
        (Figure("c", "w", OURS, SPARK, "longer", 0.4), False),
        (Figure("c", "w", OURS, None, "below", 3), False),
        (Figure("c", "w", OURS, None, "below", 3.1), True),
        (Figure("c", "w", OURS, SPARK), None),
    ],
)
def test_verdict_follows_the_rule(figure: Figure, passed: bool | None) -> None:
    """Faster: at least the limit; longer: at most; below: less, even at its worst; without a rule there is no verdict."""
    assert figure.passed is passed


def test_plot_shows_as_long_as_as_fast() -> None:
    """One axis for both rules: 1.25 times as long becomes 0.8 times as fast, and its spread is inverted."""
    figure = Figure("c", "w", SPARK, OURS, "longer", 1.25)
    assert speeds(figure) == (0.5, 1 / 3, 0.5, 0.8)


def test_figure_survives_json() -> None:
    """A figure read back from JSON equals the one that was written."""
    for figure in (Figure("c", "w", OURS, SPARK, "longer", 1.2, {"input": "x"}), Figure("c", "w", OURS, rule="below")):
        assert Figure.from_json(json.loads(json.dumps(figure.to_json()))) == figure


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(3.906, "s", "3.91 s"), (39.06, "s", "39.1 s"), (1234.5, "ms", "1,234 ms"), (2310, "bytes", "2,310 bytes")],
)
def test_values_are_shown_with_three_digits(value: float, unit: str, text: str) -> None:
    """A value has its unit and only significant digits."""
    assert shown(value, unit) == text


def test_spread_of_one_value_is_that_value() -> None:
    """A single measurement has no range."""
    assert spread(Series("x", (1.5,))) == "1.50"
    assert spread(OURS) == "1.00-3.00"


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_same_seed_gives_the_same_bytes(tmp_path: Path, form: str) -> None:
    """Two machines with the same seed have the same input; another seed makes a different one."""
    one = made(Recipe(form, 20_000, 3), tmp_path / "one")
    assert digest(made(Recipe(form, 20_000, 3), tmp_path / "two")) == digest(one)
    assert digest(made(Recipe(form, 20_000, 3, seed=1), tmp_path / "two")) != digest(one)


def test_data_is_kept_between_runs(tmp_path: Path) -> None:
    """The second call finds the files of the first, with their old times."""
    first = made(Recipe("text", 5_000, 2), tmp_path)
    before = [os.stat(path).st_ino for path in first.paths]
    again = made(Recipe("text", 5_000, 2), tmp_path)
    assert again == first
    assert [os.stat(path).st_ino for path in again.paths] == before
    assert {os.stat(path).st_mtime for path in again.paths} == {LONG_AGO}


def test_data_that_lost_a_file_is_refused(tmp_path: Path) -> None:
    """A data set with a missing file is not measured."""
    Path(made(Recipe("text", 5_000, 2), tmp_path).paths[0]).unlink()
    with pytest.raises(FileNotFoundError, match="expected 2"):
        made(Recipe("text", 5_000, 2), tmp_path)


def test_json_records_are_what_the_schema_says(tmp_path: Path) -> None:
    """Every line is an object with exactly the columns, and the number of rows equals that of the lines."""
    data = made(Recipe("json", 300_000, 2), tmp_path)
    records = [json.loads(line) for path in data.paths for line in Path(path).read_text().splitlines()]
    assert len(records) == data.rows
    assert all(list(record) == list(COLUMNS) for record in records)
    assert [record["id"] for record in records] == list(range(data.rows))
    assert any('"' in record["msg"] for record in records)


@pytest.mark.parametrize("form", SHAPES)
def test_shapes_have_their_columns(tmp_path: Path, form: str) -> None:
    """Another parser reads each shape by its schema, without an unknown key; a seed gives the same bytes."""
    data = made(Recipe(form, 200_000, 1), tmp_path / "one")
    assert digest(made(Recipe(form, 200_000, 1), tmp_path / "two")) == digest(data)
    how = arrow_json.ParseOptions(to_arrow(schema(form)), unexpected_field_behavior="error")
    table = arrow_json.read_json(data.paths[0], arrow_json.ReadOptions(block_size=1 << 20), how)
    assert table.num_rows == data.rows
    assert all(column.null_count < data.rows for column in table.columns)


def test_csv_records_are_rfc_4180(tmp_path: Path) -> None:
    """Each file has a header and rows with the same number of fields, some of them quoted with quotes inside."""
    data = made(Recipe("csv", 300_000, 2), tmp_path)
    tables = [list(csv.reader(io.StringIO(Path(path).read_text()), strict=True)) for path in data.paths]
    assert all(table[0] == list(COLUMNS) for table in tables)
    assert sum(len(table) - 1 for table in tables) == data.rows
    assert {len(row) for table in tables for row in table} == {len(COLUMNS)}
    assert any('"' in row[-1] for table in tables for row in table)


def test_backlog_is_spread_over_time(tmp_path: Path) -> None:
    """The finished files have modification times that increase evenly up to the end."""
    assert backlog(tmp_path / "in", 4, end=1000, seconds=400) == 4
    times = [path.stat().st_mtime for path in sorted((tmp_path / "in").iterdir())]
    assert times == [600, 700, 800, 900]


@pytest.mark.parametrize(
    ("sizes", "cuts"), [([10, 10], (10, 10)), ([30, 10], (20, 20)), ([1, 2, 30], (16, 17)), ([1], (0, 1))]
)
def test_two_processes_share_the_bytes(sizes: list[int], cuts: tuple[int, int]) -> None:
    """Both get half of the bytes, in adjacent ranges, each byte once."""
    parts = halves({str(number): size for number, size in enumerate(sizes)})
    assert tuple(sum(end - start for _, start, end in part) for part in parts) == cuts
    seen = sorted((path, byte) for part in parts for path, start, end in part for byte in range(start, end))
    assert seen == [(str(number), byte) for number, size in enumerate(sizes) for byte in range(size)]


# -- output ----------------------------------------------------------------------------------------------------------


def test_only_visible_rows_count(tmp_path: Path) -> None:
    """State, staged and hidden files are not output, wherever they are."""
    for name in ("a/part", "_penstock/s/staging/x", "a/.part.crc", "a/_SUCCESS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n2\n")
    assert rows(str(tmp_path), "text") == 2


def test_lost_rows_are_an_error(tmp_path: Path) -> None:
    """An output with too few or too many rows fails its case."""
    (tmp_path / "part").write_text("1\n2\n")
    expect(str(tmp_path), "text", 2)
    for wrong in (1, 3):
        with pytest.raises(WrongResult, match=f"expected {wrong}"):
            expect(str(tmp_path), "text", wrong)


def test_values_that_became_null_are_an_error(tmp_path: Path) -> None:
    """A reader must not win by turning values that it cannot parse into nulls."""
    pq.write_table(pa.table({"a": [1, None]}), tmp_path / "part.parquet")
    with pytest.raises(WrongResult, match="nulls in a"):
        rows(str(tmp_path), "parquet")


def test_outputs_that_differ_in_a_value_are_an_error(tmp_path: Path) -> None:
    """The comparison of two outputs ignores order and files, but not a different value or a doubled row."""
    outputs = {"first": [1, 2, 2], "other order": [2, 1, 2], "value": [1, 2, 3], "row": [1, 2, 2, 2]}
    same = Same(3)
    for name, values in outputs.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"a": [{"b": value} for value in values]}), tmp_path / name / "part.parquet")
    same(tmp_path / "first")
    same(tmp_path / "other order")
    for name in ("value", "row"):
        with pytest.raises(WrongResult, match="like"):
            same(tmp_path / name)


# -- taking turns ----------------------------------------------------------------------------------------------------


def bench(tmp_path: Path, *, repeat: int = 2) -> Bench:
    return Bench(Room(tmp_path), 1, repeat, slow=False, tell=lambda _: None)


def test_contenders_take_turns(tmp_path: Path) -> None:
    """A B A B; the first round does not count; each finds no output of the other; a slow contender runs only as often as allowed."""
    seen: list[str] = []

    def contender(label: str, runs: int | None = None) -> Contender:
        def run(output: Path) -> float:
            assert not output.exists()
            output.mkdir()
            seen.append(label)
            return float(len(seen))

        return Contender(label, run, lambda output: None if output.is_dir() else pytest.fail("nothing to check"), runs)

    series = bench(tmp_path).alternate([contender("a"), contender("b"), contender("c", 1)])
    assert seen == ["a", "b", "a", "b", "c", "a", "b"]
    assert [s.values for s in series] == [(3.0, 6.0), (4.0, 7.0), (5.0,)]


def test_wrong_output_ends_the_case(tmp_path: Path) -> None:
    """A contender whose output is wrong gets no figure, however fast it was."""

    def check(output: Path) -> None:
        expect(str(output), "text", 1)

    with pytest.raises(WrongResult):
        bench(tmp_path).alternate([Contender("a", lambda _: 0.1, check)])


def test_environment_of_contenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's settings for Spark or Penstock reach no contender; only one of them skips syncs."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere")
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "x")
    room = Room(tmp_path)
    ours, spark = environment("ingest", room), environment("spark", room)
    assert not {"PYSPARK_PYTHON", "PENSTOCK_FAILPOINTS"} & set(ours)
    assert spark["PYSPARK_PYTHON"] == sys.executable
    assert "nosync" not in ours["PYTHONPATH"]
    assert environment("ingest", room, syncs=False)["PYTHONPATH"].split(os.pathsep)[0].endswith("/nosync")
    assert ours["XDG_CACHE_HOME"] != environment("ingest", room, archive=False)["XDG_CACHE_HOME"]


def test_syncs_are_left_out_and_counted(tmp_path: Path) -> None:
    """A Python in that environment syncs nothing, and counts the syncs that it skips."""
    room = Room(tmp_path)
    code = "import os; fd = os.open('f', os.O_CREAT | os.O_RDWR); os.fsync(fd); os.fdatasync(fd); os.fsync(-1)"
    subprocess.run([sys.executable, "-c", code], env=environment("ingest", room, syncs=False), cwd=tmp_path, check=True)
    assert room.skipped_syncs.read_bytes() == b"..."


def test_parse_and_write_alone(tmp_path: Path) -> None:
    """Two plain processes together write every record; an error in one is reported with its traceback."""
    data = made(Recipe("json", 50_000, 3), tmp_path / "data")
    (tmp_path / "out").mkdir()
    ranges = halves({path: Path(path).stat().st_size for path in data.paths})
    with worker("bare", Room(tmp_path)) as plain:
        for number, half in enumerate(ranges):
            plain.ask(op="alone", form="json", ranges=half, target=str(tmp_path / f"out/{number}.parquet"))
        with pytest.raises(ContenderFailed, match="FileNotFoundError"):
            plain.ask(op="alone", form="json", ranges=[], target=str(tmp_path / "nowhere/x"))
    assert rows(str(tmp_path / "out"), "parquet") == data.rows


def test_parse_and_write_alone_by_a_column(tmp_path: Path) -> None:
    """Each value has a directory with a file of its rows, and every row is in one of them; also from Parquet."""
    data = made(Recipe("json", 50_000, 1), tmp_path / "data")
    table = pl.read_ndjson(data.paths[0]).with_columns(pl.col("ts").str.to_datetime(time_zone="UTC"))
    table.write_parquet(tmp_path / "in.parquet", row_group_size=100)
    with worker("bare", Room(tmp_path)) as plain:
        for form, path in (("json", data.paths[0]), ("parquet", str(tmp_path / "in.parquet"))):
            output = tmp_path / form
            output.mkdir()
            whole = [(path, 0, Path(path).stat().st_size)]
            plain.ask(op="alone", form=form, ranges=whole, target=f"{output}/part.parquet", partition="country")
            counted = {path.parent.name: pl.read_parquet(path, hive_partitioning=False) for path in output.glob("*/*")}
            wanted = dict(table.group_by("country").len().iter_rows())
            assert {name: len(part) for name, part in counted.items()} == {f"country={c}": n for c, n in wanted.items()}
            assert {tuple(part.columns) for part in counted.values()} == {("id", "ts", "user", "score", "msg")}


def test_death_of_a_contender_is_reported(tmp_path: Path) -> None:
    """A process that ends without an answer is a failure that says so, and does not hang."""
    with worker("bare", Room(tmp_path)) as plain:
        os.kill(plain.pid, 9)
        with pytest.raises(ContenderFailed, match="no answer"):
            plain.ask(op="alone", form="json", ranges=[], target="x")


@pytest.mark.parametrize(
    "what", ["json-parquet", *(pytest.param(what, marks=pytest.mark.soak) for what in ("text-text", "plain-text"))]
)
def test_profile_sees_the_whole_batch(tmp_path: Path, what: str) -> None:
    """Source and sink run without Spark, to a finished file with every row, and the shares have names."""
    form, to = ("json", "parquet") if what == "json-parquet" else ("text", "text")
    data = made(Recipe(form, 50_000, 2), tmp_path / "data")
    with worker("bare", Room(tmp_path)) as plain:
        answer = plain.ask(op="profile", what=what, directory=data.directory, target=str(tmp_path / "out"))
    assert answer["bytes"] == data.size
    assert rows(str(tmp_path / "out/profiled"), to) == data.rows
    assert len(answer["shares"]) > 3


@pytest.mark.parametrize(
    ("file", "name", "share"),
    [
        ("~", "<built-in method posix.pread>", "reading files"),
        ("~", "<built-in method posix.write>", "writing files"),
        ("~", "<method 'acquire' of '_thread.lock' objects>", "waiting for syncs"),
        ("~", "<method 'update' of 'xxhash.xxh3_128' objects>", "digests of what is written"),
        ("~", "<method 'collect' of 'builtins.PyLazyFrame' objects>", "parsing JSON (polars)"),
        ("/x/src/penstock/formats/json/dense.py", "has_half", "checking that polars read it right"),
        ("/x/site-packages/pyarrow/compute.py", "wrapper", "lines to rows and back"),
        ("/x/src/penstock/formats/groups.py", "_flush", "encoding Parquet"),
        ("/x/src/penstock/formats/lines.py", "blocks", "finding records in bytes"),
        ("/usr/lib/python3/json/encoder.py", "encode", "everything else"),
    ],
)
def test_functions_count_for_their_share(file: str, name: str, share: str) -> None:
    """Each costly function counts for the share that says what it does."""
    assert share_of(file, name) == share


def test_memory_of_python_children_is_seen(tmp_path: Path) -> None:
    """The peak is that of the largest Python child process, even after it has freed the memory."""
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', "
        "'import time; data = bytearray([1]) * 200_000_000; del data; time.sleep(1)'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as process, Watch(process.pid) as watch:
        process.wait()
    assert watch.processes == 1
    assert watch.peak > 200_000_000 or sys.platform != "linux"


# -- report ----------------------------------------------------------------------------------------------------------


def filled() -> Report:
    report = Report(1, "python -m benchmarks", {"machine": "a machine"})
    figures = [
        Figure("text-text", "text | warm", OURS, SPARK, "faster", 2),
        Figure("text-text", "size", OURS, rule="below", limit=1),
    ]
    report.cases["text-text"] = Taken("2026-01-01T00:00:00+00:00", "abc1234", 2.5, figures)
    report.cases["syncs"] = Taken(
        "2026-01-01T00:00:00+00:00", "abc1234", 0.1, [], "Traceback\nWrongResult: 1 row, expected 2"
    )
    report.profiles["text-text"] = {
        "date": "",
        "commit": "c",
        "bytes": 10**6,
        "seconds": 2.0,
        "shares": [["parsing", 3.0], ["rest", 1.0]],
    }
    return report


def test_page_says_what_was_measured() -> None:
    """The page has each figure with its verdict, failures with reasons, a busy machine, and the shares of the profile."""
    page = markdown(filled())
    assert "2.00 s (1.00-3.00) | Spark | 4.00 s (3.00-9.00) | 2.00 x as fast | ≥ 2 x | pass" in page
    assert "**miss**" in page
    assert "- syncs **failed**: `WrongResult: 1 row, expected 2`" in page
    assert "- text-text: the machine was busy when it began (2.5 cores)" in page
    assert "| parsing | 75% |" in page
    assert all(name in page for name in CASES)
    assert set(WORKS) <= set(CASES)


def test_page_without_figures_says_so() -> None:
    """Before the first run the page states no figures."""
    assert "There are no figures yet" in markdown(Report(1))


def test_report_keeps_the_cases_of_other_runs(tmp_path: Path) -> None:
    """A saved report is read back with its cases; a run of another scale does not see them."""
    filled().save(tmp_path)
    assert Report.load(tmp_path, 1) == filled()
    assert Report.load(tmp_path, 0.5).cases == {}


def test_a_log_is_repeated_as_it_is(tmp_path: Path) -> None:
    """A log keeps its line ends in every repetition, gets one where a line would go on in the next, and is made once."""
    (tmp_path / "a.log").write_bytes(b"one\r\ntwo\rthree")
    data = repeated(tmp_path / "a.log", 100, tmp_path)
    lines = [Path(path).read_bytes() for path in data.paths]
    assert set(lines) == {b"one\r\ntwo\rthree\n" * 2}
    assert (data.rows, data.size) == (6 * len(lines), sum(map(len, lines)))
    assert data.size >= 100
    made_at = [os.stat(path).st_ctime_ns for path in data.paths]
    assert repeated(tmp_path / "a.log", 100, tmp_path) == data
    assert made_at == [os.stat(path).st_ctime_ns for path in data.paths]


def test_plot_is_drawn_of_what_was_asked(tmp_path: Path) -> None:
    """The plot shows comparisons with a limit, and is identical for identical figures."""
    pytest.importorskip("matplotlib")
    report = filled()
    assert [figure.what for figure in drawn(report)] == ["text | warm"]
    for name in ("a.svg", "b.svg"):
        draw(report, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_table_for_the_screen() -> None:
    """The table printed during a run has a line for each figure."""
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(filled().cases["text-text"].figures))
    assert console.export_text().count("2.00 s (1.00-3.00)") == 2


# -- the whole -------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    path = os.pathsep.join([str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["text-txt"], "text-text"), (["--repeat", "1"], "at least 3"), (["--repeat", "0"], "repeat")],
)
def test_usage_errors_are_explained(arguments: list[str], said: str) -> None:
    """An unknown case is refused with the nearest name; a median of fewer than 3 runs is refused for a report."""
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.soak  # a session for each of its contenders
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("syncs", ["text to text with syncs against without"]),
        ("json-parquet-warm", ["JSON to Parquet, warm session", "the same against parse + write alone"]),
        ("parquet-parquet", ["Parquet to Parquet", "Parquet to Parquet: parse + write alone"]),
        (
            "bucketed",
            ["JSON to Parquet by a column", "JSON to Parquet by a column: parse + write alone"],
        ),
        ("tiny-batch", ["one line a trigger, readStream and writeStream", "one line a trigger, penstock.ingest"]),
    ],
)
def test_a_case_end_to_end(tmp_path: Path, case: str, said: list[str]) -> None:
    """All contenders start, take turns and produce the right rows, and the report says so; no output is left behind."""
    made = Path(archive.location())
    if made.is_file():  # making another one takes as long as everything else
        cache = tmp_path / "data/cache/penstock"
        cache.mkdir(parents=True, mode=0o700)
        (cache / made.name).symlink_to(made)
    places = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    done = run(case, "--scale", "0.001", "--repeat", "1", *places)
    assert done.returncode == 0, done.stdout + done.stderr
    report = Report.load(tmp_path / "out", 0.001)
    assert {name: (len(taken.figures), taken.failed) for name, taken in report.cases.items()} == {
        case: (len(said), None),
    }
    page = (tmp_path / "out/benchmarks.md").read_text()
    assert all(f"| {what} |" in page for what in said)
    assert "these ratios mean nothing" in page
    assert (tmp_path / "out/benchmarks.svg").is_file() == any(figure.limit for figure in report.cases[case].figures)
    left = [path.name for path in (tmp_path / "data/work").iterdir()]
    assert [name for name in left if name.startswith("out")] == []
