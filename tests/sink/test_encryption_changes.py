"""Keys and recipients change and disappear while a sink runs: each row is readable by the recipients of its batch, and nobody else."""

from __future__ import annotations

import random
from pathlib import Path

import pyrage
import pytest

from penstock import failpoints
from penstock.errors import OptionError, StorageError
from penstock.sink.sink import Batch, Sink
from penstock.storage import LocalStorage
from tests.support.damage import tree
from tests.support.effort import effort
from tests.support.keys import OTHER, OTHER_KEY, READER, READER_KEY, STAGING_KEY, opened
from tests.support.output import QUERY, Output

ROW = "no-one-must-read-this"
KEYS = {READER: READER_KEY, OTHER: OTHER_KEY}
READERS = ((READER,), (OTHER,), (READER, OTHER))
POINTS = (
    "sink.write.before-pack-sync",
    "sink.write.staged",
    "sink.ledger.before-put",
    "sink.ledger.after-put",
    "sink.publish.one",
    "sink.publish.before-note",
    "sink.forget",
)


class Keeping:
    """A sink whose recipients and staging keys are in files, and the committed rows, each with its readers."""

    def __init__(self, output: Output, root: Path, seed: int) -> None:
        self.output, self.draw = output, random.Random(seed)  # noqa: S311 - repeatable
        self.to, self.staging = root / "to", root / "staging"
        self.keys = [STAGING_KEY]
        self.readers: tuple[str, ...] = READERS[0]
        self.expected: dict[str, tuple[str, ...]] = {}
        self.owner = self.number = 0
        self.sink = self.opened()
        self.put_back()

    def opened(self) -> Sink:
        """Return the sink of a newly started driver."""
        self.owner += 1
        form = self.draw.choice(["text", "json"])
        return self.output.sink(
            encryptTo=f"file:{self.to}", encryptionKey=f"file:{self.staging}", rollRows="7", format=form
        )

    def put_back(self) -> None:
        """Restore the right content of both files."""
        self.to.write_text("\n".join(self.readers))
        self.staging.write_text("\n".join(self.keys))

    def change(self) -> None:
        """Name other readers, put a new staging key before the former ones, or change nothing."""
        self.readers = self.draw.choice(READERS)
        if self.draw.random() < 0.3:
            self.keys.insert(0, str(pyrage.x25519.Identity.generate()))
        self.put_back()

    def take_away(self) -> None:
        """Remove one of the files, or cut it like an unfinished copy."""
        path = self.draw.choice([self.to, self.staging])
        if self.draw.random() < 0.5:
            path.unlink(missing_ok=True)
        else:
            path.write_text(path.read_text()[: self.draw.choice([0, 5])] if path.exists() else "")

    def batch(self) -> None:
        """Try the next batch, during which a file may disappear or the driver may die; note what was committed."""
        rows = [f"{ROW} {self.number} {self.owner} {line}" for line in range(self.draw.randint(1, 12))]
        readers, batch = self.readers, Batch(QUERY, self.number, str(self.number))
        moment = self.draw.choice(["before", "begun", "written", "never", "never"])
        failpoints.arm(f"{self.draw.choice(POINTS)}=error" if self.draw.random() < 0.4 else "")
        try:
            if moment == "before":
                self.take_away()
            begun = self.sink.begin(f"d{self.owner}", batch)
            if moment == "begun":
                self.take_away()
            results = self.output.write(self.sink, begun, self.number, {self.draw.randint(0, 1): rows})
            if moment == "written":
                self.take_away()
            self.sink.commit(batch, results)
        except (OptionError, StorageError, OSError):  # OSError comes from failpoints
            self.sink = self.opened() if self.draw.random() < 0.5 else self.sink
        failpoints.arm("")
        self.put_back()
        if self.sink.ledger.head().batches.get(QUERY, (-1, ""))[0] == self.number:
            self.expected |= dict.fromkeys(rows, readers)
            self.number += 1

    def rows(self) -> dict[str, tuple[str, ...]]:
        """Return the rows of all files, each with the readers who can open it, after checking: no clear text, and no row twice."""
        files = tree(self.output.root)
        assert not [name for name, data in files.items() if ROW.encode() in data]
        rows: dict[str, tuple[str, ...]] = {}
        for data in (data for name, data in files.items() if name.endswith(".age")):
            texts = {reader: inside(data, key) for reader, key in KEYS.items()}
            readers = tuple(reader for reader in (READER, OTHER) if texts[reader] is not None)
            for line in (texts[readers[0]] or b"").decode().splitlines():
                row = line[line.index(ROW) :].rstrip('"}')
                assert rows.setdefault(row, readers) is readers, f"{row} twice"
        return rows


def inside(data: bytes, key: str) -> bytes | None:
    """Return the content of a file as a reader with the key sees it, `None` if the key does not open it."""
    try:
        return opened(data, key)
    except pyrage.DecryptError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("number", range(effort(4, 200)))
def test_each_row_is_for_whom_its_batch_named(output: Output, tmp_path: Path, number: int) -> None:
    """Recipients and keys change and disappear between and during batches, drivers die: each is a typed error, and the sink continues.

    Whatever happens, no row is in clear text, none is lost or doubled, and only readers named by its batch can read it.
    """
    seed = random.getrandbits(30) + number  # pytest-randomly has seeded it
    keeping = Keeping(output, tmp_path, seed)
    for _ in range(25):
        keeping.change()
        keeping.batch()
        assert keeping.rows().items() <= keeping.expected.items(), seed
    Sink.existing(LocalStorage(), str(output.root), "s").finish()
    assert keeping.rows() == keeping.expected, seed
    assert keeping.number > 3, seed
