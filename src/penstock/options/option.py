"""One option, and the checked options of one source or sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.options.parsers import Parser


@dataclass(frozen=True)
class Option:
    """One option: its name, its default as a user would write it (`None`: no default), its parser, and Spark's other names for it.

    `special`: only some formats have it, which list its name; it is refused with all others.

    `needs`: the options without which it has no effect, some with the value that is needed (`follow=true`). One of them is enough.
    """

    name: str
    default: str | None
    parse: Parser
    meaning: str
    aliases: tuple[str, ...] = ()
    special: bool = False
    needs: tuple[str, ...] = ()

    @cached_property
    def default_value(self) -> Any:  # noqa: ANN401 - each option has a type of its own
        """The parsed default, which nobody changes; `None` if there is none."""
        return None if self.default is None else self.parse(self.default, self.name)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names by which a user may give it, in lower case."""
        return frozenset(name.lower() for name in (self.name, *self.aliases))


@dataclass(frozen=True)
class Options:
    """Checked options of one source or sink: `o["rollSize"]` is the parsed value, `o.given` what the user wrote.

    `parse(table, o.given)` gives the same options again, in another process.
    """

    values: Mapping[str, Any]
    given: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - each option has a type of its own
        """Return the parsed value of the option; its default if it was not given."""
        return self.values[name]

    def given_of(self, table: tuple[Option, ...]) -> dict[str, str]:
        """Return what the user wrote for the options in `table`, which may be a part of all options."""
        names = {option.name for option in table}
        return {name: text for name, text in self.given.items() if name in names}
