"""A real HDFS on this machine, for tests: one NameNode and three DataNodes, each a process that can be killed and restarted.

The classes come from one Maven jar, `hadoop-client-minicluster`, in the version of the Hadoop client that PySpark brings;
PySpark's own Ivy fetches it once into the user's cache. All servers listen on 127.0.0.1 only. When the process that started a
server is gone, for whatever reason, the server ends by itself: a shell beside it waits for the end of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from urllib.request import Request, urlopen
from zipfile import ZipFile, ZipInfo

import psutil
import xxhash

from penstock.storage import cache_directory
from tests.support.jars import SHORT_LIVED, NoJars, having, java, making, of_pyspark, retrieved
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA_NODES = 3
BLOCK_BYTES = 4 << 20  # small, so that tests fill blocks
_START_SECONDS = PATIENCE_SECONDS
_END_SECONDS = 60
_CLASS = "org.apache.hadoop.hdfs"
_AS_IT_IS = (1 << 63) - 1  # leaves a quota as it is
_WATCHED = (
    '"$@" >&2 & echo $!; read -r _; kill -9 $!'  # a shell that does not outlive its starter: its input ends with it
)


def class_path() -> str:
    """Return the class path of Hadoop's servers; fetch what is missing. `NoJars` if that fails."""
    if find_spec("hdfs_native") is None:
        msg = "hdfs-native is not installed: pip install 'penstock[hdfs]'"
        raise NoJars(msg)
    jars = of_pyspark()
    version = next(iter(jars.glob("hadoop-client-api-*.jar"))).stem.rpartition("-")[2]
    artifact = "hadoop-client-minicluster"
    jar = Path(cache_directory()) / "hadoop" / f"{artifact}-{version}-unpacked.jar"
    if not jar.exists():
        with retrieved(jar.parent, "org.apache.hadoop", artifact, version, needs=False) as directory:
            _unpack(directory / f"{artifact}-{version}.jar").replace(jar)
    return f"{jar}:{jars}/*"


def _unpack(jar: Path) -> Path:
    """Return an uncompressed copy of a jar, which lies beside the jar.

    A server reads the whole jar as it starts, for the pages of its web interface, and the NameNode reads it again to look for
    classes. These are 150 MB; unpacking them was a fifth of the processor time that all servers need to start.
    """
    copy = jar.with_suffix(".unpacked")
    with ZipFile(jar) as packed, ZipFile(copy, "w") as unpacked:
        for entry in packed.infolist():
            unpacked.writestr(ZipInfo(entry.filename, entry.date_time), packed.read(entry))
    return copy


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Daemon:
    """One server process; `start` after `kill` continues with the same directory. Uses an archive of its classes once `end` has made it."""

    def __init__(self, command: list[str], log: Path, archive: Path) -> None:
        self._command = command
        self._log = log
        self._archive = archive
        self._made = archive.with_suffix(f".{os.getpid()}")
        self._makes = False
        self._shell: subprocess.Popen[str] | None = None
        self.pid = 0

    def start(self) -> None:
        """Start the server; it may take seconds to be ready."""
        # An archive costs a run of the tests about 18 s and saves each later run 7. If this run is the only one (`.ci/run`), none is made.
        self._makes = not self._archive.exists() and "PENSTOCK_ONCE" not in os.environ
        command = making(self._command, self._made) if self._makes else having(self._command, self._archive)
        with self._log.open("a") as log:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "sh", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the server, and wait until it is gone."""
        if self._shell is not None:
            self._shell.communicate()  # ends the shell's input: the shell kills the server, and ends
            self._shell = None

    def end(self) -> None:
        """Kill the server for the last time; if nobody has made its archive yet, let it end by itself, which makes the archive."""
        ends = self._makes and self._shell is not None and not self._archive.exists() and self._ends()
        self.kill()
        if ends and self._made.exists():
            self._made.replace(self._archive)
        self._made.unlink(missing_ok=True)

    def _ends(self) -> bool:
        """Ask the server to end; tell whether it did so in time."""
        until = time.monotonic() + _END_SECONDS
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.pid)
            server.terminate()
            while server.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
                time.sleep(0.1)
            return server.status() == psutil.STATUS_ZOMBIE
        return False


class MiniHdfs:
    """A cluster below one directory.

    `small` is for tests: blocks are small, and servers start fast. Otherwise all settings but the memory are Hadoop's defaults.
    """

    def __init__(self, directory: Path, *, small: bool = True) -> None:
        classes = class_path()
        self._archives = Path(cache_directory()) / "hadoop" / xxhash.xxh3_64_hexdigest(classes.encode())
        self._directory = directory
        quick = SHORT_LIVED if small else ["-XX:+UseSerialGC"]
        files = f"-Djava.io.tmpdir={directory}"  # what a killed server leaves is removed with the directory
        self._java = [java(), "-Xmx256m", *quick, files, "-cp", classes]
        self.port = free_port()
        self.web_port = free_port()
        self._settings = [
            f"fs.defaultFS=hdfs://127.0.0.1:{self.port}",
            f"dfs.namenode.rpc-address=127.0.0.1:{self.port}",
            f"dfs.namenode.http-address=127.0.0.1:{self.web_port}",
            f"dfs.namenode.name.dir=file://{directory}/name",
            "dfs.namenode.safemode.extension=0",
            # Otherwise the recent load of the other DataNodes decides whether a DataNode is chosen that has died unnoticed.
            "dfs.namenode.redundancy.considerLoad=false",
            *([f"dfs.blocksize={BLOCK_BYTES}"] if small else []),
            f"dfs.replication={DATA_NODES}",
        ]
        self.name_node = self._daemon("server.namenode.NameNode", "name", self._settings)
        self.data_nodes = self._data_nodes([f"fs.defaultFS=hdfs://127.0.0.1:{self.port}"])

    def _data_nodes(self, settings: list[str]) -> list[Daemon]:
        return [
            self._daemon(
                "server.datanode.DataNode",
                f"data-{number}",
                [
                    *settings,
                    "dfs.datanode.hostname=127.0.0.1",
                    "dfs.heartbeat.interval=1",  # in seconds: how soon a restarted NameNode is noticed
                    *(f"dfs.datanode.{kind}address=127.0.0.1:0" for kind in ("", "ipc.", "http.")),
                    f"dfs.datanode.data.dir=file://{self._directory}/data-{number}",
                ],
            )
            for number in range(DATA_NODES)
        ]

    def _daemon(self, name: str, log: str, settings: list[str]) -> Daemon:
        command = [*self._java, f"{_CLASS}.{name}", *_options(settings)]
        return Daemon(command, self._directory / f"{log}.log", self._archive(name))

    def _archive(self, name: str) -> Path:
        """Return the path of the Java class-data archive of a server."""
        return self._archives.with_name(f"{self._archives.name}-{name.rpartition('.')[2]}.jsa")

    @property
    def authority(self) -> str:
        """Return host and port, as in a URL."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL of the root."""
        return f"hdfs://{self.authority}"

    def start(self) -> None:
        """Format and start all servers, and wait until the cluster can be written to."""
        self._format()
        for daemon in (self.name_node, *self.data_nodes):
            daemon.start()
        self.wait()

    def _format(self) -> None:
        """Format the NameNode."""
        self._run("server.namenode.NameNode", "-format", "-nonInteractive")

    def _run(self, name: str, *arguments: str) -> str:
        """Run a Hadoop class to its end; return its output."""
        java = having(self._java, self._archive("server.namenode.NameNode"))
        command = [*java, f"{_CLASS}.{name}", *_options(self._settings), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_START_SECONDS).stdout

    def wait(self) -> None:
        """Wait until the NameNode has left its safe mode and can place blocks on all DataNodes."""
        self._until(
            lambda: self.bean("FSNamesystemState")["FSState"] == "Operational" and len(self._addresses()) == DATA_NODES
        )

    def restart(self, data_node: Daemon) -> None:
        """Kill a DataNode if it still runs, start it again, and wait until the NameNode knows its new address."""
        before = self._addresses()
        data_node.kill()
        data_node.start()
        self._until(lambda: len(self._addresses()) == DATA_NODES and self._addresses() != before)

    def _until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, IndexError):
                if done():
                    return
            time.sleep(0.2)
        logs = "".join(log.read_text()[-2000:] for log in self._directory.glob("*.log"))
        msg = f"HDFS is not as it should be after {_START_SECONDS} s: {logs}"
        raise RuntimeError(msg)

    def _addresses(self) -> set[str]:
        """Return the addresses of the DataNodes that can take blocks: those that have reported their free space to the NameNode."""
        nodes: dict[str, dict[str, Any]] = json.loads(self.bean("NameNodeInfo")["LiveNodes"])
        return {node["xferaddr"] for node in nodes.values() if node["remaining"]}

    def bean(self, name: str) -> dict[str, Any]:
        """Return what the NameNode reports about itself under a name."""
        url = f"http://127.0.0.1:{self.web_port}/jmx?qry=Hadoop:service=NameNode,name={name}"
        with urlopen(url, timeout=60) as answer:
            bean: dict[str, Any] = json.load(answer)["beans"][0]
            return bean

    def admin(self, *arguments: str) -> str:
        """Run `hdfs dfsadmin`; return its output."""
        return self._run("tools.DFSAdmin", *arguments)

    def quota(self, path: str, *, names: int = _AS_IT_IS, size: int = _AS_IT_IS) -> None:
        """Limit how many names, or bytes, a directory may have below it; -1: no limit. (`hdfs dfsadmin` would start a JVM each time.)"""
        asked = f"webhdfs/v1{quote(path.removeprefix(self.url))}?op=SETQUOTA&user.name={getuser()}"
        asked += f"&namespacequota={names}&storagespacequota={size}"
        with urlopen(Request(f"http://127.0.0.1:{self.web_port}/{asked}", method="PUT"), timeout=PATIENCE_SECONDS):
            pass

    def fsck(self, path: str) -> str:
        """Return the output of `hdfs fsck -openforwrite` for a path."""
        url = f"http://127.0.0.1:{self.web_port}/fsck?ugi=root&openforwrite=1&path={quote(path.removeprefix(self.url))}"
        with urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            said: str = answer.read().decode()
            return said

    def web(self, path: str, operation: str) -> bytes:
        """Return what the servers' web interface answers for a path: another client, in Java, without a user."""
        asked = f"webhdfs/v1{quote(path.removeprefix(self.url))}?op={operation}"
        with urlopen(f"http://127.0.0.1:{self.web_port}/{asked}", timeout=PATIENCE_SECONDS) as answer:
            data: bytes = answer.read()
            return data

    def cat(self, path: str) -> bytes:
        """Return the file as another client reads it."""
        return self.web(path, "OPEN")

    def lines(self, directory: str) -> Counter[str]:
        """Return how often another client, which skips names that begin with `_` or `.`, sees each line below a directory."""
        found: Counter[str] = Counter()
        for entry in json.loads(self.web(directory, "LISTSTATUS"))["FileStatuses"]["FileStatus"]:
            path = f"{directory}/{entry['pathSuffix']}"
            if entry["pathSuffix"][0] not in "._":
                found += (
                    self.lines(path) if entry["type"] == "DIRECTORY" else Counter(self.cat(path).decode().splitlines())
                )
        return found

    def stop(self) -> None:
        """Kill all servers."""
        for daemon in (*self.data_nodes, self.name_node):
            daemon.end()


class TwoNameNodes(MiniHdfs):
    """A cluster with a name service, `hdfs://cluster`: two NameNodes, `0` and `1`, one of which is active."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        rpc, self._web = (self.port, free_port()), (self.web_port, free_port())
        service = {
            "fs.defaultFS": "hdfs://cluster",
            "dfs.nameservices": "cluster",
            "dfs.ha.namenodes.cluster": "0,1",
            **{f"dfs.namenode.rpc-address.cluster.{number}": f"127.0.0.1:{port}" for number, port in enumerate(rpc)},
            **{
                f"dfs.namenode.http-address.cluster.{number}": f"127.0.0.1:{port}"
                for number, port in enumerate(self._web)
            },
            "dfs.client.failover.proxy.provider.cluster": f"{_CLASS}.server.namenode.ha.ConfiguredFailoverProxyProvider",
        }
        self.configuration = configuration(directory / "conf", service)  # for clients
        self._settings = [
            *self._settings,
            *(f"{name}={value}" for name, value in service.items()),
            f"dfs.namenode.shared.edits.dir=file://{directory}/shared",
            "dfs.ha.fencing.methods=shell(/bin/true)",
            "dfs.ha.tail-edits.period=1s",
            "dfs.ha.namenode.id=0",
        ]
        other = ["dfs.ha.namenode.id=1", f"dfs.namenode.name.dir=file://{directory}/name-1"]
        self.name_nodes = [
            self._daemon("server.namenode.NameNode", f"name-{number}", [*self._settings, *own])
            for number, own in enumerate(([], other))
        ]
        self.data_nodes = self._data_nodes([f"{name}={value}" for name, value in service.items()])

    @property
    def authority(self) -> str:
        """Return the name of the name service."""
        return "cluster"

    def start(self) -> None:
        """Format and start all servers, with the first NameNode active, and wait until the cluster can be written to."""
        self._format()
        shutil.copytree(self._directory / "name", self._directory / "name-1")
        for daemon in (*self.name_nodes, *self.data_nodes):
            daemon.start()
        self._until(lambda: all(self._state(web) == "standby" for web in self._web))
        self.switch(0)
        self.wait()

    def switch(self, number: int) -> None:
        """Make one NameNode active. The other one becomes standby first, if it still runs."""
        other = self._web[1 - number]
        with contextlib.suppress(OSError):
            if self._state(other) == "active":
                self._run("tools.DFSHAAdmin", "-failover", str(1 - number), str(number))
        self.web_port = self._web[number]
        if self._state(self.web_port) != "active":
            self._run("tools.DFSHAAdmin", "-transitionToActive", "--forceactive", str(number))
        self._until(lambda: self._state(self.web_port) == "active")

    def _state(self, web_port: int) -> str:
        url = f"http://127.0.0.1:{web_port}/jmx?qry=Hadoop:service=NameNode,name=NameNodeStatus"
        with urlopen(url, timeout=60) as answer:
            return str(json.load(answer)["beans"][0]["State"])

    def stop(self) -> None:
        """Kill all servers."""
        for daemon in (*self.data_nodes, *self.name_nodes):
            daemon.kill()


_Cluster = TypeVar("_Cluster", bound=MiniHdfs)


def _options(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("-D", setting)]


@contextlib.contextmanager
def running(directory: Path, *, small: bool = True) -> Iterator[MiniHdfs]:
    """Yield a running cluster. `NoJars` if its jars are not available."""
    with started(MiniHdfs(directory, small=small)) as cluster:
        yield cluster


@contextlib.contextmanager
def started(cluster: _Cluster) -> Iterator[_Cluster]:
    """Start a cluster, and kill it after the block."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def configuration(directory: Path, settings: dict[str, str]) -> Path:
    """Write a directory for `HADOOP_CONF_DIR`."""
    directory.mkdir(exist_ok=True)
    entries = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    for file in ("core-site.xml", "hdfs-site.xml"):
        (directory / file).write_text(f"<configuration>{entries}</configuration>")
    return directory
