"""`status`, `files`, `finish` and `clean`: what the ledgers of an output say, and what can be done without its query.

None of them needs Spark or Java.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from penstock import clock
from penstock.cli.answer import Answer, moment, printable
from penstock.cli.progress import not_read
from penstock.cli.verified import last
from penstock.clock import SECOND_NS
from penstock.errors import OptionError
from penstock.ingestion.late import told
from penstock.sink.adopt import UNKNOWN_ROWS
from penstock.sink.decide import names_now, parts_named
from penstock.sink.keyed import ONCE
from penstock.sink.keys import KeyTables
from penstock.storage import TEMPORARY, locate
from penstock.units import counted, format_duration, format_size
from penstock.verify.files import SinkView, existing_sinks, size_if_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console
    from rich.table import Table

    from penstock.cli.verified import LastProof
    from penstock.sink.ledger import FinishedFile, OpenPart, State
    from penstock.sink.sink import Sink
    from penstock.storage import Storage

# A put takes milliseconds; a temporary file that is younger than this may still be in use.
_TEMPORARY_NS = 600 * SECOND_NS
_UPLOAD_NS = 24 * 3600 * SECOND_NS  # a task may write a long part for hours
_PARTS_SHOWN = 50
_PARTS_NAMED = 5  # in an error
# rich measures every cell of a table before it prints the first line.
_TABLE_ROWS_MAX = 1000


def status(dst: str) -> Answer:
    """Return what each sink of DST is doing."""
    storage, root = locate(dst, name="DST")
    sinks = [sink_facts(sink) for sink in existing_sinks(storage, root)]
    verdict = last(storage, root)

    def show(out: Console) -> None:
        if not sinks:
            out.print(f"no sink has written to {root} yet")
        for sink in sinks:
            _show_sink(sink, out)
        if verdict is not None:
            out.print(_in_words(verdict), soft_wrap=True)

    return Answer({"ok": True, "path": root, "sinks": sinks, "verified": verdict_facts(verdict)}, show)


def verdict_facts(verdict: LastProof | None) -> dict[str, Any] | None:
    """Return the last result of `verify`, as it is printed in JSON."""
    return None if verdict is None else asdict(verdict) | {"time": moment(verdict.time_ns)}


def _in_words(verdict: LastProof) -> str:
    found = f", {counted(verdict.problems, 'problem')}" if verdict.problems else ""
    seen = "every file whole and once" if verdict.ok else f"not well{found}: verify says why"
    return f"verified last at {moment(verdict.time_ns)}: {seen}"


def files(dst: str) -> Answer:
    """Return the finished files of DST, oldest first."""
    storage, root = locate(dst, name="DST")
    views = [SinkView.of(sink) for sink in existing_sinks(storage, root)]
    finished = [facts for view in views for facts in _file_facts(view.sink, view.output)]
    facts = {
        "ok": True,
        "path": root,
        "files": finished,
        "growing": [facts for view in views for facts in _growing_facts(view)],
        "rows": _sum(finished, "rows"),
        "bytes": sum(view.bytes for view in views),
    }
    return Answer(facts, lambda out: _show_files(facts, out))


def finish(dst: str, sink_id: str | None, part: str | None = None, *, as_text: bool = False) -> Answer:
    """Publish what is open in each sink of DST or in one sink: everything, or the parts of one name. `OptionError` if there is none."""
    storage, root = locate(dst, name="DST")
    sinks = _chosen(existing_sinks(storage, root), sink_id, root)
    if part is not None:
        sinks = _having(part, sinks, root)
    published = [facts for sink in sinks for facts in _finished(sink, part, as_text=as_text)]
    facts = {"ok": True, "path": root, "files": published, "rows": _sum(published, "rows")}

    def show(out: Console) -> None:
        for file in published:
            size = f"{counted(file['rows'], 'row')}, {format_size(file['bytes'])}"
            out.print(f"published {file['path']} ({size})", soft_wrap=True)
        if not published:
            out.print("nothing was open")

    return Answer(facts, show)


def _having(part: str, sinks: list[Sink], root: str) -> list[Sink]:
    """Return the sinks that have open parts of this name; `OptionError` if there is none."""
    having = [sink for sink in sinks if parts_named(sink.ledger.head(), part, sink.rules)]
    if not having:
        names = [name for sink in sinks for name in names_now(sink.ledger.head(), sink.rules).values()]
        shown = ", ".join(map(repr, names[:_PARTS_NAMED])) + (", ..." if len(names) > _PARTS_NAMED else "")
        msg = f"--part {part!r} is not open in {root!r}; expected a part or a bucket as penstock status shows it, such as {shown or 'none'}"
        raise OptionError(msg)
    return having


def _chosen(sinks: list[Sink], sink_id: str | None, root: str) -> list[Sink]:
    """Return all sinks, or the one of that name; `OptionError` if there is no such sink."""
    if sink_id is None:
        return sinks
    chosen = [sink for sink in sinks if sink.sink_id == sink_id]
    if not chosen:
        names = ", ".join(sink.sink_id for sink in sinks) or "none"
        msg = f"--sink {sink_id!r} is not in {root!r}; there are: {names}"
        raise OptionError(msg)
    return chosen


def clean(dst: str, *, yes: bool) -> Answer:
    """Remove, or without `yes` only list, what crashes left in the state directories of DST and no ledger names."""
    storage, root = locate(dst, name="DST")
    left = [item for sink in existing_sinks(storage, root) for item in _leftovers(storage, sink)]
    left += _abandoned(storage, root)
    if yes:
        for item in left:
            if "upload" in item:
                storage.drop(item["path"], item["upload"])
            else:
                storage.delete(item["path"])
    size = _sum(left, "bytes")
    facts = {"ok": True, "path": root, "removed": yes, "files": left, "bytes": size}

    return Answer(facts, lambda out: _show_left(left, size, removed=yes, out=out))


# -- facts -------------------------------------------------------------------------------------------------------


def _sum(files: list[dict[str, Any]], name: str) -> int:
    return sum(file[name] or 0 for file in files)


def sink_facts(sink: Sink) -> dict[str, Any]:
    """Return what a sink's ledger, and the last plan of its query, say now. O(open parts)."""
    look = sink.ledger.look()
    head = sink.ledger.head(look)
    published = look.is_published(head)
    return {
        "sink": sink.sink_id,
        "record": head.n,
        "epoch": head.epoch,
        "owner": head.owner,
        "committed": moment(head.time_ns) if head.time_ns else None,
        "batches": {query: number for query, (number, _) in head.batches.items()},
        "writers": _writers(head),
        "rows": head.total_rows,
        "files": head.total_files - head.aside.parts,
        "bytes": head.total_bytes - head.aside.bytes,
        "aside": _aside_facts(sink, head),
        "owed_files": 0 if published else len(head.finished) + len(head.grown),
        "growing": dict(sink.lengths.all_of(head)),
        "writing": {key: driver for key, (_, driver) in head.writing.items() if not key.startswith(ONCE)},
        "keys": dict(KeyTables(sink.storage, sink.staging).all_of(head)),
        "waiting": {bucket: moment(waits.end_us * 1000) for bucket, waits in head.ready.waiting.items()},
        "null_columns": head.account.null_columns,
        "unknown_fields": head.account.unknown,
        "notes": head.account.told(),
        **told(sink, head),
        "open": list(_open_facts(sink, head)),
        "unnamed_files": sum(1 for _ in sink.committer.unnamed(head, published=published)),
    }


def _aside_facts(sink: Sink, head: State) -> dict[str, Any]:
    """Return how much was set aside, and where the details are."""
    tally = head.aside
    told = {"records": tally.records, "files": tally.files, "changed": tally.changes, "retried": tally.retried}
    return told | {"path": sink.aside if head.aside.lines else None}


def _writers(head: State) -> list[int]:
    """Return the writers that have an open part, or a number for their next file."""
    return sorted({part.writer for part in head.open} | set(map(int, head.sequences)))


def _open_facts(sink: Sink, head: State) -> Iterator[dict[str, Any]]:
    """Yield the facts of the open parts, in the order in which they would be named."""
    parts = {part.key: part for part in head.open}
    for key, name in names_now(head, sink.rules).items():
        yield {"part": name} | _part_facts(parts[key])


def _part_facts(part: OpenPart) -> dict[str, Any]:
    return {
        "bucket": part.bucket,
        "writer": part.writer,
        **({"name": part.name} if part.name else {}),
        "rows": part.rows,
        "bytes": part.size,
        "segments": len(part.segments),
        "batches": [part.first_batch, part.last_batch],
        "opened": moment(part.opened_ns),
        "open_seconds": _seconds_since(part.opened_ns),
        "idle_seconds": _seconds_since(part.written_ns),
    }


def _file_facts(sink: Sink, files: Iterable[FinishedFile]) -> Iterator[dict[str, Any]]:
    for file in files:
        facts = asdict(file)
        first, last = facts.pop("first_batch"), facts.pop("last_batch")
        del facts["staged"], facts["name"]
        if facts["rows"] == UNKNOWN_ROWS:
            facts["rows"] = None
        yield {"sink": sink.sink_id} | facts | {"batches": [first, last]}


def _growing_facts(view: SinkView) -> Iterator[dict[str, Any]]:
    for path, length in view.lengths.items():
        yield {"sink": view.sink.sink_id, "path": path, "bytes": length}


def _finished(sink: Sink, part: str | None, *, as_text: bool) -> Iterator[dict[str, Any]]:
    """Publish what is open in a sink, and yield the facts of the resulting files."""
    record = sink.finish(as_text=as_text, only=part)
    return _file_facts(sink, record.files if record else ())


def _seconds_since(time_ns: int) -> float:
    return round(max(clock.now_ns() - time_ns, 0) / SECOND_NS, 1)


def _leftovers(storage: Storage, sink: Sink) -> Iterator[dict[str, Any]]:
    """Yield the files of a sink's state that nothing refers to: path, bytes, and what they are."""
    yield from _staged_in_vain(storage, sink)
    for directory in (sink.state, f"{sink.state}/ledger"):
        yield from _temporaries(storage, directory)


def _abandoned(storage: Storage, root: str) -> list[dict[str, Any]]:
    """Return partial uploads in an object store whose writer died: no listing shows them, but they cost money."""
    uploads = storage.abandoned(root, storage.now_ns() - _UPLOAD_NS)
    return [
        {"path": path, "bytes": None, "what": "upload that nobody finished", "upload": upload}
        for path, upload in uploads
    ]


def _staged_in_vain(storage: Storage, sink: Sink) -> Iterator[dict[str, Any]]:
    look = sink.ledger.look()
    head = sink.ledger.head(look)
    for name in sorted(sink.committer.unnamed(head, published=look.is_published(head))):
        path = f"{sink.staging}/{name}"
        yield {"path": path, "bytes": size_if_there(storage, path) or 0, "what": "staged, no record names it"}


def _temporaries(storage: Storage, directory: str) -> Iterator[dict[str, Any]]:
    before = storage.now_ns() - _TEMPORARY_NS
    for entry in storage.list(directory):
        if entry.name.startswith(TEMPORARY) and entry.modified_ns < before:
            yield {"path": f"{directory}/{entry.name}", "bytes": entry.size, "what": "temporary of a crash"}


# -- for people --------------------------------------------------------------------------------------------------


def _show_sink(sink: dict[str, Any], out: Console) -> None:
    out.print(f"sink {sink['sink']}", style="bold")
    _show_committed(sink, out)
    for note in (*not_read(sink), *sink["notes"]):
        out.print(f"  {note}", soft_wrap=True)
    if sink["aside"]["path"]:
        out.print(f"  set aside: {beside(sink['aside'])}, in {sink['aside']['path']}", soft_wrap=True)
    if sink["waiting"]:
        first = min(sink["waiting"], key=sink["waiting"].__getitem__)
        out.print(f"  {counted(len(sink['waiting']), 'bucket')} of time not complete yet; the first is {first}")
    for key, driver in sink["writing"].items():
        out.print(
            f"  batch {key!r} is being written by {driver}, or was when that died: write it again, or finish",
            soft_wrap=True,
        )
    _show_not_visible(sink, out)
    _show_open(sink["open"], out)


def _show_committed(sink: dict[str, Any], out: Console) -> None:
    for query, batch in sink["batches"].items():
        out.print(f"  query {query}: batch {batch} is committed")
    finished = f"{counted(sink['files'], 'file')}, {format_size(sink['bytes'])}"
    out.print(f"  {counted(sink['rows'], 'row')} committed in all; finished: {finished}")
    record = f"record {sink['record']} of {sink['committed'] or 'no batch yet'}, epoch {sink['epoch']}, owner {sink['owner']}"
    out.print(
        f"  {record}"
        if sink["record"]
        else "  no record yet: the first run ended, or has begun, before it decided anything"
    )


def beside(aside: dict[str, Any]) -> str:
    """Return in words how much was set aside."""
    words = {"records": "bad record", "files": "bad file", "changed": "changed file"}
    told = [counted(aside[name], word) for name, word in words.items() if aside[name]]
    return ", ".join(told) + (f" ({aside['retried']:,} of them taken in since)" if aside.get("retried") else "")


def _show_not_visible(sink: dict[str, Any], out: Console) -> None:
    for path, length in sink["growing"].items():
        out.print(f"  growing: {path}, {format_size(length)}")
    if sink["owed_files"]:
        out.print(
            f"  {counted(sink['owed_files'], 'file')} decided, not visible yet: the next start publishes them, or finish"
        )
    if sink["unnamed_files"]:
        out.print(f"  {counted(sink['unnamed_files'], 'staged file')} that nothing names: penstock clean")


def _show_open(parts: list[dict[str, Any]], out: Console) -> None:
    if not parts:
        out.print("  no open part")
        return
    table = _table("part", "writer", "rows", "size", "segments", "batches", "open for", "idle for")
    for part in parts[:_PARTS_SHOWN]:
        table.add_row(*_part_cells(part))
    out.print(table)
    if len(parts) > _PARTS_SHOWN:
        out.print(f"  ... and {len(parts) - _PARTS_SHOWN:,} more open parts")


def _part_cells(part: dict[str, Any]) -> list[str]:
    return [
        part["part"],
        str(part["writer"]),
        f"{part['rows']:,}",
        format_size(part["bytes"]),
        str(part["segments"]),
        _range(part["batches"]),
        format_duration(part["open_seconds"]),
        format_duration(part["idle_seconds"]),
    ]


def _show_files(facts: dict[str, Any], out: Console) -> None:
    rows = [*map(_file_cells, facts["files"]), *map(_growing_cells, facts["growing"])]
    if len(rows) <= _TABLE_ROWS_MAX:
        table = _table("file", "bucket", "batches", "rows", "size")
        for row in rows:
            table.add_row(*row)
        out.print(table)
    else:
        for row in rows:
            typer.echo("\t".join(map(printable, row)))
    out.print(f"{counted(len(rows), 'file')}, {counted(facts['rows'], 'row')}, {format_size(facts['bytes'])}")


def _file_cells(file: dict[str, Any]) -> tuple[str, ...]:
    bucket, size = file["bucket"] or "-", format_size(file["bytes"])
    return file["path"], bucket, _range(file["batches"]), "-" if file["rows"] is None else f"{file['rows']:,}", size


def _growing_cells(file: dict[str, Any]) -> tuple[str, ...]:
    return file["path"], "-", "growing", "-", format_size(file["bytes"])


def _show_left(left: list[dict[str, Any]], size: int, *, removed: bool, out: Console) -> None:
    verb = "removed" if removed else "would remove"
    for item in left:
        out.print(f"{verb} {item['path']} ({_size_of(item)}{item['what']})", soft_wrap=True)
    if not left:
        out.print("nothing to remove")
        return
    hint = "" if removed else "; --yes to do it"
    out.print(f"{verb} {counted(len(left), 'file')}, {format_size(size)}{hint}")


def _size_of(item: dict[str, Any]) -> str:
    return "" if item["bytes"] is None else f"{format_size(item['bytes'])}, "


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(first, box=None, pad_edge=False, header_style="bold")
    table.columns[0].overflow = "fold"
    for name in others:
        table.add_column(name, justify="left" if name in {"part", "bucket"} else "right", overflow="fold")
    return table


def _range(batches: list[int]) -> str:
    first, last = batches
    return str(first) if first == last else f"{first}-{last}"
