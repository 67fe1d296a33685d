"""`penstock.retry`: takes in what an ingest has set aside and what can be read now, each record once.

    pending      the records on the lines of a sink, without those on a receipt retried      read again as they are, or from a
    mended copy of the lines; records that can be read
                 become rows, and each gets a receipt: another line about what was set aside
    decided      rows and receipts by one record of the ledger, as a batch of a separate query (`retry`)

So a record with a receipt is in the output, and a record without one is not, even after a crash at any moment; a repetition
changes nothing. A record that still cannot be read stays pending. The sink is taken over as by `finish`: a query that still runs
ends with `Fenced`. If a record is set aside again after its receipt, because the source was read again from its beginning, it is
pending again.

The same holds for files: they are read as they are, if they can be read now, or from a copy in a directory. A file is never
mended in its place: that makes another version, which the ingest reads. A file is taken in as a whole, or it waits.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import arguments, unique
from penstock.errors import DamagedState, OptionError, UsageError
from penstock.formats.account import Account
from penstock.formats.aside import CHANGE, FILE, RECORD, RETRIED, Aside, path_of, record_bytes
from penstock.ingestion.mended import Key, header_of
from penstock.ingestion.mendedfiles import FileKey, MendedFiles, searched
from penstock.ingestion.mendedvalues import mended_records
from penstock.ingestion.stage import Stage, named
from penstock.query.batch import Batch
from penstock.storage import entry_at, locate
from penstock.verify.files import SinkView, check_aside, existing_sinks
from penstock.verify.opened import keys_at
from penstock.verify.records import aside_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import pyarrow as pa

    from penstock.formats.encryption import Keys
    from penstock.ingestion.mendedfiles import Replacement
    from penstock.sink.existing import NotedStage
    from penstock.sink.sink import Sink
    from penstock.storage import Storage

QUERY = "retry"
_CHUNK_RECORDS = 200_000
_REASONS = 5  # how many reasons are reported


@dataclass(frozen=True)
class Retried:
    """What a retry has done. `records` were taken in and became `rows`; `left` still cannot be read, for some `reasons`.

    `unknown` counts records of a mended copy that are not pending: they were taken in before, or never set aside.

    `files` were taken in, `files_left` wait. `files_replaced` have another version in the source, which the ingest reads. A range
    of a changed file counts as a file.
    """

    records: int = 0
    rows: int = 0
    left: int = 0
    unknown: int = 0
    reasons: tuple[str, ...] = ()
    files: int = 0
    files_left: int = 0
    files_replaced: int = 0


class _Pending(NamedTuple):
    """What was set aside and not taken in: records with their bytes, and files and ranges of files with their codes."""

    records: dict[Key, bytes]
    files: dict[FileKey, str]


@dataclass
class _Moments:
    """The times at which a record or file was set aside, and at which it was taken in."""

    aside: list[datetime] = field(default_factory=list)
    taken: list[datetime] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether it was set aside after its last receipt, and more often than it has receipts, because clocks may be set back."""
        return not self.taken or (len(self.aside) > len(self.taken) and max(self.aside) > max(self.taken))


@arguments.named
def retry(
    dst: str,
    *,
    mended: str | None = None,
    sink: str | None = None,
    transform: str | None = None,
    key: str | None = None,
) -> Retried:
    """Take in the records and files that were set aside below `dst` and can be read now; return what was done.

    With `mended` only what was mended is taken in. It is a file of lines of the quarantine with corrected `bytes`, or a directory
    of mended files under the same relative paths as in the source. `sink` names one of several sinks, `transform` is the ingest's
    transform, and `key` is the place of the key that opens what was set aside, if it is encrypted. Raises `UsageError`,
    `DamagedState`, and what reading and writing raise.
    """
    storage, root = locate(dst, name="DST")
    sinks = [
        found
        for found in existing_sinks(storage, root)
        if found.note.stage is not None and sink in {None, found.sink_id}
    ]
    if len(sinks) != 1:
        if sinks:
            ingests = ", ".join(found.sink_id for found in sinks)
            reason = f"expected one ingest whose records are retried, found {ingests}; name it: --sink ID"
        elif sink is not None:
            reason = f"sink {sink!r} is no ingest; leave --sink out, or name one whose records were set aside"
        else:
            reason = "no ingest has written it; what a query of your own takes along in badRecordColumn is for you to read again"
        msg = f"DST={root!r}: {reason}"
        raise UsageError(msg)
    retrying = _Retry(sinks[0], transform, keys_at(key))
    if mended is None:
        return retrying.run(None, None)
    copies = locate(mended, name="--mended")
    entry = entry_at(*copies)
    if entry is None:
        msg = f"--mended {copies[1]!r} does not exist; expected a copy of lines of the quarantine, or a directory of mended files"
        raise OptionError(msg)
    if entry.is_directory:
        return retrying.run({}, copies)
    return retrying.run(_copied(mended), None, files=False)


class _Retry:
    def __init__(self, sink: Sink, transform: str | None, keys: Keys | None) -> None:
        self._sink, self._keys = sink, keys
        self._headers: dict[tuple[bytes, int], tuple[str, ...]] = {}
        noted = sink.note.stage
        if noted is None:
            raise AssertionError
        if noted.opaque or noted.transform != transform:
            self._refuse_transform(noted, transform)
        try:
            self._stage = Stage.repeated(noted, noted.source["path"], None if transform is None else named(transform))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # the note may say anything
            msg = (
                f"how the ingest read its source is noted in a form that cannot be repeated: {error!r}; restore {sink.state!r} from a "
                "copy"
            )
            raise DamagedState(msg) from error

    @staticmethod
    def _refuse_transform(noted: NotedStage, transform: str | None) -> None:
        if noted.sql is not None:
            msg = f"--transform {transform!r}: the ingest noted SQL, {noted.sql!r}, which is repeated as noted; leave --transform out"
            raise OptionError(msg)
        wanted = noted.transform or ("a function without a name" if noted.opaque else "none")
        msg = (
            f"--transform {transform!r}: the ingest noted {wanted}; name the one that it had, MODULE:FUNCTION: it is not imported from "
            "a note"
        )
        raise OptionError(msg)

    def run(
        self, mended: dict[Key, bytes] | None, copies: tuple[Storage, str] | None, *, files: bool = True
    ) -> Retried:
        """Take in what can be read, records in batches that fit into memory; `files`: also files."""
        check_aside(SinkView.of(self._sink, self._keys))
        pending = self._pending()
        records = self._records(pending.records, mended)
        return self._files(pending.files, copies, records) if files else records

    def _records(self, pending: dict[Key, bytes], mended: dict[Key, bytes] | None) -> Retried:
        wanted = pending if mended is None else {key: record for key, record in mended.items() if key in pending}
        unknown = 0 if mended is None else len(mended) - len(wanted)
        records = rows = left = 0
        reasons: dict[str, None] = {}
        keys = list(wanted)
        for at in range(0, len(keys), _CHUNK_RECORDS):
            chunk = {key: wanted[key] for key in keys[at : at + _CHUNK_RECORDS]}
            bad = mended_records(self._stage, chunk, self._headers).bad()
            reasons.update(dict.fromkeys(bad.values()))
            good = {key: record for key, record in chunk.items() if key not in bad}
            left += len(bad)
            if good:
                rows += self._take_in(good)
                records += len(good)
        return Retried(records, rows, left, unknown, tuple(list(reasons)[:_REASONS]))

    def _files(self, pending: dict[FileKey, str], copies: tuple[Storage, str] | None, retried: Retried) -> Retried:
        """Take in files in one batch, after the records, whose result is `retried`."""
        search = searched(self._stage, pending, copies)
        bad = search.reasons | MendedFiles(self._stage, search.ready).bad()
        good = {key: file for key, file in search.ready.items() if key not in bad}
        return replace(
            retried,
            rows=retried.rows + (self._take_in_files(good) if good else 0),
            reasons=tuple(dict.fromkeys([*retried.reasons, *bad.values()]))[:_REASONS],
            files=len(good),
            files_left=len(bad),
            files_replaced=search.replaced,
        )

    def _take_in(self, records: dict[Key, bytes]) -> int:
        """Commit rows and receipts of records, except those that another retry has taken in meanwhile; return the number of rows."""

        def still(pending: _Pending, aside: Aside, account: Account) -> Iterator[pa.RecordBatch]:
            left = {key: record for key, record in records.items() if key in pending.records}
            mended = mended_records(self._stage, left, self._headers)
            for lines in mended.receipts():
                aside.take(lines)
            yield from mended.rows(account)

        return self._commit(still)

    def _take_in_files(self, files: dict[FileKey, Replacement]) -> int:
        """Commit rows and receipts of files in the same way."""

        def still(pending: _Pending, aside: Aside, account: Account) -> Iterator[pa.RecordBatch]:
            mended = MendedFiles(self._stage, {key: file for key, file in files.items() if key in pending.files})
            for lines in mended.receipts():
                aside.take(lines)
            yield from mended.rows(aside, account)

        return self._commit(still)

    def _commit(self, still: Callable[[_Pending, Aside, Account], Iterator[pa.RecordBatch]]) -> int:
        """Commit a batch of what `still` yields and sets aside for what is pending when the batch begins; return the number of rows."""
        sink = self._sink
        head = sink.ledger.head()
        batch = Batch(QUERY, head.last_batch(QUERY) + 1, final=True, read_until_ns=0)
        begun = sink.begin(f"retry:{unique.token()}", batch)
        # As of the record that the batch begins from; if there is a newer one at the commit, the batch fails.
        pending = self._pending()
        account, aside = Account(), Aside()
        given = still(pending, aside, account)
        result = sink.write(begun, QUERY, batch.number, 0, self._stage.schema, given, account, aside=aside)
        return sink.commit(batch, [result]).rows

    def _pending(self) -> _Pending:
        """Return what was set aside and is not taken in."""
        pending = _Pending({}, {})
        moments: dict[Key | FileKey, _Moments] = defaultdict(_Moments)
        for lines in aside_lines(SinkView.of(self._sink, self._keys)):
            held = record_bytes(lines).to_pylist()
            for line, record in zip(lines.to_pylist(), held, strict=True):
                self._headers |= header_of(line)
                if line["code"] == RETRIED:
                    moments[_record_of(line) if record is not None else FileKey.of(line)].taken.append(line["time"])
                elif line["code"] == RECORD:
                    pending.records[_record_of(line)] = record or b""
                    moments[_record_of(line)].aside.append(line["time"])
                elif line["code"] in {FILE, CHANGE}:
                    pending.files[FileKey.of(line)] = line["code"]
                    moments[FileKey.of(line)].aside.append(line["time"])
        records = {key: record for key, record in pending.records.items() if moments[key].waits}
        return _Pending(records, {key: code for key, code in pending.files.items() if moments[key].waits})


def _record_of(line: dict[str, Any]) -> Key:
    return Key(path_of(line), line["modified_ns"] or 0, line["offset"])


def _copied(path: str) -> dict[Key, bytes]:
    """Return the records of a mended copy of lines. Raises `OptionError` for a malformed line."""
    import base64

    storage, place = locate(path, name="--mended")
    records: dict[Key, bytes] = {}
    number, text = 0, b""
    try:
        for number, text in enumerate(storage.read(place).splitlines(), 1):  # noqa: B007 - for the message
            line = json.loads(text)
            key = Key(path_of(line), int(line["modified_ns"]), int(line["offset"]))
            records[key] = base64.b64decode(line["base64"]) if "base64" in line else str(line["bytes"]).encode()
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        msg = (
            f"--mended {place!r}, line {number}: {type(error).__name__}: {error}; expected a line as it is in the quarantine, with "
            "path, modified_ns and offset as they are, and bytes as they should be"
        )
        raise OptionError(msg) from error
    return records
