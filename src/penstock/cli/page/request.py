"""The request for a page, as its flags make it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cli.page.door import Door, token_at
from penstock.errors import OptionError
from penstock.metrics.server import address


@dataclass(frozen=True)
class PageRequest:
    """Where a page is to be answered (`flag` names the flag that says so), and where its token is."""

    address: str
    token: str | None = None
    flag: str = "--page"

    def door(self) -> Door:
        """Return the door that decides who may look. Raises `OptionError`, and whatever reading the token raises."""
        host, _ = address(self.address, name=self.flag)
        return Door(token_at(self.token, host, self.flag))


def requested(page: str | None, token: str | None) -> PageRequest:
    """Return what the flags ask for; `OptionError` for a token without a page."""
    if page is None:
        msg = "--page-token is for --page: without it there is no page"
        raise OptionError(msg)
    return PageRequest(page, token)
