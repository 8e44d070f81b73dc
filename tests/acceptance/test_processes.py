"""The daemon under hardship: a loop that is blocked, code that will not stop, a store that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.config import load_settings
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import WriterLine

from .outside import got, until

pytestmark = pytest.mark.server

QUICK_LEASES = {
    "lease__ttl": "1500ms",
    "lease__deadline": "1s",
    "lease__renew_every": "200ms",
    "redis__timeout": "500ms",
    "drain__every": "200ms",
}

REPLAYER = """
import asyncio
import time
from pathlib import Path

from checkpointd.replay.port import Replayed


class Replayer:
    async def replay(self, request):
        with open("effects.log", "a") as log:
            log.write(f"{{request.thread_id}} {{request.attempt}} {{request.fence}}\\n")
        if request.attempt == 1:
            {first}
        return Replayed(request.idempotency_key)
"""

BLOCKS = "time.sleep(3)"

IGNORES_CANCELLATION = """
            while not Path("enough").exists():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    pass
"""

SLOW = "await asyncio.sleep(0.2)"


def replaying(shell: Any, first: str) -> None:
    """Use a replayer whose first attempt at each ref does this."""
    (shell.directory / "their_replayer.py").write_text(REPLAYER.format(first=first.strip()))
    shell.set(replay__url="python:their_replayer:Replayer", source__url="", **QUICK_LEASES)
    shell.environ["PYTHONPATH"] = str(shell.directory)


def frozen(shell: Any, *threads: str) -> None:
    """Legacy refs with their boundaries, issuance closed."""

    async def run() -> None:
        async with open_rooms(load_settings(None, shell.environ), actor="application") as rooms:
            await register(rooms)

    async def register(rooms: Rooms) -> None:
        at = await rooms.registry.now() - timedelta(minutes=5)
        for thread in threads:
            await rooms.registry.register(CheckpointRef(thread, "c", WriterLine.LEGACY, at))
            await rooms.registry.mark_safe_boundary(
                thread, sequence=1, digest="d", writer_line=WriterLine.LEGACY
            )

    asyncio.run(run())
    assert shell("freeze", "--reason", "r").returncode == 0


def effects(shell: Any) -> list[tuple[str, ...]]:
    """Thread, attempt and fence of each replay that began."""
    log = shell.directory / "effects.log"
    return [tuple(line.split()) for line in log.read_text().splitlines()] if log.exists() else []


def events(daemon: Any) -> list[dict[str, Any]]:
    """Its log so far; every line of it is a JSON object."""
    return [json.loads(line) for line in daemon.lines if line.strip()]


def migrated_once(shell: Any, *threads: str) -> None:
    """Each ref is linked and the books agree."""
    status = shell.json("status")
    assert status["refs"]["migrated"] == len(threads)
    assert status["kernel"]["finalized"] == len(threads)
    verified = shell("verify")
    assert verified.returncode == 0, verified.stdout


class TestABlockedLoop:
    def test_loses_its_lease_by_itself_and_commits_nothing(self, ready: Any) -> None:
        replaying(ready, BLOCKS)
        frozen(ready, "t")
        with ready.running("run", "--until", "drained", "--timeout", "40s") as daemon:
            lost = daemon.said("lease_lost")
            assert (lost["attempt"], lost["phase"]) == (1, "before_commit")
            assert daemon.ended() == 0
        began = effects(ready)
        assert [attempt for _, attempt, _ in began] == ["1", "2"]
        (migrated,) = [e for e in events(daemon) if e["event"] == "ref_migrated"]
        assert migrated["attempt"] == 2
        assert migrated["fence"] > lost["fence"]
        migrated_once(ready, "t")

    def test_that_was_stopped_beyond_its_lease_leaves_the_ref_to_another(self, ready: Any) -> None:
        replaying(ready, IGNORES_CANCELLATION)
        frozen(ready, "t")
        with ready.running("run") as sleeper:
            sleeper.said("daemon_started")
            until(lambda: len(effects(ready)) == 1)
            sleeper.process.send_signal(signal.SIGSTOP)
            done = ready("run", "--until", "drained", "--timeout", "40s")
            assert done.returncode == 0, done.stdout
            (ready.directory / "enough").touch()
            sleeper.process.send_signal(signal.SIGCONT)
            lost = sleeper.said("lease_lost")
            assert lost["attempt"] == 1
            assert sleeper.end() == 0
        assert [attempt for _, attempt, _ in effects(ready)] == ["1", "2"]
        migrated_once(ready, "t")


class TestAReplayThatIgnoresCancellation:
    def test_ends_the_process_where_the_settings_say_so(self, ready: Any) -> None:
        replaying(ready, IGNORES_CANCELLATION)
        ready.set(replay__timeout="300ms", drain__exit_on_stuck_replay="true")
        frozen(ready, "t", "u")
        with ready.running("run") as daemon:
            assert daemon.ended() == 70
        assert events(daemon)[-1]["event"] == "replay_stuck"
        # Whoever comes next finds the leases over and both refs due again.
        (ready.directory / "enough").touch()
        done = ready("run", "--until", "drained", "--timeout", "40s")
        assert done.returncode == 0, done.stdout
        migrated_once(ready, "t", "u")

    def test_does_not_hold_up_a_stop_where_the_settings_say_so(self, ready: Any) -> None:
        replaying(ready, IGNORES_CANCELLATION)
        ready.set(shutdown__grace="0s", drain__exit_on_stuck_replay="true")
        frozen(ready, "t")
        with ready.running("run") as daemon:
            daemon.said("daemon_started")
            until(lambda: effects(ready) != [])
            assert daemon.end() == 70
        assert events(daemon)[-1]["event"] == "replay_stuck"

    def test_is_counted_and_leaves_its_ref_to_others_where_they_do_not(self, ready: Any) -> None:
        replaying(ready, IGNORES_CANCELLATION)
        ready.set(replay__timeout="300ms")
        frozen(ready, "t")
        with ready.running("run") as daemon:
            url = daemon.said("daemon_started")["endpoint"]
            daemon.said("replay_stuck")
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:  # noqa: S310  its own
                assert "checkpointd_drain_replays_stuck_total 1.0" in reply.read().decode()
            migrated = daemon.said("ref_migrated")  # by its second attempt, beside the first
            assert migrated["attempt"] == 2
            (ready.directory / "enough").touch()
            assert daemon.said("lease_lost")["attempt"] == 1
            assert daemon.end() == 0
        migrated_once(ready, "t")


class TestAStoreThatGoesAway:
    @contextlib.contextmanager
    def store(self, start_server: Any, directory: Any, port: int) -> Iterator[Any]:
        """A server whose data survive it."""
        kept = ("--dir", str(directory), "--appendonly", "yes", "--appendfsync", "always")
        with start_server(port=port, options=kept) as server:
            yield server

    def test_fails_passes_with_a_line_each_and_is_worked_with_again_when_it_is_back(
        self, ready: Any, start_server: Any, tmp_path: Any
    ) -> None:
        port = free_port()
        (data := tmp_path / "data").mkdir()
        replaying(ready, SLOW)
        # Waiting for the drain's end it counts every second, and so sees sooner how it stands.
        ready.set(redis__url=f"redis://127.0.0.1:{port}/0", drain__concurrency="1")
        threads = [f"t{n}" for n in range(15)]
        with contextlib.ExitStack() as running:
            with self.store(start_server, data, port):
                frozen(ready, *threads)
                words = ("run", "--until", "drained", "--timeout", "50s")
                daemon = running.enter_context(ready.running(*words))
                url = daemon.said("daemon_started")["endpoint"]
                daemon.keep_reading()
                until(lambda: got(f"{url}/readyz")[0] == 200)
                until(lambda: len(effects(ready)) > 3)
            until(lambda: got(f"{url}/readyz")[0] == 503)
            until(lambda: [e for e in events(daemon) if e["event"] == "pass_failed"] != [])
            assert got(f"{url}/livez")[0] == 200
            assert len(effects(ready)) < len(threads)
            with self.store(start_server, data, port):
                until(lambda: daemon.process.poll() is not None, within_s=50)
                assert daemon.process.returncode == 0
                migrated_once(ready, *threads)
        failed = [e for e in events(daemon) if e["event"] == "pass_failed"]
        assert all("exception" not in e and e["error"] for e in failed)
        assert len({e["run_id"] for e in failed}) == len(failed)


class TestStartingAgain:
    def test_works_on_the_port_that_was_just_left(self, ready: Any) -> None:
        ready.set(endpoint__listen=f"127.0.0.1:{free_port()}")
        for _ in range(2):
            with ready.running("run") as daemon:
                url = daemon.said("daemon_started")["endpoint"]
                assert got(f"{url}/livez")[0] == 200  # a connection that the port remembers
                assert daemon.end() == 0

    def test_in_one_process_works_as_well(self, ready: Any) -> None:
        """Nothing that a run leaves behind is in the way of the next."""
        ready.set(endpoint__listen=f"127.0.0.1:{free_port()}")
        program = (
            "import asyncio, os, signal\n"
            "from checkpointd.app.daemon import Daemon\n"
            "from checkpointd.config import load_settings\n"
            "stop = lambda _url: os.kill(os.getpid(), signal.SIGTERM)\n"
            "settings = load_settings(None, os.environ)\n"
            "for _ in range(2):\n"
            "    asyncio.run(Daemon(settings, actor='me', on_started=stop).run())\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env=ready._environ(),
            cwd=ready.directory,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
