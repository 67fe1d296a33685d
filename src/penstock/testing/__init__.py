"""Tools for tests of pipelines: a disk that loses power, an explorer of crashes, calls that fail, a clock that only moves when told to.

*What lives here.* Simulators of what is below a storage, one file each (`disk`, `hdfs`, `objects`; `faults` makes their calls fail);
simulators of time (`clock`, `virtual`); and tools that judge a program that runs on them (`explore`, `choices`, `check`).

*What may be touched.* Memory alone: no disk, no server and no clock of the machine. Users import it, and Penstock does not.

*What it may know.* Storage, and what is below it: nothing of what a program does with it.
"""

from penstock.testing.check import Verdict, compare, visible
from penstock.testing.clock import FakeClock
from penstock.testing.disk import CrashDisk, Image, SimulatedCrash
from penstock.testing.explore import Crashable, Known, Program, Report, explore
from penstock.testing.faults import Fault, FaultySystem
from penstock.testing.hdfs import CrashHdfs
from penstock.testing.objects import ObjectStore
from penstock.testing.virtual import VirtualLoop, run_virtual

__all__ = [
    "CrashDisk",
    "CrashHdfs",
    "Crashable",
    "FakeClock",
    "Fault",
    "FaultySystem",
    "Image",
    "Known",
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
