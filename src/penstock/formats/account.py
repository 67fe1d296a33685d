"""An account of what is worth reporting about records besides their rows: keys that no column has, and columns without a value.

A key that is misspelt in the schema gives a column of nulls, and a key of the data that is dropped. Neither is an
error, but users want to know of both. So the code that reads keeps an account, tasks hand theirs on with what they
wrote, and the sink adds them up for as long as it lives. An account is small whatever the data: it has at most a
hundred names, the most frequent ones, each cut off at a hundred characters; the others are only counted.

`unknown` counts the keys of records that no column has, by their path (`user.nme`). If counting all of them would slow
down the reading, only a part of the records is examined, and `partial` says that the numbers are lower bounds.
`rescued` counts the records of which something went to the rescue column, because no other column has or accepts it.
`nulls` has each column that was null in every row of the last batch, and for how many rows in a row it has been null by
now; for a column that never had a value these are all `rows`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    Place = tuple[int, ...]

NAMES_MAX = 100
_NAME_CHARACTERS = 100
_NAMES_SHOWN = 10
_ALIKE = 0.75


@dataclass
class Account:
    """What was seen in some records, or in all that a sink has taken; `more`: keys for which there was no room among the names."""

    rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    more: int = 0
    partial: bool = False
    rescued: int = 0

    def clear(self) -> None:
        """Forget all that was entered."""
        for name, value in vars(Account()).items():
            setattr(self, name, value)

    def count(self, keys: Iterable[tuple[str, int]], others: int = 0) -> None:
        """Add keys that no column has, each with how often it occurred; `others` counts occurrences of further keys."""
        for key, times in keys:
            name = _shortened(key)
            self.unknown[name] = self.unknown.get(name, 0) + times
        kept = sorted(self.unknown.items(), key=lambda item: (-item[1], item[0]))
        self.more += others + sum(times for _, times in kept[NAMES_MAX:])
        self.partial |= len(kept) > NAMES_MAX  # a name that had no room once and comes back is counted from then on
        self.unknown = dict(kept[:NAMES_MAX])

    def take_in(self, other: Account) -> None:
        """Add the keys and rescued records that another account has counted; its rows are not added."""
        self.partial |= other.partial
        self.rescued += other.rescued
        self.count(other.unknown.items(), other.more)

    def beside(self, other: Account) -> Account:
        """Return the account of the rows of both, which belong to one batch: a null column is null in each account that has rows."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        rows = self.rows + other.rows
        return self._together(other, {name: rows for name in self.nulls if name in other.nulls})

    def followed_by(self, batch: Account) -> Account:
        """Return the account of these rows and those of the next batch."""
        if not batch.rows:
            return self
        return self._together(batch, {name: self.nulls.get(name, 0) + batch.rows for name in batch.nulls})

    def _together(self, other: Account, nulls: dict[str, int]) -> Account:
        partial, rescued = self.partial or other.partial, self.rescued + other.rescued
        both = Account(self.rows + other.rows, nulls, dict(self.unknown), self.more, partial, rescued)
        both.count(other.unknown.items(), other.more)
        return both

    def to_json(self) -> dict[str, Any]:
        """Return the account in its stored form, without empty parts."""
        form = vars(self) | {"nulls": dict(list(self.nulls.items())[:NAMES_MAX]), "unknown": dict(self.unknown)}
        return {name: value for name, value in form.items() if value}

    @staticmethod
    def from_json(form: Mapping[str, Any]) -> Account:
        """Return the account from its stored form. Raises `TypeError` for an invalid one."""
        return Account(**form)

    def since(self, earlier: Account) -> Account:
        """Return the account of the rows after those of an earlier account of the same sink."""
        rows = self.rows - earlier.rows
        unknown = {name: times - earlier.unknown.get(name, 0) for name, times in self.unknown.items()}
        unknown = {name: times for name, times in unknown.items() if times > 0}
        nulls = {name: rows for name, times in self.nulls.items() if 0 < rows <= times}
        more, rescued = (
            max(now - then, 0) for now, then in ((self.more, earlier.more), (self.rescued, earlier.rescued))
        )
        return Account(rows, nulls, unknown, more, self.partial, rescued)

    @property
    def null_columns(self) -> list[str]:
        """The columns that were null in every one of these rows; none if there are no rows."""
        return [name for name, rows in self.nulls.items() if rows >= self.rows > 0]

    def told(self) -> list[str]:
        """Return what to report about these rows, one sentence per item; columns that had a value in any of them are left out."""
        sentences = []
        if self.null_columns:
            sentences.append(f"null in every row: {_listed(map(repr, self.null_columns))}")
        if self.unknown or self.more:
            least = "at least " if self.partial else ""
            sentences.append(f"in the data, and in no column: {_listed(self._keys(least))}")
        if self.rescued:
            sentences.append(
                f"rescued of {self.rescued:,} record{'s' * (self.rescued != 1)}: what no column has, or takes"
            )
        return sentences

    def _keys(self, least: str) -> Iterator[str]:
        for name, times in self.unknown.items():
            close = difflib.get_close_matches(name, self.null_columns, n=1, cutoff=_ALIKE)
            yield f"{name!r} {least}{_times(times)}{f' (is that column {close[0]!r}?)' if close else ''}"
        if self.more:
            yield f"others {least}{_times(self.more)}"


class Watch:
    """Examines the rows of one task, and notes in its account which columns, except `ignored`, had no value in any of them."""

    def __init__(self, schema: pa.Schema, account: Account, ignored: str | None = None) -> None:
        self._account = account
        self._empty = {path: place for path, place in _places(schema) if path != ignored}

    def through(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows after examining them."""
        for batch in rows:
            self.see(batch)
            yield batch

    def see(self, batch: pa.RecordBatch) -> None:
        """Examine rows of the schema."""
        self._account.rows += batch.num_rows
        if batch.num_rows and self._empty:
            self._empty = {path: place for path, place in self._empty.items() if _is_empty(batch, place)}
        if self._empty or self._account.nulls:
            names = [path for path in self._empty if path.rpartition(".")[0] not in self._empty]
            self._account.nulls = dict.fromkeys(map(_shortened, names), self._account.rows)


def _places(schema: pa.Schema) -> Iterator[tuple[str, Place]]:
    """Yield each column and each member of a column, and the indices that lead there."""
    for index, column in enumerate(schema):
        yield from _below(column, column.name, (index,))


def _below(column: pa.Field, path: str, place: Place) -> Iterator[tuple[str, Place]]:
    yield path, place
    kind = column.type
    while types.is_list(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        for index, member in enumerate(kind):
            yield from _below(member, f"{path}.{member.name}", (*place, index))


def _is_empty(batch: pa.RecordBatch, place: Place) -> bool:
    column = batch.column(place[0])
    for index in place[1:]:
        while types.is_list(column.type):
            column = column.flatten()
        column = column.flatten()[index]  # also null if the struct is
    return bool(column.null_count == len(column))


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS else name[: _NAME_CHARACTERS - 3] + "..."


def _times(count: int) -> str:
    return f"{count:,} time{'s' * (count != 1)}"


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = [f"and {len(shown) - _NAMES_SHOWN} more"] if len(shown) > _NAMES_SHOWN else []
    return ", ".join(shown[:_NAMES_SHOWN] + more)
