"""Several processes on one store, some of them killed: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.config import load_settings
from checkpointd.domain.errors import IssuanceFrozenError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import WriterLine

from .outside import got, number, until

pytestmark = pytest.mark.server

T = TypeVar("T")
LEGACY, KERNEL = WriterLine.LEGACY, WriterLine.KERNEL

LOGGING_REPLAYER = """
import asyncio
import os

from checkpointd.replay.port import Replayed


class Replayer:
    async def replay(self, request):
        with open("effects.log", "a") as log:
            log.write(f"{request.thread_id} {request.idempotency_key} {os.getpid()}\\n")
        await asyncio.sleep(0.02)
        return Replayed(request.idempotency_key)
"""

BLOCKING_REPLAYER = """
import time
from pathlib import Path

from checkpointd.replay.port import Replayed


class Replayer:
    async def replay(self, request):
        Path("replaying").touch()
        time.sleep(6)
        return Replayed(request.idempotency_key)
"""


def inside(shell: Any, work: Callable[[Rooms], Awaitable[T]]) -> T:
    """Do something in the registry that the shell's settings name, as another process would."""

    async def run() -> T:
        settings = load_settings(None, shell.environ)
        async with open_rooms(settings, actor="application") as rooms:
            return await work(rooms)

    return asyncio.run(run())


async def registered(rooms: Rooms, names: list[str], line: WriterLine = LEGACY) -> None:
    """Refs as an application issues them, each with its boundary."""
    at = await rooms.registry.now() - timedelta(minutes=5)

    async def one(name: str) -> None:
        await rooms.registry.register(CheckpointRef(name, "c", line, at))
        await rooms.registry.mark_safe_boundary(name, sequence=1, digest="d", writer_line=line)

    for begin in range(0, len(names), 500):
        await asyncio.gather(*(one(name) for name in names[begin : begin + 500]))


def replaying_by(shell: Any, source: str) -> None:
    """Use a replayer that the test wrote; no source is needed."""
    (shell.directory / "their_replayer.py").write_text(source)
    shell.set(replay__url="python:their_replayer:Replayer", source__url="")
    shell.environ["PYTHONPATH"] = str(shell.directory)


class TestTwoDaemonsAndAKill:
    REFS = 5_000
    MIGRATED = 'checkpointd_drain_replays_total{outcome="migrated"}'

    @pytest.mark.timeout(120)
    def test_every_ref_ends_with_one_link(self, ready: Any) -> None:
        replaying_by(ready, LOGGING_REPLAYER)
        ready.set(
            drain__concurrency="100",
            lease__ttl="3s",
            lease__deadline="2s",
            lease__renew_every="300ms",
            redis__timeout="500ms",
        )
        names = [f"t{i}" for i in range(self.REFS)]
        inside(ready, lambda rooms: registered(rooms, names))
        assert ready("freeze", "--reason", "r").returncode == 0
        effects = ready.directory / "effects.log"
        with ready.running("run") as doomed, ready.running("run", "--until", "drained") as other:
            first, second = (d.said("daemon_started")["endpoint"] for d in (doomed, other))
            for daemon in (doomed, other):
                daemon.keep_reading()
            until(lambda: effects.exists() and effects.read_text().count("\n") > 500)
            counted = number(got(f"{first}/metrics")[1], self.MIGRATED)
            doomed.process.send_signal(signal.SIGKILL)
            doomed.process.wait(timeout=10)
            metrics = ""

            def over() -> bool:
                nonlocal metrics
                if other.process.poll() is None:
                    try:
                        metrics = got(f"{second}/metrics")[1]
                    except OSError:
                        return other.process.wait(timeout=10) is not None
                return other.process.poll() is not None

            until(over, within_s=90)
            assert other.process.wait(timeout=30) == 0
        status = ready.json("status")
        assert (status["state"], status["refs"]["migrated"]) == ("drained", self.REFS)
        assert status["kernel"]["finalized"] == self.REFS
        assert 0 < counted + number(metrics, self.MIGRATED) <= self.REFS
        verified = ready("verify")
        assert verified.returncode == 0, verified.stdout
        replayed = Counter(line.split()[0] for line in effects.read_text().splitlines())
        assert set(replayed) == set(names)
        by = {line.split()[2] for line in effects.read_text().splitlines()}
        assert len(by) == 2


class TestFreezing:
    def test_refuses_legacy_to_every_process_once_it_has_returned(self, ready: Any) -> None:
        inside(ready, lambda rooms: registered(rooms, ["known"]))
        assert ready("freeze", "--reason", "cut-over").returncode == 0

        async def issue(rooms: Rooms) -> list[str]:
            at = await rooms.registry.now()
            new = [CheckpointRef("new", "c", line, at) for line in (LEGACY, KERNEL)]
            said = []
            with pytest.raises(IssuanceFrozenError, match="cut-over"):
                await rooms.registry.register(new[0])
            said.append((await rooms.registry.register(new[1])).thread_id)
            with pytest.raises(IssuanceFrozenError):
                await rooms.registry.register_replay(
                    CheckpointRef("never-seen", "k", KERNEL, at), legacy_checkpoint_id="c"
                )
            known = (await rooms.registry.refs_for("known"))[0]
            said.append((await rooms.registry.register(known)).thread_id)
            return said

        assert inside(ready, issue) == ["new", "known"]
        assert ready.json("status")["frozen"]["in_force"]

    def test_of_all_lines_refuses_both(self, ready: Any) -> None:
        assert ready("freeze", "--reason", "r", "--line", "all").returncode == 0

        async def issue(rooms: Rooms) -> None:
            at = await rooms.registry.now()
            for line in (LEGACY, KERNEL):
                with pytest.raises(IssuanceFrozenError):
                    await rooms.registry.register(CheckpointRef("new", "c", line, at))

        inside(ready, issue)


class TestFinalizeAgainstReconcile:
    ROUNDS, REFS = 20, 500

    @pytest.mark.timeout(120)
    def test_ten_thousand_times_one_wins_and_the_loser_is_told(
        self, ready: Any, redis_server: Any
    ) -> None:
        sides = {
            side: subprocess.Popen(
                [
                    sys.executable,
                    Path(__file__).with_name("racing.py"),
                    redis_server.url,
                    ready.environ["CHECKPOINTD_REGISTRY__NAMESPACE"],
                    side,
                    str(self.ROUNDS),
                    str(self.REFS),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for side in ("finalize", "expire")
        }
        told = {side: json.loads(p.communicate(timeout=100)[0]) for side, p in sides.items()}
        finalizer, reconciler = told["finalize"], told["expire"]
        races = self.ROUNDS * self.REFS
        assert len(finalizer) == races
        won = Counter(finalizer.values())
        assert won["finalized"] + won["told"] == races
        assert min(won["finalized"], won["told"]) >= races / 10
        # Never both; and the finalizer that lost was told of exactly what the other expired.
        assert {name for name, word in finalizer.items() if word == "told"} == set(reconciler)
        ready.set(registry__partitions="4")
        status = ready.json("status")
        assert status["expiry"]["expired"]["crash"] == won["told"]
        assert status["expiry"]["late_finalizations"] == won["told"]
        assert status["kernel"] == {
            "open": 0,
            "finalized": won["finalized"],
            "expired": won["told"],
        }
        assert ready("verify").returncode == 0


class TestTheEndpoint:
    def test_has_as_many_series_after_twenty_thousand_refs_as_after_ten(
        self, ready: Any, needs: Any
    ) -> None:
        replaying_by(ready, LOGGING_REPLAYER)

        def series() -> set[str]:
            with ready.running("run") as daemon:
                url = daemon.said("daemon_started")["endpoint"]
                until(lambda: "checkpointd_redis_up 1.0" in got(f"{url}/metrics")[1])
                text = got(f"{url}/metrics")[1]
                assert daemon.end() == 0
            judged = subprocess.run(
                [needs("promtool"), "check", "metrics"],
                input=text,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (judged.returncode, judged.stdout + judged.stderr) == (0, "")
            return {line.rpartition(" ")[0] for line in text.splitlines() if line[:1] != "#"}

        inside(ready, lambda rooms: registered(rooms, [f"few{i}" for i in range(10)]))
        few = series()
        many = [f"many{i}" for i in range(20_000)]
        inside(ready, lambda rooms: registered(rooms, many))
        assert series() == few
        assert len(few) <= 400

    def test_tells_a_blocked_loop_while_metrics_still_answers(self, ready: Any) -> None:
        replaying_by(ready, BLOCKING_REPLAYER)
        ready.set(drain__concurrency="1")
        inside(ready, lambda rooms: registered(rooms, ["t"]))
        assert ready("freeze", "--reason", "r").returncode == 0
        with ready.running("run") as daemon:
            url = daemon.said("daemon_started")["endpoint"]
            until((ready.directory / "replaying").exists)
            until(lambda: got(f"{url}/livez")[0] == 503, within_s=5)
            code, text = got(f"{url}/metrics")
            assert code == 200
            assert number(text, "checkpointd_event_loop_lag_seconds") > 1
            until(lambda: got(f"{url}/livez")[0] == 200)
            assert daemon.end() == 0


class TestReloading:
    def test_takes_over_what_may_change_and_names_what_may_not(self, ready: Any) -> None:
        file = ready.directory / "checkpointd.toml"
        file.write_text('[reconcile]\nevery = "1m"\n')
        with ready.running("run") as daemon:
            daemon.said("daemon_started")
            file.write_text('[reconcile]\nevery = "2m"\n[registry]\npartitions = 32\n')
            daemon.process.send_signal(signal.SIGHUP)
            line = daemon.said("config_reloaded")
            assert "registry.partitions" in str(line)
            file.write_text('[reconcile]\nevry = "2m"\n')
            daemon.process.send_signal(signal.SIGHUP)
            assert "every" in str(daemon.said("config_refused"))
            assert daemon.end() == 0
