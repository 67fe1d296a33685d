"""`penstock run`: many ingests in one Spark, from files of TOML.

A file passes these in order, and nothing starts before all of it has passed: `toml` (text to values, with the line of each key),
`references` (values from the environment or from files), `model` (types), `plan` (options, and what can be known without Spark). Then
`runner` runs one pipeline with its schedule and its failures, and `fleet` runs all of them, with signals and reloads. `draft`
writes a first file. Each pipeline is an ingest like any other: `penstock.ingest` runs it.
"""
