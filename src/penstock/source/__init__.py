"""The source: a directory as an exactly repeatable stream of records.

*What lives here*, in the order in which a file passes:

- Which files are new: `scan` lists, and `arrivals` decides which of the files that came are read. `recent` remembers those that were,
  `backlog` has those that wait, and `notices` tells of those that are not read. `pace` says when to look again.
- What a batch reads: `plan` makes splits of files; `cursor` is how far that got, and the form of the offset. `dividing` says where files
  are cut, `begun` has the files that are, and `sides` keeps long plans beside the offset.
- What a task reads: `read` turns a split into rows. `planned` opens its file, `cutting` cuts it into `pieces` of whole records,
  `transcoding` makes them UTF-8, and `guarded` sets aside what cannot be read as a whole.
- Files that rows name have neither scan nor plan: `looking` makes splits of them, `pinned` notes what was found, and `splitruns` reads
  them; `named` is what both go by.
- Files that grow have a planner of their own: `followed`, with `rotated` (which of them came, went and were renamed) and `growth`
  (what one of them is).

*What may be touched.* Files of the source are read and never altered. Written are plans beside the checkpoint and the notes of
`pinned`, through `storage`. The offset is all else that is kept from batch to batch.

*What it may know.* Storage, formats, options and the checksum of offsets (`query.offset`): neither a sink nor Spark.
"""
