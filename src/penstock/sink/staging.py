"""The staged files of one task attempt: files of their own, and one pack for all that is small; each hashed and synced.

Every file has a name that nobody else can have, begins with the number of the record the task started from, and means
nothing until a record names it. All of them are synced before the task reports them; syncs run beside the work.

Under a staging key what is packed is encrypted, each segment a file of age by itself, to the public half of the key; whoever
assembles the part needs the key. Lengths and digests are those of the cipher text, so that whoever has no key can compare them.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import failpoints, unique
from penstock.errors import BadFile, DamagedState, OptionError, StorageError, WrongKey
from penstock.formats import encryption
from penstock.sink.openparts import Segment
from penstock.sink.segments import check_segment, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from penstock.formats.encryption import Keys
    from penstock.storage import ReadHandle, Storage, WriteHandle

_SYNCS_MAX = 8  # at a time: each waits for a disk, or on HDFS for three
# Outputs that wait for their syncs, each an open file: a process may often have 1,024, and its libraries and Spark need some of them.
_WAITING_MAX = 64


class Output:
    """A staged file in its final form, hashed as it is written."""

    def __init__(self, handle: WriteHandle, name: str) -> None:
        self.name = name
        self.header_bytes = 0
        self._handle = handle
        self._hash = xxhash.xxh3_128()
        self._rows_hash = self._hash
        self._discarded = False
        self._encrypting: encryption.Encrypting | None = None
        self._taken = 0  # bytes that were encrypted

    def encrypt_to(self, recipients: Sequence[str]) -> None:
        """Have all that is written be encrypted, until `end`, if there are recipients. Called before anything is written."""
        if recipients:
            self._encrypting = encryption.Encrypting(recipients, self._append)

    def begin(self, header: bytes) -> None:
        """Write what is in front of the rows, first of all."""
        if header:
            self.write(header)
            self.header_bytes = len(header)
            self._rows_hash = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Append all of `data`; once discarded do nothing, for Arrow completes a file that was given up, later."""
        if self._encrypting is None:
            self._append(data)
        elif not self._discarded:
            self._taken += len(data)
            self._encrypting.write(memoryview(data))

    def _append(self, data: bytes | memoryview | pa.Buffer) -> None:
        if not self._discarded:
            self._hash.update(memoryview(data))
            if self._rows_hash is not self._hash:
                self._rows_hash.update(memoryview(data))
            self._handle.write(data)

    def fill(self, chunks: Iterable[bytes | memoryview], recipients: Sequence[str] = ()) -> None:
        """Write all that the chunks hold, encrypted if there are recipients: then it is the whole file."""
        if recipients:
            encryption.encrypt(chunks, recipients, self._append)
            return
        for data in chunks:
            self.write(data)

    def end(self) -> None:
        """Complete what is encrypted, if it is; then it is the whole file."""
        if self._encrypting is not None:
            self._encrypting.end()

    def tell(self) -> int:
        """Return the bytes written so far, as they were given."""
        return self._handle.tell() if self._encrypting is None else self._taken

    def segment(self, rows: int, form: str) -> Segment:
        """Return all that was written so far behind the header as a segment of `rows` rows."""
        end = self.tell()
        size = end - self.header_bytes
        return Segment(self.name, self.header_bytes, end, rows, form, size, self._rows_hash.hexdigest())

    def seal(self) -> tuple[int, str]:
        """Make the file durable and close it; return its length and digest."""
        failpoints.hit("sink.write.before-sync")
        self._handle.sync()
        size = self._handle.tell()
        self._handle.close()
        return size, self._hash.hexdigest()

    def complete(self) -> None:
        """Close without syncing: nothing is written to it any more, and it is read."""
        self._handle.close()

    def discard(self) -> None:
        """Close without syncing, whatever state it is in."""
        self._discarded = True
        if self._encrypting is not None:
            self._encrypting.give_up()
        with suppress(StorageError):
            self._handle.close()


class Staging:
    """The staged files of one task attempt, or of a driver that assembles. Closing it waits for its syncs.

    With `keys` what is packed is encrypted, and what was encrypted can be read.
    """

    def __init__(
        self, storage: Storage, directory: str, *, base: int, batch: int, writer: int, keys: Keys | None = None
    ) -> None:
        self._storage = storage
        self._keys = keys
        self._directory = directory
        self._prefix = f"{base:012d}-{batch}-{writer}"
        self._syncs = storage.workers(_SYNCS_MAX)
        self._sealing: list[Future[Any]] = []
        self._outputs: dict[str, Output] = {}
        self._pack: WriteHandle | None = None
        self._pack_name = ""

    def create(self) -> Output:
        """Create a staged file of its own."""
        name = f"{self._prefix}-{unique.token()}.part"
        output = Output(self._storage.create(f"{self._directory}/{name}", unique=True), name)
        self._outputs[name] = output
        return output

    def seal(self, output: Output) -> Future[tuple[int, str]]:
        """Sync and close `output` beside the work; the result is its length and digest. Waits while too many wait for their syncs."""
        if len(self._sealing) >= _WAITING_MAX:
            self._sealing[-_WAITING_MAX].result()
        sealing = self._syncs.submit(output.seal)
        self._sealing.append(sealing)
        return sealing

    def pack(self, data: bytes | pa.Buffer, rows: int, form: str, size: int) -> Segment:
        """Append to the task's pack; return the range as a segment."""
        if self._pack is None:
            self._pack_name = f"{self._prefix}-{unique.token()}.pack"
            self._pack = self._storage.create(f"{self._directory}/{self._pack_name}", unique=True)
        key = (self._keys.recipient or "") if self._keys else ""
        start = self._pack.tell()
        packed = Output(self._pack, self._pack_name)
        packed.fill((memoryview(data),), (key,) if key else ())
        return replace(packed.segment(rows, form), start=start, size=size, key=key)

    def read(self, segment: Segment) -> Iterator[bytes]:
        """Yield the bytes of a segment; `DamagedState`, at the latest behind the last, if they are not what was staged.

        Of one that is encrypted nothing is yielded before all of it is known to be right. `OptionError` without a key, `WrongKey`.
        """
        self._complete(segment.file)
        data = segment_bytes(self._storage, self._directory, segment)
        return iter((self._decrypted(segment, b"".join(data)),)) if segment.key else data

    def _decrypted(self, segment: Segment, data: bytes) -> bytes:
        where = f"{self._directory}/{segment.file}"
        if self._keys is None:
            msg = (
                f"{where!r}, {segment.rows} rows that are committed and open, is encrypted to {segment.key}; set encryptionKey to where "
                "the key of that is, until no part is open that was staged under it"
            )
            raise OptionError(msg)
        try:
            return self._keys.decrypted(data)
        except WrongKey as error:
            msg = (
                f"{where!r}, {segment.rows} rows that are committed and open, is encrypted to {segment.key}, and {self._keys.where} has "
                "another key; put the former key behind the new one there, on a line of its own"
            )
            raise WrongKey(msg) from error
        except BadFile as error:  # its digest is right
            msg = f"{where!r}: {error.message}; restore it from a copy of the directory; nothing of it is visible"
            raise DamagedState(msg) from error

    @contextmanager
    def open(self, segment: Segment) -> Iterator[ReadHandle]:
        """Open the file that a segment is all of, once it is known to be what was staged."""
        self._complete(segment.file)
        check_segment(self._storage, self._directory, segment)
        with self._storage.open(f"{self._directory}/{segment.file}") as handle:
            yield handle

    def _complete(self, name: str) -> None:
        """See to it that a file can be read: one that was written here is still open, which some storages do not show.

        A pack has rows of other parts, too: it is made durable, and what comes next goes to another one.
        """
        if self._storage.reads_open:
            return
        if self._pack is not None and name == self._pack_name:
            self._pack.sync()
            self._pack.close()
            self._pack = None
        elif name in self._outputs:
            self._outputs[name].complete()

    def finish(self, *, durable: bool = True) -> None:
        """Wait until everything staged is durable (the pack only if asked); raises what any sync raised."""
        if self._pack is not None:
            failpoints.hit("sink.write.before-pack-sync")
            if durable:
                self._pack.sync()
            self._pack.close()
        for sealing in self._sealing:
            sealing.result()
        self._syncs.shutdown()

    def discard(self) -> None:
        """Close what is open after a failure; the files mean nothing and are swept later."""
        self._syncs.shutdown(cancel_futures=True)
        for output in self._outputs.values():
            output.discard()
        if self._pack is not None:
            with suppress(StorageError):
                self._pack.close()
