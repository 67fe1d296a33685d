"""What a file of pipelines, or a directory of them, asks for: checked as far as that is possible without Spark.

All mistakes are reported at once, each with its file, line and key. A mistake in a file (a key, an option, a transform
that cannot be loaded, two pipelines with one checkpoint) prevents the start of everything. `penstock check` also
reports what is wrong outside of the file, such as a missing input or a disk that does not answer; when it runs, that is
a failure of that pipeline alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.cli.ingest import Request, same_format, several, transformed
from penstock.cli.process import importable_here, load_told, load_transform
from penstock.cli.run import model, toml
from penstock.cli.run.claims import Claimants, Claimed, Exclusive, claims, going_round
from penstock.cli.run.references import Secrets, resolved
from penstock.cli.run.toml import Flaw, NotTomlError
from penstock.errors import NotThere, OptionError, PenstockError, PipelinesError, SqlError, StorageError
from penstock.options import SINK, SOURCE, parse
from penstock.options.topics import is_topics
from penstock.session.master import check_master
from penstock.storage import Storage, entry_at, locate
from penstock.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias, TypeVar

    from pydantic import BaseModel

    from penstock.cli.run.toml import Key

    Given = TypeVar("Given")
    Check: TypeAlias = Callable[[dict[str, str]], object]  # raises `OptionError` for options that are wrong

_ENDING = ".toml"
_ATTEMPTS_ONCE = 5


@dataclass(frozen=True)
class Schedule:
    """When a pipeline runs: `watch`: for ever, at this interval; `cron`: at these times, in a zone; otherwise once."""

    watch: bool | str = False
    cron: str | None = None
    zone: str = "UTC"

    @property
    def once(self) -> bool:
        """Whether it is done when it has taken what is there."""
        return not self.watch and self.cron is None

    def __str__(self) -> str:
        if self.cron is not None:
            return f"cron {self.cron} ({self.zone})"
        return "once" if self.once else "watch" if self.watch is True else f"watch every {self.watch}"


@dataclass(frozen=True)
class Retrying:
    """How failures in a row are retried: seconds after the first, the longest wait, and how many failures there may be."""

    first: float = 1.0
    most: float = 300.0
    attempts: int | None = None

    def wait(self, failures: int) -> float | None:
        """Return how long to wait after so many failures in a row; `None`: the pipeline is given up."""
        if self.attempts is not None and failures >= self.attempts:
            return None
        return min(self.first * 2.0 ** min(failures - 1, 60), self.most)


@dataclass(frozen=True)
class Planned:
    """A pipeline that can be started. Equal ones are the same pipeline, so a reload leaves it alone."""

    name: str
    request: Request
    schedule: Schedule
    retrying: Retrying
    file: str = field(default="", compare=False)
    claims: tuple[Exclusive, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class FleetPlan:
    """What a file, or a directory of files, asks for."""

    files: tuple[str, ...]
    pipelines: dict[str, Planned]
    master: str | None
    config: dict[str, str]
    drain: float
    hung_after: float
    secrets: Secrets = field(compare=False)
    outside: tuple[Flaw, ...] = field(default=(), compare=False)


@dataclass
class _FileReading:
    """One file that is being read, and its problems."""

    name: str
    listed: bool = False  # found in a given directory, so it may be anything
    at: dict[Key, int] = field(default_factory=dict)
    problems: list[Flaw] = field(default_factory=list)

    def problem(self, key: Key, message: str, *, outside: bool = False) -> None:
        """Note what is wrong at a key."""
        line = toml.line_of(self.at, key)
        self.problems.append(Flaw(self.name, line, toml.dotted(key), message, outside=outside))


def plan(location: str, secrets: Secrets | None = None) -> FleetPlan:
    """Return what the file or directory asks for. Raises `PipelinesError` with everything that is wrong.

    Secrets that must be masked are added to `secrets`, if it is given.
    """
    result, problems = looked_at(location, secrets)
    mistakes = [problem for problem in problems if not problem.outside]
    if result is None or mistakes:
        raise PipelinesError("\n".join(map(str, mistakes or problems)))
    return result


def looked_at(location: str, secrets: Secrets | None = None) -> tuple[FleetPlan | None, list[Flaw]]:
    """Return what the file or directory asks for, `None` if that is not clear, and everything that is wrong, in order."""
    storage, path = locate(location, name="FILE")
    importable_here()
    secrets = Secrets() if secrets is None else secrets
    readings = [_FileReading(name, listed=name != path) for name in _files(storage, path, location)]
    parsed = [(reading, file) for reading in readings if (file := _read(reading, storage, secrets)) is not None]
    pipelines = _entered(parsed)
    session = _session(parsed)
    problems = [_masked(flaw, secrets) for reading in readings for flaw in sorted(reading.problems, key=_line)]
    if len(parsed) < len(readings):
        return None, problems
    outside = tuple(flaw for flaw in problems if flaw.outside)
    files = tuple(reading.name for reading in readings)
    bounds = (_longest(parsed, "drain"), _longest(parsed, "hungAfter"))
    return FleetPlan(files, pipelines, session.master, session.config, *bounds, secrets, outside), problems


def _entered(files: list[tuple[_FileReading, model.PipelinesFile]]) -> dict[str, Planned]:
    """Return the pipelines of all files that can be started, by name, and note what is wrong with the others, and with all together."""
    pipelines: dict[str, Planned] = {}
    taken = Claimants()
    for reading, file in files:
        _enter(reading, file, pipelines, taken)
    _refuse_circle([reading for reading, _ in files], pipelines)
    return pipelines


def _refuse_circle(readings: list[_FileReading], pipelines: dict[str, Planned]) -> None:
    """Note pipelines that read their own output, by way of others."""
    names = going_round({name: planned.request for name, planned in pipelines.items()})
    if names:
        [reading] = [reading for reading in readings if reading.name == pipelines[names[0]].file]
        message = f"what it reads is made of what it writes, by {', '.join(map(repr, names[1:]))}: each record would go round for ever"
        reading.problem(("pipelines", names[0], "source"), f"{message}; have one of them write elsewhere")


def _longest(files: list[tuple[_FileReading, model.PipelinesFile]], name: str) -> float:
    """Return the longest duration that any of the files has for a key."""
    return max((parse_duration(getattr(file, name), name=name) for _, file in files), default=0.0)


def _line(problem: Flaw) -> int:
    return problem.line


def _masked(problem: Flaw, secrets: Secrets) -> Flaw:
    message = secrets.masked(problem.message)
    return Flaw(problem.file, problem.line, problem.key, message, outside=problem.outside)


def _files(storage: Storage, path: str, location: str) -> list[str]:
    """Return the files at a location; `PipelinesError` if there are none."""
    entry = entry_at(storage, path)
    if entry is None:
        msg = f"{location}: there is no such file or directory; penstock init DIR writes a first one"
        raise PipelinesError(msg)
    if not entry.is_directory:
        return [path]
    names = sorted(name for name in storage.names(path) if name.endswith(_ENDING) and name[0] not in "._")
    if not names:
        msg = f"{location}: the directory has no file *{_ENDING}; penstock init DIR writes a first one"
        raise PipelinesError(msg)
    return [f"{path}/{name}" for name in names]


def _read(reading: _FileReading, storage: Storage, secrets: Secrets) -> model.PipelinesFile | None:
    """Return a file as its types, or note what is wrong with it."""
    try:
        text = _content(storage, reading)
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}: expected TOML; save it as UTF-8"
        reading.problems.append(Flaw(reading.name, 1, "", message))
        return None
    except StorageError as error:
        reading.problems.append(Flaw(reading.name, 0, "", error.message))
        return None
    try:
        values = toml.values(text)
        reading.at = toml.lines(text)
    except NotTomlError as error:
        reading.problems.append(Flaw(reading.name, error.line, "", f"not TOML: {error}"))
        return None
    values, failures = resolved(values, secrets)
    parsed, mistakes = model.checked(values)
    for key, message in failures + mistakes:
        reading.problem(key, message)
    if parsed is not None and not parsed.pipelines:
        reading.problem(("pipelines",), "is missing: expected [pipelines.NAME] with a source and a sink")
    return None if reading.problems else parsed


def _content(storage: Storage, reading: _FileReading) -> str:
    """Return the text of a file, without the mark that some editors put at its beginning."""
    if reading.listed and (entry := entry_at(storage, reading.name)) is not None and not entry.is_file:
        msg = f"not a file (a directory, for example); expected a file for each name that ends in {_ENDING}: give it another one"
        raise StorageError(msg)
    return storage.read(reading.name).decode("utf-8-sig")


def _session(files: list[tuple[_FileReading, model.PipelinesFile]]) -> model.SparkTable:
    """Return the settings of the one session; two files must agree on each setting."""
    master: str | None = None
    config: dict[str, str] = {}
    for reading, file in files:
        given = file.spark.master
        if given is not None and master not in {None, given}:
            reading.problem(("spark", "master"), f"another file has {master!r}: all pipelines run in one Spark")
        elif given is not None and (refused := _refusal(check_master, given)):
            reading.problem(("spark", "master"), refused)
        master = given if master is None else master
        for name, value in file.spark.config.items():
            if not name.startswith("spark."):
                message = (
                    f"{name!r} is not a setting of Spark's, which would ignore it; did you mean {f'spark.{name}'!r}?"
                )
                reading.problem(("spark", "config", name), message)
            if config.setdefault(name, value) != value:
                message = f"another file has {config[name]!r}: all pipelines run in one Spark"
                reading.problem(("spark", "config", name), message)
    return model.SparkTable(master=master, config=config)


def _enter(reading: _FileReading, parsed: model.PipelinesFile, pipelines: dict[str, Planned], taken: Claimants) -> None:
    """Enter the pipelines of a file that can be started, and note what is wrong with the others."""
    for name, pipeline in parsed.pipelines.items():
        key: Key = ("pipelines", name)
        if name in pipelines:
            reading.problem(key, f"{pipelines[name].file} has a pipeline of this name, too; give it another one")
            continue
        planned = _planned(reading, name, pipeline)
        if planned is None:
            continue
        refused = taken.take(name, planned.claims, planned.request)
        if refused is None:
            pipelines[name] = planned
            continue
        of_checkpoint = refused[0] is Claimed.CHECKPOINT and pipeline.checkpoint
        side = "source" if refused[0] is Claimed.INPUT else "sink"
        reading.problem((*key, "checkpoint" if of_checkpoint else side), refused[1])


def _planned(reading: _FileReading, name: str, pipeline: model.PipelineTable) -> Planned | None:
    """Return a pipeline; `None`, and a note of what is wrong, if it cannot be started."""
    count = len(reading.problems)
    request = _request(reading, ("pipelines", name), pipeline)
    if request is None or not all(problem.outside for problem in reading.problems[count:]):
        return None
    schedule = Schedule(pipeline.schedule.watch or False, pipeline.schedule.cron, pipeline.schedule.timeZone)
    retrying = _retrying(pipeline.retry, schedule)
    return Planned(name, request, schedule, retrying, reading.name, claims(name, request))


def _retrying(retry: model.RetryTable, schedule: Schedule) -> Retrying:
    attempts = retry.attempts or (_ATTEMPTS_ONCE if schedule.once else None)
    return Retrying(parse_duration(retry.first, name="first"), parse_duration(retry.most, name="most"), attempts)


def _request(reading: _FileReading, key: Key, pipeline: model.PipelineTable) -> Request | None:
    """Return the ingest of a pipeline; `None` if its options cannot be put together."""
    paths = pipeline.source.path if isinstance(pipeline.source.path, list) else [pipeline.source.path]
    if not paths:
        reading.problem((*key, "source", "path"), "expected a path or several, found none")
        return None
    given = _texts(reading, (*key, "source"), _source_check(paths[0]), pipeline.source, paths[0])
    sink = _texts(reading, (*key, "sink"), partial(parse, SINK, what="sink"), pipeline.sink, pipeline.sink.path)
    if given is None or sink is None:
        return None
    source = several(paths, given)
    if pipeline.source.schema_ is not None:
        source["schema"] = pipeline.source.schema_
    if not _has_schema(reading, key, paths[0], source):
        return None
    try:
        if "format" not in sink:
            sink["format"] = same_format(source, flag="sink.format", topics=is_topics(paths[0]))
        if pipeline.transform is not None:
            load_transform(pipeline.transform, name="transform")
        load_told(sink)
        applied = transformed(pipeline.transform, pipeline.sql)
    except OptionError as error:
        reading.problem((*key, *_to_blame(error.message)), error.message)
        return None
    request = Request(paths[0], pipeline.sink.path, source, sink, applied, pipeline.checkpoint)
    _look(reading, key, request)
    return request


def _to_blame(message: str) -> Key:
    """Return the key that a message is about."""
    if message.startswith("--transform"):  # and --sql
        return ("sql",)
    if message.startswith("onPublish="):
        return "sink", "onPublish"
    return ("transform" if message.startswith("transform ") else "sink",)


def _texts(reading: _FileReading, key: Key, check: Check, given: BaseModel, path: str) -> dict[str, str] | None:
    """Return the options of a source or sink as text; `None`, and a note of each, if some are refused."""
    texts = {name: model.as_text(value) for name, value in (given.model_extra or {}).items()}
    refused = list(_refused(check, texts, path))
    for name, message in refused:
        reading.problem((*key, name) if name else key, message)
    return None if refused else texts


def _has_schema(reading: _FileReading, key: Key, path: str, source: dict[str, str]) -> bool:
    """Tell whether a source names its columns, or does not need to."""
    from penstock.ingestion.topics import unsaid_columns

    if form := unsaid_columns(path, source):
        infer = "" if is_topics(path) else " or 'infer'"
        reading.problem(
            (*key, "source"), f"schema is needed for format={form}, such as schema = 'id bigint, name string'{infer}"
        )
        return False
    return True


def _source_check(path: str) -> Check:
    """Return a function that checks the options of a source that reads this path."""
    if not is_topics(path):
        return partial(parse, SOURCE, what="source")
    from penstock.ingestion.topics import Topics

    return partial(Topics.of, path)


def _refused(check: Check, options: dict[str, str], path: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with options, each by its name; if no single option is wrong, what is wrong with all together."""
    together = _refusal(check, options | {"path": path})
    if together is None:
        return
    right = {name: text for name, text in options.items() if _refusal(check, {name: text, "path": path}) is None}
    # Some options are refused alone, because they need another option, and are right together with it.
    others = {name: text for name, text in options.items() if name not in right}
    beside = [(name, _refusal(check, {**right, name: text, "path": path})) for name, text in others.items()]
    wrong = [(name, message) for name, message in beside if message is not None]
    yield from wrong or [("", together)]


def _refusal(check: Callable[[Given], object], options: Given) -> str | None:
    """Return what is wrong with options, or with another value; `None` if nothing is."""
    try:
        check(options)
    except OptionError as error:
        return error.message
    return None


def _look(reading: _FileReading, key: Key, request: Request) -> None:
    """Note what the ingest itself says of the request, without Spark; nothing is created."""
    from penstock.ingestion.ingest import check

    try:
        check(request, make=False)
    except PenstockError as error:
        outside = isinstance(error, StorageError) or isinstance(error.__cause__, (StorageError, NotThere))
        named = (*key, "sql") if isinstance(error, SqlError) else key
        reading.problem(named, error.message, outside=outside)
