"""The registry: it finds the object of a format by its name.

The names are `options.formats.FORMATS`, and the object of each is `FORMAT` in the module of its name in
`formats.known`. The module is imported on demand, because a process needs one or two of them, and each may import a
library.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from penstock.errors import OptionError
from penstock.formats.codecs import codec_of
from penstock.formats.families import Format, RecordFormat, TableFormat
from penstock.options.formats import READ, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.options import Option, Options


@lru_cache
def format_named(name: str) -> Format:
    """Return the format of this name; `OptionError` if there is none. Its `prepare` tells whether a library that it needs is missing."""
    if name not in READ:
        msg = f"format={name!r} is not known: expected one of {', '.join(READ)}"
        raise OptionError(msg)
    return cast("Format", importlib.import_module(f"penstock.formats.known.{name}").FORMAT)


def record_format(name: str, done: str = "kept") -> RecordFormat:
    """Return the format of this name if its files are sequences of records; `OptionError` if not."""
    form = format_named(name)
    if isinstance(form, RecordFormat):
        return form
    records = names(lambda other: isinstance(other, RecordFormat))
    msg = f"format={name!r} is not {done} in lines: expected {enumerated(records)}"
    raise OptionError(msg)


def table_format(name: str) -> TableFormat:
    """Return the format of this name if its files are tables; `OptionError` if not."""
    form = format_named(name)
    if isinstance(form, TableFormat):
        return form
    tables = names(lambda other: isinstance(other, TableFormat))
    msg = f"format={name!r} is not a table: expected {enumerated(tables)}"
    raise OptionError(msg)


def names(having: Callable[[Format], bool], of: tuple[str, ...] = READ) -> tuple[str, ...]:
    """Return the names of the formats for which `having` holds, in the order of the registry. Loads all of them: for messages."""
    return tuple(name for name in of if having(format_named(name)))


def format_of(path: str) -> Format | None:
    """Return the format that a file's name indicates, compressed or not; `None` if that is no format written here. Loads all formats."""
    name = path.rpartition("/")[2]
    plain = name.rpartition(".")[0] if codec_of(name) else name
    return next((form for form in map(format_named, WRITTEN) if plain.endswith(form.extension)), None)


def growing() -> tuple[str, ...]:
    """Return the names of the formats whose files can grow while they are read."""
    return names(lambda form: isinstance(form, RecordFormat), WRITTEN)


_ENDS = ", whose records end by themselves: those of csv with \\n, \\r\\n or \\r, whichever a file has"


def check_options(options: Options, table: tuple[Option, ...], own: Callable[[Format], frozenset[str]]) -> None:
    """Raise `OptionError` for an option that belongs to other formats; `own` returns which of the `table` belong to a format."""
    form = format_named(options["format"])
    for option in table:
        if option.special and option.name in options.given and option.name not in own(form):
            owners = [name for name in READ if option.name in own(format_named(name))]
            why = _ENDS if option.name == "lineSep" else ""
            msg = f"{option.name} is for format={' or '.join(owners)}, found format={form.name}{why}; leave it out"
            raise OptionError(msg)


def enumerated(words: tuple[str, ...]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
