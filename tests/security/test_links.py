"""Symbolic links and other entries that are not files: in the input, in the output, in place of our own files."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import AlreadyThere, FileChanged, PublishConflict, StorageError
from penstock.formats import ReadFormat
from penstock.options import SOURCE, parse
from penstock.source.plan import Planner
from penstock.source.read import Reading
from penstock.source.scan import Scan
from penstock.storage import Entry, LocalStorage
from penstock.storage._local import LocalReadHandle
from tests.support.output import TEXT, Output

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_AGO = 1_000_000_000


class Input:
    """An input directory, with what was planned and read from it."""

    def __init__(self, path: Path, **options: str) -> None:
        self.path = path
        self.path.mkdir(exist_ok=True)
        self.reading = Reading(LocalStorage(), str(path), ReadFormat("text", TEXT))
        given = {"path": str(path), "recursiveFileLookup": "true", **options}
        checked = parse(SOURCE, given, what="source")
        self.planner = Planner(LocalStorage(), str(path), checked, divisible=lambda _: True)

    def put(self, name: str, text: str) -> None:
        """Write a file that settled long ago."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (LONG_AGO, LONG_AGO))

    def lines(self) -> dict[str, list[str]]:
        """Return what one batch reads, by path."""
        splits = self.planner.splits(self.planner.latest(self.planner.initial()))
        return {s.file.path: pa.Table.from_batches(self.reading.batches([s])).column(0).to_pylist() for s in splits}


@pytest.fixture
def source(tmp_path: Path) -> Input:
    made = Input(tmp_path / "in")
    made.put("a", "mine\n")
    return made


def test_links_out_of_the_input_are_reported_and_not_read(
    source: Input, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link to a file or a directory elsewhere, directly, through another link or through `..`, is not read, and is reported once."""
    os.utime(elsewhere / "secret.txt", (LONG_AGO, LONG_AGO))
    (source.path / "file").symlink_to(elsewhere / "secret.txt")
    (source.path / "folder").symlink_to(elsewhere)
    (source.path / "again").symlink_to(source.path / "file")
    (source.path / "up").symlink_to("../elsewhere/secret.txt")
    (source.path / "beside").symlink_to(f"{source.path}-other")  # its path begins with the path of the input
    Path(f"{source.path}-other").mkdir()
    with caplog.at_level(logging.WARNING):
        end = source.planner.latest(source.planner.initial())
        assert [split.file.path for split in source.planner.splits(end)] == ["a"]
        source.planner.latest(end)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "(5): 'again', 'beside', 'file', 'folder', 'up'; set followSymlinks=true" in said[0]


def test_links_are_followed_where_that_is_allowed(tmp_path: Path, source: Input, elsewhere: Path) -> None:
    """followSymlinks=true reads the targets of links, wherever they are."""
    os.utime(elsewhere / "secret.txt", (LONG_AGO, LONG_AGO))
    (source.path / "file").symlink_to(elsewhere / "secret.txt")
    (source.path / "folder").symlink_to(elsewhere)
    assert Input(source.path, followSymlinks="true").lines() == {
        "a": ["mine"],
        "file": ["secret"],
        "folder/secret.txt": ["secret"],
    }


def test_links_within_the_input_are_other_names(source: Input) -> None:
    """A link to a file inside is one more file; a link to a directory that is read anyway adds none, whatever its name."""
    source.put("z/b", "deep\n")
    source.put(".hidden/c", "hidden\n")
    (source.path / "link").symlink_to("a")
    for name in ("0", "y", "zz"):
        (source.path / name).symlink_to("z")
    (source.path / "n").symlink_to(".hidden")
    (source.path / "m").symlink_to(".hidden")
    assert source.lines() == {"a": ["mine"], "link": ["mine"], "z/b": ["deep"], "m/c": ["hidden"]}


def test_the_path_itself_may_be_a_link(tmp_path: Path, source: Input, elsewhere: Path) -> None:
    """A path that is a link is followed, and files outside of its target are still not read."""
    (source.path / "file").symlink_to(elsewhere / "secret.txt")
    (tmp_path / "current").symlink_to(source.path)
    assert Input(tmp_path / "current").lines() == {"a": ["mine"]}


def test_links_that_lead_nowhere_are_no_files(source: Input) -> None:
    """Loops, dangling links and impossible names do not stop a query."""
    (source.path / "loop").symlink_to("loop")
    (source.path / "one").symlink_to("two")
    (source.path / "two").symlink_to("one")
    (source.path / "dangling").symlink_to("nothing")
    (source.path / "long").symlink_to("x" * 300)
    (source.path / "round").symlink_to(".")
    assert source.lines() == {"a": ["mine"]}


def test_pipes_and_sockets_are_no_files(source: Input) -> None:
    """A named pipe, whose reader would wait for ever, a socket and a device are not read."""
    os.mkfifo(source.path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(source.path / "socket"))
    assert source.lines() == {"a": ["mine"]}
    assert Input(source.path, followSymlinks="true").lines() == {"a": ["mine"]}


@pytest.mark.parametrize("becomes", ["link", "pipe", "directory"])
def test_planned_file_that_becomes_another_thing_is_refused(source: Input, elsewhere: Path, becomes: str) -> None:
    """A file that is swapped between plan and reading fails the batch: nothing is read in its place."""
    splits = source.planner.splits(source.planner.latest(source.planner.initial()))
    (source.path / "a").unlink()
    if becomes == "link":
        (elsewhere / "secret.txt").write_text("evil\n")  # as long as the planned file
        os.utime(elsewhere / "secret.txt", (LONG_AGO, LONG_AGO))
        (source.path / "a").symlink_to(elsewhere / "secret.txt")
    elif becomes == "pipe":
        os.mkfifo(source.path / "a")
    else:
        (source.path / "a").mkdir()
    with pytest.raises(FileChanged, match="changed after it was planned"):
        list(source.reading.batches(splits))


def test_a_link_that_is_there_for_the_opening_alone_is_refused(source: Input, elsewhere: Path) -> None:
    """An attacker can give a file the size and time of a secret, and swap a link in only for the moment between open and resolve."""
    splits = source.planner.splits(source.planner.latest(source.planner.initial()))
    file, secret = source.path / "a", elsewhere / "secret.txt"
    secret.write_text("evil\n")
    os.utime(secret, (LONG_AGO, LONG_AGO))

    @contextmanager
    def swapped() -> Iterator[None]:
        file.unlink()
        file.symlink_to(secret)
        yield
        file.unlink()
        source.put("a", "mine\n")

    class Swapping(LocalStorage):
        def open(self, path: str) -> LocalReadHandle:
            with swapped():
                return super().open(path)

        def whole(self, path: str, size: int, modified_ns: int, identity: str) -> bytes | None:
            with swapped():
                return super().whole(path, size, modified_ns, identity)

    reading = Reading(Swapping(), str(source.path), ReadFormat("text", TEXT))
    with pytest.raises(FileChanged, match="another file is there"):
        list(reading.batches(splits))
    assert source.lines() == {"a": ["mine"]}


def test_a_listing_asks_nothing_more_of_files(source: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are not links cost one stat each when they are new, and no further call to see that they are not links."""
    for number in range(100):
        source.put(f"f{number}", "")
    calls: list[str] = []

    class Counting(LocalStorage):
        def stat(self, path: str) -> Entry:
            calls.append(path)
            return super().stat(path)

        def resolve(self, path: str) -> str:
            calls.append(path)
            return super().resolve(path)

    scan = Scan(Counting(), str(source.path), recursive=True, follow=False, accept=lambda _: True)
    assert len(scan.refresh().came) == 101
    assert len(calls) == 1 + 101  # the path, and each new name


# -- the output


def test_nothing_is_published_through_a_link(output: Output, elsewhere: Path) -> None:
    """A bucket that somebody replaced by a link fails the batch; nothing is written elsewhere; without the link the batch is done."""
    output.schema = pa.schema([("value", pa.string()), ("c", pa.string())])
    sink = output.sink(bucketBy="c={c}/below", dropBucketColumns="true", rollBatches="1", fileName="f{seq}")
    output.batch(sink, 0, {0: ["x|0"]})
    (output.root / "c=1").symlink_to(elsewhere)
    with pytest.raises(PublishConflict, match="remove the symbolic link"):
        output.batch(sink, 1, {0: ["y|1"]})
    assert os.listdir(elsewhere) == ["secret.txt"]
    (output.root / "c=1").unlink()
    output.batch(sink, 2, {0: ["z|1"]})
    assert output.lines() == ["x", "y", "z"]


def test_a_growing_file_does_not_follow_a_link(output: Output, elsewhere: Path) -> None:
    """A link in place of a growing file is refused; its target is neither cut nor appended to."""
    sink = output.sink(growing="true", fileName="all.log")
    output.root.mkdir()
    (output.root / "all.log").symlink_to(elsewhere / "secret.txt")
    with pytest.raises(PublishConflict, match=r"all\.log"):
        output.batch(sink, 0, {0: ["x"]})
    with pytest.raises(StorageError, match=r"all\.log"):  # also if the link comes a moment later
        sink.storage.extend(f"{output.root}/all.log", 0)
    assert (elsewhere / "secret.txt").read_text() == "secret\n"


def test_a_link_to_the_staged_file_is_not_taken_for_the_published_one(tmp_path: Path) -> None:
    """A link that leads back to the staged file is a name that is taken, not a crash between the two names."""
    storage = LocalStorage()
    (tmp_path / "staged").write_text("rows")
    (tmp_path / "target").symlink_to("staged")
    with pytest.raises(AlreadyThere):
        storage.publish(f"{tmp_path}/staged", f"{tmp_path}/target")
    assert (tmp_path / "staged").read_text() == "rows"


@pytest.mark.parametrize("dangling", [False, True])
def test_creating_does_not_follow_a_link(tmp_path: Path, elsewhere: Path, dangling: bool) -> None:
    """A link in place of a new file or a record is a name that is taken, whether its target exists or not."""
    target = elsewhere / ("new.txt" if dangling else "secret.txt")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(AlreadyThere):
        LocalStorage().create(f"{tmp_path}/link")
    with pytest.raises(AlreadyThere):
        LocalStorage().put_if_absent(f"{tmp_path}/link", b"record")
    assert os.listdir(elsewhere) == ["secret.txt"]
    assert (elsewhere / "secret.txt").read_text() == "secret\n"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "link"]
