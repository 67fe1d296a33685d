"""`penstock demo`: the main job on real files of this machine, killed twice on the way, then verified.

`source` gathers the files, `reader` watches the output as a stranger would, `run` is the real command in a process group
that can be killed, `story` puts them together.

It is here and not among the examples because `penstock demo` is a command for users who have the wheel and no clone. `make run`
calls it.
"""

from __future__ import annotations

from penstock.cli.demo.story import play

__all__ = ["play"]
