"""`penstock init`: a first file of pipelines, from a look at a directory."""

from __future__ import annotations

import json
import posixpath
import re
from typing import TYPE_CHECKING

from penstock.cli.run import toml
from penstock.errors import AlreadyThere, OptionError
from penstock.options import SOURCE, parse
from penstock.options.formats import COLUMNS, READ, VALUES, WRITTEN
from penstock.storage import entry_at, locate
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.source.inferred import Inferred


_EMPTY = '# There is no file yet: say what they will be, such as format = "json" and a schema.\n'


def draft(src: str, dst: str | None, format_name: str | None) -> str:
    """Return a file with one pipeline that reads what is in `src`. Raises what reading a sample raises."""
    from penstock.source.inferred import format_by_names, has_no_file, infer

    storage, path = locate(src, name="DIR")
    entry = entry_at(storage, path)
    if entry is None or not entry.is_directory:
        msg = f"DIR={src!r} is not a directory; expected one with some of the files to read"
        raise OptionError(msg)
    given = {"path": path}
    named = parse(SOURCE, given, what="source")
    name = format_name or format_by_names(named)
    empty = format_name is None and name == named["format"] and has_no_file(named)
    options = parse(SOURCE, given | {"format": name}, what="source")
    inferred = None if options["format"] in VALUES else infer(options)
    return _text(path, dst or f"{path.rstrip('/')}-out", options["format"], _EMPTY if empty else "", inferred)


def _text(src: str, dst: str, name: str, looked: str, inferred: Inferred | None) -> str:
    pipeline = re.sub(r"[^A-Za-z0-9_-]+", "-", posixpath.basename(src.rstrip("/"))).strip("-_") or "first"
    if inferred is not None:
        amount = f"{inferred.files} of {inferred.all_files} files, {format_size(inferred.size)} of {format_size(inferred.all_size)}"
        looked = "".join(
            f"# {' '.join(text.split())}\n" for text in (f"The schema is that of {amount}.", *inferred.told())
        )
    schema = "" if inferred is None else f"schema = {quoted(inferred.ddl)}\n"
    to = name if name in WRITTEN and name in READ else COLUMNS
    lines = f"""\
# penstock check FILE checks whether this can run, penstock run FILE runs it. All keys: penstock check --schema.

drain = "30s" # how long a stop waits for the batch under way

[pipelines.{pipeline}]
schedule = "once" # or "watch", {{ watch = "10s" }}, {{ cron = "5 * * * *", timeZone = "UTC" }}

[pipelines.{pipeline}.source]
{looked}path = {quoted(src)}
format = {quoted(name)}
{schema}
[pipelines.{pipeline}.sink]
path = {quoted(dst)}
format = {quoted(to)}
# bucketBy = "dt={{ts:%Y-%m-%d}}" # a directory a day, of a column that is a time
rollSize = "128m"
"""
    toml.values(lines)  # check that what this writes can be read
    return lines


def quoted(text: str) -> str:
    """Return text as a TOML string, with anything escaped that would be taken for a reference."""
    literal = text.replace("${", "$${")
    return json.dumps(literal, ensure_ascii=False).replace("\x7f", "\\u007f")


def write(text: str, location: str) -> str:
    """Write a new file; return where it is. `OptionError` if the file exists."""
    storage, path = locate(location, name="FILE")
    try:
        storage.put_if_absent(path, text.encode())
    except AlreadyThere as error:
        msg = f"{location} is there already, and stays as it is; name another file with --file, or print with --file -"
        raise OptionError(msg) from error
    return path
