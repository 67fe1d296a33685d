"""Which batch may follow which, and who may commit it: the rules on their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CheckpointMismatch, Fenced
from penstock.query import fence
from penstock.query.batch import Batch
from penstock.query.fence import Claim
from penstock.query.order import Last, Nouns, Standing, place

NOUNS = Nouns("sink 's'", "the shelf", "a new checkpoint and an empty shelf", "take another shelf")
FIRST, LAST = Last(""), Last("q", 4, "m4")

PLACES = [
    (FIRST, Batch("q", 0), Standing.NEXT),
    (LAST, Batch("q", 5, "m5"), Standing.NEXT),
    (LAST, Batch("q", 4, "m4"), Standing.APPLIED),
    (LAST, Batch("q", 5, "m5", follows="m4"), Standing.NEXT),
    (Last("q", 4), Batch("q", 5, "m5", follows="m4"), Standing.NEXT),
    (LAST, Batch("q", 4, follows="m3"), Standing.APPLIED),
    (LAST, Batch("q", 4), Standing.APPLIED),
    (Last("q", 4), Batch("q", 4, "m4"), Standing.APPLIED),
]

REFUSED = [
    (FIRST, Batch("q", 1), "batch 1 of query q, but sink 's' has none of it: the shelf was emptied"),
    (LAST, Batch("q", 6), "batch 6 of query q, but sink 's' ends with batch 4: the shelf was .* put back"),
    (LAST, Batch("q", 3), "batch 3 of query q, but sink 's' ends with batch 4: the checkpoint was restored"),
    (LAST, Batch("q", 4, "m"), "sink 's' has batch 4 of query q, and Spark's offset log has other offsets for it"),
    (
        LAST,
        Batch("q", 5, "m5", follows="m"),
        "sink 's' has batch 4 of query q, and Spark's offset log has other offsets for it",
    ),
    (LAST, Batch("r", 0), "written by query q up to batch 4, and this is query r, batch 0: .* take another shelf$"),
    (LAST, Batch("r", 5), "written by query q"),
]


@pytest.mark.parametrize(("last", "batch", "expected"), PLACES)
def test_place(last: Last, batch: Batch, expected: Standing) -> None:
    """The next batch is the next one; the last one counts as applied if its offsets are the same or unknown."""
    assert place(last, batch, NOUNS) is expected


@pytest.mark.parametrize(("last", "batch", "words"), REFUSED)
def test_two_stories_are_refused(last: Last, batch: Batch, words: str) -> None:
    """The error says whether sink or checkpoint is older, in the words of the sink, and what to do."""
    with pytest.raises(CheckpointMismatch, match=words):
        place(last, batch, NOUNS)


@given(st.integers(-1, 5), st.integers(0, 7), st.sampled_from(["", "a", "b"]), st.sampled_from(["", "a", "b"]))
def test_nothing_is_passed_over(last: int, number: int, had: str, has: str) -> None:
    """Whatever sink and checkpoint say, the next batch is written, the last one is left out, and any other is refused."""
    try:
        found = place(Last("q", last, had), Batch("q", number, has), NOUNS)
    except CheckpointMismatch:
        assert number not in {last, last + 1} or (number == last and "" not in {had, has} and had != has)
    else:
        assert number == (last if found is Standing.APPLIED else last + 1)


@pytest.mark.parametrize(
    ("held", "mine"), [(Claim("a"), Claim("a")), (Claim("a", 2), Claim("a")), (Claim("a", 2), Claim(epoch=2))]
)
def test_who_holds_the_claim_goes_on(held: Claim, mine: Claim) -> None:
    """The claim is compared by epoch if both sides know one, else by name."""
    fence.check("sink 's'", held, mine)


@pytest.mark.parametrize(
    ("held", "mine", "words"),
    [
        (Claim("b"), Claim("a"), "sink 's' belongs to driver 'b' by now; this driver 'a' has changed nothing"),
        (
            Claim("b", 3),
            Claim(epoch=2),
            r"belongs to driver 'b' \(epoch 3\) by now; this driver has epoch 2 and has changed",
        ),
        (Claim("a", 3), Claim("a", 2), "belongs to driver 'a'"),
    ],
)
def test_who_was_replaced_is_fenced(held: Claim, mine: Claim, words: str) -> None:
    """A driver that is replaced by itself is fenced, too: after taking the sink over again it has another epoch."""
    with pytest.raises(Fenced, match=words):
        fence.check("sink 's'", held, mine)
