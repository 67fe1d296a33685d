"""`penstock demo`: it shows what it claims, and its reader would notice what must never be seen."""

from __future__ import annotations

import sysconfig
from typing import TYPE_CHECKING

import pytest

from penstock import clock, wal
from penstock.cli.demo import source, story
from penstock.cli.demo.reader import Onlooker, source_hashes
from penstock.cli.demo.run import Run
from penstock.cli.demo.source import gather
from penstock.errors import PenstockError
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Said

LINES = "one\ntwo\ntwo\n"


@pytest.fixture
def reader(tmp_path: Path) -> Onlooker:
    """Return a reader of an output whose source has `LINES`; it is not started, because the tests call its scans."""
    (tmp_path / "in" / "below").mkdir(parents=True)
    (tmp_path / "in" / "below" / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rtwo")
    (tmp_path / "out").mkdir()
    storage = LocalStorage()
    return Onlooker(storage, str(tmp_path / "out"), source_hashes(storage, str(tmp_path / "in")))


def test_a_reader_that_sees_all_is_content(reader: Onlooker, tmp_path: Path) -> None:
    """All lines, each as often as in the source, in files that appear one by one, are the expected state."""
    reader._look()
    (tmp_path / "out" / "a.txt").write_text("two\none\n")
    reader._look()
    assert not reader.complete
    (tmp_path / "out" / "b.txt").write_text("two\n")
    reader.stop()
    assert (reader.complete, reader.wrong, reader.files, reader.records) == (True, [], 2, 3)
    assert (reader.partial, reader.duplicate) == (0, 0)


WRONG = {
    "half a line": ("one\ntw", 1, 0),
    "a line too often": ("one\none\ntwo\ntwo\n", 0, 1),
    "a foreign line": ("three\n", 1, 0),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_reader_sees_what_is_wrong(reader: Onlooker, tmp_path: Path, case: str) -> None:
    """Half a line, a line too many and a foreign line are counted when the file is first seen."""
    text, partial, duplicate = WRONG[case]
    (tmp_path / "out" / "a.txt").write_text(text)
    reader.stop()
    assert (reader.partial, reader.duplicate) == (partial, duplicate)
    assert len(reader.wrong) == 1


def test_a_reader_sees_a_doubled_file(reader: Onlooker, tmp_path: Path) -> None:
    """The same lines in a second file have been visible before, so they count as duplicates."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / "out" / name).write_text(LINES)
    reader.stop()
    assert reader.duplicate == 3
    assert not reader.complete


def test_a_reader_sees_changes(reader: Onlooker, tmp_path: Path) -> None:
    """A file that grows after it became visible, and one that disappears, are faults."""
    path = tmp_path / "out" / "a.txt"
    path.write_text("one\n")
    reader._look()
    path.write_text("one\ntwo\n")
    reader._look()
    path.unlink()
    reader.stop()
    assert ["changed after it was visible" in reader.wrong[0], "is gone" in reader.wrong[1]] == [True, True]


def test_what_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python files are copied with their directories. Hidden, non-UTF-8 and surplus files are counted and left out, surplus ones unread."""
    library = tmp_path / "lib"
    for folder in ("package", "above"):
        (library / folder).mkdir(parents=True)
    (library / "package" / "loop").symlink_to(library)
    for name, data in {
        "a.py": b"one\n",
        "package/b.py": b"two\n",
        "package/__init__.py": b"",
        "latin.py": b"caf\xe9\n",
        "data.txt": b"no\n",
        "above/z.py": b"more\n",
        "above/latin.py": b"more caf\xe9\n",
    }.items():
        (library / name).write_bytes(data)
    places = {"stdlib": str(library), "purelib": str(library), "platlib": str(library)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: places)
    monkeypatch.setattr(source, "_FILES_MAX", 2)
    found = gather(LocalStorage(), str(tmp_path / "out"))
    assert (found.files, found.bytes) == (2, 8)
    assert found.left_out == {source.HIDDEN: 1, source.NOT_UTF8: 1, source.ENOUGH: 2}
    assert (tmp_path / "out" / "stdlib" / "package" / "b.py").read_text() == "two\n"


def test_a_directory_in_use_is_refused(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """The demo works only in an empty directory, so no file of a user is in its way or removed with it."""
    pytest.importorskip("pyspark")
    (tmp_path / "mine.txt").write_text("mine")
    said = penstock("demo", "--dir", tmp_path)
    assert said.status == 2
    assert "is not empty" in said.err
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.slow
def test_a_run_that_is_not_killed_fails_the_demo(
    penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a kill does not happen where it should, the demo says so: status 1, the reason, and its files are kept."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(source, "_FILES_MAX", 1)
    monkeypatch.setattr(story, "_INGEST", ["--no-such-flag"])
    said = penstock("demo", "--dir", tmp_path / "here", "--json")
    assert said.status == 1
    assert "the run to be killed while a task was writing ended before (status 2)" in said.facts["error"]["message"]
    assert (tmp_path / "here" / "source").exists()


def test_a_run_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that hangs is killed and reported, so the demo does not wait for ever."""
    monkeypatch.setattr("penstock.cli.demo.run._SILENT_SECONDS_MAX", 0)
    with Run(["files", "/"]) as run, pytest.raises(PenstockError, match="has made no progress for"):
        run.wait(lambda _: None)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("programs")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_the_demo(penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    """Killed twice and resumed, with a reader watching, the output has every line once; this test is smaller and kills once."""
    monkeypatch.setattr(story, "_KILLS", story._KILLS[-kills:])
    monkeypatch.setattr(source, "_BYTES_MAX", 2 << 20)
    monkeypatch.setattr(
        story, "_INGEST", ["--recursive", "--max-bytes", "512k", "--roll-size", "256k", "--master", "local[2]"]
    )
    said = penstock("demo", "--dir", tmp_path / "here", "--json")
    facts = said.facts
    assert (said.status, facts["wrong"], facts["ok"], facts["verified"]) == (0, [], True, True)
    assert [kill["where"] for kill in facts["kills"]] == [where for _, where in story._KILLS]
    batches = [*(kill["batch"] for kill in facts["kills"]), facts["output"]["batch"]]
    assert batches == sorted(set(batches))
    assert facts["reader"]["records"] == facts["output"]["rows"] == facts["source"]["records"] > 10_000
    assert (facts["reader"]["partial"], facts["reader"]["duplicate"]) == (0, 0)
    assert not (tmp_path / "here").exists()


def test_a_run_that_goes_on_is_not_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A slow machine, or a store that gets twenty requests a batch, may take long: the time counts only from the last new report."""
    monkeypatch.setattr("penstock.cli.demo.run._SILENT_SECONDS_MAX", 0.2)
    times: list[float] = []
    wal.Writer(tmp_path / "log").close()
    with Run(["wal", "read", str(tmp_path / "log"), "--follow"]) as run:  # does not end by itself

        def shown(facts: dict[str, int]) -> None:
            run.facts = {"batch": facts.get("batch", 0) + 1}
            times.append(clock.monotonic())

        ended = run.wait(shown, until=lambda: len(times) > 1 and times[-1] > times[0] + 0.6)
    assert ended.facts["batch"] == len(times)
