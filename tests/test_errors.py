"""Errors cross process borders, with stable codes."""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from typing import TYPE_CHECKING

import pytest

from penstock import errors
from penstock.errors import BadRecord, PenstockError
from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def kinds(kind: type[PenstockError] = PenstockError) -> list[type[PenstockError]]:
    """Return the whole tree of errors below a kind."""
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in kinds(child))]


def test_the_tree_at_the_top_is_that_of_the_classes() -> None:
    """The tree in the module's docstring shows every error, below the one by which a handler would catch it."""
    shown: dict[str, str] = {}
    above = ["PenstockError"]
    for bars, name in re.findall(r"^    ((?:\|   )*)\+-- (\w+)", errors.__doc__ or "", re.MULTILINE):
        del above[len(bars) // 4 + 1 :]
        shown[name] = above[-1]
        above.append(name)
    ours = [kind for kind in kinds()[1:] if kind.__module__ == errors.__name__]
    assert shown == {kind.__name__: kind.__bases__[0].__name__ for kind in ours}


def test_codes_are_unique() -> None:
    """No two errors share a code."""
    codes = [kind.code for kind in kinds()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", kinds())
def test_errors_survive_pickling(kind: type[PenstockError]) -> None:
    """Every error is unpickled as itself, with its message."""
    error = kind("what, where, found, expected")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(back), str(back)) == (kind, f"[{kind.code}] what, where, found, expected")


def test_bad_record_keeps_its_place() -> None:
    """File and byte offset of a bad record survive pickling."""
    back = pickle.loads(pickle.dumps(BadRecord("x", path="/a", offset=7)))  # noqa: S301 - our own bytes
    assert (back.path, back.offset) == ("/a", 7)


def printed(error: PenstockError) -> str:
    """Return an error as Python prints it at the end of a traceback, prepared for Spark."""
    return "".join(traceback.format_exception_only(errors.leave(error)))


def same(found: PenstockError | None, error: PenstockError) -> bool:
    """Tell whether an error equals another one, with its message and fields."""
    return found is not None and (type(found), found.args, vars(found)) == (type(error), error.args, vars(error))


class Wrapper(Exception):
    """What PySpark raises: text, Java's stack trace, and a cause that Python does not know as one."""

    def __init__(self, text: str, *, java: str = "", cause: Exception | None = None) -> None:
        super().__init__(text)
        self._stackTrace = java
        self._cause = cause


HOSTILE = [
    "one line",
    "",
    "two\nlines",
    "\n",
    "[PST-301] not this",
    "x\npenstock.errors.Fenced: [PST-301] sink 's' belongs to 'x'",
    'x\n(penstock {"code": "PST-301", "length": 1, "fields": {}})',
    'x\n[PST-301] y\n(penstock {"code": "PST-301", "length": 1, "fields": {}})',
    "Caused by: penstock.errors.Fenced: [PST-301] y\n\tat java.lang.Thread.run(Thread.java:840)",
    "tab\tzero\0 \u2028 \U0001f600 \r\n",
]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 prints no notes, and there is no Spark for it")
@pytest.mark.parametrize("message", HOSTILE)
@pytest.mark.parametrize("kind", [BadRecord, errors.StorageError])
def test_error_is_found_exactly_in_what_spark_makes_of_it(kind: type[PenstockError], message: str) -> None:
    """Type, message and fields are recovered from the text of a traceback, whatever the message says about other errors."""
    error = BadRecord(message, path="/in/\n[PST-400] a", offset=7) if kind is BadRecord else kind(message)
    text = printed(error)
    expected = kind(message)
    vars(expected).update({name: value for name, value in vars(error).items() if name != "__notes__"})
    java = (
        f"[STREAM_FAILED] terminated with exception: Traceback\n  File x\n{text} SQLSTATE: 38000\n\tat org.apache.spark"
    )
    assert same(errors.of(java), expected)
    assert same(errors.of(f"[PST-400] damaged\n{java}\nCaused by: {java}"), expected)
    assert same(errors.of(Wrapper("failed", cause=Wrapper("why", java=java))), expected)


def test_a_name_that_is_not_utf8_can_leave() -> None:
    """PySpark sends only what UTF-8 can encode, and loses any other error: such a name is escaped."""
    assert (
        printed(errors.StorageError("no \udcff"))
        .encode()
        .startswith(rb"penstock.errors.StorageError: [PST-500] no \udcff")
    )


def test_error_without_its_note_is_found_by_its_name() -> None:
    """In a text from elsewhere the error is the last one named in a line, with the rest of the line as its message."""
    text = (
        "[STREAM_FAILED] ... Traceback ...\npenstock.errors.NotThere: [PST-502] no such file\n\n"
        "The above exception was the direct cause ...\n"
        "penstock.errors.Fenced: [PST-301] sink 's' belongs to 'x'\n SQLSTATE: 38000"
    )
    error = errors.of(text)
    assert isinstance(error, errors.Fenced)
    assert error.message == "sink 's' belongs to 'x'"
    for wrapped in (
        "[PST-301] x",
        "error: [PST-301] x",
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: penstock.errors.Fenced: [PST-301] x",
    ):
        assert same(errors.of(wrapped), errors.Fenced("x"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "something else",
        "ValueError: found '[PST-301] sink'",
        "ValueError: row penstock.errors.Fenced: [PST-301] x",
        "penstock.errors.NotThere: [PST-301] a code of another class",
        '(penstock {"code": "PST-301", "length": 99, "fields": {}})',
        '[PST-301] x\n(penstock {"code": "PST-400", "length": 1, "fields": {}})\n'.replace("[PST-301]", "[PST-30]"),
        "(penstock {])",
        "(penstock {})",
        '(penstock {"code": [], "length": "x", "fields": 3})',
    ],
)
def test_what_is_no_error_of_ours(text: str) -> None:
    """A text, or an error, that only mentions codes contains none of our errors."""
    assert errors.of(text) is None
    assert errors.of(ValueError(text)) is None


def test_error_is_found_in_what_python_makes_of_it() -> None:
    """An error of ours is found itself, as a cause, in a group, and as a context, unless `from None` has suppressed that."""
    ours = errors.Fenced("x")
    assert errors.of(ours) is ours
    assert errors.of(None) is None

    def raised(cause: BaseException | None, *, disowned: bool) -> Exception:
        try:
            try:
                raise ours
            except PenstockError as error:
                if disowned:
                    raise ValueError from cause
                raise ValueError from cause or error
        except ValueError as error:
            return error

    assert errors.of(raised(ours, disowned=False)) is ours
    assert errors.of(raised(None, disowned=True)) is None
    implicit = ValueError("x")
    implicit.__context__ = ours
    assert errors.of(implicit) is ours
    assert same(errors.of(_caused(implicit, Wrapper("[PST-400] y"))), errors.DamagedState("y"))
    looped = ValueError("x")
    looped.__cause__ = looped
    assert errors.of(looped) is None


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    error.__suppress_context__ = False
    return error


def test_error_whose_jvm_is_gone() -> None:
    """What PySpark knows by itself is enough if the JVM that it would have to ask is gone."""

    class Gone(Wrapper):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert same(errors.of(Gone("", java="[PST-301] x")), errors.Fenced("x"))
    assert errors.of(Gone("")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("requirement failed: penstock does not support Update mode.", "expected append"),
        ("requirement failed: penstock-db does not support Update mode.", "mode=upsert and keyColumns"),
        (
            'The data source "penstock" cannot be written in the "ErrorIfExists" mode.',
            "mode('append'), with a batchKey",
        ),
        (
            "Unsupported data source type for direct query on files: penstock SQLSTATE",
            "expected spark.read.format('penstock')",
        ),
        ("Unsupported data source type for direct query on files: penstock-db.", "not a table to select from"),
        ("Data source penstock-wal does not support continuous processing.", "format penstock-wal works in batches"),
        (
            "[DATA_SOURCE_NOT_EXIST] Data source 'penstock' not found. Please make sure the data",
            "call penstock.register",
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: penstock-db. Make sure",
            "has not found format penstock-db",
        ),
    ],
)
def test_what_spark_refuses_before_it_asks_us(text: str, says: str) -> None:
    """What Spark refuses about our formats in its own words is said in ours, with advice."""
    error = errors.of(Wrapper(text))
    assert isinstance(error, errors.OptionError)
    assert says in error.message


def test_errors_leave_without_what_led_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The causes of an error are not sent to Spark, which repeats each line, unless PENSTOCK_DEBUG=1."""
    words, why = "x", "why"

    @border
    class Called:
        def fail(self) -> None:
            try:
                self._deep()
            except KeyError as error:
                raise errors.NotThere(words) from error

        def each(self) -> Iterator[int]:
            yield 1
            self.fail()

        def _deep(self) -> None:
            raise KeyError(why)

    def text(call: Callable[[], object]) -> str:
        with pytest.raises(errors.NotThere) as caught:
            call()
        return "".join(traceback.format_exception(caught.value))

    for call in (Called().fail, lambda: list(Called().each())):
        assert "why" not in text(call)
        assert same(errors.of(text(call)), errors.NotThere("x"))
    monkeypatch.setenv(errors.DEBUG, "1")
    assert "why" in text(Called().fail)


def test_exit_statuses() -> None:
    """Usage errors exit with 2, damaged state with 3, everything else with 1."""
    for kind in kinds():
        expected = 2 if issubclass(kind, errors.UsageError) else 3 if issubclass(kind, errors.DamagedState) else 1
        assert kind.exit_status == expected
