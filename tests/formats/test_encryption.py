"""age files: written by others and read by us, written by us and read by others; and nothing is accepted from a damaged file."""

from __future__ import annotations

import gzip
import pickle
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import BadFile, DependencyError, NoSpace, OptionError, StorageError, WrongKey
from penstock.formats.encryption import Keys, check_recipients, encrypt, recipients_in, room
from penstock.storage import Scratch
from tests.support.damage import flipped
from tests.support.keys import OTHER, OTHER_KEY, READER, READER_KEY, encrypted, opened

SAMPLES = (
    Path(__file__).resolve().parent.parent / "data/age"
)  # written by age 1.2.1 and 1.3.2, the reference implementation (Go)
LINES = "".join(f'{{"n": {n}, "text": "line {n}"}}\n' for n in range(3000)).encode()  # more than one chunk
SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN alice@host"


def keys(text: str = READER_KEY) -> Keys:
    return Keys(text, "decryptionKey='env:K'")


def decrypted(data: bytes, text: str = READER_KEY) -> bytes:
    """Return the content of a file, read in the way that large files are read."""
    with Scratch() as scratch:
        keys(text).decrypt(lambda at, size: data[at : at + size], len(data), scratch.write)
        return scratch.read(0, scratch.size)


@pytest.mark.parametrize(
    ("name", "text"), [("lines.json.age", LINES), ("lines.json.gz.age", LINES), ("nothing.json.age", b"")]
)
def test_files_of_the_reference_implementation(name: str, text: bytes) -> None:
    """Files that age itself wrote are read: several chunks, several recipients, an empty file; both ways of reading agree."""
    data = (SAMPLES / name).read_bytes()
    inner = decrypted(data)
    assert inner == keys().decrypted(data)
    assert (gzip.decompress(inner) if ".gz" in name else inner) == text


@pytest.mark.skipif(shutil.which("age") is None, reason="the reference implementation, age, is not on the path")
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_the_reference_implementation_reads_what_is_written(size: int, tmp_path: Path) -> None:
    """Files written for several recipients, with lengths around that of a chunk, are read by age itself with each recipient's key."""
    text = random.Random(size).randbytes(size)  # noqa: S311 - repeatable
    (tmp_path / "a.age").write_bytes(written([text], READER, OTHER))
    for key in (READER_KEY, OTHER_KEY):
        (tmp_path / "key").write_text(key)
        command = [str(shutil.which("age")), "-d", "-i", str(tmp_path / "key"), str(tmp_path / "a.age")]
        found = subprocess.run(command, capture_output=True, check=True)
        assert found.stdout == text


def written(chunks: list[bytes], *recipients: str) -> bytes:
    parts: list[bytes] = []
    encrypt(chunks, recipients or (READER,), parts.append)
    return b"".join(parts)


@pytest.mark.parametrize("size", [0, 1, 5000, 65536, 400_000])
def test_a_file_is_no_longer_than_it_was_reckoned(size: int) -> None:
    """`room` is right for any number and kind of recipients, although the length of the header is random."""
    for recipients in ((READER,), (READER, OTHER), (READER, OTHER, SSH)):
        for _ in range(20 if size < 10_000 else 2):
            length = len(written([bytes(size)], *recipients))
            assert room(length + 1000, recipients) >= size, "more than a kilobyte is held back"
            assert len(written([bytes(room(length, recipients))], *recipients)) <= max(length, 700)


@pytest.mark.parametrize("damage", ["bit", "cut"])
@pytest.mark.parametrize("maker", ["pyrage", "age"])
def test_nothing_is_read_of_a_file_that_is_damaged_anywhere(damage: str, maker: str) -> None:
    """A flipped bit in any byte, or a truncation at any byte, is an error; a damaged line of the header looks like a wrong key."""
    data = encrypted(b"some text\n" * 20) if maker == "pyrage" else (SAMPLES / "nothing.json.age").read_bytes()
    for at in range(len(data)):
        broken = flipped(data, at) if damage == "bit" else data[:at]
        for read in (decrypted, keys().decrypted):
            with pytest.raises((BadFile, WrongKey)):
                pytest.fail(f"{damage} {at}: {read(broken)!r}")
    for more in (data + b"x", data + data):
        with pytest.raises(BadFile):
            decrypted(more)


def test_a_cut_between_two_chunks_is_noticed() -> None:
    """If all chunks present are whole but the last is not marked as the last, the text is returned and then an error is raised."""
    data, chunk = (SAMPLES / "lines.json.age").read_bytes(), 65536 + 16
    at = len(data) - (len(LINES) - 65536 + 16)
    came: list[bytes] = []
    with pytest.raises(BadFile, match="truncated|decryption"):
        keys().decrypt(lambda begin, size: data[:at][begin : begin + size], at, came.append)
    assert len(b"".join(came)) <= chunk


def test_keys_of_others() -> None:
    """A file for other recipients raises `WrongKey`, which names where the key comes from; one matching key of several is enough."""
    data = encrypted(LINES, OTHER)
    for read in (decrypted, keys().decrypted):
        with pytest.raises(WrongKey, match="env:K"):
            read(data)
    assert decrypted(data, f"# two keys\n\n{READER_KEY}\n{OTHER_KEY}\n") == LINES


def test_errors_of_either_end_come_through() -> None:
    """An error that a storage raises during encryption or decryption is not swallowed, even if it is not an `Exception`."""

    class Crash(BaseException):
        """An error as the crash simulators raise it."""

    def failing(error: BaseException) -> Iterator[bytes]:
        yield b"a" * 100_000
        raise error

    data = encrypted(LINES)
    for error in (StorageError("no"), Crash(), OSError(5, "no")):

        def refuse(*_: object, error: BaseException = error) -> bytes:
            raise error

        with pytest.raises(type(error)):
            encrypt(failing(error), (READER,), lambda _: None)
        with pytest.raises(type(error)):
            encrypt([LINES], (READER,), refuse)
        with pytest.raises(type(error)):
            keys().decrypt(refuse, len(data), lambda _: None)
        with pytest.raises(type(error)):
            keys().decrypt(lambda at, size: data[at : at + size], len(data), refuse)


@pytest.mark.parametrize("size", [10, 70_000, 200_000])
def test_the_write_that_finds_the_disk_full_may_be_the_last(size: int) -> None:
    """F32: at its end the library writes what it still holds and drops any error: the file would be truncated without an error."""
    data = encrypted(bytes(size))
    ways: tuple[Callable[[Callable[[bytes], object]], None], ...] = (
        lambda write: encrypt([bytes(size)], [READER], write),
        lambda write: keys().decrypt(lambda at, length: data[at : at + length], len(data), write),
    )
    for way in ways:
        pieces: list[bytes] = []
        way(pieces.append)
        for last in range(len(pieces)):
            left = iter(range(last))

            def write(_: bytes, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    msg = "the disk is full"
                    raise NoSpace(msg)

            with pytest.raises(NoSpace):
                way(write)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "hunter2", "AGE-SECRET-KEY-1HUNTER2", READER, f"{READER_KEY}\nhunter2"]
)
def test_what_is_no_key_is_not_shown(text: str) -> None:
    """The error says where there is not a valid key, and nothing of what is there."""
    with pytest.raises(OptionError, match="env:K") as caught:
        keys(text)
    for secret in ("hunter2", "HUNTER2", READER_KEY):
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AGE-SECRET-KEY-PQ-1HUNTER2", "it is post-quantum, which pyrage does not know"),
        ("AGE-PLUGIN-YUBIKEY-1HUNTER2", "it is of a plugin"),
        (f"{READER_KEY}\nage-secret-key-pq-1hunter2", "entry 2 is not a valid key .it is post-quantum"),
    ],
)
def test_keys_of_kinds_that_are_not_known(text: str, said: str) -> None:
    """`age-keygen -pq` and plugins make keys too. The error used to call them no keys and said that age-keygen prints other ones."""
    with pytest.raises(OptionError, match=said) as caught:
        keys(text)
    assert "hunter2" not in str(caught.value).lower()


@pytest.mark.parametrize(
    ("recipient", "said"),
    [
        ("age1pq1qqqq", "it is post-quantum, .* age-keygen makes without -pq"),
        (f"{READER},{READER}", "invalid Bech32"),
        ("age1yubikey1qwertyuiop", "it is of a plugin"),
        ("age1tag1qt8lw0ual6avlwmwatk888yqnmdamm7xfd0wak53ut6elz5c4swx2gdw6zx", "it is of a plugin"),
    ],
)
def test_recipients_of_kinds_that_are_not_known(recipient: str, said: str) -> None:
    """They start with the usual prefix, so the error must not tell the user that recipients start with it."""
    with pytest.raises(OptionError, match=said) as caught:
        check_recipients((recipient,), "encryptTo")
    assert recipient not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("passphrase", "needs a passphrase, and only keys are accepted"),
        ("post-quantum", "age-keygen makes without -pq"),
    ],
)
def test_files_that_no_key_of_ours_can_open(name: str, said: str) -> None:
    """Files that age wrote for a passphrase or for an `age-keygen -pq` key: the error must not advise to add the key that opens them."""
    data = (SAMPLES / f"{name}.json.age").read_bytes()
    for read in (decrypted, keys().decrypted):
        with pytest.raises(WrongKey, match=said):
            read(data)


def test_keys_are_neither_shown_nor_pickled() -> None:
    """An object that holds a key shows no part of it in any representation, and cannot be pickled."""
    held = keys()
    assert READER_KEY not in f"{held} {held!r} {vars(held)}"
    assert held.recipient == READER
    with pytest.raises(TypeError):
        pickle.dumps(held)


def test_recipients() -> None:
    """A file of recipients may have comments; an invalid line is named by its place and not shown, because it may be a key."""
    assert recipients_in(f"# readers\n{READER}\n\n  {SSH}\n", "encryptTo='file:r'") == (READER, SSH)
    assert opened(written([b"x"], READER, SSH)) == b"x"
    for text in ("", "# nobody\n"):
        with pytest.raises(OptionError, match="file:r.*names nobody"):
            recipients_in(text, "encryptTo='file:r'")
    for wrong in (READER[:-1] + "q", READER_KEY, "ssh-ed25519 AAAA", "age1yubikey1qwertyuiop"):
        with pytest.raises(OptionError, match="entry 2 of 2") as caught:
            check_recipients((READER, wrong), "encryptTo")
        assert wrong not in str(caught.value)


def test_a_host_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, before anything is read or written."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for use in (keys, lambda: check_recipients((READER,), "encryptTo")):
        with pytest.raises(DependencyError, match=r"pip install 'penstock\[age\]'"):
            use()
