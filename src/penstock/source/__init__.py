"""The source: a directory as an exactly repeatable stream of records.

*What lives here.* From listings to Arrow: `scan` turns listings into files that came, `arrivals` decides which of them are
read (`recent` remembers what was, `backlog` has what waits, `notices` says what is not read), `plan` turns them into the
splits of one batch (`cursor`: how far that got, and the offset; `begun`: files that are cut; `dividing`: where; `sides`:
long plans; `pace`: when it is looked), and `read` turns a split into rows (`planned`: its file, `cutting`: into `pieces` of whole
records, `transcoding`: as UTF-8, `guarded`: set aside as a whole). Where rows name the files there is neither scan nor
plan: `named` makes splits of them, and `pinned` notes what was found. Files that grow have a planner of their own: `followed`, over
`rotated` (which of them came, went and were renamed) and `growth` (what one of them is).

*What may be touched.* The source's files are read and never altered; written are only plans beside the checkpoint and the
notes of `pinned`, through `storage`, and nothing else is kept from batch to batch but the offset.

*What it may know.* Storage, formats, options and the checksum of offsets (`query.offset`): neither a sink nor Spark.
"""
