"""Noted schemas on storage that loses power at every call: a replayed batch has its original columns."""

from __future__ import annotations

import pytest

from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, explore
from tests.testing.schema_program import SchemaProgram


@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
@pytest.mark.parametrize("given", [False, True], ids=["inferred", "given"])
def test_crash_anywhere_and_again_in_the_recovery(profile: type[Crashable], given: bool) -> None:
    """Whenever a start dies, a batch is read by the same noted schema as before, unless the user gave another."""
    report = explore(SchemaProgram(given=given), profile=profile, images_max=12, states_max=400)
    assert not report.complaints, report.first
    assert report.states > 5
