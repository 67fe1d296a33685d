"""The options of source, sink, log and database: names, defaults, what each accepts, and one way to refuse the rest.

`docs/options.md` has these tables for users, one file a connector here; `internal` has what our own parts tell each other by
the same way. Spark hands options over in any case (`rollsize`); they are matched without regard to it and named in messages
as they are written here. An option that is not in the table is refused with the nearest name, so that a typing error never
silently means a default. Nothing here knows files, formats or Spark.
"""

from __future__ import annotations

from penstock.options.checked import parse
from penstock.options.database import DATABASE
from penstock.options.log import LOG
from penstock.options.option import Option, Options
from penstock.options.sink import SINK
from penstock.options.source import SOURCE

__all__ = ["DATABASE", "LOG", "SINK", "SOURCE", "Option", "Options", "parse"]
