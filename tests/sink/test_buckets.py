"""Where rows go: templates, escaping, times and zones."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TemplateError
from penstock.sink import fields
from penstock.sink.buckets import DEFAULT_PARTITION, BucketTemplate, escape, unescape
from penstock.sink.names import UNFINISHED, NameTemplate
from penstock.source.scan import Scan
from tests.support.output import Output

UTC = dt.timezone.utc


def buckets(template: str, column: pa.Array, *, zone: str = "UTC", time_ns: int = 0) -> dict[str, list[int]]:
    """Return bucket -> row numbers, for a column `c` of values."""
    batch = pa.RecordBatch.from_arrays([column, pa.array(range(len(column)))], names=["c", "row"])
    made = BucketTemplate.of(template, batch.schema, zone=zone)
    return {bucket: rows.column("row").to_pylist() for bucket, rows in made.split(batch, time_ns)}


def test_rows_are_grouped_in_their_order() -> None:
    """Each bucket gets its rows, in the order in which they came."""
    assert buckets("c={c}", pa.array(["a", "b", "a", "c", "b"])) == {"c=a": [0, 2], "c=b": [1, 4], "c=c": [3]}


@given(values=st.lists(st.integers(0, 400), min_size=1, max_size=600))
def test_rows_of_many_buckets_are_grouped_in_their_order(values: list[int]) -> None:
    """However many values there are, also more than 16 bits count, each bucket gets its rows, in the order in which they came."""
    expected: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        expected.setdefault(f"c={value}", []).append(row)
    assert buckets("c={c}", pa.array(values)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "_SHORT", 1)
        assert buckets("c={c}", pa.array(values)) == expected


def test_several_fields() -> None:
    """A template over two columns makes a bucket of each combination that occurs, and only those."""
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "y", "x", "y"]), pa.array([1, 1, 2, 1])], names=["a", "b"])
    made = BucketTemplate.of("a={a}/b={b}", batch.schema, zone="UTC")
    assert {b: r.num_rows for b, r in made.split(batch, 0)} == {"a=x/b=1": 1, "a=y/b=1": 2, "a=x/b=2": 1}


def test_combinations_of_many_values_do_not_meet() -> None:
    """Rows are kept apart even if there are more combinations of values than a 64-bit number can count."""
    same, other = 5, 5 + 4096  # 2^12 * (2^13)^4 is 2^64
    columns = [pa.array([*range(8192), value]) for value in (other, same, same, same, same)]
    batch = pa.RecordBatch.from_arrays(columns, names=list("abcde"))
    made = BucketTemplate.of("{a}/{b}/{c}/{d}/{e}", batch.schema, zone="UTC")
    found = {bucket: rows.num_rows for bucket, rows in made.split(batch, 0)}
    assert (len(found), found["5/5/5/5/5"], found["4101/5/5/5/5"]) == (8193, 1, 1)


def test_null_and_empty_go_to_the_default_partition() -> None:
    """S22: null, and the empty string as in Spark, go to __HIVE_DEFAULT_PARTITION__."""
    assert buckets("c={c}", pa.array([None, "a", ""])) == {f"c={DEFAULT_PARTITION}": [0, 2], "c=a": [1]}
    assert buckets("{c}", pa.array([None, None], pa.string())) == {DEFAULT_PARTITION: [0, 1]}
    assert buckets("{c:%Y}", pa.array([None, 0], pa.timestamp("us", "UTC"))) == {DEFAULT_PARTITION: [0], "1970": [1]}


@pytest.mark.parametrize(
    ("template", "zone", "expected"),
    [
        ("dt={c:%Y-%m-%d}", "UTC", {"dt=2026-03-29": [0, 1], "dt=2026-03-30": [2]}),
        ("dt={c:%Y-%m-%d}", "Europe/Berlin", {"dt=2026-03-29": [0, 1], "dt=2026-03-30": [2]}),
        ("dt={c:%Y-%m-%d}", "America/New_York", {"dt=2026-03-28": [0, 1], "dt=2026-03-29": [2]}),
        ("h={c:%H}", "Europe/Berlin", {"h=01": [0], "h=03": [1, 2]}),
        ("m={c:%H%M}", "UTC", {"m=0030": [0], "m=0130": [1], "m=0100": [2]}),
        ("s={c:%H-%M-%S}", "UTC", {"s=00-30-00": [0], "s=01-30-00": [1], "s=01-00-00": [2]}),
    ],
)
def test_times_are_in_the_sinks_zone(template: str, zone: str, expected: dict[str, list[int]]) -> None:
    """F28: an instant belongs to one bucket, in the zone of the sink, also across the change to summer time."""
    times = [
        dt.datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
        dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        dt.datetime(2026, 3, 30, 1, 0, tzinfo=UTC),
    ]
    assert buckets(template, pa.array(times, pa.timestamp("us", tz="UTC")), zone=zone) == expected


@pytest.mark.parametrize(
    ("zone", "spec", "times", "expected"),
    [
        (
            "Europe/Berlin",
            "%Y-%m-%dT%H",
            ["2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:30"],
            ["02", "02", "03"],
        ),
        ("Europe/Berlin", "%Y-%m-%dT%H%M", ["2026-10-25T00:30", "2026-10-25T01:30"], ["0230", "0230"]),
        ("Europe/Berlin", "%Y-%m-%dT%H%z", ["2026-10-25T00:30", "2026-10-25T01:30"], ["02+0200", "02+0100"]),
        ("Australia/Lord_Howe", "%Y-%m-%dT%H", ["2026-04-04T14:45", "2026-04-04T15:15"], ["01", "01"]),
        ("America/Sao_Paulo", "%Y-%m-%d", ["2018-11-04T02:59", "2018-11-04T03:00"], ["2018-11-03", "2018-11-04"]),
        (
            "America/Havana",
            "%Y-%m-%d",
            ["2025-11-02T03:59", "2025-11-02T04:30", "2025-11-02T05:30"],
            ["01", "02", "02"],
        ),
        ("Africa/Cairo", "%Y-%m-%d %H", ["2023-04-27T21:59", "2023-04-27T22:00"], ["27 23", "28 01"]),
        ("America/New_York", "%H%M%S", ["2036-07-01T12:00", "2243-07-01T12:00", "9998-07-01T12:00"], ["080000"] * 3),
        ("Europe/Berlin", "%H%M%S", ["1800-01-01T12:00", "2026-01-01T12:00"], ["125328", "130000"]),
        ("+05:30", "%H%M", ["1800-01-01T12:00", "2026-01-01T12:00", "2243-07-01T12:00"], ["1730"] * 3),
    ],
)
def test_local_times_that_are_there_twice_or_never(zone: str, spec: str, times: list[str], expected: list[str]) -> None:
    """Where clocks go back an hour is there twice, where they go forward a midnight never: each instant has its bucket (F28).

    So has one beyond the years in which a table lists changes: in front of them offsets have seconds, and behind 2037 there is summer, too.
    """
    instants = pa.array(
        [dt.datetime.fromisoformat(time).replace(tzinfo=UTC) for time in times], pa.timestamp("us", "UTC")
    )
    found = buckets(f"{{c:{spec}}}", instants, zone=zone)
    names = [name for row in range(len(times)) for name, rows in found.items() if row in rows]
    assert [name[-len(end) :] for name, end in zip(names, expected, strict=True)] == expected


@pytest.mark.parametrize("offset", ["+05:30", "+5:30", "+0530", "UTC+05:30", "GMT+5:30"])
def test_zone_that_is_an_offset(output: Output, offset: str) -> None:
    """An offset, which Spark takes as its session's zone and a source as its own, also names directories, files and ends of spans."""
    output.schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    named = {"bucketBy": "{ts:%Y-%m-%d %H}/{time:%z}/{ts:%z}", "fileName": "{time:%z}-{seq}", "timeZone": offset}
    sink = output.sink(rollBatches="1", format="csv", **named)
    output.batch(sink, 0, {0: ["2026-01-31T20:00:00Z"]})
    assert list(output.visible()) == ["2026-02-01 01/+0530/+0530/+0530-0.csv"]


def test_zone_of_no_offset_is_utc(output: Output) -> None:
    """However it is written: what is named by it is the same."""
    for zone in ("Z", "+00:00", "UTC+0", "-00:00", "UT"):
        assert output.sink(timeZone=zone).options["timeZone"] == "UTC"


DIRECTIVES = "aAbBcCdDeFfgGhHIjklmMpPrRSTuUVwWxXyYzZ"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata"])
@pytest.mark.parametrize("spec", [f"%{letter}" for letter in DIRECTIVES] + ["%-H", "%_H", "%^p", "%0M"])
def test_every_directive_shows_the_whole_time(spec: str, zone: str) -> None:
    """Rounding times down keeps distinct values few, and removes nothing that the format shows."""
    moment = dt.datetime(2026, 3, 29, 13, 45, 59, 123456, tzinfo=UTC)
    found = buckets(f"x{{c:{spec}}}", pa.array([moment], pa.timestamp("us", "UTC")), zone=zone)
    assert list(found) == ["x" + escape(moment.astimezone(ZoneInfo(zone)).strftime(spec))]


def test_years_have_four_digits() -> None:
    """Years have four digits: 0001-01-01, which data uses for an unknown date, sorts first; dates before 1970 work."""
    days = pa.array([dt.date(1, 1, 1), dt.date(1969, 12, 31)])
    for spec in ("%Y-%m-%d", "%F"):
        assert buckets(f"{{c:{spec}}}", days) == {"0001-01-01": [0], "1969-12-31": [1]}
    assert list(buckets("{c:%%Y%m}", days)) == ["%25Y01", "%25Y12"]


@pytest.mark.parametrize("template", ["{c:%Y}", "{c}"])
@pytest.mark.parametrize(
    ("times", "zone"),
    [
        ([253402300800_000000], "UTC"),
        ([253402300799_000000], "Asia/Tokyo"),
        ([-62135596800_000000], "America/New_York"),
    ],
)
def test_times_that_no_calendar_names(template: str, times: list[int], zone: str) -> None:
    """A time outside the years 1 to 9999 in the sink's zone is refused by a named error."""
    with pytest.raises(TemplateError, match="1 to 9999"):
        buckets(template, pa.array(times, pa.timestamp("us", "UTC")), zone=zone)


@pytest.mark.parametrize("spec", ["%s", "%Q", "%", "%EX", "%OH", "%+4Y", "%:z"])
@pytest.mark.parametrize("field", ["c", "time"])
def test_time_formats_of_one_machine_are_refused(spec: str, field: str) -> None:
    """F28: `%s` uses the machine's zone, and some machines do not know others: a replay elsewhere would name another bucket."""
    schema = pa.schema([("c", pa.timestamp("us", "UTC"))])
    with pytest.raises(TemplateError, match="not portable"):
        BucketTemplate.of(f"{{{field}:{spec}}}", schema, zone="UTC")
    with pytest.raises(TemplateError, match="not portable"):
        NameTemplate.of(f"{{time:{spec}}}-{{seq}}", zone="UTC", growing=False)


def test_local_timestamps_and_dates_have_no_zone() -> None:
    """A timestamp without a zone and a date name the same bucket in every zone."""
    local = pa.array([dt.datetime(2026, 1, 1, 23, 59)], pa.timestamp("us"))
    assert list(buckets("{c:%Y-%m-%dT%H}", local, zone="Asia/Tokyo")) == ["2026-01-01T23"]
    assert list(buckets("{c:%Y}/{c:%m}", pa.array([dt.date(2026, 1, 31)]), zone="Asia/Tokyo")) == ["2026/01"]
    assert list(buckets("{c}", pa.array([dt.date(2026, 1, 31)]))) == ["2026-01-31"]


def test_batch_time() -> None:
    """{time:...} is the time of the batch, the same for all its rows, in the sink's zone."""
    noon = 1_767_268_800 * 10**9
    assert buckets("t={time:%Y-%m-%d-%H}", pa.array([1, 2]), zone="Asia/Tokyo", time_ns=noon) == {
        "t=2026-01-01-21": [0, 1]
    }


@pytest.mark.parametrize(
    ("column", "bucket"),
    [
        (pa.array([7]), "7"),
        (pa.array([True]), "true"),
        (pa.array([1.5]), "1.5"),
        (pa.array(["a/b"]), "a%2Fb"),
        (pa.array([".."]), "%2E."),
        (pa.array(["_x"]), "%5Fx"),
        (pa.array(["a=b:c%d"]), "a%3Db%3Ac%25d"),
        (pa.array(["a.tmp"]), "a%2Etmp"),
        (pa.array([".tmp.tmp"]), "%2Etmp%2Etmp"),
        (pa.array(["a.inprogress"]), "a%2Einprogress"),
        (pa.array(["a._COPYING_"]), "a%2E_COPYING_"),
        (pa.array(["ü\U0001f600 x"]), "ü\U0001f600 x"),
        (pa.array(["a\x00b\n"]), "a%00b%0A"),
    ],
)
def test_values_are_escaped(column: pa.Array, bucket: str) -> None:
    """F34: no value leaves the path, hides a directory or looks like another part of the path."""
    assert list(buckets("{c}", column)) == [bucket]


MOMENTS = ["2026-01-31T23:30:00", "2026-01-31T23:30:00.500000", "2026-10-25T00:30:00", "2026-10-25T01:30:00"]


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (
            pa.array([0.0, -0.0, 1e7, 9999999.0, 1e-4, 0.001, float("nan"), float("-inf"), 5e-324, 1e22]),
            ["0.0", "0.0", "1.0E7", "9999999.0", "1.0E-4", "0.001", "NaN", "-Infinity", "4.9E-324", "1.0E22"],
        ),
        (pa.array([0.1, 1e-45, None, 16777216], pa.float32()), ["0.1", "1.4E-45", DEFAULT_PARTITION, "1.6777216E7"]),
        (
            pa.array([Decimal("1E-18"), Decimal(-2)], pa.decimal128(38, 18)),
            ["0.000000000000000001", "-2.000000000000000000"],
        ),
        (
            pa.array([dt.datetime.fromisoformat(moment) for moment in MOMENTS], pa.timestamp("us")),
            ["2026-01-31 23:30:00", "2026-01-31 23:30:00.5", "2026-10-25 00:30:00", "2026-10-25 01:30:00"],
        ),
        (
            pa.array([dt.datetime.fromisoformat(moment) for moment in MOMENTS], pa.timestamp("us")).cast(
                pa.timestamp("us", "UTC")
            ),
            ["2026-02-01 00:30:00", "2026-02-01 00:30:00.5", "2026-10-25 02:30:00", "2026-10-25 02:30:00"],
        ),
        (pa.array([dt.timedelta(days=-1, milliseconds=-500)]), ["INTERVAL '-1 00:00:00.5' DAY TO SECOND"]),
        (pa.array([3_600_000_000_001, 0], pa.time64("ns")), ["01:00:00.000000001", "00:00:00"]),
    ],
)
def test_values_are_written_as_spark_writes_them(column: pa.Array, names: list[str]) -> None:
    """Spark infers the same values from our directories as from its own: equal values share a directory, in the sink's zone."""
    found = buckets("c={c}", column, zone="Europe/Berlin")
    rows = {row: bucket for bucket, numbers in found.items() for row in numbers}
    assert [unescape(rows[row]) for row in range(len(names))] == [f"c={name}" for name in names]


NESTED = pa.schema(
    [
        ("st", pa.struct([("x", pa.string()), ("Y", pa.int64()), ("in.ner", pa.struct([("z", pa.string())]))])),
        ("Country", pa.string()),
        ("a.b", pa.string()),
        ("case", pa.string()),
        ("CASE", pa.string()),
        ("Time", pa.string()),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"st": {"x": "p", "Y": 1, "in.ner": {"z": "q"}}, "Country": "de", "a.b": "dot", "case": "low", "CASE": "high", "Time": "t"},
        {"st": None, "Country": "fr", "a.b": "dot", "case": "low", "CASE": "high", "Time": "t"},
    ],
    schema=NESTED,
)  # fmt: skip


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{st.x}", ["p", DEFAULT_PARTITION]),
        ("{ST.y}", ["1", DEFAULT_PARTITION]),
        ("{st.`in.ner`.z}", ["q", DEFAULT_PARTITION]),
        ("{`Country`}", ["de", "fr"]),
        ("{country}", ["de", "fr"]),
        ("{a.b}", ["dot", "dot"]),
        ("{case}", ["low", "low"]),
        ("{CASE}", ["high", "high"]),
        ("{Time}", ["t", "t"]),
        ("{time:%Y}", ["1970", "1970"]),
    ],
)
def test_names_of_members_and_in_another_case(template: str, names: list[str]) -> None:
    """A member of a struct names a directory; if the struct is null, the member is. Case counts only to tell two columns apart."""
    found = BucketTemplate.of(template, NESTED, zone="UTC").split(ROWS, 0)
    rows = {name: bucket for bucket, part in found for name in part.column("Country").to_pylist()}
    assert [rows["de"], rows["fr"]] == names


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{Case}", r"several columns 'Case' \(case, CASE\)"),
        ("{st.z}", "no column 'st.z'"),
        ("{country.x}", "no column 'country.x'"),
        ("{st}", "cannot name a directory"),
        ("{st.`in.ner`}", "cannot name a directory"),
        ("{st..x}", "no column"),
        ("{`st}", "no column"),
    ],
)
def test_names_that_mean_nothing_or_two_things(template: str, message: str) -> None:
    """A name that matches two columns except for case is refused and both are named; a member that does not exist is refused."""
    with pytest.raises(TemplateError, match=message):
        BucketTemplate.of(template, NESTED, zone="UTC")


def test_a_member_is_not_dropped(output: Output) -> None:
    """`dropBucketColumns` drops whole columns; for a member the error says what to do."""
    output.schema = NESTED
    with pytest.raises(TemplateError, match="a column of its own"):
        output.sink(bucketBy="{st.x}", dropBucketColumns="true", format="json")
    sink = output.sink(bucketBy="{country}", dropBucketColumns="true", format="json")
    assert sink.layout.data_schema(NESTED)[1] == ("Country",)


@given(
    st.text(min_size=1, max_size=40)
    | st.text(max_size=9).flatmap(lambda text: st.sampled_from([text + e for e in UNFINISHED]))
)
def test_any_value_stays_inside_and_decodes_to_itself(value: str) -> None:
    """Whatever a value holds, its directory is one visible name below the output, and decodes to the value."""
    try:
        [bucket] = buckets("{c}", pa.array([value]))
    except UnicodeEncodeError:
        return  # a lone surrogate is not a value Spark can hold
    assert "/" not in bucket
    assert os.path.normpath(f"/out/{bucket}") == f"/out/{bucket}"
    assert bucket[0] not in "._" or bucket == DEFAULT_PARTITION
    assert not bucket.endswith(UNFINISHED)
    assert unescape(bucket) == value or (bucket == DEFAULT_PARTITION and value == DEFAULT_PARTITION)


@given(st.text(max_size=60))
def test_escape_is_reversible(value: str) -> None:
    """`unescape` returns what `escape` was given."""
    assert unescape(escape(value)) == value


def test_value_too_long_for_a_name() -> None:
    """A value that is too long for the name of a directory is refused with its length, not cut."""
    with pytest.raises(TemplateError, match="302 bytes"):
        buckets("c={c}", pa.array(["x" * 300]))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{nothing}", "no column 'nothing'"),
        ("/abs/{c}", "relative path"),
        ("a/../{c}", "relative path"),
        ("a//{c}", "relative path"),
        ("_penstock/{c}", "keeps its state"),
        ("{c", "not well formed"),
        ("{c:%Y}", "needs a timestamp"),
        ("{c!r}", "not well formed"),
        ("a\0b/{c}", "relative path"),
    ],
)
def test_bad_templates_are_refused(template: str, message: str) -> None:
    """A template that cannot place a row, or would leave the output, is refused when the sink is made."""
    with pytest.raises(TemplateError, match=message):
        BucketTemplate.of(template, pa.schema([("c", pa.string())]), zone="UTC")


@pytest.mark.parametrize("template", ["{", "}", "{value", "x}/{value}", "dt={value:%Y}}"])
def test_braces_without_the_other_one_are_told_at_the_start(output: Output, template: str) -> None:
    """A template with an unmatched brace is refused by its own error, before any other check looks at the template."""
    with pytest.raises(TemplateError, match="is not well formed"):
        output.sink(bucketBy=template)


@pytest.mark.parametrize("template", ["k={k}", "{k}"])
def test_directories_whose_values_end_as_unfinished_files_do_are_read(output: Output, template: str) -> None:
    """What a sink has written below the value `a.tmp` is input of the next pipeline like all other files: no source skips it."""
    output.schema = pa.schema([("v", pa.string()), ("k", pa.string())])
    values = ["a.tmp", "b", "a.inprogress", "x._COPYING_", ".tmp"]
    sink = output.sink(bucketBy=template, dropBucketColumns="true", format="json", rollBatches="1")
    output.batch(sink, 0, {0: [f"{number}|{value}" for number, value in enumerate(values)]})
    scan = Scan(output.storage, str(output.root), recursive=True, follow=False, accept=lambda _: True)
    found = [arrival.file.path for arrival in scan.refresh().came]
    assert len(found) == len(values)
    assert {unescape(path.split("/")[0].removeprefix("k=")) for path in found} == set(values)


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_columns_that_cannot_name_a_directory(kind: pa.DataType) -> None:
    """Binary and nested columns are refused."""
    with pytest.raises(TemplateError, match="cannot name a directory"):
        BucketTemplate.of("{c}", pa.schema([("c", kind)]), zone="UTC")


def test_two_columns_of_one_name() -> None:
    """A field that could mean two columns is refused."""
    with pytest.raises(TemplateError, match="several columns"):
        BucketTemplate.of("{c}", pa.schema([("c", pa.string()), ("c", pa.string())]), zone="UTC")


def test_file_names() -> None:
    """File names follow the template; the extension is added unless the template has one."""
    values = {"sink": "s", "writer": 3, "seq": 7, "batch": 2, "host": "h", "pid": 9, "time": 1_767_225_600 * 10**9}
    name = NameTemplate.of("{host}-{pid}-{batch}-{time:%Y%m%d_%H%M%S}-{seq:05d}", zone="UTC", growing=False)
    assert name.render(".txt", **values) == "h-9-2-20260101_000000-00007.txt"
    assert NameTemplate.of("a{seq}.log", zone="UTC", growing=False).render(".txt", **values) == "a7.log"
    assert NameTemplate.of("a{seq}.log", zone="UTC", growing=False).render(".txt.gz", **values) == "a7.log.gz"
    assert NameTemplate.of("a{seq}.log.gz", zone="UTC", growing=False).render(".txt.gz", **values) == "a7.log.gz"
    assert NameTemplate.of("v1.2-{seq}", zone="UTC", growing=False).render(".json.gz", **values) == "v1.2-7.json.gz"


@pytest.mark.parametrize(
    "template",
    [
        "a/b{seq}", ".a{seq}", "_a{seq}", "fixed", "{writer}", "{seqq}", "{seq", "{batch}", "{time:%D}-{seq}",
        "{time:%H/%M}-{seq}", "{time:_%Y}-{seq}", "{seq:c}", "{seq:.0e}", "{seq:%Y}", "{seq!r}", "{host:d}-{seq}",
        "{sink:.0}{seq}", "a\0{seq}", "x" * 255 + "{seq}",
    ],
)  # fmt: skip
def test_bad_file_names_are_refused(template: str) -> None:
    """I1, I3: unknown fields, hidden names, directories, and names that several files would share are refused at the start."""
    with pytest.raises(TemplateError, match="fileName|template"):
        NameTemplate.of(template, zone="UTC", growing=False)


@pytest.mark.parametrize(
    ("template", "time_format", "name"),
    [
        ("%HOST_%PEID_%FILENUM_%PROCID_%PELAUNCHNUM_%TIME.txt", "yyyyMMdd_HHmmss", "h_3_7_9_1_20260102_030405.txt"),
        ("%FILENUM-%TIME", "yyyy-MM-dd'T'HHmm", "7-2026-01-02T0304.txt"),
        ("%FILENUM-{time}", "%y%j", "7-26002.txt"),
        ("{seq:03}%TIME", "hh a ''yy", "00703 AM '26.txt"),
        ("{time:%H%M}-{seq}", "yyyy", "0304-7.txt"),
        ("100%-{seq}", "yyyy", "100%-7.txt"),
        ("%HOSTx%TIMEz%FILENUMof", "yyyy", "hx2026z7of.txt"),
    ],
)
def test_variables_of_streams_are_fields(template: str, time_format: str, name: str) -> None:
    """I1: %HOST and the other variables have their meaning of IBM Streams; %TIME is written as `timeFormat` says."""
    at = int(dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 10**9
    values = {"sink": "s", "writer": 3, "seq": 7, "batch": 2, "host": "h", "pid": 9, "attempt": 1, "time": at}
    names = NameTemplate.of(template, zone="UTC", growing=False, time_format=time_format)
    assert names.render(".txt", **values) == name


@pytest.mark.parametrize(
    ("template", "time_format", "says"),
    [
        ("%FILENUM%HOSTNAME", "yyyy", "unknown variable %HOSTNAME; known are %HOST, %FILENUM"),
        ("%FILENUM%Time", "yyyy", "unknown variable %Time"),
        ("%FILENUM%USER", "yyyy", "unknown variable %USER; known are %HOST, %FILENUM"),
        ("all%TIME", "yyyy", "would name several files alike"),
        ("%FILENUM%TIME", "yyyy/MM", "no '/'"),
        ("%FILENUM%TIME", "SSS", "SSS cannot be written; expected yyyy"),
        ("%FILENUM%TIME", "'open", "a quote is not closed"),
        ("%FILENUM%TIME", "%s", "%s in the time format"),
    ],
)
def test_variables_that_make_no_name_are_refused(template: str, time_format: str, says: str) -> None:
    """I1, I3: an unknown variable, a name without a counter, and a format that cannot be written are refused by name, at the start."""
    with pytest.raises(TemplateError) as caught:
        NameTemplate.of(template, zone="UTC", growing=False, time_format=time_format)
    assert says in str(caught.value)


def test_growing_files_need_a_fixed_name() -> None:
    """A growing file has one fixed name; fields that change from part to part are refused."""
    assert NameTemplate.of("events.log", zone="UTC", growing=True).render(".txt", sink="s") == "events.log"
    with pytest.raises(TemplateError, match="fixed name"):
        NameTemplate.of("events-{seq}.log", zone="UTC", growing=True)
