"""What tests of pipelines need: a clock that only moves when told to."""

from penstock.testing.clock import FakeClock

__all__ = ["FakeClock"]
