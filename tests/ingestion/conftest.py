"""What tests of the commands have, for those that run an ingest here."""

from tests.cli.conftest import penstock, pipeline

__all__ = ["penstock", "pipeline"]
