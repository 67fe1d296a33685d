"""Every error has a test that follows its advice."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.docs.markdown import DOCS, REPOSITORY, table

# Classes that are never raised: they are there to be caught.
TO_BE_CAUGHT = {"PST-200"}
_MARKED = re.compile(r'^@follows\("(PST-\d+)"\)\n(?=(?:[@ )].*\n)*(?:async )?def (test_\w+)\()', re.MULTILINE)


def classes() -> dict[str, str]:
    """Return the class of each code on the page."""
    rows = table(DOCS / "errors.md", "Class", "Code", "Exit status", "Meaning", "What to do")
    return {row[1]: row[0].strip("`") for row in rows}


def followed() -> dict[str, list[str]]:
    """Return a table: for each code, the tests marked `@follows` that provoke its error and do what it advises."""
    tests = defaultdict(list)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        for code, name in _MARKED.findall(path.read_text(encoding="utf-8")):
            tests[code].append(f"{path.relative_to(REPOSITORY)}::{name}")
    return tests


def test_the_advice_of_every_code_is_followed() -> None:
    """For every code on the page a test provokes the error and does what it says, and no test follows a code that is not there."""
    tests = followed()
    assert set(tests) == set(classes()) - TO_BE_CAUGHT, tests
    marks = [
        path.read_text(encoding="utf-8").count('\n@follows("PST-') for path in (REPOSITORY / "tests").rglob("test_*.py")
    ]
    assert sum(map(len, tests.values())) == sum(marks), "a mark that stands over no test"


def test_what_is_only_to_be_caught_is_never_raised() -> None:
    """A class without advice is never raised."""
    for path in (REPOSITORY / "src").rglob("*.py"):
        for code in TO_BE_CAUGHT:
            assert f"raise {classes()[code]}(" not in path.read_text(encoding="utf-8"), path
