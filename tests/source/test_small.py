"""Thousands of small files: the fast path reads the same as the general one, or leaves a file to it. Without Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import BadFile, BadRecord, FileChanged
from penstock.formats import Dialect
from penstock.formats.aside import Aside, Policy
from penstock.source.cursor import FileVersion, Split, sort
from penstock.source.cutting import Cutting
from penstock.source.read import Reading
from penstock.source.small import SMALL_BYTES
from penstock.storage import LocalStorage
from tests.source.test_many import calls
from tests.source.test_read import ROWS, TEXT, Input, source, values, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["source"]

FEW, MANY = 20, 120
STEPS = 12  # per file, in Python calls; they were 95
PIECES = st.sampled_from([b"\r", b"\n", b"\xef\xbb\xbf", b"||", b"|", b"x", "ü".encode(), b"\0", b" "])
CONTENTS = st.lists(PIECES, max_size=6).map(b"".join)


def read_both_ways(reading: Reading, splits: list[Split], patch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """Return what the fast and the general path read: rows, and the bytes of lines passed through unchanged."""
    found = []
    for short in (True, False):
        with patch.context() as patched:
            if not short:
                patched.setattr(Cutting, "small", lambda _self, joins: None)
            rows = [row for batch in reading.batches(splits) for row in batch.to_pylist()]
            text = b"".join(reading.text(splits)) if reading.metadata is None else b""
            found.append([rows, text])
    return found[0], found[1]


@given(
    contents=st.lists(CONTENTS, min_size=1, max_size=6),
    sep=st.sampled_from([None, b"\n", b"|", b"||"]),
    metadata=st.sampled_from([None, "meta"]),
)
@example(contents=[b"x\r", b"\ny\n"], sep=None, metadata=None)
@example(contents=[b"x\r", b"\xef\xbb\xbf\ny\n"], sep=None, metadata=None)
@example(contents=[b"x|", b"|y||"], sep=b"||", metadata=None)
@settings(deadline=None)
def test_both_ways_read_alike(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], sep: bytes | None, metadata: str | None
) -> None:
    """Files without a last line break, with a byte order mark, with CR before another file's LF: the same lines at the same offsets."""
    place = Input(tmp_path_factory.mktemp("in"))
    splits = [whole(place.put(f"f{number}", data)) for number, data in enumerate(contents)]
    reading = place.reading(line_sep=sep, metadata=metadata)
    with pytest.MonkeyPatch.context() as patch:
        short, long = read_both_ways(reading, splits, patch)
    assert short == long


ROWS_PIECES = st.sampled_from(
    [b"1,a\n", b'2,"b,\n"\n', b'"', b"\n", b"\r", b",", b"3", b"\xef\xbb\xbf", b"name,id\n", b"id,name\n"]
)
HEADS = st.sampled_from(
    [
        b"id,name\n",
        b"name,id,more\n",
        b"\xef\xbb\xbfid,name\n",
        b'"id",name\n',
        b"id\n",
        b"\nid,name\r\n",
        b"id,name\r\n",
        b"\r\n",
        b"id,name",
    ]
)
TABLES = st.lists(st.tuples(HEADS, st.lists(ROWS_PIECES, max_size=5).map(b"".join)), min_size=1, max_size=5)


def outcome(reading: Reading, splits: list[Split]) -> list[Any]:
    """Return the rows, the rejected records, and the error that ends the reading."""
    aside, found = Aside(), list[Any]()
    try:
        for batch in replace(reading, aside=aside).batches(splits):
            found += batch.to_pylist()
    except (BadFile, BadRecord) as error:
        found = [type(error), error.message]
    bad = [line for lines in aside.handed_on() for line in lines.to_pylist()]
    return [found, sorted(bad, key=str)]


@given(tables=TABLES, header=st.booleans(), sets_aside=st.booleans(), quote=st.sampled_from(['"', ""]))
@example(tables=[(b"id,name\n", b'1,"a"b\n'), (b"id,name\n", b"2,c\n")], header=True, sets_aside=True, quote='"')
@example(tables=[(b"id,name\n", b'1,"a\n'), (b"id,name\n", b'2,"b\n')], header=True, sets_aside=True, quote='"')
@example(tables=[(b"id,name\n", b"1,a\n"), (b"name,id,more\n", b"b,2,\n")], header=True, sets_aside=False, quote='"')
@example(tables=[(b"id,name\n", b"1,a\n"), (b"id\n", b"2\n")], header=True, sets_aside=True, quote='"')
@settings(deadline=None)
def test_both_ways_read_tables_alike(
    tmp_path_factory: pytest.TempPathFactory,
    tables: list[tuple[bytes, bytes]],
    header: bool,
    sets_aside: bool,
    quote: str,
) -> None:
    """Quotes left open at the end of a file, text after a closing quote, different headers: the same rows, or the same error."""
    place = Input(tmp_path_factory.mktemp("in"))
    contents = [head * header + rows for head, rows in tables]
    splits = [whole(place.put(f"f{number}", data)) for number, data in enumerate(contents)]
    reading = place.reading("csv", ROWS, csv=Dialect(header=header, quote=quote))
    if sets_aside:
        reading = replace(reading, policy=Policy(records=True, text=True, files=True, changes=True))
    short = outcome(reading, splits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cutting, "small", lambda _self, joins: None)
        assert short == outcome(reading, splits)


def test_what_is_not_simple_is_left_to_the_long_way(source: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files and ranges keep their order among small files."""
    large = source.put("b", b"large\n" * (SMALL_BYTES // 6 + 1))
    splits = [whole(source.put("a", b"a\n")), whole(large), whole(source.put("c", b"c"))]
    cut = source.put("d", b"1\n2\n3\n")
    splits += [Split(cut, 0, 2), Split(cut, 2, 6), whole(source.put("e", b"")), whole(source.put("f", b"f\n"))]
    short, long = read_both_ways(source.reading(), splits, monkeypatch)
    assert short == long
    assert short[1].replace(b"large\n", b"") == b"a\nc\n1\n2\n3\nf\n"


@pytest.mark.parametrize("change", ["longer", "touched", "another", "gone"])
def test_a_file_that_is_not_the_planned_one_is_refused(source: Input, change: str) -> None:
    """If the fast path finds a file changed, the general path raises the error with its path; a copy with the same time is read."""
    splits = [whole(source.put(name, b"%s\n" % name.encode())) for name in "abc"]
    path, version = source.root / "b", splits[1].file
    if change == "longer":
        path.write_bytes(b"bb\n")
    elif change == "touched":
        os.utime(path, ns=(0, version.modified_ns + 1))
    elif change == "gone":
        path.unlink()
    else:
        (source.root / "new").write_bytes(b"b\n")
        os.utime(source.root / "new", ns=(0, version.modified_ns))
        (source.root / "new").replace(path)
        assert values(source.reading(), splits) == ["a", "b", "c"]
        return
    with pytest.raises(FileChanged, match=str(path)):
        values(source.reading(), splits)


class Meddling:
    """An `os` that lets something happen to a file after its bytes were read."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle = meddle

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read, and then let it happen."""
        data = os.pread(fd, length, offset)
        self._meddle()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def test_a_file_that_changes_while_it_is_read_is_not_given(tmp_path: Path) -> None:
    """The check after the last byte is part of the read: a mixture of two versions is neither of them."""
    path = tmp_path / "a"
    path.write_bytes(b"old\n")
    info = path.stat()
    known = info.st_size, info.st_mtime_ns, str(info.st_ino)
    assert LocalStorage().whole(str(path), *known) == b"old\n"
    meddling = LocalStorage(Meddling(lambda: os.utime(path, ns=(0, 1))))
    assert meddling.whole(str(path), *known) is None
    put_back = LocalStorage(Meddling(lambda: os.utime(path, ns=(0, info.st_mtime_ns))))
    assert put_back.whole(str(path), *known) is None  # it was another file when its bytes were read


def test_a_bad_record_is_told_by_its_own_file(source: Input) -> None:
    """A bad record has the right file, although several files were joined before parsing."""
    splits = [whole(source.put(f"f{number}.json", b'{"id": 1}')) for number in range(5)]
    splits.insert(3, whole(source.put("bad.json", b'{"id": 1}\n{"id": }\n')))
    with pytest.raises(BadRecord, match=r"bad\.json', byte 10"):
        values(source.reading("json", ROWS), splits, "id")


def test_a_small_file_takes_few_steps(source: Input) -> None:
    """100,000 files took six seconds of needless steps."""
    splits = [whole(source.put(f"f{number:04}", b"a line\n")) for number in range(MANY)]
    reading = source.reading()
    steps = [calls(lambda some=splits[:count]: list(reading.text(some))) for count in (FEW, MANY)]  # type: ignore[misc]  # - it is called at once
    assert steps[1] - steps[0] <= STEPS * (MANY - FEW)


NAMES = st.text(st.sampled_from("a0\x7fäÿ\u0100\uffff\U0001f600\udc80\udcff"), min_size=1, max_size=3)


@given(names=st.lists(NAMES, unique=True, max_size=6), times=st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_files_are_sorted_by_the_bytes_of_their_names(names: list[str], times: list[int]) -> None:
    """Files are sorted by the bytes of their names, whether or not these are text."""
    files = [FileVersion(name, 1, time_ns, "") for name, time_ns in zip(names, times, strict=False)]
    expected = sorted(files, key=lambda file: file.order)
    sort(files)
    assert files == expected
    sort(files, reverse=True)
    assert files == expected[::-1]


def test_what_has_no_short_way(source: Input) -> None:
    """There is no fast path if line breaks and doubled quotes do not separate records, or if the bytes are decoded first."""
    assert source.reading()._cutting.small(joins=True) is not None
    assert source.reading("csv", ROWS)._cutting.small(joins=True) is not None
    for fmt, options in (
        ("csv", {"csv": Dialect(comment="#")}),
        ("csv", {"csv": Dialect(escape="\\")}),
        ("json", {"multi_line": True}),
        ("text", {"errors": "replace"}),
        ("text", {"encoding": "UTF-16LE"}),
    ):
        assert source.reading(fmt, TEXT, **options)._cutting.small(joins=True) is None, (fmt, options)
