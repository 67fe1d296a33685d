"""The database sink: a batch's rows and its id are in the database together, or not at all; see `db.sink`.

*What lives here.* `sink` applies a batch and `batches` is its side to the query; `loading` takes rows in, of the `types`
that there are; `staging` has them between tasks and driver; `database` is a connection, and `postgresql` and `sqlite` one
file a database, found by its url (`databases`, `target`); `silence` ends what waits for a server that is gone.

*What may be touched.* The tables that the options name, in one transaction a batch, and the staged files, through `storage`.

*What it may know.* Storage, Arrow files, options, and whose batch it is (`query`): neither a source, nor the sink of files,
nor Spark. No value and no name of a user stands in SQL but as a parameter, or quoted.
"""
