"""CSV as rows, and rows as CSV, in any `Dialect`; `formats.known.csv` is the format.

*What lives here.* `cut` finds where records begin, `decoder` turns them into rows, `encoder` writes rows, and `kinds`
finds out which types values have.

*What may be touched.* Bytes and Arrow data that are passed in; no file.

*What it may know.* Other parts of `formats`, except `json` and the formats themselves.
"""
