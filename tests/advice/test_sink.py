"""The advice of errors of output, ledger and file system is followed, on a query that is driven without Spark."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import failpoints, wal
from penstock.errors import (
    AlreadyThere,
    CheckpointMismatch,
    CommitError,
    DamagedState,
    Fenced,
    Locked,
    NoSpace,
    NotSupported,
    NotThere,
    OptionError,
    PositionError,
    PublishConflict,
)
from penstock.storage import LocalStorage
from penstock.testing import ObjectStore
from tests.support.advice import TEXT, Query, penstock
from tests.support.follows import follows


def begun(root: Path, **options: str) -> Query:
    """Return a query that has committed a batch of two lines."""
    query = Query(root, None, TEXT, **options)
    query.put("a", "1", "2")
    query.batch()
    return query


def copied(*places: Path) -> Callable[[], None]:
    """Copy directories; return a function that restores them."""
    for place in places:
        shutil.copytree(place, f"{place}.copy")

    def put_back() -> None:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(f"{place}.copy", place)

    return put_back


@follows("PST-300")
def test_commit_error(tmp_path: Path) -> None:
    """`CommitError`: the query is started again, and writes the batch that was not committed again."""
    query = begun(tmp_path, rollInterval="1ms")
    query.put("b", "3")
    written = query.written()
    query.sink().roll("driver")  # as the keeper would, whose turn it is not
    with pytest.raises(CommitError, match="it is written again"):
        query.commit(*written)
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-301")
def test_fenced(tmp_path: Path) -> None:
    """`Fenced`: a driver that lost its sink is started again, and takes it back with the batch that it could not commit."""
    query = begun(tmp_path)
    query.put("b", "3")
    written = query.written()
    assert penstock("finish", query.dst)[0] == 0
    with pytest.raises(Fenced, match="stop it, or let it start again to take the sink over"):
        query.commit(*written)
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-302")
def test_output_that_was_emptied(tmp_path: Path) -> None:
    """`CheckpointMismatch`: once the emptied output is restored, the query goes on; it also does if both begin anew."""
    query = begun(tmp_path)
    put_back = copied(query.dst)
    shutil.rmtree(query.dst)
    query.put("b", "3")
    with pytest.raises(
        CheckpointMismatch,
        match="restore both from the same time; or begin anew, with a new checkpoint and an empty directory",
    ):
        query.batch()
    put_back()
    query.batch(final=True)
    assert query.is_whole()
    for place in (query.dst, query.checkpoint):
        shutil.rmtree(place)
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-302")
def test_checkpoint_that_was_put_back(tmp_path: Path) -> None:
    """`CheckpointMismatch`: the output of the time of the restored checkpoint is restored too; or both begin anew."""
    query = Query(tmp_path)
    query.put("a", "1")
    query.batch()
    put_back = copied(query.checkpoint, query.dst)
    for number in range(2):
        query.put(f"b{number}", f"b{number}")
        query.batch()
    shutil.rmtree(query.checkpoint)
    shutil.copytree(f"{query.checkpoint}.copy", query.checkpoint)
    with pytest.raises(
        CheckpointMismatch, match="restore both from the same time; or begin anew, with a new checkpoint and"
    ):
        query.batch()
    put_back()
    query.batch(final=True)
    assert query.is_whole()
    for place in (query.dst, query.checkpoint):
        shutil.rmtree(place)
    query.batch(final=True)
    assert query.is_whole()


def decided(query: Query, point: str) -> Path:
    """Run a batch that decides one file and stops at a failpoint; return the file's path."""
    failpoints.arm(f"{point}=error")
    with pytest.raises(OSError, match="failpoint"):
        query.batch()
    failpoints.arm("")
    (file,) = query.sink().ledger.head().finished
    return query.dst / file.path


@follows("PST-303")
def test_name_that_was_taken(tmp_path: Path) -> None:
    """`PublishConflict`: once a foreign file under a finished file's name is moved away, the same command goes on."""
    query = Query(tmp_path, rollBatches="1")
    query.put("a", "1", "2")
    target = decided(query, "sink.publish.one")
    target.write_text("foreign")
    with pytest.raises(PublishConflict, match="move it away and run the same command again") as caught:
        query.batch()
    assert str(target) in caught.value.message
    target.rename(tmp_path / "foreign")
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-303")
def test_file_that_was_taken_away_too_early(tmp_path: Path) -> None:
    """`PublishConflict`: a file that was removed before it was noted as published is restored for one start, and may be removed then."""
    query = Query(tmp_path, rollBatches="1")
    query.put("a", "1", "2")
    target = decided(query, "sink.publish.before-note")
    target.rename(tmp_path / "taken")
    with pytest.raises(PublishConflict, match="put it back for this start"):
        query.batch()
    (tmp_path / "taken").rename(target)
    query.batch(final=True)
    assert query.is_whole()
    target.rename(tmp_path / "taken")
    query.put("b", "3")
    query.batch(final=True)
    assert query.lines() == {"3": 1}


@follows("PST-303")
def test_file_that_was_replaced(tmp_path: Path) -> None:
    """`PublishConflict`: once a file that was replaced before it was noted as published is restored, the query goes on."""
    query = Query(tmp_path, rollBatches="1")
    query.put("a", "1", "2")
    target = decided(query, "sink.publish.before-note")
    text = target.read_text()
    target.write_text("other bytes")
    with pytest.raises(PublishConflict, match="put back the file that was published"):
        query.batch()
    target.write_text(text)
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-303")
def test_growing_file_that_somebody_else_wrote_to(tmp_path: Path) -> None:
    """`PublishConflict`: a growing file to which others wrote is cut to the length in the message, and continues to grow."""
    query = Query(tmp_path, growing="true", fileName="all.txt")
    query.put("a", "1", "2")
    query.batch(final=True)
    query.put("b", "3")
    failpoints.arm("sink.publish.grow=error")
    with pytest.raises(OSError, match="failpoint"):
        query.batch()
    failpoints.arm("")
    with (query.dst / "all.txt").open("a") as file:
        file.write("foreign\n" * 10)
    with pytest.raises(PublishConflict, match=r"cut it to \d+ bytes and run the same command again") as caught:
        query.batch()
    length = re.search(r"cut it to (\d+) bytes", caught.value.message)
    assert length is not None
    with (query.dst / "all.txt").open("r+") as file:
        file.truncate(int(length[1]))
    query.batch(final=True)
    assert query.is_whole()


@pytest.mark.parametrize("remedy", ["restored", "another name"])
@pytest.mark.parametrize(
    ("left", "says"), [(1, "it was cut by somebody else; restore it"), (None, "is not there.*put it back")]
)
@follows("PST-303")
def test_growing_file_that_somebody_else_cut_or_removed(
    tmp_path: Path, left: int | None, says: str, remedy: str
) -> None:
    """`PublishConflict`: it is restored, or if it is gone for good, the rows go to another name: the decision must not be put before."""
    query = begun(tmp_path, growing="true", fileName="all.txt")
    query.put("b", "3")
    file, text = query.dst / "all.txt", (query.dst / "all.txt").read_text()
    file.unlink() if left is None else file.write_text(text[:left])
    with pytest.raises(PublishConflict, match=f"{says}.*, or set another fileName: nothing was committed"):
        query.batch()
    if remedy == "restored":
        file.write_text(text)
    else:
        query.options["fileName"] = "other.txt"
    query.batch(final=True)
    if remedy == "restored":
        assert query.is_whole()
    assert (query.dst / query.options["fileName"]).read_text().endswith("3\n")


@pytest.mark.parametrize("remedy", ["moved away", "another name"])
@follows("PST-303")
def test_growing_file_whose_name_is_taken(tmp_path: Path, remedy: str) -> None:
    """`PublishConflict`: a foreign file in place of a growing one is moved away, or the growing file gets another name."""
    query = Query(tmp_path, growing="true", fileName="all.txt")
    query.dst.mkdir()
    (query.dst / "all.txt").write_text("foreign\n")
    query.put("a", "1", "2")
    with pytest.raises(
        PublishConflict, match="set another fileName, or, where it is no file of another sink, move it away"
    ):
        query.batch()
    if remedy == "moved away":
        (query.dst / "all.txt").rename(tmp_path / "foreign")
    else:
        query.options["fileName"] = "ours.txt"
        query.put_in["foreign"] = 1
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-303")
def test_link_in_the_place_of_a_bucket(tmp_path: Path) -> None:
    """`PublishConflict`: once the symbolic link is removed, the same command publishes what was decided."""
    query = Query(tmp_path, bucketBy="v={value}", rollBatches="1")
    query.dst.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (query.dst / "v=1").symlink_to(tmp_path / "elsewhere")
    query.put("a", "1", "2")
    with pytest.raises(PublishConflict, match="remove the symbolic link") as caught:
        query.batch()
    assert str(query.dst / "v=1") in caught.value.message
    (query.dst / "v=1").unlink()
    query.batch(final=True)
    assert query.is_whole()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@follows("PST-101")
def test_growing_after_parts_that_are_open(tmp_path: Path) -> None:
    """`OptionError`: the command in the message publishes the open parts, which then no longer block the query."""
    query = Query(tmp_path)
    query.put("a", "1")
    query.batch()
    query.put("b", "2")
    query.options |= {"growing": "true", "fileName": "all.txt"}
    with pytest.raises(OptionError, match=r"publish them first: penstock (\w+) (\S+)") as caught:
        query.batch()
    command = re.search(r"publish them first: penstock (\w+) (\S+)", caught.value.message)
    assert command is not None
    assert penstock(*command.groups())[0] == 0
    query.batch(final=True)
    assert query.is_whole()


DAMAGED = {
    "the last record": lambda query: max((query.dst / "_penstock" / "s" / "ledger").glob("0*[0-9]")),
    "a staged file": lambda query: next((query.dst / "_penstock" / "s" / "staging").iterdir()),
}


@pytest.mark.parametrize("what", DAMAGED)
@follows("PST-400")
def test_damaged_state(tmp_path: Path, what: str) -> None:
    """`DamagedState`: once the file in the message is restored from a copy of its directory, the query goes on."""
    query = begun(tmp_path)
    copied(query.dst, query.checkpoint)
    path: Path = DAMAGED[what](query)
    path.write_bytes(path.read_bytes()[:-2])
    query.put("b", "3")
    with pytest.raises(DamagedState, match="restore") as caught:
        query.batch(final=True)
    assert str(path) in caught.value.message
    root = query.dst if path.is_relative_to(query.dst) else query.checkpoint
    shutil.copy(Path(f"{root}.copy") / path.relative_to(root), path)
    query.batch(final=True)
    assert query.is_whole(), (query.lines(), query.put_in)


@follows("PST-501")
def test_name_of_a_segment_that_was_taken(tmp_path: Path) -> None:
    """`AlreadyThere`: a foreign file in place of one of ours is found and removed; then the same call works."""
    storage = LocalStorage()
    (tmp_path / "name").write_text("foreign")
    with pytest.raises(AlreadyThere, match="nothing was replaced"):
        storage.put_if_absent(str(tmp_path / "name"), b"ours")
    assert (tmp_path / "name").read_text() == "foreign"
    (tmp_path / "name").unlink()
    storage.put_if_absent(str(tmp_path / "name"), b"ours")
    assert (tmp_path / "name").read_bytes() == b"ours"


@follows("PST-502")
def test_directory_that_is_not_there(tmp_path: Path) -> None:
    """`NotThere`: with a directory that exists, the call works."""
    status, said = penstock("wal", "info", tmp_path / "lgo")
    assert status == 1
    assert f"[{NotThere.code}]" in said
    with wal.Writer(str(tmp_path / "log")) as writer:
        writer.append(b"x")
    assert penstock("wal", "info", tmp_path / "log")[0] == 0


@follows("PST-502")
def test_staging_that_was_removed_without_rows(tmp_path: Path) -> None:
    """`NotThere`: the message was that of the operating system, and each start of the same driver failed again."""
    query = begun(tmp_path, rollBatches="1")
    shutil.rmtree(query.dst / "_penstock" / "s" / "staging")
    query.put("b", "3")
    with pytest.raises(
        NotThere, match=r"/staging' was removed while the query ran; .* and is there again: start again"
    ) as caught:
        query.batch()
    assert caught.value.message.count("No such file") == 0
    query.batch(final=True)
    assert query.is_whole()


@pytest.mark.parametrize("has_copy", [True, False])
@follows("PST-400")
def test_staging_that_was_removed_with_rows(tmp_path: Path, has_copy: bool) -> None:
    """`DamagedState`: the query goes on with a copy of the directory; without one, a new query reads everything again."""
    query = begun(tmp_path)
    staging = query.dst / "_penstock" / "s" / "staging"
    put_back = copied(staging)
    shutil.rmtree(staging)
    query.put("b", "3")
    for _ in range(2):
        with pytest.raises(
            DamagedState, match=r"/staging' is gone, the ledger has 2 rows in it .* put it back from a copy"
        ):
            query.batch(final=True)
    if has_copy:
        put_back()
    else:
        for place in (query.dst, query.checkpoint):
            shutil.rmtree(place)
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-503")
def test_full_disk(tmp_path: Path) -> None:
    """`NoSpace`: once there is space again the query runs again, and has every row once."""
    query = begun(tmp_path)
    query.put("b", "3")
    for point in ("storage.write", "storage.put.sync"):
        failpoints.arm(f"{point}=nospace")
        with pytest.raises(NoSpace, match="free some space first"):
            query.batch()
        failpoints.arm("")
    query.batch(final=True)
    assert query.is_whole()


@follows("PST-104")
def test_position_inside_a_record(tmp_path: Path) -> None:
    """`PositionError`: a position from the log itself, or from `wal info`, works."""
    with wal.Writer(str(tmp_path)) as writer:
        first = writer.append(b"first")
        writer.append(b"second")
    with pytest.raises(PositionError):
        next(iter(wal.Reader(str(tmp_path), start=wal.Position(first.segment, first.offset + 1))))
    assert next(iter(wal.Reader(str(tmp_path), start=first))) == b"first"
    start = re.search(r"from (\d+):(\d+) to", penstock("wal", "info", tmp_path)[1])
    assert start is not None
    assert list(wal.Reader(str(tmp_path), start=wal.Position(int(start[1]), int(start[2])))) == [b"first", b"second"]


@follows("PST-504")
def test_second_writer(tmp_path: Path) -> None:
    """`Locked`: once the other process has ended, the log can be written, and has the records of both."""
    code = (
        "import sys\nfrom penstock import wal\nw = wal.Writer(sys.argv[1])\nw.append(b'theirs')\nw.flush()\nprint()\n"
    )
    code += "sys.stdout.flush()\ninput()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(Locked):
        wal.Writer(str(tmp_path))
    other.communicate("")
    with wal.Writer(str(tmp_path)) as writer:
        writer.append(b"ours")
    assert list(wal.Reader(str(tmp_path))) == [b"theirs", b"ours"]


@follows("PST-505")
def test_storage_without_the_operation(tmp_path: Path) -> None:
    """`NotSupported`: on a storage with this operation, the same call works."""
    with pytest.raises(NotSupported):
        ObjectStore().storage().extend("/log", 0)
    LocalStorage().extend(str(tmp_path / "log"), 0).close()
