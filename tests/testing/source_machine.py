"""A source, and everything that may happen to its files: a state machine that knows what must become of each record.

Files are written, rewritten, renamed, linked, deleted, moved away and back, restored from copies, `chmod`ed; directories
are moved away and back, and their times are set back; drivers die at any moment and start again, with other limits, as
AvailableNow runs, or with `tooLate=fail`; listings fail. Records are numbers that are written once. The rules:

- no record is read twice under one name;
- a planned file is there;
- at the end each record of each file that is there was read, or the file was reported;
- a file that has stayed in place since it was read is never reported late, and a file is reported late only if it is;
- the source may say that it cannot tell which files went only if hundreds came or went, or `lateness` or the pattern changed.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import FileChanged, FileTooLate, StorageError
from penstock.options import SOURCE, parse
from penstock.query.offset import summed
from penstock.source import notices
from penstock.source.notices import Notices
from penstock.source.plan import Planner
from penstock.testing import FakeClock
from tests.testing.tree import Node, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.source.cursor import Cursor, FileVersion, Split

IN = "/in"
WIDTH = 4  # bytes of a record
LATENESS = 100
NAMES = [f"{folder}{name}" for folder in ("", "d/", "e/", "d/deep/") for name in ("a", "b", "c", "m", "y", "z")]
FOLDERS = ["d", "e", "d/deep"]
AGES = [0, 0.5, 2, 30, 60, 99, 120, 1000, -50]  # seconds before now
BULK = 120

Version = tuple[str, int, int]


class WatchedNotices(Notices):
    """Notices that also report to the machine."""

    def __init__(self, planner: Watched) -> None:
        super().__init__(planner._root, planner._options)
        self._planner = planner

    def not_read(self, files: Sequence[FileVersion], why: str) -> None:
        self._tell(files, why)
        super().not_read(files, why)

    def undated(self, files: Sequence[FileVersion]) -> None:
        self._tell(files, "unknown")
        super().undated(files)

    def _tell(self, files: Sequence[FileVersion], why: str) -> None:
        planner = self._planner
        for file in files:
            planner.machine.reported(file, why, planner._arrivals._horizon_ns(planner._cursor))


class Watched(Planner):
    """A planner that also reports to the machine."""

    machine: SourceMachine

    def _reset(self, cursor: Cursor) -> None:
        super()._reset(cursor)
        self._arrivals._notices = WatchedNotices(self)


class SourceMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._time = FakeClock(1_000_000)
        self._stack.enter_context(clock.use(self._time))
        self._records = count()
        self._serial = count()
        self._read: Counter[tuple[str, int]] = Counter()
        self._stays: set[Version] = set()  # read completely, and there ever since
        self._done: dict[Version, int] = {}  # how many bytes of each version were read
        self._told: set[Version] = set()
        self._away: dict[str, Node] = {}
        self._exempt: set[tuple[str, int]] = set()  # read again because the user asked for it
        self._cut: bytes = b""  # the contents of the file that is being read in parts
        self._planner: Planner | None = None
        self._blurred = False
        self._stale = False
        self._options: dict[str, str] = {}
        self._bounded = False
        self._lateness = LATENESS
        self.tree = Tree(plain=False)

    @initialize(plain=st.booleans(), bulk=st.booleans(), latest=st.integers(0, 9), count_=st.integers(0, 8))
    def start(self, plain: bool, bulk: bool, latest: int, count_: int) -> None:
        """Begin with some files."""
        self.tree = Tree(plain=plain)
        self._plain, self._bulk = plain, bulk
        self.tree.write(f"{IN}/first", b"", self._ns(-500))
        for name in NAMES[:count_]:
            self._write(name, 200)
        self._time.sleep(10)
        self._starting = "latest" if latest == 0 else "earliest"
        planner = self._started()
        self.at = json.loads(json.dumps(planner.initial()))
        if self._starting == "latest":
            for path, node in self.tree.files().items():
                self._told.add(self._version(path, node))  # it was there before
                self._stays.add(self._version(path, node))

    def teardown(self) -> None:
        """Let everything settle, and check that nothing was lost."""
        try:
            if hasattr(self, "at"):
                self._finish()
        finally:
            self._stack.close()

    # -- files -----------------------------------------------------------------------------------------------------

    def _ns(self, seconds: float) -> int:
        """Return a time that no other file has: files with the same path, size and time count as the same file."""
        return round((self._time.seconds + seconds) * SECOND_NS) + next(self._serial)

    @staticmethod
    def _path(path: str) -> str:
        return path.removeprefix(f"{IN}/").removeprefix("in/")

    def _version(self, path: str, node: Node) -> Version:
        return self._path(path), len(node.data), node.modified_ns

    def _there(self) -> dict[str, Node]:
        return {self._path(path): node for path, node in self.tree.files().items()}

    def _is_cut(self, path: str) -> bool:
        return bool("cut" in self.at and self.at["cut"][0] == path)

    def _holds_cut(self, folder: str) -> bool:
        return bool("cut" in self.at and self.at["cut"][0].startswith(f"{folder}/"))

    def _leave(self, path: str, node: Node) -> None:
        self._stays.discard(self._version(path, node))

    def _write(self, path: str, age: float, records: int = 2, *, in_place: bool = False) -> None:
        before = self.tree.find(f"{IN}/{path}")
        if before is not None:
            self._leave(path, before)
        data = b"".join(next(self._records).to_bytes(WIDTH, "big") for _ in range(records))
        self.tree.write(f"{IN}/{path}", data, self._ns(-age), in_place=in_place)

    def _step(self) -> None:
        self._time.sleep(0.05)

    @rule(path=st.sampled_from(NAMES), age=st.sampled_from(AGES), records=st.integers(0, 5), in_place=st.booleans())
    def write(self, path: str, age: float, records: int, in_place: bool) -> None:
        """Write or rewrite a file, with a new time."""
        if not self._is_cut(path):
            self._write(path, age, records, in_place=in_place)
        self._step()

    @rule(path=st.sampled_from(NAMES), keep=st.booleans())
    def remove(self, path: str, keep: bool) -> None:
        """Delete a file, or move it away."""
        if path in self._there() and not self._is_cut(path):
            node = self.tree.lose(f"{IN}/{path}")
            self._leave(path, node)
            if keep:
                self._away[path] = node
        self._step()

    @rule(folder=st.sampled_from(FOLDERS))
    def remove_folder(self, folder: str) -> None:
        """Move a directory away."""
        if self.tree.find(f"{IN}/{folder}") and not self._holds_cut(folder):
            for path, node in self._there().items():
                if path.startswith(f"{folder}/"):
                    self._leave(path, node)
            self._away[folder] = self.tree.lose(f"{IN}/{folder}")
        self._step()

    @precondition(lambda self: self._away)
    @rule(data=st.data(), new_inode=st.booleans())
    def bring_back(self, data: st.DataObject, new_inode: bool) -> None:
        """Put back what was moved away, unchanged or from a copy."""
        path = data.draw(st.sampled_from(sorted(self._away)))
        if self.tree.find(f"{IN}/{path}") is None:
            node = self._away.pop(path)
            if new_inode and node.names is None:
                self.tree.write(f"{IN}/{path}", node.data, node.modified_ns)
            else:
                self.tree.put(f"{IN}/{path}", node)
        self._step()

    @rule(path=st.sampled_from(NAMES), new=st.sampled_from(NAMES), link=st.booleans())
    def rename(self, path: str, new: str, link: bool) -> None:
        """Give a file another name, or an additional one."""
        there = self._there()
        if path in there and new not in there and not self._is_cut(path) and not self._is_cut(new):
            node = there[path] if link else self.tree.lose(f"{IN}/{path}")
            if not link:
                self._leave(path, node)
            self.tree.put(f"{IN}/{new}", node)
        self._step()

    @rule(path=st.sampled_from(NAMES), restored=st.booleans())
    def change_inode(self, path: str, restored: bool) -> None:
        """`chmod`, `chown`, or a copy put in its place with the same time: the version is the same."""
        node = self._there().get(path)
        if node is not None and restored:
            self.tree.write(f"{IN}/{path}", node.data, node.modified_ns)
        elif node is not None:
            self.tree.change_mode(f"{IN}/{path}")
        self._step()

    @rule(folder=st.sampled_from(["", *FOLDERS]), seconds=st.sampled_from([0, 5, 1000]))
    def touch_folder(self, folder: str, seconds: float) -> None:
        """Set a directory's time back."""
        if self.tree.find(f"{IN}/{folder}"):
            self.tree.touch_back(f"{IN}/{folder}", self._ns(-seconds))
            self._stale = self._plain
        self._step()

    @precondition(lambda self: self._bulk)
    @rule(age=st.sampled_from(AGES), folder=st.sampled_from(["", "d/", "e/"]))
    def write_many(self, age: float, folder: str) -> None:
        """Add more files than an offset can distinguish."""
        for number in range(BULK):
            path = f"{folder}many{number:03}"
            if not self._is_cut(path):
                self._write(path, age, 1)
        self._blurred = True
        self._step()

    @precondition(lambda self: self._bulk)
    @rule(folder=st.sampled_from(["", "d/", "e/"]), keep=st.booleans(), part=st.integers(1, 3))
    def remove_many(self, folder: str, keep: bool, part: int) -> None:
        """Remove more files than an offset can distinguish; they may come back one by one."""
        there = self._there()
        for number in range(0, BULK, part):
            path = f"{folder}many{number:03}"
            if path in there and not self._is_cut(path):
                node = self.tree.lose(f"{IN}/{path}")
                self._leave(path, node)
                if keep:
                    self._away[path] = node
        self._blurred = True
        self._step()

    @precondition(lambda self: self._bulk)
    @rule()
    def bring_many_back(self) -> None:
        """Put everything back that was moved away."""
        for path in sorted(self._away):
            if "many" in path and self.tree.find(f"{IN}/{path}") is None:
                self.tree.put(f"{IN}/{path}", self._away.pop(path))
        self._step()

    @precondition(lambda self: "cut" in self.at)
    @rule(how=st.sampled_from(["append", "rewrite", "delete", "restore"]))
    def trouble_with_cut(self, how: str) -> None:
        """The file that is being read in parts grows, is rewritten, deleted or restored."""
        path = self.at["cut"][0]
        node = self.tree.find(f"{IN}/{path}")
        if node is None:
            return
        if how == "append":
            more = b"".join(next(self._records).to_bytes(WIDTH, "big") for _ in range(3))
            self.tree.write(f"{IN}/{path}", node.data + more, self._ns(-2))  # it may have other names, which were read
        elif how == "rewrite":
            self._write(path, 2, 6)
        elif how == "restore":
            self.tree.write(f"{IN}/{path}", node.data, node.modified_ns)
        else:
            self.tree.lose(f"{IN}/{path}")
        self._step()

    @rule(seconds=st.sampled_from([0.5, 3, 20, 45, 150]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._time.sleep(seconds)

    # -- the query -------------------------------------------------------------------------------------------------

    def _started(self, **options: str) -> Planner:
        given = {"path": IN, "recursiveFileLookup": "true", "lateness": f"{self._lateness}s", "settle": "1s"}
        given |= {"startingFrom": self._starting} | options
        planner = Watched(
            self.tree, IN, parse(SOURCE, given, what="source"), divisible=lambda _: True, reach=self._reach
        )
        planner.machine = self
        if self._bounded:
            planner.prepare_available_now()
        self._planner = planner
        return planner

    @staticmethod
    def _reach(_handle: object, size: int, at: int) -> int:
        return min(-(-at // WIDTH) * WIDTH, size)

    @rule(
        files=st.sampled_from(["1", "3", "1000"]),
        size=st.sampled_from(["3", "10", "1g"]),
        late=st.sampled_from(["report", "report", "fail"]),
        bounded=st.booleans(),
    )
    def restart(self, files: str, size: str, late: str, bounded: bool) -> None:
        """The driver dies, and another one starts with other limits."""
        self._options = {"maxFilesPerTrigger": files, "maxBytesPerTrigger": size, "tooLate": late}
        self._bounded = bounded
        self._planner = None

    @precondition(lambda self: self._bulk)
    @rule(lateness=st.sampled_from([50, 100, 200]), pattern=st.sampled_from([None, "[a-m].*", "many.*"]))
    def restart_with_other_options(self, lateness: int, pattern: str | None) -> None:
        """The driver dies, and the next one has another lateness or pattern."""
        self._lateness = lateness
        self._options.pop("pattern", None)
        if pattern:
            self._options["pattern"] = pattern
            self._stays.clear()  # a file that the pattern leaves out counts as away
        self._blurred = True
        self._planner = None

    @rule(fails=st.sampled_from([None, None, None, "/in", "/d", "/e"]), dies=st.sampled_from([False, False, True]))
    def trigger(self, fails: str | None, dies: bool) -> None:
        """Plan and read a batch; or the listing fails; or the driver dies before Spark has the offset."""
        planner = self._planner or self._started(**self._options)
        self.tree.broken = fails or ""
        try:
            end = json.loads(json.dumps(planner.latest(self.at)))
        except FileTooLate:
            self._options["tooLate"] = "report"  # the files that were reported have been checked
            self._planner = None
            return
        except FileChanged as error:
            note(str(error))
            self._mend_cut()
            return
        except StorageError:
            assert fails
            return
        finally:
            self.tree.broken = ""
        if end == self.at:
            return
        splits = planner.splits(end)
        if dies or not self._are_there(splits):
            self._planner = None
            return
        for split in splits:
            self._take(split)
        self.at = end
        if "cut" in end:
            node = self.tree.find(f"{IN}/{end['cut'][0]}")
            assert node is not None
            self._cut = node.data
        self._time.sleep(0.2)

    def _are_there(self, splits: list[Split]) -> bool:
        there = self._there()
        missing = [s.file for s in splits if s.file.path not in there or self._differs(s.file, there[s.file.path])]
        assert self._stale or not missing, f"planned, and not there: {missing}"
        return not missing

    @staticmethod
    def _differs(file: FileVersion, node: Node) -> bool:
        return (file.size, file.modified_ns) != (len(node.data), node.modified_ns)

    def _take(self, split: Split) -> None:
        file = split.file
        node = self.tree.find(f"{IN}/{file.path}")
        assert node is not None
        for at in range(0, file.size, WIDTH):
            if split.start <= at < split.end:
                record = (file.path, int.from_bytes(node.data[at : at + WIDTH], "big"))
                self._read[record] += 1
                assert self._read[record] == 1 or record in self._exempt, f"{record} is read twice, in {split}"
        if split.end == file.size:
            self._stays.add((file.path, file.size, file.modified_ns))

    def _mend_cut(self) -> None:
        """Follow the advice: restore the planned version, or give up the rest of the file."""
        path, at, size, modified_ns, _ = self.at["cut"]
        if next(self._records) % 2:
            self.tree.write(f"{IN}/{path}", self._cut[:size], modified_ns)
        else:
            self._exempt |= {(path, int.from_bytes(self._cut[i : i + WIDTH], "big")) for i in range(0, at, WIDTH)}
            dropped = {"cut", "cut_digest", "last", "sum"}
            form = {name: value for name, value in self.at.items() if name not in dropped} | {"plan": []}
            self.at = json.loads(json.dumps(summed(form)))
        self._planner = None

    def reported(self, file: FileVersion, why: str, horizon_ns: int) -> None:
        """Note that a file is not read, and check that the report is allowed."""
        version = file.path, file.size, file.modified_ns
        if why == notices.LATE:
            assert file.modified_ns < horizon_ns, f"{file} is not late"
            assert version not in self._stays, f"{file} was read, and stayed where it was"
        else:
            assert self._blurred, f"{file}: {why}"
        self._told.add(version)

    def _finish(self) -> None:
        self._options = {"tooLate": "report"}
        self._bounded = False
        self._planner = None
        for _ in range(40):
            self._time.sleep(100)
            if self._is_idle():
                break
        lost = [path for path, node in self._there().items() if not self._is_accounted_for(path, node)]
        assert not lost, f"neither read nor named: {lost}"

    def _is_idle(self) -> bool:
        before = self.at
        self.trigger(None, dies=False)
        return self.at == before and self._planner is not None

    def _is_accounted_for(self, path: str, node: Node) -> bool:
        records = [(path, int.from_bytes(node.data[at : at + WIDTH], "big")) for at in range(0, len(node.data), WIDTH)]
        return all(self._read[record] for record in records) or self._version(path, node) in self._told
