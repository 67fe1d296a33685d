"""Checks the places of an ingest: SRC, DST and the checkpoint do not lie in one another, and each can be reached."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import NotThere, OptionError
from penstock.sink.ledger import STATE_DIRECTORY
from penstock.source.scan import hidden
from penstock.source.where import Selection, where_of
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from penstock.source.where import Where
    from penstock.storage import Storage


def check_apart(
    src: str | Where, dst: str, checkpoint: str | None = None, *, strict: bool = True, lists: bool = True
) -> None:
    """Raise `OptionError` unless SRC exists (if `strict`), DST is not a file, and SRC, DST and the checkpoint do not lie in one another.

    The real places count, after all links. If SRC is several paths, only what these can match is input. If SRC is not listed
    (`lists` is False), because rows name its files, its directory as such is not input.
    """
    place = where_of((src,)) if isinstance(src, str) else src
    storage, source = place.storage, place.root
    if strict:
        _check_there(storage, source)
        place.check("SRC")
    real_source = storage.resolve(source)
    read = Selection(place.rests, lambda _: True)
    for name, address in (("DST", dst), ("checkpoint", checkpoint)):
        if address is None:
            continue
        own, path = locate(address, name=name)
        target = own.addressed_as(storage, own.resolve(path))
        inside = lists and _lies_in(target, real_source)
        if inside and read.below(target[len(real_source) :].strip("/")) is not None:
            msg = f"{name}={path!r} lies in SRC={source!r}: it would be read as input; choose a directory outside of it"
            raise OptionError(msg)
        if real_source == target:
            msg = f"SRC={source!r} and {name}={path!r} would be one directory; choose another {name}"
            raise OptionError(msg)
        if lists and _lies_in(real_source, target):
            msg = (
                f"SRC={source!r} lies in {name}={path!r}: what is read would be among what is written; choose a {name} that SRC does not "
                f"lie in, such as {path.rstrip('/')}/{'out' if name == 'DST' else 'checkpoint'}"
            )
            raise OptionError(msg)
        _check_no_file(own, path, name)


def check_directories(dst: str, checkpoint: str | None) -> None:
    """Raise `OptionError` if DST or the checkpoint is a file; for an input that is not a directory."""
    for name, address in (("DST", dst), ("checkpoint", checkpoint)):
        if address is not None:
            _check_no_file(*locate(address, name=name), name)


def check_archive(archive: str | None, dst: str) -> None:
    """Raise `OptionError` if read files would be archived in the output, or the output is in the archive."""
    if archive is None:
        return
    storage, directory = locate(archive, name="sourceArchiveDir")
    place, path = locate(dst, name="DST")
    target = place.addressed_as(storage, place.resolve(path))
    real = storage.resolve(directory)
    if _lies_in(target, real) or _lies_in(real, target):
        msg = (
            f"sourceArchiveDir={directory!r} and DST={path!r} lie in one another: archived files would pass for output; choose a "
            "directory apart from it"
        )
        raise OptionError(msg)


def checkpoint_place(storage: Storage, path: str, given: str | None) -> str:
    """Return the place of the checkpoint in the form for Spark's JVM; the user has `given` it, or it is in DST.

    Raises `OptionError` if the JVM cannot write there.
    """
    place = storage.checkpoint_at(path, given)
    if place is not None:
        return place
    where = "the checkpoint would be in DST" if given is None else f"checkpoint={given!r}"
    msg = (
        f"{where}, where Spark's JVM cannot write; give a checkpoint on a disk that this command finds again (on a cluster HDFS, or "
        "a shared disk), such as --checkpoint /var/lib/penstock/orders; or s3a://..., with Hadoop's jars (docs/storage-s3.md)"
    )
    raise OptionError(msg)


def check_quarantine(location: str, place: Where | None, output: Storage, root: str) -> str:
    """Return the directory `quarantineLocation` with the address of the output's storage.

    Raises `OptionError` if it is on another storage than the output `root`, or files in it would be read as input or output.
    """
    own, directory = locate(location, name="quarantineLocation")
    directory = own.addressed_as(output, directory)
    if not output.owns(directory):
        msg = (
            f"quarantineLocation={location!r} is on another storage than DST={root!r}, from which files are moved there; choose a "
            "directory on that"
        )
        raise OptionError(msg)
    if place is not None and _is_read(own, directory, place):
        msg = f"quarantineLocation={location!r} lies in SRC={place.root!r}: what is set aside would be read as input; choose another"
        raise OptionError(msg)
    target, out = output.resolve(directory), output.resolve(root)
    names = target[len(out) :].strip("/").split("/")
    if _lies_in(target, out) and (not names[0].startswith(("_", ".")) or names[0] == STATE_DIRECTORY):
        msg = (
            f"quarantineLocation={location!r} lies in DST={root!r}, whose readers would take it for rows; choose a directory outside "
            "of it, or one whose name begins with `_`"
        )
        raise OptionError(msg)
    _check_no_file(output, directory, "quarantineLocation")
    return directory


def _is_read(storage: Storage, directory: str, place: Where) -> bool:
    """Tell whether files in a directory would be read as input."""
    return _below(place, storage.addressed_as(place.storage, storage.resolve(directory))) is not None


def lists(place: Where, directory: str) -> bool:
    """Tell whether the files of a directory are input: a path of the source matches, and no name on the way is hidden.

    `directory` is a real path, without links.
    """
    below = _below(place, directory)
    return below is not None and not any(map(hidden, below.split("/")))


def _below(place: Where, target: str) -> str | None:
    """Return the relative path from an input to a directory that is read with it; `None` if the directory is not read."""
    source = place.storage.resolve(place.root)
    below = target[len(source) :].strip("/")
    return below if _lies_in(target, source) and Selection(place.rests, lambda _: True).below(below) else None


def check_reached(*places: tuple[Storage, str]) -> None:
    """Raise `StorageError` if a file system does not answer or refuses access; the places need not exist yet."""
    for storage, path in places:
        with suppress(NotThere):
            storage.stat(path)


def _check_there(storage: Storage, source: str) -> None:
    try:
        # This user may lack the right to list an existing directory.
        if storage.stat(source).is_directory:
            next(iter(storage.list(source)), None)
            if storage.lists_in_order:
                _check_read(storage, source)
    except NotThere as error:
        msg = f"SRC={source!r} does not exist; expected a directory or a file to read"
        raise OptionError(msg) from error


def _check_read(storage: Storage, source: str) -> None:
    """Raise `AccessRefused` if objects may be listed but not read; for an empty input that is unknown."""
    first = next(iter(storage.listed_after(source, "")), None)
    if first is not None:
        with suppress(NotThere):  # it was removed meanwhile
            storage.stat(f"{source}/{first[0]}")


def _lies_in(path: str, directory: str) -> bool:
    """Tell whether a path is the directory or is below it. A root ends with a slash."""
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def _check_no_file(storage: Storage, path: str, name: str) -> None:
    entry = entry_at(storage, path)
    if entry is not None and not entry.is_directory:
        msg = f"{name}={path!r} is a file; expected a directory, which is made if it is not there"
        raise OptionError(msg)
