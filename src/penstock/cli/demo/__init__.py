"""`penstock demo`: the main job on real files of this machine, killed twice on the way, then verified.

*What lives here.* `source` gathers the files, `reader` watches the output as a stranger would, `run` is the real command in a process group
that can be killed, `story` puts them together.

*What may be touched.* A directory of its own, and the processes that it starts.

*What it may know.* What any user knows: the command, and the files of an output.

It is here and not among the examples because `penstock demo` is a command for users who have the wheel and no clone. `make run`
calls it.
"""

from __future__ import annotations

from penstock.cli.demo.story import play

__all__ = ["play"]
