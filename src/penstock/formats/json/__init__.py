"""JSON lines as rows, and rows as JSON lines; `formats.known.json` is the format.

*What lives here.* `lines` has the decoder and the encoder. The decoder has `read` take each block to one of four readers, which
give the same rows: `frame` takes lines of one form, `dense` flat records without nulls (by polars), `quick` all that is usual (by
Arrow's parser, which `arrow` knows), and `exact` everything, by its text. `doubt` and `pattern` part lines that are in doubt from
the others, and `broken` finds those that are no JSON. `strict` looks at keys and columns that have no partner, `document` makes
lines of one document, and `kinds` finds out which types values have.

*What may be touched.* Bytes and Arrow that are handed in; no file.

*What it may know.* Other parts of `formats` but for `csv` and the formats themselves.
"""
