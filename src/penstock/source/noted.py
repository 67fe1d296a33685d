"""The schema that a stream reads by, noted beside its checkpoint: the same after every restart, and no other one by accident.

Failures, and the rules that answer them:

1. A stream infers its schema, and dies before its first batch, or in it. Files come, with other values. It is started again, infers
   another schema, and the batch that Spark replays has other columns. Rule: what was inferred is put durably before anything is read
   by it (`put_if_absent`), and who finds a note infers nothing.
2. Two drivers are started at once. Rule: the put decides, and who comes second reads by what the first has put.
3. A stream is started again with another schema, by intent or by a slip. Columns that are missing now would be missing in the output from
   here on, without a word. Rule: with each start the schema is compared with what was noted last. More columns and wider types are noted
   as the next version, and told; a column less or another type is `SchemaChanged`, before anything has moved.

A note is a file `schema-<version>.json` in a directory beside the checkpoint (`stateLocation`), one line of JSON with its checksum
as in `query.records`: `schema` (Spark's JSON), `inferred`, `changes` (what is told of it), `time_ns`. Notes are few and stay.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import AlreadyThere, DamagedState, NotThere, SchemaChanged
from penstock.formats.changes import Changes
from penstock.query.records import checked, signed

if TYPE_CHECKING:
    from penstock.storage import Storage

_NAME = re.compile(r"schema-(\d{12})\.json")


@dataclass(frozen=True)
class Note:
    """One version of a schema, as Spark's JSON; `changes` is what is told of it against the version before."""

    version: int
    schema: str
    inferred: bool = False
    changes: tuple[str, ...] = ()

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns."""
        fields: list[dict[str, Any]] = json.loads(self.schema)["fields"]
        return fields


class Notes:
    """The notes of one stream, in a directory of its own beside its checkpoint."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    def all(self) -> list[Note]:
        """Return what was noted, the first first. `DamagedState` if that is not what was put."""
        try:
            names = list(self._storage.names(self._directory))
        except NotThere:
            return []
        versions = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        return [self._read(version) for version in versions]

    def last(self) -> Note | None:
        """Return the schema that counts; `None` if none was noted."""
        notes = self.all()
        return notes[-1] if notes else None

    def first(self, schema: str, time_ns: int) -> Note:
        """Note a schema that was inferred, if none is noted; return the one that counts then."""
        self._put(Note(1, schema, inferred=True), time_ns)
        return self._read(1)

    def go_on(self, schema: str, time_ns: int) -> Note:
        """Note the schema that a stream is started with, if it is another one than counts; return the note.

        Raises `SchemaChanged` for one that a stream does not go on with.
        """
        last = self.last()
        if last is None:
            self._put(Note(1, schema), time_ns)
            return self._read(1)
        changes = self.changes(last, schema)
        if not changes.told():
            return last
        version = last.version + 1
        self._put(Note(version, schema, changes=tuple(changes.told())), time_ns)
        put = self._read(version)
        return put if put.schema == schema else self.go_on(schema, time_ns)

    def changes(self, last: Note, schema: str) -> Changes:
        """Return what a schema changes; `SchemaChanged` if a stream does not go on with that."""
        changes = Changes.between(last.fields, json.loads(schema)["fields"])
        if changes.refused:
            msg = (
                f"{self._directory!r} has noted another schema: {'; '.join(changes.refused)}. Go on with schema=infer, which takes the one "
                "that is noted, or give that one with more columns or wider numbers; leave a column out in the transform or the query, "
                "not in the schema. For another type begin anew, with a new checkpoint and another output"
            )
            raise SchemaChanged(msg)
        return changes

    def _put(self, note: Note, time_ns: int) -> None:
        record = {"schema": note.schema, "inferred": note.inferred, "changes": list(note.changes), "time_ns": time_ns}
        self._storage.make_directory(self._directory)
        with suppress(AlreadyThere):  # by another driver, which was first, or by this one, whose reply was lost
            self._storage.put_if_absent(self._path(note.version), signed({"version": note.version, **record}))

    def _read(self, version: int) -> Note:
        path = self._path(version)
        record = checked(self._storage.read(path), path)
        if record.get("version") != version or not isinstance(record.get("schema"), str):
            msg = (
                f"{path!r} has version {record.get('version')!r} of a schema: it was moved here; restore it from a copy"
            )
            raise DamagedState(msg)
        return Note(version, record["schema"], bool(record.get("inferred")), tuple(map(str, record.get("changes", ()))))

    def _path(self, version: int) -> str:
        return f"{self._directory}/schema-{version:012d}.json"
