"""The formats: a file each, named as in the registry (`options.formats`), with one object, `FORMAT`.

What is larger than a file stands beside: `jsonl`, `delimited` and `csvcut`, `parquet`. A file here may touch nothing but what it is
handed, and knows the families, its own machinery and no other format.
"""
