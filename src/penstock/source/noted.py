"""The schema that a stream reads by, noted beside its checkpoint: the same after every restart, and never changed by accident.

The failures, and the rules that prevent them:

1. A stream infers its schema, and dies before its first batch, or in it. More files arrive, with other values. It is started again,
   infers another schema, and the batch that Spark replays has other columns. Rule: an inferred schema is written durably before
   anything is read by it (`put_if_absent`), and a stream that finds a note infers nothing.
2. Two drivers are started at the same time. Rule: the put decides, and the second driver reads by the schema that the first one put.
3. A schema has a mistake, is noted, and the first batch fails because of it. The corrected schema would be refused because it differs.
   Rule: a note has the number of the batch that was to be next, and binds nobody until a batch was committed by it.
4. A stream is started again with another schema, on purpose or by mistake. Columns that are missing now would be missing in the output
   from then on, without a word. Rule: at each start the schema is compared with the last one that binds. More columns and wider types
   are noted as the next version, and reported; a missing column or another type is `SchemaChanged`, before anything has moved.

A note is a file `schema-<version>.json` in a directory beside the checkpoint (`stateLocation`), one line of JSON with its checksum as
in `query.records`: `schema` (Spark's JSON), `batch` (the next one when it was noted), `inferred`, `changes` (what is reported of it),
`time_ns`, and `path` if a source of its own inferred it. Notes are few and are never deleted.
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
    """One version of a schema, as Spark's JSON; `batch` is the first batch that may be read by it.

    `changes` are the reported differences from the last version by which a batch was committed. `path` is the directory that it was
    inferred from, if that is known.
    """

    version: int
    schema: str
    batch: int = 0
    inferred: bool = False
    changes: tuple[str, ...] = ()
    path: str = ""

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns."""
        fields: list[dict[str, Any]] = json.loads(self.schema)["fields"]
        return fields


class SchemaNotes:
    """The notes of one stream, in a directory that belongs to it alone, beside its checkpoint."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    def all(self) -> list[SchemaNote]:
        """Return all notes, the first one first. `DamagedState` if a note is not as it was put."""
        try:
            names = list(self._storage.names(self._directory))
        except NotThere:
            return []
        versions = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        return [self._read(version) for version in versions]

    def bound(self, committed: int) -> list[SchemaNote]:
        """Return the notes by which a batch was committed; `committed` is the last committed batch, -1 for none."""
        notes = self.all()
        ends = [later.batch - 1 for later in notes[1:]] + [committed]
        return [note for note, end in zip(notes, ends, strict=False) if note.batch <= min(end, committed)]

    def counting(self, committed: int = -1) -> SchemaNote | None:
        """Return the schema that `infer` takes: the last one with a committed batch, otherwise the last inferred one, otherwise `None`."""
        bound = self.bound(committed)
        inferred = [note for note in self.all() if note.inferred]
        return bound[-1] if bound else inferred[-1] if inferred else None

    def first(self, schema: str, committed: int, time_ns: int, path: str = "") -> SchemaNote:
        """Note a schema that was inferred from `path`, if no schema counts yet; return the one that counts then."""
        counting = self.counting(committed)
        if counting is not None:
            return counting
        version = len(self.all()) + 1
        self._put(SchemaNote(version, schema, committed + 1, inferred=True, path=path), time_ns)
        return self._read(version)

    def go_on(self, schema: str, committed: int, time_ns: int) -> SchemaNote:
        """Note the schema that a stream is started with, unless it was noted last; return the note.

        Raises `SchemaChanged` for a schema with which the stream cannot go on.
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
        """Return the changes against the last schema that binds; `SchemaChanged` if the stream cannot go on with them."""
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
        } | ({"path": note.path} if note.path else {})
        self._storage.make_directory(self._directory)
        with suppress(AlreadyThere):  # put by another driver, which was first, or by this one, whose reply was lost
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
        return SchemaNote(version, schema, batch, bool(record.get("inferred")), changes, str(record.get("path", "")))

    def _path(self, version: int) -> str:
        return f"{self._directory}/schema-{version:012d}.json"
