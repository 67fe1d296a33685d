"""A Delta table over an output: its log is in the output's directory, `_delta_log`, and names the files in their places.

The table's own transactions say how far it has got, two for each sink: the number of the next event, and the mark of the event
before it, whose 64 bits are read as a signed number. The commit that adds the files also writes them. Of two commits that began
from one version and write the same transaction, the library lets one through: that is the atomic check. The library repeats it
for each version that another writer has put in between.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.catalogs.statistics import column_statistics
from penstock.catalogs.table import Overtaken, Unfit, check_required, check_start
from penstock.errors import CatalogError
from penstock.sink.events import EventPosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from deltalake import DeltaTable

    from penstock.catalogs.footers import TableFile

_MARK_BITS = 64
_MILLISECOND_NS = 1_000_000
_CONSTRAINT = "delta.constraints."  # prefix of a constraint's name among a table's properties


class Delta:
    """The Delta table of one output."""

    kind: ClassVar[str] = "delta"

    def __init__(self, root: str) -> None:
        self.name = root
        self._table: DeltaTable | None = None

    def look(self) -> None:
        """Load the present version of the table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            self._table = DeltaTable(self.name, storage_options=options())
        except TableNotFoundError:
            self._table = None

    def position(self, sink: str) -> EventPosition:
        """Return how far the table had got with a sink at the last look."""
        number, mark = (self._version(name) for name in _applications(sink))
        if number is None or mark is None:
            return EventPosition()
        return EventPosition(number, f"{mark % (1 << _MARK_BITS):016x}")

    def _version(self, application: str) -> int | None:
        return None if self._table is None else self._table.transaction_version(application)

    def add(self, sink: str, start: EventPosition, end: EventPosition, files: Sequence[TableFile]) -> None:
        """Add files, and note the position after them, in one step. Raises `Overtaken`, `Unfit`."""
        from deltalake.exceptions import CommitFailedError

        try:
            table = self._fitting(files)
            check_start(self, sink, start)
            self._commit(table, sink, end, files)
        except CommitFailedError as error:
            raise Overtaken(str(error)) from error

    def _commit(self, table: DeltaTable, sink: str, end: EventPosition, files: Sequence[TableFile]) -> None:
        from deltalake import CommitProperties, Transaction

        signed = int(end.mark, 16) - ((1 << _MARK_BITS) if int(end.mark, 16) >> (_MARK_BITS - 1) else 0)
        noted = [Transaction(*pair) for pair in zip(_applications(sink), (end.number, signed), strict=True)]
        partitions = table.metadata().partition_columns
        table.create_write_transaction(
            [_action(file, partitions) for file in files],
            "append",
            table.schema(),
            partitions,
            commit_properties=CommitProperties(app_transactions=noted),
        )

    def _fitting(self, files: Sequence[TableFile]) -> DeltaTable:
        """Return the table, made if it is not there, and widened by all columns of the files; each step may be repeated."""
        from deltalake import DeltaTable

        known = [] if self._table is None else [field.name for field in self._table.schema().fields]
        for file in files:
            _check_types(file)
            _check_case(file, known)
        if self._table is None:
            partitions = list(dict.fromkeys(name for file in files for name in file.partition))
            schema = _with_partitions(files[0].schema, partitions)
            DeltaTable.create(self.name, schema, "ignore", partitions, storage_options=options())
            self.look()
        assert self._table is not None  # noqa: S101 - it was made
        self._check_constraints(self._table)
        for file in files:
            _check_nulls(self._table, file)
            self._widen(self._table, file)
        return self._table

    def _check_constraints(self, table: DeltaTable) -> None:
        """Raise `CatalogError` if the table has constraints, because a writer who adds existing files must have checked their rows."""
        configuration = table.metadata().configuration
        name = next(
            (key.removeprefix(_CONSTRAINT) for key in sorted(configuration) if key.startswith(_CONSTRAINT)), None
        )
        if name is not None:
            msg = (
                f"the table {self.name!r} has the constraint {name!r} ({configuration[_CONSTRAINT + name]}), which was not checked for "
                f"the rows of these files: drop it (ALTER TABLE ... DROP CONSTRAINT {name}; deltalake: "
                f"table.alter.drop_constraint({name!r})), and run this again"
            )
            raise CatalogError(msg)

    def _widen(self, table: DeltaTable, file: TableFile) -> None:
        """Add the columns and nested fields of a file that the table lacks. Raises `Unfit` for a column of another type."""
        from deltalake import Schema

        types = {field.name: json.loads(field.type.to_json()) for field in table.schema().fields}
        partitions = table.metadata().partition_columns
        unknown = sorted(file.partition.keys() - set(partitions))
        if unknown:
            known = ", ".join(partitions) or "none"
            why = f"lies in a directory {unknown[0]}=..., and the table has no such partition ({known}); none can be added"
            raise Unfit(file, why)
        wider = []
        for field in Schema.from_arrow(file.schema).fields:
            kind = json.loads(field.type.to_json())
            of_table = "a column of its directories" if field.name in partitions else types.get(field.name, kind)
            if not _joins(of_table, kind):
                raise Unfit(file, f"has the column {field.name!r} as {kind}, and the table as {of_table}")
            if field.name not in types or not _covers(of_table, kind):
                wider.append(field)
        if wider:
            table.alter.add_columns(wider)

    @property
    def version(self) -> str | None:
        """Return the version of the table at the last look."""
        return None if self._table is None else str(self._table.version())


def options() -> dict[str, str] | None:
    """Return options that the library does not set itself: allow plain HTTP for a server that the environment names so, as we do."""
    import os

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return {"allow_http": "true", "endpoint": endpoint} if endpoint.startswith("http:") else None


def _applications(sink: str) -> tuple[str, str]:
    return f"penstock:number:{sink}", f"penstock:mark:{sink}"


def _action(file: TableFile, partitions: Sequence[str]) -> Any:  # noqa: ANN401 - the library's
    from deltalake.transaction import AddAction

    of_directories = {name: file.partition.get(name) for name in partitions}
    statistics = json.dumps(column_statistics(file.footer, file.schema))
    return AddAction(
        file.path, file.size, of_directories, file.modified_ns // _MILLISECOND_NS, data_change=True, stats=statistics
    )


def _with_partitions(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*schema, *(pa.field(name, pa.string()) for name in names)])


def _check_nulls(table: DeltaTable, file: TableFile) -> None:
    """Raise `Unfit` for null in a column that must not be null."""
    in_file = {*file.schema.names, *file.partition}
    for field in table.schema().fields:
        if not field.nullable:
            check_required(file, field.name, field.name if field.name in in_file else None)


def _check_types(file: TableFile) -> None:
    """Raise `Unfit` for a column of a type that Delta tables do not have."""
    from deltalake import Schema

    try:
        Schema.from_arrow(file.schema)
    except Exception as error:  # the library raises no other class
        raise Unfit(file, f"has a column that no table of Delta has: {error}") from error


def _check_case(file: TableFile, known: Iterable[str]) -> None:
    """Raise `Unfit` if a column of the file, or of its directories, differs only in case from another one of the file or the table."""
    by_lower = {name.lower(): name for name in known}
    for name in (*file.schema.names, *file.partition):
        other = by_lower.setdefault(name.lower(), name)
        if other != name:
            raise Unfit(file, f"has the column {name!r}, which is the same as {other!r} for Delta")


def _members(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a type as JSON
    """Return the member types of a type: the fields of a struct, the contents of lists and maps; none for a plain type, which is a text."""
    if isinstance(kind, str):
        return {}
    if kind["type"] == "struct":
        return {field["name"]: field["type"] for field in kind["fields"]}
    return {name: kind[name] for name in ("elementType", "keyType", "valueType") if name in kind}


def _joins(known: Any, kind: Any) -> bool:  # noqa: ANN401 - types as JSON
    """Tell whether two types are the same, apart from fields of structs that only one of them has."""
    if isinstance(known, str) or isinstance(kind, str):
        return bool(known == kind)
    shared = _members(known).keys() & _members(kind).keys()
    return known["type"] == kind["type"] and all(_joins(_members(known)[name], _members(kind)[name]) for name in shared)


def _covers(known: Any, kind: Any) -> bool:  # noqa: ANN401 - types as JSON
    """Tell whether a type has all fields of another type that it `_joins` with."""
    members = _members(known)
    return all(name in members and _covers(members[name], member) for name, member in _members(kind).items())
