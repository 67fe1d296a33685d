"""The formats: one file each, named as in the registry (`options.formats`), with one object, `FORMAT`.

*What lives here.* Only these files: machinery that is too large for them is one level up (`formats.json`,
`formats.csv`, `formats.parquet`).

*What may be touched.* What a format is given: bytes, rows and file objects.

*What it may know.* The families and its own machinery, but no other format.
"""
