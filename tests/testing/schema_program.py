"""The notes of a schema as a program that can be crashed anywhere: each start infers, or is given, another schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.source.noted import SchemaNotes
from penstock.storage import names_at
from penstock.testing import Crashable, Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage

STATE, COMMITS = "/ck/penstock", "/ck/commits"
BATCHES = 3
Read = tuple[tuple[int, str], ...]


def schema_of(columns: int) -> str:
    """Return a schema with this number of columns, as Spark's JSON."""
    fields = [{"name": f"c{place}", "type": "integer", "nullable": True, "metadata": {}} for place in range(columns)]
    return json.dumps({"type": "struct", "fields": fields})


class SchemaProgram(Program):
    """Starts of a stream; each finds more columns than the one before, and reads batches by the schema in force.

    Its memory is the number of starts, and which schema read which batch. `given`: the schema comes from the user, and has more
    columns at each start; otherwise it is inferred. A batch is committed only if Spark has put it into its log.
    """

    memory: tuple[int, Read]

    def __init__(self, *, given: bool) -> None:
        self.memory = (0, ())
        self._given = given

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Read the batches that are not committed, the first of them perhaps again."""
        starts, read = self.memory
        self.memory = (starts + 1, read)
        storage = disk.storage()
        storage.make_directory(COMMITS)
        notes, committed = SchemaNotes(storage, STATE), _committed(storage)
        note = notes.go_on if self._given else notes.first
        schema = note(schema_of(starts + 1), committed, 0).schema
        rest()
        for batch in range(committed + 1, BATCHES):
            self.memory = (self.memory[0], (*self.memory[1], (batch, schema)))
            rest()
            storage.put_if_absent(f"{COMMITS}/{batch}", b"")
            rest()

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """No batch was read by two inferred schemas, and the schema that read a committed batch is noted and binding."""
        storage, read = disk.storage(), self.memory[1]
        notes, committed = SchemaNotes(storage, STATE), _committed(storage)
        complaints = [f"committed are batches up to {committed}"] if final and committed != BATCHES - 1 else []
        if not self._given:
            schemas = {batch: {schema for number, schema in read if number == batch} for batch, _ in read}
            complaints += [f"batch {batch} was read by {found}" for batch, found in schemas.items() if len(found) > 1]
        bound = notes.bound(committed)
        for batch in range(committed + 1):
            last = [schema for number, schema in read if number == batch][-1]
            version = [note for note in bound if note.batch <= batch]
            if not version or version[-1].schema != last:
                complaints.append(f"batch {batch} was committed by {last}, noted is {version[-1:]}")
        widths = [len(note.fields) for note in bound]
        return complaints if widths == sorted(widths) else [*complaints, f"columns went: {widths}"]


def _committed(storage: Storage) -> int:
    return max((int(name) for name in names_at(storage, COMMITS) if name.isdigit()), default=-1)
