"""The HDFS that `_hdfs` calls, by way of hdfs-native: connections, time limits, and errors with numbers.

hdfs-native speaks the protocols of NameNode and DataNode itself: no Java. It reads `core-site.xml` and `hdfs-site.xml` from
`HADOOP_CONF_DIR` (name services, security) and `HADOOP_USER_NAME`. The executors of a cluster belong to whoever started their
worker. Spark tells them in `SPARK_USER` whose query it is; their JVM then is that user to HDFS, and so are Python processes here.
One client is kept for each process and authority: a client that was made before a fork never answers behind it.

Left alone, hdfs-native tries a NameNode that refuses connections for three minutes, in the end every 15 s, and waits for ever for
one that does not answer. That patience is right for a failover in mid batch (but every 2 s: `_SETTINGS`), and wrong for a
mistyped host. So the first contact of a process is limited in tries and in time, and only then the patient client is made.

What hdfs-native 0.14 does when a DataNode dies, measured: in the middle of a block it goes on with the others, if it may
(`_SETTINGS`: it asks for a replacement also where Hadoop's own client does not, and a small cluster has none); but an `hsync`
whose packets were all sent may wait for ever, so it is limited in time. A DataNode that is dead when a block is begun, and not yet
missed by the NameNode, fails the write if it is the first of the block's; if it is another one, the error comes with a later write
or with the close, and an `hsync` before that waits for ever. `_hdfs` then makes the file again.

Nor does it read `dfs.replication` and `dfs.blocksize`, which every other client of HDFS takes from the same two files: that is
done here. Without them new files are as the NameNode makes them.

Errors come as `FileNotFoundError` and `FileExistsError` without a number, or as a `RuntimeError` that holds the Java class
and a stack trace as text. They leave this module as `OSError` with a number and the first line of what HDFS said.
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
# Refused connections: 7 s; each name node of a service is tried.
_CONTACT_TRIES = {"dfs.client.failover.max.attempts": "3"}
_SETTINGS = {  # unless HADOOP_CONF_DIR has them
    "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.failover.max.attempts": "90",
}
_NEW_FILES = {"replication": "dfs.replication", "block_size": "dfs.blocksize"}
_STREAM_BYTES = 1 << 20  # shorter reads are looks at a place
_PIECE_BYTES = 64 << 10  # as DataNodes send them
_PORT = 8020  # of a NameNode, where none is given
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
    """Return this process's HDFS of that authority (`host:port`, a name service, or `""` for `fs.defaultFS`).

    `DependencyError` without hdfs-native, `OptionError` if no NameNode is known by that name or HADOOP_CONF_DIR cannot be read,
    `StorageError` if none answers within half a minute.
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
    """Return the url that the library takes for an address, and a client of it that soon gives up; `OptionError` for none."""
    url = f"hdfs://{authority}"
    try:
        return url, new_client(url, _CONTACT_TRIES)
    except RuntimeError as error:
        if "No NameNode" not in str(error) or not authority or ":" in authority:
            msg = f"{url}: {_said(error)[1]}; expected a host and port, or a name service of HADOOP_CONF_DIR"
            raise OptionError(msg) from error
        url = f"{url}:{_PORT}"  # as Hadoop does with a host that is no name service
        return url, new_client(url, _CONTACT_TRIES)


def _check_answer(url: str, trial: Any) -> None:  # noqa: ANN401 - hdfs_native.Client
    """Raise `StorageError` unless a NameNode answers, whatever it says: what it refuses is for whoever asks."""
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
    """Return the settings of HADOOP_CONF_DIR; what is in hdfs-site.xml wins. `OptionError` if a file of it cannot be read."""
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
    """Return what the settings say of new files; `OptionError` if that cannot be."""
    values = {field: (name, settings.get(name)) for field, name in _NEW_FILES.items()}
    return {
        field: parse_size(value, name=f"{name} of HADOOP_CONF_DIR") for field, (name, value) in values.items() if value
    }


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Make a call that may never return; `TimeoutError` if it has not after so long. Its thread is then left behind."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            failed.append(error)

    thread = threading.Thread(target=attempt, name="penstock-hdfs", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:.0f} s")
    if failed:
        raise failed[0]


def _said(error: Exception) -> tuple[int, str]:
    """Return the number of an error of hdfs-native, and what it says without Java's stack."""
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
    """Raise what hdfs-native raises as an `OSError` with a number."""
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
        """Tell whether the file's last block is being written: the NameNode then counts it as a full one."""
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

    Its file is one of Python's `io`, which are closed when nobody refers to them any more. Here that would complete a file that
    was given up, and wait for servers that have failed, for minutes, wherever garbage is collected. So that close does nothing.
    """

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - hdfs_native.FileWriter
        self._file = file
        self._complete = file.close
        file.close = lambda: None

    def write(self, data: Data) -> int:
        with _numbered():  # of anything but bytes the library copies one byte after the other: 11 ns each
            return int(self._file.write(data if isinstance(data, bytes) else bytes(data)))

    def hsync(self, seconds: float) -> None:
        with _numbered():
            _within(seconds, self._file.hsync)

    def close(self) -> None:
        with _numbered():
            self._complete()


class _NativeReader:
    """`HdfsReader` by hdfs-native. Whoever reads on where the last read ended is served from streams that the DataNode keeps filled."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - hdfs_native.FileReader
        self._file = file
        self.size: int = file.size
        self._lock = threading.Lock()
        self._next = 0  # behind the last read
        self._ahead: io.BufferedReader | None = None  # what comes there

    def read(self, offset: int, length: int) -> bytes:
        with _numbered():
            if length >= _STREAM_BYTES and self._lock.acquire(blocking=False):
                try:
                    return self._read_on(offset, length)
                finally:
                    self._lock.release()
            return bytes(self._file.read_range(offset, length))

    def _read_on(self, offset: int, length: int) -> bytes:
        """Read by streams, which are left when somebody jumps, or when one fails: then by a range."""
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
    """What a file of hdfs-native has from a place on, one stream behind the other, for a `BufferedReader`.

    That lays the pieces side by side where they stay. Joined at the end they would be held twice, and memory that is new to a process
    costs more than a copy does; `read_range` makes three copies of all that it reads.

    The first stream is as long as the first read, in whole MiB, since who reads blocks of records ends a little earlier; each other
    one is as long as all before it. So never is more asked for in vain than was of use: of a stream that is left, hdfs-native
    has taken up to 100 pieces by then, and the DataNode has sent what the sockets hold.
    """

    def __init__(self, file: Any, start: int, wanted: int) -> None:  # noqa: ANN401 - hdfs_native.FileReader
        super().__init__()
        self._file = file
        self._start = start
        self._at = start  # behind the last piece
        self._end = min(start - -wanted // _STREAM_BYTES * _STREAM_BYTES, file.size)  # of the stream
        self._stream: Iterator[bytes] = file.read_range_stream(start, self._end - start)
        self._rest = memoryview(b"")  # of the last piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Put in what is left of a piece; nothing at the end of the file, or of a stream that ends early."""
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
