"""`penstock catalog`: brings finished files into a Delta or Iceberg table, once or as they come. Needs neither Spark nor Java."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.catalogs.follower import Catalogued, follower
from penstock.cli.answer import Answer
from penstock.cli.process import stop_signals
from penstock.cli.published import warn_of_absent
from penstock.errors import OptionError
from penstock.units import counted, parse_duration

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.catalogs.follower import Follower

_INTERVAL = "10s"  # between looks: each commit is a version of the table
_SLICE_SECONDS = 0.5
_SHOWN = 100


def catalog(dst: str, options: dict[str, Any], *, watch: bool, interval: str | None) -> Answer:
    """Bring in what is new, with `watch` until a signal ends it (status 0). Raises what `penstock.catalog` raises."""
    if interval is not None and not watch:
        msg = f"--interval is for --watch: expected penstock catalog DST ... --watch --interval {interval}"
        raise OptionError(msg)
    seconds = parse_duration(interval or _INTERVAL, name="--interval")
    following = follower(dst, **options)
    warn_of_absent(dst, options["sink"])
    done = _watch(following, seconds) if watch else following.take()
    return Answer({"ok": True} | asdict(done), lambda out: _show(done, out))


def _watch(following: Follower, seconds: float) -> Catalogued:
    with stop_signals() as stop:
        done = following.take()
        while not stop.requested:
            waited = 0.0
            while waited < seconds and not stop.requested:
                clock.sleep(_SLICE_SECONDS)
                waited += _SLICE_SECONDS
            done = _sum(done, following.take())
    return done


def _sum(before: Catalogued, last: Catalogued) -> Catalogued:
    return replace(
        last,
        files=before.files + last.files,
        rows=before.rows + last.rows,
        commits=before.commits + last.commits,
        skipped=(*before.skipped, *last.skipped)[-_SHOWN:],
    )


def _show(done: Catalogued, out: Console) -> None:
    for path in done.skipped[:_SHOWN]:
        out.print(f"{path}: passed over, it is not in the table", soft_wrap=True)
    at = (
        "nothing is published yet"
        if done.version is None
        else f"at {'version' if done.kind == 'delta' else 'snapshot'} {done.version}"
    )
    new = f"{counted(done.files, 'file')} with {counted(done.rows, 'row')} in {counted(done.commits, 'commit')}"
    out.print(f"{done.table}: {new}; {at}", soft_wrap=True)
