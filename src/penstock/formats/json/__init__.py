"""JSON lines as rows, and rows as JSON lines; `formats.known.json` is the format.

*What lives here.* `lines` has the decoder and the encoder. The decoder uses `read`, which gives each block to one of
four readers. All return the same rows: `frame` reads lines of one form, `dense` flat records without nulls (by polars),
`quick` everything usual (by Arrow's parser, which `arrow` wraps), and `exact` everything, by its text. `doubt` and
`pattern` separate doubtful lines from the others, and `broken` finds lines that are not JSON. `strict` handles keys
without a column and columns without a key, `document` turns one document into lines, and `kinds` finds out which types
values have.

*What may be touched.* Bytes and Arrow data that are passed in; no file.

*What it may know.* Other parts of `formats`, except `csv` and the formats themselves.
"""
