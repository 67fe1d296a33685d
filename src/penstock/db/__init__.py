"""The database sink: a batch's rows and its id are in the database together, or not at all; see `db.sink`."""
