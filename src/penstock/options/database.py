"""The options of the database sink, `df.writeStream.format("penstock-db")`."""

from __future__ import annotations

from penstock.options.option import Option
from penstock.options.parsers import choice, flag, identifier, names_of, place_of_spark, reference, text

DATABASE = (
    Option("url", None, text, "sqlite:///path or postgresql://user@host/database; without a password"),
    Option("password", None, reference, "where the password is: env:NAME or file:PATH"),
    Option("table", None, text, "the table: name or schema.name, exactly as it is written"),
    Option(
        "mode", "append", choice("append", "upsert", "merge"), "append; upsert by key; merge: add numbers up by key"
    ),
    Option(
        "keyColumns",
        None,
        names_of,
        "what tells rows apart in upsert and merge: names, separated by commas",
        needs=("mode=upsert", "mode=merge"),
    ),
    Option("createTable", "true", flag, "create the table from the schema when there is none"),
    Option("sinkId", None, identifier, "who writes: the key in batchTable; unset: the query id"),
    Option("batchTable", "penstock_batches", text, "the table of the last batch of each sink"),
    Option("badRows", "fail", choice("fail", "quarantine"), "a row that the database refuses"),
    Option("stagingLocation", None, text, "directory that tasks and driver share; unset: in the checkpoint"),
    Option("checkpointLocation", None, place_of_spark, "Spark's checkpoint of the query"),
    Option("queryName", None, text, "Spark's name of the query, which it hands on"),
)
