"""Files in every encoding, cut in every way: our reader is compared with Python's own codecs, `csv` and `json` on whole files.

A seed is a case: encoding, separator, format, compression, byte order mark, last line end, invalid bytes, and the
sizes at which files are cut. The reference reader decodes a whole file and splits the result.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import pkgutil
import random
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from encodings import __path__ as codecs_of_python
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import zstandard

from penstock.errors import BadFile, BadRecord, OptionError
from penstock.formats import families, lines
from penstock.formats.csv import cut as csvcut
from penstock.formats.known import csv as known_csv
from penstock.options import SOURCE, parse
from penstock.source import configured, pieces, transcoding

_NOT_OF_FILES = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}
_USUAL = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1")
_ASIAN = ("shift_jis", "cp932", "gbk", "gb18030", "big5", "euc_jp", "euc_kr", "iso2022_jp", "hz", "johab", "cp949")
_SEPARATORS = (
    *"\n|;,~\\§aA0@",
    "\r",
    "\r\n",
    "||",
    "\n\n",
    "aba",
    "€",
    "、",
    "\u0a00",
    "\u010a",
    "😀",
    "\t",
    "\0",
    "|\n",
    "~~",
)
_MARKS = {"utf-16": ("utf-16-le", "utf-16-be"), "utf-32": ("utf-32-le", "utf-32-be"), "utf-8-sig": ("utf-8",)}
_CSV_COLUMNS = 2
_BEHIND = b"\n" * 8  # longer than any character
_METADATA = "struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
_SCHEMAS = {"text": "value string", "json": "a string, b bigint", "csv": "a string, b string"}
# Characters at the edges of Unicode's forms, and characters whose bytes look like separators in one of them.
_ODD = "\ufeff\u0a31\u0100\u010a\u0d0a\u0a0d\u0a00\u7c7c\u2028\x85\x0b\x1c§¥‾¬äé€かソ表予日本、。가힣\u309a\ufffd\ue000😀\U0010ffff"


@cache
def encodings() -> tuple[str, ...]:
    """Return all text encodings that Python has."""
    names = []
    for name in sorted(module.name for module in pkgutil.iter_modules(codecs_of_python)):
        try:
            "".encode(name)
        except (LookupError, UnicodeError):
            continue
        names.append(codecs.lookup(name).name)
    return tuple(sorted(set(names) - _NOT_OF_FILES))


@cache
def alphabet(encoding: str) -> tuple[str, ...]:
    """Return characters of an encoding: ASCII, odd ones, and those whose bytes include one of ASCII."""
    drawn = random.Random(encoding)  # noqa: S311 - repeatable
    points = [*range(1, 0x180), *map(ord, _ODD), *drawn.sample(range(0x180, 0xD800), 3000)]
    known = [chr(point) for point in points if _encoded(chr(point), encoding)]
    wide = [c for c in known if len(_encoded(c, encoding)) > 1 and min(_encoded(c, encoding)[1:]) < 0x80]
    plain = [c for c in known if c.isascii()]
    return (*plain, *drawn.sample(known, min(len(known), 200)), *drawn.sample(wide, min(len(wide), 200)))


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeError:
        return b""


@dataclass
class File:
    """One input file: its encoding, whether it has a mark, and its bytes before compression."""

    name: str
    codec: str
    mark: bytes
    body: bytes
    packed: bytes


class Case:
    """All random choices, drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)  # noqa: S311 - repeatable
        self.seed = seed
        self.format = draw.choice(("text", "text", "json", "csv"))
        self.encoding = draw.choice((draw.choice(_USUAL), draw.choice(_ASIAN), draw.choice(encodings())))
        self.sep = draw.choice((None, draw.choice(_SEPARATORS))) if self.format != "csv" else None
        self.errors = draw.choice(("fail", "replace"))
        self.dirty = draw.random() < 0.3
        self.binary = self.format == "text" and draw.random() < 0.25
        self.metadata = draw.random() < 0.5
        self.field_sep = draw.choice(",;|\t") if self.format == "csv" else ","
        self.header = self.format == "csv" and draw.random() < 0.3
        self.options = {
            "format": self.format,
            "encoding": self.encoding,
            "encodingErrors": self.errors,
            "splitSize": str(draw.choice((1, 2, 3, 5, 8, 21, 64, 1000))),
            "maxBytesPerTrigger": str(draw.choice((1, 2, 7, 33, 100, 10000))),
            "settle": "0",
            **({"lineSep": self.sep} if self.sep else {}),
            **({"sep": self.field_sep, "header": str(self.header)} if self.format == "csv" else {}),
            **({"metadataColumn": "_m"} if self.metadata else {}),
        }
        self.block_bytes = draw.choice((1, 3, 16, 100, 1 << 20))
        self.files = [self._file(number) for number in range(draw.choice((1, 1, 2, 3)))]

    def __str__(self) -> str:
        bodies = [(file.name, file.mark, file.body) for file in self.files]
        return f"seed {self.seed}: {self.options}, binary={self.binary}, blocks of {self.block_bytes}: {bodies}"

    # -- the input -----------------------------------------------------------------------------------------------

    def _file(self, number: int) -> File:
        draw, form = self.draw, codecs.lookup(self.encoding).name
        codec = draw.choice(_MARKS.get(form, (form,)))
        text = getattr(self, f"_{self.format}")(codec)
        body = text.encode(codec, "ignore")
        wide = form.startswith(("utf-16", "utf-32"))
        if self.dirty and not self.header and not (wide and self.format == "csv"):  # no reader parses this combination
            body = self._soiled(body)
        mark = self._mark(codec, form) if draw.random() < 0.4 or form in {"utf-16", "utf-32"} else b""
        name, packed = self._packed(mark + body)
        return File(f"{number}{name}", codec, mark, body, packed)

    def _soiled(self, body: bytes) -> bytes:
        """Return a text with some bytes that are invalid in most encodings; in CSV, they stand within a field."""
        draw = self.draw
        for _ in range(draw.choice((1, 1, 3))):
            dirt = draw.choice((b"\xff", b"\xc3", b"\x81", b"\x8f", b"\xf0\x9f", b"\xed\xa0\x80", b"\xa4\xd4"))
            dirt = draw.randbytes(2) if self.format == "text" and draw.random() < 0.2 else dirt
            places = [at for at in range(len(body) + 1) if self.format != "csv" or body[:at].endswith(b"x")]
            if places:
                at = draw.choice(places)
                body = body[:at] + dirt + body[at:]
        return body

    @staticmethod
    def _mark(codec: str, form: str) -> bytes:
        """Return the mark of the byte order or of UTF-8; another encoding that contains ASCII may follow it, too."""
        if form.startswith(("utf-16", "utf-32")) or codec == "gb18030":
            return "\ufeff".encode(codec)
        # An encoding that encodes quotes and line feeds differently, or that has states, does not know a mark.
        plain = bytes(range(9, 14))
        stateless = not codec.startswith(("iso2022", "hz", "utf-7", "charmap"))
        return codecs.BOM_UTF8 if stateless and plain.decode(codec) == plain.decode("ascii") else b""

    def _packed(self, data: bytes) -> tuple[str, bytes]:
        draw = self.draw
        if draw.random() < 0.6:
            return "", data
        at = draw.randrange(len(data) + 1)
        name = draw.choice((".gz", ".bz2", ".zst", ".xz", ".deflate", ".br", ".lz4"))
        return name, _compress(name, data[:at]) + _compress(name, data[at:])

    def _ends(self) -> list[str]:
        return [self.sep] if self.sep else ["\n", "\r\n", "\r", "\n\n"]

    def _some(self, codec: str, *, without: str = "") -> str:
        draw, known = self.draw, alphabet(codec)
        drawn = [draw.choice(known) for _ in range(draw.choice((0, 1, 2, 5, 12)))]
        if draw.random() < 0.1 and _encoded("\ufeff", codec):
            drawn.insert(0, "\ufeff")
        text = "".join(c for c in drawn if c not in without)
        # The escape characters of encodings with states read as other text, which would be invalid JSON or CSV.
        return text if self.format == "text" or _encoded(text, codec).decode(codec, "replace") == text else "x"

    def _text(self, codec: str) -> str:
        draw, ends = self.draw, self._ends()
        text = "".join(self._some(codec) + draw.choice(ends) for _ in range(draw.choice((0, 1, 3, 8))))
        return text + (self._some(codec) if draw.random() < 0.5 else "")

    def _json(self, codec: str) -> str:
        draw, ends = self.draw, self._ends()
        rows = []
        for _ in range(draw.choice((0, 1, 3, 8))):
            row = {
                "a": self._some(codec, without=self.sep or ""),
                "b": draw.randrange(99),
                "other": [1, self._some(codec)],
            }
            dumped = json.dumps(row, ensure_ascii=draw.random() < 0.2)
            rows.append(dumped if not self.sep or self.sep not in dumped else "")
        text = "".join(f"{row}{draw.choice(ends)}" for row in rows)
        return text if draw.random() < 0.5 else text.removesuffix(ends[0])

    def _csv(self, codec: str) -> str:
        draw, out = self.draw, io.StringIO()
        end, all_quoted = draw.choice(("\n", "\r\n", "\r")), draw.choice((False, True))
        without = "\0" if all_quoted else "\0\r\n"  # Python leaves some line breaks without quotes
        form: dict[str, Any] = {"delimiter": self.field_sep, "lineterminator": end}
        writer = csv.writer(out, quoting=csv.QUOTE_ALL, **form) if all_quoted else csv.writer(out, **form)
        if self.header and draw.random() < 0.9:  # otherwise the file is empty
            writer.writerow(draw.choice((("a", "b"), ("b", "a"))))
        for _ in range(draw.choice((0, 1, 3, 8)) if out.getvalue() or not self.header else 0):
            writer.writerow([self._some(codec, without=without) + "x" for _ in range(2)])
        return out.getvalue() if draw.random() < 0.5 else out.getvalue().removesuffix(end)

    # -- what is expected ----------------------------------------------------------------------------------------

    def expected(self, *, behind: bytes = b"") -> list[tuple[Any, ...]] | type[Exception]:
        """Return the rows, or the error, if `behind` follows each file: it decides about a character that is cut off there."""
        if self.sep and self.sep not in {codec_text for codec_text in [self._round_trip(self.sep)] if codec_text}:
            return OptionError
        if self.sep and "\ufffd" in self.sep and self.errors == "replace":
            return OptionError
        rows: list[tuple[Any, ...]] = []
        for file in self.files:
            try:
                text = file.body.decode(file.codec, "strict" if self.errors == "fail" or self.binary else "replace")
            except UnicodeDecodeError:
                if not self.binary:
                    return BadRecord
                text = file.body.decode(file.codec, "replace")
            if behind and not file.codec.startswith("utf") and (self.errors == "replace" or self.binary):
                text = (file.body + behind).decode(file.codec, "replace")[: -len(behind)]
            if any(
                "\ud800" <= character < "\ue000" for character in text
            ):  # halves of characters, which UTF-7 can encode
                if self.errors == "fail":
                    return BadRecord
                text = "".join("\ufffd" if "\ud800" <= character < "\ue000" else character for character in text)
            try:
                rows += self._rows(text if file.mark else text.removeprefix("\ufeff"))
            except (
                ValueError
            ):  # invalid bytes in the wrong place; or bytes of a codec that reads another backslash than it wrote
                return BadRecord
        return rows

    def _round_trip(self, text: str) -> str:
        return _encoded(text, self.encoding).decode(self.encoding)

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        if self.format == "csv":
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.field_sep)
            rows = [tuple(row) for row in reader if row]
            if any(len(row) != _CSV_COLUMNS for row in rows):
                raise ValueError(rows)
            names, *rows = rows if self.header and rows else (("a", "b"), *rows)
            return [(row[names.index("a")], row[names.index("b")]) for row in rows]
        parts = text.split(self.sep) if self.sep else text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        parts = parts if parts[-1] else parts[:-1]
        if self.format == "text":
            return [(part,) for part in parts]
        return [(row.get("a"), row.get("b")) for row in (json.loads(part) for part in parts if part.strip(" \t\r\n"))]

    # -- what is read --------------------------------------------------------------------------------------------

    def run(self, directory: Path) -> None:
        """Read the files and compare; `AssertionError` names the difference."""
        for number, file in enumerate(self.files):
            (directory / file.name).write_bytes(file.packed)
            os.utime(directory / file.name, (number, number))
        expected = [self.expected(), *([self.expected(behind=_BEHIND)] if self.dirty else [])]
        try:
            found = self._found(directory)
        except (BadRecord, BadFile, OptionError) as error:
            refused = self.binary and "a binary value" in error.message
            if not refused and type(error) not in expected:
                msg = f"{self}: expected {expected}, found {error}"
                raise AssertionError(msg) from error
            return
        rows = [row[: len(row) - self.metadata] for row in found]
        if self.binary:
            self._compare_bytes(rows)
            return
        assert rows in expected, f"{self}:\nfound    {rows}\nexpected {expected}"
        if self.metadata:
            self._compare_places(found)

    def _found(self, directory: Path) -> list[tuple[Any, ...]]:
        options = parse(SOURCE, {"path": str(directory), **self.options}, what="source")
        schema = "value binary" if self.binary else _SCHEMAS[self.format]
        if self.metadata:
            schema += f", _m {_METADATA}"
        how = configured.reading(options, _json_of(schema))
        rows, planner = [], configured.planner(options, how)
        at = planner.initial()
        with self._small_blocks():
            while (end := planner.latest(at)) != at:
                for task in planner.tasks(end):
                    for batch in configured.rows(options, how, tuple(task)):
                        batch.validate(full=True)
                        rows += [tuple(row.values()) for row in batch.to_pylist()]
                at = end
            if self.format == "text" and not self.metadata and how.gives_utf8:
                self._compare_lines(b"".join(how.text(planner.splits(end))), rows, end)
        return rows

    def _compare_lines(self, text: bytes, rows: list[tuple[Any, ...]], end: dict[str, Any]) -> None:
        """Lines that pass as bytes are the lines that are read as rows."""
        values = [row[0] if self.binary else row[0].encode() for row in rows]
        last = b"".join(value + b"\n" for value in values[-len(text.split(b"\n")) + 1 :])
        if self.sep in {None, "\n"}:
            assert last.endswith(text) or text.endswith(last), f"{self}: {text!r} of {values}"

    def _small_blocks(self) -> ExitStack:
        sizes = [
            (pieces, "BLOCK_BYTES"),
            (families, "BLOCK_BYTES"),
            (known_csv, "BLOCK_BYTES"),
            (transcoding, "_CHUNK_BYTES"),
            (lines, "_PEEK_BYTES"),
            (csvcut, "_SCAN_BYTES"),
        ]
        with ExitStack() as stack:
            for module, name in sizes:
                stack.enter_context(patch.object(module, name, self.block_bytes))
            return stack.pop_all()

    def _compare_bytes(self, rows: list[tuple[Any, ...]]) -> None:
        """Binary values are the bytes of the file, except marks and separators, and decode to the expected rows."""
        expected = self.expected(behind=_BEHIND if self.dirty else b"")
        assert not isinstance(expected, type)
        assert len(rows) == len(expected), f"{self}:\nfound    {rows}\nexpected {expected}"
        if len(self.files) == 1:
            file = self.files[0]
            if not self.dirty:
                assert [row[0].decode(file.codec) for row in rows] == [row[0] for row in expected], f"{self}: {rows}"
            if self.sep:
                sep = self.sep.encode(file.codec)
                joined = sep.join(row[0] for row in rows)
                body = (
                    file.body
                    if file.mark or not file.body.startswith(_bom(file.codec))
                    else file.body[len(_bom(file.codec)) :]
                )
                assert body in {joined, joined + sep}, f"{self}: {rows}"

    def _compare_places(self, found: list[tuple[Any, ...]]) -> None:
        """Each record is found again at the offset in its row."""
        by_name = {file.name: file for file in self.files}
        for *values, place in found:
            file = by_name[place["path"].rpartition("/")[2]]
            behind = b"" if file.codec.startswith("utf") else _BEHIND
            as_it_is = (file.mark + file.body + behind)[place["offset"] :].decode(file.codec, "replace")
            mark = codecs.BOM_UTF8 if file.mark else b""
            as_utf8 = (mark + file.body.decode(file.codec, "replace").encode())[place["offset"] :].decode(
                "utf-8", "replace"
            )
            if self.format == "text":
                there = as_it_is.startswith(values[0]) or as_utf8.startswith(values[0])
                assert there, f"{self}: {values} at {place}"


def _bom(codec: str) -> bytes:
    if codec.startswith(("utf", "gb18030")) and codec != "utf-7":
        return "\ufeff".encode(codec)
    return b"\xef\xbb\xbf"


@cache
def _json_of(ddl: str) -> str:
    kinds = {"string": "string", "binary": "binary", "bigint": "long"}
    fields: list[dict[str, Any]] = []
    head, _, metadata = ddl.partition(", _m ")
    for part in head.split(", "):
        name, kind = part.split()
        fields.append({"name": name, "type": kinds[kind], "nullable": True, "metadata": {}})
    if metadata:
        inner = [("path", "string"), ("modified", "timestamp"), ("size", "long"), ("offset", "long")]
        members = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in inner]
        fields.append({"name": "_m", "type": {"type": "struct", "fields": members}, "nullable": True, "metadata": {}})
    return json.dumps({"type": "struct", "fields": fields})


def _compress(name: str, data: bytes) -> bytes:
    made: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".deflate": zlib.compress,
        ".zst": zstandard.compress,
    }
    if name in made:
        return made[name](data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {".br": "brotli", ".lz4": "lz4"}[name]) as stream:
        stream.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
