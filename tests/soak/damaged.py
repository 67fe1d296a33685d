"""Real logs with damaged lines, drifting events and rotated logs, ingested by `penstock run` that is killed again and again.

Four ingests in one Spark: the logs of loghub as text; its CSV files by their headers; a day of events in the form of GitHub's,
whose keys drift from hour to hour; and a directory of logs that are written and rotated meanwhile, by rename and by copy and
truncate. A seeded tool damages one line in a hundred. The input arrives bit by bit while the process group is killed; in
the end each ingest runs to its end, and `verify --source` has to prove that all input is in the output or was set aside. The output of
the ingest that follows the rotated logs is compared here, line by line.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cluster import kill

LOGHUB = Path(__file__).resolve().parents[3] / "shared" / "data" / "loghub"
SHARE = 0.01
_ROTATED_LINES = 200
EVENTS = "id bigint, type string, actor struct<id: bigint, login: string>, payload struct<size: int, ref: string>, created_at timestamp"
_DAMAGE = (b"\xff\xfe", b"\x00\x00", b"\xc3", b'"', b"{", b",,,")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return the lines; one in a hundred is cut, run into the next, or gets bytes that nobody wrote."""
    lines = data.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if chance.random() >= SHARE or not line.strip():
            continue
        at = chance.randrange(len(line))
        lines[place] = chance.choice(
            (line[:at] + b"\n", line[:at], line[:at] + chance.choice(_DAMAGE) + line[at:], line[at:])
        )
    return b"".join(lines)


def events(hour: int, count: int, chance: random.Random) -> bytes:
    """Return the events of an hour; their additional keys, and the type of one key, drift from hour to hour."""
    lines = []
    for place in range(count):
        number = hour * count + place
        event: dict[str, Any] = {
            "id": number, "type": chance.choice(["PushEvent", "WatchEvent", "ForkEvent"]),
            "actor": {"id": number % 97, "login": f"user-{number % 97}"}, "payload": {"size": place % 7, "ref": "refs/heads/main"},
            "created_at": f"2026-01-01T{hour:02}:{place % 60:02}:00Z",
        }  # fmt: skip
        if hour % 3 == 1:
            event["actor"][f"avatar_{hour}"] = {"url": f"https://example.org/{number}"}
        if hour % 4 == 2:
            event["payload"]["size"] = "many"
        if chance.random() < hour / 240:
            event[f"key_{hour % 5}"] = [number, None, "x"]
        lines.append(json.dumps(event).encode())
    return b"\n".join(lines) + b"\n"


@dataclass
class Rotated:
    """Logs that are written and rotated, by name: one by rename, one by copy and truncate; `written` has every line."""

    directory: Path
    written: Counter[str] = field(default_factory=Counter)
    turn: int = 0

    def write(self) -> None:
        """Write to both logs, in two pieces, and rotate them now and then."""
        for name in ("renamed.log", "copied.log"):
            path = self.directory / name
            lines = [f"{name} {self.turn} {place} {'x' * (place % 40)}" for place in range(_ROTATED_LINES)]
            text = "".join(f"{line}\n" for line in lines).encode()
            with path.open("ab", buffering=0) as file:
                file.write(text[: len(text) // 3])
                file.write(text[len(text) // 3 :])
            self.written.update(lines)
            if self.turn % 5 == 4:
                kept = self.directory / f"{name}.{self.turn}"
                if name == "renamed.log":
                    path.rename(kept)
                else:
                    shutil.copyfile(path, kept)
                    os.truncate(path, 0)
        self.turn += 1


@dataclass
class Damaged:
    """One run in a directory; `kills` process groups are killed."""

    root: Path
    seed: int
    kills: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - repeatable
        self.sources = {name: self.root / "in" / name for name in ("text", "csv", "events", "rotated")}
        for directory in self.sources.values():
            directory.mkdir(parents=True)
        self.rotated = Rotated(self.sources["rotated"])
        self.waiting = self._files()
        self.chance.shuffle(self.waiting)

    def _files(self) -> list[tuple[str, str, bytes]]:
        """Return the input files: the ingest, the name and the contents of each."""
        logs = [(path, path.read_bytes()) for path in sorted(LOGHUB.glob("*.log"))]
        tables = [(path, path.read_bytes()) for path in sorted(LOGHUB.glob("*.csv"))]
        files = [
            ("text", f"{turn}-{path.name}", damaged(data, self.chance)) for turn in range(3) for path, data in logs
        ]
        for path, data in tables:
            header, _, rest = data.partition(b"\n")
            files += [("csv", f"{turn}-{path.name}", header + b"\n" + damaged(rest, self.chance)) for turn in range(3)]
        files += [
            ("events", f"{hour:02}.json", damaged(events(hour, 2000, self.chance), self.chance)) for hour in range(24)
        ]
        return files

    def configuration(self, *, watch: bool) -> Path:
        """Write the file of the four ingests."""
        quarantine = {"badRecords": "quarantine", "badFiles": "quarantine", "settle": "10ms"}
        sources: dict[str, dict[str, str]] = {
            "text": {"encodingErrors": "quarantine", "badFiles": "quarantine", "settle": "10ms"},
            "csv": quarantine | {"format": "csv", "header": "true", "schema": "LineId int, Content string", "encodingErrors": "quarantine"},
            "events": quarantine
            | {"format": "json", "schema": EVENTS, "unknownFields": "rescue", "rescuedDataColumn": "rest", "encodingErrors": "quarantine"},
            "rotated": {"follow": "true", "settle": "10ms"},
        }  # fmt: skip
        sinks = {"text": "text", "csv": "csv", "events": "parquet", "rotated": "text"}
        text = []
        for name, options in sources.items():
            source = {"path": str(self.sources[name])} | options
            sink = {"path": str(self.root / "out" / name), "format": sinks[name], "rollInterval": "3s"}
            text.append(f"[pipelines.{name}]\nschedule = {json.dumps('watch' if watch else 'once')}")
            text.append(f"source = {_inline(source)}\nsink = {_inline(sink)}\n")
        path = self.root / ("watch.toml" if watch else "once.toml")
        path.write_text("\n".join(text))
        return path

    def run(self) -> None:
        """Let all input arrive while processes are killed, run all ingests to their end, and check the output. Raises `AssertionError`."""
        share = max(len(self.waiting) // (self.kills + 1), 1)
        for number in range(self.kills):
            self._killed(share, 1.0 if number else 4.0)
        self.arrive(len(self.waiting))
        self.rotated.write()
        time.sleep(0.5)
        for _ in range(2):  # what the batch before has read determines a follower's last batch
            done = self._command("run", self.configuration(watch=False))
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        for name in ("text", "csv", "events"):
            said = self._command("verify", self.root / "out" / name, "--source", self.sources[name], "--json")
            facts = json.loads(said.stdout)
            assert facts["ok"], (name, facts)
            assert facts["source"]["set_aside"] > 0, name
        lines = Counter(
            line for file in (self.root / "out" / "rotated").glob("*.*") for line in file.read_text().splitlines()
        )
        assert lines == self.rotated.written, _difference(lines, self.rotated.written)

    def _killed(self, share: int, seconds: float) -> None:
        """Start, let input arrive, and kill all its processes at a moment after its first seconds."""
        log = self.root / "log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                self._argv("run", self.configuration(watch=True)), stdout=out, stderr=out, start_new_session=True
            )
        size = log.stat().st_size
        deadline = time.monotonic() + 120
        while log.stat().st_size == size and time.monotonic() < deadline and process.poll() is None:
            self.rotated.write()  # until it says that it runs
            time.sleep(0.1)
        self.arrive(share)
        until = time.monotonic() + seconds + self.chance.random() * 3
        while time.monotonic() < until:
            self.rotated.write()
            time.sleep(0.1)
        kill(process)

    def arrive(self, count: int) -> None:
        """Let this number of files arrive, each complete."""
        for name, file, data in [self.waiting.pop() for _ in range(min(count, len(self.waiting)))]:
            (self.root / "arriving").write_bytes(data)
            (self.root / "arriving").rename(self.sources[name] / file)

    def _command(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self._argv(*arguments), capture_output=True, text=True, check=False)

    @staticmethod
    def _argv(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "penstock.cli", *map(str, arguments)]


def _inline(table: dict[str, str]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in table.items()) + " }"


def _difference(lines: Counter[str], written: Counter[str]) -> str:
    missing, more = written - lines, lines - written
    return f"missing {missing.total()}: {list(missing)[:3]}; too many {more.total()}: {list(more)[:3]}"
