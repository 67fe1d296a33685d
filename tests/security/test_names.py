"""Directory names made of hostile values: inside the output, visible, distinct, and read back as the value.

They are decoded here as Hive, Spark and Trino do it: the text after `name=`, with `%` and two hex digits decoded.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TemplateError
from penstock.sink.buckets import DEFAULT_PARTITION, BucketTemplate
from penstock.sink.names import NameTemplate
from tests.support.output import Output

HOSTILE = [
    *(
        "..",
        ".",
        "...",
        "/",
        "//",
        "/etc/passwd",
        "../../x",
        "a/../b",
        "\\",
        "..\\..",
        "\0",
        "a\0b",
        "=",
        "a=b",
        "c=c=",
    ),
    *(
        "%",
        "%2F",
        "%2f",
        "%25",
        "%2E%2E",
        "%zz",
        "%00",
        "trailing.",
        "trailing ",
        " leading",
        " ",
        "\t",
        "\n",
        "a\r\nb",
    ),
    *(
        "\uff0f..\uff0f",
        "\u2215",
        "\u2024\u2024",
        "\u2044",
        "\uff0e\uff0e",
        "\u202eevil",
        "\u200b",
        "\ufeff",
        "\x7f",
        "\x9b",
    ),
    *(
        "-rf",
        "--",
        "_",
        "_penstock",
        "_SUCCESS",
        ".hidden",
        "._x",
        "~",
        "~root",
        "$HOME",
        "`id`",
        "$(id)",
        ";",
        "|",
        "&",
    ),
    *(
        "CON",
        "nul",
        "com1.txt",
        "AUX ",
        "a:b",
        "C:\\x",
        "*",
        "?",
        "<x>",
        '"',
        "'",
        "[bold]",
        "{c}",
        "#",
        "^",
        "\x1b[2J",
    ),
    *(
        "Case",
        "case",
        "CASE",
        "null",
        "None",
        DEFAULT_PARTITION,
        f"{DEFAULT_PARTITION}x",
        "\U0001f600",
        "e\u0301",
        "\xe9",
    ),
    *("a.tmp", "a.inprogress", "a._COPYING_", "x" * 253, "\xe9" * 126, "\U0001f600" * 63),
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(HOSTILE)


def buckets(template: str, *columns: pa.Array, zone: str = "UTC") -> dict[str, list[int]]:
    """Return the row numbers of each bucket; the columns are `a`, `b` and so on."""
    names = [chr(ord("a") + i) for i in range(len(columns))]
    batch = pa.RecordBatch.from_arrays([*columns, pa.array(range(len(columns[0])))], names=[*names, "row"])
    made = BucketTemplate.of(template, batch.schema, zone=zone)
    return {bucket: rows.column("row").to_pylist() for bucket, rows in made.split(batch, 0)}


def decoded(bucket: str) -> list[str | None]:
    """Return the values of a bucket of `name=value` directories, as Hive does."""
    values = [component.partition("=")[2] for component in bucket.split("/")]
    return [
        None if v == DEFAULT_PARTITION else re.sub("%([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), v) for v in values
    ]


def is_safe(bucket: str) -> bool:
    """Tell whether a bucket is below the output, and each of its directories visible."""
    parts = bucket.split("/")
    inside = os.path.normpath(f"/out/{bucket}") == f"/out/{bucket}"
    visible = all((part and part[0] not in "._") or part == DEFAULT_PARTITION for part in parts)
    return inside and visible and "\0" not in bucket and all(len(os.fsencode(part)) <= 255 for part in parts)


def test_hostile_values_stay_apart_and_inside(output: Output) -> None:
    """On a real disk each value has a separate directory below the output, which decodes to the value; no row is lost."""
    output.schema = pa.schema([("row", pa.string()), ("c", pa.string())])
    sink = output.sink(bucketBy="c={c}", dropBucketColumns="true", fileName="f{seq}")
    rows = pa.RecordBatch.from_arrays(
        [pa.array(map(str, range(len(HOSTILE)))), pa.array(HOSTILE)], schema=output.schema
    )
    output.batches = lambda lines: iter([rows])  # type: ignore[method-assign]  # - lines cannot hold these values
    output.batch(sink, 0, {0: [""]}, final=True)
    seen = {path.rpartition("/")[0]: text.split() for path, text in output.visible().items()}
    assert {decoded(bucket)[0]: [HOSTILE[int(row)] for row in found] for bucket, found in seen.items()} == {
        value: [value] for value in HOSTILE
    }
    assert len(os.listdir(output.root)) == len(HOSTILE) + 1  # and _penstock


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6, unique=True))
def test_any_values_stay_apart_and_inside(rows: list[tuple[str, str]]) -> None:
    """Two columns of any text: distinct rows have distinct buckets, which decode to the row; the empty string decodes to null."""
    try:
        found = buckets("a={a}/b={b}", pa.array([a for a, _ in rows]), pa.array([b for _, b in rows]))
    except TemplateError as error:
        assert "bytes" in error.message  # noqa: PT017 - some of these texts are too long once they are escaped
        return
    assert all(map(is_safe, found))
    assert {bucket: decoded(bucket) for bucket in found} == {
        bucket: [value or None for value in rows[found[bucket][0]]] for bucket in found
    }
    assert sorted(itertools.chain(*found.values())) == list(range(len(rows)))
    assert len(found) == len(rows)


@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=6, unique=True))
def test_any_value_alone_stays_apart_and_inside(values: list[str]) -> None:
    """Without `name=` as well: `{a}` gives each value one visible directory, which decodes to the value."""
    try:
        found = buckets("{a}", pa.array(values))
    except TemplateError as error:
        assert "bytes" in error.message  # noqa: PT017 - some of these texts are too long once they are escaped
        return
    assert all(map(is_safe, found))
    assert {decoded(f"={bucket}")[0]: numbers for bucket, numbers in found.items()} == {
        value: [number] for number, value in enumerate(values)
    }


def test_twins_that_look_alike_are_two(tmp_path: Path) -> None:
    """Names that differ in bytes are different on disk: composed and decomposed letters, and case."""
    twins = [unicodedata.normalize(form, "Zürich") for form in ("NFC", "NFD")] + ["zürich"]
    assert len(buckets("{a}", pa.array(twins))) == 3


def test_null_is_not_a_text_that_spells_it() -> None:
    """Null and the text `__HIVE_DEFAULT_PARTITION__` are two values, and stay distinct."""
    assert buckets("a={a}", pa.array([None, DEFAULT_PARTITION])) == {
        f"a={DEFAULT_PARTITION}": [0],
        "a=%5F_HIVE_DEFAULT_PARTITION__": [1],
    }


TYPED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 127, None]),
    (pa.int64(), [-(1 << 63), (1 << 63) - 1, 0]),
    (pa.float32(), [0.1, -1.5, float("inf"), float("-inf"), float("nan"), 1e-38, 3e38]),
    (pa.float64(), [0.1, 0.2, 1e300, -1e-300, float("inf"), float("nan"), 1 / 3]),
    (pa.decimal128(38, 18), [Decimal("1E-18"), Decimal(-1), Decimal(10) ** 19]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31)]),
    (pa.timestamp("us", tz="UTC"), [-1, 0, 1, 253_402_300_799_999_999]),
    (pa.timestamp("us"), [-1, 0, 1, -62_135_596_800_000_000]),
    (pa.string(), ["..", "a/b", None]),
    (pa.large_string(), ["..", "a/b", None]),
    (pa.duration("us"), [-1, 0, 86_400_000_000]),
    (pa.time64("us"), [0, 1, 86_399_999_999]),
]


@pytest.mark.parametrize(
    ("kind", "values"), TYPED, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_every_type_has_safe_and_distinct_names(kind: pa.DataType, values: list[Any]) -> None:
    """For every type that may name a directory, distinct values have distinct, safe buckets, and every row has one."""
    found = buckets("a={a}", pa.array(values, kind))
    assert all(map(is_safe, found))
    assert sorted(found.values()) == [[number] for number in range(len(values))]


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us")], ids=str)
@pytest.mark.parametrize("micros", [253_402_300_800_000_000, (1 << 63) - 1, -62_135_596_800_000_001, -(1 << 63)])
@pytest.mark.parametrize("template", ["{a}", "dt={a:%Y-%m-%d}", "{a:%H}", "{a:%f}"])
def test_times_without_a_year_of_four_digits_are_refused(kind: pa.DataType, micros: int, template: str) -> None:
    """A time that this calendar cannot write is an error that names the template, not a crash and not another day."""
    with pytest.raises(TemplateError, match="years 1 to 9999"):
        buckets(template, pa.array([0, micros], kind))


@pytest.mark.parametrize("days", [2_932_897, (1 << 31) - 1, -719_163, -(1 << 31)])
def test_dates_without_a_year_of_four_digits_are_refused(days: int) -> None:
    """The same for a date."""
    with pytest.raises(TemplateError, match="years 1 to 9999"):
        buckets("{a}", pa.array([0, days], pa.int32()).cast(pa.date32()))


@pytest.mark.parametrize("value", ["x" * 300, "\xe9" * 150, "\U0001f600" * 300, "/" * 90])
def test_values_too_long_for_a_name_fail_the_batch_whole(output: Output, value: str) -> None:
    """A directory's name has at most 255 bytes, counted after escaping; the error says so.

    No row of the batch is visible, none goes into another bucket, and without the value the same batch is done.
    """
    output.schema = pa.schema([("v", pa.string()), ("c", pa.string())])
    sink = output.sink(bucketBy="c={c}", dropBucketColumns="true", rollBatches="1", fileName="f{seq}")
    with pytest.raises(TemplateError, match="at most 255 are possible; bucket by something shorter"):
        output.batch(sink, 0, {0: ["a|short", f"b|{value}"]})
    assert output.visible() == {}
    output.batch(sink, 0, {0: ["a|short"]})
    assert output.lines() == ["a"]


def test_values_too_long_for_a_path_fail_before_the_commit() -> None:
    """Many directories of legal lengths are also refused if their path is too long: an impossible path must not be committed."""
    template = "/".join(f"{{{chr(ord('a') + i)}}}" for i in range(20))
    assert len(buckets(template, *[pa.array(["x" * 100])] * 20)) == 1
    with pytest.raises(TemplateError, match="a path of 4019 bytes, at most 2048"):
        buckets(template, *[pa.array(["x" * 200])] * 20)


@pytest.mark.parametrize(
    "template", ["../{seq}", "a/{seq}", "{seq}/..", ".{seq}", "_{seq}", "\0{seq}", "{time:%Y/%m}-{seq}"]
)
def test_templates_of_file_names_cannot_leave_or_hide(template: str) -> None:
    """A template that gives a file elsewhere, or a hidden one, is refused."""
    with pytest.raises(TemplateError, match="fileName"):
        NameTemplate.of(template, zone="UTC", growing=False)


@pytest.mark.parametrize("host", ["../../x", "a/b", ".hidden", "a\0b"])
def test_a_hosts_name_cannot_leave_or_hide(host: str) -> None:
    """The name of this machine cannot do so either."""
    template = NameTemplate.of("{host}{seq}", zone="UTC", growing=False)
    with pytest.raises(TemplateError, match="fileName"):
        template.render(".txt", host=host, seq=1)
