"""Times read by patterns: each text means what Python's `strptime` says, and the result depends on that text alone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.formats.malformed import MalformedError
from penstock.formats.patterns import TimePattern, compiled
from tests.formats.spark import REFUSED, cast_to_string

UTC = pa.timestamp("us", tz="UTC")

# The `strptime` directives for some patterns.
STRPTIME = {
    "yyyy-MM-dd HH:mm:ss": "%Y-%m-%d %H:%M:%S",
    "dd/MMM/yyyy:HH:mm:ss Z": "%d/%b/%Y:%H:%M:%S %z",
    "dd.MM.yyyy HH:mm": "%d.%m.%Y %H:%M",
    "MM/dd/yyyy hh:mm:ss a": "%m/%d/%Y %I:%M:%S %p",
    "yyyyMMddHHmmss": "%Y%m%d%H%M%S",
    "yyyy-DDD'T'HH:mm": "%Y-%jT%H:%M",
    "MMMM dd, yyyy": "%B %d, %Y",
    "yyyy-MM-dd HH:mm:ss.SSSSSS": "%Y-%m-%d %H:%M:%S.%f",
}


def read(pattern: str, *texts: str | None, kind: pa.DataType = UTC, zone: str = "UTC") -> list[Any]:
    """Return the values of a column of texts."""
    values: list[Any] = compiled(pattern).parse(pa.array(texts, pa.string()), kind, zone).to_pylist()
    return values


def alone(pattern: TimePattern, text: str, kind: pa.DataType) -> str | None:
    """Return the value of a text read alone, in Spark's words."""
    try:
        return cast_to_string(pattern.parse(pa.array([text]), kind, "UTC")[0])
    except MalformedError:
        return REFUSED


def without_layouts(pattern: str) -> TimePattern:
    """Return a reader that uses only the regular expression."""
    plain = compiled.__wrapped__(pattern)
    plain._layouts = []
    return plain


@pytest.mark.slow
@pytest.mark.parametrize("pattern", STRPTIME)
@given(times=st.lists(st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2099, 12, 31)), max_size=5))
def test_what_python_writes_is_what_python_reads(pattern: str, times: list[dt.datetime | None]) -> None:
    """Columns of any texts of Python's `strftime`, with nulls among them, have the values that `strptime` gives for each."""
    form = STRPTIME[pattern]
    zone = dt.timezone(dt.timedelta(hours=-3, minutes=-30)) if "%z" in form else dt.timezone.utc
    texts = [None if time is None else time.replace(tzinfo=zone).strftime(form) for time in times]
    expected = [None if text is None else dt.datetime.strptime(text, form) for text in texts]
    expected = [
        time if time is None else time.replace(tzinfo=time.tzinfo or dt.timezone.utc).astimezone(dt.timezone.utc)
        for time in expected
    ]
    assert read(pattern, *texts) == expected


VARIED = "[d/M/yyyy][yyyy-MM-dd]['T'][ ][H:m[:ss[.SSS]]][XXX]"


@pytest.mark.slow
@given(
    texts=st.lists(
        st.builds(
            "".join,
            st.tuples(
                st.sampled_from(["31/1/2026", "1/12/2026", "2026-01-31", ""]),
                st.sampled_from(["T", "t", " ", ""]),
                st.sampled_from(["1:2", "12:34", "12:34:56", "23:59:59.5", "23:59:59.123", ""]),
                st.sampled_from(["Z", "z", "+01:00", "-12:30", ""]),
            ),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_neighbours_do_not_matter(texts: list[str]) -> None:
    """Texts of different lengths in one column have the values that each has alone, and that the regular expression alone gives."""
    by_layouts, by_expression = compiled(VARIED), without_layouts(VARIED)
    each = [alone(by_expression, text, UTC) for text in texts]
    assert [alone(by_layouts, text, UTC) for text in texts] == each
    if REFUSED not in each:
        assert [cast_to_string(value) for value in by_layouts.parse(pa.array(texts), UTC, "UTC")] == each
    else:
        with pytest.raises(MalformedError):
            by_layouts.parse(pa.array(texts), UTC, "UTC")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("YYYY-MM-dd", "YYYY is not read here; years of weeks"),
        ("EEE MMM dd HH:mm:ss yyyy", "EEE is not read here; names of days are written"),
        ("uuuu-MM-dd", "u; y is the year"),
        ("yyyy-MM-dd VV", "timeZone is that of all values"),
        ("yyyy-MM-dd z", "timeZone is that of all values"),
        ("yyyy-MM-dd w", "w is not read here; what is read is y"),
        ("yyyyy-MM-dd", "expected y or yy or yyyy"),
        ("dM", "day and month touch"),
        ("yyyyM", "year and month touch"),
        ("yyyy-MM-dd HH hh", "says hour and half hour from 1"),
        ("yyyy-MM-DDD", "says month and day of year"),
        ("[yyyy", "a bracket without the other one"),
        ("yyyy]", "a bracket without the other one"),
        ("yyyy'T", "put text between quotes"),
        ("yyyy{", "has no meaning yet"),
        ("'T'", "has no field of a date or time"),
        ("[]", "has no field of a date or time"),
    ],
)
def test_a_pattern_that_is_not_read_is_refused_by_name(pattern: str, says: str) -> None:
    """A pattern outside the subset is refused with the pattern, its fault, and what to write instead."""
    with pytest.raises(OptionError, match=says) as caught:
        compiled(pattern, "timestampFormat")
    assert caught.value.message.startswith("timestampFormat=")


def test_a_second_time_of_one_field_must_say_the_same() -> None:
    """A repeated field must have the same value both times, as in Java."""
    assert read("yyyy-MM-dd yyyy", "2026-01-31 2026")[0].year == 2026
    with pytest.raises(MalformedError):
        read("yyyy-MM-dd yyyy", "2026-01-31 2025")


def test_slices_and_nulls_stay_in_their_places() -> None:
    """A column that is a slice of another, with nulls, is read from its own start."""
    column = pa.array(["bad", "31.01.2026", None, "01.02.2026", "bad"]).slice(1, 3)
    days = compiled("dd.MM.yyyy").parse(column, pa.date32(), "UTC").to_pylist()
    assert days == [dt.date(2026, 1, 31), None, dt.date(2026, 2, 1)]
    assert compiled("yyyy").parse(pa.array([], pa.string()), UTC, "UTC").to_pylist() == []
    assert compiled("yyyy").parse(pa.nulls(2, pa.string()), UTC, "UTC").to_pylist() == [None, None]
