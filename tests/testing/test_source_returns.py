"""Files that go and come back, drivers that die, listings that fail, in any order: each record is read once, or named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from penstock.source import recent, scan
from penstock.source.arrivals import Arrivals
from penstock.source.backlog import Backlog
from penstock.source.begun import BegunFiles
from penstock.source.recent import Recalled, Recent
from tests.support.effort import effort, soak_seed
from tests.testing.source_machine import SourceMachine

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

EVERYDAY = {"max_examples": effort(40, 600), "stateful_step_count": 40, "derandomize": True, "database": None}
SOAK = {"max_examples": 20_000, "stateful_step_count": 60, "database": None}


def walked(settings: dict[str, Any], seed: int | None = None) -> None:
    """Let Hypothesis decide what happens; from a seed, if one is given, the same each time."""
    machine = type("Machine", (SourceMachine,), {})  # the seed stays with the class
    if seed is not None:
        hypothesis.seed(seed)(machine)
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None, **settings
        ),
    )


def test_any_fate_of_files() -> None:
    """Hypothesis chooses what happens to files, directories and drivers."""
    walked(EVERYDAY)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_any_fate_of_files_for_long() -> None:
    """The same with another seed each time, and longer ways."""
    walked(SOAK, soak_seed())


# -- what is taken out is missed -----------------------------------------------------------------------------------


def _without(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Leave a field of `recent` out of the offset."""

    def change(patch: pytest.MonkeyPatch) -> None:
        to_json = Recent.to_json
        patch.setattr(Recent, "to_json", lambda self: {k: v for k, v in to_json(self).items() if k != name})

    return change


def _gone_as_if_all_were_known(patch: pytest.MonkeyPatch) -> None:
    """Where it cannot be told what went, take what comes for new."""
    recall = recent.recall

    def changed(*arguments: Any) -> Recalled:
        return replace(recall(*arguments), away_from_ns=recent.NEVER_NS)

    patch.setattr("penstock.source.arrivals.recall", changed)


def _all_that_arrived_is_decided(patch: pytest.MonkeyPatch) -> None:
    """Do not look whether files wait behind the cursor."""
    patch.setattr(Backlog, "behind_since", lambda _self, _cursor: None)


def _line_moves(patch: pytest.MonkeyPatch) -> None:
    """Take what came behind the line of a bounded run for decided."""
    refresh = Arrivals.refresh_behind_line

    def changed(self: Any, cursor: Any) -> None:
        refresh(self, cursor)
        self._sure_ns = self.scan.listed_ns

    patch.setattr(Arrivals, "refresh_behind_line", changed)


def _any_selection(patch: pytest.MonkeyPatch) -> None:
    """Do not ask what an offset's driver looked at."""
    patch.setattr(Arrivals, "_circumstances", lambda _: "")


def _directories_have_been_there(patch: pytest.MonkeyPatch) -> None:
    """Take a file's own arrival for that of its place, too."""
    patch.setattr(scan, "_later", lambda _above, own: own)


def _rest_of_anything(patch: pytest.MonkeyPatch) -> None:
    """Go on in whatever is there of a file that was cut."""
    patch.setattr(BegunFiles, "digest", lambda _self, _file, _at: "same")


def _times_that_can_be_set(patch: pytest.MonkeyPatch) -> None:
    """Believe a directory's modification time alone."""
    listed = scan.Scan._directory

    def changed(self: Any, folder: str, known: Any, entry: Any, *, everything: bool) -> None:
        listed(self, folder, known, entry._replace(arrived_ns=entry.modified_ns), everything=everything)

    patch.setattr(scan.Scan, "_directory", changed)


def _pending_stays(patch: pytest.MonkeyPatch) -> None:
    """Plan what was there once."""
    patch.setattr(Arrivals, "_leave", lambda self, files: self._recent.leave(files))


QUICK = [_without("gone"), _without("older")]
CHANGES = [
    _gone_as_if_all_were_known,
    _all_that_arrived_is_decided,
    _line_moves,
    _any_selection,
    _directories_have_been_there,
    _rest_of_anything,
    _times_that_can_be_set,
    _pending_stays,
]


SEED = 34  # with it both are seen within ten ways, with another one it may take thousands


@pytest.mark.parametrize(
    ("change", "seed"),
    [
        *((change, SEED) for change in QUICK),
        *(pytest.param(change, None, marks=pytest.mark.soak) for change in CHANGES),
    ],
)
@pytest.mark.timeout(3600)
def test_every_rule_is_needed(
    change: Callable[[pytest.MonkeyPatch], None], seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any one rule a record is lost without a word, read twice, or called late for nothing."""
    change(monkeypatch)
    with pytest.raises(AssertionError):
        walked(EVERYDAY | {"max_examples": 3000, "phases": [Phase.generate], "report_multiple_bugs": False}, seed)
