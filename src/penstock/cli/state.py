"""`status`, `files`, `finish` and `clean`: what the ledgers of an output say, and what may be done without its query.

None of them needs Spark or Java.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from penstock import clock
from penstock.cli.answer import Answer, counted, moment, printable
from penstock.clock import SECOND_NS
from penstock.errors import NotThere, OptionError
from penstock.storage import TEMPORARY, locate
from penstock.units import format_duration, format_size
from penstock.verify.files import SinkView, existing_sinks, unnamed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from penstock.sink.ledger import FinishedFile, OpenPart
    from penstock.sink.sink import Sink
    from penstock.storage import Storage

_TEMPORARY_NS = 600 * SECOND_NS  # a put takes milliseconds; what is younger may be one
_PARTS_SHOWN = 50
_TABLE_ROWS_MAX = 1000  # rich measures every cell before it prints the first line


def status(dst: str) -> Answer:
    """Return what each sink of DST is doing."""
    storage, root = locate(dst, name="DST")
    sinks = [_sink_facts(sink) for sink in existing_sinks(storage, root)]

    def show(out: Console) -> None:
        if not sinks:
            out.print(f"no sink has written to {root} yet")
        for sink in sinks:
            _show_sink(sink, out)

    return Answer({"ok": True, "path": root, "sinks": sinks}, show)


def files(dst: str) -> Answer:
    """Return the finished files of DST, oldest first."""
    storage, root = locate(dst, name="DST")
    views = [SinkView.of(sink) for sink in existing_sinks(storage, root)]
    listed = [(view.sink.sink_id, file) for view in views for file in view.files]
    growing = [(view.sink.sink_id, path, length) for view in views for path, length in view.head.lengths.items()]
    facts = {
        "ok": True,
        "path": root,
        "files": [{"sink": sink} | _file_facts(file) for sink, file in listed],
        "growing": [{"sink": sink, "path": path, "bytes": length} for sink, path, length in growing],
        "rows": sum(file.rows for _, file in listed),
        "bytes": sum(file.bytes for _, file in listed) + sum(length for *_, length in growing),
    }
    return Answer(facts, lambda out: _show_files(facts, out))


def finish(dst: str, sink_id: str | None, *, as_text: bool = False) -> Answer:
    """Publish what is committed and open in each sink of DST, or in one; `OptionError` if it has none of that name."""
    storage, root = locate(dst, name="DST")
    sinks = existing_sinks(storage, root)
    if sink_id is not None:
        chosen = [sink for sink in sinks if sink.sink_id == sink_id]
        if not chosen:
            names = ", ".join(sink.sink_id for sink in sinks) or "none"
            msg = f"--sink {sink_id!r} is not in {root!r}; there are: {names}"
            raise OptionError(msg)
        sinks = chosen
    done = [(sink.sink_id, _finished(sink, as_text=as_text)) for sink in sinks]
    listed = [{"sink": name} | _file_facts(file) for name, found in done for file in found]
    facts = {"ok": True, "path": root, "files": listed, "rows": sum(file["rows"] for file in listed)}

    def show(out: Console) -> None:
        for file in listed:
            out.print(
                f"published {file['path']} ({counted(file['rows'], 'row')}, {format_size(file['bytes'])})",
                soft_wrap=True,
            )
        if not listed:
            out.print("nothing was open")

    return Answer(facts, show)


def clean(dst: str, *, yes: bool) -> Answer:
    """Remove, or without `yes` list, what crashes left in the state directories of DST and no ledger names."""
    storage, root = locate(dst, name="DST")
    left = [item for sink in existing_sinks(storage, root) for item in _leftovers(storage, sink)]
    if yes:
        for item in left:
            storage.delete(item["path"])
    size = sum(item["bytes"] for item in left)
    facts = {"ok": True, "path": root, "removed": yes, "files": left, "bytes": size}

    def show(out: Console) -> None:
        done = "removed" if yes else "would remove"
        for item in left:
            out.print(f"{done} {item['path']} ({format_size(item['bytes'])}, {item['what']})", soft_wrap=True)
        if not left:
            out.print("nothing to remove")
        else:
            out.print(f"{done} {counted(len(left), 'file')}, {format_size(size)}{'' if yes else '; --yes to do it'}")

    return Answer(facts, show)


# -- facts -------------------------------------------------------------------------------------------------------


def _sink_facts(sink: Sink) -> dict[str, Any]:
    look = sink.ledger.look()
    head = sink.ledger.head(look)
    published = look.is_published(head)
    writers = {part.writer for part in head.open} | {int(writer) for writer in head.sequences}
    return {
        "sink": sink.sink_id,
        "record": head.n,
        "epoch": head.epoch,
        "owner": head.owner,
        "committed": moment(head.time_ns) if head.time_ns else None,
        "batches": {query: number for query, (number, _) in head.batches.items()},
        "writers": sorted(writers),
        "rows": head.total_rows,
        "files": head.total_files,
        "bytes": head.total_bytes,
        "owed_files": 0 if published else len(head.finished) + len(head.grown),
        "growing": head.lengths,
        "null_columns": head.account.null_columns,
        "unknown_fields": head.account.unknown,
        "notes": head.account.told(),
        "open": [_part_facts(part) for part in sorted(head.open, key=lambda part: part.key)],
        "unnamed_files": len(unnamed(sink, head, published=published)),
    }


def _part_facts(part: OpenPart) -> dict[str, Any]:
    return {
        "bucket": part.bucket,
        "writer": part.writer,
        "rows": part.rows,
        "bytes": part.size,
        "segments": len(part.segments),
        "batches": [part.first_batch, part.last_batch],
        "opened": moment(part.opened_ns),
        "open_seconds": _seconds_since(part.opened_ns),
        "idle_seconds": _seconds_since(part.written_ns),
    }


def _file_facts(file: FinishedFile) -> dict[str, Any]:
    facts = asdict(file)
    first, last = facts.pop("first_batch"), facts.pop("last_batch")
    facts.pop("staged")
    return facts | {"batches": [first, last]}


def _finished(sink: Sink, *, as_text: bool) -> tuple[FinishedFile, ...]:
    done = sink.finish(as_text=as_text)
    return done.files if done else ()


def _seconds_since(time_ns: int) -> float:
    return round(max(clock.now_ns() - time_ns, 0) / SECOND_NS, 1)


def _leftovers(storage: Storage, sink: Sink) -> Iterator[dict[str, Any]]:
    look = sink.ledger.look()
    head = sink.ledger.head(look)
    for name in unnamed(sink, head, published=look.is_published(head)):
        path = f"{sink.staging}/{name}"
        yield {"path": path, "bytes": _size(storage, path), "what": "staged, no record names it"}
    now = storage.now_ns()
    for directory in (sink.state, f"{sink.state}/ledger"):
        for entry in storage.list(directory):
            if entry.name.startswith(TEMPORARY) and entry.modified_ns < now - _TEMPORARY_NS:
                yield {"path": f"{directory}/{entry.name}", "bytes": entry.size, "what": "temporary of a crash"}


def _size(storage: Storage, path: str) -> int:
    try:
        return storage.stat(path).size
    except NotThere:
        return 0  # a live query swept it meanwhile


# -- for people --------------------------------------------------------------------------------------------------


def _show_sink(sink: dict[str, Any], out: Console) -> None:
    out.print(f"sink {sink['sink']}", style="bold")
    for query, batch in sink["batches"].items():
        out.print(f"  query {query}: batch {batch} is committed")
    finished = f"{counted(sink['files'], 'file')}, {format_size(sink['bytes'])}"
    out.print(f"  {counted(sink['rows'], 'row')} committed in all; finished: {finished}")
    record = f"record {sink['record']} of {sink['committed'] or 'no batch yet'}"
    out.print(f"  {record}, epoch {sink['epoch']}, owner {sink['owner']}")
    for note in sink["notes"]:
        out.print(f"  {note}", soft_wrap=True)
    for path, length in sink["growing"].items():
        out.print(f"  growing: {path}, {format_size(length)}")
    if sink["owed_files"]:
        out.print(
            f"  {counted(sink['owed_files'], 'file')} decided, not visible yet: the next start publishes them, or finish"
        )
    if sink["unnamed_files"]:
        out.print(f"  {counted(sink['unnamed_files'], 'staged file')} that nothing names: penstock clean")
    if not sink["open"]:
        out.print("  no open part")
        return
    table = _table("bucket", "writer", "rows", "size", "segments", "batches", "open for", "idle for")
    for part in sink["open"][:_PARTS_SHOWN]:
        ages = [format_duration(part[what]) for what in ("open_seconds", "idle_seconds")]
        cells = part["bucket"] or "-", part["writer"], f"{part['rows']:,}", format_size(part["bytes"]), part["segments"]
        table.add_row(*map(str, cells), _range(part["batches"]), *ages)
    out.print(table)
    if len(sink["open"]) > _PARTS_SHOWN:
        out.print(f"  ... and {len(sink['open']) - _PARTS_SHOWN:,} more open parts")


def _show_files(facts: dict[str, Any], out: Console) -> None:
    rows = [
        (file["path"], file["bucket"] or "-", _range(file["batches"]), f"{file['rows']:,}", format_size(file["bytes"]))
        for file in facts["files"]
    ]
    rows += [(file["path"], "-", "growing", "-", format_size(file["bytes"])) for file in facts["growing"]]
    if len(rows) <= _TABLE_ROWS_MAX:
        table = _table("file", "bucket", "batches", "rows", "size")
        for row in rows:
            table.add_row(*row)
        out.print(table)
    else:
        for row in rows:
            typer.echo("\t".join(map(printable, row)))
    out.print(f"{counted(len(rows), 'file')}, {counted(facts['rows'], 'row')}, {format_size(facts['bytes'])}")


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(first, box=None, pad_edge=False, header_style="bold")
    table.columns[0].overflow = "fold"
    for name in others:
        table.add_column(name, justify="left" if name == "bucket" else "right", overflow="fold")
    return table


def _range(batches: list[int]) -> str:
    first, last = batches
    return str(first) if first == last else f"{first}-{last}"
