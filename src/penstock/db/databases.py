"""The supported databases, by URL."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.db.postgresql import PostgreSQL
from penstock.db.sqlite import SQLite
from penstock.db.target import SQLITE
from penstock.errors import DependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.db.database import Database


def database(url: str, password: Callable[[], str | None]) -> Database:
    """Return the database at a checked URL; does not connect yet. `DependencyError` if its driver is not installed."""
    kind = SQLite if url.startswith(SQLITE) else PostgreSQL
    if find_spec("adbc_driver_manager") is None or find_spec(kind.driver) is None:
        msg = f"{kind.driver} is not installed; install it with: pip install 'penstock[db]'"
        raise DependencyError(msg)
    return kind(url, password)
