"""Two ingests in a chain, killed with SIGKILL at their steps: the first encrypts, and the second reads what the first has published."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyrage
import pytest

from tests.spark.test_kill import fill
from tests.support.keys import READER, READER_KEY, STAGING_KEY, STAGING_VARIABLE
from tests.support.stage import run_python

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("programs"), pytest.mark.timeout(900)]  # several starts each

CHAIN = """
import os, sys, penstock
src, middle, dst, recipient = sys.argv[1:]
spark = penstock.local_session("local[2]", rows_in_jvm=False)
encrypting = {"rollSize": "20k", "encryptTo": recipient, "encryptionKey": "env:STAGING"}
penstock.ingest(spark, src, middle, source={"maxBytesPerTrigger": "50k"}, sink=encrypting)
print("FIRST", flush=True)
reading = {"files": "published", "maxFilesPerTrigger": 6, "decryptionKey": "env:READER_KEY"}
penstock.ingest(spark, middle, dst, source=reading, sink={"rollSize": "20k"})
print("DONE")
""".replace("STAGING", STAGING_VARIABLE)

# Where each start is killed. Hits are counted in each process.
CHAINS = {
    "short": ["sink.publish.one=kill-jvm@2", "source.named=kill-jvm"],
    "long": [
        "storage.write=kill-jvm@9",
        "sink.ledger.before-put=kill-jvm@2",
        "sink.publish.before-note=kill-jvm@2",
        "source.named=kill-jvm",
        "source.read=kill-jvm@5",
        "source.named=kill-jvm@2",
    ],
}


def starts(stage: Stage, points: Sequence[str], recipients: Sequence[str], lines: Counter[str]) -> str:
    """Start the chain once for each kill point, each time for another recipient; return what the last start printed."""
    middle: Path = stage.root / "middle"
    arguments = str(stage.src), str(middle), str(stage.dst)
    for number, point in enumerate([*points, ""]):
        run = run_python(CHAIN, *arguments, recipients[number % len(recipients)], failpoints=point)
        assert ("DONE" in run.stdout) == (not point), f"{point or 'the last start'}: {run.stderr[-3000:]}"
        assert not stage.lines() - lines, point
    return run.stdout


@pytest.mark.soak
@pytest.mark.parametrize("chain", CHAINS)
def test_chain_of_encrypted_files_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch, chain: str) -> None:
    """Whichever ingest dies, whoever the recipient is: each row comes out at the other end once, and no plain text lies between."""
    other = pyrage.x25519.Identity.generate()
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)
    monkeypatch.setenv("READER_KEY", str(other))
    lines = fill(stage, files=30)
    if chain == "long":
        wrong = run_python(CHAIN, str(stage.src), str(stage.root / "middle"), str(stage.dst), READER)
        assert "FIRST" in wrong.stdout
        assert "WrongKey" in wrong.stderr
        assert not stage.lines()
    monkeypatch.setenv("READER_KEY", f"{READER_KEY}\n{other}")
    for name in ("y", "z"):
        stage.put(name, *(f"{name} {number:05} {'x' * 30}" for number in range(6000)))
        lines += Counter(f"{name} {number:05} {'x' * 30}" for number in range(6000))
    starts(stage, CHAINS[chain], [str(other.to_public()), READER], lines)
    assert stage.lines() == lines
    middle = [path.read_bytes() for path in (stage.root / "middle").glob("*.age")]
    assert len(middle) > 3
    assert not any(b"xxxxxxxx" in data for data in middle)
