"""The source: a directory as an exactly repeatable stream of records.

*What lives here.* From listings to Arrow: `scan` turns listings into files that came, `arrivals` decides which of them are
read (`recent` remembers what was, `backlog` has what waits, `notices` says what is not read), `plan` turns them into the
splits of one batch (`cursor`: how far that got, and the offset; `begun`: files that are cut; `dividing`: where; `sides`:
long plans), and `read` turns a split into rows.

*What may be touched.* The source's files are read and never altered; written are only plans beside the checkpoint, through
`storage`, and nothing else is kept from batch to batch but the offset.

*What it may know.* Storage, formats, options and the checksum of offsets (`query.offset`): neither a sink nor Spark.
"""
