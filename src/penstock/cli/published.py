"""`penstock files DST --follow`: prints each event of an output on a line, as it is published. Needs neither Spark nor Java."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import typer

from penstock import clock
from penstock.cli.answer import Answer, moment, printable
from penstock.cli.process import Stop, check_read, stop_signals
from penstock.errors import OptionError
from penstock.options.parsers import event_starting, identifier
from penstock.sink import eventrows
from penstock.sink.published import Published
from penstock.storage import locate
from penstock.units import counted, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLLOW_SECONDS = 0.5
_REMEDY = "begin again, with --from earliest or --from latest, or restore the output from a copy"
_EVENTS = 1000  # read at a time, so that memory does not depend on the history


def check_not_given(flags: Mapping[str, str | None]) -> None:
    """Raise `OptionError` for a flag that has a meaning with --follow only."""
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        msg = f"{given[0]} is for --follow: expected penstock files DST --follow {given[0]} ..."
        raise OptionError(msg)


def follow(dst: str, start: str | None, sink: str | None, *, as_json: bool) -> Answer:
    """Print the events of DST from `start` on, then new ones as they come, until a signal ends it (status 0) or its reader goes."""
    storage, root = locate(dst, name="DST")
    published = Published(storage, root, sink if sink is None else identifier(sink, "--sink"), remedy=_REMEDY)
    at = published.begin(event_starting("earliest" if start is None else start, "--from"), name="--from")
    warn_of_absent(dst, sink)
    printed = 0
    with stop_signals() as stop:
        while not stop.requested:
            until = published.plan(at, _EVENTS)
            if until == at:
                check_read()
                clock.sleep(_FOLLOW_SECONDS)
            ahead = takewhile(lambda _: not stop.requested, published.told(at, until))
            for event, after in ahead:
                _print(as_facts(eventrows.facts(event, root)), after, as_json=as_json)
                at, printed = after, printed + 1
            at = _reached(at, until, stop)
    return Answer({"ok": True, "path": root, "events": printed, "after": published.place(at)})


def warn_of_absent(dst: str, sink: str | None) -> None:
    """Warn on stderr if the sink that is waited for has not written to DST yet, because its name may be misspelt."""
    storage, root = locate(dst, name="DST")
    sinks = Published(storage, root).sinks()
    if sink is not None and sink not in sinks:
        names = ", ".join(sinks) or "none"
        typer.echo(
            f"warning: --sink {sink!r} is not in {root!r} yet, and nothing is known of it; there are: {names}", err=True
        )


def _reached(at: dict[str, Any], after: dict[str, Any], stop: Stop) -> dict[str, Any]:
    """Return the position up to which all events are printed: after the batch, or, if a stop came before its end, `at`."""
    return at if stop.requested else after


def _print(facts: dict[str, Any], after: dict[str, Any], *, as_json: bool) -> None:
    typer.echo(json.dumps(facts | {"after": after}) if as_json else "\t".join(map(printable, _cells(facts))))


def as_facts(known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event as a command prints them, with its time for people."""
    time_ns = known.pop("time_ns")
    return known | {"time": None if time_ns is None else moment(time_ns)}


def _cells(facts: Mapping[str, Any]) -> tuple[str, ...]:
    time, event = facts["time"] or "-", facts["event"]
    if facts["path"] is None:
        return time, event, facts["bucket"]
    rows = "rows unknown" if facts["rows"] is None else counted(facts["rows"], "row")
    return time, event, facts["path"], rows, format_size(facts["size"])
