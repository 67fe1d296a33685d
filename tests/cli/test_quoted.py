"""Commands in messages can be pasted into a shell, whatever the path."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import penstock
from penstock.errors import UsageError
from penstock.sink.sparklog import check_no_log
from penstock.storage import LocalStorage

SOURCE = Path(penstock.__file__).parent


def test_a_path_with_a_space_can_be_pasted(tmp_path: Path) -> None:
    """A message quotes the path in a command if it needs quotes: pasted into a shell, the command has that path."""
    root = tmp_path / "my output; it's ours"
    (root / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(UsageError) as told:
        check_no_log(LocalStorage(), str(root))
    [command] = re.findall("`(.*?)`", str(told.value))
    assert shlex.split(command) == ["penstock", "adopt", str(root)]


def test_no_command_is_told_without_quotes() -> None:
    """Wherever a message puts a value into a command, the value goes through `quote`."""
    bare = [
        f"{path.relative_to(SOURCE)}: {value}"
        for path in SOURCE.rglob("*.py")
        for value in re.findall(
            r"penstock (?:adopt|check|finish|late|replan|reset|retry|run|status|verify) [{](.*?)[}]",
            path.read_text("utf-8"),
        )
        if not value.startswith("quote(")
    ]
    assert bare == []
