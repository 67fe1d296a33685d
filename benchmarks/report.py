"""The report: a table for the screen, `benchmarks.md` with a plot for people, `benchmarks.json` for programs.

A run of some of the cases replaces those and keeps the others, so each case records its time and its commit.
Figures of different scales are never mixed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.cases import CASES
from benchmarks.figures import Figure, Series, shown, spread

if TYPE_CHECKING:
    from pathlib import Path

_BUSY = 0.2  # cores that other work kept busy when the case began
_SHARE_MIN = 0.01
_MISS, _PASS, _NEUTRAL = "#c0504d", "#4f8a5b", "#8a8a8a"
_TEXT_COLUMN = 34


@dataclass
class Taken:
    """A case that was run: the time, the commit and the result. `failed` says why there are no figures."""

    date: str
    commit: str
    load: float
    figures: list[Figure] = field(default_factory=list)
    failed: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the case in its stored form."""
        return self.__dict__ | {"figures": [figure.to_json() for figure in self.figures]}

    @staticmethod
    def from_json(form: dict[str, Any]) -> Taken:
        """Return the case that `to_json` has written."""
        return Taken(**(form | {"figures": [Figure.from_json(figure) for figure in form["figures"]]}))


@dataclass
class Report:
    """All results so far. `profiles` are the results of `benchmarks.profiling`, with `date` and `commit`."""

    scale: float
    command: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    cases: dict[str, Taken] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def load(directory: Path, scale: float) -> Report:
        """Return the report stored in the directory, or an empty one if there is none of this scale."""
        path = directory / "benchmarks.json"
        form: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if form.get("scale") != scale:
            return Report(scale)
        return Report(**(form | {"cases": {name: Taken.from_json(case) for name, case in form["cases"].items()}}))

    def save(self, directory: Path) -> None:
        """Write `benchmarks.json`, `benchmarks.md` and, if there is something to draw, `benchmarks.svg`."""
        directory.mkdir(parents=True, exist_ok=True)
        form = self.__dict__ | {"cases": {name: taken.to_json() for name, taken in self.cases.items()}}
        (directory / "benchmarks.json").write_text(
            json.dumps(form, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        (directory / "benchmarks.md").write_text(markdown(self), encoding="utf-8")
        if drawn(self):
            draw(self, directory / "benchmarks.svg")

    def ordered(self) -> list[tuple[str, Taken]]:
        """Return the cases that were run, in the order of `CASES`."""
        return [(name, self.cases[name]) for name in CASES if name in self.cases]


def table(figures: list[Figure]) -> Table:
    """Return figures as a table for the screen."""
    shape = Table("what", "Penstock", "against", "", "ratio", "asked", "", pad_edge=False)
    colors = {"pass": "green", "miss": "red", "-": "dim"}
    for figure in figures:
        base = _cell(figure.base) if figure.base else ""
        against = figure.base.label if figure.base else "-"
        verdict = f"[{colors[figure.verdict]}]{figure.verdict}[/]"
        shape.add_row(figure.what, _cell(figure.ours), against, base, figure.measured, figure.asked, verdict)
    return shape


def _cell(series: Series) -> str:
    return f"{shown(series.median, series.unit)} ({spread(series)})"


def markdown(report: Report) -> str:
    """Return the page."""
    parts = [_HEAD, *_measured(report), "## What is measured\n"]
    parts += [f"- **{case.name}**: {case.about}" for case in CASES.values()]
    parts += ["", _METHOD]
    return "\n".join(parts)


def _measured(report: Report) -> list[str]:
    if not report.cases and not report.profiles:
        return ["There are no figures yet: `make bench` takes them.\n"]
    parts = [f"- {name}: {fact}" for name, fact in report.facts.items()]
    parts.append(f"- command: `{report.command}`")
    if report.scale != 1:
        parts.append(f"- **scale {report.scale:g}: a trial of the harness; these ratios mean nothing**")
    if drawn(report):
        parts += ["", "![Times as fast as what it is compared with](benchmarks.svg)"]
    parts += ["", *_rows(report), "", *_notes(report), *_missed(report)]
    return [*parts, *_where(report)]


def _rows(report: Report) -> list[str]:
    rows = ["| what | Penstock | against | | ratio | asked | | taken |", "|---|---|---|---|---|---|---|---|"]
    for name, taken in report.ordered():
        when = f"{taken.date[:10]} {taken.commit}"
        if taken.failed:
            rows.append(f"| {name} | **failed**, see below | | | | | | {when} |")
        for figure in taken.figures:
            base = f"{figure.base.label} | {_cell(figure.base)}" if figure.base else "- | "
            verdict = f"**{figure.verdict}**" if figure.verdict == "miss" else figure.verdict
            cells = (figure.what, _cell(figure.ours), base, figure.measured, figure.asked, verdict, when)
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _notes(report: Report) -> list[str]:
    notes = ["Medians, in brackets the least and the greatest; a bound is held against the greatest.", ""]
    for name, taken in report.ordered():
        if taken.failed:
            notes.append(f"- {name} **failed**: `{taken.failed.strip().splitlines()[-1]}`")
        if taken.load > _BUSY:
            notes.append(f"- {name}: the machine was busy when it began ({taken.load:g} cores)")
        for figure in taken.figures:
            for label, fact in figure.facts.items():
                notes.append(f"- {figure.what}: {label} {fact}")
    return [*notes, ""]


def _missed(report: Report) -> list[str]:
    """Return why requirements were missed, as far as it is understood."""
    missed = [name for name, taken in report.ordered() if any(figure.verdict == "miss" for figure in taken.figures)]
    why = [f"- **{name}**: {_WHY[name]}" for name in missed if name in _WHY]
    return ["## What was missed, and why\n", *why, ""] if why else []


def _where(report: Report) -> list[str]:
    """Return the section about the profiles."""
    if not report.profiles:
        return []
    parts = [_WHERE]
    for name, profile in report.profiles.items():
        seconds, size = profile["seconds"], profile["bytes"] / 1_000_000
        whole = sum(own for _, own in profile["shares"])
        parts.append(
            f"**{name}**: {size:,.0f} MB in {seconds:.1f} s ({size / seconds:,.0f} MB a second), {profile['commit']}\n"
        )
        parts += ["| | share |", "|---|---|"]
        parts += [f"| {label} | {own / whole:.0%} |" for label, own in profile["shares"] if own / whole >= _SHARE_MIN]
        parts.append("")
    return parts


def drawn(report: Report) -> list[Figure]:
    """Return the figures of the plot: comparisons with a requirement."""
    return [figure for _, taken in report.ordered() for figure in taken.figures if figure.base and figure.limit]


def speeds(figure: Figure) -> tuple[float, float, float, float]:
    """Return (ratio, least, greatest, required), all as `times as fast`, also where the requirement is `as long`."""
    assert figure.ratio is not None
    assert figure.ratio_spread is not None
    assert figure.limit is not None
    low, high = figure.ratio_spread
    if figure.rule == "longer":
        return 1 / figure.ratio, 1 / high, 1 / low, 1 / figure.limit
    return figure.ratio, low, high, figure.limit


def draw(report: Report, path: Path) -> None:
    """Draw how many times as fast each case is, with its spread and its requirement."""
    import matplotlib as mpl  # noqa: PLC0415 - a second to load, for the end of a run
    from matplotlib.figure import Figure as Drawing  # noqa: PLC0415 - a second to load, for the end of a run
    from matplotlib.ticker import ScalarFormatter  # noqa: PLC0415 - a second to load, for the end of a run

    figures = drawn(report)
    with mpl.rc_context({"svg.hashsalt": "penstock", "font.size": 9}):
        drawing = Drawing(figsize=(9, 1 + 0.42 * len(figures)), layout="constrained")
        axes = drawing.add_subplot()
        for place, figure in enumerate(figures):
            ratio, low, high, asked = speeds(figure)
            color = {"pass": _PASS, "miss": _MISS}.get(figure.verdict, _NEUTRAL)
            axes.barh(place, ratio, color=color, height=0.55)
            axes.plot([low, high], [place, place], color="black", linewidth=1)
            axes.plot([asked, asked], [place - 0.4, place + 0.4], color="black", linewidth=2)
            axes.annotate(f"{ratio:.2f}", (max(high, asked), place), (5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(figures)), [figure.what for figure in figures])
        axes.invert_yaxis()
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.axvline(1, color=_NEUTRAL, linewidth=0.8)
        axes.margins(x=0.12)
        axes.set_xlabel("times as fast as what it is compared with (thin line: spread, thick mark: asked for)")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        drawing.savefig(path, metadata={"Date": None})


_HEAD = """\
# Benchmarks

Penstock against Spark's own file source and sink, both in the same run, on the same machine, on the same files. This
page, its plot and `benchmarks.json` with every single measurement are made by `make bench` and `make bench-hdfs`; do not
edit them.
"""

_WHERE = """\
## Where the time goes

One batch through source and sink in one thread of one process, without Spark: the times without a profile, the shares with
`cProfile`. Syncs have a thread of their own; what counts here is the waiting for them.
"""

# Findings from profiles and Spark's own log, for cases that have missed their requirement.
_WHY = {
    "json-parquet-warm": "what is not the work is the plan, one job of Spark's, and the commit: 0.06 s if there is hardly anything to do.",
    "tiny-process": "where a session of Spark's is started, the JVM takes two thirds of the time, with the archive; then "
    "Spark starts seven kinds of Python process one after the other. Spark's own query starts none. The command starts no Spark.",
    "one-new-file": "the directory has changed, so its 100,000 names are listed (0.1 s); the rest is a batch with one line "
    "in it, most of which is Spark's own (see tiny-batch). The offset's bound was set before files within `lateness` were "
    "remembered exactly; it is at most 6.5 KB beside its plan now, however many files there were ([offset](formats/offset.md)).",
    "hdfs-text": "both processors of this machine are busy to 95 %, and two thirds of their time are those of the three DataNodes, which "
    "take the same three replicas from both: 5 to 7 s of processor time, where the ingest with its JVM takes 1.8 to 2.7 s. "
    "On a cluster the DataNodes are other machines. How fast anybody could be beside them is the last line of hdfs-client; "
    "what a byte costs whom is in [HDFS](storage-hdfs.md#what-a-byte-costs).",
    "hdfs-client": "a read of hdfs-native receives packets of 64 KB, computes their checksums by tables, and wakes a thread for each; "
    "no setting of the library changes that ([HDFS](storage-hdfs.md#what-a-byte-costs)).",
    "plain-text": "every row is copied into the JVM and out of it again, one by one, by Spark. The crossing alone, between a Python "
    "source that has its lines ready and a Python sink that drops them, takes longer than Spark's own query (the line below); "
    "a third of it is a look at the size of the batch after every row, which the setting in "
    "[operations](operations.md#queries-of-short-rows) takes away (this run leaves it as it is). "
    "Reading and writing come on top, on the same two cores: 2 of some 6 processor seconds "
    "([decision 019](decisions/019-what-a-plain-query-costs.md#fewer-and-larger-tasks)). Use `ingest`, which does not cross.",
    "parquet-parquet": "reading and writing by pyarrow alone, in two processes without Spark (the line below), is the measured limit; "
    "0.2 s of a query are before and after its work, and the rest is what counts, digests and syncs take. Row groups of the input "
    "cannot be taken over as bytes: their values are checked as they are decoded. Those that tasks have written are "
    "([why it is fast](why-fast.md#what-a-driver-need-not-encode)).",
    "bucketed": "parsing and writing alone, with rows sorted by the column into as many files (the line below), is itself below "
    "5 x, and an ingest takes no longer than that. The driver takes the row groups of tasks over as they "
    "are, copies them into one file for each directory, where Spark's own leaves one a task, and syncs these, which Spark's own "
    "does not.",
    "text-text": "both write 1 GB into memory that the host of this virtual machine takes back when it is free for some seconds, "
    "and a page that comes again costs it 6 microseconds: 1.5 processor seconds of the kernel for 1 GB. One run after the other, "
    "without a pause, takes 0.37 to 0.46 s here, and 1.2 s after three seconds of rest; Spark's own has its other work to do beside "
    "that.",
    "real-logs": "a line is a row, so there is nothing to parse, for Spark either; what is left is Parquet's encoding of texts. Each "
    "is followed by what cutting into lines and writing alone reach, in two processes without plan, ledger, digests and syncs: that is "
    "itself below 3 x. What an ingest takes more is the plan, a job of Spark's and the commit with its syncs, 0.06 s if there is "
    "hardly anything to do, and the driver's copy of what tasks have encoded.",
    "encrypted": "lines that wait under a staging key are encrypted, opened and encrypted again, by pyrage, which takes as long for one "
    "pass as all the rest of this job; without such a key, and where there is more to do than to carry lines, it is below 1.5.",
    "named": "the names are looked at, one after the other, before anything is read: 0.02 ms each.",
    "where": "half of the rows cross into the JVM and out again, as in plain-text; the condition saves nothing before, since Spark "
    "tells a Python source of a stream neither conditions nor columns. `ingest(sql=...)` does not cross.",
    "group-by": "Spark's own converts the one column that is counted by. It tells a Python source of a stream neither conditions nor "
    "columns, so all six are parsed, checked and carried into the JVM: the crossing of ready rows and the parse alone (180 MB a second and "
    "core, see why-fast) together take most of it. A schema of the columns that are needed has less to carry.",
    "interpreter": "where a session of Spark's is started, 4 s are the start of the process and its end, which the command is spared; "
    "after it both cores parse and encode, at 90 to 130 MB a second each, which is what they do without Spark (see json-parquet-warm).",
    "shapes": "each shape is followed by what parsing and writing alone reach: two processes with the same decoder and Parquet "
    "writer, without plan, ledger, digests and syncs, on the same files. No job of these parts is faster. For nulls, long "
    "lines and escapes that is itself below 3 x, and for nested events hardly above: there the parser is the limit, which is Arrow's for "
    "nested events and nulls (others are no faster, or change values and do not say so: "
    "[why it is fast](why-fast.md#other-parsers)). The rest is the plan, a job of Spark's, "
    "the commit with its syncs (0.06 s in all if there is hardly anything to do), and the driver's copy of what the tasks have encoded.",
    "memory": "pandas, polars and pyarrow take 180 MB before the first row; a block of JSON is held as text, as polars' "
    "columns and as Arrow, and a row group while it is encoded.",
}

_METHOD = """\
## How

- Input is made by a seeded generator, the same bytes for the same seed, and read once before a case begins.
- Contenders take turns (A B A B A B), each in a process of its own, and only one of them works at any time. Before each
  run its output is removed and `sync` is called, so that no run pays for what another one left.
- In a session that is up the first two rounds do not count, of whole processes the first, but for small files.
- Spark's own session is a default one with two cores, without its web server. Ours is `penstock.local_session("local[2]")`.
- What is timed is the query from its definition to its end (for whole processes: from the start of Python to its end).
  Ours ends with finished, synced, published files; Spark's does not sync.
- An HDFS (`hdfs-…`) is a NameNode and three DataNodes of the same machine, started again for each case; three replicas.
  There, too, ours ends with files that every DataNode has on disk, and Spark's with files that are in their memory.
- Every output is counted by its visible files: as many rows as went in, no nulls in Parquet, or the case fails.

`python -m benchmarks CASE...` takes some of the cases, `--slow` the one that takes Spark minutes, `--repeat` and `--scale` say how
often and how large. Input is kept in `penstock-benchmarks` in the temporary directory, or in `--data` (6 GB).
"""
