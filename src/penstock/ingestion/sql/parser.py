"""Parses a text into a tree, by the grammar of Spark's own parser (`SqlBaseParser.g4`), as far as it is about single rows.

No library's parser is used: sqlglot turns Spark's `cast` into `try_cast`, and replaces functions by others; DuckDB takes "text"
for a name and does not know `<=>`; polars does not give access to a tree. The precedence of operators is Spark's: a test compares
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ingestion.sql.refused import CLAUSES, FOLLOWING, NO_SELECT, of_function
from penstock.ingestion.sql.tokens import Tokens
from penstock.ingestion.sql.tree import Case, CastTo, Constant, Item, Name, Select, SqlCall, Star, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ingestion.sql.tokens import SqlToken
    from penstock.ingestion.sql.tree import Tree

_SUFFIXES = {"": "", "l": "bigint", "s": "smallint", "y": "tinyint", "f": "float", "d": "double", "bd": "decimal"}
# From the highest precedence to the lowest; each level is left-associative.
_LEVELS = (
    ("*", "/", "%", "div"),
    ("+", "-", "||"),
    ("<<", ">>"),
    ("&",),
    ("^",),
    ("|",),
    ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">="),
)
_SAME = {"==": "=", "!=": "<>"}
_ENDING = frozenset(
    {
        *(
            "from",
            "where",
            "and",
            "or",
            "not",
            "as",
            "case",
            "when",
            "then",
            "else",
            "end",
            "is",
            "in",
            "like",
            "ilike",
        ),
        *("rlike", "regexp", "between", "div", "except", "escape", "distinct"),
        *CLAUSES,
    }
)


def parsed(text: str) -> Select:
    """Return the tree of a text. Raises `SqlError`."""
    return _SelectReader(Tokens(text)).select()


class _SelectReader:
    """Reads one text from its beginning to its end."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._conditions = _ConditionReader(tokens)

    def select(self) -> Select:
        """Read `select items from input [as alias] [where condition]`."""
        if not self._tokens.skip_word("select"):
            refuse(self._tokens.next.at, f"found {self._tokens.next.shown}; {NO_SELECT}")
        if self._tokens.next.is_word("distinct"):
            refuse(self._tokens.next.at, CLAUSES["distinct"])
        self._tokens.skip_word("all")
        items = [self._item()]
        while self._tokens.skip_mark(","):
            items.append(self._item())
        if not self._tokens.skip_word("from"):
            refuse(self._tokens.next.at, f"found {self._tokens.next.shown}, expected a comma, or from input")
        alias = self._table()
        where = self._conditions.condition() if self._tokens.skip_word("where") else None
        self._tokens.skip_mark(";")
        if self._tokens.next.kind != "end":
            refuse(
                self._tokens.next.at,
                CLAUSES.get(
                    self._tokens.next.value.lower(), f"found {self._tokens.next.shown}, expected the end of the select"
                ),
            )
        return Select(tuple(items), alias, where)

    def _table(self) -> str:
        table = self._tokens.take()
        if (
            table.kind not in {"word", "quoted"}
            or table.value.lower() != "input"
            or self._tokens.next.is_mark(".", "(")
        ):
            refuse(
                table.at, f"found {table.shown}: the rows of the source are the one table there is; write from input"
            )
        named = self._tokens.skip_word("as")
        if (
            named
            or self._tokens.next.kind == "quoted"
            or (self._tokens.next.kind == "word" and self._tokens.next.value.lower() not in _ENDING)
        ):
            return self._tokens.take().value
        return "input"

    def _item(self) -> Star | Item:
        at = self._tokens.next.at
        if self._tokens.skip_mark("*"):
            return Star(self._without(), at)
        value = self._conditions.condition()
        if self._tokens.skip_mark("["):
            refuse(at, FOLLOWING["["])
        name = None
        if self._tokens.skip_word("as") or self._tokens.next.kind == "quoted":
            name = self._tokens.name()
        elif self._tokens.next.kind == "word" and self._tokens.next.value.lower() not in _ENDING:
            name = self._tokens.take().value
        return Item(value, name, at)

    def _without(self) -> tuple[Name, ...]:
        if not self._tokens.skip_word("except"):
            return ()
        self._tokens.expect("(")
        names = [Name((self._tokens.name(),), self._tokens.next.at)]
        while self._tokens.skip_mark(","):
            names.append(Name((self._tokens.name(),), self._tokens.next.at))
        self._tokens.expect(")")
        return tuple(names)


class _ConditionReader:
    """Reads conditions."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._values = _ValueReader(tokens, self.condition)

    def condition(self) -> Tree:
        """Read a condition, or a value."""
        left = self._conjunction()
        while self._tokens.next.is_word("or"):
            left = SqlCall("or", (left, self._after_word(self._conjunction)), self._tokens.next.at)
        return left

    def _conjunction(self) -> Tree:
        left = self._negation()
        while self._tokens.next.is_word("and"):
            left = SqlCall("and", (left, self._after_word(self._negation)), self._tokens.next.at)
        return left

    def _after_word(self, read: Callable[[], Tree]) -> Tree:
        self._tokens.take()
        return read()

    def _negation(self) -> Tree:
        at = self._tokens.next.at
        if self._tokens.skip_word("not") or self._tokens.skip_mark("!"):
            return SqlCall("not", (self._negation(),), at)
        return self._predicate()

    def _predicate(self) -> Tree:
        value = self._values.value()
        at = self._tokens.next.at
        negated = self._tokens.next.is_word("not") and self._tokens.after_next.is_word(
            "between", "in", "like", "ilike", "rlike", "regexp"
        )
        if negated:
            self._tokens.take()
        tested = self._tested(value, at)
        if tested is None:
            return value
        return SqlCall("not", (tested,), at) if negated else tested

    def _tested(self, value: Tree, at: int) -> Tree | None:
        """Read what may follow a value and makes a condition of it; `None` if nothing does."""
        if self._tokens.skip_word("is"):
            return self._is(value, at)
        if self._tokens.skip_word("between"):
            low = self._values.value()
            if not self._tokens.skip_word("and"):
                refuse(self._tokens.next.at, f"found {self._tokens.next.shown}, expected and, of between")
            high = self._values.value()
            return SqlCall("and", (SqlCall(">=", (value, low), at), SqlCall("<=", (value, high), at)), at)
        if self._tokens.skip_word("in"):
            return SqlCall("in", (value, *self._list(at)), at)
        for name in ("like", "ilike", "rlike", "regexp"):
            if self._tokens.skip_word(name):
                return self._like("rlike" if name == "regexp" else name, value, at)
        return None

    def _is(self, value: Tree, at: int) -> Tree:
        negated = self._tokens.skip_word("not")
        if self._tokens.skip_word("distinct"):
            if not self._tokens.skip_word("from"):
                refuse(self._tokens.next.at, f"found {self._tokens.next.shown}, expected from, of is distinct from")
            same: Tree = SqlCall("<=>", (value, self._values.value()), at)
            return same if negated else SqlCall("not", (same,), at)
        word = self._tokens.take()
        if word.is_word("null", "unknown"):
            return SqlCall("isnotnull" if negated else "isnull", (value,), at)
        if not word.is_word("true", "false"):
            refuse(word.at, f"found {word.shown}, expected null, true, false or distinct from")
        same = SqlCall("<=>", (value, Constant("boolean", word.value.lower(), word.at)), at)
        return SqlCall("not", (same,), at) if negated else same

    def _like(self, name: str, value: Tree, at: int) -> Tree:
        if self._tokens.next.is_word("any", "some", "all"):
            refuse(at, f"{name} {self._tokens.next.value} is not taken; write the patterns one by one with or, or and")
        pattern = self._values.value()
        escape = (self._values.primary(),) if self._tokens.skip_word("escape") else ()
        return SqlCall(name, (value, pattern, *escape), at)

    def _list(self, at: int) -> tuple[Tree, ...]:
        self._tokens.expect("(")
        if self._tokens.next.is_word("select"):
            refuse(at, CLAUSES["select"])
        values = [self.condition()]
        while self._tokens.skip_mark(","):
            values.append(self.condition())
        self._tokens.expect(")")
        return tuple(values)


class _ValueReader:
    """Reads values; `condition` reads what may be in parentheses."""

    def __init__(self, tokens: Tokens, condition: Callable[[], Tree]) -> None:
        self._tokens = tokens
        self._condition = condition

    def value(self) -> Tree:
        """Read a value, with the operators between its parts."""
        return self._binary(len(_LEVELS) - 1)

    def _binary(self, level: int) -> Tree:
        if level < 0:
            return self._unary()
        left = self._binary(level - 1)
        while self._tokens.next.kind in {"mark", "word"} and self._tokens.next.value.lower() in _LEVELS[level]:
            operator = self._tokens.take()
            name = operator.value.lower()
            left = SqlCall(_SAME.get(name, name), (left, self._binary(level - 1)), operator.at)
        return left

    def _unary(self) -> Tree:
        at = self._tokens.next.at
        for mark in ("-", "+", "~"):
            if self._tokens.next.is_mark(mark):
                self._tokens.take()
                return self._signed(mark, at)
        value = self.primary()
        while self._tokens.next.is_mark("::", "["):
            if self._tokens.next.is_mark("["):
                refuse(self._tokens.next.at, FOLLOWING["["])
            self._tokens.take()
            value = CastTo(value, self._kind(), lenient=False, at=at)
        return value

    def _signed(self, mark: str, at: int) -> Tree:
        if mark == "-" and self._tokens.next.kind == "number":  # the smallest number has no positive counterpart
            number = self._number()
            return Constant(number.kind, f"-{number.text}", at)
        return SqlCall("negative" if mark == "-" else "positive" if mark == "+" else "~", (self._unary(),), at)

    def primary(self) -> Tree:
        """Read a value without operators around it."""
        token = self._tokens.next
        if token.kind == "number":
            return self._number()
        if token.kind in {"string", "raw"}:
            self._tokens.take()
            if self._tokens.next.kind in {"string", "raw"}:
                refuse(self._tokens.next.at, "texts side by side; write ||")
            return Constant("string", token.value, token.at)
        if self._tokens.skip_mark("("):
            if self._tokens.next.is_word("select"):
                refuse(self._tokens.next.at, CLAUSES["select"])
            value = self._condition()
            self._tokens.expect(")")
            return value
        if token.kind == "quoted":
            return self._column()
        if token.kind != "word":
            refuse(token.at, f"found {token.shown}, expected a value")
        return self._worded(token)

    def _worded(self, token: SqlToken) -> Tree:
        """Read a value that begins with a word."""
        word = token.value.lower()
        if word == "case":
            return self._case()
        if word in {"cast", "try_cast"} and self._tokens.after_next.is_mark("("):
            return self._cast(lenient=word == "try_cast")
        if (constant := self._constant(token, word)) is not None:
            return constant
        if self._tokens.after_next.is_mark("("):
            return self._call()
        if word in _ENDING:
            refuse(
                token.at,
                CLAUSES.get(
                    word, f"found {token.shown}, expected a value; write a column of that name in `backquotes`"
                ),
            )
        return self._column()

    def _constant(self, token: SqlToken, word: str) -> Constant | None:
        """Read a constant that begins with a word; `None` if it is not one."""
        if word in {"date", "timestamp", "timestamp_ntz", "timestamp_ltz"} and self._tokens.after_next.kind == "string":
            self._tokens.take()
            return Constant(word.removesuffix("_ltz"), self._tokens.take().value, token.at)
        if word in {"true", "false", "null"} and not self._tokens.after_next.is_mark("(", "."):
            self._tokens.take()
            return Constant("null" if word == "null" else "boolean", word, token.at)
        if word == "interval" and self._tokens.after_next.kind in {"string", "number"}:
            refuse(token.at, FOLLOWING["interval"])
        return None

    def _column(self) -> Name:
        at = self._tokens.next.at
        parts = [self._tokens.name()]
        while self._tokens.skip_mark("."):
            if self._tokens.next.is_mark("*"):
                refuse(
                    self._tokens.next.at,
                    "found '*' after a name; write * for all columns, and the members that you want by name",
                )
            parts.append(self._tokens.name())
        return Name(tuple(parts), at)

    def _call(self) -> SqlCall:
        token = self._tokens.take()
        self._tokens.take()
        name, arguments = token.value.lower(), []
        if self._tokens.next.is_mark("*") or self._tokens.next.is_word("distinct", "select"):
            refuse(token.at, of_function(name, set()))
        while not self._tokens.next.is_mark(")"):
            arguments.append(self._condition())
            if not self._tokens.skip_mark(","):
                break
        self._tokens.expect(")")
        if self._tokens.next.is_word("over", "filter", "within"):
            refuse(token.at, FOLLOWING["over"])
        return SqlCall(name, tuple(arguments), token.at)

    def _case(self) -> Case:
        at = self._tokens.take().at
        subject = None if self._tokens.next.is_word("when") else self._condition()
        branches = []
        while self._tokens.skip_word("when"):
            tested_at = self._tokens.next.at
            test = self._condition()
            if subject is not None:
                test = SqlCall("=", (subject, test), tested_at)
            if not self._tokens.skip_word("then"):
                refuse(self._tokens.next.at, f"found {self._tokens.next.shown}, expected then")
            branches.append((test, self._condition()))
        otherwise = self._condition() if self._tokens.skip_word("else") else None
        if not branches or not self._tokens.skip_word("end"):
            refuse(
                self._tokens.next.at,
                f"found {self._tokens.next.shown}, expected {'end' if branches else 'when'}, of case",
            )
        return Case(tuple(branches), otherwise, at)

    def _cast(self, *, lenient: bool) -> CastTo:
        at = self._tokens.take().at
        self._tokens.take()
        value = self._condition()
        if not self._tokens.skip_word("as"):
            refuse(self._tokens.next.at, f"found {self._tokens.next.shown}, expected as, and a type")
        kind = self._kind()
        self._tokens.expect(")")
        return CastTo(value, kind, lenient, at)

    def _kind(self) -> str:
        """Read the name of a type, as in DDL."""
        kind = self._tokens.name()
        if self._tokens.skip_mark("("):
            digits = [self._tokens.take().value]
            while self._tokens.skip_mark(","):
                digits.append(self._tokens.take().value)
            self._tokens.expect(")")
            kind += f"({','.join(digits)})"
        if self._tokens.next.is_mark("<"):
            refuse(self._tokens.next.at, "casts to nested types are not taken; give the column its type in the schema")
        return kind

    def _number(self) -> Constant:
        token = self._tokens.take()
        digits = token.value.rstrip("LlSsYyFfDdBb")
        suffix = token.value[len(digits) :].lower()
        if "e" in digits.lower() and not suffix:
            return Constant("double", digits, token.at)
        plain = "decimal" if "." in digits else "integer"
        return Constant(_SUFFIXES[suffix] or plain, digits, token.at)
