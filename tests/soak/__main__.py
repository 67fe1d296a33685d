"""`python -m tests.soak [PHASE...]`: simulate crashes, read and write at random, combine options, run tests, kill queries and fleets.

All random choices follow from the seed, which is printed; script and round number n of a run have the seed plus n. The
first failure ends the run, with the command that repeats it. Each round is a line of `artifacts/soak.jsonl`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tests.soak import pairs as pairs_module
from tests.soak import reads as reads_module
from tests.soak import rows as rows_module
from tests.soak import tables as tables_module
from tests.soak import texts as texts_module
from tests.soak import writes as writes_module
from tests.soak.fleet import FleetSoak, summary
from tests.soak.round import Outcome, Round
from tests.soak.scripts import STATES_MAX, script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PHASES = ("explore", "texts", "reads", "writes", "rows", "tables", "pairs", "tests", "kills", "fleet")
ARTIFACTS = Path(__file__).resolve().parent.parent.parent / "artifacts"
REQUIRED = {f"PENSTOCK_REQUIRE_{name}": "1" for name in ("SPARK", "HDFS", "KAFKA")}  # as for `make test`
_SEEDS = 1_000_000
_say = typer.echo
_WithSpark = TypeVar("_WithSpark", reads_module.Case, writes_module.Case, rows_module.Case)
_Case = TypeVar(
    "_Case",
    texts_module.Case,
    reads_module.Case,
    writes_module.Case,
    rows_module.Case,
    tables_module.Case,
    pairs_module.Case,
)


@dataclass(frozen=True)
class Asked:
    """The options of the run."""

    seed: int
    minutes: float
    rounds: int | None
    seconds_per_round: float
    explore_states: int


def main(
    phases: Annotated[
        list[str] | None, typer.Argument(metavar="[PHASE]...", help=f"{', '.join(PHASES)}. Default: all.")
    ] = None,
    *,
    seed: Annotated[int | None, typer.Option(help="Of all that is random. Default: another one each time.")] = None,
    minutes: Annotated[
        float,
        typer.Option(
            help="No round of kills, and no case of texts, reads, writes, rows, tables or pairs, begins after that time."
        ),
    ] = 60,
    rounds: Annotated[int | None, typer.Option(help="At most that many rounds.")] = None,
    seconds_per_round: Annotated[
        float, typer.Option(help="How long a query is killed before its output is proved.")
    ] = 120,
    explore_states: Annotated[int, typer.Option(help="States of crashes to explore.")] = 1_000_000,
) -> None:
    """Put Penstock under load and faults. Exit status 1 at the first thing that is wrong."""
    asked = Asked(
        random.SystemRandom().randrange(_SEEDS) if seed is None else seed,
        minutes,
        rounds,
        seconds_per_round,
        explore_states,
    )
    for phase in phases or PHASES:
        if phase not in PHASES:
            msg = f"there is no phase {phase!r}. Known: {', '.join(PHASES)}"
            raise typer.BadParameter(msg)
    ARTIFACTS.mkdir(exist_ok=True)
    _say(f"seed {asked.seed}")
    for phase in phases or PHASES:
        _RUN[phase](asked)


def explore(asked: Asked) -> None:
    """Explore random scripts until there are enough states."""
    started, states, futures = time.monotonic(), 0, 0
    for number in count(asked.seed):
        drawn = script(number)
        report = drawn.explore(min(STATES_MAX, asked.explore_states - states))
        states, futures = states + report.states, futures + report.futures
        if report.complaints:
            _note("explore", {"seed": number, "states": states, "failure": report.first})
            _say(f"{drawn}\n{report.first}")
            _fail(f"explore --seed {number} --explore-states {STATES_MAX}")
        if states >= asked.explore_states:
            break
    seconds = round(time.monotonic() - started, 1)
    scripts = number + 1 - asked.seed
    _note("explore", {"seed": asked.seed, "scripts": scripts, "states": states, "futures": futures, "seconds": seconds})
    _say(f"explore: {states:,} states of {scripts:,} scripts, {futures:,} futures, {seconds:.0f} s; nothing is wrong")


def texts(asked: Asked) -> None:
    """Read random files in random encodings until the time is over."""
    _cases("texts", asked, texts_module.Case, lambda case, directory: case.run(directory))


def reads(asked: Asked) -> None:
    """Read random files of other writers, with our reader and Spark's own, until the time is over."""
    _with_spark("reads", asked, reads_module.Case, {})


def writes(asked: Asked) -> None:
    """Write random rows, with our sink and Spark's own writer, until the time is over, and have Spark read both."""
    _with_spark("writes", asked, writes_module.Case, writes_module.SPARK_CONFIGURATION)


def rows(asked: Asked) -> None:
    """Write random rows of random types until the time is over, and have other readers, Spark too, read the files."""
    _with_spark("rows", asked, rows_module.Case, rows_module.SPARK_CONFIGURATION)


def tables(asked: Asked) -> None:
    """Write random batches to databases, by drivers that fail, until the time is over, and have other clients look."""
    from tests.support import postgres  # noqa: PLC0415 - the other phases need no server

    with postgres.running() as server:
        _cases(
            "tables",
            asked,
            tables_module.Case,
            lambda case, directory: case.run(directory, server if case.format == "postgresql" else None),
        )


def pairs(asked: Asked) -> None:
    """Run ingests with random options of all kinds, killed on the way, until the time is over, and compare what comes out."""
    with tempfile.TemporaryDirectory() as room, pairs_module.commands(Path(room)) as begins:
        _cases("pairs", asked, pairs_module.Case, lambda case, directory: case.run(directory, begins))


def _with_spark(
    phase: str, asked: Asked, case_of: Callable[[int], _WithSpark], configuration: Mapping[str, str]
) -> None:
    from penstock import local_session  # noqa: PLC0415 - the other phases need no Spark in this process

    session = local_session()
    for name, value in configuration.items():
        session.conf.set(name, value)
    try:
        _cases(phase, asked, case_of, lambda case, directory: case.run(directory, session))
    finally:
        session.stop()


def _cases(phase: str, asked: Asked, case_of: Callable[[int], _Case], run: Callable[[_Case, Path], None]) -> None:
    started, formats = time.monotonic(), Counter[str]()
    for number in count(asked.seed):
        if time.monotonic() - started > asked.minutes * 60 or formats.total() == asked.rounds:
            break
        case = case_of(number)
        try:
            with tempfile.TemporaryDirectory() as directory:
                run(case, Path(directory))
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be told how to repeat it
            _note(phase, {"seed": number, "failure": str(error)})
            _say(f"{case}\n{error!r}")
            _fail(f"{phase} --seed {number} --rounds 1")
        formats[case.format] += 1
    seconds = round(time.monotonic() - started, 1)
    _note(phase, {"seed": asked.seed, "cases": formats, "seconds": seconds})
    _say(f"{phase}: {formats.total():,} cases of {', '.join(formats)}, {seconds:.0f} s; nothing is wrong")


def tests(asked: Asked) -> None:
    """Run the tests that are marked soak."""
    command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "-n", "0", f"--randomly-seed={asked.seed}"]
    if subprocess.run(command, env=os.environ | REQUIRED, check=False).returncode:
        _fail(f"tests --seed {asked.seed}")


def kills(asked: Asked) -> None:
    """Run rounds until their time is over."""
    started, outcomes = time.monotonic(), list[Outcome]()
    for number in count(asked.seed):
        over = time.monotonic() - started > asked.minutes * 60
        if outcomes and (over or len(outcomes) == asked.rounds):
            break
        outcome = Round(number, ARTIFACTS / f"soak-{number}").run(asked.seconds_per_round)
        outcomes.append(outcome)
        _note("kills", vars(outcome))
        _say(_line(outcome))
        if outcome.failure is not None:
            _say(f"{outcome.failure}\nkept: {outcome.directory}")
            _fail(f"kills --seed {number} --rounds 1 --seconds-per-round {asked.seconds_per_round:g}")
    _say(f"in all: {_line(_sum(outcomes))}; {len(outcomes)} rounds, nothing is wrong")


def fleet(asked: Asked) -> None:
    """Run three pipelines of one file, kill their command until the time is over, and compare the scraped metrics with the ledgers."""
    directory = ARTIFACTS / f"fleet-{asked.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    soak = FleetSoak(asked.seed, directory)
    try:
        outcome = summary(soak.run(asked.minutes))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be told how to repeat it
        _note("fleet", {"seed": asked.seed, "failure": repr(error)})
        _say(f"{error!r}\nkept: {directory}")
        _fail(f"fleet --seed {asked.seed} --minutes {asked.minutes:g}")
    _note("fleet", outcome)
    shutil.rmtree(directory)
    _say(f"fleet: {outcome}; nothing is wrong")


def _sum(outcomes: list[Outcome]) -> Outcome:
    total = Outcome(outcomes[0].seed, f"seeds {outcomes[0].seed} to {outcomes[-1].seed}")
    for outcome in outcomes:
        for name, value in vars(outcome).items():
            if isinstance(value, (int, float, Counter)) and name != "seed":
                setattr(total, name, getattr(total, name) + value)
    return total


def _line(outcome: Outcome) -> str:
    killed = " ".join(f"{kind} {number}" for kind, number in sorted(outcome.kills.items()))
    return (
        f"{outcome.seed}: {outcome.settings}: {outcome.seconds:.0f} s, {outcome.starts} starts, "
        f"{outcome.kills.total()} kills ({killed}), {outcome.surgeries} commits deleted, {outcome.fenced} fenced, "
        f"{outcome.batches:,} batches, {outcome.rows:,} rows, {outcome.input_files:,} files to {outcome.output_files:,}, "
        f"{outcome.polls:,} polls"
    )


def _note(phase: str, facts: dict[str, Any]) -> None:
    line = {"phase": phase, "date": datetime.now(timezone.utc).isoformat(timespec="seconds")} | facts
    with (ARTIFACTS / "soak.jsonl").open("a") as file:
        file.write(f"{json.dumps(line)}\n")


def _fail(arguments: str) -> None:
    _say(f'to repeat it: make soak ARGS="{arguments}"')
    raise typer.Exit(1)


_RUN = {
    "explore": explore,
    "texts": texts,
    "reads": reads,
    "writes": writes,
    "rows": rows,
    "tables": tables,
    "pairs": pairs,
    "tests": tests,
    "kills": kills,
    "fleet": fleet,
}

if __name__ == "__main__":
    typer.run(main)
