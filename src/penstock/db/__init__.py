"""The database sink: a batch's rows and its id are in the database together, or neither is; see `db.sink`.

*What lives here.* `sink` applies a batch, and `batches` binds it to the query. `loading` turns rows into values of the
database's `types`, and `staging` holds them between tasks and driver. `database` is a connection; `postgresql` and
`sqlite` are one database each, chosen by its URL (`databases`, `target`). `silence` ends waits for a server that is
gone.

*What may be touched.* The tables that the options name, in one transaction per batch; and the staged files, through
`storage`.

*What it may know.* Storage, Arrow files, options, and whose batch it is (`query`); no source, not the file sink, not
Spark. A value or a name that comes from a user is in SQL only as a parameter, or quoted.
"""
