"""The real HDFS for `_hdfs`, by the library hdfs-native: connections, time limits, and errors with numbers.

hdfs-native speaks the protocols of NameNode and DataNode itself, without Java. It reads `core-site.xml` and `hdfs-site.xml` from
`HADOOP_CONF_DIR` (name services, security), and `HADOOP_USER_NAME`. The executors of a cluster run as the user who started their
worker. Spark gives them the query's user in `SPARK_USER`; their JVM acts as that user on HDFS, and so do Python processes here.
One client is kept for each process and authority, because a client that was made before a fork never answers after it.

By default, hdfs-native tries a NameNode that refuses connections for three minutes, in the end every 15 s, and waits for ever for
one that does not answer. That patience is right for a failover in mid batch (but every 2 s: `_SETTINGS`), and wrong for a
mistyped host. So the first contact of a process is limited in tries and in time, and only then the patient client is made.

What hdfs-native 0.14 does when a DataNode dies, measured: in the middle of a block it continues with the others, if it may
(`_SETTINGS`: it asks for a replacement even if Hadoop's own client does not, and a small cluster has none). But an `hsync` whose
packets were all sent may wait for ever, so it is limited in time. If a DataNode is dead when a block is begun, and the NameNode
has not noticed it yet, the write fails if it is the first DataNode of the block. If it is another one, the error comes with a
later write or with the close, and an `hsync` before that waits for ever. `_hdfs` then makes the file again.

hdfs-native does not read `dfs.replication` and `dfs.blocksize`, which every other client of HDFS takes from the same two files.
This module reads them. Without them the NameNode's defaults apply to new files.

Errors come as `FileNotFoundError` and `FileExistsError` without a number, or as a `RuntimeError` with the Java class and a stack
trace as text. They leave this module as `OSError` with a number and the first line of HDFS's message.
"""

from __future__ import annotations

import errno
import io
import os
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

from penstock.errors import DependencyError, OptionError, StorageError
from penstock.storage._hdfs_calls import Status
from penstock.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import WriteableBuffer

    from penstock.storage._base import Data
    from penstock.storage._hdfs_calls import Hdfs

_CONTACT_SECONDS = 20.0
# With refused connections this takes 7 s; each NameNode of a service is tried.
_CONTACT_TRIES = {"dfs.client.failover.max.attempts": "3"}
_SETTINGS = {  # unless HADOOP_CONF_DIR has them
    "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.failover.max.attempts": "90",
}
_NEW_FILES = {"replication": "dfs.replication", "block_size": "dfs.blocksize"}
_STREAM_BYTES = 1 << 20  # shorter reads do not use a stream
_PIECE_BYTES = 64 << 10  # the size of the pieces that DataNodes send
_PORT = 8020  # the NameNode's port if none is given
_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?:[\w.]+\.)?([\w$]+)", "(.*)"\)', re.DOTALL)
_OTHER = re.compile(r'(\w+)\("(.*)"\)', re.DOTALL)
_NUMBERS = {
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "AccessControlException": errno.EACCES,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "InvalidPathException": errno.EINVAL,
    "SafeModeException": errno.EROFS,
    "LeaseExpiredException": errno.ESTALE,
}
_clients: dict[tuple[int, str], Hdfs] = {}


def connect(authority: str) -> Hdfs:
    """Return this process's connection to the HDFS of an authority (`host:port`, a name service, or `""` for `fs.defaultFS`).

    `DependencyError` without hdfs-native, `OptionError` if no NameNode is known by that name or HADOOP_CONF_DIR cannot be read,
    `StorageError` if no NameNode answers within half a minute.
    """
    key = (os.getpid(), authority)
    if key not in _clients:
        settings = _configuration()
        _clients.setdefault(key, cast("Hdfs", _Native(_client(authority, settings), _new_files(settings))))
    return _clients[key]


def _client(authority: str, settings: dict[str, str]) -> Any:  # noqa: ANN401 - the library may not be installed
    try:
        import hdfs_native
    except ImportError as error:
        msg = "hdfs:// needs the library hdfs-native; install it: pip install 'penstock[hdfs]'"
        raise DependencyError(msg) from error
    if "SPARK_USER" in os.environ:
        os.environ.setdefault("HADOOP_USER_NAME", os.environ["SPARK_USER"])
    url, trial = _contact(hdfs_native.Client, authority)
    _check_answer(url, trial)
    return hdfs_native.Client(url, {name: value for name, value in _SETTINGS.items() if name not in settings})


def _contact(new_client: Callable[[str, dict[str, str]], Any], authority: str) -> tuple[str, Any]:
    """Return the library's url for an address, and a client that gives up soon; `OptionError` if the library takes no such address."""
    url = f"hdfs://{authority}"
    try:
        return url, new_client(url, _CONTACT_TRIES)
    except RuntimeError as error:
        if "No NameNode" not in str(error) or not authority or ":" in authority:
            msg = f"{url}: {_said(error)[1]}; expected a host and port, or a name service of HADOOP_CONF_DIR"
            raise OptionError(msg) from error
        url = f"{url}:{_PORT}"  # as Hadoop does if a host is not a name service
        return url, new_client(url, _CONTACT_TRIES)


def _check_answer(url: str, trial: Any) -> None:  # noqa: ANN401 - hdfs_native.Client
    """Raise `StorageError` unless a NameNode answers. A refusal is an answer, too; the later call that is refused reports it."""
    try:
        _within(_CONTACT_SECONDS, lambda: trial.get_file_info("/"))
    except OSError as error:
        configured = os.environ.get("HADOOP_CONF_DIR")
        msg = (
            f"no NameNode at {url}: {_said(error)[1]}; check host and port (or the name service; HADOOP_CONF_DIR is "
            f"{repr(configured) if configured else 'not set'}), and that it runs"
        )
        raise StorageError(msg) from error
    except RuntimeError:
        return


def _configuration() -> dict[str, str]:
    """Return the settings of HADOOP_CONF_DIR; those in hdfs-site.xml win. `OptionError` if one of its files cannot be read."""
    settings: dict[str, str] = {}
    for file in ("core-site.xml", "hdfs-site.xml"):
        path = Path(os.environ.get("HADOOP_CONF_DIR") or os.devnull, file)
        try:
            properties = ET.parse(path).getroot().iter("property")  # noqa: S314 - the user's own
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ET.ParseError) as error:
            msg = f"{str(path)!r} of HADOOP_CONF_DIR cannot be read: {error}"
            raise OptionError(msg) from error
        settings |= {
            (setting.findtext("name") or "").strip(): (setting.findtext("value") or "").strip()
            for setting in properties
        }
    return settings


def _new_files(settings: dict[str, str]) -> dict[str, int]:
    """Return the settings for new files; `OptionError` if one is not a valid size."""
    values = {field: (name, settings.get(name)) for field, name in _NEW_FILES.items()}
    return {
        field: parse_size(value, name=f"{name} of HADOOP_CONF_DIR") for field, (name, value) in values.items() if value
    }


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Make a call that may never return; `TimeoutError` if it takes longer than `seconds`. Its thread then stays."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            failed.append(error)

    thread = threading.Thread(target=attempt, name="penstock-hdfs", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:.0f} s")
    if failed:
        raise failed[0]


def _said(error: Exception) -> tuple[int, str]:
    """Return the number of an error of hdfs-native, and its message without Java's stack."""
    text = str(error)
    if isinstance(error, FileExistsError):
        return errno.EEXIST, _first_line(text)
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT, _first_line(text) if " " in text else os.strerror(errno.ENOENT)
    if isinstance(error, OSError):
        return error.errno or errno.EIO, error.strerror or _first_line(text)
    if remote := _REMOTE.match(text):
        return _NUMBERS.get(remote[1], errno.EIO), f"{_first_line(remote[2])} ({remote[1]})"
    other = _OTHER.match(text)
    return errno.EIO, _first_line(other[2] if other else text)


def _first_line(text: str) -> str:
    return re.split(r"\n|\\n", text, maxsplit=1)[0].strip()


@contextmanager
def _numbered() -> Iterator[None]:
    """Raise the errors of hdfs-native as `OSError` with a number."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise OSError(errno.EILSEQ, "names are Unicode in HDFS, this one holds other bytes") from error
    except (OSError, RuntimeError) as error:
        raise OSError(*_said(error)) from error


class _Native:
    """`Hdfs` by hdfs-native; see there."""

    def __init__(self, client: Any, new_files: dict[str, int]) -> None:  # noqa: ANN401 - hdfs_native.Client
        self._client = client
        self._new_files = new_files

    def create(self, path: str, mode: int, replicas: int = 0) -> _NativeWriter:
        from hdfs_native import WriteOptions

        new_files = self._new_files | ({"replication": replicas} if replicas else {})
        options = WriteOptions(permission=mode, overwrite=False, create_parent=False, **new_files)
        with _numbered():
            return _NativeWriter(self._client.create(path, options))

    def append(self, path: str) -> _NativeWriter:
        with _numbered():
            return _NativeWriter(self._client.append(path))

    def recover_lease(self, path: str) -> bool:
        with _numbered():
            return bool(self._client.recover_lease(path))

    def open(self, path: str) -> _NativeReader:
        with _numbered():
            return _NativeReader(self._client.read(path))

    def stat(self, path: str) -> Status:
        with _numbered():
            native = self._client.get_file_info(path)
            status = _status(native)
            return replace(status, being_written=status.may_be_open and self._is_open(path, native))

    def _is_open(self, path: str, native: Any) -> bool:  # noqa: ANN401 - hdfs_native.FileStatus
        """Tell whether the file's last block is being written; the NameNode then counts it as a full block."""
        used = self._client.get_content_summary(path).space_consumed
        return bool(used == (native.length + native.blocksize) * (native.replication or 0))

    def list(self, path: str) -> Iterator[Status]:
        with _numbered():
            for native in self._client.list_status(path):
                if native.path == path and not native.isdir:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                yield _status(native)

    def rename(self, source: str, target: str) -> None:
        with _numbered():
            self._client.rename(source, target, overwrite=False)

    def delete(self, path: str) -> None:
        with _numbered():
            self._client.delete(path, False)  # noqa: FBT003 - not recursive; the library has no keyword for it everywhere

    def mkdir(self, path: str, mode: int) -> None:
        with _numbered():
            self._client.mkdirs(path, mode, create_parent=True)

    def set_replicas(self, path: str, replicas: int) -> None:
        with _numbered():
            self._client.set_replication(path, replicas)

    def chmod(self, path: str, mode: int) -> None:
        with _numbered():
            self._client.set_permission(path, mode)


def _status(native: Any) -> Status:  # noqa: ANN401 - hdfs_native.FileStatus
    name = native.path.rpartition("/")[2]
    return Status(
        name, native.isdir, native.length, native.modification_time, native.blocksize or 0, native.replication or 0
    )


class _NativeWriter:
    """`HdfsWriter` by hdfs-native.

    Its file is an object of Python's `io`, which is closed when its last reference goes. Here that would complete a file that was
    given up, and wait for failed servers for minutes, whenever garbage is collected. So this `close` of the file does nothing.
    """

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - hdfs_native.FileWriter
        self._file = file
        self._complete = file.close
        file.close = lambda: None

    def write(self, data: Data) -> int:
        with _numbered():  # the library copies anything but `bytes` byte by byte: 11 ns each
            return int(self._file.write(data if isinstance(data, bytes) else bytes(data)))

    def hsync(self, seconds: float) -> None:
        with _numbered():
            _within(seconds, self._file.hsync)

    def close(self) -> None:
        with _numbered():
            self._complete()


class _NativeReader:
    """`HdfsReader` by hdfs-native. A read that begins where the last one ended is served from a stream that the DataNode keeps filled."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - hdfs_native.FileReader
        self._file = file
        self.size: int = file.size
        self._lock = threading.Lock()
        self._next = 0  # the end of the last read
        self._ahead: io.BufferedReader | None = None  # the stream from there on

    def read(self, offset: int, length: int) -> bytes:
        with _numbered():
            if length >= _STREAM_BYTES and self._lock.acquire(blocking=False):
                try:
                    return self._read_on(offset, length)
                finally:
                    self._lock.release()
            return bytes(self._file.read_range(offset, length))

    def _read_on(self, offset: int, length: int) -> bytes:
        """Read from a stream. If a read jumps, another stream is begun; if a stream fails, the range is read by itself."""
        ahead = self._ahead if offset == self._next else None
        self._ahead, self._next = None, offset + length
        with suppress(OSError, RuntimeError):
            ahead = ahead or io.BufferedReader(_Streams(self._file, offset, length), _PIECE_BYTES)
            data = ahead.read(length)
            if len(data) == length:
                self._ahead = ahead
                return data
        return bytes(self._file.read_range(offset, length))


class _Streams(io.RawIOBase):
    """The bytes of a file from a place on, read from one stream after the other, for a `BufferedReader`.

    The `BufferedReader` puts the pieces directly into their final place. Joining them at the end would hold them twice, and
    memory that is new to a process costs more than a copy; `read_range` makes three copies of everything that it reads.

    The first stream is as long as the first read, rounded up to whole MiB, because a reader of blocks of records ends a little
    earlier. Each later stream is as long as all streams before it. So never more is requested in vain than was used: when a
    stream is abandoned, hdfs-native has taken up to 100 pieces of it, and the DataNode has sent what the sockets hold.
    """

    def __init__(self, file: Any, start: int, wanted: int) -> None:  # noqa: ANN401 - hdfs_native.FileReader
        super().__init__()
        self._file = file
        self._start = start
        self._at = start  # the end of the last piece
        self._end = min(start - -wanted // _STREAM_BYTES * _STREAM_BYTES, file.size)  # the end of the stream
        self._stream: Iterator[bytes] = file.read_range_stream(start, self._end - start)
        self._rest = memoryview(b"")  # the rest of the last piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer from the rest of a piece; returns 0 at the end of the file, or of a stream that ends early."""
        self._rest = self._rest or memoryview(self._piece())
        room = memoryview(buffer)
        length = min(len(room), len(self._rest))
        room[:length], self._rest = self._rest[:length], self._rest[length:]
        return length

    def _piece(self) -> bytes:
        piece = next(self._stream, b"")
        if not piece and self._at == self._end < self._file.size:
            self._end = min(2 * self._at - self._start, self._file.size)
            self._stream = self._file.read_range_stream(self._at, self._end - self._at)
            piece = next(self._stream, b"")
        self._at += len(piece)
        return piece
