"""Thin bindings of source, sink and ingest to Spark. Nothing here decides anything."""
