"""The schema that a stream reads by, noted beside its checkpoint: the same after every restart, and no other one by accident.

Failures, and the rules that answer them:

1. A stream infers its schema, and dies before its first batch, or in it. Files come, with other values. It is started again, infers
   another schema, and the batch that Spark replays has other columns. Rule: what was inferred is put durably before anything is read
   by it (`put_if_absent`), and whoever finds a note infers nothing.
2. Two drivers are started at once. Rule: the put decides, and whoever comes second reads by what the first put.
3. A schema has a slip, is noted, and the first batch fails over it. The one that has it mended would be refused as another one. Rule: a
   note has the batch that was to be the next, and binds nobody before a batch was committed by it.
4. A stream is started again with another schema, by intent or by a slip. Columns that are missing now would be missing in the output
   from here on, unsaid. Rule: with each start the schema is compared with the last one that binds. More columns and wider types are noted
   as the next version, and told; a column less or another type is `SchemaChanged`, before anything has moved.

A note is a file `schema-<version>.json` in a directory beside the checkpoint (`stateLocation`), one line of JSON with its checksum
as in `query.records`: `schema` (Spark's JSON), `batch` (the next one when it was noted), `inferred`,
`changes` (what is told of it), `time_ns`. SchemaNotes are few and stay.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import AlreadyThere, DamagedState, NotThere, SchemaChanged
from penstock.formats.changes import SchemaChanges
from penstock.query.records import checked_at, signed

if TYPE_CHECKING:
    from penstock.storage import Storage

_NAME = re.compile(r"schema-(\d{12})\.json")


@dataclass(frozen=True)
class SchemaNote:
    """One version of a schema, as Spark's JSON; `batch` is the first one that may be read by it.

    `changes` is what is told of it against the last version by which a batch was committed.
    """

    version: int
    schema: str
    batch: int = 0
    inferred: bool = False
    changes: tuple[str, ...] = ()

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns."""
        fields: list[dict[str, Any]] = json.loads(self.schema)["fields"]
        return fields


class SchemaNotes:
    """The notes of one stream, in a directory of its own beside its checkpoint."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    def all(self) -> list[SchemaNote]:
        """Return what was noted, the first first. `DamagedState` if that is not what was put."""
        try:
            names = list(self._storage.names(self._directory))
        except NotThere:
            return []
        versions = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        return [self._read(version) for version in versions]

    def bound(self, committed: int) -> list[SchemaNote]:
        """Return the notes by which a batch was committed; `committed` is the last one that was, -1 for none."""
        notes = self.all()
        ends = [later.batch - 1 for later in notes[1:]] + [committed]
        return [note for note, end in zip(notes, ends, strict=False) if note.batch <= min(end, committed)]

    def counting(self, committed: int = -1) -> SchemaNote | None:
        """Return the schema that `infer` takes: the last one that a batch was committed by, else one that was inferred; else `None`."""
        bound = self.bound(committed)
        inferred = [note for note in self.all() if note.inferred]
        return bound[-1] if bound else inferred[-1] if inferred else None

    def first(self, schema: str, committed: int, time_ns: int) -> SchemaNote:
        """SchemaNote a schema that was inferred, if none counts; return the one that does then."""
        counting = self.counting(committed)
        if counting is not None:
            return counting
        version = len(self.all()) + 1
        self._put(SchemaNote(version, schema, committed + 1, inferred=True), time_ns)
        return self._read(version)

    def go_on(self, schema: str, committed: int, time_ns: int) -> SchemaNote:
        """SchemaNote the schema that a stream is started with, unless it was noted last; return the note.

        Raises `SchemaChanged` for one that a stream does not go on with.
        """
        changes = self.changes(schema, committed)
        notes = self.all()
        if notes and notes[-1].schema == schema:
            return notes[-1]
        version = len(notes) + 1
        self._put(SchemaNote(version, schema, committed + 1, changes=tuple(changes.told())), time_ns)
        put = self._read(version)
        return put if put.schema == schema else self.go_on(schema, committed, time_ns)

    def changes(self, schema: str, committed: int) -> SchemaChanges:
        """Return what a schema changes of the last one that counts; `SchemaChanged` if a stream does not go on with that."""
        bound = self.bound(committed)
        changes = SchemaChanges.between(bound[-1].fields, json.loads(schema)["fields"]) if bound else SchemaChanges()
        if changes.refused:
            msg = (
                f"{self._directory!r} has noted another schema: {'; '.join(changes.refused)}. Go on with schema=infer, which takes the one "
                "that is noted, or give that one with more columns or wider numbers; leave a column out in the transform or the query, "
                "not in the schema. For another type begin anew, with a new checkpoint and another output"
            )
            raise SchemaChanged(msg)
        return changes

    def _put(self, note: SchemaNote, time_ns: int) -> None:
        record = {
            "schema": note.schema,
            "batch": note.batch,
            "inferred": note.inferred,
            "changes": list(note.changes),
            "time_ns": time_ns,
        }
        self._storage.make_directory(self._directory)
        with suppress(AlreadyThere):  # by another driver, which was first, or by this one, whose reply was lost
            self._storage.put_if_absent(self._path(note.version), signed({"version": note.version, **record}))

    def _read(self, version: int) -> SchemaNote:
        path = self._path(version)
        record = checked_at(self._storage, path)
        batch, schema = record.get("batch"), record.get("schema")
        if record.get("version") != version or not isinstance(schema, str) or not isinstance(batch, int):
            msg = (
                f"{path!r} has version {record.get('version')!r} of a schema: it was moved here; restore it from a copy"
            )
            raise DamagedState(msg)
        changes = tuple(map(str, record.get("changes", ())))
        return SchemaNote(version, schema, batch, bool(record.get("inferred")), changes)

    def _path(self, version: int) -> str:
        return f"{self._directory}/schema-{version:012d}.json"
