"""The sink of files for a streaming query: the four verbs of `BatchSink`, with the keeper held off while a batch is in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.account import Account
from penstock.formats.aside import Aside
from penstock.query.writing import BatchSink
from penstock.sink import keeper
from penstock.sink.batch import Begun, TaskResult
from penstock.sink.tolerance import Tolerance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    import pyarrow as pa

    from penstock.query.batch import Batch, Task
    from penstock.sink.sink import Sink
    from penstock.sink.telling import Telling

    Conversion: TypeAlias = Callable[[Iterator[pa.RecordBatch], Account, Aside], Iterable[pa.RecordBatch | bytes]]


class FileBatches(BatchSink[Begun, TaskResult]):
    """A `Sink` for rows of one schema.

    `converts` makes rows of what Spark hands to a task. It works lazily, and can be called again for the same rows. It counts in
    an account what reports say about the rows, and sets aside what cannot become a row. It is picklable. `tolerance` is how much
    may be set aside; `telling` calls a function of the user with what is published.
    """

    def __init__(
        self,
        sink: Sink,
        schema: pa.Schema,
        converts: Conversion,
        tolerance: Tolerance | None = None,
        telling: Telling | None = None,
    ) -> None:
        self.sink = sink
        self._schema = schema
        self._converts = converts
        self._tolerance = tolerance or Tolerance()
        self._telling = telling

    def check(self) -> None:
        """Raise `UsageError` unless rows of this schema can be written as the options say."""
        self.sink.check(self._schema)
        if self._telling is not None:
            self._telling.check()

    def begin(self, driver: str, batch: Batch | None) -> Begun:
        """Begin a batch; the keeper does nothing until the batch has ended."""
        keeper.batch_begins(keeper.fact_of(self.sink, driver), driver)
        begun = self._begun(driver, batch)
        if self._telling is not None and self._telling.begin(driver):
            return self._begun(driver, batch)  # it has closed parts
        return begun

    def _begun(self, driver: str, batch: Batch | None) -> Begun:
        return self.sink.begin(driver, batch)

    def write(self, begun: Begun, task: Task, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        """Stage a task's rows. If the batch was committed before, the rows are only drained: the files that they stand for may be gone."""
        account, aside = Account(), Aside(restarts=True)
        given = rows if begun.has(task.query, task.batch) else self._converts(rows, account, aside)
        names = task.query, task.batch, task.partition
        return self.sink.write(begun, *names, self._schema, given, account, aside=aside, attempt=task.attempt)

    def commit(self, driver: str, batch: Batch, results: Sequence[TaskResult]) -> None:
        """Decide the batch, publish what it finished, and let the keeper act again. `TooMuchSetAside`."""
        if self._tolerance.limited:
            self._tolerance.check(self.sink.ledger.head(), results)
        done = self.sink.commit(batch, list(results))
        parts = done.open
        if self._telling is not None and self._telling.tell(driver):
            parts = self.sink.ledger.head().open
        keeper.batch_ends(keeper.fact_of(self.sink, driver), self.sink, driver, parts)

    def abort(self, query: str, results: Sequence[TaskResult]) -> None:  # noqa: ARG002 - as of the base
        """Remove what was staged for a failed batch; the keeper does nothing until the next batch or the end of the query."""
        self.sink.abort(results)
