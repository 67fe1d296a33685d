"""A day of events like GitHub's, made from a seed: nested, with keys that appear, disappear and change type during the day."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

HOURS = 24


def event(rng: random.Random, number: int, hour: int) -> dict[str, Any]:
    """Return one event of an hour: `org` from 8 o'clock, ids as strings from 12, `gravatar_id` until 16."""
    kind = rng.choice(["PushEvent", "WatchEvent", "IssuesEvent"])
    payload: dict[str, Any] = {}
    if kind == "PushEvent":
        commits = [{"sha": f"{number:040x}", "distinct": rng.random() < 0.5} for _ in range(rng.randrange(3))]
        payload = {"push_id": 2**31 + number, "size": len(commits), "commits": commits}
    elif kind == "IssuesEvent":
        labels = [{"name": "bug", "color": rng.choice(["f00", ""])} for _ in range(rng.randrange(2))]
        payload = {"action": "opened", "issue": {"number": number, "labels": labels, "milestone": None}}
    actor: dict[str, Any] = {"id": number % 97, "login": f"user-{number % 97}"}
    if hour < 16:
        actor["gravatar_id"] = ""
    made = {
        "id": str(number) if hour >= 12 else number,
        "type": kind,
        "actor": actor,
        "payload": payload,
        "public": True,
        "created_at": f"2026-01-31T{hour:02}:{number % 60:02}:00Z",
    }
    if hour >= 8:
        made["org"] = {"id": number % 7, "score": rng.choice([1, 2.5, None])}
    return made


def write_day(directory: Path, *, seed: int = 17, an_hour: int = 120) -> list[dict[str, Any]]:
    """Write 24 files, `00.json` to `23.json`, and return all events."""
    rng = random.Random(seed)  # noqa: S311 - repeatable by its seed
    events = []
    for hour in range(HOURS):
        of_hour = [event(rng, hour * an_hour + number, hour) for number in range(an_hour)]
        lines = (json.dumps(made, separators=(",", ":")) + "\n" for made in of_hour)
        (directory / f"{hour:02}.json").write_text("".join(lines), encoding="utf-8")
        events += of_hour
    return events
