"""Templates that look right but would do something else: each is refused at the start, and the error shows what was meant."""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa
import pytest

from penstock.errors import TemplateError
from penstock.options import SINK, parse
from penstock.sink.layout import Layout
from penstock.sink.names import NameTemplate
from penstock.sink.sink import Batch, Sink
from penstock.testing import ObjectStore
from tests.support.output import Output

SCHEMA = pa.schema([("value", pa.string()), ("country", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])


@pytest.fixture
def wide(output: Output) -> Output:
    """An output for rows of three columns."""
    output.schema = SCHEMA
    return output


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("country", "one directory for all rows, though it names the column 'country'.*bucketBy=country={country}"),
        ("raw/COUNTRY", "names the column 'country'"),
        ("$country", "names the column 'country'"),
        ("`country`", "names the column 'country'"),
        ("country={{country}}", "names the column 'country'"),
        ("dt=%Y-%m-%d", "%Y is not in braces.*{time:%Y-%m-%d}"),
        ("{country}/%H", "%H is not in braces"),
        ("yyyy-MM-dd--HH", "yyyy-MM-dd--HH is not in braces.* such as {time:%Y-%m-%d--%H}"),
        ("dt=YYYYMMdd/{country}", "YYYYMMdd is not in braces.* such as {time:%Y%m%d}"),
        ("year=yyyy/month=MM", "yyyy is not in braces.* such as {time:%Y}"),
        ("dt={ts:yyyy-MM-dd}", "'yyyy-MM-dd' is the same text for every time; expected %Y-%m-%d"),
        ("dt={ts:YYYY}", "expected directives, such as"),
        ("dt={time:day}", "the same text for every time"),
        ("dt={ts:%n}", "the same text for every time"),
        ("{country}\n", r"holds '\\n', which is a control character"),
        ("{country}\x1b", "a control character"),
        ("\ud800={country}", r"holds '\\ud800', which is half of a surrogate pair"),
        ("{country} ", "begins or ends with a blank"),
        ("a /{country}", "'a ' begins or ends with a blank"),
        ("x={}", "a field without a name; expected a column"),
    ],
)
def test_directories_that_nobody_meant_are_refused_at_the_start(wide: Output, template: str, says: str) -> None:
    """A column or time without braces, a Java time format, and characters left over from reading the option would be text for all rows."""
    with pytest.raises(TemplateError, match=says):
        wide.sink(format="json", bucketBy=template)
    assert not wide.root.exists()


@pytest.mark.parametrize(
    "template",
    ["all", "100%/x", "a=%2F/{country}", "a b={country}", "country/{country}", "{ts:%H h}", "xyyyyMM", "a-MM-dd"],
)
def test_text_that_is_meant_stays_text(wide: Output, template: str) -> None:
    """One directory for all rows, escapes, and blanks within names stay as they are."""
    wide.sink(format="json", bucketBy=template)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fileName": "e-%Y%m%d-{seq}"}, "%Y is not in braces"),
        ({"fileName": "e-yyyyMMdd_HHmm-{seq}"}, "yyyyMMdd_HHmm is not in braces.* such as {time:%Y%m%d_%H%M}"),
        ({"fileName": "{time:yyyyMMdd}-{seq}"}, "expected %Y%m%d"),
        ({"fileName": "{ts:HH}-{seq}"}, "expected %H"),
        ({"fileName": "{seq}\n"}, "a control character"),
        ({"fileName": "{time:%Y%t}{seq}"}, "control characters"),
        ({"fileName": " {seq}"}, "begins or ends with a blank"),
        ({"fileName": "{seq}", "timeFormat": "yyyy\0"}, "a control character"),
        ({"fileName": "{seq}", "timeFormat": "'x'"}, "must have a time"),
        (
            {"fileName": "%FILENUM.txt.gz"},
            "'%FILENUM.txt.gz': readers unpack names that end in .gz, .* not packed as a whole",
        ),
        ({"fileName": "{seq}.zst", "compression": "gzip"}, "end in .zst, and these files end in .gz"),
        ({"fileName": "{seq}.bz2", "format": "parquet"}, "readers unpack names that end in .bz2"),
        ({"fileName": "events.gz", "growing": "true"}, "readers unpack names that end in .gz"),
        ({"fileName": "{seq}.age"}, "readers unpack names that end in .age"),
        ({"fileName": "{seq}.zip"}, "readers unpack names that end in .zip"),
    ],
)
def test_file_names_that_nobody_meant_are_refused_at_the_start(
    wide: Output, options: dict[str, str], says: str
) -> None:
    """Spark and DuckDB cannot read a file whose name claims another compression; the other templates would be text for all rows."""
    with pytest.raises(TemplateError, match=says):
        wide.sink(**{"format": "json", **options})


@pytest.mark.parametrize(
    "options",
    [{"fileName": "{seq}.log.gz", "compression": "gzip"}, {"fileName": "{seq}.crc"}, {"fileName": "100%-{seq}.txt"}],
)
def test_endings_that_are_right_are_taken(wide: Output, options: dict[str, str]) -> None:
    """A template may contain the extension of the actual compression; other extensions are the user's choice."""
    wide.sink(format="json", **options)


def test_messages_show_the_name_as_it_was_written(wide: Output) -> None:
    """Messages never show `{seq}` for `%FILENUM`, which the user has written, not even if a value makes the name too long."""
    for template in ("%TIME", "%FILENUM.tmp", "a/%FILENUM", "%FILENUM%USER", "{nam}%FILENUM"):
        with pytest.raises(TemplateError, match="fileName='" + template.replace("{", r"\{")):
            wide.sink(format="json", fileName=template)
    sink = wide.sink(format="json", fileName="{country}_%FILENUM")
    with pytest.raises(TemplateError, match="fileName='{country}_%FILENUM' makes names of 266 bytes"):
        wide.batch(sink, 0, {0: ["1|" + "x" * 248 + "|2026-01-31 00:00:00Z"]})


def test_a_width_is_filled_up_by_zeros() -> None:
    """`{seq:5}` once made names with blanks, which sort as text and which readers cut."""
    names = NameTemplate.of("p{seq:3}-{writer:02}", zone="UTC", growing=False)
    assert names.render(".txt", sink="s", writer=3, seq=7) == "p007-03.txt"


def test_a_name_without_room_for_its_numbers_is_refused_at_the_start(output: Output) -> None:
    """A name with room for one digit only was once accepted; from the tenth file on nothing could be published any more."""
    sink = output.sink(fileName="n" * 248 + "{seq}")
    with pytest.raises(TemplateError, match="makes names of 264 bytes"):
        sink.check(output.schema)
    with pytest.raises(TemplateError, match="makes names of 264 bytes"):
        output.batch(sink, 0, {0: ["a"]})
    output.sink(fileName="n" * 239 + "{seq}").check(output.schema)


@pytest.mark.parametrize(
    "options", [{"fileName": "{time:%H:%M}-{seq}"}, {"fileName": "a:{country}-{seq}"}, {"bucketBy": "c:{country}"}]
)
def test_names_that_hdfs_refuses_are_told_before_anything_is_committed(options: dict[str, str]) -> None:
    """A name with a colon was committed, and could never be published; a directory on a disk, and a value, may contain one.

    A file on a disk may not: Spark fails to read it, `Relative path in absolute URI: .13:46-0.json.crc`.
    """
    checked = parse(SINK, {"path": "/x", "format": "json", **options}, what="sink")
    with nullcontext() if "bucketBy" in options else pytest.raises(TemplateError, match="Spark reads no file with ':'"):
        Layout(checked, "/x", goes_on=True, takes_colons=True).check(SCHEMA)
    with pytest.raises(TemplateError, match="HDFS takes no"):
        Layout(checked, "/x", goes_on=True, takes_colons=False).check(SCHEMA)
    escaped = parse(SINK, {"path": "/x", "format": "json", "bucketBy": "t={ts:%H:%M}"}, what="sink")
    Layout(escaped, "/x", goes_on=True, takes_colons=False).check(SCHEMA)


def test_a_key_that_no_store_of_objects_takes_is_told_before_anything_is_committed(wide: Output) -> None:
    """Five directories of 230 bytes are a valid path on a disk but no valid key: they were committed, and could never be published."""
    wide.storage = ObjectStore().storage()
    wide.schema = SCHEMA
    checked = {"format": "json", "bucketBy": "a={country}/b={country}/c={country}/d={country}/e={country}"}
    sink = Sink(wide.storage, "/out", parse(SINK, {"path": "/out", **checked}, what="sink"), "s")
    begun = sink.begin("d1", Batch("q1", 0))
    rows = ["1|" + "x" * 230 + "|2026-01-31 00:00:00Z"]
    with pytest.raises(TemplateError, match=r"make a path of 1\d\d\d bytes .* below '/out' at most 1020 are possible"):
        wide.write(sink, begun, 0, {0: rows})
    sink.commit(Batch("q1", 0), wide.write(sink, begun, 0, {0: ["1|" + "x" * 150 + "|2026-01-31 00:00:00Z"]}))
    assert sink.finish() is not None


def test_a_path_that_no_disk_takes_is_told_before_anything_is_committed(output: Output) -> None:
    """In a deep output directory a valid bucket made a path that is too long: it was committed, and could never be published."""
    output.schema = SCHEMA
    output.root = output.root.joinpath(*["d" * 200] * 14)
    sink = output.sink(format="json", bucketBy="/".join("{country}" for _ in range(8)))
    with pytest.raises(TemplateError, match=r"make a path of 1\d\d\d bytes .* at most 1\d\d\d are possible"):
        output.batch(sink, 0, {0: ["1|" + "x" * 160 + "|2026-01-31 00:00:00Z"]})
    output.batch(sink, 0, {0: ["1|x|2026-01-31 00:00:00Z"]}, final=True)
    assert len(output.visible()) == 1
