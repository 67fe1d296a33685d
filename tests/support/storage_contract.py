"""The promises of `Storage`, as tests for any back end.

A back end's test module makes a subclass of `StorageContract` with the fixtures `storage` and `root` (an empty directory of
that storage) and inherits every test.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from penstock.errors import AlreadyThere, Locked, NotSupported, NotThere, StorageError
from penstock.storage import entry_at, names_at
from penstock.testing import ObjectStore

if TYPE_CHECKING:
    from penstock.storage import Storage


def put(storage: Storage, path: str, data: bytes) -> None:
    """Write a synced file."""
    with storage.create(path) as file:
        file.write(data)
        file.sync()


class InTurnContract:
    """For storages in memory, whose calls run one after another: list it before `StorageContract` among the base classes."""

    def test_put_if_absent_decides_once(self, storage: Storage, root: str) -> None:
        """Of two puts of one name the first succeeds, and the file has its bytes."""
        storage.put_if_absent(f"{root}/slot", b"1")
        with pytest.raises(AlreadyThere):
            storage.put_if_absent(f"{root}/slot", b"2")
        assert storage.read(f"{root}/slot") == b"1"
        assert list(storage.names(root)) == ["slot"]


class StorageContract:
    """Inherit from this, with the fixtures `storage` and `root`."""

    def test_what_is_written_is_read(self, storage: Storage, root: str) -> None:
        """A created, synced and closed file holds exactly what was written, both read whole and read by ranges."""
        with storage.create(f"{root}/a") as file:
            assert file.write(b"hello ") == 6
            assert file.write(memoryview(b"world")) == 5
            assert file.tell() == 11
            file.sync()
        assert storage.read(f"{root}/a") == b"hello world"
        with storage.open(f"{root}/a") as file:
            assert (file.read(4, 3), file.read(9, 100), file.read(11, 5)) == (b"o w", b"ld", b"")
            assert file.info().size == 11

    def test_a_small_file_is_had_whole_or_not_at_all(self, storage: Storage, root: str) -> None:
        """A storage may return all bytes of a small file at once, but only of the requested version; not if it changed or is gone."""
        put(storage, f"{root}/a", b"hello")
        there = storage.stat(f"{root}/a")
        known = there.size, there.modified_ns, there.identity
        assert storage.whole(f"{root}/a", *known) in {b"hello", None}
        for size, modified_ns, identity in (
            (there.size - 1, there.modified_ns, there.identity),
            (there.size + 1, there.modified_ns, there.identity),
            (there.size, there.modified_ns + 1, there.identity),
            (there.size, there.modified_ns, f"{there.identity}0"),
        ):
            assert storage.whole(f"{root}/a", size, modified_ns, identity) is None
        assert storage.whole(f"{root}/gone", *known) is None
        assert storage.whole(root, *known) is None

    def test_create_is_exclusive(self, storage: Storage, root: str) -> None:
        """Creating a file under a taken name fails and leaves the existing file as it was."""
        put(storage, f"{root}/a", b"first")
        with pytest.raises(AlreadyThere):
            storage.create(f"{root}/a")
        assert storage.read(f"{root}/a") == b"first"

    def test_a_block_that_fails_leaves_no_file(self, storage: Storage, root: str) -> None:
        """An exception inside the block of a created file removes the file."""
        with pytest.raises(ZeroDivisionError), storage.create(f"{root}/a") as file:  # noqa: PT012 - the block is it
            file.write(b"half")
            raise ZeroDivisionError
        with pytest.raises(NotThere):
            storage.stat(f"{root}/a")

    def test_a_file_whose_name_went_does_not_close_well(self, storage: Storage, root: str) -> None:
        """A writer whose file was removed gets an error when it closes the file."""
        file = storage.create(f"{root}/a")
        file.write(b"x")
        storage.delete(f"{root}/a")
        with pytest.raises(StorageError):
            file.close()

    def test_missing_files_are_not_there(self, storage: Storage, root: str) -> None:
        """Every verb that reads raises `NotThere` for a missing name."""
        for call in (storage.open, storage.read, storage.stat):
            with pytest.raises(NotThere):
                call(f"{root}/missing")
        if storage.has_directories:
            with pytest.raises(NotThere):
                list(storage.list(f"{root}/missing"))
        else:
            assert list(storage.list(f"{root}/missing")) == []
        with pytest.raises(NotThere):
            storage.publish(f"{root}/missing", f"{root}/b")
        assert entry_at(storage, f"{root}/missing") is None
        assert names_at(storage, f"{root}/missing") == []

    def test_listing_shows_files_and_directories(self, storage: Storage, root: str) -> None:
        """A listing has every entry with its size, and `names` agrees with it."""
        put(storage, f"{root}/a", b"123")
        storage.make_directory(f"{root}/d")
        put(storage, f"{root}/d/below", b"")
        entries = {entry.name: entry for entry in storage.list(root)}
        assert (entries["a"].size, entries["a"].is_directory, entries["d"].is_directory) == (3, False, True)
        assert (entries["a"].is_file, entries["d"].is_file) == (True, False)
        assert set(storage.names(root)) == {"a", "d"}
        assert entries["a"].identity == storage.stat(f"{root}/a").identity

    def test_an_address_of_its_own_is_its_path(self, storage: Storage, root: str) -> None:
        """A path is its own address if both are one storage; if the other storage is another file system, it is too."""
        for other in (storage, pickle.loads(pickle.dumps(storage)), ObjectStore().storage()):  # noqa: S301 - made here
            assert storage.addressed_as(other, f"{root}/a") == f"{root}/a"

    def test_a_path_is_of_one_storage(self, storage: Storage, root: str) -> None:
        """A storage tells its own paths from those of another storage: files are moved within one storage only."""
        for path in ("hdfs://other:8020/data", "s3://other/data", "az://other"):
            assert not storage.owns(path)
        if storage.of_this_host or not root.startswith(
            "/"
        ):  # a short form of an address is no path that `locate` returns
            assert storage.owns(root)
            assert storage.owns(f"{root}/a")
            assert storage.owns("/data") == root.startswith("/")

    def test_names_with_colons(self, storage: Storage, root: str) -> None:
        """A name may contain a colon, or the storage refuses it: a sink learns this before it commits to such a name."""
        with nullcontext() if storage.takes_colons else pytest.raises(StorageError):
            put(storage, f"{root}/12:30", b"noon")
        assert ("12:30" in names_at(storage, root)) == storage.takes_colons

    def test_publish_moves(self, storage: Storage, root: str) -> None:
        """A published file is under its new name only, unchanged."""
        put(storage, f"{root}/a", b"part")
        storage.publish(f"{root}/a", f"{root}/b")
        assert storage.read(f"{root}/b") == b"part"
        with pytest.raises(NotThere):
            storage.stat(f"{root}/a")

    def test_take_moves_whatever_is_there(self, storage: Storage, root: str) -> None:
        """A taken file is under its new name only, unchanged, with its time if the storage moves files; a missing file cannot be taken."""
        put(storage, f"{root}/a", b"mine")
        before = storage.stat(f"{root}/a")
        storage.make_directory(f"{root}/taken")
        storage.take(f"{root}/a", f"{root}/taken/a")
        after = storage.stat(f"{root}/taken/a")
        assert (storage.read(f"{root}/taken/a"), entry_at(storage, f"{root}/a")) == (b"mine", None)
        assert after.size == before.size
        is_moved = (after.identity, after.modified_ns) == (before.identity, before.modified_ns)
        assert is_moved or not storage.moves  # an object store makes a new one
        with pytest.raises(NotThere):
            storage.take(f"{root}/a", f"{root}/taken/b")

    def test_what_is_published_as_it_is_is_moved_too(self, storage: Storage, root: str) -> None:
        """Publishing a file with its permissions kept moves it too, and never replaces another file."""
        put(storage, f"{root}/a", b"mine")
        storage.publish(f"{root}/a", f"{root}/b", as_it_is=True)
        assert (storage.read(f"{root}/b"), entry_at(storage, f"{root}/a")) == (b"mine", None)
        put(storage, f"{root}/a", b"new")
        with pytest.raises(AlreadyThere):
            storage.publish(f"{root}/a", f"{root}/b", as_it_is=True)
        assert storage.read(f"{root}/b") == b"mine"

    def test_publish_never_replaces(self, storage: Storage, root: str) -> None:
        """Publishing to a taken name fails; both files stay as they were."""
        put(storage, f"{root}/a", b"mine")
        put(storage, f"{root}/b", b"theirs")
        with pytest.raises(AlreadyThere):
            storage.publish(f"{root}/a", f"{root}/b")
        assert (storage.read(f"{root}/a"), storage.read(f"{root}/b")) == (b"mine", b"theirs")

    def test_directory_is_moved_whole(self, storage: Storage, root: str) -> None:
        """A directory moves to a free name with all its content, never into or over an existing one; a storage that cannot says so."""
        storage.make_directory(f"{root}/d/below")
        put(storage, f"{root}/d/below/a", b"1")
        storage.make_directory(f"{root}/taken")
        try:
            storage.move_directory(f"{root}/d", f"{root}/e")
        except StorageError:
            assert storage.read(f"{root}/d/below/a") == b"1"
            return
        assert storage.read(f"{root}/e/below/a") == b"1"
        assert entry_at(storage, f"{root}/d") is None
        with pytest.raises(AlreadyThere):
            storage.move_directory(f"{root}/e", f"{root}/taken")
        with pytest.raises(NotThere):
            storage.move_directory(f"{root}/d", f"{root}/f")
        assert set(storage.names(root)) == {"e", "taken"}

    def test_put_if_absent_decides_once(self, storage: Storage, root: str) -> None:
        """Of many puts of one name at the same time exactly one succeeds, and the file has its bytes."""
        won: list[int] = []

        def attempt(number: int) -> None:
            try:
                storage.put_if_absent(f"{root}/slot", b"%d" % number)
                won.append(number)
            except AlreadyThere:
                pass

        threads = [threading.Thread(target=attempt, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert storage.read(f"{root}/slot") == b"%d" % won[0]
        assert list(storage.names(root)) == ["slot"]

    def test_what_others_wrote_can_be_made_durable(self, storage: Storage, root: str) -> None:
        """Files and directories that another program wrote are synced by name; missing ones are skipped."""
        storage.make_directory(f"{root}/d")
        with storage.create(f"{root}/a") as file:
            file.write(b"x")
        storage.persist(root, ["a", "d", "none"])
        assert storage.read(f"{root}/a") == b"x"
        if storage.has_directories:
            with pytest.raises(NotThere):
                storage.persist(f"{root}/none", [])

    def test_delete_is_repeatable(self, storage: Storage, root: str) -> None:
        """Deleting a file, an empty directory and nothing at all succeeds; a full directory is kept."""
        put(storage, f"{root}/a", b"")
        storage.make_directory(f"{root}/d")
        for name in ("a", "a", "d", "d"):
            storage.delete(f"{root}/{name}")
        assert names_at(storage, root) == []
        storage.make_directory(f"{root}/full")
        put(storage, f"{root}/full/x", b"")
        with pytest.raises(StorageError) if storage.has_directories else nullcontext():
            storage.delete(f"{root}/full")
        assert storage.stat(f"{root}/full/x").size == 0

    def test_directories_are_made_with_their_parents(self, storage: Storage, root: str) -> None:
        """A directory is made with its parents; making it again is no error; a file in its place is one."""
        for _ in range(2):
            storage.make_directory(f"{root}/a/b/c")
        if not storage.has_directories:
            assert entry_at(storage, f"{root}/a/b/c") is None
            put(storage, f"{root}/a/b/c/d", b"")
        assert storage.stat(f"{root}/a/b/c").is_directory
        assert not storage.stat(f"{root}/a/b/c").is_file
        put(storage, f"{root}/file", b"")
        with pytest.raises(StorageError) if storage.has_directories else nullcontext():
            storage.make_directory(f"{root}/file")
        assert storage.stat(f"{root}/file").is_file

    def test_what_lies_after_a_path_is_listed_in_order_or_refused(self, storage: Storage, root: str) -> None:
        """A storage that says that it lists in order does so, at any depth; any other refuses the call and never answers it in part."""
        for path in ("b", "a", "d/c"):
            if "/" in path:
                storage.make_directory(f"{root}/d")
            put(storage, f"{root}/{path}", b"")
        with nullcontext() if storage.lists_in_order else pytest.raises(NotSupported):
            assert [path for path, _ in storage.listed_after(root, "a")] == ["b", "d/c"]

    def test_a_path_of_as_many_bytes_as_there_is_room_for_is_taken(self, storage: Storage, root: str) -> None:
        """A name of the length that `bytes_below` promises to a sink before a batch can be created, split into directories."""
        length = min(storage.bytes_below(root), 600)
        directory = "/".join("d" * 200 for _ in range(length // 201))
        storage.make_directory(f"{root}/{directory}")
        path = f"{root}/{directory}/".ljust(len(f"{root}/") + length, "f")
        put(storage, path, b"x")
        assert storage.read(path) == b"x"
        assert storage.bytes_below(f"{root}/a") <= storage.bytes_below(root)

    def test_an_open_file_stays_the_same_file(self, storage: Storage, root: str) -> None:
        """A reader goes on reading the file it opened, although its name is deleted and given to another file."""
        put(storage, f"{root}/a", b"old")
        with storage.open(f"{root}/a") as file:
            before = file.info()
            storage.delete(f"{root}/a")
            put(storage, f"{root}/a", b"new one")
            assert file.read(0, 10) == b"old"
            assert (before.size, before.identity) == (file.info().size, file.info().identity)

    def test_extend_goes_on(self, storage: Storage, root: str) -> None:
        """A growing file continues at the given length, where the same bytes may already be, and is never cut. It is created at first."""
        with storage.extend(f"{root}/g", 0) as file:
            file.write(b"one\ntwo\n")
            file.sync()
        with storage.extend(f"{root}/g", 4) as file:
            assert file.tell() == 4
            file.write(b"tw")
            file.write(b"o\n3")
            assert file.tell() == 9
            file.write(b"\n")
            file.sync()
        assert storage.read(f"{root}/g") == b"one\ntwo\n3\n"
        with storage.extend(f"{root}/g", 4) as file:
            file.write(b"tw")
        assert storage.read(f"{root}/g") == b"one\ntwo\n3\n"

    def test_a_synced_file_goes_on(self, storage: Storage, root: str) -> None:
        """With `goes_on`, what is written after a sync follows what was synced; otherwise the file is complete after the sync."""
        with storage.create(f"{root}/a") as file:
            file.write(b"one")
            file.sync()
            if storage.goes_on:
                file.write(b"two")
                file.sync()
            else:
                with pytest.raises(StorageError):
                    file.write(b"two")
        assert storage.read(f"{root}/a") == (b"onetwo" if storage.goes_on else b"one")

    def test_a_lock_excludes_others(self, storage: Storage, root: str) -> None:
        """Either one exclusive holder or several shared ones lock a file or directory; or the storage has no locks, and says so."""
        put(storage, f"{root}/a", b"x")
        try:
            hold = storage.lock(root)
        except NotSupported:
            return
        for shared in (False, True):
            with pytest.raises(Locked):
                storage.lock(root, shared=shared)
        hold.close()
        hold.close()
        holds = [storage.lock(f"{root}/a", shared=True) for _ in range(2)]
        with pytest.raises(Locked):
            storage.lock(f"{root}/a")
        for hold in holds:
            hold.close()
        storage.lock(f"{root}/a").close()
        with pytest.raises(NotThere):
            storage.lock(f"{root}/missing")

    def test_a_watch_tells_what_a_listing_would(self, storage: Storage, root: str) -> None:
        """A watch reports new names as `names` has them, and deleted ones as None; a storage that cannot watch returns None."""
        put(storage, f"{root}/before", b"x")
        watch = storage.watch(root)
        if watch is None:
            pytest.skip("nobody tells here")
        assert watch.changes() == {}
        put(storage, f"{root}/a \udcff ü", b"x")
        put(storage, f"{root}/short", b"x")
        storage.delete(f"{root}/short")
        storage.delete(f"{root}/before")
        told = watch.changes()
        assert told is not None
        assert {name: value for name, value in told.items() if value is not None} == storage.names(root)
        assert {"short", "before"} <= told.keys()
        assert watch.changes() == {}

    @pytest.mark.parametrize("name", ["a b", "50%", "#1", "what?", "it's", '"q"', "ü", "-rf", "a\nb", "\udcff\udc80"])
    def test_odd_names_are_names(self, storage: Storage, root: str, name: str) -> None:
        """A name may contain any byte but a slash and NUL, also bytes that are not UTF-8."""
        put(storage, f"{root}/{name}", b"x")
        assert [entry.name for entry in storage.list(root)] == [name]
        assert storage.read(f"{root}/{name}") == b"x"

    def test_a_storage_travels(self, storage: Storage, root: str) -> None:
        """A storage can be pickled: it has to reach the tasks."""
        put(storage, f"{root}/a", b"x")
        assert pickle.loads(pickle.dumps(storage)).read(f"{root}/a") == b"x"  # noqa: S301 - our own bytes

    def test_its_clock_stamps_its_files(self, storage: Storage, root: str) -> None:
        """The storage's time and the modification times of its files come from the same clock."""
        before = storage.now_ns()
        put(storage, f"{root}/a", b"x")
        assert abs(storage.stat(f"{root}/a").modified_ns - before) < 5_000_000_000
