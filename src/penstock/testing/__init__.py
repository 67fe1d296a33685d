"""What tests of pipelines need: a disk that loses power, an explorer of crashes, a clock that only moves when told to."""

from penstock.testing.clock import FakeClock
from penstock.testing.disk import EMPTY, CrashDisk, Image, SimulatedCrash
from penstock.testing.explore import Program, Report, explore

__all__ = ["EMPTY", "CrashDisk", "FakeClock", "Image", "Program", "Report", "SimulatedCrash", "explore"]
