"""Spark's master: where the tasks of a session run."""

from __future__ import annotations

import difflib
import os
import re

from penstock.errors import OptionError

_MASTERS = ("local[*]", "local[4]", "spark://HOST:7077", "yarn", "k8s://https://HOST:443")


def is_here(master: str) -> bool:
    """Tell whether tasks run in the driver's JVM; otherwise their processes may be on other machines."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def check_master(master: str) -> None:
    """Raise `OptionError` for a master that Spark would refuse by ending its JVM."""
    if re.fullmatch(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.*\]|yarn|(spark|k8s)://.+", master) is None:
        near = difflib.get_close_matches(master, _MASTERS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        msg = f"master={master!r} is not one of Spark's{hint} expected one such as {', '.join(_MASTERS)}"
        raise OptionError(msg)
    if master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        msg = "master='yarn': which cluster that is, a configuration says; set HADOOP_CONF_DIR to the directory that has yarn-site.xml"
        raise OptionError(msg)
