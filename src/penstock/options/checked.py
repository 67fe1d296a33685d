"""One way to check what was given against a table of options, and to refuse the rest with what was meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import OptionError
from penstock.options import elsewhere
from penstock.options.database import DATABASE
from penstock.options.log import LOG
from penstock.options.option import Option, Options
from penstock.options.sink import SINK
from penstock.options.source import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

# What must be given where a table has it, and how.
_NEEDED = {
    "path": '.option("path", directory) or the path as the last argument',
    "url": '.option("url", "postgresql://user@host/database") or sqlite:///path/of/the/file.db',
    "table": '.option("table", "name")',
}


def parse(table: tuple[Option, ...], given: Mapping[str, str], *, what: str) -> Options:
    """Return the checked options; `what` ("source", "sink", "log") is for messages.

    Raises `OptionError` for an unknown name, naming the nearest one, for one that is there twice, in different case or by
    different names, and for a value its parser refuses. What is given by another name is there by its own.
    """
    known = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values = {o.name: None if o.default is None else o.parse(o.default, o.name) for o in table}
    written = {}
    for name, value in given.items():
        option = known.get(name.lower())
        if option is None:
            _refuse(name, [o.name for o in table], what)
        if option.name in written:
            names = " and ".join(other for other in given if known.get(other.lower()) is option)
            msg = f"{what} option {option.name} is given twice, as {names}; leave one of them out"
            raise OptionError(msg)
        written[option.name] = str(value)
        values[option.name] = option.parse(str(value), option.name)
    for name, needed in _NEEDED.items():
        if name in values and values[name] is None:
            msg = f"the {what} needs a {name}: expected {needed}"
            raise OptionError(msg)
    return Options(values, written)


def _refuse(name: str, known: list[str], what: str) -> NoReturn:
    msg = f"unknown option {name!r} for the penstock {what}"
    if instead := elsewhere.advice(name, what):
        msg = f"unknown option {instead[0]!r} for the penstock {what}: {instead[1]}"
        raise OptionError(msg)
    tables = {"source": SOURCE, "sink": SINK, "log": LOG, "database sink": DATABASE}
    others = [other for other, table in tables.items() if name.lower() in {option.name.lower() for option in table}]
    near = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    hint = next((f"; did you mean {k!r}?" for k in known if near and k.lower() == near[0]), "")
    if others:
        hint = f": it is one of the {' and the '.join(others)}"
    msg = f"{msg}{hint}; known are {', '.join(sorted(known))}"
    raise OptionError(msg)
