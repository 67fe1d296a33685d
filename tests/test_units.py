"""Sizes and durations as users write them."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError
from penstock.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("128m", 128 << 20),
        ("128MB", 128 << 20),
        ("1g", 1 << 30),
        ("1 GiB", 1 << 30),
        ("2k", 2048),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Sizes take units of 1024 in any case, with or without B."""
    assert parse_size(text, name="rollSize") == size


@pytest.mark.parametrize("text", ["", "-1", "1.5g", "ten", "1x", "m", "1 2"])
def test_bad_sizes_are_refused(text: str) -> None:
    """An invalid size is refused with the option's name and an example."""
    with pytest.raises(OptionError, match="rollSize=.*128m"):
        parse_size(text, name="rollSize")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1s", 1), ("15m", 900), ("15min", 900), ("1.5h", 5400), ("1d", 86400), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    """Durations take ms, s, m, h and d; zero needs no unit."""
    assert parse_duration(text, name="settle") == seconds


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 week", "s"])
def test_bad_durations_are_refused(text: str) -> None:
    """A number without a unit is refused, not guessed."""
    with pytest.raises(OptionError, match="settle=.*500ms"):
        parse_duration(text, name="settle")


def test_sizes_and_durations_for_people() -> None:
    """Values are printed with the unit that suits them."""
    assert [format_size(n) for n in (0, 1023, 1536, 3 << 30, 5 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 GiB", "5.0 TiB",
    ]  # fmt: skip
    assert [format_duration(s) for s in (0.44, 59.9, 125, 3780)] == ["0.4 s", "59.9 s", "2 min 05 s", "1 h 03 min"]
