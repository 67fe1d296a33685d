"""Starts the JVM of a session without the scripts of `spark-submit`, and without the JVM that these start to find the command.

That takes half a second of a core, and its result is one command, the same each time. So `penstock warmup` asks the scripts once, and
keeps the answer beside the archive of classes. The answer depends on Spark, on Java, on variables and on files of configuration, so:

1. A Spark or a Java is replaced, and the answer belongs to the old one. Rule: the name of the file depends on the same facts as the
   archive's name.
2. A user sets what Spark's scripts would have looked at: a directory of configuration, a variable of Spark's, memory for the driver.
   Rule: if anything of that kind is set, the scripts are asked, as if there were no answer.
3. The JVM ends before it is reached, although it may have told its address. Rule: it is started once more, by the scripts, which report
   what is wrong.
4. The JVM is started before it is needed (`begin`), and then is not needed, or the process that began it is killed. Rule: the JVM's
   standard input is a pipe that only this process holds, as with Spark's own start, so the JVM ends when this process does. A process
   that ends in order ends the JVM at once.
5. The answer is damaged, by a disk or an editor. Rule: it begins with its checksum, and is ignored if that does not match; and nothing
   is taken from the cache that another user could have written.
6. The JVM is begun, and then a user's module is imported. It sets a variable, or is found by a path that the JVM's workers do not have.
   Rule: a session takes a JVM that was begun only if it would now be started with exactly the same settings and environment.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import clock
from penstock.errors import AlreadyThere, NotThere, StorageError
from penstock.session import archive, pythons
from penstock.storage import LocalStorage, cached, names_at, passing_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CLASS = "org.apache.spark.deploy.SparkSubmit"
_LAUNCHER = "org.apache.spark.launcher.Main"
_APPLICATION = "pyspark-shell"
_OPTIONS = "-Dpenstock.options=here"  # the place of the session's options in the answer
_BEGINS = b"\0\n"
_HARMLESS = {"SPARK_HOME", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_DIRS"}
_OF_HADOOP = {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS"}
_CORE = re.compile(r"spark-core_([\d.]+)-")
_POLL_SECONDS = 0.01
_ENDING_SECONDS = 1.0
_NO_INTERRUPT = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # PySpark has its JVM ignore it, too


def learn() -> None:
    """Ask Spark how it starts the JVM of a session, and keep the answer; if there is none, starts stay as they are."""
    home, java = pythons.pyspark_home(), archive.java()
    if home is None:
        return
    variables = {name: text for name, text in os.environ.items() if not _is_asked(name)}
    given = ["--conf", "spark.master=local[*]", "--conf", f"spark.driver.extraJavaOptions={_OPTIONS}", _APPLICATION]
    command = [java, "-Xmx128m", "-cp", f"{home}/jars/*", _LAUNCHER, _CLASS, *given]
    own = {"SPARK_HOME": home, "SPARK_CONF_DIR": f"{home}/conf", "SPARK_SCALA_VERSION": _scala(home)}
    done = subprocess.run(command, env=variables | own, capture_output=True, check=False)  # noqa: S603 - Spark's own launcher
    answer = done.stdout.partition(_BEGINS)[2]
    if done.returncode or not _parts(answer):
        return
    place = f"{os.path.dirname(archive.location())}/{archive.command_name()}"
    with suppress(NotThere):
        LocalStorage().delete(place)
    with suppress(AlreadyThere):
        LocalStorage().put_if_absent(place, _sum(answer) + answer)


def _scala(home: str) -> str:
    """Return the version of Scala for which a Spark was built, from the name of its jar: the launcher needs it."""
    matches = (_CORE.match(name) for name in names_at(LocalStorage(), f"{home}/jars"))
    return next((match[1] for match in matches if match), "")


def _sum(answer: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(answer).encode() + b"\n"


def _parts(answer: bytes) -> tuple[list[str], list[str]] | None:
    """Return the words before the session's options, and those after, up to the class; `None` if this is not an answer."""
    words = [os.fsdecode(word) for word in answer.split(b"\0")]
    if words.count(_OPTIONS) != 1 or words.count(_CLASS) != 1:
        return None
    options, main = words.index(_OPTIONS), words.index(_CLASS)
    return (words[:options], words[options + 1 : main]) if 0 < options < main else None


def _is_asked(name: str) -> bool:
    """Tell whether Spark's scripts would read this variable."""
    return (name.startswith("SPARK_") and name not in _HARMLESS) or name in _OF_HADOOP


def _command(options: Sequence[str], settings: Mapping[str, str], home: str) -> list[str] | None:
    """Return how Spark would start the JVM of a session, if that is known; `StorageError` if the cached answer cannot be read."""
    path = cached(archive.command_name())
    if path is None or any(map(_is_asked, os.environ)) or names_at(LocalStorage(), f"{home}/conf"):
        return None
    if os.path.realpath(os.environ.get("SPARK_HOME") or home) != os.path.realpath(home):
        return None
    kept = LocalStorage().read(path)
    answer = kept.partition(b"\n")[2]
    parts = _parts(answer) if kept == _sum(answer) + answer else None
    if parts is None:
        return None
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [*parts[0], *options, *parts[1], _CLASS, *given, _APPLICATION]


@dataclass
class BegunJvm:
    """A JVM that was started; `place` is the file in which it writes how to reach it."""

    process: subprocess.Popen[bytes]
    place: str

    def gateway(self) -> Any:  # noqa: ANN401 - py4j's
        """Return the gateway to the JVM once it can be reached; `None` if it has ended. Call once: if there is none, the JVM is ended."""
        gateway = None
        try:
            answer = self._answer()
            if answer is not None:
                gateway = self._connected(int.from_bytes(answer[:4], "big"), answer[8:].decode())
        except Exception:  # py4j raises errors of several kinds
            if not self._has_ended():
                raise
        finally:
            if gateway is None:
                self.end()
        return gateway

    def _answer(self) -> bytes | None:
        """Return the JVM's message about how to reach it, once it comes; `None` if it ends without one."""
        while True:
            ended = self.process.poll() is not None
            with suppress(NotThere):
                answer = LocalStorage().read(self.place)
                LocalStorage().delete(self.place)
                return answer
            if ended:
                return None
            clock.sleep(_POLL_SECONDS)

    def _has_ended(self) -> bool:
        """Tell whether the JVM has ended, or does so now: a connection is lost a little before."""
        try:
            self.process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _connected(self, port: int, secret: str) -> Any:  # noqa: ANN401 - py4j's
        from pyspark.java_gateway import launch_gateway

        variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        os.environ.update(variables)
        try:
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]  # - PySpark has no types there
        finally:
            for name in variables:
                del os.environ[name]
        gateway.proc = self.process
        return gateway

    def end(self) -> None:
        """End the JVM, which is not needed any more."""
        self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        with suppress(NotThere):
            LocalStorage().delete(self.place)


def begin(settings: Mapping[str, str], options: Sequence[str], *, apart: bool, output: int | None) -> BegunJvm | None:
    """Start the JVM of a session with these settings and Java options, in this process's environment; `None`: the command is unknown.

    `apart`: in a session of its own, which no signal to this process's group reaches. `output` is where the JVM writes its output;
    `None`: to the output of this process.
    """
    home = pythons.pyspark_home()
    if home is None:
        return None
    try:
        command = _command(options, settings, home)
        if command is None:
            return None
        place = passing_path("gateway")
        own = {
            "SPARK_HOME": home,
            "SPARK_CONF_DIR": f"{home}/conf",
            "SPARK_ENV_LOADED": "1",
            "SPARK_CONNECT_MODE": "0",
            "PYTHONHASHSEED": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": place,
        }
        streams: dict[str, Any] = {} if output is None else {"stdout": output, "stderr": output}
        process = subprocess.Popen(  # noqa: S603 - the command that Spark would start
            [*_NO_INTERRUPT, *command], env=os.environ | own, stdin=subprocess.PIPE, start_new_session=apart, **streams
        )
    except (OSError, StorageError):
        return None
    return BegunJvm(process, place)
