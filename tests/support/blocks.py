"""What memory blocks of some megabytes cost a process that has used and freed such blocks before."""

from __future__ import annotations

import ctypes
import resource

import pytest

BLOCKS, BLOCK_BYTES = 4, 8 << 20
FEW_PAGES = 1000  # the blocks have 8192 pages

only_where_it_can_be_said = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no setting for what it keeps"
)


def new_pages() -> int:
    """Return how many new pages of memory the blocks took from the machine, right after the process had freed as many blocks."""
    before = 0
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [b"x" * BLOCK_BYTES for _ in range(BLOCKS)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
