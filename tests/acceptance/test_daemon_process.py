"""The daemon as a process: how it starts, what it serves, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.server

SLOW_REPLAYER = """
import asyncio
from pathlib import Path

from checkpointd.replay.port import Replayed


class Replayer:
    async def replay(self, request):
        Path("replaying").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        return Replayed(request.idempotency_key)
"""


@pytest.fixture
def adopted(ready: Any) -> Any:
    """The sample adopted, its crashes expired, legacy frozen."""
    for words in (["once", "adopt"], ["once", "reconcile"], ["freeze", "--reason", "r"]):
        assert ready(*words).returncode == 0
    return ready


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  its own address
        body: str = answer.read().decode()
    return body


@pytest.fixture
def slow(adopted: Any) -> Any:
    """A replayer that goes on once there is a file named ``go``."""
    (adopted.directory / "slow_replayer.py").write_text(SLOW_REPLAYER)
    adopted.set(replay__url="python:slow_replayer:Replayer", drain__concurrency="1")
    adopted.environ["PYTHONPATH"] = str(adopted.directory)
    return adopted


def wait_for_a_replay(shell: Any, daemon: Any) -> None:
    """Until the slow replayer is at work, or the daemon has ended; pytest's timeout bounds it."""
    while not (shell.directory / "replaying").exists():
        assert daemon.process.poll() is None


class TestUntilDrained:
    UNTIL = ("run", "--until", "drained")

    def test_ends_with_4_when_its_time_is_over(self, slow: Any) -> None:
        slow.set(shutdown__grace="0s")
        done = slow(*self.UNTIL, "--timeout", "1s")
        assert done.returncode == 4
        assert done.stdout.startswith("The time is over")

    def test_that_is_told_to_stop_does_not_claim_to_be_done(self, slow: Any) -> None:
        slow.set(shutdown__grace="0s")
        with slow.running(*self.UNTIL) as daemon:
            wait_for_a_replay(slow, daemon)
            assert daemon.end(signal.SIGTERM) == 3


class TestSigterm:
    def test_lets_a_running_replay_finish(self, slow: Any) -> None:
        with slow.running("run") as daemon:
            started = daemon.said("daemon_started")
            assert started["endpoint"].startswith("http://127.0.0.1:")
            wait_for_a_replay(slow, daemon)
            daemon.process.send_signal(signal.SIGTERM)
            (slow.directory / "go").touch()
            assert daemon.ended() == 0
        assert all(json.loads(line)["event"] for line in daemon.lines)
        refs = slow.json("status")["refs"]
        assert refs["migrated"] == 1
        assert refs["replaying"] == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_ends_an_idle_daemon_in_order(self, ready: Any, number: signal.Signals) -> None:
        with ready.running("run") as daemon:
            daemon.said("daemon_started")
            assert daemon.end(number) == 0
        assert json.loads(daemon.lines[-1])["event"] == "daemon_stopped"


class TestWatching:
    def test_ends_on_an_interrupt(self, ready: Any) -> None:
        with ready.running("status", "--watch") as watch:
            assert watch.process.stdout is not None
            assert "idle" in watch.process.stdout.readline()
            assert watch.end(signal.SIGINT) == 0
        assert watch.lines == []


class TestAnInterruptedCommand:
    def test_ends_with_130(self, ready: Any, start_server: Any) -> None:
        with start_server() as server:
            ready.set(redis__url=server.url, redis__timeout="5s", lease__deadline="10s")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with ready.running("verify", "--debug") as verify:
                    assert verify.process.stderr is not None
                    verify.process.stderr.readline()
                    assert verify.end(signal.SIGINT) == 130
            finally:
                os.kill(server.pid, signal.SIGCONT)


class TestTheEndpoint:
    def test_serves_what_status_prints(self, adopted: Any) -> None:
        with adopted.running("run") as daemon:
            url = daemon.said("daemon_started")["endpoint"]
            daemon.said("ref_quarantined")
            served = json.loads(got(f"{url}/status.json"))
            printed = adopted.json("status")
            assert served.keys() == printed.keys()
            assert "checkpointd_drain_refs" in got(f"{url}/metrics")
            assert daemon.end() == 0


class TestAnEmbeddedStore:
    @pytest.fixture
    def embedded(self, ready: Any) -> Any:
        ready.set(redis__url="embedded://./store")
        return ready

    def test_keeps_its_data_from_one_command_to_the_next(self, embedded: Any) -> None:
        embedded("once", "adopt")
        assert sum(embedded.json("status")["refs"].values()) == 26

    def test_is_shared_with_the_daemon_that_runs_it(self, embedded: Any) -> None:
        with embedded.running("run") as first, embedded.running("run") as second:
            for daemon in (first, second):
                daemon.said("daemon_started")
            assert embedded("freeze", "--reason", "r").returncode == 0
            assert first.end() == 0
            assert embedded.json("status")["frozen"]["in_force"] is True
            assert second.end() == 0
        assert embedded.json("status")["frozen"]["reason"] == "r"
