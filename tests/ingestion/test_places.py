"""Input, output and checkpoint must be separate, also if one is the root of its storage, or a bucket. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.ingestion.places import check_apart


@pytest.mark.parametrize(
    ("src", "dst", "words"),
    [
        ("s3://bucket/in", "s3://bucket", r"lies in DST='s3://bucket'.* such as s3://bucket/out"),
        ("s3a://bucket/in", "s3://bucket/", r"lies in DST='s3://bucket'.* such as s3://bucket/out"),
        ("s3://bucket/in", "s3://bucket/in/", "DST='s3://bucket/in' lies in SRC"),
        ("s3://bucket", "s3://bucket/out", "DST='s3://bucket/out' lies in SRC='s3://bucket'"),
        ("/data/in", "/", r"SRC='/data/in' lies in DST='/'.* such as /out"),
        ("/", "/data/out", "DST='/data/out' lies in SRC='/'"),
    ],
)
def test_an_output_or_input_that_is_a_root_is_refused(src: str, dst: str, words: str) -> None:
    """Everything is below a root, a disk's root too: rows would be read as input, or input would be taken for rows."""
    with pytest.raises(OptionError, match=words):
        check_apart(src, dst, strict=False)


def test_a_checkpoint_above_the_input_is_refused(tmp_path: Path) -> None:
    """Spark would make the checkpoint's directories around the input: the error names a separate place."""
    (tmp_path / "in").mkdir()
    with pytest.raises(OptionError, match=rf"such as {tmp_path}/checkpoint"):
        check_apart(f"{tmp_path}/in", f"{tmp_path}/out", f"{tmp_path}")
    check_apart(f"{tmp_path}/in", f"{tmp_path}/out", f"{tmp_path}/checkpoint")
