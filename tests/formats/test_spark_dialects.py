"""Time patterns and JSON documents: Spark's results for single values and files, recorded once, compared with ours."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import BadRecord, OptionError
from penstock.formats.json.document import as_lines
from penstock.formats.json.exact import exact
from penstock.formats.malformed import MalformedError
from penstock.formats.patterns import TimePattern, compiled
from tests.formats.spark import REFUSED, TYPES, cast_to_string
from tests.support.effort import effort

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("spark_dialects.json").read_text(encoding="utf-8"))
TEXTS: list[str] = ANSWERS["texts"]
PAIR = pa.schema([("a", pa.string()), ("b", pa.string())])

# For each (pattern, text) here, one of the two reads it and the other refuses it; they never give two different times.
READ_HERE_ALONE = {
    ("yyyy-MM-dd'T'HH:mm:ssx", "2026-01-31T12:34:56+0000"),  # Java stops after +00
    ("yyyyMMddHHmmssSSS", "20260131123456123"),  # Java takes the digits of the fraction as part of the year
    ("yyyyMMddHHmmssSSS", "202601311234561"),
}
READ_BY_SPARK_ALONE = {
    ("d.M.yyyy", "001.02.2026"),
    ("d.M.y", "001.02.2026"),
    ("yyyy", "-2026"),  # years are 0 to 9999 here
    ("[yyyy-MM-dd][dd.MM.yyyy]", "+12026-01-31"),
    ("[yyyy-MM-dd][dd.MM.yyyy]", "-2026-01-31"),
    ("yyyy-MM-dd[ HH:mm[:ss]]", "+12026-01-31"),
    ("yyyy-MM-dd[ HH:mm[:ss]]", "-2026-01-31"),
}
# Spark reads the first document and silently drops everything after it.
DOCUMENTS_NOT_READ_HERE = {
    '{"a":1}{"a":2}',
    '{"a":1}\n{"a":2}',
    '[{"a":1}][{"a":2}]',
    '{"a":1}, {"a":2}',
    '[{"a":1}] x',
}


def alone(pattern: TimePattern, text: str, kind: pa.DataType) -> str | None:
    """Return the value of a text read alone, in Spark's words."""
    try:
        return cast_to_string(pattern.parse(pa.array([text]), kind, "UTC")[0])
    except MalformedError:
        return REFUSED


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(ANSWERS["patterns"]))
def test_each_text_is_read_as_spark_reads_it(kind: str) -> None:
    """With each pattern that is read here, each text has the value that Spark gives it, except for the listed deviations.

    A gate run tests a third of the texts of each pattern, chosen by its seed, so each run has different ones.
    """
    wrong = []
    for name, answers in ANSWERS["patterns"][kind].items():
        pattern = compiled(name)
        for place in random.sample(range(len(TEXTS)), len(TEXTS) // effort(3, 1)):
            text = TEXTS[place]
            expected, ours = answers.get(str(place), REFUSED), alone(pattern, text, TYPES[kind])
            listed = READ_HERE_ALONE if expected == REFUSED else READ_BY_SPARK_ALONE if ours == REFUSED else ()
            if ours != expected and (name, text) not in listed:
                wrong.append((name, text, ours, expected))
    assert wrong == []


@pytest.mark.parametrize("zone", sorted(ANSWERS["zones"]))
def test_a_time_without_a_zone_is_one_of_the_zone(zone: str) -> None:
    """With a pattern too, a time in the gap or overlap of a clock change is the time that Spark says."""
    kept = ANSWERS["zones"][zone]
    values = compiled("yyyy-MM-dd HH:mm:ss").parse(pa.array(list(kept)), TYPES["timestamp"], zone)
    assert [value // 1_000_000 for value in values.view(pa.int64()).to_pylist()] == list(kept.values())


def test_patterns_that_spark_has_no_use_for_are_refused() -> None:
    """A pattern that Spark refuses when a query is defined is refused here too."""
    for name in ("YYYY-MM-dd", "qq yyyy", "yyyy-MM-dd'T", "yyyy-MM-dd{", "yyyy-MM-dd A"):
        with pytest.raises(OptionError):
            compiled(name)


def read_as_document(text: str) -> list[list[Any]] | str:
    """Return the rows of a file, or that it is refused."""
    try:
        lines = as_lines(text.encode())
        return [list(row.values()) for row in exact(lines, PAIR).to_pylist()] if lines.strip() else []
    except (BadRecord, MalformedError):
        return REFUSED


def test_documents_are_read_as_spark_reads_them() -> None:
    """Each document gives Spark's rows, except documents of which Spark silently drops a part: they are refused."""
    ours = {text: read_as_document(text) for text in ANSWERS["documents"]}
    other = {text for text, rows in ANSWERS["documents"].items() if ours[text] != rows}
    assert other == DOCUMENTS_NOT_READ_HERE
    assert {ours[text] for text in other} == {REFUSED}
