"""The source: a directory as an exactly repeatable stream of records.

*What lives here*, in the order in which a file passes through:

- Which files are new: `scan` lists, and `arrivals` decides which of the new files are read. `recent` remembers the files that were
  read, `backlog` has the files that wait, and `notices` reports files that are not read. `pace` says when to look again.
- What a batch reads: `plan` makes splits of files; `cursor` is how far the plan has got, and the form of the offset. `dividing` says
  where files are cut, `begun` handles files that were cut, and `sides` keeps long plans beside the offset.
- What a task reads: `read` turns a split into rows. `planned` opens its file, `cutting` cuts it into `pieces` of whole records,
  `transcoding` makes them UTF-8, and `guarded` sets aside what cannot be read as a whole.
- Files that are named by rows have neither scan nor plan: `looking` makes splits of them, `pinned` notes what was found, and
  `splitruns` reads the splits; `named` is what `looking` and `splitruns` share.
- Files that grow have a planner of their own: `followed`, with `rotated` (which files appeared, disappeared or were renamed) and
  `growth` (the state of one file).

*What may be touched.* Files of the source are read and never altered. Only plans beside the checkpoint and the notes of `pinned` are
written, through `storage`. Nothing else but the offset is kept from batch to batch.

*What it may know.* Storage, formats, options and the checksum of offsets (`query.offset`): neither a sink nor Spark.
"""
