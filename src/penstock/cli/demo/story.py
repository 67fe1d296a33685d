"""The steps of the demo, and the table at its end.

1. It gathers the machine's Python sources.
2. It starts `penstock ingest` with small batches, and kills it (SIGKILL, all its processes) while a task writes.
3. It starts it again. The ingest goes on, and is killed between the put that commits a batch and the publishing of its
   files.
4. It starts it again, and the ingest ends. All the time a reader lists the output and reads what it finds.
5. `penstock verify --source` compares every line.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock import clock, unique
from penstock.cli.answer import Answer, console
from penstock.cli.demo.reader import Onlooker, source_hashes
from penstock.cli.demo.run import Ended, Run, is_there, kill_keeper
from penstock.cli.demo.source import Gathered, gather
from penstock.cli.process import interrupted_by_signals
from penstock.errors import OptionError, PenstockError
from penstock.session.local import require_pyspark
from penstock.storage import locate
from penstock.units import format_duration, format_size
from penstock.verify.files import existing_sinks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.status import Status

    from penstock.sink.ledger import State
    from penstock.sink.sink import Sink
    from penstock.storage import Storage

_BATCH, _PART = "8m", "4m"
_INGEST = ["--recursive", "--max-bytes", _BATCH, "--roll-size", _PART, "--master", "local[2]"]
# (failpoint, words for it): the fourth time that a task of some worker has written; the third commit of a driver.
_KILLS = (
    ("sink.write.staged=kill-jvm@4", "while a task was writing"),
    ("sink.ledger.after-put=kill-jvm@3", "after the commit, before its files were visible"),
)


@dataclass(frozen=True)
class Kill:
    """One kill, and what it left: the last committed batch; how many files are visible, decided but not visible, or staged in vain."""

    where: str
    batch: int
    visible_files: int
    owed_files: int
    staged_files: int


@dataclass
class Outcome:
    """The result of the demo."""

    gathered: Gathered
    records: int = 0
    kills: list[Kill] = field(default_factory=list)
    ended: dict[str, Any] = field(default_factory=dict)
    verified: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def play(directory: str | None, *, keep: bool, as_json: bool) -> Answer:
    """Run the demo; status 1 if anything at all is wrong. Raises `OptionError` for a directory that is in use."""
    require_pyspark()
    storage, place = _place(directory)
    marks = _place(None) if directory and not storage.of_this_host else (storage, place)
    start = clock.monotonic()
    with interrupted_by_signals(), _told(as_json=as_json) as tell:
        demo = _Demo(storage, place, marks, tell)
        try:
            demo.play()
        finally:
            demo.outcome.seconds = round(clock.monotonic() - start, 1)
            # The user can look at what went wrong.
            kept = keep or bool(demo.outcome.wrong)
            if not kept:
                _remove(storage, place)
            if marks != (storage, place):
                _remove(*marks)
    facts = demo.facts() | {"directory": place if kept else None}
    return Answer(facts, lambda out: _show(facts, out), 0 if facts["ok"] else 1)


class _Silent:
    """What the demo prints about its steps, if nothing is to be shown."""

    def under_way(self, text: str) -> None:
        """Tell what is being done."""

    def done(self, text: str) -> None:
        """Tell what was done."""


class _Aloud(_Silent):
    """The same on a console; the step under way is shown only on a terminal."""

    def __init__(self, out: Console, status: Status) -> None:
        self._out = out
        self._status = status

    def under_way(self, text: str) -> None:
        """Tell what is being done."""
        self._status.update(text)

    def done(self, text: str) -> None:
        """Tell what was done."""
        self._out.print(text, soft_wrap=True)


class _Demo:
    """A running demo; `marks` is a directory of this machine, where a process leaves a mark just before it is killed."""

    def __init__(self, storage: Storage, place: str, marks: tuple[Storage, str], tell: _Silent) -> None:
        self._storage = storage
        self._marks, self._marked = marks
        self._source, self._output = f"{place}/source", f"{place}/output"
        self._tell = tell
        self.outcome = Outcome(Gathered())
        self.reader: Onlooker | None = None

    def play(self) -> None:
        """Play all of it."""
        self._gather()
        assert self.reader is not None  # noqa: S101 - made by `_gather`
        self.reader.start()
        try:
            for number, (failpoint, where) in enumerate(_KILLS):
                self._killed(failpoint, where, f"{self._marked}/killed-{number + 1}")
            self._finished()
        finally:
            self.reader.stop()
        self._judge(self.reader)
        self._verify()

    def _gather(self) -> None:
        self._tell.under_way("gathering Python sources")
        self._storage.make_directory(self._source)
        self._storage.make_directory(self._output)
        gathered = self.outcome.gathered = gather(self._storage, self._source)
        expected = source_hashes(self._storage, self._source)
        self.outcome.records = len(expected)
        self.reader = Onlooker(self._storage, self._output, expected)
        left = ", ".join(f"{count:,} {reason}" for reason, count in gathered.left_out.items())
        size = f"{gathered.files:,} Python files, {format_size(gathered.bytes)}, {len(expected):,} lines"
        self._tell.done(f"gathered {size}" + (f" (left out: {left})" if left else ""))

    def _run(self, failpoint: str, mark: str) -> Ended:
        arguments = ["ingest", self._source, self._output, *_INGEST]
        with Run(arguments, failpoint=f"{failpoint}{mark}" if mark else "") as run:
            return run.wait(self._progress, until=lambda: bool(mark) and is_there(self._marks, mark))

    def _progress(self, facts: dict[str, Any]) -> None:
        batch = facts.get("batch", -1)
        done = f": batch {batch}, {facts['rows']:,} lines committed" if batch >= 0 else ": Spark starts"
        self._tell.under_way(f"penstock ingest{done}")

    def _killed(self, failpoint: str, where: str, mark: str) -> None:
        ended = self._run(failpoint, mark)
        if not is_there(self._marks, mark):
            msg = f"the run to be killed {where} ended before (status {ended.status}): {' '.join(ended.said) or ended.facts}"
            self.outcome.wrong.append(msg)
            raise PenstockError(msg)
        sink = existing_sinks(self._storage, self._output)[0]
        kill_keeper(sink)
        kill = self._state(sink, where)
        self.outcome.kills.append(kill)
        seen = f"{kill.visible_files} files visible, {kill.owed_files} decided but not visible"
        self._tell.done(f"killed {where}, after batch {kill.batch}: {seen}, {kill.staged_files} staged in vain")

    def _state(self, sink: Sink, where: str) -> Kill:
        head = sink.ledger.head()
        owed = sum(not is_there(self._storage, f"{self._output}/{file.path}") for file in head.finished)
        staged = self._storage.names(sink.staging).keys() - _named(head)
        visible = sum(not entry.is_directory for entry in self._storage.list(self._output))
        batch = max([-1, *map(head.last_batch, head.batches)])
        return Kill(where, batch, visible, owed, len(staged))

    def _finished(self) -> None:
        ended = self._run("", "")
        self.outcome.ended = ended.facts
        if ended.status or not ended.facts.get("ok"):
            words = " ".join(ended.said) or ended.facts
            self.outcome.wrong.append(f"the last run failed (status {ended.status}): {words}")
            return
        self._tell.done(f"the third run ended: {ended.facts['rows']:,} lines in {ended.facts['output_files']:,} files")

    def _judge(self, reader: Onlooker) -> None:
        self.outcome.wrong += reader.wrong
        if not reader.complete:
            seen = f"the reader saw {reader.records:,} lines of {self.outcome.records:,}"
            self.outcome.wrong.append(f"{seen}, not each as often as the source has it")

    def _verify(self) -> None:
        self._tell.under_way("penstock verify")
        with Run(["verify", self._output, "--source", self._source]) as run:
            ended = run.wait(lambda _: None)
        self.outcome.verified = ended.facts
        if ended.status or not ended.facts.get("ok"):
            self.outcome.wrong.append(f"verify said (status {ended.status}): {ended.facts or ' '.join(ended.said)}")

    def facts(self) -> dict[str, Any]:
        """Return what happened, as JSON has it."""
        outcome, reader = self.outcome, self.reader
        seen = ("listings", "files", "records", "partial", "duplicate")
        return {
            "ok": not outcome.wrong,
            "source": asdict(outcome.gathered) | {"records": outcome.records},
            "kills": [asdict(kill) for kill in outcome.kills],
            "output": {name: outcome.ended.get(name) for name in ("rows", "output_files", "output_bytes", "batch")},
            "reader": {name: getattr(reader, name) if reader else 0 for name in seen},
            "verified": bool(outcome.verified.get("ok")),
            "wrong": outcome.wrong,
            "seconds": outcome.seconds,
        }


def _named(head: State) -> set[str]:
    """Return the staged files that the last record of the ledger refers to."""
    segments = (segment for part in head.open for segment in part.segments)
    return {segment.file for segment in segments} | {file.staged for file in head.finished}


def _place(directory: str | None) -> tuple[Storage, str]:
    """Return where to work: a new directory, or an empty one that the user named."""
    base = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the new directory in it is closed to others
    named = directory or f"{base}/penstock-demo-{unique.token()[:12]}"
    located: tuple[Storage, str] = locate(named, name="--dir")
    storage, place = located
    if "," in place:
        msg = f"--dir {place!r}: it cannot have a comma, which separates failpoints"
        raise OptionError(msg)
    storage.make_directory(place, private=True)
    if storage.names(place):
        msg = f"--dir {place!r} is not empty; name a new directory"
        raise OptionError(msg)
    return storage, place


def _remove(storage: Storage, path: str) -> None:
    for entry in list(storage.list(path)):
        if entry.is_directory:
            _remove(storage, f"{path}/{entry.name}")
        else:
            storage.delete(f"{path}/{entry.name}")
    storage.delete(path)


@contextmanager
def _told(*, as_json: bool) -> Iterator[_Silent]:
    if as_json:
        yield _Silent()
        return
    out = console()
    with out.status("starting") as status:
        yield _Aloud(out, status)


def _show(facts: dict[str, Any], out: Console) -> None:
    from rich.table import Table

    source, output, reader = facts["source"], facts["output"], facts["reader"]
    table = Table(title="penstock demo", show_header=False, title_justify="left")
    table.add_row("read", f"{source['files']:,} files, {format_size(source['bytes'])}, {source['records']:,} records")
    if output["rows"] is not None:
        written = f"{output['output_files']:,} files, {format_size(output['output_bytes'])}, {output['rows']:,} records"
        table.add_row("written", f"{written} in {output['batch'] + 1} batches")
    for kill in facts["kills"]:
        table.add_row("killed (SIGKILL)", f"{kill['where']}, after batch {kill['batch']}")
    seen = f"{reader['files']:,} files, {reader['records']:,} records"
    table.add_row("a reader saw", f"{seen} in {reader['listings']:,} listings")
    table.add_row("partial records seen", f"{reader['partial']:,}")
    table.add_row("duplicate records seen", f"{reader['duplicate']:,}")
    table.add_row("every record once", "verified" if facts["verified"] else "NOT VERIFIED")
    table.add_row("took", format_duration(facts["seconds"]))
    out.print(table)
    for failure in facts["wrong"]:
        out.print(f"wrong: {failure}", style="red", soft_wrap=True)
    if facts["directory"]:
        out.print(f"files are kept in {facts['directory']}", soft_wrap=True)
