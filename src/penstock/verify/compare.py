"""Compares two collections of records: they are equal as multisets, or some records show how they differ.

The first pass adds up hashes (`sums`), for all units of both sides in parallel. Only if the sums differ, a second pass finds the
ranges of hashes that differ, and a third pass reads the records of a few of those ranges, file by file, to give examples. Each
pass needs bounded memory: two numbers, a table of fixed size, and the distinct records of a few ranges out of 65,536.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.verify.sums import LINES, Ranges, Sums, hashes, range_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from penstock.verify.records import Unit
    from penstock.verify.sums import Places

EXAMPLES_MAX = 5
_RANGES_MAX = 16
_FILES_MAX = 3
_SHOWN_CHARACTERS = 200
_KINDS = ("missing", "doubled", "foreign")  # in the order in which they are shown
_T = TypeVar("_T")


@dataclass(frozen=True)
class Example:
    """A record that one side has more often. `kind` is the output's view: missing, doubled or foreign."""

    kind: str
    record: str
    in_source: int
    in_output: int
    source_files: tuple[str, ...]
    output_files: tuple[str, ...]


@dataclass(frozen=True)
class Sides:
    """Both sides, as units; `traced` returns the source with one unit for each file. `parallel`: units may be read in parallel."""

    source: tuple[Unit, ...]
    output: tuple[Unit, ...]
    traced: Callable[[], Iterable[Unit]]
    parallel: bool
    progress: Callable[[int, int], None]


def sums(sides: Sides) -> tuple[Sums, Sums]:
    """Return the sums of the source and of the output. The output is read first: a live query removes what it has staged."""
    units = [*sides.output, *sides.source]
    parts = _side_by_side(_sums, units, sides)
    count = len(sides.output)
    return sum(parts[count:], Sums()), sum(parts[:count], Sums())


def examples(sides: Sides) -> list[Example]:
    """Return at most `EXAMPLES_MAX` records that the sides do not have equally often, some of each kind."""
    source, output = _ranges(sides.source, sides), _ranges(sides.output, sides)
    chosen = source.differing(output)[:_RANGES_MAX]
    suspects: dict[int, _Suspect] = {}
    for unit in sides.traced():
        _trace(unit, chosen, suspects, is_output=False)
    for unit in sides.output:
        _trace(unit, chosen, suspects, is_output=True)
    return _varied([suspect.example() for suspect in suspects.values() if suspect.in_source != suspect.in_output])


def _varied(differing: list[Example]) -> list[Example]:
    """Return at most `EXAMPLES_MAX` examples, sorted by kind.

    They are chosen from the kinds in turn, so that no kind pushes out another.
    """
    by_kind = [[example for example in differing if example.kind == kind] for kind in _KINDS]
    rounds = zip_longest(*by_kind)
    in_turns = [example for turn in rounds for example in turn if example is not None]
    return sorted(in_turns[:EXAMPLES_MAX], key=lambda example: _KINDS.index(example.kind))


def _sums(unit: Unit) -> Sums:
    return sum((Sums.of(bucket, rows) for bucket, rows in unit.read()), Sums())


def _ranges(units: tuple[Unit, ...], sides: Sides) -> Ranges:
    def of(unit: Unit) -> Ranges:
        ranges = Ranges()
        for bucket, rows in unit.read():
            ranges.add(bucket, rows)
        return ranges

    whole = Ranges()
    for part in _side_by_side(of, units, sides):
        whole.merge(part)
    return whole


def _side_by_side(work: Callable[[Unit], _T], units: Iterable[Unit], sides: Sides) -> list[_T]:
    """Return the result of `work` for each unit, in order; runs on all cores if `sides.parallel` allows it."""
    units = list(units)
    total = sum(unit.size for unit in units)
    done = 0
    results = []
    pool = ThreadPoolExecutor((os.cpu_count() or 1) if sides.parallel else 1, "penstock-verify")
    try:
        for unit, result in zip(units, pool.map(work, units), strict=True):
            results.append(result)
            done += unit.size
            sides.progress(done, total)
    finally:
        # After an error the rest is not needed.
        pool.shutdown(cancel_futures=True)
    return results


@dataclass
class _Suspect:
    """A record of a differing range."""

    record: str
    in_source: int = 0
    in_output: int = 0
    source_files: list[str] = field(default_factory=list)
    output_files: list[str] = field(default_factory=list)

    def add(self, count: int, file: str, *, is_output: bool) -> None:
        files = self.output_files if is_output else self.source_files
        if file not in files and len(files) < _FILES_MAX:
            files.append(file)
        if is_output:
            self.in_output += count
        else:
            self.in_source += count

    def example(self) -> Example:
        files = tuple(self.source_files), tuple(self.output_files)
        return Example(self._kind(), self.record, self.in_source, self.in_output, *files)

    def _kind(self) -> str:
        if self.in_output < self.in_source:
            return "missing"
        return "doubled" if self.in_source else "foreign"


def _trace(unit: Unit, ranges: Places, suspects: dict[int, _Suspect], *, is_output: bool) -> None:
    """Count the records of the chosen ranges in one unit. Only these few records are touched one by one."""
    for bucket, rows in unit.read():
        row_hashes = hashes(bucket, rows)
        places = np.flatnonzero(np.isin(range_of(row_hashes), ranges))
        values, first, counts = np.unique(row_hashes[places], return_index=True, return_counts=True)
        for value, at, count in zip(values.tolist(), first.tolist(), counts.tolist(), strict=True):
            if value not in suspects:
                suspects[value] = _Suspect(_shown(rows, int(places[at])))
            suspects[value].add(count, unit.label, is_output=is_output)


def _shown(rows: pa.RecordBatch, at: int) -> str:
    """Return a record on one line, for people."""
    if rows.schema == LINES:
        text = str(rows.column(0)[at].as_py(), "utf-8", "replace").rstrip("\n")
    else:
        text = json.dumps(rows.slice(at, 1).to_pylist()[0], default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
