"""The files in which the rows of a batch wait for its transaction (`formats.staged`), in a directory that tasks and driver share.

A file belongs to one attempt of one task: `<batch, 12 digits>-<partition>-<token>.arrow`. The driver reads only files
that the messages of the winners name, so an attempt that lost has no effect. Nothing is synced: if a power cut loses a
file, its batch is not applied, and will be repeated. When a batch is applied, its files and those of earlier batches
are removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import failpoints, unique
from penstock.errors import NotThere
from penstock.formats import arrow_batches, arrow_stream
from penstock.storage import locate, names_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

_NAME = re.compile(r"([0-9]{12})-[0-9]+-[0-9a-f]{32}\.arrow")
_FILE_BYTES = 64 << 20  # of Arrow data per file; the driver holds one file in memory at a time


@dataclass(frozen=True)
class Staged:
    """The result of one attempt: the names of its staged files, in order, and how many rows they hold."""

    files: tuple[str, ...]
    rows: int


class StagingFiles:
    """The staging directory of one query."""

    def __init__(self, location: str, query: str) -> None:
        self._storage, root = locate(location, name="stagingLocation")
        self.directory = f"{root}/penstock-db-{query}"

    def write(self, batch: int, partition: int, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Staged:
        """Write the rows of one attempt."""
        files, held, count, size = [], [], 0, 0
        for batch_rows in rows:
            held.append(batch_rows)
            count += batch_rows.num_rows
            size += batch_rows.nbytes
            if size >= _FILE_BYTES:
                files.append(self._put(batch, partition, schema, held))
                held, size = [], 0
        if any(batch_rows.num_rows for batch_rows in held):
            files.append(self._put(batch, partition, schema, held))
        failpoints.hit("db.staged")
        return Staged(tuple(files), count)

    def read(self, staged: Iterable[Staged]) -> Iterator[pa.RecordBatch]:
        """Yield the staged rows, in order; `NotThere`, `DamagedState`."""
        for name in (name for attempt in staged for name in attempt.files):
            try:
                data = self._storage.read(f"{self.directory}/{name}")
            except NotThere as error:
                msg = (
                    f"{self.directory}/{name} was staged by a task and is not there for the driver; tasks and driver must see "
                    "the same directory: name one on a file system that they share with the option stagingLocation"
                )
                raise NotThere(msg) from error
            yield from arrow_batches(data)

    def sweep(self, batch: int) -> None:
        """Remove the staged files of `batch` and earlier batches, of all attempts."""
        for name in names_at(self._storage, self.directory):
            match = _NAME.fullmatch(name)
            if match and int(match[1]) <= batch:
                self._storage.delete(f"{self.directory}/{name}")

    def remove(self, staged: Iterable[Staged]) -> None:
        """Remove what these attempts staged."""
        for name in (name for attempt in staged for name in attempt.files):
            self._storage.delete(f"{self.directory}/{name}")

    def _put(self, batch: int, partition: int, schema: pa.Schema, rows: list[pa.RecordBatch]) -> str:
        self._storage.make_directory(self.directory, private=True)
        name = f"{batch:012}-{partition}-{unique.token()}.arrow"
        with self._storage.create(f"{self.directory}/{name}") as file:
            file.write(arrow_stream(rows, schema))
        return name
