"""Checks, by what earlier ingests have written to an output, whether an input may be ingested into it.

With a new checkpoint, DST would get rows again from files that were already ingested and are still there. With the checkpoint of
another input that is still there, and so was not just renamed, files of this input would be taken for files that were read.

Failure: *an output that has lost rows, and an input without new files.*
  1. An output is restored from an older copy, or its state is removed; its checkpoint stays.
  2. The ingest is run again. By its checkpoint everything in SRC was read, so there is no batch, and only a batch compares itself
     with the ledger.
  3. Every run ends well, and the rows that it reports are not there. The first new file shows the error, perhaps weeks later.
  Rule: if no batch is in flight, the batch that would come next is compared with the ledger before anything else.

Failure: *a first run that was killed, and its successor under another checkpoint.*
  1. A first run plans its batch, and is killed before it commits it.
  2. A run under another checkpoint ingests the same files.
  3. The first run is started again. Its checkpoint is no longer new, so it is not asked what is in DST, and it commits its batch.
  Rule: what counts is not whether the checkpoint is new, but whether its query has committed anything to DST.

These checks come before a run, which tells its user early. They do not decide, because another ingest may begin after them: see
`oneinput`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import CheckpointMismatch, DamagedState, NotThere, OptionError, PenstockError, StorageError
from penstock.ingestion.names import ROWS
from penstock.ingestion.replan import in_flight
from penstock.options import SOURCE, parse
from penstock.options.topics import SERVERS, is_topics, of_address
from penstock.query.batch import Batch
from penstock.query.checkpoint import Checkpoint
from penstock.sink.existing import sink_ids
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.source.cursor import Cursor
from penstock.source.scan import Scan
from penstock.source.where import where
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.sink.ledger import State
    from penstock.source.where import Where
    from penstock.storage import Storage

# The options, besides the paths, that two ingests have in common if they read the same files.
_SELECTING = (
    "files",
    "pathGlobFilter",
    "pattern",
    "startingFrom",
    "modifiedAfter",
    "modifiedBefore",
)


def check_follows(checkpoint: Checkpoint, sink_of: Callable[[str], Sink]) -> None:
    """Raise `CheckpointMismatch` if the ledger lacks what the checkpoint says is committed; `sink_of` makes the sink of a query.

    If a batch is in flight, it is compared when it is run.
    """
    query = checkpoint.query_id()
    # Read this before the ledger: a driver that works beside this one puts a batch into the ledger first.
    committed = checkpoint.numbers("commits")
    if query is not None and committed and in_flight(checkpoint) is None:
        sink = sink_of(query)
        number = committed[-1]
        sink.place(sink.ledger.head(), Batch(query, number + 1, follows=checkpoint.fingerprint(number)))


@dataclass(frozen=True)
class Earlier:
    """An input (`source` are its options, with its path) that is to be ingested into `dst` with a checkpoint.

    `input` is the storage of the input's files, `None` for topics.
    """

    input: Storage | None
    source: Mapping[str, str]
    output: Storage
    dst: str
    checkpoint: Checkpoint

    def check(self) -> None:
        """Raise `CheckpointMismatch` if the checkpoint belongs to another input, `OptionError` if SRC was made from DST."""
        self._check_order()
        query = self.checkpoint.query_id()
        ingests = [found for found in ingests_of(self.output, self.dst) if found[2].total_rows]
        own = [source for _, source, head in ingests if query in head.batches]
        for source in own:
            self._check_same(source)
        for sink, source, head in ingests if not own else ():
            if self.is_same(sink, source):
                self.check_unread(sink, head)

    def _check_order(self) -> None:
        """Raise if SRC has what was ingested from DST, for example because the two are exchanged: each record would go round."""
        if self.input is None:
            return
        place = where(parse(SOURCE, self.source, what="source"))
        if self._was_made_of_dst(place):
            msg = (
                f"SRC={place.root!r} has what was ingested from DST={self.dst!r}: its records would be read there again; "
                "name the input first and the output second, or choose another DST"
            )
            raise OptionError(msg)

    def _was_made_of_dst(self, output: Where) -> bool:
        """Tell whether an input is an output of an ingest from DST; False if that is unknown, and the reader reports the reason."""
        target = output.storage.resolve(self.output.addressed_as(output.storage, self.dst))
        with suppress(PenstockError):
            for _, source, head in ingests_of(output.storage, output.root):
                if is_topics(source["path"]) or not head.total_rows:
                    continue
                place = where(parse(SOURCE, source, what="source", noted=True))
                if place.storage.resolve(place.root) == target:
                    return True
        return False

    def check_unread(self, sink: Sink, head: State) -> None:
        """Raise `CheckpointMismatch` if this ingest, which has committed nothing, would read again what `sink` was given; see `is_same`."""
        if head.total_rows and self._were_read(sink, head.time_ns):
            source = sink.note.stage.source if sink.note.stage is not None else self.source
            msg = (
                f"DST={self.dst!r} has what was ingested from {source['path']!r} under the checkpoint "
                f"{sink.options['checkpointLocation']!r}, and {self.checkpoint.location!r} has nothing there: records would be there "
                "twice; go on with that checkpoint, restore it, or choose another DST; an input that DST has nothing of needs a "
                "separate checkpoint"
            )
            raise CheckpointMismatch(msg)

    def is_same(self, sink: Sink, source: Mapping[str, str]) -> bool:
        """Tell whether the ingest with this sink and source reads what this one would read.

        For topics: any common topic at any common broker. For files: the same paths, whatever they are called; False where nobody can
        tell, because both read files of a DataFrame, or the earlier input cannot be asked for. If the earlier ingest had the same
        place for its checkpoint, that one was lost, and this one would begin in its place: then any paths of which it may have read
        files, also one that was renamed.
        """
        if is_topics(source["path"]) or self.input is None:
            return is_topics(source["path"]) and self.input is None and _share_topics(source, self.source)
        if self.source.get("files") == ROWS or any(source.get(name) != self.source.get(name) for name in _SELECTING):
            return False
        try:
            return self._are_same_files(source, is_lost=sink.options["checkpointLocation"] == self.checkpoint.location)
        except PenstockError:
            return source["path"] == self.source["path"]

    def _are_same_files(self, source: Mapping[str, str], *, is_lost: bool) -> bool:
        before, after = self._places(source)
        roots = [f"{place.storage.resolve(place.root).rstrip('/')}/" for place in (before, after)]
        if not is_lost:
            return roots[0] == roots[1] and set(before.rests) == set(after.rests)
        overlap = roots[0].startswith(roots[1]) or roots[1].startswith(roots[0])
        return overlap or entry_at(before.storage, before.root) is None

    def _check_same(self, source: Mapping[str, str]) -> None:
        """Raise if the checkpoint belongs to another input."""
        path = self.source["path"]
        if is_topics(source["path"]) != (self.input is None):
            msg = (
                f"the checkpoint {self.checkpoint.location!r} belongs to an ingest from {source['path']!r}, and {path!r} is of another "
                "kind: give it a separate checkpoint, --checkpoint DIR, or another DST"
            )
            raise CheckpointMismatch(msg)
        if self.input is not None and self._is_other(self.input, source):
            msg = (
                f"the checkpoint {self.checkpoint.location!r} belongs to an ingest from {source['path']!r}, which is still "
                f"there: files of {path!r} could be mistaken for files of it that were read; give this input a separate "
                "checkpoint, or another DST"
            )
            raise CheckpointMismatch(msg)

    def _were_read(self, sink: Sink, committed_ns: int) -> bool:
        """Tell whether there are files that `sink` was given.

        If its checkpoint is lost, whether there are files from before its last commit.

        For topics: whether this ingest begins where that one may have read.
        """
        if self.input is None:
            return self.source.get("startingOffsets", "earliest").lower() == "earliest"
        options = parse(SOURCE, self.source, what="source")
        if options["startingFrom"] == "latest":
            return False
        if options["files"] is not None:
            return True
        root = where(options).root
        if not options["strictMode"] and entry_at(self.input, root) is None:
            return False  # the ingest waits for it
        files = Scan.of(self.input, root, options).refresh().came
        before = Checkpoint(sink.options["checkpointLocation"] or self.checkpoint.location)
        cursor = _last_cursor(before) or Cursor((committed_ns, b""))
        return any(cursor.passed(file) or file == cursor.cut for file, _ in files)

    def _is_other(self, storage: Storage, source: Mapping[str, str]) -> bool:
        """Tell whether the earlier input is still there, and is another one than the present input."""
        before, after = self._places(source)
        try:
            then, now = before.storage.stat(before.root), storage.stat(after.root)
        except StorageError:
            return False
        same = then.identity == now.identity if then.identity else before.root == after.root
        return not same

    def _places(self, source: Mapping[str, str]) -> tuple[Where, Where]:
        """Return where the earlier input is, and where the present one is."""
        before, after = (where(parse(SOURCE, options, what="source", noted=True)) for options in (source, self.source))
        return before, after


def ingests_of(output: Storage, dst: str) -> Iterator[tuple[Sink, Mapping[str, str], State]]:
    """Yield the sinks of an output that ingests write to, with their source's options and last record.

    Skips sinks with damaged state: the command that needs such a sink reports it.
    """
    names: list[str] = []
    with suppress(NotThere):
        names = sink_ids(output, f"{dst}/{STATE_DIRECTORY}")
    for name in names:
        with suppress(DamagedState):
            sink = Sink.existing(output, dst, name)
            if sink.note.stage is not None:
                yield sink, sink.note.stage.source, sink.ledger.head()


def _share_topics(source: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Tell whether two ingests of topics have a topic and a broker in common, or the same pattern."""
    addresses = [of_address(options["path"]) for options in (source, other)]
    if not set.intersection(*(set(address[SERVERS].split(",")) for address in addresses)):
        return False
    if any("subscribe" not in address for address in addresses):
        return all(source.get(name) == other.get(name) for name in ("path", "subscribePattern", "assign"))
    return bool(set.intersection(*(set(address["subscribe"].split(",")) for address in addresses)))


def _last_cursor(checkpoint: Checkpoint) -> Cursor | None:
    """Return the cursor after the last batch that Spark has noted as committed, if there is one."""
    numbers = checkpoint.numbers("commits")
    offsets = list(filter(None, checkpoint.offsets(numbers[-1]))) if numbers else []
    if offsets and "follow" in offsets[0]:
        return Cursor((offsets[0]["listed"], b""))
    return Cursor.from_json(offsets[0]) if offsets else None
