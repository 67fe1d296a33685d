"""What our sessions print: `log4j2.properties` configures the JVM's logging, and this module PySpark's own loggers."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from penstock.errors import debugging
from penstock.storage import is_file

_OURS = Path(__file__).with_name("log4j2.properties")
_SPARKS_NAMES = ("log4j2.properties", "log4j2.xml", "log4j2.yaml", "log4j2.json")
_JAVA_OPTIONS = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_TOLD_TWICE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # these log as JSON what PySpark raises at once
_LOST = "Exception while sending command."  # py4j logs this, with a stack, about a lost connection


def jvm_options() -> list[str]:
    """Return the JVM's options for our own logging; none if the user has set some, or PENSTOCK_DEBUG=1."""
    if debugging() or _is_configured() or not is_file(str(_OURS)):  # Java cannot read them in a zip
        return []
    return [f"-Dlog4j2.configurationFile={_OURS.as_uri()}"]


def _is_configured() -> bool:
    """Tell whether the user has configured Spark's logging, by a Java option or a configuration file of Spark."""
    if any("log4j" in os.environ.get(name, "") for name in _JAVA_OPTIONS):
        return True
    return any(is_file(f"{_configuration()}/{name}") for name in _SPARKS_NAMES)


def hush() -> None:
    """Stop the loggers of PySpark and py4j from logging what is also raised, unless the user has set them."""
    if debugging():
        return
    for name in _TOLD_TWICE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_told_once)  # py4j logs there what it raises when the JVM has ended


def _is_told_once(record: logging.LogRecord) -> bool:
    return record.msg != _LOST or "py4j" not in record.pathname


def _configuration() -> str:
    """Return the directory in which Spark looks for its configuration."""
    if "SPARK_CONF_DIR" in os.environ:
        return os.environ["SPARK_CONF_DIR"]
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    return f"{home}/conf"
