"""Found by every Python of one contender of the case `syncs`, and by nobody else: what is written is not made durable.

Python imports a module of this name at its start from any directory on PYTHONPATH.
"""

from __future__ import annotations

import os


def _nothing(fd: object) -> None:
    """Do nothing, at once."""


os.fsync = os.fdatasync = _nothing
