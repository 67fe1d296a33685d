"""Times as text, in JSON and CSV: the value depends only on the text and the zone, and it is the value that Spark gives."""

from __future__ import annotations

import datetime as dt
import json
import random
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, OptionError
from penstock.formats import ReadFormat, decoder
from penstock.formats.format import Decoder
from penstock.formats.scalars import LOCAL_MICROS
from penstock.formats.schema import UTC_MICROS
from penstock.formats.zones import instants, local_times, rules, zone_name
from tests.formats.spark import ANSWERS, REFUSED, TYPES, cast_to_string
from tests.support.effort import effort

TEXTS: list[str] = ANSWERS["time texts"]
KINDS = ("timestamp", "timestamp_ntz", "date")
FORMATS = ("json", "csv")

# Spark is stricter than ISO 8601 here: it refuses a zone after an hour or a minute; we read it.
_SHORT = ("T10", "T1", "T10:11", "T1:2", " 10", " 10:11")
_ZONES = ("Z", "+01", "+1", "+0100", "+01:00", "-18:00", " UTC", "UTC", "GMT+1", " +01:00", " Z")
READ_HERE = {f"2026-01-31{time}{zone}" for time in _SHORT for zone in _ZONES}
# Java refuses offsets beyond 18 hours; we read them as Arrow does.
READ_HERE |= {text for text in TEXTS if text.endswith(("+18:01", "+19:00", "+23:59"))}
NOT_READ_HERE = {"-2026-01-31", "+2026-01-31", "12026-01-31"}  # a year that does not have exactly four digits


def line(form: str, text: str, number: int = 0) -> bytes:
    """Return one record of a number and a text."""
    if form == "json":
        return json.dumps({"i": number, "a": text}).encode() + b"\n"
    return f'{number},"{text.replace(chr(34), chr(34) * 2)}"\n'.encode()


def values(form: str, kind: pa.DataType, texts: list[str], zone: str = "UTC") -> list[Any]:
    """Return the values of the texts in one block, or raise `BadRecord`."""
    block = b"".join(line(form, text) for text in texts)
    return [cast_to_string(value) for value in decoder_of(form, kind, zone).decode(block).column(1)]


@cache  # setting it up at the first block takes longer than decoding the block
def decoder_of(form: str, kind: pa.DataType, zone: str = "UTC") -> Decoder:
    """Return the decoder of a number and a value of a type, the same one for all blocks, as in a task."""
    return decoder(ReadFormat(form, pa.schema([("i", pa.int64()), ("a", kind)]), zone=zone))


@cache  # each call takes milliseconds and there are thousands, so the tests that use it share a process
def alone(form: str, kind: str, text: str) -> str | None:
    """Return the value of a text read alone."""
    try:
        return str(values(form, TYPES[kind], [text])[0])
    except BadRecord:
        return REFUSED


def some_alone(form: str, kind: str) -> dict[str, str | None]:
    """Return the values of texts read alone: of all texts, or in a gate run of a third, chosen by its seed."""
    return {text: alone(form, kind, text) for text in random.sample(TEXTS, len(TEXTS) // effort(3, 1))}


@pytest.mark.slow
@pytest.mark.xdist_group("times")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_text_is_read_as_spark_reads_it(form: str, kind: str) -> None:
    """Each form of a time is read or refused as by Spark, except for the listed deviations."""
    wrong = []
    for text, found in some_alone(form, kind).items():
        expected = REFUSED if text in NOT_READ_HERE else ANSWERS["time answers"][kind].get(text, REFUSED)
        if found != expected and not (expected == REFUSED and kind == "timestamp" and text in READ_HERE):
            wrong.append((text, found, expected))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.xdist_group("times")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.sampled_from(TEXTS), min_size=2, max_size=3))
def test_neighbours_do_not_matter(form: str, kind: str, texts: list[str]) -> None:
    """Two or three texts in one block have the values they have alone, and exactly the texts are refused that are refused alone."""
    expected = [alone(form, kind, text) for text in texts]
    if REFUSED not in expected:
        assert values(form, TYPES[kind], texts) == expected
        return
    with pytest.raises(BadRecord) as caught:
        values(form, TYPES[kind], texts)
    assert caught.value.offset == sum(len(line(form, text)) for text in texts[: expected.index(REFUSED)])


@pytest.mark.slow
@pytest.mark.xdist_group("times")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_good_text_is_good_beside_every_other(form: str, kind: str) -> None:
    """Every ordered pair of texts that are readable alone is read, and so are all of them together, in both orders."""
    good = {text: meaning for text, meaning in some_alone(form, kind).items() if meaning != REFUSED}
    for texts in (list(good), list(good)[::-1]):
        assert values(form, TYPES[kind], texts) == [good[text] for text in texts]
    shapes = list(
        {meaning: text for text, meaning in good.items()}.values()
    )  # one text for each value: there are thousands of pairs
    few = random.sample(shapes, min(len(shapes), effort(8, 25)))
    for first in few:
        for second in few:
            assert values(form, TYPES[kind], [first, second]) == [good[first], good[second]]


def test_an_hour_alone_is_read_beside_a_whole_time() -> None:
    """The pair that was found: a time of only an hour, before a good record, caused the good record to be refused."""
    pair = ["2026-01-31T10", "2026-01-31T10:11:12Z"]
    for form in FORMATS:
        for texts in (pair, pair[::-1]):
            read = dict(zip(texts, values(form, TYPES["timestamp"], texts), strict=True))
            assert read == {pair[0]: "2026-01-31 10:00:00", pair[1]: "2026-01-31 10:11:12"}


# -- the same for all other types

SCALARS = [kind for kind in ANSWERS["csv answers"] if kind != "string"]
CSV_VALUES = [value for value in ANSWERS["csv values"] if "\n" not in value]
JSON_VALUES = ANSWERS["json values"] + ANSWERS["more json values, of scalar types"]


@cache
def raw_alone(form: str, kind: str, raw: str) -> tuple[Any, ...]:
    """Return the value of one raw value in a block of its own; the examples use few values, so each is read only once."""
    try:
        return tuple(raw_values(form, TYPES[kind], [raw]))
    except BadRecord:
        return (REFUSED,)


def one_by_one(form: str, kind: str, raw: list[str]) -> list[Any]:
    """Return the value of each raw value in a block of its own."""
    return [meaning for value in raw for meaning in raw_alone(form, kind, value)]


def raw_values(form: str, kind: pa.DataType, raw: list[str]) -> list[Any]:
    """Return the values of raw values in one block, or raise `BadRecord`."""
    lines = [f'{{"i":1,"a":{value}}}\n' if form == "json" else f"1,{value}\n" for value in raw]
    return [cast_to_string(value) for value in decoder_of(form, kind).decode("".join(lines).encode()).column(1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCALARS)
@given(raw=st.lists(st.sampled_from(CSV_VALUES), min_size=2, max_size=3))
def test_neighbours_do_not_matter_in_csv_of_any_type(kind: str, raw: list[str]) -> None:
    """Numbers, booleans and decimals too have the values they have alone, or are refused as they are alone."""
    expected = one_by_one("csv", kind, raw)
    if REFUSED in expected:
        with pytest.raises(BadRecord):
            raw_values("csv", TYPES[kind], raw)
    else:
        assert raw_values("csv", TYPES[kind], raw) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS["json answers"])
@given(raw=st.lists(st.sampled_from(JSON_VALUES), min_size=2, max_size=3))
def test_neighbours_do_not_matter_in_json_of_any_type(kind: str, raw: list[str]) -> None:
    """The same for JSON, including nested types and strings."""
    expected = one_by_one("json", kind, raw)
    if REFUSED in expected:
        with pytest.raises(BadRecord):
            raw_values("json", TYPES[kind], raw)
    else:
        assert raw_values("json", TYPES[kind], raw) == expected


# -- zones


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("zone", ANSWERS["zone answers"])
def test_times_without_a_zone_are_those_of_the_zone(form: str, zone: str) -> None:
    """In gaps and overlaps, long ago and in the far future, a time or day without a zone is the instant that Spark gives."""
    answers = ANSWERS["zone answers"][zone]
    texts = ANSWERS["times in zones"]
    assert values(form, TYPES["timestamp"], texts, zone) == [
        answers[text].lstrip("+") for text in texts
    ]  # +10000-01-01


@cache
def in_berlin_alone(form: str, text: str) -> list[Any]:
    """Return the value of a text read alone in a zone."""
    return values(form, TYPES["timestamp"], [text], "Europe/Berlin")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@given(
    texts=st.lists(
        st.sampled_from([*ANSWERS["times in zones"][:-1], "2026-03-29T02:30Z", "2026-3-29", " 2026-03-29T2"]),
        min_size=2,
        max_size=4,
    )
)
def test_neighbours_do_not_matter_in_a_zone(form: str, texts: list[str]) -> None:
    """Times of any form, with and without a zone, next to each other: each has the value that it has alone."""
    kind = TYPES["timestamp"]
    expected = [meaning for text in texts for meaning in in_berlin_alone(form, text)]
    assert values(form, kind, texts, "Europe/Berlin") == expected


def test_a_clock_without_a_zone_has_none() -> None:
    """A timestamp_ntz and a date are the same in every zone."""
    texts = ["2026-03-29T02:30:00", "2026-07-01"]
    for form in FORMATS:
        assert values(form, TYPES["timestamp_ntz"], texts, "Europe/Berlin") == [
            "2026-03-29 02:30:00",
            "2026-07-01 00:00:00",
        ]
        assert values(form, TYPES["date"], texts, "Pacific/Apia") == ["2026-03-29", "2026-07-01"]


@given(
    zone=st.sampled_from(sorted(available_timezones() - {"localtime"})),
    shown=st.lists(
        st.one_of(
            st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)),
            st.datetimes(dt.datetime(1880, 1, 1), dt.datetime(2040, 1, 1)),
        ),
        max_size=4,
    ),
)
def test_every_zone_is_as_python_has_it(zone: str, shown: list[dt.datetime]) -> None:
    """In every zone that exists, any local time is the instant that Python gives for the first of two."""
    offsets = [time.replace(tzinfo=ZoneInfo(zone)).utcoffset() for time in shown]
    expected = pa.array(
        [time - offset for time, offset in zip(shown, offsets, strict=True) if offset is not None], LOCAL_MICROS
    )
    assert instants(pa.array(shown, LOCAL_MICROS), zone).view(LOCAL_MICROS).equals(expected)


@given(
    zone=st.sampled_from([*sorted(available_timezones() - {"localtime"}), "+05:30"]),
    seconds=st.lists(
        st.one_of(
            st.integers(-62_135_500_000, 253_402_128_000),
            st.integers(-3_000_000_000, 4_000_000_000),
        ),
        max_size=4,
    ),
)
def test_every_instant_is_shown_as_python_shows_it(zone: str, seconds: list[int]) -> None:
    """In every zone that exists, from the year 1 to 9999."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    shown = [(epoch + dt.timedelta(seconds=second)).astimezone(rules(zone)).replace(tzinfo=None) for second in seconds]
    moments = [second * 1_000_000 + 7 for second in seconds]
    expected = [int((time - epoch.replace(tzinfo=None)).total_seconds()) * 1_000_000 + 7 for time in shown]
    assert local_times(pa.array(moments, pa.int64()).view(UTC_MICROS), zone).view(pa.int64()).to_pylist() == expected


def test_instants_that_python_does_not_have_are_shown_by_the_rules_of_their_calendar() -> None:
    """A year after 9999 has the summer time of the year 400 years before; a null stays null."""
    summer, winter = (dt.datetime(2800, month, 1, tzinfo=dt.timezone.utc).timestamp() for month in (7, 1))
    later = 20 * 146_097 * 86_400  # 8,000 years
    column = pa.array([int(summer + later) * 1_000_000, None, int(winter + later) * 1_000_000], pa.int64())
    found = local_times(column.view(UTC_MICROS), "Europe/Berlin").view(pa.int64())
    assert [
        None if shown is None else shown - at for shown, at in zip(found.to_pylist(), column.to_pylist(), strict=True)
    ] == [
        7_200_000_000,
        None,
        3_600_000_000,
    ]


def test_the_hour_that_is_shown_twice_and_the_one_that_is_not() -> None:
    """In an hour that occurs twice the first counts; a time in a skipped hour is later by as much as the clock went forward."""
    shown = pa.array([dt.datetime(2026, 3, 29, 2, 30), None, dt.datetime(2026, 10, 25, 2, 30)], LOCAL_MICROS)
    found = instants(shown, "Europe/Berlin").view(LOCAL_MICROS).to_pylist()
    assert found == [dt.datetime(2026, 3, 29, 1, 30), None, dt.datetime(2026, 10, 25, 0, 30)]
    assert instants(shown.slice(2), "Europe/Berlin").view(LOCAL_MICROS).to_pylist() == [
        dt.datetime(2026, 10, 25, 0, 30)
    ]
    assert len(instants(shown[:0], "Europe/Berlin")) == 0


@pytest.mark.parametrize(
    "name", ["", "localtime", "Mars/Olympus", "+19:00", "UTC+1:7", "PDT", "../etc/passwd", "/etc/localtime"]
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    """A name that is not a zone, or that means another zone on another machine, is refused with what is expected."""
    with pytest.raises(
        OptionError, match=r"timeZone='.*' is not a time zone; expected one such as UTC, Europe/Berlin or \+05:30"
    ):
        zone_name(name, "timeZone")


def test_all_names_of_utc_are_one() -> None:
    """All names for UTC become one name, so that a session that uses another name does not count as another zone."""
    for name in ("UTC", "Z", "GMT", "UT", "+00:00", "UTC+0", "Etc/UTC", "Etc/GMT", "Zulu"):
        assert zone_name(name, "timeZone") == "UTC"
    assert zone_name("Europe/Berlin", "timeZone") == "Europe/Berlin"
