"""The formats: a file each, named as in the registry (`options.formats`), with one object, `FORMAT`.

*What lives here.* Nothing else: machinery that is too large for that file stands one level up (`formats.json`, `formats.csv`,
`formats.parquet`).

*What may be touched.* What a format is handed: bytes, rows and file objects.

*What it may know.* The families and its own machinery, and no other format.
"""
