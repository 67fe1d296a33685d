"""Noted schemas on storage that loses power at every call: a batch that is replayed has the columns that it had."""

from __future__ import annotations

import pytest

from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, explore
from tests.testing.schema_program import SchemaProgram


@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
@pytest.mark.parametrize("given", [False, True], ids=["inferred", "given"])
def test_crash_anywhere_and_again_in_the_recovery(profile: type[Crashable], given: bool) -> None:
    """Whenever a start dies, what a batch is read by is what it was read by before, if nobody said otherwise, and is noted."""
    report = explore(SchemaProgram(given=given), profile=profile, images_max=12, states_max=400)
    assert not report.complaints, report.first
    assert report.states > 5
