"""Encrypted files: age (age-encryption.org/v1), by pyrage.

A file is a header, which has the file's own key once for each recipient, and chunks of 64 KiB of cipher text. Each
chunk has a tag, and the last one is marked as the last. Recipients are public keys (`age1...`, or an SSH key); an
identity opens what was encrypted to its recipient. A writer needs only recipients.

What follows from this form, and how it is handled:

- *Files do not concatenate.* So a part is encrypted once, when it is assembled, and each staged segment is an age file
  of its own.
- *Text comes out before damage is noticed.* A cut between two chunks, or a flipped bit in the last one, shows only when
  everything before it is decrypted. So `decrypt` writes to a file that nobody reads until it returns.
- *It cannot be read from the middle*, by pyrage. So an encrypted file is one range.
- *A wrong key and a damaged line of the header look the same*: no line of the header opens. Both are `WrongKey`, which
  stops a query and is never set aside: otherwise a good file would be given up because somebody forgot a key.

The library adds a random line to each header (grease), so the same text never gives the same cipher text, nor the same
length.
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
_HEADER_BYTES = len(MAGIC) + 48 + 16  # its first line, the line with its tag, and the nonce after it
_GREASE_BYTES_MAX = 256
_STANZA_BYTES = 128  # per recipient, in addition to the length of its own text
_READ_BYTES = 1 << 20
_NO_MATCH = "No matching keys"
_HEADER_BYTES_MAX = 64 << 10  # of a header that messages examine
_OTHER_KINDS = (  # of recipients and keys that age knows and the library does not
    (
        re.compile(r"age1pq1|AGE-SECRET-KEY-PQ-1", re.IGNORECASE),
        "it is post-quantum, which pyrage does not know: use one that age-keygen makes without -pq",
    ),
    (
        re.compile(r"age1[^1,\s]+1|AGE-PLUGIN-", re.IGNORECASE),
        "it is of a plugin, which no process of a query can ask: use one of age itself",
    ),
)
_STANZA = re.compile(rb"^-> (\S+)", re.MULTILINE)
_OPENED = frozenset({b"X25519", b"ssh-ed25519", b"ssh-rsa"})
_SECRET = re.compile(r"AGE-SECRET-KEY-1[A-Z0-9]+", re.IGNORECASE)


def is_encrypted(name: str) -> bool:
    """Tell whether a file of this name is encrypted, by its extension."""
    return name.lower().endswith(EXTENSION)


def inner_name(name: str) -> str:
    """Return the name of the file inside: it tells the format and the compression."""
    return name[: -len(EXTENSION)] if is_encrypted(name) else name


def check_library(option: str) -> None:
    """Raise `DependencyError` unless the library that `option` needs is installed."""
    if importlib.util.find_spec("pyrage") is None:
        msg = f"{option} needs the library pyrage; install it, on every host: pip install 'penstock[age]'"
        raise DependencyError(msg)


def check_recipients(recipients: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the recipients if all are valid; otherwise `OptionError`, which shows none of them: one may be a secret."""
    check_library("encryptTo")
    for place, recipient in enumerate(recipients, 1):
        _check_recipient(recipient, f"{where}: entry {place} of {len(recipients)}")
    return tuple(recipients)


def _check_recipient(recipient: str, where: str) -> None:
    try:
        _recipient(recipient)
    except _errors() as error:
        msg = (
            f"{where} is not a recipient ({_other_kind(recipient) or error}); expected age1..., as age-keygen -y prints it, ssh-ed25519 or "
            "ssh-rsa"
        )
        raise OptionError(msg) from error


def recipients_in(text: str, where: str) -> tuple[str, ...]:
    """Return the recipients in a file, one per line; lines that begin with `#` are comments. `OptionError` if there is none."""
    recipients = _entries(text)
    if not recipients:
        msg = f"{where} names nobody: expected recipients of age, one a line, such as age1..."
        raise OptionError(msg)
    return check_recipients(recipients, where)


def room(size: int, recipients: Sequence[str]) -> int:
    """Return how many bytes can certainly be encrypted so that no more than `size` come out; at least one."""
    header = _HEADER_BYTES + _GREASE_BYTES_MAX + sum(len(recipient) + _STANZA_BYTES for recipient in recipients)
    chunks = size // (_CHUNK_BYTES + _TAG_BYTES) + 1
    return max(size - header - chunks * _TAG_BYTES, 1)


def encrypt(chunks: Iterable[bytes | memoryview], recipients: Sequence[str], write: Write) -> None:
    """Encrypt the concatenated chunks to the recipients, and write the result. Errors of `chunks` and `write` come through."""
    import pyrage

    source, target = _Pulled(iter(chunks)), _Pushed(write)
    try:
        pyrage.encrypt_io(source, target, [_recipient(recipient) for recipient in recipients])
    except (pyrage.EncryptError, OSError):
        _raise_first(source, target)
        raise
    _raise_first(source, target)


class Encrypting:
    """Text that is encrypted as it comes: `encrypt` for a caller that has it piece by piece. Call `write`, then `end`, or `give_up`.

    The library pulls its input, and here the input is pushed. So it runs in its own thread, which works only while the
    caller waits: they take turns, and never run at once. What `write_to` raises is raised by the call in which it
    happened.
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
        """Take all of `data`; the caller may change it after the call."""
        if len(data):
            self._chunk = data
            self._take_turns()

    def end(self) -> None:
        """Complete the file."""
        self._chunk = None
        self._take_turns()
        self._thread.join()

    def give_up(self) -> None:
        """Let the thread end, in any state; what was written is not a complete file."""
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
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting caller; also a simulated crash
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
    """An encryption that will not be completed."""


class Keys:
    """The identities of a key file. `recipient` is the public half of the first one, `None` if that is an SSH key.

    It cannot be pickled, and never shows its content: tasks are told where a key is, and read it themselves.
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
        """Return all of the decrypted `data`. `BadFile` if it is damaged, `WrongKey` if it is for other keys."""
        import pyrage

        try:
            return bytes(pyrage.decrypt(data, self._identities))
        except pyrage.DecryptError as error:
            raise self._refusal(error, data[:_HEADER_BYTES_MAX]) from error

    def decrypt(self, read: Read, size: int, write: Write) -> None:
        """Write the decrypted content of a file of `size` bytes; raises as `decrypted`, and the text written until then must be dropped.

        Errors of `read` and `write` come through.
        """
        import pyrage

        source, target = _Pulled(_chunks(read, size)), _Pushed(write)
        try:
            pyrage.decrypt_io(source, target, self._identities)
        except (pyrage.DecryptError, OSError) as error:  # OSError for chunks, which it reads like a file
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
    """Chunks of bytes as a file that pyrage reads from, 8 KiB at a time."""

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
        except BaseException as error:  # pyrage would keep only its text; also a simulated crash
            self.error = error
            raise
        begin = self._at
        self._at = len(self._rest) if size < 0 else min(begin + size, len(self._rest))
        return bytes(self._rest[begin : self._at])


class _Pushed:
    """A function that takes bytes, as a file that pyrage writes to."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        try:
            self._write(data)
        except BaseException as error:  # pyrage would keep only its text; also a simulated crash
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        """Do nothing: flushing is left to the owner of the file."""


def _raise_first(source: _Pulled, target: _Pushed) -> None:
    """Raise what reading or writing raised: pyrage turns it into text, and drops an error of the last write, made as it ends."""
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
    """Return what is wrong with a recipient or key that age knows and the library does not; "" for others."""
    return next((said for kind, said in _OTHER_KINDS if kind.match(text)), "")


def _remedy(header: bytes) -> str:
    """Return what can be done about a file that no key opens, judging by the recipients in its header."""
    kinds = set(_STANZA.findall(header.partition(b"\n---")[0]))
    if b"scrypt" in kinds:
        return "it needs a passphrase, and only keys are accepted here: encrypt it again to a recipient"
    if b"mlkem768x25519" in kinds and not kinds & _OPENED:
        return "it is for post-quantum keys, which pyrage does not know: encrypt it again to a recipient that age-keygen makes without -pq"
    return "add the key that opens it there, one a line"


def _loaded(where: str, load: Callable[[], Any], other: str = "") -> Any:  # noqa: ANN401 - the library has no common type
    """Return a key; `OptionError`, which shows nothing of it, if it is invalid. `other`: what is known about it."""
    try:
        return load()
    except _errors() as error:
        msg = (
            f"{where} is not a valid key ({other or _SECRET.sub('...', str(error))}); expected AGE-SECRET-KEY-1..., as age-keygen "
            "prints it, or an SSH key without a passphrase"
        )
        raise OptionError(msg) from None


def _errors() -> tuple[type[Exception], ...]:
    import pyrage

    return pyrage.IdentityError, pyrage.RecipientError, ValueError
