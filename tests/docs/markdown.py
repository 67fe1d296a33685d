"""The project's Markdown documents, as far as tests must understand them: fenced blocks, links, headings, tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DOCS = REPOSITORY / "docs"
_FENCE = re.compile(r"^```(\w*)$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MADE = {"build", "dist", "artifacts"}  # directories without our documents


@dataclass(frozen=True)
class Block:
    """A fenced block: `line` is that of its first line of `text`."""

    path: Path
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a shell block: one line, however it is broken; `output` are the lines that a console block shows below it."""

    line: int
    text: str
    output: tuple[str, ...] = ()


def documents() -> list[Path]:
    """Return every Markdown file of the project."""
    tops = [path for path in REPOSITORY.iterdir() if not path.name.startswith(".") and path.name not in _MADE]
    found = [path for top in tops if top.is_dir() for path in top.rglob("*.md")]
    return sorted([*found, *(path for path in tops if path.suffix == ".md")])


def name(path: Path) -> str:
    """Return a document's path as the test id."""
    return path.relative_to(REPOSITORY).as_posix()


def blocks(path: Path, *languages: str) -> list[Block]:
    """Return a document's fenced blocks in one of the languages."""
    found = []
    language, begin = None, 0
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if language is None and fence:
            language, begin = fence[1], number + 1
        elif language is not None and line == "```":
            found.append(Block(path, begin, language, "\n".join(lines[begin - 1 : number - 1]) + "\n"))
            language = None
    assert language is None, f"{name(path)}:{begin}: this block is never closed"
    return [block for block in found if block.language in languages]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block of sh (every line) or console (the lines with a dollar sign)."""
    lines = list(enumerate(block.text.replace("\\\n", " " * 2 + "\n").splitlines(), block.line))
    whole: list[Command] = []
    continued = False
    for number, line in lines:
        is_command = block.language != "console" or line.startswith("$ ")
        text = line.removeprefix("$ ") if block.language == "console" else line
        if continued:
            before = whole.pop()
            whole.append(Command(before.line, f"{before.text} {text.strip()}", before.output))
        elif is_command and text.strip() and not text.startswith("#"):
            whole.append(Command(number, text.strip()))
        elif not is_command and whole:
            before = whole.pop()
            whole.append(Command(before.line, before.text, (*before.output, line)))
        continued = line.endswith("  ")
    yield from whole


def prose(path: Path) -> list[str]:
    """Return the lines of a document with its fenced blocks and code spans blanked out."""
    inside, lines = False, []
    for line in path.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        lines.append("" if inside or fence else re.sub(r"`[^`]*`", "", line))
        inside ^= fence
    return lines


def links(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, target) of every link."""
    text = path.read_text(encoding="utf-8").splitlines()
    for number, (line, plain) in enumerate(zip(text, prose(path), strict=True), 1):
        yield from ((number, target) for target in _LINK.findall(line if plain else ""))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = zip(path.read_text(encoding="utf-8").splitlines(), prose(path), strict=True)
    headings = [line.lstrip("#").strip() for line, plain in text if plain.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def table(path: Path, *first: str) -> list[list[str]]:
    """Return the rows of the tables of a document whose first column headings are `first`; cells are stripped."""
    rows: list[list[str]] = []
    here = False
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            here = False
        elif tuple(cells[: len(first)]) == first:
            here = True
        elif here and not cells[0].startswith("---"):
            rows.append(cells)
    assert rows, f"{name(path)}: there is no table with the columns {first}"
    return rows


def code(cell: str) -> str:
    """Return the text of a cell that is one code span, and "" for any other cell."""
    match = re.fullmatch(r"`([^`]*)`", cell)
    return match[1] if match else ""
