"""The advice of input errors is followed, on a query that is driven without Spark: every line is there once."""

from __future__ import annotations

import gzip
import os
import re
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.errors import BadFile, BadRecord, DamagedState, PenstockError
from tests.support.advice import Query, penstock
from tests.support.follows import follows

DEAD = f"{socket.gethostname()}:999999999:1:q"  # a driver whose process has ended


def only_what_is_meant(query: Query, _: Path, advice: re.Match[str]) -> None:
    """Set the pattern in the message, with which text can still be read."""
    query.source["pathGlobFilter"] = advice[1]
    put_file(query, "c.txt", b"bad\n")


WITH_DAY = (
    '{"fields":[{"metadata":{},"name":"value","nullable":true,"type":"string"},'
    '{"metadata":{},"name":"day","nullable":true,"type":"date"}],"type":"struct"}'
)


class Case(NamedTuple):
    """An input that is refused, its message, and what a user does who has read the message."""

    error: type[PenstockError]
    source: dict[str, str]
    name: str
    content: bytes
    advice: str
    remedy: Callable[[Query, Path, re.Match[str]], None]
    lines: tuple[str, ...] = ("bad",)


def put_file(query: Query, name: str, content: bytes) -> Path:
    """Write an input file that has settled."""
    path = query.src / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    long_ago = path.stat().st_mtime - 60
    os.utime(path, (long_ago, long_ago))
    return path


def mended(content: bytes) -> Callable[[Query, Path, re.Match[str]], None]:
    """Return the remedy that writes the file anew."""

    def remedy(query: Query, path: Path, _: re.Match[str]) -> None:
        put_file(query, path.name, content)

    return remedy


def with_option(name: str) -> Callable[[Query, Path, re.Match[str]], None]:
    """Return the remedy that sets an option to the value in the message."""

    def remedy(query: Query, _: Path, advice: re.Match[str]) -> None:
        query.source[name] = advice[1]

    return remedy


def unpacked(query: Query, path: Path, _: re.Match[str]) -> None:
    """Unpack a file and remove the packed one."""
    put_file(query, "b", gzip.decompress(path.read_bytes()))
    path.unlink()


def moved(query: Query, path: Path, _: re.Match[str]) -> None:
    """Remove a file, or its directory, and put its lines into another file."""
    top = query.src / path.relative_to(query.src).parts[0]
    top.rename(query.root / "away")
    put_file(query, "b.txt", b"bad\n")


CASES = {
    "UTF-16 without a mark": Case(
        BadFile, {"encoding": "UTF-16"}, "b", "bad\n".encode("utf-16-le"), "set encoding to the file's, (UTF-16LE)", with_option("encoding")
    ),
    "bytes that are no text: encoding": Case(
        BadRecord, {}, "b", b"bad\xe9\n", "set encoding to what the file has()", mended(b"bad\n")
    ),
    "bytes that are no text: replaced": Case(
        BadRecord, {}, "b", b"bad\xe9\n", "or encodingErrors=(replace)", with_option("encodingErrors"), ("bad\N{REPLACEMENT CHARACTER}",)
    ),
    "a file that is packed twice": Case(
        BadRecord, {}, "b.gz", gzip.compress(gzip.compress(b"bad\n")),
        "the file is packed twice: unpack it once()", mended(gzip.compress(b"bad\n"))
    ),
    "an archive": Case(BadFile, {}, "b.txt.zip", b"PK", "unpack it, or move it away()", moved),
    "an archive beside what is meant": Case(
        BadFile, {}, "b.txt.zip", b"PK", r"or say what is to be read, such as pathGlobFilter='([^']*)'", only_what_is_meant
    ),
    "a file that is cut": Case(
        BadFile, {}, "b.gz", gzip.compress(b"bad\n")[:-4], "mend or remove the file()", mended(gzip.compress(b"bad\n"))
    ),
    "a header without the column": Case(
        BadFile, {"format": "csv", "header": "true"}, "b", b"valeu\nbad\n", "the header has no column '?value'?()", mended(b"value\nbad\n")
    ),
    "a header with the column twice": Case(
        BadFile, {"format": "csv", "header": "true"}, "b", b"value,value\nbad,x\n",
        "the header has 2 columns 'value'()", mended(b"value,x\nbad,x\n"),
    ),
    "a quote that is not closed": Case(
        BadRecord, {"format": "csv"}, "b", b'"bad\n', "expected a closing quote()", mended(b"bad\n")
    ),
    "text behind a quote": Case(
        BadRecord, {"format": "csv"}, "b", b'"bad"x\n', "mend or remove the record()", mended(b"bad\n")
    ),
}  # fmt: skip


def refused(query: Query, error: type[PenstockError], path: Path, advice: str) -> re.Match[str]:
    """Let the next batch be refused repeatedly, by name; return the advice in its message."""
    for _ in range(2):
        with pytest.raises(error) as caught:
            query.batch(DEAD)
    match = re.search(advice, caught.value.message)
    assert match is not None, caught.value.message
    assert str(path) in caught.value.message or str(path.parent) in caught.value.message
    return match


def replanned(query: Query) -> None:
    """Have the batch planned anew, and run the query to its end."""
    status, said = penstock("replan", query.checkpoint, query.dst)
    assert status == 0, said
    query.batch(DEAD, final=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@follows("PST-201")
@follows("PST-202")
def test_bad_input(tmp_path: Path, case: Case) -> None:
    """`BadFile`, `BadRecord`: after the advice is followed, the batch is planned anew, and each line is there once."""
    query = Query(tmp_path, dict(case.source))
    header = b"value\n" if "header" in case.source else b""
    put_file(query, "a.txt", "good\n".encode("utf-16") if "encoding" in case.source else header + b"good\n")
    query.batch(DEAD)
    path = put_file(query, case.name, case.content)
    advice = refused(query, case.error, path, case.advice)
    case.remedy(query, path, advice)
    replanned(query)
    assert query.lines() == Counter(["good", *case.lines])


@pytest.mark.parametrize("remedy", ["rename the directory", "set partitionColumns=none and recursiveFileLookup=true"])
@follows("PST-202")
def test_directory_that_is_no_value(tmp_path: Path, remedy: str) -> None:
    """`BadFile` of a directory: once it is renamed, or its name counts as an ordinary one, all of its files are read."""
    query = Query(tmp_path, {"format": "json"}, WITH_DAY, format="json")
    put_file(query, "day=2026-01-30/a", b'{"value": "1"}\n')
    query.batch(DEAD)
    path = put_file(query, "day=2026-01-32/b", b'{"value": "2"}\n')
    refused(query, BadFile, path, remedy)
    if remedy == "rename the directory":
        path.parent.rename(query.src / "day=2026-02-01")
    else:
        query.source |= dict(re.findall(r"(\w+)=(\w+)", remedy))
    replanned(query)
    day = ',"day":"2026-02-01"' if remedy == "rename the directory" else ""
    assert query.lines() == {'{"value":"1","day":"2026-01-30"}': 1, f'{{"value":"2"{day}}}': 1}


@pytest.mark.slow
@pytest.mark.parametrize("remedy", ["restored", "set as it was"])
@follows("PST-400")
def test_long_plan_that_is_not_found(tmp_path: Path, remedy: str) -> None:
    """`DamagedState` of a plan next to the offset: once its file is restored, or `stateLocation` is set back, the batch goes on."""
    plans = tmp_path / "plans"
    query = Query(tmp_path, {"stateLocation": str(plans), "maxFilesPerTrigger": "5000"})
    for number in range(1500):
        query.put(f"{'long' * 10}-{number}", str(number))
    query.planned()
    (plan,) = [path for path in plans.rglob("*") if path.is_file()]
    if remedy == "restored":
        plan.rename(tmp_path / "kept")
        with pytest.raises(DamagedState, match="restore it with the checkpoint") as caught:
            query.batch()
        assert str(plan) in caught.value.message
        (tmp_path / "kept").rename(plan)
    else:
        del query.source["stateLocation"]
        with pytest.raises(DamagedState, match="stateLocation does not say where; set it as it was"):
            query.batch()
        query.source["stateLocation"] = str(plans)
    query.batch(final=True)
    assert query.is_whole()
