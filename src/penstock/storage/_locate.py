"""Finds the back end and its absolute path for a user's address: `/data`, `file:///data`, `hdfs://cluster/data`, `s3://bucket/data`."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import unquote

from penstock.errors import DependencyError, OptionError, without_credentials
from penstock.storage._hdfs import HdfsStorage
from penstock.storage._local import LocalStorage
from penstock.storage._objects import ObjectStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage._base import Storage

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_FOR_SHELLS = re.compile(r"~[\w.-]*(?=/|$)|\$\w+|\$\{\w+\}")
_OBJECTS = re.compile(r"(s3|s3a|az|gs)://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)
_HDFS = re.compile(r"hdfs:(?://([^/]*))?(/.*)?", re.IGNORECASE | re.DOTALL)


def locate(
    location: str | os.PathLike[str], *, name: str = "path", storage: Storage | None = None, literal: bool = False
) -> tuple[Storage, str]:
    """Return the storage of `location`, and its absolute, normalised path there, which can be located again.

    A plain path is taken literally (`%20` stays `%20`), and so is the path after the host of an `hdfs:` URL. `file:` URLs are
    unquoted, because Python and Spark's `input_file_name` quote them. (Hadoop unquotes no location, see
    `options.parsers.place_of_spark`.) On HDFS and in stores of objects the path is the whole URL. `name` is the option, for the
    message. Raises `OptionError` for an empty location, for one that no file can have, and for a scheme that this version does not know.
    Unless the location is `literal` (it comes from data, and nobody has typed it), also for text that a shell would have to
    expand, and for blanks at its ends. Calls no server. If a `storage` is given, the location is a path on it and stays
    unchanged. Raises `DependencyError` if Python does not take names of files for UTF-8.
    """
    check_names()
    location = _text(location, name)
    _check_path(location, name)
    if storage is not None:
        return storage, location
    if not location:
        msg = f"{name} is empty: expected a directory or a file, such as /data/in, file:///data/in or hdfs://cluster/data/in"
        raise OptionError(msg)
    if not literal:
        _check_typed(location, name)
    scheme = _SCHEME.match(location)
    if scheme is None or os.path.exists(location):
        return LocalStorage(), _absolute(location, name)
    make = BY_SCHEME.get(scheme[0].lower())
    if located := make and make(location, name):
        return located
    msg = (
        f"{name}={without_credentials(location)!r}: {scheme[0]} is not a file system this version knows; expected a plain "
        "path, file:, hdfs://, s3://, az:// or gs://"
    )
    raise OptionError(msg)


def check_names() -> None:
    """Raise `DependencyError` if Python does not take names of files for UTF-8, as in a locale with ISO-8859-1.

    What was read and what was written is noted by names, as text. In a process with another encoding the same file would have
    another name there: it would be read again, or not be found.
    """
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        msg = (
            f"Python takes names of files for {encoding} in this locale, expected utf-8: where a name is not ASCII, a process in another "
            "locale would take its file for a new one; set PYTHONUTF8=1 in the environment of this process"
        )
        raise DependencyError(msg)


def _file(location: str, name: str) -> tuple[Storage, str]:
    """Return the storage and the unquoted path of a `file:` URL."""
    path = unquote(_of_this_host(location[len("file:") :], name), errors="surrogateescape")
    return LocalStorage(), _absolute(path, name)


def _absolute(path: str, name: str) -> str:
    """Return the absolute path; `OptionError` for a relative path if the current directory was removed."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        msg = (
            f"{name}={path!r} is relative, and the current directory has been removed; expected a whole path, such as "
            "/data/in, or cd to a directory that is there"
        )
        raise OptionError(msg) from error


def _hdfs(location: str, name: str) -> tuple[Storage, str] | None:
    """Return the HDFS of an address, and the normalised URL."""
    match = _HDFS.fullmatch(location)
    if match is None:
        return None
    authority, path = match.groups(default="")
    if "@" in authority:
        msg = f"{name}={without_credentials(location)!r}: HDFS takes no user in an address; set HADOOP_USER_NAME"
        raise OptionError(msg)
    path = posixpath.normpath("/" + path.lstrip("/"))
    return HdfsStorage(authority), f"hdfs://{authority}{'' if path == '/' else path}"


def _objects(location: str, name: str) -> tuple[Storage, str] | None:
    """Return the bucket of an address, and its path there; `s3a` is what Hadoop calls `s3`."""
    match = _OBJECTS.fullmatch(location)
    if match is None:
        return None
    scheme, bucket, key = match.groups(default="")
    if not bucket or "@" in bucket or ":" in bucket:
        msg = (
            f"{name}={without_credentials(location)!r}: expected a bucket and a path, such as s3://bucket/data/in; keys and "
            "the address of the store are found in the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL)"
        )
        raise OptionError(msg)
    place = f"{'s3' if scheme.lower() == 's3a' else scheme.lower()}://{bucket}"
    path = posixpath.normpath("/" + key.lstrip("/"))
    return ObjectStorage(place), f"{place}{'' if path == '/' else path}"


# Each storage has a line here. Its function returns `None` for a text that is not an address of the storage.
BY_SCHEME: dict[str, Callable[[str, str], tuple[Storage, str] | None]] = {
    "file:": _file,
    "hdfs:": _hdfs,
    **dict.fromkeys(("s3:", "s3a:", "az:", "gs:"), _objects),
}


def _check_path(location: str, name: str) -> None:
    """Raise `OptionError` for text that cannot be a file's name."""
    is_url = location[:5].lower() == "file:"
    try:
        is_path = b"\0" not in os.fsencode(unquote(location) if is_url else location)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        msg = f"{name}={without_credentials(location)!a} is no path: expected characters that file names have, without NUL"
        raise OptionError(msg)


def _check_typed(location: str, name: str) -> None:
    """Raise `OptionError` for text that a shell would expand, or blanks that an editor has added, unless a file has exactly this name."""
    expands, shown = _FOR_SHELLS.match(location), without_credentials(location)
    if (expands is None and location == location.strip()) or os.path.lexists(location):
        return
    if expands is None:
        msg = f"{name}={shown!r} begins or ends with a blank or a line break; expected none there, as in {shown.strip()!r}"
        raise OptionError(msg)
    expanded = os.path.expanduser(location)  # messages never show the values of variables, which may be secret
    example = "/data/out" if expanded == location else expanded
    msg = f"{name}={shown!r}: {expands[0]} is for a shell, and none reads this path; expected the whole path, such as {example}"
    raise OptionError(msg)


def _text(location: object, name: str) -> str:
    """Return a path as text; `OptionError` for anything that is not a path."""
    path = os.fspath(location) if isinstance(location, (str, os.PathLike)) else None
    if not isinstance(path, str):
        msg = f"{name}={location!r}: expected a path as text, or of pathlib"
        raise OptionError(msg)
    return path


def _of_this_host(location: str, name: str) -> str:
    """Return the path after `file:` and the host; `OptionError` if that is another host, or if there is no path."""
    if location and not location.startswith("//"):
        return location
    host, slash, path = location[2:].partition("/")
    if host.lower() not in {"", "localhost"}:
        host = host.rpartition("@")[2]
        msg = (
            f"{name}: file://{host}{slash}{path} is on the host {host!r}; expected a path of this one, such as "
            f"file:///{host}{slash}{path} or file:///{path}"
        )
        raise OptionError(msg)
    if not slash:
        msg = f"{name}={'file:' + location!r} names no path; expected one such as file:///data/in"
        raise OptionError(msg)
    return slash + path
