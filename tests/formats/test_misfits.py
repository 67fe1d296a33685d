"""Many bad values and lines at once: each is reported as it would be if it were read alone."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.json.broken import BROKEN
from penstock.formats.json.exact import MemberReader, check_json, shown
from penstock.formats.malformed import MalformedError
from penstock.formats.misfits import misfits_of, without_refused
from penstock.formats.patterns import TimeForms
from penstock.formats.scalars import parse
from tests.formats.spark import TYPES
from tests.formats.test_spark_dialects import TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable

ODD = [
    *TEXTS, "", " ", "x", "1", "-1", "+1", "01", "1.5", ".5", "5.", "1e5", "1e400", "NaN", "Infinity", "-Inf", "inf", "true", "TRUE",
    "0x10",
    "1_0", "99999999999999999999", "1" * 50, "2026", "2026-1", "2026-13-01", "2026-02-30", "2026-01-31 24:00:00", "2026-01-31 1:2:3",
    "2026-01-31T10", "2026-01-31T10:5", "2026-01-31T10Z", "2026-01-31T10:60", "2026-01-31T10:10:60", "2026-01-31T1:1:1.5+1", "2026-01-31x",
    "2026-01-31 x", "2026-01-31T10:10:10UTC+1", "2026-01-31T10:10:10.", "2026-01-31\nx", "10:10", "é", "\uff11", "20x6-01-01T00:00:00Z",
    "\t5\t",
]  # fmt: skip
SCALARS = {
    name: kind for name, kind in TYPES.items() if not pa.types.is_nested(kind) and name not in {"string", "binary"}
}
FORMS = {
    "iso": TimeForms(),
    "pattern": TimeForms("UTC", "dd/MMM/yyyy:HH:mm:ss Z", "[yyyy-MM-dd][dd.MM.yyyy]", "d MMM yyyy"),
}


@pytest.mark.slow
@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("name", SCALARS)
def test_what_cannot_be_a_value_is_told_as_if_it_were_alone(name: str, forms: str) -> None:
    """Of many values together, exactly those are refused that are refused alone, with the same messages: CSV fields and JSON values."""
    field, times = pa.field("c", SCALARS[name]), FORMS[forms]
    fields = pa.array(ODD, pa.string())
    plain = partial(parse, kind=field.type, name="c", times=times)
    assert_as_alone(fields, field, times, plain, lambda values: values)
    escaped = [json.dumps(text) for text in ODD]
    texts = [
        *escaped,
        *(json.dumps(text, ensure_ascii=False) for text in ODD),
        "5",
        "-5",
        "1.5",
        "true",
        "1e3",
        "99999999999",
    ]
    values = pa.array([*texts, None], pa.string()).cast(pa.binary())
    member = partial(MemberReader(times, None).column, field=field, path="c.")
    assert_as_alone(values, field, times, member, partial(shown, kind=field.type))


USUAL = {
    "date": "2026-01-31",
    "timestamp": "2026-01-31T10:10:10Z",
    "timestamp_ntz": "2026-01-31 10:10:10",
    "boolean": "true",
}


@pytest.mark.slow
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("name", SCALARS)
def test_column_without_what_is_refused_is_that_of_each_value_alone(name: str, nullable: bool) -> None:
    """A few odd values among many usual ones: the good values keep their places, and the others are reported as if each were alone."""
    field = pa.field("c", SCALARS[name], nullable=nullable)
    texts = [text for odd in ODD for text in (*[USUAL.get(name, "5")] * 6, odd)]
    values = pa.array([None, *texts] if nullable else texts, pa.string())

    def read(column: pa.Array, kind: pa.Field) -> pa.Array:
        return parse(column, kind.type, kind.name)

    def by_itself(text: str | None) -> pa.Array | str:
        value = partial(parse, pa.array([text], pa.string()), field.type, "c")
        return refusal(value) or value()

    alone = {text: by_itself(text) for text in values.unique().to_pylist()}
    column, bad = without_refused(values, field, TimeForms(), read)
    each = [alone[text] for text in values.to_pylist()]
    assert {place: str(error) for place, error in bad} == {
        at: say for at, say in enumerate(each) if isinstance(say, str)
    }
    right = [pa.nulls(1, field.type) if isinstance(value, str) else value for value in each]
    assert column.cast(pa.string()).equals(pa.concat_arrays(right).cast(pa.string()))  # NaN is not equal to itself


def assert_as_alone(
    values: pa.Array,
    field: pa.Field,
    times: TimeForms,
    read: Callable[[pa.Array], object],
    told: Callable[[pa.Array], pa.Array],
) -> None:
    """Compare what is reported about all values together with what is reported about each."""
    each = {place: refusal(partial(read, values.slice(place, 1))) for place in range(len(values))}
    together = {place: str(error) for place, error in misfits_of(values, field, times, read, told)}
    assert together == {place: words for place, words in each.items() if words}


def refusal(read: Callable[[], object]) -> str:
    """Return the message of the refusal, or nothing if the value is not refused."""
    try:
        read()
    except MalformedError as error:
        return str(error)
    return ""


LINES = [  # in single quotes, unless the text itself contains them
    '{"a":1}', "{}", '{"a":1,,"b":2}', '{"a":01}', '{"a":10}', '{"a":1.05}', '{"a":1.}', '{"a":.5}', '{"a":-0}', '{"a":-01}', '{"a":1e05}',
    '{"a":1e}', '{"a" 1}', '{"a":}', "{:1}", '{"a":1,}', '{,"a":1}', '{"a":[1,2}', '{"a":[1,2]}', '{"a":[1 2]}', '{"a":"\\x"}',
    '{"a":"\\n"}',
    '{"a":tru}', '{"a":true}', '{"a":nul}', '{"a":null}', '{"a":NaN}', '{"a":-NaN}', '{"a":Infinity}', '{"a":1} {"b":2}', "[1]", '"x"', "1",
    '{"a":"x","a":"y"}', '{"x":"","y":""}', '{"a":1234567890123456789012345678901234567890}', '{"a":1}x', "{a:1}", "{'a':1}",
    '{"a":"\x01"}', '{"a\x1f":1}', '{"a":"\t"}', '{"a":\t1}', '{"a":"x"\x02}', '{"a":"\\"\x03"}', '{"a":"\x7f"}', '{"a":"\\\\"\x04}',
    '{"a":"é"}', '{"a":"x" "y"}', '{"a":0x10}', '{"a":+1}', '{"a":--1}', '{"a":{"b":{}}}', '{"a":{"b":}}', '{"a":1e400}', '{"a":100e1}',
]  # fmt: skip


def test_lines_are_no_json_by_their_grammar_as_they_are_alone() -> None:
    """The check replaces strings and numbers before it examines lines; each line still gets the same answer as alone."""
    data = "".join(f"{line}\n" for line in LINES).encode()
    starts = np.cumsum([0, *(len(f"{line}\n".encode()) for line in LINES[:-1])])
    places, reasons = BROKEN[-1](data, starts)
    assert set(reasons) <= {"a record that is one JSON object"}
    assert places.tolist() == [
        place for place, line in enumerate(LINES) if refusal(partial(check_json, f"{line}\n".encode()))
    ]
