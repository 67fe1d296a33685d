"""What tests of pipelines need: a disk that loses power, an explorer of crashes, calls that fail, a clock that only moves when told to."""

from penstock.testing.clock import FakeClock
from penstock.testing.disk import EMPTY, CrashDisk, Image, SimulatedCrash
from penstock.testing.explore import Program, Report, explore
from penstock.testing.faults import Fault, FaultySystem

__all__ = [
    "EMPTY",
    "CrashDisk",
    "FakeClock",
    "Fault",
    "FaultySystem",
    "Image",
    "Program",
    "Report",
    "SimulatedCrash",
    "explore",
]
