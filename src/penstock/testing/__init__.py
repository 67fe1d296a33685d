"""What tests of pipelines need: a disk that loses power, an explorer of crashes, calls that fail, a clock that only moves when told to."""

from penstock.testing.check import Verdict, compare, visible
from penstock.testing.clock import FakeClock
from penstock.testing.disk import CrashDisk, Image, SimulatedCrash
from penstock.testing.explore import Crashable, Program, Report, explore
from penstock.testing.faults import Fault, FaultySystem
from penstock.testing.hdfs import CrashHdfs
from penstock.testing.objects import ObjectStorage, ObjectStore
from penstock.testing.virtual import VirtualLoop, run_virtual

__all__ = [
    "CrashDisk",
    "CrashHdfs",
    "Crashable",
    "FakeClock",
    "Fault",
    "FaultySystem",
    "Image",
    "ObjectStorage",
    "ObjectStore",
    "Program",
    "Report",
    "SimulatedCrash",
    "Verdict",
    "VirtualLoop",
    "compare",
    "explore",
    "run_virtual",
    "visible",
]
