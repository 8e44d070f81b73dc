"""The drain with a replayer that does nothing, against a job a ref in arq with redis-py's ``Lock``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.figures import Figure, in_turns, median, ratios
from benchmarks.loading import due, send
from benchmarks.servers import client_of, url_of
from checkpointd.app import crew
from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.config import Settings
from checkpointd.domain.reports import DrainReport
from checkpointd.domain.states import ReplayOutcome, WriterLine
from checkpointd.replay.port import Replayed, ReplayRequest
from checkpointd.telemetry import logs
from checkpointd.telemetry.metrics import Metrics
from checkpointd.telemetry.record import Recorder

REFS = 10_000
PEER_REFS = 2_000
AT_ONCE = 64
"""Replays at once here, and jobs at once there."""

PEER = Path(__file__).with_name("arq_peer.py")
PEER_PYTHON = Path(sys.prefix) / "arq" / "bin" / "python"
"""arq's own environment inside this one, as ``make bench`` makes it."""

PEER_WITHIN_S = 120.0
TIGHT_POLL_S = 0.001

ARQ_JOBS, ARQ_POLL_S = 10, 0.5
"""What arq does when it is not told otherwise."""

DEFAULT_REFS = 400


class Nothing:
    """A replayer that does nothing: it names the new checkpoint and returns."""

    async def replay(self, request: ReplayRequest) -> Replayed:
        """The key itself as the new checkpoint's id."""
        return Replayed(request.idempotency_key)


def make() -> Nothing:
    """What ``replay.url`` names."""
    return Nothing()


class Draining:
    """A daemon's crew over a frozen registry, and passes over the due refs put into it."""

    def __init__(self, rooms: Rooms, path: str, db: int) -> None:
        self.rooms, self.path, self.db = rooms, path, db
        self._lots = count()
        self.round_trips: list[float] = []
        self._reads = 0

    async def rate(self, refs: int = REFS) -> float:
        """Refs a second of one drain pass to its end, its ramp-up included."""
        lot = next(self._lots)
        store = self.rooms.store
        send(self.path, due(store.keys, [f"due-{lot}-{i}" for i in range(refs)]), db=self.db)
        recorder = Recorder(Metrics(CollectorRegistry(), version="bench"))
        draining = await crew.Draining.over(self.rooms, recorder.replay_ended)
        draining.keep_leases()
        trips = self._trips()
        began = time.perf_counter()
        report = await draining.drain.run(within=timedelta(days=1), wait=True)
        took_s = time.perf_counter() - began
        self.round_trips.append((self._trips() - trips) / refs)
        await draining.stop(self.rooms.settings.shutdown.grace)
        assert isinstance(report, DrainReport)
        migrated = report.outcomes.get(ReplayOutcome.MIGRATED, 0)
        assert migrated == refs, f"{migrated} of {refs} migrated: {report}"
        return refs / took_s

    def _trips(self) -> int:
        return self.rooms.store.scripts.round_trips + self._reads

    def count_reads(self) -> None:
        """Count the reads beside the scripts: each ``Store.read`` is a round trip of its own."""
        read = self.rooms.store.read

        async def counted(ask: Callable[[Any], Awaitable[Any]]) -> Any:
            self._reads += 1
            return await read(ask)

        self.rooms.store.read = counted  # type: ignore[method-assign] # a counter, for this store


class Peer:
    """arq in a process of its own."""

    def __init__(self, path: str, db: int) -> None:
        self._command = [str(peer_python()), str(PEER), path, "--db", str(db)]
        self.told: dict[str, Any] = {}

    async def rate(self, *, refs: int = PEER_REFS, jobs: int = AT_ONCE, poll_s: float = 0) -> float:
        """Refs a second of one run of it."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--refs", str(refs), "--jobs", str(jobs), "--poll-s", str(poll_s or TIGHT_POLL_S)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), PEER_WITHIN_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(f"arq ended with {process.returncode}; its words are above")
        self.told = json.loads(said)
        return float(self.told["rate"])


def peer_python() -> Path:
    """The interpreter that has arq; ``FileNotFoundError`` says how to get one."""
    if not PEER_PYTHON.exists():
        raise FileNotFoundError(
            f"the drain is measured against arq, and there is no {PEER_PYTHON}; `make bench` makes "
            "it, an environment of its own, since arq asks for an older redis-py than the daemon"
        )
    return PEER_PYTHON


async def measured(path: str, *, rounds: int) -> list[Figure]:
    """The two figures of the drain. The daemon's log is at warning: no line for each ref."""
    logs.configure(level="warning", form="json")
    peer = Peer(path, 5)
    settings = Settings.model_validate(
        {
            "redis": {"url": url_of(path, 4)},
            "replay": {"url": "python:benchmarks.drain:make"},
            "drain": {"concurrency": AT_ONCE},
        }
    )
    async with open_rooms(settings, actor="bench") as rooms:
        await rooms.control.freeze(reason="bench", lines=(WriterLine.LEGACY,), actor="bench")
        draining = Draining(rooms, path, 4)
        draining.count_reads()
        rates = await in_turns({"ours": draining.rate, "arq": peer.rate}, rounds=rounds)
        jobs_alone = peer.told["jobs_alone"]
        unset = await peer.rate(refs=DEFAULT_REFS, jobs=ARQ_JOBS, poll_s=ARQ_POLL_S)
    for db in (4, 5):
        with client_of(path, db) as client:
            client.flushdb()
    times = ratios(rates["ours"], rates["arq"])
    return [
        Figure(
            name=f"drain, a replayer that does nothing, {AT_ONCE} at once, against arq",
            value=median(times),
            keeps=">=",
            target=10,
            unit="x",
            rounds=times,
            facts={
                "refs_a_second": round(median(rates["ours"])),
                "arq_refs_a_second": round(median(rates["arq"])),
                "arq_jobs_alone_a_second": round(jobs_alone),
                "arq_at_its_defaults_a_second": round(unset),
                "arq": peer.told["arq"],
                "log_level": "warning",
            },
        ),
        Figure(
            name="store round trips a ref, reads and scripts",
            value=max(draining.round_trips),
            keeps="<=",
            target=1,
            unit="",
            rounds=draining.round_trips,
        ),
    ]
