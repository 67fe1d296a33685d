"""One way to check given options against a table, and to refuse all others with a hint at what was meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import OptionError
from penstock.options import batch, elsewhere, finished
from penstock.options.database import DATABASE
from penstock.options.kafka import KAFKA
from penstock.options.log import LOG
from penstock.options.mode import apply_mode
from penstock.options.option import Option, Options
from penstock.options.published import PUBLISHED
from penstock.options.sink import SINK
from penstock.options.source import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

# The options that are required in each table that has them, and how to give them.
_NEEDED = {
    "path": '.option("path", directory) or the path as the last argument',
    "url": '.option("url", "postgresql://user@host/database") or sqlite:///path/of/the/file.db',
    "table": '.option("table", "name")',
}

# Spark gives the path of a table in a catalog to nobody.
_NO_TABLES = (
    "; there are no tables of format penstock, whatever CREATE TABLE, saveAsTable or toTable have entered in a catalog: an output is "
    "written and read by its path, and as files it is a table of its own format, such as CREATE TABLE ... USING parquet LOCATION ..."
)
_MAY_BE_TABLES = ("sink", "batch read", "batch write")

# The names of the options of each connector, in lower case.
BY_CONNECTOR = {
    owner: {option.name.lower() for option in table}
    for owner, table in {
        "source": SOURCE,
        "sink": SINK,
        "log": LOG,
        "database sink": DATABASE,
        "topic source": KAFKA,
        "source with emit=published": PUBLISHED,
        "batch read": finished.OWN,
        "batch write": batch.OWN,
    }.items()
}


def parse(table: tuple[Option, ...], given: Mapping[str, str], *, what: str, noted: bool = False) -> Options:
    """Return the checked options; `what` ("source", "sink", "log") is for messages.

    Raises `OptionError` for an unknown name, with the nearest known name; for an option that is given twice, in different case or by
    different names; for a value that its parser refuses; and for an option that means nothing without another one. The last is not
    checked for `noted` options: they were accepted once, perhaps by a version that did not check it. An option that is given by an
    alias is returned under its own name.
    """
    values = {option.name: option.default_value for option in table}
    written: dict[str, str] = {}
    by_name = {name: option for option in table for name in option.names}
    for name, value in given.items():
        option = by_name.get(name.lower())
        if option is None:
            _refuse(name, list(values), what)
        if option.name in written:
            names = " and ".join(_names_of(option, given))
            msg = f"{what} option {option.name} is given twice, as {names}; leave one of them out"
            raise OptionError(msg)
        written[option.name] = str(value)
        values[option.name] = option.parse(str(value), option.name)
    apply_mode(values, written)
    _check_needed(values, what)
    if not noted:
        _check_meaning(table, values, written)
    return Options(values, written)


def _names_of(option: Option, given: Mapping[str, str]) -> list[str]:
    """Return the names by which the user gave an option."""
    return [name for name in given if name.lower() in option.names]


def _check_needed(values: Mapping[str, object], what: str) -> None:
    """Raise `OptionError` if a required option was not given."""
    for name, needed in _NEEDED.items():
        if name in values and values[name] is None and not (name == "path" and values.get("paths")):
            table = _NO_TABLES if name == "path" and what in _MAY_BE_TABLES else ""
            msg = f"the {what} needs a {name}: expected {needed}{table}"
            raise OptionError(msg)


def _check_meaning(table: tuple[Option, ...], values: Mapping[str, object], written: Mapping[str, str]) -> None:
    """Refuse an option that the user gave and that has no effect, because none of the options that it needs was given."""
    defaults = {option.name: option.default_value for option in table}
    for option in table:
        if option.name not in written or values[option.name] == option.default_value:
            continue
        needs = [need for need in option.needs if need.partition("=")[0] in defaults]
        if not needs:
            continue
        if not any(_is_met(need, values, defaults) for need in needs):
            *others, last = needs
            either = f"{', '.join(others)} or {last}" if others else last
            which = "one of them" if others else "it"
            msg = f"{option.name} is for {either}, and has no effect without {which}; set {which}, too, or leave {option.name} out"
            raise OptionError(msg)


def _is_met(need: str, values: Mapping[str, object], defaults: Mapping[str, object]) -> bool:
    """Tell whether an option has the needed value, or, if `need` has no value, any other than its default."""
    name, _, wanted = need.partition("=")
    value = values[name]
    return str(value).lower() == wanted if wanted else value != defaults[name]


def _refuse(name: str, known: list[str], what: str) -> NoReturn:
    """Refuse a name that is not among the `known` ones; say what to use instead, where it belongs, or the nearest known name."""
    if instead := elsewhere.advice(name, what):
        msg = f"unknown option {instead[0]!r} for the penstock {what}: {instead[1]}"
        raise OptionError(msg)
    hint = _owners(name) or _nearest(name, known)
    msg = f"unknown option {name!r} for the penstock {what}{hint}; known are {', '.join(sorted(known))}"
    raise OptionError(msg)


def _owners(name: str) -> str:
    """Return in words the other tables that have an option of this name; empty if there are none."""
    owners = [owner for owner, names in BY_CONNECTOR.items() if name.lower() in names]
    return f": it is one of the {' and the '.join(owners)}" if owners else ""


def _nearest(name: str, known: list[str]) -> str:
    """Return in words the option with the nearest name; empty if none is near."""
    by_lower = {option.lower(): option for option in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
