"""`penstock run`: many ingests in one Spark, from files of TOML.

A file goes through these, in this order, and nothing is started before all of it has passed: `toml` (text to values, and the line of each
key), `references` (what stands in the environment or in a file), `model` (the types), `plan` (the options, and what can be known without
Spark). Then `runner` is one pipeline with its schedule and its failures, and `fleet` is all of them, with signals and reloads. `draft`
writes a first file. Each pipeline is an ingest like any other: `penstock.ingest` runs it.
"""
