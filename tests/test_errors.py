"""Errors cross process borders, with stable codes."""

from __future__ import annotations

import pickle

import pytest

from penstock import errors
from penstock.errors import BadRecord, PenstockError


def kinds(kind: type[PenstockError] = PenstockError) -> list[type[PenstockError]]:
    """Return the whole tree."""
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in kinds(child))]


def test_codes_are_unique() -> None:
    """No two errors share a code."""
    codes = [kind.code for kind in kinds()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", kinds())
def test_errors_survive_pickling(kind: type[PenstockError]) -> None:
    """Every error comes back as itself, with its message."""
    error = kind("what, where, found, expected")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(back), str(back)) == (kind, f"[{kind.code}] what, where, found, expected")


def test_bad_record_keeps_its_place() -> None:
    """File and byte offset of a bad record survive pickling."""
    back = pickle.loads(pickle.dumps(BadRecord("x", path="/a", offset=7)))  # noqa: S301 - our own bytes
    assert (back.path, back.offset) == ("/a", 7)


def test_error_is_found_in_what_spark_makes_of_it() -> None:
    """The last code in Spark's text gives the kind of error back."""
    text = (
        "[STREAM_FAILED] ... Traceback ...\npenstock.errors.Fenced: [PST-301] sink 's' belongs to 'x'\n SQLSTATE: 38000"
    )
    error = errors.from_text(text)
    assert isinstance(error, errors.Fenced)
    assert error.message == "sink 's' belongs to 'x'"
    assert type(errors.from_text("something else")) is PenstockError


def test_exit_statuses() -> None:
    """Usage errors end with 2, damaged state with 3, everything else with 1."""
    for kind in kinds():
        expected = 2 if issubclass(kind, errors.UsageError) else 3 if issubclass(kind, errors.DamagedState) else 1
        assert kind.exit_status == expected
