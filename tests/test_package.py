"""What `import penstock` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock


def test_every_public_name_is_there() -> None:
    """Each name that is offered can be had, and `dir` offers those alone."""
    pytest.importorskip("pyspark")
    assert {"async_map", "ingest", "wal", "windows"} <= set(dir(penstock))
    for name in dir(penstock):
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="'penstock' has no attribute 'nothing'"):
        penstock.nothing  # noqa: B018 - it is to fail


@pytest.mark.parametrize("module", ["errors", "testing", "wal", "windows"])
def test_modules_need_no_import_of_their_own(module: str) -> None:
    """`penstock.wal.Writer` works behind `import penstock`, and nothing of it is loaded before."""
    code = f"""
import sys, penstock
assert not [name for name in sys.modules if name.startswith(("penstock.", "pyarrow", "pyspark"))]
print(penstock.{module}.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"penstock.{module}\n", done.stderr
