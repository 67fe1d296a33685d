"""The options of source, sink, log and database: names, defaults, which values each accepts, and one way to refuse all others.

*What lives here.* A table of options for each connector, in a file of its own (`docs/options.md` has the same for users); `parsers`,
which check and convert values; `topics`, everything else that users say about topics of Kafka; `internal`, options through which our
own parts talk to each other; `formats`, the names of formats.

*What may be touched.* Nothing: text goes in, and a value comes out or an `OptionError`.

*What it may know.* Errors and units; neither files, nor what a format does, nor Spark.

Spark changes the case of options (`rollsize`), so case is ignored when they are matched; messages name them as they are written here.
An option that is not in the table is refused, with the nearest name, so that a typing error never silently means a default.
"""

from __future__ import annotations

from penstock.options.batch import BATCH_SINK
from penstock.options.checked import parse
from penstock.options.database import DATABASE
from penstock.options.finished import FINISHED
from penstock.options.log import LOG
from penstock.options.option import Option, Options
from penstock.options.published import PUBLISHED
from penstock.options.sink import SINK
from penstock.options.source import SOURCE

__all__ = ["BATCH_SINK", "DATABASE", "FINISHED", "LOG", "PUBLISHED", "SINK", "SOURCE", "Option", "Options", "parse"]
