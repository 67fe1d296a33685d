"""CSV as rows, and rows as CSV, in any `Dialect`; `formats.known.csv` is the format.

*What lives here.* `cut` finds where records begin, `decoder` makes rows of them, `encoder` writes rows, and `kinds` finds out which types
values have.

*What may be touched.* Bytes and Arrow that are handed in; no file.

*What it may know.* Other parts of `formats` but for `json` and the formats themselves.
"""
