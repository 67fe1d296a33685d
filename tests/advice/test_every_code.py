"""No error without a test that follows its advice."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.docs.markdown import DOCS, REPOSITORY, table

# Classes that nothing raises: they are there to be caught.
TO_BE_CAUGHT = {"PST-200"}
_MARKED = re.compile(r'^@follows\("(PST-\d+)"\)\n(?=(?:[@ )].*\n)*(?:async )?def (test_\w+)\()', re.MULTILINE)


def classes() -> dict[str, str]:
    """Return the class of each code that the page has."""
    rows = table(DOCS / "errors.md", "Class", "Code", "Exit status", "Meaning", "What to do")
    return {row[1]: row[0].strip("`") for row in rows}


def followed() -> dict[str, list[str]]:
    """Return the table: of each code the tests that provoke it and do what its error says, which are marked `@follows`."""
    tests = defaultdict(list)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        for code, name in _MARKED.findall(path.read_text(encoding="utf-8")):
            tests[code].append(f"{path.relative_to(REPOSITORY)}::{name}")
    return tests


def test_the_advice_of_every_code_is_followed() -> None:
    """Every code of the page is provoked by a test that does what its error says, and no test follows another one."""
    tests = followed()
    assert set(tests) == set(classes()) - TO_BE_CAUGHT, tests
    marks = [
        path.read_text(encoding="utf-8").count('\n@follows("PST-') for path in (REPOSITORY / "tests").rglob("test_*.py")
    ]
    assert sum(map(len, tests.values())) == sum(marks), "a mark that stands over no test"


def test_what_is_only_to_be_caught_is_never_raised() -> None:
    """A class without an advice of its own is raised nowhere."""
    for path in (REPOSITORY / "src").rglob("*.py"):
        for code in TO_BE_CAUGHT:
            assert f"raise {classes()[code]}(" not in path.read_text(encoding="utf-8"), path
