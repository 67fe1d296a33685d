"""Thin bindings of source, sink, operators and ingest to Spark. Nothing is decided here.

*What lives here.* A file for each `format(...)`; the operators as functions of a DataFrame (`calls`, `lanes`, `draining`); what is
registered in a session (`register`, `listener`); and the border that our errors cross (`border`).

*What may be touched.* Spark's objects. Only the rooms that are bound here touch files, through `storage`.

*What it may know.* Spark's library, and every room below. Only `verify` and `cli` know this room.
"""
