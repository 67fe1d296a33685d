"""How far programs are crashed: as far as each moment and each image needs, or at all of them (`make explore`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing import Crashable, CrashDisk, Known, Program, Report, explore
from penstock.testing.choices import IMAGES_MAX
from tests.support.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable


def crashed(
    make: Callable[[], Program], profile: Callable[..., Crashable] = CrashDisk, *, states_max: int = 600
) -> Report:
    """Crash a program at each call, and again at each call of the recovery; fail with the first complaint.

    A gate sees all images of one crash, at each moment. For a crash and another in the recovery from it, it sees the two extremes
    (all that was not synced is lost, or none of it), for up to `states_max` states that are spread over the run. A recovery is not
    followed further once it reaches a state, at rest or after a crash, that was explored before. Returns the report of both.
    """
    known, both = Known(), Report()
    passes = effort(((1, IMAGES_MAX, None), (2, 2, states_max)), ((2, IMAGES_MAX, None),))
    for depth, images_max, limit in passes:
        report = explore(make(), profile=profile, depth=depth, images_max=images_max, states_max=limit, known=known)
        assert not report.complaints, report.first
        both.states += report.states
        both.futures += report.futures
    return both
