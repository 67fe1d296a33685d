"""Where a source's files are: from `path` and `paths`, which may be globs, to one directory and what is read below it.

Several paths could each have a listing and a cursor of their own; but then which file comes next would depend on which path is asked
first, and a file below two of them would be read twice. So there is one directory, the longest that contains all of them, one scan of
it, one order of files and one cursor; a path is a test of the directories and files that the scan meets (`Selection`). A file's name is
its path below that directory, whichever of the paths it was found by: it is read once. Directories to which no path leads are not
listed. Nothing in an offset grows with the number of paths, and the next scan meets a directory that has come to match.

The offset has the hash of the directory and of the globs below it, if there are any: if a checkpoint is continued with other paths,
this is reported, as another `path` is.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import unquote

from penstock.errors import OptionError, without_credentials
from penstock.options.parsers import nanoseconds
from penstock.source.globs import NameGlob, expanded, is_glob, names_of, quoted
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.options import Options
    from penstock.options.parsers import WrittenTime
    from penstock.storage import Entry, Storage

Rest = tuple[NameGlob, ...]
ALWAYS = (-(1 << 63), 1 << 63)  # nanoseconds
_QUOTED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


@dataclass(frozen=True)
class PlaceBelow:
    """What is read in one directory. `inside`: its files are read; `rests`: the remaining globs of paths below it."""

    inside: bool = True
    rests: tuple[Rest, ...] = ()

    def takes_file(self, name: str) -> bool:
        """Tell whether a file of this name matches a path, or lies below one."""
        return self.inside or any(len(rest) == 1 and rest[0].matches(name) for rest in self.rests)

    def names(self, name: str) -> bool:
        """Tell whether a path has exactly this name, without a wildcard."""
        return any(rest[0].literal == name for rest in self.rests)

    def only(self) -> list[str] | None:
        """Return the only names that can lead to a path; `None` if the directory has to be listed to find them."""
        literals = [rest[0].literal for rest in self.rests]
        return None if self.inside or None in literals else sorted({name for name in literals if name is not None})


@dataclass(frozen=True)
class Selection:
    """What is read below the directory of a source: everything to which `rests` lead; an empty one leads to the whole directory.

    `enters(name)` tells whether a directory below these is entered. The scan decides whether a name is hidden.
    """

    rests: tuple[Rest, ...] = ((),)
    enters: Callable[[str], bool] = lambda name: not name  # none
    _known: dict[str, PlaceBelow | None] = field(default_factory=dict, compare=False, repr=False)

    def below(self, folder: str) -> PlaceBelow | None:
        """Return what is read in a directory, by its path below the source's path; `None` if it is not entered."""
        if folder not in self._known:
            self._known[folder] = self._below(folder)
        return self._known[folder]

    def _below(self, folder: str) -> PlaceBelow | None:
        if not folder:
            return PlaceBelow(not all(self.rests), tuple(filter(None, self.rests)))
        parent, _, name = folder.rpartition("/")
        above = self.below(parent)
        if above is None:
            return None
        left = [rest[1:] for rest in above.rests if rest[0].matches(name)]
        inside = not all(left) or (above.inside and self.enters(name))
        rests = tuple(rest for rest in left if rest)
        return PlaceBelow(inside, rests) if inside or rests else None


@dataclass(frozen=True)
class Where:
    """The storage of a source, its directory (or file), and the paths below that."""

    storage: Storage
    root: str
    rests: tuple[Rest, ...] = ((),)
    literal: tuple[str, ...] = ()
    """Globs as they were written, which may be the name of something that is there."""

    @property
    def is_several(self) -> bool:
        """Tell whether there are paths below the directory, and not only the directory itself."""
        return self.rests != ((),)

    @property
    def mark(self) -> bytes:
        """The bytes whose hash is in the offset."""
        paths = sorted("/".join(name.text for name in rest) for rest in self.rests) if self.is_several else []
        return b"\0".join(os.fsencode(text) for text in (self.root, *paths))

    def check(self, name: str) -> None:
        """Raise `OptionError` if a path without wildcards is not there, or is that of a pipe, a socket or a device.

        The same for a path with wildcards that is literally the name of a file.
        """
        for rest in self.rests:
            names = [glob.literal for glob in rest]
            if None in names:
                continue
            path = "/".join([self.root, *(name for name in names if name is not None)])
            entry = entry_at(self.storage, path)
            if entry is None:
                msg = f"{name}: {path!r} does not exist; expected a directory or a file to read"
                raise OptionError(msg)
            check_repeatable(name, path, entry)
        for text in self.literal:
            storage, path = locate(text)
            if entry_at(storage, path) is not None:
                msg = (
                    f"{name}={text!r} is a pattern, and {path!r} is there by that very name; put a backslash before what is not a "
                    f"wildcard: {quoted(text)}"
                )
                raise OptionError(msg)


def check_repeatable(name: str, path: str, entry: Entry) -> None:
    """Raise `OptionError` for a pipe, a socket or a device, which no replay can read again; inside a directory it would be skipped."""
    if not entry.is_directory and not entry.is_file:
        msg = (
            f"{name}: {path!r} is a pipe, a socket or a device, such as <(...) in a shell, and what comes from it could not be read "
            "again after a crash; write it to a file first"
        )
        raise OptionError(msg)


def where(options: Options) -> Where:
    """Return where the files of a source with these options are. Raises `OptionError`; asks no storage."""
    given = [options["path"]] if options["path"] else []
    return where_of((*given, *(options["paths"] or ())), options["basePath"])


def changed_between(options: Options) -> tuple[int, int]:
    """Return the times after and before which files must have been modified, in nanoseconds. Raises `OptionError`."""
    if options["modifiedAfter"] is None and options["modifiedBefore"] is None and not _has_zone(options):
        return ALWAYS
    from penstock.formats.zones import UTC, zone_name  # imports Arrow, for which a look at names need not wait

    name = options["timeZone"] or options["sessionTimeZone"]
    zone = zone_name(name, "timeZone" if options["timeZone"] else "spark.sql.session.timeZone") if name else UTC
    after, before = (
        _instant(options["modifiedAfter"], zone, ALWAYS[0]),
        _instant(options["modifiedBefore"], zone, ALWAYS[1]),
    )
    if after >= before:
        given = [
            f"{name}={options.given[name]!r}" for name in ("modifiedAfter", "modifiedBefore") if name in options.given
        ]
        trouble = " is not before ".join(given) if len(given) > 1 else f"{given[0]} is a time that no file has"
        msg = f"{trouble}: no file would be read"
        raise OptionError(msg)
    return after, before


def _has_zone(options: Options) -> bool:
    """Tell whether a zone is named; it may turn out not to exist."""
    return bool(options["timeZone"] or options["sessionTimeZone"])


def _instant(time: WrittenTime | None, zone: str, none: int) -> int:
    if time is None or time.shown.tzinfo is not None:
        return none if time is None else nanoseconds(time)
    import pyarrow as pa

    from penstock.formats.zones import instants

    shown = pa.array([time.shown], pa.timestamp("us"))
    return int(instants(shown, zone).view(pa.int64())[0].as_py()) * 1000 + time.more_ns


def where_of(paths: Iterable[str], base: str | None = None) -> Where:
    """Return where the files of these paths are; `base` is a directory that contains all of them."""
    texts = tuple(map(os.fspath, paths))
    return _where(texts, base)


def _where(texts: tuple[str, ...], base: str | None) -> Where:
    if len(texts) == 1 and base is None and not is_glob(texts[0]):
        return Where(*locate(texts[0]))
    given = [_Path.of(text) for whole in texts for text in expanded(whole)]
    roots = [path.root.split("/") for path in given]
    common = _common(roots) if base is None else locate(base, name="basePath")[1].rstrip("/").split("/")
    root = "/".join(common) or "/"
    _check_common(common, roots, texts, base)
    rests = tuple(
        dict.fromkeys(
            (*(NameGlob(quoted(name)) for name in parts[len(common) :]), *path.rest)
            for parts, path in zip(roots, given, strict=True)
        )
    )
    return Where(given[0].storage, root, rests, tuple(filter(is_glob, texts)))


def _check_common(common: list[str], roots: list[list[str]], texts: tuple[str, ...], base: str | None) -> None:
    """Raise `OptionError` unless all paths lie in one directory."""
    if any(parts[: len(common)] != common for parts in roots) or len(common) < 1 + 2 * (":" in roots[0][0]):
        shown = ", ".join(without_credentials(text) for text in texts)
        reason = "lie on several file systems" if base is None else f"do not all lie in basePath={base!r}"
        msg = f"paths {shown} {reason}; expected paths of one, or a query for each"
        raise OptionError(msg)


def _common(paths: list[list[str]]) -> list[str]:
    """Return the names that all paths begin with."""
    same = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return [names[0] for names in same]


@dataclass(frozen=True)
class _Path:
    """One path: its longest beginning without wildcards, and the globs after it."""

    storage: Storage
    root: str
    rest: Rest

    @staticmethod
    def of(text: str) -> _Path:
        names = [NameGlob(name) for name in names_of(text)]
        scheme = next((name.text for name in names[:1] if name.text.endswith(":")), "")
        first = next((place for place, name in enumerate(names) if name.literal is None), len(names))
        begun, rest = names[:first], names[first:]
        storage, root = locate(_plain(text, scheme, "/".join(name.literal or "" for name in begun)))
        if scheme.lower() == "file:":
            rest = [NameGlob(_QUOTED.sub(_literally, name.text)) for name in rest]
        _check_globs(text, rest)
        return _Path(storage, root.rstrip("/") if root != "/" else "", tuple(rest))


def _literally(found: re.Match[str]) -> str:
    """Return the characters that a URL has quoted, as a glob: what is quoted is no wildcard."""
    return quoted(unquote(found[0], errors="surrogateescape")).replace(",", "\\,")


def _check_globs(text: str, rest: list[NameGlob]) -> None:
    """Raise `OptionError` for names that are not allowed after the first wildcard of a path."""
    for name in rest:
        if name.text == "..":
            msg = f"path={text!r}: '..' after a wildcard could lead anywhere; write the path without it"
            raise OptionError(msg)
        name.matches("")  # raises an error if it is not a glob


def _plain(text: str, scheme: str, names: str) -> str:
    """Return the beginning of a path that has no wildcards, made of these `names`, with its scheme or root."""
    if scheme:
        rest = text[len(scheme) :]
        slashes = rest[: len(rest) - len(rest.lstrip("/"))]
        return scheme + slashes + names[len(scheme) :].lstrip("/")
    return "/" + names if text.startswith("/") else names or "."
