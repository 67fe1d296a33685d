"""Several paths and globs: each matching file is read once, in one order, under one cursor; no other file is. Without Spark."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import xxhash

from penstock.clock import SECOND_NS
from penstock.errors import OptionError
from penstock.ingestion.places import check_apart
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.globs import NameGlob, expanded
from penstock.source.plan import Planner
from penstock.source.scan import Scan
from penstock.source.where import where, where_of
from penstock.storage import LocalStorage

TEXT = '{"type":"struct","fields":[{"name":"value","type":"string","nullable":true,"metadata":{}}]}'


class Tree:
    """A directory of text files; each holds its own path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, *paths: str, seconds: float = 1000) -> None:
        """Write files that have settled."""
        for path in paths:
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(os.fsencode(f"{path}\n"))
            os.utime(file, (seconds, seconds))

    def options(self, *paths: str, **options: str) -> dict[str, str]:
        """Return the options of a source with paths below this directory."""
        full = [str(self.root / path) for path in paths]
        return {"path": full[0], **({"paths": json.dumps(full[1:])} if full[1:] else {}), **options}

    def planner(self, *paths: str, **options: str) -> Planner:
        """Return the planner of such a source."""
        checked = parse(SOURCE, self.options(*paths, **options), what="source")
        planner = configured.planner(checked, configured.reading(checked, TEXT))
        assert isinstance(planner, Planner)
        return planner

    def read(self, *paths: str, **options: str) -> list[str]:
        """Return what one batch of such a source reads, sorted."""
        checked = parse(SOURCE, self.options(*paths, **options), what="source")
        how = configured.reading(checked, TEXT)
        planner = configured.planner(checked, how)
        splits = planner.splits(planner.latest(planner.initial()))
        rows = configured.rows(checked, how, tuple(splits))
        return sorted(value for batch in rows for value in batch.column("value").to_pylist())


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


PATHS = (
    "a/1.txt",
    "a/2.txt",
    "b/1.txt",
    "ab/1.txt",
    "abc/d/1.txt",
    "a/sub/3.txt",
    "_h/1.txt",
    "a/_h.txt",
    "top.txt",
    "c/d/e/1.txt",
)


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["a"], ["a/1.txt", "a/2.txt"]),
        (["a*"], ["a/1.txt", "a/2.txt", "ab/1.txt"]),
        (["?"], ["a/1.txt", "a/2.txt", "b/1.txt"]),
        (["[ab]"], ["a/1.txt", "a/2.txt", "b/1.txt"]),
        (["[^a]"], ["b/1.txt"]),
        (["{a,b}/1.txt"], ["a/1.txt", "b/1.txt"]),
        (["{a/{1,2},b/1}.txt"], ["a/1.txt", "a/2.txt", "b/1.txt"]),
        (["*/1.txt"], ["a/1.txt", "ab/1.txt", "b/1.txt"]),
        (["*.txt"], ["top.txt"]),
        (["c/*/e"], ["c/d/e/1.txt"]),
        (["*"], ["a/1.txt", "a/2.txt", "ab/1.txt", "b/1.txt", "top.txt"]),
        (["_h"], ["_h/1.txt"]),
        (["_*"], []),
        (["a", "b"], ["a/1.txt", "a/2.txt", "b/1.txt"]),
        (["a", "a"], ["a/1.txt", "a/2.txt"]),
        (["a", "a/1.txt", "a*", "a/*"], ["a/1.txt", "a/2.txt", "a/sub/3.txt", "ab/1.txt"]),
        (["a/1.txt", "b/1.txt"], ["a/1.txt", "b/1.txt"]),
        (["", "a/sub"], ["a/sub/3.txt", "top.txt"]),
        (["a//./1.txt", "b/*/"], ["a/1.txt", "b/1.txt"]),
        (["nothing*"], []),
    ],
    ids=str,
)
def test_paths_lead_to_these_files(tree: Tree, paths: list[str], found: list[str]) -> None:
    """APX-32, HZ-18: each file that any path leads to is read once, however many paths lead to it."""
    tree.put(*PATHS)
    assert tree.read(*paths) == found


def test_recursion_begins_where_a_path_ends(tree: Tree) -> None:
    """With `recursiveFileLookup` everything below a path is read, but not its neighbours."""
    tree.put(*PATHS)
    assert tree.read("a", "c/*", recursiveFileLookup="true") == ["a/1.txt", "a/2.txt", "a/sub/3.txt", "c/d/e/1.txt"]


def test_signs_are_names_after_a_backslash(tree: Tree) -> None:
    """Escaped wildcards are plain characters; if a file with the very name exists and the path has no escape, the error says how."""
    tree.put("{x}/1.txt", "[y]/1.txt", "s*r/1.txt", "star/1.txt")
    assert tree.read("\\{x\\}", "\\[y\\]", "s\\*r") == ["[y]/1.txt", "s*r/1.txt", "{x}/1.txt"]
    with pytest.raises(OptionError, match="is there by that very name; put a backslash") as caught:
        tree.read("s*r")
    advised = caught.value.message.rpartition("wildcard: ")[2]
    assert tree.read(os.path.relpath(advised, tree.root)) == ["s*r/1.txt"]


def test_signs_in_urls_are_names_where_they_are_quoted(tree: Tree) -> None:
    """In a `file:` URL `%2A` is a star and no wildcard, also after one, and `%FF` is a byte that is no text."""
    odd = os.fsdecode(b"a4/\xff.txt")
    tree.put("a1/s*r.txt", "a2/[y],.txt", "a3/star.txt", odd)
    for rest, found in (("s%2Ar.txt", "a1/s*r.txt"), ("{%5By%5d%2c,none}*", "a2/[y],.txt"), ("%FF*", odd)):
        planner = tree.planner("", path=f"{tree.root.as_uri()}/a*/{rest}")
        assert [split.file.path for split in planner.splits(planner.latest(planner.initial()))] == [found]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "/x/["}, "is not a glob"),
        ({"path": "/x/{a"}, "is not a glob: a { without its }"),
        ({"path": "/x/*/../y"}, r"'..' after a wildcard"),
        ({"path": "/x/{a/b,c/d}{a/b,c/d}" + "{a/,b/}" * 10}, "more than 1000 paths"),
        ({"path": "/x", "paths": "/y"}, "expected a JSON list"),
        ({"path": "/x", "paths": "[]"}, "expected a JSON list"),
        ({"path": "/x", "paths": '[""]'}, "expected a JSON list"),
        ({"path": "/x", "paths": '["hdfs://h:1/y"]'}, "lie on several file systems"),
        ({"path": "/x", "basePath": "/y"}, "do not all lie in basePath='/y'"),
        ({"path": "/x", "modifiedAfter": "yesterday"}, "expected a time"),
        ({"path": "/x", "modifiedAfter": "2026-02-01", "modifiedBefore": "2026-01-01"}, "no file would be read"),
        (
            {"path": "/x", "modifiedAfter": "9999-12-31"},
            "'9999-12-31' is a time that no file has: no file would be read",
        ),
        ({"path": "/x", "modifiedBefore": "0001-01-01"}, "'0001-01-01' is a time that no file has"),
    ],
)
def test_bad_places_are_refused(options: dict[str, str], says: str) -> None:
    """An invalid glob, list or time is an error before anything is read."""
    with pytest.raises(OptionError, match=says):
        configured.reading(parse(SOURCE, options, what="source"), TEXT)


def test_paths_alone_are_enough(tree: Tree) -> None:
    """`paths` without `path` works, as in Spark's readers; a missing path is an error."""
    tree.put(*PATHS)
    options = parse(SOURCE, {"paths": json.dumps([str(tree.root / "a"), str(tree.root / "b")])}, what="source")
    assert where(options).root == str(tree.root)
    with pytest.raises(OptionError, match="needs a path"):
        parse(SOURCE, {}, what="source")
    with pytest.raises(OptionError, match=r"nope' does not exist"):
        tree.planner("a", "nope")


def test_what_is_no_file_is_refused_where_a_path_names_it(tree: Tree) -> None:
    """A pipe, as of `<(...)`, was read as an empty file, and the run ended well; among the files of a directory it is left out as ever."""
    tree.put("a.txt")
    os.mkfifo(tree.root / "pipe")
    for paths in (("pipe",), ("a.txt", "pipe")):
        with pytest.raises(OptionError, match="pipe' is a pipe, a socket or a device.*write it to a file first"):
            tree.planner(*paths)
    assert tree.read("") == ["a.txt"]


@pytest.mark.parametrize(
    ("paths", "root"),
    [
        (["/d/a*"], "/d"),
        (["/d/a", "/d/ab"], "/d"),
        (["/d/a", "/d/a/b*"], "/d/a"),
        (["/a", "/b"], "/"),
        (["file:///d/a%20*"], "/d"),
        (["hdfs://h:1/d/*"], "hdfs://h:1/d"),
        (["hdfs://h:1/a", "hdfs://h:1/b"], "hdfs://h:1"),
        (["/d/\\[x\\]"], "/d/[x]"),
        (["/d/{a/b,c}/e"], "/d"),
    ],
    ids=str,
)
def test_the_directory_of_several_paths(paths: list[str], root: str) -> None:
    """The directory is the longest path without wildcards that contains all of them."""
    assert where_of(paths).root == root


def test_one_order_and_one_cursor_over_all_paths(tree: Tree) -> None:
    """Files of two paths come by their times, not path by path, across batches and a restart; their offset also has `base`."""
    for number in range(6):
        tree.put(f"{'ab'[number % 2]}/{number}.txt", seconds=1000 + number)
    planner = tree.planner("a", "b", maxFilesPerTrigger="2")
    offset, order = planner.initial(), []
    for _ in range(3):
        offset = tree.planner("a", "b", maxFilesPerTrigger="2").latest(offset)
        order += [split.file.path for split in planner.splits(offset)]
    assert order == ["a/0.txt", "b/1.txt", "a/2.txt", "b/3.txt", "a/4.txt", "b/5.txt"]
    assert set(offset) - {"base"} == set(tree.planner("a").latest(tree.planner("a").initial()))


def test_a_glob_that_leads_to_nothing_is_told(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    """A glob may match later, so it is no error; a message says once that it matches nothing now."""
    tree.put("a/1.txt")
    with caplog.at_level(logging.WARNING, "penstock.source"):
        planner = tree.planner("b*")
        offset = planner.latest(planner.initial())
        assert planner.latest(offset) == offset
    assert caplog.text.count("nothing is read of") == 1


def test_a_directory_that_comes_to_match_is_read(tree: Tree) -> None:
    """A directory created while the query runs is found by the next scan; one that no path leads to is not listed."""
    tree.put("in-1/a.txt", "other/x.txt")
    planner = tree.planner("in-*")
    offset = planner.latest(planner.initial())
    tree.put("in-2/b.txt", seconds=2000)
    later = planner.latest(offset)
    assert [split.file.path for split in planner.splits(later)] == ["in-2/b.txt"]


def test_other_paths_under_a_checkpoint_are_told(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    """The offset knows its paths; files of a new path that lie behind the cursor are reported, and none is lost silently."""
    tree.put("a/new.txt", seconds=9_000)
    tree.put("b/old.txt", seconds=1_000)
    offset = tree.planner("a*").latest(tree.planner("a*").initial())
    with caplog.at_level(logging.WARNING, "penstock.source"):
        again = tree.planner("{a,b}*")
        assert again.splits(again.latest(offset)) == []
    assert "written for another path" in caplog.text
    assert "b/old.txt" in caplog.text


class Counting(LocalStorage):
    """Counts listings."""

    listed: list[str] = []  # noqa: RUF012 - of one test

    def names(self, path: str) -> dict[str, Any]:
        self.listed.append(path)
        return super().names(path)


def test_what_no_path_leads_to_is_not_listed(tree: Tree) -> None:
    """A directory above the given paths is not listed, only the paths are: this user may have no right to list it."""
    tree.put(*PATHS)
    options = parse(SOURCE, tree.options("a", "c/d/*"), what="source")
    Counting.listed.clear()
    found = Scan.of(Counting(), where(options).root, options).refresh().came
    assert sorted(arrival.file.path for arrival in found) == ["a/1.txt", "a/2.txt", "c/d/e/1.txt"]
    assert sorted(os.path.relpath(path, tree.root) for path in Counting.listed) == ["a", "c/d", "c/d/e"]


def test_paths_that_have_nothing_in_common_but_the_root(tmp_path: Path) -> None:
    """Two directories with only `/` in common are one source; full paths have a single slash."""
    others = ["/usr/share/nothing-*", str(tmp_path / "a")]
    Tree(tmp_path).put("a/1.txt")
    options = parse(SOURCE, {"paths": json.dumps(others)}, what="source")
    how = configured.reading(options, TEXT)
    (split,) = (planner := configured.planner(options, how)).splits(planner.latest(planner.initial()))
    assert (how.root, how.files.full_path(split.file)) == ("/", str(tmp_path / "a" / "1.txt"))


def test_an_output_beside_the_paths_is_no_input(tree: Tree) -> None:
    """DST may lie beside SRC's paths if none of them leads to it; otherwise it would be read as input."""
    tree.put("in-1/a.txt")
    check_apart(str(tree.root / "in-*"), str(tree.root / "out"))
    with pytest.raises(OptionError, match="would be read as input"):
        check_apart(str(tree.root / "*"), str(tree.root / "out"))
    with pytest.raises(OptionError, match="would be read as input"):
        check_apart(str(tree.root / "in-*"), str(tree.root / "in-1" / "out"))


def test_directories_below_the_common_one_are_columns(tree: Tree) -> None:
    """For `dt=2026-*` or two such paths the directories are columns, as with `basePath`; a single path needs `basePath` for that."""
    tree.put("dt=2026-01-01/a.txt", "dt=2026-01-02/a.txt", "dt=2025-01-01/a.txt")
    fields = [("value", "string"), ("dt", "string")]
    schema = json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]}
    )

    def days(*paths: str, **more: str) -> list[str]:
        options = parse(SOURCE, tree.options(*paths, **more), what="source")
        how = configured.reading(options, schema)
        planner = configured.planner(options, how)
        splits = tuple(planner.splits(planner.latest(planner.initial())))
        return sorted(day for batch in configured.rows(options, how, splits) for day in batch.column("dt").to_pylist())

    assert days("dt=2026-*") == ["2026-01-01", "2026-01-02"]
    assert days("dt=2026-01-01", "dt=2025-01-01") == ["2025-01-01", "2026-01-01"]
    assert days("dt=2026-01-01", basePath=str(tree.root)) == ["2026-01-01"]


def test_files_of_a_time(tree: Tree) -> None:
    """Spark's `modifiedAfter` and `modifiedBefore`: exclusive, in the zone of the option, else of the session, else UTC."""
    for number in range(4):
        tree.put(f"{number}.txt", seconds=1_769_860_800 + number)  # 2026-01-31T12:00:00Z
    assert tree.read("", modifiedAfter="2026-01-31T12:00:00") == ["1.txt", "2.txt", "3.txt"]
    assert tree.read("", modifiedBefore="2026-01-31T12:00:02Z") == ["0.txt", "1.txt"]
    assert tree.read(
        "", modifiedAfter="2026-01-31T13:00:00", modifiedBefore="2026-01-31T13:00:02", timeZone="Europe/Berlin"
    ) == ["1.txt"]
    assert tree.read("", modifiedAfter="2026-01-31T13:00:02", sessionTimeZone="Europe/Berlin") == ["3.txt"]
    assert tree.read("", modifiedBefore="2026-01-31") == []


def test_files_of_a_time_to_the_nanosecond(tree: Tree) -> None:
    """A time with nine digits, as `stat` prints it, is exactly a file's time: the file is neither after nor before it."""
    for number in range(3):
        tree.put(f"{number}.txt")
        os.utime(tree.root / f"{number}.txt", ns=(0, 1_769_860_800_123_456_788 + number))
    assert tree.read("", modifiedAfter="2026-01-31T12:00:00.123456789Z") == ["2.txt"]
    assert tree.read("", modifiedBefore="2026-01-31 13:00:00.123456789", timeZone="Europe/Berlin") == ["0.txt"]


def test_files_far_apart_are_all_read_the_oldest_first(tree: Tree) -> None:
    """SPK-4: no file that exists at the start is too old; the order is by time, and cannot be reversed."""
    tree.put("new.txt", seconds=1_000_000)
    tree.put("old.txt", seconds=1_000)
    planner = tree.planner("", lateness="1m")
    offset = planner.latest(planner.initial())
    assert [split.file.path for split in planner.splits(offset)] == ["old.txt", "new.txt"]
    for name in ("latestFirst", "maxFileAge", "maxRecordsPerTrigger"):
        with pytest.raises(
            OptionError, match=f"unknown option '{name}' for the penstock source: (files are|how|lateness says)"
        ):
            tree.planner("", **{name: "1"})


def test_a_file_that_becomes_one_of_the_time_is_read(tree: Tree) -> None:
    """A file older than `modifiedAfter` that is written again is then read; one that no longer qualifies is not waited for."""
    tree.put("a.txt", seconds=1000)
    tree.put("b.txt", seconds=5000)
    planner = tree.planner("", modifiedAfter="1970-01-01T01:00:00Z")
    offset = planner.latest(planner.initial())
    assert [split.file.path for split in planner.splits(offset)] == ["b.txt"]
    os.utime(tree.root / "a.txt", (6000, 6000))
    assert [split.file.path for split in planner.splits(planner.latest(offset))] == ["a.txt"]


def test_an_offset_of_one_path_says_what_it_said(tree: Tree) -> None:
    """The hashes in an offset of a plain path are those of earlier versions, so their checkpoints continue without a warning."""
    tree.put("a.txt")
    planner = tree.planner("")
    offset = planner.latest(planner.initial())
    assert offset["root"] == xxhash.xxh3_64_hexdigest(os.fsencode(tree.root))
    identity = LocalStorage().stat(str(tree.root)).identity
    text = json.dumps([identity, None, None, False, False, "auto"])
    assert offset["sure"][1] == xxhash.xxh3_64_hexdigest(text.encode())
    assert offset["listed"] > 1000 * SECOND_NS


GLOBS = [
    ("a*", "a/b", True),
    ("[]a]", "]", True),
    ("[!a]", "b", True),
    ("a.b", "axb", False),
    ("\\*", "*", True),
    ("{a,b{c,d}}", "bd", True),
    ("{a\\,b}", "a,b", True),
    ("x,y", "x,y", True),
    ("a{}", "a", True),
    ("[a^]", "^", True),
]


@pytest.mark.parametrize(("glob", "name", "matches"), GLOBS)
def test_globs_of_names(glob: str, name: str, matches: bool) -> None:
    """Sets, nested alternatives, and characters escaped by a backslash."""
    assert NameGlob(glob).matches(name) is matches


def test_braces_around_a_slash_are_several_paths() -> None:
    """Only such braces are expanded; braces within one name stay, however deep."""
    assert expanded("/x/{a/{1,2},b}/{c,d}") == ["/x/a/{1,2}/{c,d}", "/x/b/{c,d}"]
    assert expanded("\\{a/b,c\\}") == ["\\{a/b,c\\}"]
