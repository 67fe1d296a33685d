"""The pages about the packages: every package is in the picture, above those it imports, and the names in the walk exist."""

from __future__ import annotations

import ast
import importlib
import re
from operator import attrgetter
from typing import TYPE_CHECKING

import pytest

from tests.docs.markdown import DOCS, blocks
from tests.test_layers import BELOW, SOURCE

if TYPE_CHECKING:
    from pathlib import Path

ROOMS = {path.parent.name for path in (SOURCE / "penstock").glob("*/__init__.py")}
GROUND = {path.stem for path in (SOURCE / "penstock").glob("*.py") if not path.stem.startswith("__")}
WALK = DOCS / "walk.md"


def levels() -> list[list[str]]:
    """Return the packages of the picture, level by level from the top."""
    picture = next(block.text for block in blocks(DOCS / "architecture.md", "text") if block.text.startswith("cli "))
    return [
        [line.split()[0] for line in level.strip().splitlines()]
        for level in re.split(r"^-+$", picture, flags=re.MULTILINE)
    ]


def named(page: str) -> list[str]:
    """Return the dotted names of modules and their members that a page has in backquotes, without calls."""
    return [name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", page) if name.split(".")[0] in ROOMS]


def found(name: str) -> object:
    """Return the object that a dotted name below the package stands for; `AttributeError` if there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(["penstock", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        return attrgetter(".".join(parts[length:]))(module) if parts[length:] else module
    raise AttributeError(name)


def test_every_room_is_drawn_above_what_it_stands_on() -> None:
    """The picture of the layers has each package once, and each one above everything that it may import."""
    depth = {room: number for number, level in enumerate(levels()) for room in level}
    assert sum(map(len, levels())) == len(depth)
    assert depth.keys() == ROOMS - {"testing"} | {"errors"}
    aside = [(room, below) for room in depth for below in BELOW[room] & depth.keys() if depth[below] <= depth[room]]
    assert not aside


def test_the_ground_is_drawn() -> None:
    """The picture names every module that lies in no package."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^errors +beside it: (.*)$", text, re.MULTILINE)
    assert {*line.split(), "errors"} == GROUND


def test_the_walk_enters_each_room_once() -> None:
    """The headings of the walk are these six packages, in this order, none twice."""
    headings = re.findall(r"^## \d+\. `(\w+)`$", WALK.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["spark", "options", "source", "query", "sink", "verify"]
    assert ROOMS.issuperset(headings)


def test_what_the_walk_names_is_there() -> None:
    """Each module, class and function that the walk names exists, and it names many."""
    names = named(WALK.read_text(encoding="utf-8"))
    assert len(names) > 30
    for name in names:
        assert found(name) is not None, name


@pytest.mark.parametrize(
    "room", sorted(path.parent for path in (SOURCE / "penstock").rglob("*/__init__.py")), ids=lambda room: room.name
)
def test_every_room_says_what_it_is(room: Path) -> None:
    """Each package's text says what lives in it, what may be changed and what it may know, in this order."""
    told = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    places = [told.find(heading) for heading in ("*What lives here", "*What may be touched.*", "*What it may know.*")]
    assert -1 < places[0] < places[1] < places[2], f"{room}: {places}"
