"""`like` and `rlike`: translates Spark's patterns into patterns for which Arrow's library (RE2) gives the same answers; they are constants.

Spark evaluates `rlike` with Java's regular expressions. They and RE2 agree on what is accepted here; each dot, dollar and class
of blanks is written out with Java's meaning. Patterns are compiled once.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ingestion.sql.expression import Values

    Kernel = Callable[..., Values]

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_ANY = f"[^{_LINE_ENDS}]"
_END = rf"(?:\r\n|[{_LINE_ENDS}])?\z"
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x0B\f\r "}
_NEGATED = {name.upper(): f"[^{members}]" for name, members in _CLASSES.items()}
_PLAIN = frozenset("\\.[]{}()*+-?^$|/#&~ \"'`,:;<>=!@%_")  # characters that a backslash makes literal in both
_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}
_REPEATED_MAX = 1000  # RE2's limit
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")


def like(pattern: str, escape: str, at: int) -> Kernel:
    """Return a kernel that tells whether texts are like a pattern."""
    pieces = _like_pieces(pattern, escape, at)
    plain = "".join(piece for piece in pieces if len(piece) == 1)
    wild = [piece for piece in pieces if len(piece) > 1]
    if not wild:
        return partial(_equal, plain)
    ends = pieces[0] == "any", pieces[-1] == "any"
    if wild.count("any") == len(wild) == sum(ends) and len(pieces) > len(wild):
        search = pc.match_substring if all(ends) else pc.ends_with if ends[0] else pc.starts_with
        return lambda values: search(values, plain)
    form = "".join({"any": "(?s:.*)", "one": "(?s:.)"}.get(piece) or re.escape(piece) for piece in pieces)
    return lambda values: pc.match_substring_regex(values, rf"\A{form}\z")


def _equal(text: str, values: Values) -> Values:
    return pc.equal(values, pa.scalar(text))


def _like_pieces(pattern: str, escape: str, at: int) -> list[str]:
    """Return the characters of a pattern, `any` and `one` for its wildcards."""
    pieces, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in {"%", "_", escape}:
                refuse(
                    at,
                    f"like {pattern!r}: {escape!r} is followed by {following!r}, expected %, _ or itself there, as Spark does",
                )
            pieces.append(following)
        else:
            pieces.append({"%": "any", "_": "one"}.get(character, character))
    return pieces


def expression(pattern: str, at: int) -> str:
    """Return a pattern of Java for RE2; `SqlError` for what is not supported."""
    form = _Translation(pattern, at).form()
    try:
        pc.match_substring_regex(pa.array([""]), form)
    except pa.ArrowInvalid as error:
        refuse(at, f"pattern {pattern!r} is no regular expression: {error}")
    return form


class _Translation:
    """The translation of one pattern, from its beginning to its end."""

    def __init__(self, pattern: str, at: int) -> None:
        self._pattern = pattern
        self._at = at
        self._place = 0

    def form(self) -> str:
        """Translate the pattern."""
        pieces = []
        while self._place < len(self._pattern):
            pieces.append(self._piece())
        return "".join(pieces)

    def _refuse(self, why: str) -> None:
        refuse(self._at, f"pattern {self._pattern!r}, character {self._place + 1}: {why}; use a transform for it")

    def _take(self) -> str:
        character = self._pattern[self._place : self._place + 1]
        self._place += 1
        return character

    def _next_is(self, characters: str) -> bool:
        return self._place < len(self._pattern) and self._pattern[self._place] in characters

    def _piece(self) -> str:
        character = self._take()
        if character in "*+?":
            return character + self._greedy()
        reads: dict[str, Callable[[], str]] = {
            ".": lambda: _ANY,
            "$": self._end,
            "\\": partial(self._escaped, in_class=False),
            "[": self._class,
            "(": self._group,
            "{": self._repeat,
        }
        if character in reads:
            return reads[character]()
        return character if character in "^|)" else re.escape(character)

    def _end(self) -> str:
        if self._place < len(self._pattern) and not self._next_is("|)"):
            self._refuse("$ in the middle is taken otherwise by each library")
        return _END

    def _greedy(self) -> str:
        if self._next_is("+*{"):
            self._refuse("a repetition that gives nothing back, or of a repetition, is not taken")
        return self._take() if self._next_is("?") else ""

    def _repeat(self) -> str:
        match = _REPEAT.match(self._pattern, self._place - 1)
        if match is None or max(int(match[1]), int(match[3] or 0)) > _REPEATED_MAX:
            self._refuse(f"found {{, expected a repetition such as {{2,3}}, up to {_REPEATED_MAX}")
        else:
            self._place = match.end()
            return match[0] + self._greedy()
        return ""

    def _group(self) -> str:
        if not self._next_is("?"):
            return "("
        self._take()
        if not self._next_is(":"):
            self._refuse("of groups with ? only (?:...) is taken; for other cases of letters write lower(x) rlike")
        self._take()
        return "(?:"

    def _escaped(self, *, in_class: bool) -> str:
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character] if in_class else f"[{_CLASSES[character]}]"
        if character in _NEGATED and not in_class:
            return _NEGATED[character]
        if character in _CONTROLS:
            return _CONTROLS[character]
        if not character or character not in _PLAIN:
            self._refuse(f"\\{character} is not taken")
        return re.escape(character)

    def _class(self) -> str:
        negated = "^" if self._next_is("^") else ""
        self._place += bool(negated)
        members = []
        while not self._next_is("]"):
            character = self._take()
            if not character or character == "[" or (character == "&" and self._next_is("&")):
                self._refuse("in [] only characters, ranges and \\d, \\w and \\s are taken")
            if character == "\\":
                members.append(self._escaped(in_class=True))
            else:
                members.append(character if character == "-" else re.escape(character))
        self._place += 1
        if not members:
            self._refuse("[] has no members")
        return f"[{negated}{''.join(members)}]"


def rlike(pattern: str, at: int) -> Kernel:
    """Return a kernel that tells whether a pattern is found in texts."""
    form = expression(pattern, at)
    return lambda values: pc.match_substring_regex(values, form)


def extracted(pattern: str, group: int, at: int) -> Kernel:
    """Return a kernel that extracts a group of the first match of a pattern in texts; the empty text if there is no match."""
    form = expression(pattern, at)
    groups = len(re.findall(r"(?<!\\)\((?!\?)", re.sub(r"\\.|\[[^\]]*\]", "", form)))
    if not 0 <= group <= groups:
        refuse(at, f"pattern {pattern!r} has {groups} groups, and no group {group}")
    if group == 0 and "$" in pattern:
        refuse(
            at,
            f"pattern {pattern!r}: with $ its match as a whole is not taken; put what is wanted in a group, and give its number",
        )
    named = f"(?P<g0>{form})" if group == 0 else _with_name(form, group)

    def run(values: Values) -> Values:
        column = pa.array([values.as_py()], pa.string()) if isinstance(values, pa.Scalar) else values
        matches = pc.extract_regex(column, named)
        taken = pc.fill_null(pc.struct_field(matches, [0]), "")
        texts = pc.if_else(pc.is_valid(column), taken, pa.scalar(None, pa.string()))
        return texts[0] if isinstance(values, pa.Scalar) else texts

    return run


def _with_name(form: str, group: int) -> str:
    """Return an expression in which this group is the only one that captures."""
    pieces, count, in_class, place = [], 0, False, 0
    while place < len(form):
        character = form[place]
        width = 2 if character == "\\" else 1
        piece = form[place : place + width]
        if character in "[]":
            in_class = character == "["
        if piece == "(" and not in_class and form[place + 1 : place + 2] != "?":
            count += 1
            piece = "(?P<g0>" if count == group else "(?:"
        pieces.append(piece)
        place += width
    return "".join(pieces)
