"""`penstock run`: many ingests in one Spark, from files of TOML.

*What lives here.* A file passes these in order, and nothing starts before all of it has passed: `toml` (text to values,
with the line of each key), `references` (values from the environment or from files), `model` (types), `plan` (options,
and what can be known without Spark). Then `runner` runs one pipeline with its schedule and its failures, and `fleet`
runs all of them, with signals and reloads (`locks`, `claims`). `status`, `measured`, `shown` and `logs` report what
happens. `draft` writes a first file.

*What may be touched.* The files of pipelines, which are read and locked, and the signals of this process while it runs. Each pipeline is an
ingest like any other: `penstock.ingest` runs it, and touches all else.

*What it may know.* Whatever the command knows. It has no path of its own for records.
"""
