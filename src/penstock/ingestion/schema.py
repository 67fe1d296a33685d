"""The schema of an ingest's input: given, noted at an earlier start, or inferred at the first start (see `source.noted`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.options import SOURCE, parse
from penstock.session import ddl
from penstock.source import schemas
from penstock.source.schemas import INFER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.source.noted import SchemaNotes


@dataclass(frozen=True)
class ReadSchema:
    """A schema as Spark's JSON. `told`: what this start reports about it; `inferred`: it was inferred now; `given`: by the user."""

    json: str
    told: tuple[str, ...] = ()
    inferred: bool = False
    given: bool = field(default=False, compare=False)

    @staticmethod
    def of(schema: Any, source: Mapping[str, str], notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, a StructType, or `infer`
        """Return the schema that the source reads after batch `committed`, the last committed one. Notes nothing yet.

        Raises what `infer` raises, and `SchemaChanged`.
        """
        options = parse(SOURCE, source, what="source")
        if options["emit"] != "records":
            return ReadSchema(ddl.schema_json(schemas.default_schema(options)))
        if not is_infer(schema):
            form = ddl.schema_json(schemas.default_schema(options) if schema is None else schema)
            form = _with_rescued(form, options["rescuedDataColumn"])
            changes = notes.changes(form, committed)
            if schema is None:
                return ReadSchema(form)
            return ReadSchema(form, _changed(changes.told()), given=True)
        counting = notes.counting(committed)
        if counting is not None:
            return ReadSchema(counting.schema, given=True)
        from penstock.source.inferred import infer  # imported here, because no other start needs it

        inferred = infer(options)
        return ReadSchema(inferred.json, (f"the schema was inferred: {inferred.ddl}", *inferred.told()), inferred=True)

    def noted(self, notes: SchemaNotes, committed: int) -> ReadSchema:
        """Note the schema, and return the one that counts, with the changes since the last start."""
        if self.inferred:
            note = notes.first(self.json, committed, clock.now_ns())
            return self if note.schema == self.json else ReadSchema(note.schema)
        if not self.given:
            return self
        note = notes.go_on(self.json, committed, clock.now_ns())
        changes = note.changes if note.batch > committed else ()  # reported until a batch is committed with it
        return replace(self, told=_changed(changes))


def _changed(changes: Iterable[str]) -> tuple[str, ...]:
    """Return the reports of a schema's changes."""
    return tuple(f"the schema has changed: {change}" for change in changes)


def _with_rescued(schema: str, name: str | None) -> str:
    """Return a schema with the column for what is rescued, added after the others if it is missing."""
    form = json.loads(schema)
    if name is None or name in {column["name"] for column in form["fields"]}:
        return schema
    form["fields"].append({"metadata": {}, "name": name, "nullable": True, "type": "string"})
    return json.dumps(form, separators=(",", ":"), sort_keys=True)


def is_infer(schema: object) -> bool:
    """Tell whether the schema is to be inferred."""
    return isinstance(schema, str) and schema.strip().lower() == INFER


def is_known(schema: object) -> bool:
    """Tell whether a schema can be read without Spark; `OptionError` for DDL that cannot be read at all."""
    return is_infer(schema) or ddl.is_known(schema)
