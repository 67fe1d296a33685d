"""The input: a seeded generator makes the same bytes for the same seed, and they are kept between runs.

The records look like typical input: log lines, JSON events, CSV with quoted fields. All records differ, because with equal
records dictionaries and branch prediction would make both contenders look better than they are.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from benchmarks.shapes import SHAPES, fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

SEED = 20261120
VERSION = 1  # of the generator; another version makes other bytes
COLUMNS = {"id": "long", "ts": "timestamp", "user": "string", "country": "string", "score": "double", "msg": "string"}
CSV_HEADER = f"{','.join(COLUMNS)}\n".encode()
BLOCK_BYTES = 1 << 20
LONG_AGO = 1_767_225_600  # 2026-01-01: input that settled long ago, and is the same file in every run

_EXTENSION = {"text": "log", "json": "json", "csv": "csv"}
_COUNTRIES = ("de", "fr", "jp", "us", "br", "in", "se", "ke")
_LEVELS = ("INFO", "INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
_TEXT = """request accepted connection closed by peer after timeout while reading block replica of file user session
started cache miss for key order payment captured refund pending retry scheduled München Zürich naïve upstream answered
slowly partition assigned offset committed snapshot written index merged segment"""


@dataclass(frozen=True)
class Recipe:
    """The parameters of a data set: about `size` bytes of `form` (text, json, csv, one of `SHAPES`) in `files` files of equal size."""

    form: str
    size: int
    files: int
    seed: int = SEED

    @property
    def name(self) -> str:
        """Return the directory's name: it contains everything that changes the bytes."""
        return f"{self.form}-{self.size}-{self.files}-{self.seed}-v{VERSION}"


@dataclass(frozen=True)
class DataSet:
    """An existing data set: `paths` in order of their names, `rows` records, `size` bytes."""

    paths: tuple[str, ...]
    directory: str
    form: str
    rows: int
    size: int

    def warm(self) -> None:
        """Read all of it once, so that the first contender does not pay for the disk reads."""
        for path in self.paths:
            with open(path, "rb") as file:  # noqa: PTH123 - 100,000 of them
                while file.read(BLOCK_BYTES):
                    pass


def made(recipe: Recipe, root: Path) -> DataSet:
    """Return the data set of the recipe below `root`; make it unless an earlier run did."""
    directory = root / recipe.name
    manifest = directory / "_manifest.json"  # both contenders ignore this name
    if not manifest.is_file():
        _make(recipe, directory)
    facts = json.loads(manifest.read_text())
    paths = sorted(entry.path for entry in os.scandir(directory) if not entry.name.startswith("_"))
    if len(paths) != recipe.files:
        msg = f"{directory} has {len(paths)} files, expected {recipe.files}: remove it, it will be made again"
        raise FileNotFoundError(msg)
    return DataSet(tuple(paths), str(directory), recipe.form, facts["rows"], facts["bytes"])


def format_of(form: str) -> str:
    """Return the format of the files of a form."""
    return "json" if form in SHAPES else form


def schema(form: str) -> str:
    """Return the records' schema as Spark's JSON."""
    columns = {"value": "string"} if form == "text" else COLUMNS
    return json.dumps({"type": "struct", "fields": fields(SHAPES[form].columns if form in SHAPES else columns)})


def ddl(form: str) -> str:
    """Return the schema of plain records as users write it."""
    if form in SHAPES:
        msg = f"{form} has columns that are no names of types alone"
        raise ValueError(msg)
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def plain(rows: int) -> pa.RecordBatch:
    """Return the first plain records as rows."""
    from penstock.formats import ReadFormat, decoder  # noqa: PLC0415 - to make files needs nothing of it
    from penstock.formats.schema import to_arrow  # noqa: PLC0415 - likewise

    lines = islice(_json_lines(random.Random(SEED)), rows)  # noqa: S311 - repeatable, not secret
    return decoder(ReadFormat("json", to_arrow(schema("json")))).decode(b"".join(lines))


def _make(recipe: Recipe, directory: Path) -> None:
    """Make the files next to their final place, and move them there when they are complete."""
    making = directory.with_name(f"{directory.name}.making-{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    making.mkdir(parents=True)
    rows = size = 0
    records = _records(recipe.form, random.Random(f"{recipe.seed}/{recipe.form}"))  # noqa: S311 - repeatable, not secret
    for number in range(recipe.files):
        path = making / f"part-{number:06d}.{_EXTENSION[format_of(recipe.form)]}"
        with path.open("wb") as file:
            for block, lines in _blocks(records, recipe.form, recipe.size // recipe.files):
                file.write(block)
                rows += lines
        os.utime(path, (LONG_AGO, LONG_AGO))
        size += path.stat().st_size
    facts = {"rows": rows, "bytes": size, "recipe": asdict(recipe)}
    (making / "_manifest.json").write_text(json.dumps(facts))
    making.rename(directory)


def _blocks(records: Iterator[bytes], form: str, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, records) of one file of at least `size` bytes and at least one record."""
    block = [CSV_HEADER] if form == "csv" else []
    rows = written = length = 0
    for record in records:
        block.append(record)
        rows, length = rows + 1, length + len(record)
        done = written + length >= size
        if done or length >= BLOCK_BYTES:
            yield b"".join(block), rows
            block, rows, written, length = [], 0, written + length, 0
        if done:
            return


def _records(form: str, chance: random.Random) -> Iterator[bytes]:
    """Yield records for ever."""
    if form in SHAPES:
        return SHAPES[form].records(chance)
    return {"text": _log_lines, "json": _json_lines, "csv": _csv_lines}[form](chance)


def _log_lines(chance: random.Random) -> Iterator[bytes]:
    messages = _messages(chance)
    for number in count():
        yield (
            f"2026-03-{1 + number % 28:02d} {number % 24:02d}:{number % 60:02d}:{number % 59:02d},{number % 1000:03d} "
            f"{chance.choice(_LEVELS)} [worker-{number % 64}] {chance.choice(messages)} request={chance.getrandbits(48):012x}\n"
        ).encode()


def _json_lines(chance: random.Random) -> Iterator[bytes]:
    messages = [json.dumps(message, ensure_ascii=False)[1:-1] for message in _messages(chance)]
    for number in count():
        yield (
            f'{{"id": {number}, "ts": "{_time(number)}", "user": "user{chance.randrange(10_000)}", '
            f'"country": "{chance.choice(_COUNTRIES)}", "score": {chance.random()!r}, '
            f'"msg": "{chance.choice(messages)} request={chance.getrandbits(48):012x}"}}\n'
        ).encode()


def _csv_lines(chance: random.Random) -> Iterator[bytes]:
    messages = [message.replace('"', '""') for message in _messages(chance)]
    for number in count():
        message = f"{chance.choice(messages)} request={chance.getrandbits(48):012x}"
        quoted = f'"{message}"' if '"' in message or "," in message else message
        yield (
            f"{number},{_time(number)},user{chance.randrange(10_000)},{chance.choice(_COUNTRIES)},{chance.random()!r},{quoted}\n"
        ).encode()


def _time(number: int) -> str:
    return f"2026-0{1 + number % 9}-{1 + number % 28:02d}T12:{number % 60:02d}:{number % 59:02d}Z"


def _messages(chance: random.Random) -> list[str]:
    """Return messages of 20 to 70 characters; one in sixteen has a comma and a quoted word."""
    words_known, messages = _TEXT.split(), []
    for number in range(20_000):
        words = chance.choices(words_known, k=chance.randrange(3, 8))
        if number % 16 == 0:
            words[0] = f'"{words[0]}",'
        messages.append(" ".join(words))
    return messages


def backlog(directory: Path, files: int, *, end: float, seconds: float) -> int:
    """Write `files` files of one line, with times spread evenly over the `seconds` before `end`; return the rows."""
    directory.mkdir(parents=True)
    lines = _log_lines(random.Random(SEED))  # noqa: S311 - repeatable, not secret
    for number, line in zip(range(files), lines, strict=False):
        path = f"{directory}/done-{number:06d}.log"
        with open(path, "wb") as file:  # noqa: PTH123 - 100,000 of them
            file.write(line)
        time = end - seconds * (files - number) / files
        os.utime(path, (time, time))
    return files
