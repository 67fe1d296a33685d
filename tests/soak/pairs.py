"""Options of ingests in pairs: files by other makers, runs that are killed, and what other readers find in the output.

Each option has tests of its own. A seed here is a case with a value for each of many options of source, sink and command, so that a few
hundred cases have nearly every pair of values. Options that do not go together must be refused at the start, before anything is written,
by a message that names one of them; the case leaves that out then, and begins again. What runs is killed on the way, meets a full disk,
is given other options, moved, or put back from a copy. In the end each record of the input is in the output once, or set aside, in the
directory, the file and the form that the options say, and `verify` and `status` say the same.

All runs are without Spark. What Spark would do for files that grow or are cleaned, which is to call the planner in its order, is done here.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from click.testing import CliRunner
from typer.main import get_command

from penstock.cli.app import app
from penstock.formats.families import TableFormat
from penstock.ingestion import inputs, planning
from penstock.options import parse
from penstock.options.internal import LIVE_SOURCE
from penstock.sink import folds, ledger
from penstock.source import configured
from tests.soak.pairfiles import PACKING, RECORDS, TABLES, Files
from tests.soak.pairproof import Proof
from tests.support import keys
from tests.support.forked import COMMAND, Commands, forking

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.ingestion.planning import Planning
    from penstock.ingestion.stage import Stage
    from penstock.query.batch import Batch
    from tests.support.forked import Running

_BERLIN = "Europe/Berlin"
_TRIALS_MAX = 60
_USAGE = 2  # the exit status of a command that is refused

# The values of each option; the first one is that of most cases. `None`: it is not given.
_SOURCE: dict[str, tuple[Any, ...]] = {
    "badRecords": (None, "fail", "quarantine"),
    "badFiles": (None, "fail", "quarantine"),
    "changedFiles": (None, "quarantine"),
    "encodingErrors": (None, "replace", "quarantine"),
    "encoding": (None, "UTF-8", "UTF-16LE", "ISO-8859-1", "UTF-16"),
    "maxFilesPerTrigger": (None, "1", "2"),
    "maxBytesPerTrigger": (None, "100", "2k"),
    "splitSize": (None, "64", "1k"),
    "settle": ("0", "10ms"),
    "lateness": (None, "1d"),
    "tooLate": (None, "fail"),
    "batchBoundary": (None, "file"),
    "startingFrom": (None, "TIME", "earliest"),
    "modifiedAfter": (None, "TIME"),
    "pathGlobFilter": (None, "*[0-9]*", "[!x]*.*"),
    "pattern": (None, r"f\d+\..*"),
    "recursiveFileLookup": (None, "true"),
    "partitionColumns": (None, "auto", "none"),
    "followSymlinks": (None, "true"),
    "multiLine": (None, "true"),
    "header": (None, "true"),
    "lineSep": (None, "~~", "\n"),
    "sep": (None, ";", "\\t"),
    "quote": (None, "'"),
    "escape": (None, "\\"),
    "comment": (None, "#"),
    "nullValue": (None, "NULL"),
    "emptyValue": (None, "EMPTY"),
    "metadataColumn": (None, "_meta"),
    "rescuedDataColumn": (None, "_rescued"),
    "unknownFields": (None, "rescue", "fail", "ignore"),
    "missingFields": (None, "fail", "null"),
    "timeZone": (None, _BERLIN, "UTC"),
    "timestampFormat": (None, "dd/MM/yyyy HH:mm:ss"),
    "maxBadRecords": (None, "1000"),
    "maxBadFraction": (None, "1"),
    "quarantineLocation": (None, "ASIDE"),
    "decryptionKey": (None, "KEY"),
    "strictMode": (None, "false"),
    "initialDelay": (None, "1ms"),
    "sleepTime": (None, "1ms"),
    "namesRise": (None, "true"),
    "basePath": (None, "BASE"),
    "mode": (None, "FAILFAST", "DROPMALFORMED"),
    "follow": (None, None, "true"),
    "closeAfter": (None, "0"),
    "cleanSource": (None, None, "archive", "delete"),
    "sourceArchiveDir": (None, "ARCHIVE"),
    "retention": (None, "0s"),
    "files": (None, None, None, "LISTS"),
}
_SINK: dict[str, tuple[Any, ...]] = {
    "compression": (None, "gzip", "zstd", "none", "snappy"),
    "compressionLevel": (None, "1"),
    "encryptTo": (None, keys.READER),
    "encryptionKey": (None, "STAGING", "none"),
    "encodingErrors": (None, "replace"),
    "header": (None, "true"),
    "quote": (None, "'"),
    "escape": (None, "\\"),
    "comment": (None, "%"),
    "nullValue": (None, "\\N"),
    "emptyValue": (None, "EMPTY"),
    "bucketBy": (None, "k={k}", "dt={t:%Y-%m-%d}", "{t:%Y}/{t:%m-%d}/k={k}", "all"),
    "dropBucketColumns": (None, "true"),
    "fileName": (
        None, "x-{k}-{seq}", "{time:%H%M}-{writer}-{batch}-{seq:05}", "%FILENUM_%PEID_%TIME.dat", "grow.log", "{k}.log",
    ),
    "timeFormat": (None, "yyyy-MM-dd"),
    "rollRows": (None, "2", "5"),
    "rollSize": (None, "200", "1k"),
    "rollBatches": (None, "1", "2"),
    "rollInterval": (None, "1ms", "1h"),
    "rollInactivity": (None, "1ms"),
    "timeZone": (None, _BERLIN),
    "partitionReady": (None, "success-file", "event", "success-file,event"),
    "partitionReadyBy": (None, "cursor"),
    "partitionReadyDelay": (None, "0"),
    "sinkId": (None, "orders"),
    "growing": (None, None, "true"),
    "mergeBelow": (None, "1", "1k"),
}  # fmt: skip
_OTHERS: dict[str, tuple[Any, ...]] = {
    "format": (*RECORDS, *TABLES),
    "to": (*RECORDS, *TABLES),
    "packing": tuple(PACKING),
    "layout": ("flat", "partitions", "deep"),
    "paths": ("directory", "glob", "several"),
    "links": ("none", "inside", "outside"),
    "schema": ("given", "infer"),
    "sql": (None, "where", "computed"),
    "checkpoint": (None, "elsewhere"),
    "between": ("nothing", "moved", "restored", "kept", "option", "grown", "late", "folded"),
    "point": (
        None, "random", "ingest.here.planned", "ingest.here.committed", "sink.ledger.before-put", "sink.ledger.after-put",
        "sink.publish.one", "sink.publish.before-note", "sink.write.staged", "source.read", "storage.put.link",
        "storage.publish.linked", "storage.write", "sink.ledger.folded", "sink.ledger.merged",
        "source.clean", "source.clean.archived", "sink.publish.grow",
    ),
    "action": ("kill", "kill", "error", "nospace"),
    "at": (1, 1, 2, 3),
    "follower": (None, "1", "2", "1000"),  # files of a batch of another ingest, which reads what this one publishes
}  # fmt: skip
_OF_CSV = ("header", "sep", "quote", "escape", "comment", "nullValue", "emptyValue")
_METADATA = "struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
# What to leave out if a message names no option but a column or a type.
_MEANS = {
    "text needs one string column": ("source.metadataColumn", "source.rescuedDataColumn", "sql"),
    "csv cannot hold": ("source.metadataColumn",),
    "cannot be followed": ("source.follow",),
    "infer a schema": ("schema",),
    "input has no column": ("schema",),
}
_FOLD = 2
_PROGRAM = f"""{COMMAND}
import penstock.source.configured, tests.soak.pairs
_command = main
def main():
    with tests.soak.pairs.driven():
        _command()
"""


class _Driven(planning.FilePlanning):
    """Plans files as Spark has them planned that are cleaned or grow."""

    def foreseen(self, start: dict[str, Any]) -> int:
        return 0

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> planning.Tasks:
        self.planner.clean(dict(start), end)
        return super().tasks(start, end, batch)


def _planner_here(self: inputs.FileInput, stage: Stage, location: str, tasks: int) -> Planning:
    given = dict(self.options) | inputs._carried(location) | {"tasks": str(tasks)}
    planner = configured.planner(parse(LIVE_SOURCE, given, what="source"), stage.reading)
    return _Driven(planner, packed=isinstance(stage.reading.form, TableFormat))  # type: ignore[arg-type]  # - or one that follows


@contextmanager
def driven() -> Iterator[None]:
    """Have ingests of this process fold their ledgers early, and follow and clean files without Spark."""
    with (
        patch.object(ledger, "FOLD", _FOLD),
        patch.object(folds, "MERGED", 2),
        patch.object(inputs.FileInput, "planner_here", _planner_here),
    ):
        yield


@contextmanager
def commands(room: Path) -> Iterator[Commands]:
    """Yield what starts commands that may be killed."""
    os.environ[keys.STAGING_VARIABLE] = keys.STAGING_KEY
    with forking(room, _PROGRAM) as begins:
        yield begins


@cache
def _command() -> Any:
    """Return the command, which takes longer to build than to run."""
    return get_command(app)


def _call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    with driven():
        result = CliRunner().invoke(_command(), list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess("penstock", result.exit_code, result.stdout, result.stderr)


class _Refused(Exception):
    """The start was refused, for this reason."""


class Case:
    """All random choices, drawn from the seed; `chosen` is what was chosen, less what was refused."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = chance = random.Random(f"{seed} pairs")  # noqa: S311 - repeatable
        self.refusals: list[str] = []
        self.chosen: dict[str, Any] = {name: chance.choice(values) for name, values in _OTHERS.items()}
        share = chance.choice((0.1, 0.2, 0.4))
        for side, table in (("source.", _SOURCE), ("sink.", _SINK)):
            for name, values in table.items():
                value = values[0] if chance.random() > share else chance.choice(values)
                if value is not None:
                    self.chosen[side + name] = value
        self._fit()

    @property
    def format(self) -> str:
        """The format of the input."""
        return str(self.chosen["format"])

    def __str__(self) -> str:
        return f"case {self.seed}: {self.chosen}; refused: {self.refusals}"

    def get(self, name: str) -> Any:
        """Return what was chosen."""
        return self.chosen.get(name)

    def on(self, name: str, value: str = "true") -> bool:
        """Tell whether an option has this value."""
        return bool(self.chosen.get(name) == value)

    def run(self, directory: Path, begins: Commands | None) -> None:
        """Run the case; `AssertionError` says what is wrong. `begins` starts what is killed; with `None` nothing is."""
        for trial in range(_TRIALS_MAX):
            room = directory / str(trial)
            room.mkdir()
            try:
                Run(self, room, begins).run()
            except _Refused as refused:
                self._leave_out(str(refused))
                shutil.rmtree(room)
                continue
            return
        msg = f"{self}\nrefused again and again"
        raise AssertionError(msg)

    def _fit(self) -> None:
        """Leave out what is refused by a rule of one format, so that more of the case is left; and what says nothing about a fault."""
        chosen, chance = self.chosen, self._chance
        if chance.random() < 0.9:
            self._fit_formats()
        if chosen.get("sink.fileName", "").endswith(".log"):
            chosen["sink.growing"] = "true"
        if "sink.encryptTo" in chosen:
            chosen.setdefault("sink.encryptionKey", "STAGING")
        if "source.cleanSource" in chosen:
            chosen["links"] = "none"
            chosen["source.sourceArchiveDir"] = "ARCHIVE"
        if self.on("sink.nullValue", "\\N"):  # to Python this is an escaped N
            self._drop("sink.escape")
        if "source.files" in chosen and self.on("source.startingFrom", "TIME"):  # it is about lists then
            self._drop("source.startingFrom")
        if "source.files" in chosen or "source.follow" in chosen:
            chosen["links"] = "none"
        # A first file that says nothing about the columns; a time that is a string.
        unknown = {
            "source.timeZone",
            "source.startingFrom",
            "source.modifiedAfter",
            "source.timestampFormat",
            "source.badFiles",
        } & chosen.keys()
        if unknown or chosen["layout"] == "partitions" or (self.format == "csv" and "source.header" not in chosen):
            chosen["schema"] = "given"

    def _fit_formats(self) -> None:
        chosen, form = self.chosen, self.format
        others = {
            "csv": _OF_CSV,
            "json csv": ("multiLine", "mode", "timestampFormat"),
            "text json": ("lineSep",),
            "json csv parquet orc avro": ("rescuedDataColumn", "unknownFields", "missingFields"),
            "text json csv": ("follow", "encoding"),
        }
        for forms, names in others.items():
            if form not in forms.split():
                self._drop(*(f"source.{name}" for name in names))
        if form == "text":
            chosen["to"] = self._chance.choice((chosen["to"], "text"))
        if chosen["to"] != "csv":
            self._drop(*(f"sink.{name}" for name in _OF_CSV))
        if chosen["to"] in RECORDS and self.on("sink.compression", "snappy"):
            self._drop("sink.compression")

    def _drop(self, *names: str) -> None:
        for name in names:
            self.chosen.pop(name, None)

    def _leave_out(self, message: str) -> None:
        """Leave out one of the options that the message names."""
        self.refusals.append(message)
        options = [name for name in self.chosen if "." in name]
        named = [name for name in options if re.search(rf"(?i)\b{name.rpartition('.')[2]}\b", message)]
        means = next((names for words, names in _MEANS.items() if words in message), ())
        named = named or [name for name in means if self.get(name) is not None]
        assert named, f"{self}\nrefused, and no option is named"
        left_out = self._chance.choice(named)
        self._drop(left_out)
        if left_out == "schema":
            self.chosen["schema"] = "given"


class Run:
    """One trial of a case, in a directory of its own."""

    def __init__(self, case: Case, room: Path, begins: Commands | None) -> None:
        self.case = case
        self.room = room
        self._begins = begins
        self._chance = random.Random(f"{case.seed} run")  # noqa: S311 - repeatable
        self._files = Files(case, room)
        self._dst = room / "out"
        self._checkpoint = room / "checkpoint"
        self._changed: dict[str, str] = {}
        self._committed = False
        self._key = room / "key"
        self._copied = room / "copied"
        self._read_before: set[Path] = set()

    def run(self) -> None:
        """Run it: files, a run that may be killed, what happens in between, more files, another run."""
        self._key.write_text(keys.READER_KEY)
        self._files.src.mkdir()
        self._files.stage(0)
        self._killed(*self._arguments())
        self._ingest()
        again = self._between()
        self._files.stage(1)
        if self._chance.random() < 0.5:
            self._killed(*self._arguments())
        self._ingest()
        if again:
            self._restored(again)
        if self.case.on("between", "folded"):
            for stage in range(2, 2 + 2 * _FOLD):
                self._files.stage(stage)
                self._ingest()
        self._follow(ends=True)
        self._prove()

    # -- the command -------------------------------------------------------------------------------------------------

    def _ingest(self) -> None:
        self._check(_call("ingest", *self._arguments()), ends=True)
        self._follow(ends=False)

    def _follow(self, *, ends: bool) -> None:
        """Run an ingest of what was published, which may be killed or, unless it `ends`, not run at all."""
        if not self._is_followed or (not ends and self._chance.random() < 0.3):
            return
        options = ["files=published", f"maxFilesPerTrigger={self.case.get('follower')}", "metadataColumn=_meta"]
        options += [f"decryptionKey=file:{self._key}"] * self._encrypts
        given = [str(self._dst), str(self._copied), "--json", "--format", "binary", "--to", "parquet"]
        arguments = [*given, *(word for option in options for word in ("--source-option", option))]
        if self._chance.random() < 0.5:
            self._killed(*arguments)
        done = _call("ingest", *arguments)
        assert done.returncode == 0, f"{self.case}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    @property
    def _is_followed(self) -> bool:
        """Whether another ingest reads the output: not if that moves or goes back, nor if its files grow, or are deleted."""
        stays = self.case.get("between") not in {"moved", "restored", "kept"}
        return bool(self.case.get("follower") and stays and not self.case.get("sink.growing"))

    @property
    def _encrypts(self) -> bool:
        return "encryptTo" in self._options("sink.") | self._changed

    def _killed(self, *arguments: str) -> None:
        """Run an ingest, and have it die or fail on the way."""
        point = self.case.get("point")
        if point is None or self._begins is None:
            return
        at_random = point == "random"
        points = "" if at_random else f"{point}={self.case.get('action')}@{self.case.get('at')}"
        running = self._begins.begin("ingest", *arguments, points=points)
        if at_random:
            self._kill(running)
        self._check(running.ended(check=False), ends=False)

    def _kill(self, running: Running) -> None:
        pid = running.pid
        time.sleep(self._chance.random() * 0.3)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _check(self, done: subprocess.CompletedProcess[str], *, ends: bool) -> None:
        """Raise `_Refused` if the run was refused at the start; with `ends`, it must have done its work otherwise."""
        said = f"status {done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        if done.returncode == _USAGE:
            assert not self._committed, f"{self.case}\nrefused once it had begun: {said}"
            assert not list(self._dst.rglob("ledger/*")), f"{self.case}\nrefused after it had written: {said}"
            raise _Refused(json.loads(done.stdout.splitlines()[-1])["error"]["message"])
        assert "Traceback" not in done.stderr, f"{self.case}\n{said}"
        assert not ends or done.returncode == 0, f"{self.case}\n{said}"
        self._committed = self._committed or done.returncode == 0

    def _arguments(self) -> list[str]:
        get = self.case.get
        given = [*map(str, self._paths()), str(self._dst), "--json", "--format", self.case.format, "--to", get("to")]
        for flag, value in (("--schema", self._schema()), ("--sql", self._sql())):
            given += [flag, value] if value else []
        if get("checkpoint"):
            given += ["--checkpoint", str(self._checkpoint)]
        sink = self._options("sink.") | self._changed
        for flag, options in (("--source-option", self._options("source.")), ("--sink-option", sink)):
            for name, value in options.items():
                given += [flag, f"{name}={value}"]
        return given

    def _options(self, side: str) -> dict[str, str]:
        stands = {
            "TIME": self._files.later.isoformat(),
            "ASIDE": str(self.room / "aside"),
            "KEY": f"file:{self._key}",
            "STAGING": f"env:{keys.STAGING_VARIABLE}",
            "ARCHIVE": str(self.room / "archive"),
            "LISTS": str(self.room / "lists"),
            "BASE": str(self._files.src),
        }
        given = {key[len(side) :]: value for key, value in self.case.chosen.items() if key.startswith(side)}
        return {name: stands.get(value, value) for name, value in given.items()}

    def _schema(self) -> str | None:
        if self.case.format == "text":
            return None
        if self.case.on("schema", "infer"):
            return "infer"
        columns = "id bigint, k string, t timestamp, v string" + ", p string" * self._files.columns_of_directories
        return columns + f", _meta {_METADATA}" * bool(self.case.get("source.metadataColumn"))

    def _sql(self) -> str | None:
        case, is_text = self.case, self.case.format == "text"
        where = "value not like '%3|%'" if is_text else "id % 3 <> 0"
        where = f" where {where}" if case.on("sql", "where") else ""
        if case.on("to", "text") and not is_text:
            joined = "concat(cast(id as string), '|', coalesce(k, 'None'), '|', coalesce(v, ''))"
            return f"select {joined} as value from input{where}"
        if case.on("sql", "computed"):
            return f"select *, {'length(value)' if is_text else 'id * 2'} as n from input"
        return f"select * from input{where}" if where else None

    def _paths(self) -> list[Path]:
        src = self._files.src
        if self.case.on("paths", "directory") or self.case.get("source.files"):
            return [src]
        return [src / "d[12]"] if self.case.on("paths", "glob") else [src / "d1", src / "d2"]

    # -- between two runs --------------------------------------------------------------------------------------------

    def _between(self) -> list[tuple[Path, Path]]:
        """Do what is to happen between two runs; return directories, and copies that are to be put back after the next one."""
        case, between = self.case, self.case.get("between")
        there = [path for path in (self._dst, self._checkpoint) if path.exists()]
        self._read_before = {made.path for made in self._files.read}
        if between == "moved":
            for path in there:
                path.rename(path.with_name(f"{path.name}2"))
            self._dst, self._checkpoint = self.room / "out2", self.room / "checkpoint2"
        elif between == "restored" or (between == "kept" and self._names_tell):
            aside = self.room / "aside"
            aside.mkdir(exist_ok=True)
            copies = [(path, path.with_name(f"{path.name}-copy")) for path in (*there, aside)]
            return [(path, shutil.copytree(path, copy)) for path, copy in copies]
        elif between == "option":
            self._changed = self._change()
        elif between == "late" and not case.get("source.files"):
            self._files.late()
        elif (
            between == "grown"
            and case.on("source.follow")
            and not {"source.modifiedAfter", "source.files"} & case.chosen.keys()
        ):
            self._files.grow()
        return []

    @property
    def _names_tell(self) -> bool:
        """Whether each finished file has a name that only this sink gives, and none is elsewhere; and the input stays."""
        unfit = {"sink.fileName", "sink.growing", "source.cleanSource", "source.quarantineLocation"}
        return not unfit & self.case.chosen.keys()

    def _restored(self, copies: list[tuple[Path, Path]]) -> None:
        """Put copies back, and run again; what was cleaned, or finished and kept, since they were made is reported before a row is."""
        gone = [made for made in self._files.read if made.path not in self._read_before and not made.path.exists()]
        cleaned = gone if self.case.get("source.cleanSource") else []
        newest = [(path, shutil.copytree(path, path.with_name(f"{path.name}-newest"))) for path, _ in copies]
        is_kept = self.case.on("between", "kept")
        before = self._finished()
        self._put_back(copies, kept=is_kept)
        decided = self._decided()
        later = {path for path in before if path.name not in decided}
        if is_kept and later:
            self._expect("PST-303")
            for path in later:
                path.unlink()
        elif cleaned:
            self._expect("PST-206")
            self._put_back(newest, kept=False)
        self._ingest()

    def _put_back(self, copies: list[tuple[Path, Path]], *, kept: bool) -> None:
        """Put copies back; if files that were finished since are `kept`, only the state and the checkpoint."""
        for path, copy in copies:
            if not kept or path == self._checkpoint:
                shutil.rmtree(path)
                shutil.copytree(copy, path)
            elif path == self._dst:
                shutil.rmtree(path / "_penstock")
                shutil.copytree(copy / "_penstock", path / "_penstock")

    def _finished(self) -> set[Path]:
        """Return the visible files."""
        return {path for path in self._dst.rglob("*") if path.is_file() and "_penstock" not in path.parts}

    def _decided(self) -> set[str]:
        """Return the names of the files that the ledger has, and of those that are no data."""
        said = json.loads(_call("files", self._dst, "--json").stdout)
        return {"_SUCCESS", *(Path(file["path"]).name for file in said["files"])}

    def _expect(self, code: str) -> None:
        """Run it; it must be refused with this code."""
        done = _call("ingest", *self._arguments())
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert (done.returncode, code in said) == (1, True), f"{self.case}\nexpected {code}: {said}"

    def _change(self) -> dict[str, str]:
        """Return an option that may change between two runs."""
        case = self.case
        if case.on("sink.growing"):
            return {}
        changes = [{"rollRows": "3"}, {"mergeBelow": "2"}, {"rollBatches": "1"}, {"fileName": "new-{seq}-{sink}"}]
        if not case.get("sink.encryptTo"):
            changes.append({"encryptTo": keys.READER, "encryptionKey": "none"})
        if not case.get("sink.compressionLevel"):
            changes += [{"compression": "gzip"}, {"compression": "zstd"}]
        if not case.get("sink.partitionReady") and not case.get("sink.dropBucketColumns"):
            changes.append({"bucketBy": "z"})
        return self._chance.choice(changes)

    # -- the proof ---------------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        case = self.case
        proof = Proof(case, self._files, self._dst, self._changed, self._key)
        try:
            proof.prove()
            if self._is_followed:
                proof.copied(self._copied)
            proof.status(json.loads(_call("status", self._dst, "--json").stdout))
            proof.verified(self._verify())
            if not case.get("source.files") and not case.on("source.cleanSource", "delete"):
                source = self._verify("--source", *self._paths()[:1])["source"]
                # Where a moved checkpoint is now, only a batch notes.
                is_read_on = {made.path for made in self._files.read} - self._read_before
                is_untold = (
                    case.on("between", "moved")
                    and not is_read_on
                    and "which of them were read is unknown" in source["reason"]
                )
                assert source["proved"] or is_untold, source
        except AssertionError as error:
            msg = f"{case}\n{error}"
            raise AssertionError(msg) from error

    def _verify(self, *more: object) -> dict[str, Any]:
        key = ["--key", f"file:{self._key}"] * self._encrypts
        said: dict[str, Any] = json.loads(_call("verify", self._dst, "--json", *key, *more).stdout)
        return said
