"""The note of its options that a sink leaves beside its ledger, so that `finish`, `verify` and `status` can rebuild it without its query.

The records of the ledger have everything that decisions need. They do not have how the query would have continued: `fileName`,
`timeZone`, the limits. Nor do they have what `verify` needs: where the checkpoint is, and what an ingest did with its input. So
the driver that claims a sink notes its options as `options-<epoch>.json` in the sink's directory: one line of JSON with a
checksum, in the form of the ledger's records. The note is written after the claim. A crash between the two leaves the earlier
note, which belongs to the driver that wrote the open parts. A driver that continues from its own claim writes a missing note
before its first task runs. So there is a note for every open part; without one nobody would know where the part's key is.
If it continues with other options, such as a notebook that runs an ingest again, it claims the sink anew, and notes those.

The note holds no secret: the options of a sink hold references to secrets, never literals, and the part of a URL before its `@`
is left out.

**Nothing from a state file is executed.** The stage of an ingest travels in the options of its query, with a function in it. The
user who runs the query is trusted; a user who may only write to the output is not. So a stage that is read from a file has its
own type, `NotedStage`, in which a transform is a name to show and nothing else. The options of a sink (`options.SINK`) cannot
hold a stage, under any name. And the code that loads functions takes a type that only a live caller makes
(`ingestion.stage.LiveStage`). A pickled function is not even noted. SQL (`ingestion.sql`) is not code: it names columns and
functions from a fixed list, reaches no file and no module, and is repeated from the note.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import AlreadyThere, DamagedState, NotThere, StorageError, without_credentials
from penstock.query.records import checked_at, signed
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage import Storage

STAGE = "ingest"  # the name that an ingest's stage has among the options of its query, and in the note
SQL = "sql"  # a transform written in SQL: it is not code, so it is noted, and repeated from the note
OPAQUE = {"opaque": True}  # in place of a transform that cannot be repeated from its record
_PICKLED = "pickle:"
_NAMING = ("fileName", "bucketBy")
_RECORD = re.compile(r"options-(\d{12})\.json")


@dataclass(frozen=True)
class NotedStage:
    """How an ingest made rows from its source, as it was noted; schemas are Spark's JSON. It can be shown and compared, never run.

    `transform` is the `module:function` that the ingest was given, `None` if it had none. `opaque`: the transform is a function
    without a name. `sql` is the select, if the transform is one. `tasks` is the number of tasks that shared a rate.
    """

    source: Mapping[str, str]
    schema: str
    out: str
    transform: str | None = None
    opaque: bool = False
    tasks: int = field(default=1, compare=False)
    sql: str | None = None

    @property
    def text(self) -> str:
        """Return the stage in the form of the note."""
        transform: object = OPAQUE if self.opaque else self.transform if self.sql is None else {SQL: self.sql}
        form = {"source": dict(self.source), "schema": self.schema, "out": self.out, "transform": transform}
        return json.dumps(form | {"tasks": self.tasks})


@dataclass(frozen=True)
class Noted:
    """What the last driver of a sink noted: the options it was given, and the stage of an ingest.

    `changed` names the options that have another value than an earlier driver had, or that only one of the two had. Options of an
    ingest's source are named `source.NAME`.
    """

    options: Mapping[str, str]
    stage: NotedStage | None = None
    changed: frozenset[str] = frozenset()

    @property
    def all(self) -> dict[str, object]:
        """Return everything that was given, each thing under one name."""
        if self.stage is None:
            return dict(self.options)
        transform = self.stage.transform, self.stage.opaque, self.stage.sql
        return {
            **self.options,
            **{f"source.{name}": text for name, text in self.stage.source.items()},
            "transform": transform,
        }

    def changed_since(self, before: Noted) -> frozenset[str]:
        """Return the value of `changed`; `before` is what the previous driver noted."""
        here, there = self.all, before.all
        return before.changed | {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}


NOTHING_NOTED = Noted({})


def note_options(storage: Storage, directory: str, epoch: int, given: Mapping[str, str]) -> None:
    """Note the options of the driver of `epoch`, and delete earlier notes; called by the owner of the epoch."""
    options = _open(given)
    changed: frozenset[str] = frozenset()
    # A damaged note is reported by the command that needs it; this driver does not need it.
    with contextlib.suppress(DamagedState, NotThere):
        before = noted(storage, directory)
        changed = _noted(options).changed_since(before) if before.options else changed
    record = {"sink": directory.rpartition("/")[2], "epoch": epoch, "options": options}
    if changed:
        record["changed"] = sorted(changed)
    with contextlib.suppress(AlreadyThere):  # the reply to an earlier try was lost
        storage.put_if_absent(f"{directory}/{_name(epoch)}", signed(record))
    for older in _epochs(storage, directory):
        if older < epoch:
            storage.delete(f"{directory}/{_name(older)}")


def are_noted(storage: Storage, directory: str, epoch: int, given: Mapping[str, str]) -> bool | None:
    """Tell whether the note of `epoch` has these options; `None` if there is none: a failed write leaves a claim without a note.

    A damaged note counts as one of these options: the command that needs it reports it.
    """
    try:
        return bool(checked_at(storage, f"{directory}/{_name(epoch)}").get("options") == _open(given))
    except NotThere:
        return None
    except DamagedState:
        return True


def noted(storage: Storage, directory: str) -> Noted:
    """Return what the last driver noted, `NOTHING_NOTED` if no driver did. `DamagedState` if the file was altered.

    A driver that claims the sink meanwhile removes the note that was the last one; then its own is returned.
    """
    epochs = _epochs(storage, directory)
    if not epochs:
        return NOTHING_NOTED
    try:
        return _read(storage, directory, epochs[-1])
    except NotThere:
        if _epochs(storage, directory) == epochs:
            raise
    return noted(storage, directory)


def _read(storage: Storage, directory: str, epoch: int) -> Noted:
    """Return the note of the driver of an epoch."""
    path = f"{directory}/{_name(epoch)}"
    record = checked_at(storage, path)
    here = {"sink": directory.rpartition("/")[2], "epoch": epoch}
    if "options" not in record or here != {name: record.get(name) for name in here}:
        sink = f"the options of epoch {record.get('epoch')} of sink {record.get('sink')!r}"
        msg = f"{path!r} has {sink}: it was moved here; restore it from a copy"
        raise DamagedState(msg)
    try:
        return replace(_noted(record["options"]), changed=frozenset(record.get("changed", ())))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path!r} is no note of options: {type(error).__name__}: {error}; restore it from a copy"
        raise DamagedState(msg) from error


def _noted(options: Mapping[str, str]) -> Noted:
    """Return what a note of these options says; `TypeError` or a similar error if they are malformed."""
    options = {name: without_credentials(value) for name, value in options.items()}
    stage = options.pop(STAGE, None)
    return Noted(options, None if stage is None else _stage(json.loads(stage)))


def _stage(form: dict[str, Any]) -> NotedStage:
    """Return the stage from a note; `TypeError` or a similar error if it is malformed."""
    source, transform = form["source"], form["transform"]
    texts = [form["schema"], form["out"], *source, *source.values()]
    if not all(isinstance(text, str) for text in texts):
        msg = f"a stage of other types than text: {texts!r}"
        raise TypeError(msg)
    named = transform if isinstance(transform, str) and not transform.startswith(_PICKLED) else None
    sql = transform.get(SQL) if isinstance(transform, dict) else None
    if not isinstance(sql, str | None):
        msg = f"SQL that is no text: {sql!r}"
        raise TypeError(msg)
    opaque = named is None and sql is None and transform is not None
    return NotedStage(
        source, form["schema"], form["out"], named, opaque=opaque, tasks=int(form.get("tasks", 1)), sql=sql
    )


def namesakes(storage: Storage, state: str, sink_id: str, given: Mapping[str, str]) -> list[str]:
    """Return the other sinks below the state directory `state` that name files by the same options; skips notes that cannot be read."""
    own = [given.get(option) for option in _NAMING]
    sinks = []
    for other in sink_ids(storage, state):
        with contextlib.suppress(StorageError, DamagedState):
            options = noted(storage, f"{state}/{other}").options
            if other != sink_id and own == [options.get(option) for option in _NAMING]:
                sinks.append(other)
    return sinks


def sink_ids(storage: Storage, state: str) -> list[str]:
    """Return the sinks that have a ledger below the state directory `state`, sorted; `NotThere` if there is none."""
    return sorted(name for name in storage.names(state) if _is_directory(storage, f"{state}/{name}/ledger"))


def _is_directory(storage: Storage, path: str) -> bool:
    entry = entry_at(storage, path)
    return entry is not None and entry.is_directory


def _open(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without secrets, and without a pickled function."""
    options = {name: without_credentials(value) for name, value in given.items()}
    if STAGE in options:
        stage = json.loads(options[STAGE])
        if str(stage["transform"]).startswith(_PICKLED):
            options[STAGE] = json.dumps({**stage, "transform": OPAQUE})
    return options


def _epochs(storage: Storage, directory: str) -> list[int]:
    return sorted(int(match[1]) for name in storage.names(directory) if (match := _RECORD.fullmatch(name)))


def _name(epoch: int) -> str:
    return f"options-{epoch:012d}.json"
