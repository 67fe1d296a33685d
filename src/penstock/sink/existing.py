"""What a sink leaves beside its ledger, so that it can be rebuilt without its query: `finish`, `verify`, `status`.

A record of the ledger has all that decides. What it does not have is how the query would have gone on: `fileName`,
`timeZone`, the limits; and, for `verify`, where the checkpoint is and what an ingest did with what it read. So whoever
claims a sink notes the options it came with, as `options-<epoch>.json` in the sink's directory: one line of JSON with
its checksum, in the form of the ledger's records. The note follows the claim. A crash between the two leaves the note
before, which is that of the driver that wrote what is open. A driver that goes on from its own claim notes what is missing before
its first task runs, so that whatever is open has a note: without one nobody would know where its key is.

No secret is in it: the options of a sink hold references to secrets, never literals, and what stands before the `@` of a URL
is left out.

**Nothing of a state file is run.** The stage of an ingest travels in the options of its query, with a function in it, and
whoever runs the query is trusted. Whoever may write to the output is not. So what a file has of a stage comes back as a type
of its own, `NotedStage`, in which a transform is a name to tell and nothing else; the options of a sink (`options.SINK`)
have no place for a stage, in no spelling; and what loads functions takes the type that only a live caller makes
(`ingestion.stage.LiveStage`). A function that was pickled is not even noted. SQL (`ingestion.sql`) is no code: it names columns and
functions out of a fixed list, reaches no file and no module, and is repeated as it is noted.
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
SQL = "sql"  # a transform that is written in SQL: no code, so it is noted, and repeated from the note
OPAQUE = {"opaque": True}  # in place of a transform that cannot be repeated from its record
_PICKLED = "pickle:"
_NAMING = ("fileName", "bucketBy")
_RECORD = re.compile(r"options-(\d{12})\.json")


@dataclass(frozen=True)
class NotedStage:
    """What an ingest noted of how its source became rows; schemas are Spark's JSON. It can be told and compared, never run.

    `transform` is the `module:function` that the ingest was given, `None` if it had none; `opaque`: a function that has no name; `sql`
    the select that it was instead. `tasks` is how many shared a rate.
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
        """Return the stage as a note has it."""
        transform: object = OPAQUE if self.opaque else self.transform if self.sql is None else {SQL: self.sql}
        form = {"source": dict(self.source), "schema": self.schema, "out": self.out, "transform": transform}
        return json.dumps(form | {"tasks": self.tasks})


@dataclass(frozen=True)
class Noted:
    """What the last driver of a sink noted: the options it was given, and the stage of an ingest.

    `changed` are the options that an earlier driver was given otherwise, or not at all; those of an ingest's source as `source.NAME`.
    """

    options: Mapping[str, str]
    stage: NotedStage | None = None
    changed: frozenset[str] = frozenset()

    @property
    def all(self) -> dict[str, object]:
        """Return all that was given by one name each."""
        if self.stage is None:
            return dict(self.options)
        transform = self.stage.transform, self.stage.opaque, self.stage.sql
        return {
            **self.options,
            **{f"source.{name}": text for name, text in self.stage.source.items()},
            "transform": transform,
        }

    def changed_since(self, before: Noted) -> frozenset[str]:
        """Return what is `changed` where `before` is what the driver before has noted."""
        here, there = self.all, before.all
        return before.changed | {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}


NOTHING_NOTED = Noted({})


def note_options(storage: Storage, directory: str, epoch: int, given: Mapping[str, str]) -> None:
    """Note what the driver of `epoch` was given, forget what earlier ones were; called by the owner of the epoch."""
    options = _open(given)
    changed: frozenset[str] = frozenset()
    # Whoever needs a damaged note says so; this driver does not.
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


def is_noted(storage: Storage, directory: str, epoch: int) -> bool:
    """Tell whether what the driver of `epoch` was given is noted; a note that failed leaves a claim without one."""
    return entry_at(storage, f"{directory}/{_name(epoch)}") is not None


def noted(storage: Storage, directory: str) -> Noted:
    """Return what the last driver noted, nothing if none did. `DamagedState` if it is not what was put."""
    epochs = _epochs(storage, directory)
    if not epochs:
        return NOTHING_NOTED
    path = f"{directory}/{_name(epochs[-1])}"
    record = checked_at(storage, path)
    here = {"sink": directory.rpartition("/")[2], "epoch": epochs[-1]}
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
    """Return what a note of these options says; `TypeError` and its like if they are none."""
    options = {name: without_credentials(value) for name, value in options.items()}
    stage = options.pop(STAGE, None)
    return Noted(options, None if stage is None else _stage(json.loads(stage)))


def _stage(form: dict[str, Any]) -> NotedStage:
    """Return the stage that a note has; `TypeError` and its like if it is none."""
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
    """Return the other sinks below the state directory `state` that call their files by the same options; what cannot be read is none."""
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
    """Return the options without secrets, and without a function that was pickled."""
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
