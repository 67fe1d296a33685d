"""The formats: a file each, named as in the registry (`options.formats`), with one object, `FORMAT`.

Machinery that is too large for that file stands one level up (`jsonl`; `delimited`, `csvcut` and `csvencoder`; `parquet`). A format
touches only what it is handed. It knows the families and its own machinery, and no other format.
"""
