"""The one server that everything here is measured on."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

STARTUP_S = 15.0
PROGRAMS = ("redis-server", "valkey-server")


@contextmanager
def server() -> Iterator[str]:
    """A server of our own on a Unix socket, without persistence: the path of its socket.

    ``FileNotFoundError`` if neither Redis nor Valkey is on PATH.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError(
            f"the benchmarks start a server, and none of {', '.join(PROGRAMS)} is on PATH; "
            "install one, as in: apt-get install redis-server"
        )
    with tempfile.TemporaryDirectory(prefix="checkpointd-bench-") as folder:
        path = str(Path(folder) / "store.sock")
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
             "--dir", folder, "--databases", "16"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_for(path, process)
            yield path
        finally:
            process.terminate()
            process.wait(STARTUP_S)


def _wait_for(path: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTUP_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended at once, with {process.returncode}")
        try:
            with redis.Redis(unix_socket_path=path) as client:
                client.ping()
                return
        except redis.ConnectionError:
            time.sleep(0.02)
    raise RuntimeError(f"the server did not answer within {STARTUP_S:g} s")


def url_of(path: str, db: int = 0) -> str:
    """How the settings name a database of the server. Each has a keyspace of its own."""
    return f"unix://{path}?db={db}"


def client_of(path: str, db: int = 0) -> redis.Redis:
    """A plain client, for loading and for looking."""
    return redis.Redis(unix_socket_path=path, db=db)
