"""`penstock ingest --dry-run`: what `penstock.dry_run` found, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer
from penstock.errors import OptionError
from penstock.ingestion.ingest import dry_run
from penstock.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.cli.ingest import Request

_BATCHES_SHOWN = 20
_BUCKETS_SHOWN = 20
_PATHS_SHOWN = 3
_WHY = {
    "held": "held back: changed too recently (settle)",
    "future": "in the future: held back until their time comes",
    "late": "too late: see penstock late",
    "unsure": "late, or read before and missing since: see penstock late",
    "read": "read before, or older than startingFrom",
    "hidden": "hidden: never read",
    "name": "of other names than asked for (path, pattern, pathGlobFilter)",
    "directory": "not entered (recursiveFileLookup)",
    "link": "links that lead out of SRC (followSymlinks)",
    "second": "links to files in SRC, which are read by their own names and cleaned (cleanSource)",
    "time": "of another time",
    "no file": "no files",
}


def preview(request: Request, *, watch: bool | str) -> Answer:
    """Say what the ingest would do; 1 if it would fail. Raises what is wrong with the call."""
    if watch:
        msg = "--dry-run looks at what is there now: leave --watch out"
        raise OptionError(msg)
    done = dry_run(
        request.src,
        request.dst,
        source=request.source,
        sink=request.sink,
        transform=request.transform,
        checkpoint=request.checkpoint,
    )
    sums = {"files": done.files, "bytes": done.bytes, "offsets": done.offsets}
    facts = {"ok": done.problem is None, "event": "dry-run"} | sums | asdict(done)
    return Answer(facts, lambda out: _show(facts, out), 0 if done.problem is None else 1)


def _show(facts: dict[str, Any], out: Console) -> None:
    batches = facts["batches"]
    if batches:
        size = _size(facts)
        out.print(f"would read {size}, in {len(batches):,} batch{'es' * (len(batches) > 1)}")
    else:
        out.print("would read nothing")
    for batch in batches[:_BATCHES_SHOWN]:
        size = _size(batch)
        again = " (planned before, not committed)" if batch["again"] else ""
        out.print(f"  batch {batch['number']}: {size}; {batch['first']} to {batch['last']}{again}", soft_wrap=True)
    if len(batches) > _BATCHES_SHOWN:
        out.print(f"  ... and {len(batches) - _BATCHES_SHOWN:,} more batches")
    _show_left_out(facts["left_out"], out)
    _show_sample(facts["sample"], out)
    for note in facts["notes"]:
        out.print(f"note: {note}", soft_wrap=True)
    if facts["problem"] is not None:
        out.print(f"would fail: {facts['problem']}", style="red", soft_wrap=True)
    out.print("nothing was written")


def _size(facts: dict[str, Any]) -> str:
    """Return how much is read: of topics, or of files."""
    if facts["offsets"]:
        return counted(facts["offsets"], "offset")
    return f"{counted(facts['files'], 'file')}, {format_size(facts['bytes'])}"


def _show_left_out(left_out: dict[str, dict[str, Any]], out: Console) -> None:
    for why, group in left_out.items():
        more = ", ..." if group["files"] > _PATHS_SHOWN else ""
        paths = ", ".join(group["examples"][:_PATHS_SHOWN])
        out.print(f"not read: {group['files']:,} {_WHY[why]}: {paths}{more}", soft_wrap=True)


def _show_sample(sample: dict[str, Any], out: Console) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in sample["columns"].items())
    out.print(f"would write the columns {columns}", soft_wrap=True)
    if not sample["files"] and not sample["offsets"]:
        return
    size = _size(sample)
    aside = f", {sample['set_aside']:,} set aside" if sample["set_aside"] else ""
    out.print(f"of a sample of {size}: {counted(sample['rows'], 'row')}{aside}")
    buckets = sorted(sample["buckets"].items(), key=lambda item: -item[1])
    if [name for name, _ in buckets] == [""]:
        return
    for name, rows in buckets[:_BUCKETS_SHOWN]:
        out.print(f"  {name}: {counted(rows, 'row')}", soft_wrap=True)
    if len(buckets) > _BUCKETS_SHOWN:
        out.print(f"  ... and {len(buckets) - _BUCKETS_SHOWN:,} more buckets")
