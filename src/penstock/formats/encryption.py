"""Encrypted files: age (age-encryption.org/v1), by pyrage.

A file is a header, which has the file's own key once for each recipient, and chunks of 64 KiB of cipher text, each with a tag, of
which the last one says that it is the last. Recipients are public (`age1...`, or an SSH key); identities open what was encrypted to
theirs. Whoever writes needs recipients alone.

What follows from the form, and what is done about it:

- *Files do not concatenate.* So a part is encrypted once, when it is assembled, and each staged segment is a file of age by itself.
- *Text comes out before damage is noticed.* A cut between two chunks, or a flipped bit in the last one, shows when all before it is
  decrypted. So `decrypt` writes to what nobody reads before it returns.
- *It cannot be read in the middle*, by pyrage. So an encrypted file is one range.
- *A wrong key and a damaged line of the header look the same*: no line of the header opens. Both are `WrongKey`, which stops a query
  and is never set aside: a good file would be given up for a key that somebody forgot.

The library adds a line of chance to each header (grease), so the same text never has the same cipher text, nor the same length.
"""

from __future__ import annotations

import importlib.util
import re
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import BadFile, DependencyError, OptionError, WrongKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Read = Callable[[int, int], bytes]  # (offset, length): that many bytes, fewer only at the end of the file
    Write = Callable[[bytes], object]

EXTENSION = ".age"
MAGIC = b"age-encryption.org/v1\n"
_CHUNK_BYTES, _TAG_BYTES = 64 << 10, 16
_HEADER_BYTES = len(MAGIC) + 48 + 16  # its first line, the one with its tag, and the nonce behind it
_GREASE_BYTES_MAX = 256
_STANZA_BYTES = 128  # of a recipient, beyond the length of its own text
_READ_BYTES = 1 << 20
_NO_MATCH = "No matching keys"
_HEADER_BYTES_MAX = 64 << 10  # that messages look at
_OTHER_KINDS = (  # of recipients and keys that age knows and the library does not
    (
        re.compile(r"age1pq1|AGE-SECRET-KEY-PQ-1", re.IGNORECASE),
        "it is post-quantum, which pyrage does not know: take one that age-keygen makes without -pq",
    ),
    (
        re.compile(r"age1[^1,\s]+1|AGE-PLUGIN-", re.IGNORECASE),
        "it is of a plugin, which no process of a query can ask: take one of age itself",
    ),
)
_STANZA = re.compile(rb"^-> (\S+)", re.MULTILINE)
_OPENED = frozenset({b"X25519", b"ssh-ed25519", b"ssh-rsa"})
_SECRET = re.compile(r"AGE-SECRET-KEY-1[A-Z0-9]+", re.IGNORECASE)


def is_encrypted(name: str) -> bool:
    """Tell whether a file of this name is encrypted."""
    return name.lower().endswith(EXTENSION)


def inner_name(name: str) -> str:
    """Return what a file is called inside: the name that says its format and compression."""
    return name[: -len(EXTENSION)] if is_encrypted(name) else name


def check_library(option: str) -> None:
    """Raise `DependencyError` unless the library is installed that `option` needs."""
    if importlib.util.find_spec("pyrage") is None:
        msg = f"{option} needs the library pyrage; install it, on every host: pip install 'penstock[age]'"
        raise DependencyError(msg)


def check_recipients(recipients: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the recipients, once each is known to be one; `OptionError`, which shows none of them: one may be a secret."""
    check_library("encryptTo")
    for place, recipient in enumerate(recipients, 1):
        _check_recipient(recipient, f"{where}: entry {place} of {len(recipients)}")
    return tuple(recipients)


def _check_recipient(recipient: str, where: str) -> None:
    try:
        _recipient(recipient)
    except _errors() as error:
        msg = (
            f"{where} is no recipient ({_other_kind(recipient) or error}); expected age1..., as age-keygen -y prints it, ssh-ed25519 or "
            "ssh-rsa"
        )
        raise OptionError(msg) from error


def recipients_in(text: str, where: str) -> tuple[str, ...]:
    """Return the recipients in a file, one a line; lines that begin with `#` are remarks. `OptionError` if there is none."""
    recipients = _entries(text)
    if not recipients:
        msg = f"{where} names nobody: expected recipients of age, one a line, such as age1..."
        raise OptionError(msg)
    return check_recipients(recipients, where)


def room(size: int, recipients: Sequence[str]) -> int:
    """Return how many bytes can be encrypted at least, so that no more than `size` come out: one at the least."""
    header = _HEADER_BYTES + _GREASE_BYTES_MAX + sum(len(recipient) + _STANZA_BYTES for recipient in recipients)
    chunks = size // (_CHUNK_BYTES + _TAG_BYTES) + 1
    return max(size - header - chunks * _TAG_BYTES, 1)


def encrypt(chunks: Iterable[bytes | memoryview], recipients: Sequence[str], write: Write) -> None:
    """Encrypt what the chunks hold one behind another to the recipients, and write it. What either end raises comes through."""
    import pyrage

    source, target = _Pulled(iter(chunks)), _Pushed(write)
    try:
        pyrage.encrypt_io(source, target, [_recipient(recipient) for recipient in recipients])
    except (pyrage.EncryptError, OSError):
        _raise_first(source, target)
        raise
    _raise_first(source, target)


class Encrypting:
    """Text that is encrypted as it comes: `encrypt` for who has it piece by piece. Use `write`, then `end`, or `give_up`.

    The library pulls, and here it is pushed. So it runs in a thread of its own, which works only while the caller waits: in turns, never
    side by side. What `write_to` raises is raised by the call that it happened in.
    """

    def __init__(self, recipients: Sequence[str], write_to: Write) -> None:
        self._chunk: bytes | memoryview | None = None
        self._given_up = False
        self._ended = False
        self._error: BaseException | None = None
        self._theirs, self._ours = threading.Semaphore(0), threading.Semaphore(0)
        encrypts = partial(self._encrypt, tuple(recipients), write_to)
        self._thread = threading.Thread(target=encrypts, name="penstock-encrypting", daemon=True)

    def write(self, data: bytes | memoryview) -> None:
        """Take all of `data`, which may change once it is back."""
        if len(data):
            self._chunk = data
            self._take_turns()

    def end(self) -> None:
        """Complete the file."""
        self._chunk = None
        self._take_turns()
        self._thread.join()

    def give_up(self) -> None:
        """Let the thread end, in whatever state; what was written is no whole file."""
        self._given_up, self._chunk = True, None
        if self._thread.is_alive():
            self._theirs.release()
            self._thread.join()

    def _take_turns(self) -> None:
        if not self._ended:
            if self._thread.ident is None:
                self._thread.start()
            self._theirs.release()
            self._ours.acquire()
        if self._error is not None:
            raise self._error

    def _encrypt(self, recipients: Sequence[str], write_to: Write) -> None:
        self._theirs.acquire()
        try:
            encrypt(self._chunks(), recipients, write_to)
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits; also a simulated crash
            self._error = error
        finally:
            self._ended = True
            self._ours.release()

    def _chunks(self) -> Iterator[bytes | memoryview]:
        while self._chunk is not None:
            yield self._chunk
            self._ours.release()
            self._theirs.acquire()
        if self._given_up:
            raise _GivenUp


class _GivenUp(Exception):
    """An encryption that shall not be completed."""


class Keys:
    """The identities of a key file. `recipient` is the public half of the first one, `None` if it is an SSH key.

    It cannot be pickled, and shows nothing of what it holds: tasks are told where a key is, and read it themselves.
    """

    def __init__(self, text: str, where: str) -> None:
        check_library(where.partition("=")[0])
        self.where = where
        self.recipient: str | None = None
        self._identities: list[Any] = []
        if "PRIVATE KEY-----" in text:
            self._identities.append(_loaded(where, lambda: _ssh_identity(text)))
        for place, entry in enumerate(() if self._identities else _entries(text), 1):
            identity = _loaded(f"{where}: entry {place}", partial(_identity, entry), _other_kind(entry))
            self.recipient = self.recipient or str(identity.to_public())
            self._identities.append(identity)
        if not self._identities:
            msg = f"{where}: there is no key; expected AGE-SECRET-KEY-1..., as age-keygen prints it, one a line"
            raise OptionError(msg)

    def __repr__(self) -> str:
        return f"Keys({self.where})"

    def decrypted(self, data: bytes) -> bytes:
        """Return what is encrypted in `data`, all of it. `BadFile` if it is damaged, `WrongKey` if it is for others."""
        import pyrage

        try:
            return bytes(pyrage.decrypt(data, self._identities))
        except pyrage.DecryptError as error:
            raise self._refusal(error, data[:_HEADER_BYTES_MAX]) from error

    def decrypt(self, read: Read, size: int, write: Write) -> None:
        """Write what is encrypted in a file of `size` bytes; raises as `decrypted`, with text written that must be dropped then.

        What either end raises comes through.
        """
        import pyrage

        source, target = _Pulled(_chunks(read, size)), _Pushed(write)
        try:
            pyrage.decrypt_io(source, target, self._identities)
        except (pyrage.DecryptError, OSError) as error:  # the second for chunks, which it reads as a file is read
            _raise_first(source, target)
            raise self._refusal(error, read(0, min(size, _HEADER_BYTES_MAX))) from error
        _raise_first(source, target)

    def _refusal(self, error: Exception, header: bytes) -> BadFile | WrongKey:
        reason = " ".join(str(error).split())
        if reason.startswith(_NO_MATCH):
            msg = f"it is encrypted to none of the keys of {self.where}, or its header is damaged; {_remedy(header)}, or move it away"
            return WrongKey(msg)
        msg = f"not a whole file of age: {reason}"
        return BadFile(msg)


class _Pulled:
    """Chunks of bytes as the file that pyrage reads from, 8 KiB at a time."""

    def __init__(self, chunks: Iterator[bytes | memoryview]) -> None:
        self._chunks = chunks
        self._rest, self._at = memoryview(b""), 0
        self.error: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            while self._at >= len(self._rest):
                chunk = next(self._chunks, None)
                if chunk is None:
                    return b""
                self._rest, self._at = memoryview(chunk), 0
        except BaseException as error:  # pyrage would keep but its text; also a simulated crash
            self.error = error
            raise
        begin = self._at
        self._at = len(self._rest) if size < 0 else min(begin + size, len(self._rest))
        return bytes(self._rest[begin : self._at])


class _Pushed:
    """A function that takes bytes as the file that pyrage writes to."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        try:
            self._write(data)
        except BaseException as error:  # pyrage would keep but its text; also a simulated crash
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        """Leave that to the owner of the file."""


def _raise_first(source: _Pulled, target: _Pushed) -> None:
    """Raise what an end has raised: pyrage makes a text of it, and of that of the last write, which it does at its own end, nothing."""
    for error in (source.error, target.error):
        if error is not None:
            raise error


def _chunks(read: Read, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _READ_BYTES):
        yield read(offset, min(_READ_BYTES, size - offset))


def _entries(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _recipient(text: str) -> Any:  # noqa: ANN401 - the library has no common type
    import pyrage

    kind = pyrage.ssh.Recipient if text.startswith("ssh-") else pyrage.x25519.Recipient
    return kind.from_str(text)


def _identity(text: str) -> Any:  # noqa: ANN401 - the library has no common type
    import pyrage

    return pyrage.x25519.Identity.from_str(text)


def _ssh_identity(text: str) -> Any:  # noqa: ANN401 - the library has no common type
    import pyrage

    return pyrage.ssh.Identity.from_buffer(f"{text}\n".encode())


def _other_kind(text: str) -> str:
    """Return what is to be said of a recipient or a key that age knows and the library does not; "" for others."""
    return next((said for kind, said in _OTHER_KINDS if kind.match(text)), "")


def _remedy(header: bytes) -> str:
    """Return what can be done about a file that no key opens, by what its header says whom it is for."""
    kinds = set(_STANZA.findall(header.partition(b"\n---")[0]))
    if b"scrypt" in kinds:
        return "it takes a passphrase, and here keys alone are taken: encrypt it anew to a recipient"
    if b"mlkem768x25519" in kinds and not kinds & _OPENED:
        return "it is for post-quantum keys, which pyrage does not know: encrypt it anew to a recipient that age-keygen makes without -pq"
    return "add the key that opens it there, one a line"


def _loaded(where: str, load: Callable[[], Any], other: str = "") -> Any:  # noqa: ANN401 - the library has no common type
    """Return a key; `OptionError`, which shows nothing of it, if there is none. `other`: what is known of it."""
    try:
        return load()
    except _errors() as error:
        msg = (
            f"{where} is no key ({other or _SECRET.sub('...', str(error))}); expected AGE-SECRET-KEY-1..., as age-keygen prints it, or an "
            "SSH key without a passphrase"
        )
        raise OptionError(msg) from None


def _errors() -> tuple[type[Exception], ...]:
    import pyrage

    return pyrage.IdentityError, pyrage.RecipientError, ValueError
