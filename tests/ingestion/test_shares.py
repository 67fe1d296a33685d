"""How the splits of files that lists name are distributed to tasks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.ingestion.planning import _shares

MB = 1 << 20


@pytest.mark.parametrize("count", [2, 4])
def test_large_ranges_and_small_ends_of_files(count: int) -> None:
    """Four files of 40 MB in ranges of 32 MB: one task of two once had all the large ranges, and took as long as one alone."""
    weights = np.array([32 * MB, 8 * MB] * 4)
    shares = _shares(weights, count)
    assert [int(weights[shares == task].sum()) for task in range(count)] == [160 * MB // count] * count


@example(weights=[5, 0], count=1)  # a file that cannot be read weighs nothing
@example(weights=[0], count=3)
@given(st.lists(st.integers(0, 1 << 40), max_size=50), st.integers(1, 9))
def test_neighbours_together_and_no_task_has_much_more_than_its_share(weights: list[int], count: int) -> None:
    """In the order of the splits, with at most one split more than its share."""
    given_weights = np.array(weights, np.int64)
    shares = _shares(given_weights, count)
    assert len(shares) == len(weights)
    assert list(shares) == sorted(shares)
    assert all(0 <= share < count for share in shares)
    most = max(weights, default=0)
    for task in range(count):
        assert given_weights[shares == task].sum() <= sum(weights) / count + most + 1
