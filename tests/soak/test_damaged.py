"""Real logs with damaged lines, drifting events and rotated logs, under SIGKILL: all input is in the output, or was set aside."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.soak.damaged import LOGHUB, Damaged, damaged
from tests.soak.stepping import Stepping

if TYPE_CHECKING:
    from pathlib import Path

needs_logs = pytest.mark.skipif(not LOGHUB.is_dir(), reason="the logs of loghub are not beside the project")


@needs_logs
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "seed"), [pytest.param(1, 1, id="gate"), pytest.param(30, 7, id="soak", marks=pytest.mark.soak)]
)
@pytest.mark.timeout(900)
def test_in_is_out_and_aside_after_kills(tmp_path: Path, kills: int, seed: int) -> None:
    """Logs, CSV and events with damaged lines: `verify --source` proves each ingest, and that lines were set aside."""
    proofs = Stepping(tmp_path, seed, kills).run()
    for name, proof in proofs.items():
        assert proof.source is not None
        assert proof.ok, (name, proof.source)
        assert 40 < proof.source.set_aside < 1000, name


@needs_logs
@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_one_spark_with_four_ingests_that_is_killed(tmp_path: Path) -> None:
    """`penstock run` on the same input and rotated logs, killed as a group: each is proved, and no rotated line is lost or doubled."""
    Damaged(tmp_path, seed=2, kills=10).run()


def test_one_line_in_a_hundred_is_damaged() -> None:
    """The tool damages about as many lines as it says, and the same lines for the same seed."""
    data = b"".join(b"line %d of a log\n" % place for place in range(20_000))
    first, again = (damaged(data, random.Random(1)) for _ in range(2))  # noqa: S311 - repeatable
    assert first == again
    left = set(first.splitlines()) & set(data.splitlines())
    assert 100 < 20_000 - len(left) < 500
