"""An Iceberg table, in any catalogue that pyiceberg knows; without one, in a SQLite file below the output.

The table's properties say how far it has got, one for each sink, as `number:mark`. The commit that adds the files also sets it,
and requires that the table's branch is still where it was when the property was read: that is the atomic check.

The library repeats a refused commit on the newer table, and would so add files that a rival has just added. So it is told to try
once. That is set in the copy of the metadata that the commit is made from, and not in the table, where other writers read it.

The table's name mapping says which column of a file is which column of the table. It has the names that columns had before they
were renamed or dropped. The files keep the old names, so such a column is not a new one.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.catalogs.table import Overtaken, Unfit, check_required, check_start
from penstock.errors import CatalogError, OptionError
from penstock.sink.events import EventPosition
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table import Transaction
    from pyiceberg.table.name_mapping import MappedField

    from penstock.catalogs.footers import TableFile
    from penstock.storage import Storage

_PROPERTY = "penstock.position."
_TRIES = "commit.retry.num-retries"
_MAPPING = "schema.name-mapping.default"
_DIRECTORY = "_iceberg"  # below the output; hidden from the output's readers
_SQLITE = "sqlite:///"
_CATALOGUE_TABLES = 2  # tables of its own that an SQLite catalogue makes, one after the other
_PLACED = re.compile(r"(\d+):([0-9a-f]{16})")
# Each commit writes the metadata again. For a follower that never ends, keep a hundred versions, and merge its small
# manifests.
_NEW_TABLE = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}


class Iceberg:
    """One table of a catalogue."""

    kind: ClassVar[str] = "iceberg"

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.name = name
        self._catalog = catalog
        self._table: IcebergTable | None = None

    def look(self) -> None:
        """Load the present version of the table."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            self._table = self._catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._table = None

    def position(self, sink: str) -> EventPosition:
        """Return how far the table had got with a sink at the last look."""
        text = None if self._table is None else self._table.properties.get(_PROPERTY + sink)
        if text is None:
            return EventPosition()
        match = _PLACED.fullmatch(text)
        if match is None:
            msg = (
                f"the property {_PROPERTY + sink!r} of the table {self.name!r} is {text!r}, which Penstock has not written: put it back as "
                "an older version of the table's metadata has it, or begin a new table"
            )
            raise CatalogError(msg)
        return EventPosition(int(match[1]), match[2])

    def add(self, sink: str, start: EventPosition, end: EventPosition, files: Sequence[TableFile]) -> None:
        """Add files, and note the position after them, in one step. Raises `Overtaken`, `Unfit`."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            transaction = self._once(files).transaction()
            check_start(self, sink, start)
            self._widen(transaction, files)
            properties = {f"{_PROPERTY}{sink}": f"{end.number}:{end.mark}"}
            if transaction.table_metadata.name_mapping() is None:
                properties[_MAPPING] = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties(properties)
            snapshot = transaction.update_snapshot(snapshot_properties=properties)
            merged = transaction.table_metadata.properties.get("commit.manifest-merge.enabled") == "true"
            with snapshot.merge_append() if merged else snapshot.fast_append() as append:
                for file in files:
                    append.append_data_file(_data_file(transaction, file))
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise Overtaken(str(error)) from error

    def _once(self, files: Sequence[TableFile]) -> IcebergTable:
        """Return the table, made if it is not there, in a form whose commits are tried only once."""
        from pyiceberg.table import Table

        if self._table is None:
            self._make(files[0])
        assert self._table is not None  # noqa: S101 - it was made
        known = self._table.metadata
        metadata = known.model_copy(update={"properties": dict(known.properties) | {_TRIES: "0"}})
        return Table(self._table.name(), metadata, self._table.metadata_location, self._table.io, self._catalog)

    def _make(self, file: TableFile) -> None:
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        namespace = self.name.rpartition(".")[0]
        _made(
            lambda: self._catalog.create_namespace_if_not_exists(namespace),
            lambda: self._catalog.namespace_exists(namespace),
        )
        try:
            _made(
                lambda: self._catalog.create_table(self.name, _columns(file), properties=_NEW_TABLE),
                lambda: self._catalog.table_exists(self.name),
            )
        except (UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
            raise Unfit(file, f"has a column that no table of Iceberg has: {error}") from error
        self.look()

    def _widen(self, transaction: Transaction, files: Sequence[TableFile]) -> None:
        """Add the columns of the files that the table lacks, and partitions for the columns of their directories."""
        for _, file in sorted({str(_columns(file)): file for file in files}.items()):
            _widen(transaction, file)
        names = dict.fromkeys(name for file in files for name in file.partition)
        parted = {field.name for field in transaction.table_metadata.spec().fields}
        if new := [name for name in names if name not in parted]:
            with transaction.update_spec() as spec:
                for name in new:
                    spec.add_identity(name)

    @property
    def version(self) -> str | None:
        """Return the snapshot of the table at the last look."""
        snapshot = None if self._table is None else self._table.current_snapshot()
        return None if snapshot is None else str(snapshot.snapshot_id)


def _made(make: Callable[[], object], is_there: Callable[[], bool]) -> None:
    """Make something in a catalogue.

    After an error, checks whether it is there: another follower may be faster, and catalogues report that in different ways.
    """
    try:
        make()
    except Exception:  # the library of a catalogue may raise anything
        if not is_there():
            raise


def _widen(transaction: Transaction, file: TableFile) -> None:
    """Add the columns of a file. Raises `Unfit` for a column of another type."""
    import pyarrow as pa
    from pyiceberg.exceptions import ResolveError, ValidationError
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    known = transaction.table_metadata.schema()
    mapping = transaction.table_metadata.name_mapping() or known.name_mapping
    required = {
        field.name for field in known.fields if field.required
    }  # without this the library would make them nullable
    columns = [
        field.with_nullable(field.nullable and field.name not in required)
        for field in _as_called_now(_columns(file), mapping.root, known)
    ]
    try:
        with transaction.update_schema() as schema:
            schema.union_by_name(pa.schema(columns))
    except (ResolveError, ValidationError, UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
        raise Unfit(file, f"has other columns than the table: {error}") from error


def _as_called_now(fields: Iterable[pa.Field], mapped: Sequence[MappedField], schema: Schema) -> list[pa.Field]:
    """Return fields with their present names in the table, without those that were dropped from it."""
    import pyarrow as pa

    known = {name: field for field in mapped for name in field.names}
    called = []
    for field in fields:
        of_table = known.get(field.name)
        if of_table is None or of_table.field_id is None:
            called.append(field)
        elif schema.find_column_name(of_table.field_id) is not None:
            name = schema.find_field(of_table.field_id).name
            called.append(pa.field(name, _with_names_of_now(field.type, of_table.fields, schema), field.nullable))
    return called


def _with_names_of_now(kind: pa.DataType, mapped: Sequence[MappedField], schema: Schema) -> pa.DataType:
    """Return a type whose fields have their present names in the table, also within lists and maps."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct(_as_called_now(kind, mapped, schema))
    if pa.types.is_map(kind):
        fields = [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
        key, value = _as_called_now(fields, mapped, schema)
        return pa.map_(key.type, value.type)
    if pa.types.is_list(kind):
        (element,) = _as_called_now([pa.field("element", kind.value_type)], mapped, schema)
        return pa.list_(element.type)
    return kind


def _columns(file: TableFile) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*file.schema, *(pa.field(name, pa.string()) for name in file.partition)])


def _data_file(transaction: Transaction, file: TableFile) -> DataFile:
    """Return the entry of a file, with the statistics of its footer."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        pyarrow_to_schema,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metadata = transaction.table_metadata
    schema, spec = metadata.schema(), metadata.spec()
    mapping = metadata.name_mapping() or schema.name_mapping
    in_file = pyarrow_to_schema(file.schema, name_mapping=mapping, format_version=metadata.format_version)
    for field in schema.fields:
        if field.required:
            check_required(file, field.name, in_file.find_column_name(field.field_id))
    plans = [compute_statistics_plan(known, metadata.properties) for known in (in_file, schema)]
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer,
        stats_columns=plans[0] | plans[1],  # dropped columns, too
        parquet_column_mapping=parquet_path_to_id_mapping(in_file),
    )
    try:
        of_columns = statistics.partition(spec, schema)
    except ValueError as error:
        raise Unfit(file, f"is of no one partition of the table, by which others part it: {error}") from error
    parted = [file.partition.get(field.name, of_columns[at]) for at, field in enumerate(spec.fields)]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.place,
        file_format=FileFormat.PARQUET,
        partition=Record(*parted),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def opened(named: Any, storage: Storage, root: str) -> Catalog:  # noqa: ANN401 - what a user gave
    """Return the user's catalogue: the given object, a name in pyiceberg's configuration, or an SQLite file.

    The default is pyiceberg's configured default, else `_iceberg/catalog.db` below the output.
    """
    from pyiceberg.catalog import Catalog, load_catalog

    if isinstance(named, Catalog):
        return named
    if named is None and not _configured("default"):
        return _sqlite(f"{_local(storage, root)}/{_DIRECTORY}/catalog.db")
    name = "default" if named is None else str(named)
    if name.startswith(_SQLITE):
        return _sqlite(name.removeprefix(_SQLITE))
    if not _configured(name):
        msg = (
            f"catalog={name!r} is not in pyiceberg's configuration; expected one of .pyiceberg.yaml or of PYICEBERG_CATALOG__NAME__URI, "
            "or a file such as sqlite:////data/catalog.db"
        )
        raise OptionError(msg)
    return load_catalog(name)


def _configured(name: str) -> bool:
    from pyiceberg.utils.config import Config

    return Config().get_catalog_config(name) is not None


def _local(storage: Storage, root: str) -> str:
    if not storage.of_this_host:
        msg = (
            f"{root!r} is on no disk of this host, where a catalogue of SQLite would lie; name one: --catalog with a name of pyiceberg's "
            "configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__NAME__URI), or with a file such as sqlite:////data/catalog.db"
        )
        raise OptionError(msg)
    return root


def _sqlite(path: str) -> Catalog:
    """Return the catalogue of an SQLite file, made if it is not there; its tables lie beside the file."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import URL
    from sqlalchemy.exc import OperationalError

    directory = path.rpartition("/")[0]
    if not path.startswith("/"):
        msg = f"catalog={_SQLITE + path!r}: expected a whole path, such as sqlite:////data/catalog.db"
        raise OptionError(msg)
    LocalStorage().make_directory(directory)
    uri = URL.create("sqlite", database=path).render_as_string()
    for _ in range(_CATALOGUE_TABLES):  # another follower may make each of them at this moment; then it is there
        with contextlib.suppress(OperationalError):
            return SqlCatalog("penstock", uri=uri, warehouse=directory)
    return SqlCatalog("penstock", uri=uri, warehouse=directory)


def check_name(name: str) -> str:
    """Return the name of a table; `OptionError` if it is not valid."""
    if not re.fullmatch(r"[^.\s/]+(\.[^.\s/]+)+", name):
        msg = f"iceberg={name!r}: expected a namespace and a table, such as logs.events"
        raise OptionError(msg)
    return name
