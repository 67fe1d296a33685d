"""The staged files of one task attempt: separate files of parts, and one pack for everything small; each hashed and synced.

Every file has a unique name, which begins with the number of the record that the task started from, and means nothing until a
record names it. All files are synced before the task reports them; syncs run in parallel to the work.

With a staging key, each segment in the pack is encrypted as an age file of its own, to the public half of the key; the task or
driver that assembles the part needs the key. Lengths and digests are those of the cipher text, so that they can be compared
without the key.
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

_SYNCS_MAX = 8  # syncs at a time: each waits for a disk, or on HDFS for three disks
# Outputs that wait for their syncs. Each is an open file: a process may often have only 1,024, and its libraries and
# Spark need some.
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
        self._taken = 0  # bytes given to encryption

    def encrypt_to(self, recipients: Sequence[str]) -> None:
        """Encrypt everything that is written until `end`, if there are recipients. Called before anything is written."""
        if recipients:
            self._encrypting = encryption.Encrypting(recipients, self._append)

    def begin(self, header: bytes) -> None:
        """Write the header that comes before the rows. Called first."""
        if header:
            self.write(header)
            self.header_bytes = len(header)
            self._rows_hash = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Append all of `data`. Does nothing after `discard`, because Arrow may later complete a file that was given up."""
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
        """Write all chunks; if there are recipients, encrypted as one complete age file."""
        if recipients:
            encryption.encrypt(chunks, recipients, self._append)
            return
        for data in chunks:
            self.write(data)

    def end(self) -> None:
        """Complete the encryption, if there is one; nothing can be written afterwards."""
        if self._encrypting is not None:
            self._encrypting.end()

    def tell(self) -> int:
        """Return the number of bytes written so far, before encryption."""
        return self._handle.tell() if self._encrypting is None else self._taken

    def segment(self, rows: int, form: str) -> Segment:
        """Return everything that was written after the header so far as a segment of `rows` rows."""
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
        """Close without syncing: nothing more is written to the file, and it is read next."""
        self._handle.close()

    def discard(self) -> None:
        """Close without syncing, whatever state it is in."""
        self._discarded = True
        if self._encrypting is not None:
            self._encrypting.give_up()
        with suppress(StorageError):
            self._handle.close()


class Staging:
    """The staged files of one task attempt, or of a driver that assembles. `finish` waits for the syncs.

    With `keys`, packed segments are encrypted, and encrypted segments can be read.
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
        self._names: list[str] = []

    def create(self) -> Output:
        """Create a separate staged file."""
        name = self._named("part")
        output = Output(self._storage.create(f"{self._directory}/{name}", unique=True), name)
        self._outputs[name] = output
        return output

    def _named(self, extension: str) -> str:
        """Return the name of a new file."""
        self._names.append(f"{self._prefix}-{unique.token()}.{extension}")
        return self._names[-1]

    def seal(self, output: Output) -> Future[tuple[int, str]]:
        """Sync and close `output` in a thread; the result is its length and digest. Blocks while too many outputs wait for their syncs."""
        if len(self._sealing) >= _WAITING_MAX:
            self._sealing[-_WAITING_MAX].result()
        sealing = self._syncs.submit(output.seal)
        self._sealing.append(sealing)
        return sealing

    def pack(self, data: bytes | pa.Buffer, rows: int, form: str, size: int) -> Segment:
        """Append `data` to the task's pack; return its range as a segment."""
        if self._pack is None:
            self._pack_name = self._named("pack")
            self._pack = self._storage.create(f"{self._directory}/{self._pack_name}", unique=True)
        key = (self._keys.recipient or "") if self._keys else ""
        start = self._pack.tell()
        packed = Output(self._pack, self._pack_name)
        packed.fill((memoryview(data),), (key,) if key else ())
        return replace(packed.segment(rows, form), start=start, size=size, key=key)

    def read(self, segment: Segment) -> Iterator[bytes]:
        """Yield the bytes of a segment; `DamagedState`, at the latest after the last bytes, if they are not the staged ones.

        Of an encrypted segment, nothing is yielded before all of it is checked. `OptionError` without a key, `WrongKey`.
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
                "another key; put the former key after the new one there, on a separate line"
            )
            raise WrongKey(msg) from error
        except BadFile as error:  # although its digest is right
            msg = f"{where!r}: {error.message}; restore it from a copy of the directory; nothing of it is visible"
            raise DamagedState(msg) from error

    @contextmanager
    def open(self, segment: Segment) -> Iterator[ReadHandle]:
        """Open the file of a segment that is a whole file, after checking that it was not altered."""
        self._complete(segment.file)
        check_segment(self._storage, self._directory, segment)
        with self._storage.open(f"{self._directory}/{segment.file}") as handle:
            yield handle

    def _complete(self, name: str) -> None:
        """Make a file readable: a file that was written here is still open, and some storages do not show open files.

        A pack also has rows of other parts. So it is synced and closed, and later rows go to another pack.
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
        """Wait until everything staged is durable (the pack only if `durable`); raises the error of any sync."""
        if self._pack is not None:
            failpoints.hit("sink.write.before-pack-sync")
            if durable:
                self._pack.sync()
            self._pack.close()
        for sealing in self._sealing:
            sealing.result()
        self._syncs.shutdown()

    def discard(self, after: BaseException) -> None:
        """Close what is open after a failure, and remove the files, which mean nothing: they may be what has filled the disk.

        Where the process is to end at once, or the storage refuses to remove a file, the files are swept later.
        """
        self._syncs.shutdown(cancel_futures=True)
        for output in self._outputs.values():
            output.discard()
        if self._pack is not None:
            with suppress(StorageError):
                self._pack.close()
        if isinstance(after, Exception):
            with suppress(StorageError, OSError):
                for name in self._names:
                    self._storage.delete(f"{self._directory}/{name}")
