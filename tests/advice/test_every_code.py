"""No error without a test that follows its advice."""

from __future__ import annotations

import re

from tests.docs.markdown import DOCS, REPOSITORY, table

HERE = REPOSITORY / "tests" / "advice"
# Codes whose advice is followed by tests elsewhere, with one of them.
ELSEWHERE = {
    "PST-201": "tests/spark/test_ingest.py::test_bad_record_is_named_and_mended",
    "PST-202": "tests/source/test_read.py::test_truncated_gzip_is_an_error",
    "PST-203": "tests/spark/test_ingest.py::test_batch_that_was_never_committed_is_planned_anew_when_its_files_changed",
    "PST-204": "tests/source/test_plan.py::test_later_than_lateness_can_fail",
}
# Classes that nothing raises: they are there to be caught.
TO_BE_CAUGHT = {"PST-200"}


def codes() -> set[str]:
    """Return the codes that the page has."""
    return {row[1] for row in table(DOCS / "errors.md", "Class", "Code", "Exit status", "Meaning", "What to do")}


def followed() -> set[str]:
    """Return the codes whose advice is followed by a test here."""
    texts = [path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py")]
    return {code for text in texts for code in re.findall(r'^@follows\("(PST-\d+)"\)$', text, re.MULTILINE)}


def test_the_advice_of_every_code_is_followed() -> None:
    """Every code of the page is provoked by a test that does what its error says, here or where it is named."""
    assert codes() == followed() | set(ELSEWHERE) | TO_BE_CAUGHT
    assert not followed() & (set(ELSEWHERE) | TO_BE_CAUGHT)


def test_tests_elsewhere_are_there() -> None:
    """The tests that are named for other codes exist."""
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (REPOSITORY / file).read_text(encoding="utf-8"), place


def test_what_is_only_to_be_caught_is_never_raised() -> None:
    """A class without an advice of its own is raised nowhere."""
    names = {
        row[1]: row[0].strip("`")
        for row in table(DOCS / "errors.md", "Class", "Code", "Exit status", "Meaning", "What to do")
    }
    for path in (REPOSITORY / "src").rglob("*.py"):
        for code in TO_BE_CAUGHT:
            assert f"raise {names[code]}(" not in path.read_text(encoding="utf-8"), path
