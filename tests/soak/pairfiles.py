"""The files of a case of `pairs`, made by others, and what is known of each: its rows, and what of it is set aside or left out."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import fastavro
import polars as pl
import pyarrow as pa
import zstandard
from pyarrow import orc

from tests.support import keys

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.soak.pairs import Case

Row = dict[str, Any]

RECORDS = ("text", "json", "csv")
TABLES = ("parquet", "orc", "avro")
PACKING: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
# The values of the column `k`, and how they stand in the name of a directory after `k=`.
DIRECTORIES = {
    "a": "a", "b/c": "b%2Fc", "ü": "ü", None: "__HIVE_DEFAULT_PARTITION__", "x=y": "x%3Dy", ".h": ".h", "d e": "d e", "_u": "_u",
    "100%": "100%25",
}  # fmt: skip
_KEYS = tuple(DIRECTORIES)
_WORDS = (
    "plain",
    'q"uote',
    "comma, x",
    "back\\slash",
    "tab\t.",
    "ö",
    None,
    "NULL",
    "'s",
    "#",
    "semi;x",
    "{}",
    "1",
    "x" * 300,
)
_AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "k", "type": ["null", "string"]},
        {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "v", "type": ["null", "string"]},
    ],
}
_ARROW = pa.schema([("id", pa.int64()), ("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.string())])
_POLARS: dict[str, Any] = {"id": pl.Int64, "k": pl.String, "t": pl.Datetime("us", "UTC"), "v": pl.String}
_FIRST = datetime(2026, 1, 30, tzinfo=timezone.utc)
STAGE_SECONDS = 1000


@dataclass
class Made:
    """One file: the rows in it that are read `times` times, and what of it is set aside; `skipped`: it is not read at all."""

    path: Path
    rows: list[Row]
    modified: float
    bad: int = 0
    is_bad: bool = False
    times: int = 1
    skipped: bool = False


class Files:
    """All files of a case below `src`, as they are made, in stages one after another."""

    def __init__(self, case: Case, room: Path) -> None:
        self.case = case
        self.room = room
        self.src = room / "in"
        self.made: list[Made] = []
        self.base = int(time.time()) - 9 * STAGE_SECONDS
        self._chance = random.Random(f"{case.seed} files")  # noqa: S311 - repeatable
        self._ids = 0

    def stage(self, stage: int) -> None:
        """Put the files of a stage, which are later than those before; the first one has a link, too."""
        places = self._places
        for number in range(self._chance.randint(len(places), len(places) + 2)):
            self.made.append(self._file(stage, number, places[number % len(places)]))
        if stage == 0:
            self._link()
        if self.case.get("source.files"):
            lists = self.room / "lists"
            lists.mkdir(exist_ok=True)
            names = [str(made.path.relative_to(self.src)) for made in self.made if f"f{stage}" in made.path.name]
            path = lists / f"f{stage}.txt"  # options that select files select lists
            path.write_text("".join(f"{name}\n" for name in names))
            os.utime(path, (self.base + stage,) * 2)

    def late(self) -> None:
        """Put a file whose time is that of the first stage."""
        self.made.append(self._file(0, 5, self._places[0]))

    def grow(self) -> None:
        """Append records to each file that is followed."""
        for made in self.made:
            more = Made(made.path, [self._row() for _ in range(3)], made.modified)
            data = self._content(more, begun=True)
            with made.path.open("ab") as file:
                file.write(data)
            made.rows += more.rows
            made.bad += more.bad

    @property
    def read(self) -> list[Made]:
        """Return the files that are read."""
        return [made for made in self.made if not made.skipped]

    @property
    def later(self) -> datetime:
        """Return the time between the first file of the second stage and the next one."""
        return datetime.fromtimestamp(self.base + STAGE_SECONDS + 10, timezone.utc)

    @cached_property
    def columns_of_directories(self) -> bool:
        """Whether directories are columns."""
        return self.case.get("layout") == "partitions" and not self.case.on("source.partitionColumns", "none")

    # -- where -------------------------------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> list[Path]:
        layout = self.case.get("layout")
        is_one = self.case.get("paths") == "directory" or self.case.get("source.files")
        roots = [self.src] if is_one else [self.src / "d1", self.src / "d2"]
        if layout == "partitions":
            return [root / f"p={value}" for root in roots for value in ("1", "b")]
        return [root / "deeper" for root in roots] + roots if layout == "deep" else roots

    def _is_read(self, made: Made) -> bool:
        case, place = self.case, made.path.parent
        early = case.on("source.startingFrom", "TIME") or case.on("source.modifiedAfter", "TIME")
        if early and made.modified < self.later.timestamp():
            return False
        entered = case.on("source.recursiveFileLookup") or bool(case.get("source.files"))
        if place.name.startswith("p="):
            return entered or self.columns_of_directories
        return entered or place.name != "deeper"

    def _link(self) -> None:
        """Put a symbolic link to a file: to one that is read, or out of the input."""
        case = self.case
        if case.get("links") == "none" or not self.read:
            return
        made = self.read[0]
        if case.get("links") == "inside":
            made.path.with_name(f"f9{made.path.name[1:]}").symlink_to(made.path)
            made.times = 2
            return
        outside = self._file(0, 8, self.room / "outside")
        link = made.path.with_name(outside.path.name)
        link.symlink_to(outside.path)
        outside.path = link
        outside.skipped = not self._is_read(outside) or not case.on("source.followSymlinks")
        self.made.append(outside)

    # -- one file ----------------------------------------------------------------------------------------------------

    def _file(self, stage: int, number: int, place: Path) -> Made:
        case, chance = self.case, self._chance
        rows = [self._row() for _ in range(chance.randint(1, 9))]
        is_followed = case.on("source.follow")
        packed = case.get("packing") if case.format in RECORDS and not is_followed else ""
        locked = ".age" if case.get("source.decryptionKey") and not is_followed and chance.random() < 0.5 else ""
        ending = {"text": "txt"}.get(case.format, case.format)
        path = place / f"f{stage}{number}.{ending}{packed}{locked}"
        made = Made(path, rows, self.base + STAGE_SECONDS * stage + 20 * number)
        data = PACKING[packed](self._content(made))
        if case.on("source.badFiles", "quarantine") and (packed or case.format in TABLES) and chance.random() < 0.4:
            made.is_bad, made.rows, made.bad = True, [], 0
            data = data[: len(data) // 2]
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f"_{path.name}")
        hidden.write_bytes(keys.encrypted(data) if locked else data)
        os.utime(hidden, (made.modified,) * 2)
        hidden.rename(path)
        made.skipped = not self._is_read(made)
        return made

    def _row(self) -> Row:
        chance = self._chance
        self._ids += 1
        at = _FIRST + timedelta(hours=chance.randrange(60), minutes=15)
        return {"id": self._ids, "k": chance.choice(_KEYS), "t": at, "v": chance.choice(_WORDS)}

    def _content(self, made: Made, *, begun: bool = False) -> bytes:
        """Return the bytes of a file with these rows, and bad records beside them; `begun`: it goes on with a file that is there."""
        if self.case.format in TABLES:
            return self._table(made.rows)
        encoding = self.case.get("source.encoding") or "UTF-8"
        if self.case.format == "text":
            return self._text(made, encoding)
        return self._json(made, encoding) if self.case.format == "json" else self._csv(made, encoding, begun=begun)

    def _time(self, at: datetime) -> str:
        zone = ZoneInfo(self.case.get("source.timeZone") or "UTC")
        if self.case.get("source.timestampFormat"):
            return at.astimezone(zone).strftime("%d/%m/%Y %H:%M:%S")
        if self.case.get("source.timeZone"):
            return at.astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S")
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    @cached_property
    def _sets_aside(self) -> bool:
        return self.case.on("source.badRecords", "quarantine") or self.case.on("source.mode", "DROPMALFORMED")

    def _text(self, made: Made, encoding: str) -> bytes:
        case, sep = self.case, self.case.get("source.lineSep") or self._chance.choice(("\n", "\r\n"))
        for row in made.rows:
            row["value"] = f"{row['id']}|{row['k']}|{row['v'] or ''}"
        content = "".join(row["value"] + sep for row in made.rows).encode(encoding)
        rule = case.get("source.encodingErrors") or ("quarantine" if self._sets_aside else None)
        if encoding != "UTF-8" or rule is None or self._chance.random() < 0.5:
            return content
        row = self._row()
        if rule == "quarantine":
            made.bad += 1
        else:
            made.rows.append(row | {"value": f"{row['id']}||\ufffd"})
        return content + f"{row['id']}||".encode() + b"\xff" + sep.encode()

    def _json(self, made: Made, encoding: str) -> bytes:
        shown = [(row, *self._object(row)) for row in made.rows]
        made.rows = [row for row, _, is_bad in shown if not is_bad]
        made.bad += sum(is_bad for _, _, is_bad in shown)
        objects = [found for _, found, _ in shown]
        if self.case.on("source.multiLine"):
            body = objects[0] if len(objects) == 1 else objects
            return json.dumps(body, indent=2, ensure_ascii=False).encode(encoding)
        lines = [json.dumps(each, ensure_ascii=self._chance.random() < 0.5) for each in objects]
        if self._sets_aside and self._chance.random() < 0.7:
            lines.insert(self._chance.randrange(len(lines) + 1), self._chance.choice(("nothing", '{"id": 1', "[]")))
            made.bad += 1
        sep = self.case.get("source.lineSep") or "\n"
        return "".join(line + sep for line in lines).encode(encoding)

    def _object(self, row: Row) -> tuple[Row, bool]:
        """Return a row as an object of JSON, with names too many or too few, and whether it is set aside for that."""
        case, chance = self.case, self._chance.random()
        found = row | {"t": self._time(row["t"])}
        if chance < 0.2 and case.get("schema") == "given":
            fails = case.on("source.unknownFields", "fail")
            if not fails or self._sets_aside:
                found["extra"] = {"deep": row["id"]}
                row["_rescued"] = self._rescues
            return found, fails and self._sets_aside
        fails = case.on("source.missingFields", "fail")
        if chance < 0.4 and (not fails or self._sets_aside):
            del found["v"]
            row["v"] = None
            return found, fails
        return found, False

    @cached_property
    def _rescues(self) -> bool:
        """Whether names that no column has are rescued."""
        rule = self.case.get("source.unknownFields")
        return bool(self.case.get("source.rescuedDataColumn")) and rule in {None, "rescue"}

    def _csv(self, made: Made, encoding: str, *, begun: bool) -> bytes:
        case, chance = self.case, self._chance
        sep = {"\\t": "\t"}.get(case.get("source.sep"), case.get("source.sep") or ",")
        columns, lines = ["id", "k", "t", "v"], []
        # Columns that are inferred stand in the output as the first file has them, which only a header there tells.
        told = case.get("schema") == "given" or case.get("to") != "csv" or case.on("sink.header")
        if case.on("source.header") and told and not begun and not case.on("source.follow"):
            chance.shuffle(columns)
        more = case.on("source.header") and not begun and case.get("schema") == "given" and chance.random() < 0.3
        more = more and not case.on("source.unknownFields", "fail") and not case.on("source.follow")
        if case.on("source.header") and not begun:
            lines.append(sep.join([*columns, *["extra"] * more]))
        for row in made.rows:
            shown = row | {"t": self._time(row["t"])}
            lines.append(sep.join([*(self._cell(shown[name]) for name in columns), *["more"] * more]))
            row["_rescued"] = more and self._rescues
        if case.get("source.comment"):
            lines.insert(1, "# a comment")
        if self._sets_aside and chance.random() < 0.7:
            lines.append(sep.join(["1"] * 9))
            made.bad += 1
        return "".join(line + "\n" for line in lines).encode(encoding)

    def _cell(self, value: Any) -> str:
        case = self.case
        if value is None:
            return case.get("source.nullValue") or ""
        if isinstance(value, int):
            return str(value)
        quote = case.get("source.quote") or '"'
        escape = case.get("source.escape") or quote
        text = str(value) if escape == quote else str(value).replace(escape, escape * 2)
        return quote + text.replace(quote, escape + quote) + quote

    def _table(self, rows: list[Row]) -> bytes:
        file = io.BytesIO()
        if self.case.format == "avro":
            fastavro.writer(file, _AVRO, rows)
        elif self.case.format == "orc":
            orc.write_table(pa.Table.from_pylist(rows, _ARROW), file)
        else:
            pl.DataFrame(rows, schema=_POLARS).write_parquet(file)
        return file.getvalue()
