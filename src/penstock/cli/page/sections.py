"""The page as sections of HTML: one about all pipelines, and one for each of them.

A section depends on facts alone. So the same facts give the same text, and only what has changed is sent. The HTML has
times (`<time>`), and the browser shows them as ages; otherwise every section would change every second.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from shlex import quote
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.cli.answer import moment
from penstock.cli.page import draw
from penstock.cli.page.draw import Station
from penstock.cli.page.markup import html, tag
from penstock.cli.page.trends import EVERY_SECONDS, KEPT
from penstock.cli.progress import not_read
from penstock.cli.run.status import Phase
from penstock.cli.state import beside
from penstock.clock import SECOND_NS
from penstock.errors import without_credentials
from penstock.sink.ledger import is_aside
from penstock.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.cli.page.markup import Child, Element
    from penstock.cli.page.watched import PipelineView, SeenFailure

OVERVIEW = "all"
_TEXT_MAX = 300  # characters of a stranger's record or name
_PARTS = 10
_SIGNS = {Phase.RUNNING: "▶", Phase.STARTING: "▶", Phase.WAITING: "●", Phase.BACKING_OFF: "▲", Phase.FAILED: "✖"}
_TONES = {Phase.BACKING_OFF: "warn", Phase.FAILED: "bad", Phase.RUNNING: "good", Phase.WAITING: "good"}
_BUSY = {Phase.STARTING, Phase.RUNNING, Phase.DRAINING}


def sections(views: Sequence[PipelineView]) -> dict[str, str]:
    """Return the sections in order, by their ids."""
    return {OVERVIEW: html(overview(views))} | {anchor(view.name): html(pipeline(view)) for view in views}


def anchor(name: str) -> str:
    """Return the id of a pipeline's section: letters and digits for any name, and a different id for each."""
    return f"p-{re.sub(r'[^A-Za-z0-9_-]', '-', name)[:40]}-{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogateescape'))[:6]}"


# -- all pipelines -----------------------------------------------------------------------------------------------


def overview(views: Sequence[PipelineView]) -> Element:
    """Return the section about all pipelines: one sentence, which screen readers read out when it changes, and a table."""
    words = [f"{view.name}: {text}" for view in views if (text := _trouble(view))]
    well = "No pipeline is known yet." if not views else f"{counted(len(views), 'pipeline')}, all well."
    sentence = tag("p", "; ".join(words) or well, role="status", class_="bad" if words else "good")
    rows = [
        [
            tag("a", _cut(view.name), href=f"#{anchor(view.name)}"),
            _state(view),
            f"{view.count('rows'):,}",
            f"{view.count('left_files'):,}",
            f"{_set_aside(view):,}",
            f"{view.count('late_files'):,}",
            _committed(view),
        ]
        for view in views
    ]
    heads = ("Pipeline", "State", "Rows", "Files left", "Set aside", "Late", "Last batch")
    inner = [tag("h2", "Pipelines"), sentence, _table("All pipelines", heads, rows) if views else None]
    return tag("section", *inner, id=OVERVIEW)


def _trouble(view: PipelineView) -> str:
    """Return what somebody should know about a pipeline; nothing if it is well."""
    if view.status is not None and view.status.phase in {Phase.BACKING_OFF, Phase.FAILED}:
        return f"{view.status.phase.value}, {view.status.error_code or 'failed'}"
    verdict = view.output.verified
    return "verify has found problems" if verdict is not None and not verdict["ok"] else ""


def _set_aside(view: PipelineView) -> int:
    return sum(view.count("aside", kind) for kind in ("record", "file", "changed"))


def _state(view: PipelineView) -> Element:
    if view.status is None:
        return tag("span", "output only", class_="badge")
    phase = view.status.phase
    return tag("span", f"{_SIGNS.get(phase, '■')} {phase.value}", class_=f"badge {_TONES.get(phase, '')}".rstrip())


def _committed(view: PipelineView) -> Child:
    """Return when the ledger was last written, or when the page last saw a batch committed."""
    seconds = view.value("batch_timestamp_seconds")
    if seconds is not None:
        return _time(round(seconds * SECOND_NS))
    return _instant(view.fact["committed"]) if view.fact.get("committed") else "never"


# -- one pipeline ------------------------------------------------------------------------------------------------


def pipeline(view: PipelineView) -> Element:
    """Return the section of a pipeline."""
    here = anchor(view.name)
    way, aside = _way(view)
    head = tag("h2", _cut(view.name), " ", _state(view), id=f"{here}-h")
    parts = [
        head,
        _route(view),
        _next(view),
        tag("div", draw.flow(way, aside, tall=False), draw.flow(way, aside, tall=True), class_="picture"),
        _plots(view),
        _facts(view),
        _failures(view.failures),
        _aside(view, here),
        _late(view, here),
        _open(view, here),
        _finished(view, here),
        _guarantee(view),
    ]
    return tag("section", *parts, id=here, aria_labelledby=f"{here}-h")


def _route(view: PipelineView) -> Element:
    described = view.described
    source = described.source or view.output.source or "a query"
    schedule = f", {described.schedule}" if described.schedule else ""
    ends = (_cut(view.masked(without_credentials(text))) for text in (source, described.sink))
    return tag("p", tag("code", next(ends)), " → ", tag("code", next(ends)), schedule, class_="route")


def _next(view: PipelineView) -> Element | None:
    """Return when a pipeline goes on that waits or backs off."""
    status = view.status
    if status is None or not status.next_ns:
        return None
    failures = f" after {counted(status.failures, 'failure')} in a row" if status.failures else ""
    return tag("p", f"{status.phase.value}{failures}; goes on ", _time(status.next_ns))


def _way(view: PipelineView) -> tuple[list[Station], list[tuple[int, Station]]]:
    """Return the stations of the picture, and those beside them."""
    reads = bool(view.described.source) or view.output.read_by_us
    left = Station("Input", counted(view.count("left_files"), "file"), f"{format_size(view.count('left_bytes'))} left")
    way = [left if reads else Station("Input", "a query", "of another source"), _planned(view), _batch(view)]
    opened = view.count("open_rows")
    way.append(Station("Open parts", f"{view.count('open_parts'):,}", f"{counted(opened, 'row')}, not visible"))
    done = f"{counted(view.count('rows') - opened, 'row')}, {format_size(view.count('output_bytes'))}"
    way.append(Station("Finished", counted(view.count("output_files"), "file"), done))
    waits = view.count("held_files") + view.count("future_files")
    late = view.count("late_files")
    held = Station(
        "Held back", counted(waits, "file"), f"and {late:,} late" if late else "none late", "bad" if late else ""
    )
    refused = _set_aside(view)
    aside = Station("Set aside", f"{refused:,}", "records and files", "bad" if refused else "")
    total = view.output.all_buckets
    buckets = Station("Buckets", f"{total:,}", "being counted" if view.output.counting else "see finished files")
    return way, [(0, held), (2, aside), (4, buckets)]


def _planned(view: PipelineView) -> Station:
    plan = view.output.plan
    if plan is None:
        return Station("Plan", "-", "not known")
    batch, splits, size = plan
    return Station(
        "Plan", f"batch {batch:,}", counted(splits, "split") + ("" if size is None else f", {format_size(size)}")
    )


def _batch(view: PipelineView) -> Station:
    batch = view.count("batch") if view.value("batch") is not None else -1
    phase = view.status.phase if view.status is not None else None
    tone = "busy" if phase in _BUSY else "bad" if phase in {Phase.BACKING_OFF, Phase.FAILED} else ""
    number = f"{batch:,} committed" if batch >= 0 else "none yet"
    return Station("Batch", number, phase.value if phase is not None else f"{view.count('rows'):,} rows in all", tone)


def _plots(view: PipelineView) -> Element:
    trend = view.trend
    shown: list[tuple[str, list[float], Callable[[float], str]]] = [
        ("Read", trend.bytes_read, lambda n: f"{format_size(n)}/s"),
        ("Written", trend.rows_written, lambda n: f"{n:,.0f} rows/s"),
        ("A batch takes", trend.batch_seconds, format_duration),
    ]
    plots = []
    if view.value("batches") is None:  # only the process that runs a query knows how long its batches take
        del shown[2]
    for name, numbers, form in shown:
        now, most = form(numbers[-1] if numbers else 0.0), form(max(numbers, default=0.0))
        words = f"{name}: now {now}, at most {most} in the last {format_duration(KEPT * EVERY_SECONDS)}"
        caption = tag("figcaption", f"{name} ", tag("strong", now), tag("span", f" at most {most}", class_="muted"))
        plots.append(tag("figure", draw.plot(numbers, words, places=KEPT - 1), caption))
    return tag("div", *plots, class_="plots")


def _facts(view: PipelineView) -> Element:
    fact = view.fact
    pairs: list[tuple[str, Child]] = [("Last commit", _committed(view))]
    ages = ("Oldest open part", "open_since"), ("Oldest file that is left", "oldest_left")
    for title, name in ages:
        seconds = view.value(f"{name}_timestamp_seconds")
        pairs += [] if seconds is None else [(title, _time(round(seconds * SECOND_NS)))]
    if fact:
        pairs.append(("Ledger", f"record {fact['record']:,}, epoch {fact['epoch']:,}, owner {_cut(fact['owner'])}"))
        pairs += [("To know", text) for text in (*not_read(fact), *fact["notes"])]
        owed, unnamed = counted(fact["owed_files"], "file"), counted(fact["unnamed_files"], "staged file")
        pairs += [("Owed", f"{owed} decided, not visible yet: the next start publishes them")] * bool(
            fact["owed_files"]
        )
        pairs += [("Left over", f"{unnamed} that nothing names: penstock clean")] * bool(fact["unnamed_files"])
    if view.output.problem:
        pairs.append(("Output", view.masked(view.output.problem)))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs))


def _failures(failures: Iterable[SeenFailure]) -> Element | None:
    items = [
        tag(
            "li",
            tag("strong", failure.code),
            " ",
            _time(failure.time_ns),
            f", {failure.count:,} times in a row" if failure.count > 1 else "",
            tag("p", _cut(failure.message, 2000)),
        )
        for failure in failures
    ]
    return tag("div", tag("h3", "Last errors"), tag("ul", *items, class_="errors")) if items else None


def _aside(view: PipelineView, here: str) -> Element | None:
    """Return how much was set aside, and the newest records with their reasons."""
    about = view.fact.get("aside", {})
    if not about or not about.get("path"):
        return None
    rows: list[list[Child]] = [
        [
            _instant(str(line.get("time", ""))),
            tag("code", _place(line)),
            f"{line.get('code', '')}: {_cut(str(line.get('reason') or ''))}",
            tag("code", _record(line)),
        ]
        for line in view.output.aside
    ]
    heads = ("When", "File and byte", "Reason", "Record")
    table = _table("What was set aside last", heads, rows) if rows else None
    hint = f"{beside(about)}, in {_cut(about['path'])}. Mended records are taken in by penstock retry."
    return _folded(here, "aside", "Set aside", hint, table)


def _place(line: dict[str, Any]) -> str:
    path = line.get("path") or f"(Base64) {line.get('path_base64') or ''}"
    return f"{_cut(str(path))}:{line.get('offset') or 0}"


def _record(line: dict[str, Any]) -> str:
    text = line.get("bytes")
    if text is None:
        text = f"(Base64) {line['base64']}" if line.get("base64") else ""
    return _cut(str(text))


def _late(view: PipelineView, here: str) -> Element | None:
    if not view.output.late:
        return None
    rows: list[list[Child]] = [
        [tag("code", _cut(path)), format_size(size), _time(since_ns)] for path, size, since_ns in view.output.late
    ]
    hint = f"{counted(view.count('late_files'), 'file')} came too late and were not read. penstock late lists them, and takes them in."
    return _folded(here, "late", "Late files", hint, _table("Late files", ("File", "Size", "Since"), rows))


def _open(view: PipelineView, here: str) -> Element | None:
    parts = [part for part in view.fact.get("open", []) if not is_aside(part["bucket"])]
    if not parts:
        return None
    largest = sorted(parts, key=lambda part: -part["bytes"])[:_PARTS]
    rows: list[list[Child]] = [
        [tag("code", _cut(part["part"])), f"{part['rows']:,}", format_size(part["bytes"]), _instant(part["opened"])]
        for part in largest
    ]
    hint = f"{counted(len(parts), 'part')}; the largest are shown. Their rows are committed, and seen when a part is finished."
    return _folded(here, "open", "Open parts", hint, _table("Open parts", ("Part", "Rows", "Size", "Opened"), rows))


def _finished(view: PipelineView, here: str) -> Element | None:
    """Return the finished files by bucket; the bucket that was written last comes first."""
    buckets = view.output.buckets
    if not buckets:
        return None
    most = max(bucket.bytes for _, bucket in buckets) or 1
    rows: list[list[Child]] = [
        [
            tag("code", _cut(name) or "."),
            f"{each.files:,}",
            f"{each.rows:,}",
            tag("span", format_size(each.bytes), draw.bar(each.bytes / most)),
            _time(each.time_ns) if each.time_ns else "-",
        ]
        for name, each in buckets
    ]
    more = view.output.all_buckets - len(buckets)
    hint = f"{counted(len(buckets), 'bucket')}, the one that was written last first" + (
        f"; {more:,} more." if more > 0 else "."
    )
    if view.output.counting:
        hint += " Older files are still being counted."
    table = _table("Finished files by bucket", ("Bucket", "Files", "Rows", "Size", "Last file"), rows)
    return _folded(here, "files", "Finished files", hint, table)


def _guarantee(view: PipelineView) -> Element:
    verdict = view.output.verified
    if verdict is None:
        line = f"penstock verify {quote(_cut(view.masked(without_credentials(view.described.sink))))}"
        text: list[Child] = ["Nobody has verified this output yet: ", tag("code", line), "."]
        return tag("div", tag("h3", "Guarantee"), tag("p", *text))
    rows = next((n for sink, n in verdict["rows"].items() if sink == view.fact.get("sink")), 0)
    since = max(view.count("rows") - view.count("open_rows") - rows, 0)
    files = "every file that the ledgers name is there, whole and once, and nothing else is"
    records = {True: "; every record that was read is in it exactly once", False: "; records are not proved", None: ""}
    good = f"✔ {files}{records[verdict['proved']]}"
    words = (
        good if verdict["ok"] else f"✖ not well: {counted(verdict['problems'], 'problem')}{records[verdict['proved']]}"
    )
    judgement = tag("strong", words, class_="good" if verdict["ok"] else "bad")
    since_then = f". {counted(since, 'row')} finished since." if since else "."
    return tag(
        "div", tag("h3", "Guarantee"), tag("p", "verify, ", _time(verdict["time_ns"]), ": ", judgement, since_then)
    )


# -- pieces ------------------------------------------------------------------------------------------------------


def _folded(here: str, name: str, title: str, hint: str, *inner: Child) -> Element:
    """Return a section that can be folded; it stays as a person has left it."""
    summary = tag("summary", tag("h3", title), " ", tag("span", hint, class_="muted"))
    return tag("details", summary, *inner, id=f"{here}-{name}", open="open")


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Child]]) -> Element:
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    body = tag("tbody", *(tag("tr", *map(_cell, heads, row)) for row in rows))
    table = tag("table", tag("caption", caption, class_="unseen"), head, body)
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(head: str, child: Child) -> Element:
    return tag("td", child, data_head=head)


def _cut(text: str, most: int = _TEXT_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _time(time_ns: int) -> Element:
    try:
        return _instant(moment(time_ns))
    except (ValueError, OverflowError, OSError):  # a time outside of the calendar
        return tag("span", f"{time_ns} ns")


def _instant(text: str) -> Element:
    """Return a time that the browser's script shows as an age; without the script it stays as it is."""
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return tag("span", _cut(text))
    shown = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return tag("time", shown, datetime=when.isoformat(), title=shown)
