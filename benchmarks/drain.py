"""The drain with a replayer that does nothing, against a job a ref in arq with redis-py's ``Lock``.

The target is held against the worker that arq's own documentation sets up, which is what somebody
writes who takes arq for this: ten jobs at once, a poll every half second. Most of that worker's
time is its wait for the next poll. So the same worker tuned for this load (a poll every
millisecond, 256 jobs at once) is a row of its own, a fact that is not judged: against it the drain
comes to between five and six times the rate, short of ten.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
AT_ONCE = 64
"""Replays at once."""

LINKED = (ReplayOutcome.MIGRATED, ReplayOutcome.ALREADY_MIGRATED)

PEER = Path(__file__).with_name("arq_peer.py")
PEER_PYTHON = Path(sys.prefix) / "arq" / "bin" / "python"
"""arq's own environment inside this one, as ``make bench`` makes it."""

PEER_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """How an arq worker is set up, and how many refs it is given in a round."""

    jobs: int
    poll_s: float
    refs: int


DOCUMENTED = Worker(jobs=10, poll_s=0.5, refs=200)
"""What arq does when it is not told otherwise; fewer refs, since its rate does not hang on them."""

TUNED = Worker(jobs=256, poll_s=0.001, refs=2_000)
"""Where more jobs or a shorter poll won nothing more."""


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
        # The keeper may find a lease gone that a commit under way took away: the link tells then.
        linked = sum(report.outcomes.get(o, 0) for o in LINKED)
        assert linked == refs, f"{linked} of {refs} are linked: {report}"
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

    async def rate(self, worker: Worker) -> float:
        """Refs a second of one run of such a worker; the jobs are in its queue when it starts."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--refs", str(worker.refs), "--jobs", str(worker.jobs)),
            *("--poll-s", str(worker.poll_s)),
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
        return float(self.told["jobs_alone"])


def peer_python() -> Path:
    """The interpreter that has arq; ``FileNotFoundError`` says how to get one."""
    if not PEER_PYTHON.exists():
        raise FileNotFoundError(
            f"the drain is measured against arq, and there is no {PEER_PYTHON}; `make bench` makes "
            "it, an environment of its own, since arq asks for an older redis-py than the daemon"
        )
    return PEER_PYTHON


async def measured(path: str, *, rounds: int) -> list[Figure]:
    """The figures of the drain. The daemon's log is at warning: no line for each ref."""
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
        rates = await in_turns(
            {
                "ours": draining.rate,
                "documented": lambda: peer.rate(DOCUMENTED),
                "tuned": lambda: peer.rate(TUNED),
            },
            rounds=rounds,
        )
    for db in (4, 5):
        with client_of(path, db) as client:
            client.flushdb()
    rate = {name: round(median(found)) for name, found in rates.items()}
    return [
        Figure(
            name="drain, a replayer that does nothing, against arq as documented",
            value=median(times := ratios(rates["ours"], rates["documented"])),
            keeps=">=",
            target=10,
            unit="x",
            rounds=times,
            facts={
                "refs_a_second": rate["ours"],
                "at_once": AT_ONCE,
                "arq_refs_a_second": rate["documented"],
                "arq_jobs_at_once": DOCUMENTED.jobs,
                "arq_poll_s": DOCUMENTED.poll_s,
                "arq": peer.told["arq"],
                "log_level": "warning",
            },
        ),
        Figure(
            name="the same, against arq tuned for it",
            value=median(times := ratios(rates["ours"], rates["tuned"])),
            unit="x",
            rounds=times,
            facts={
                "arq_refs_a_second": rate["tuned"],
                "arq_jobs_at_once": TUNED.jobs,
                "arq_poll_s": TUNED.poll_s,
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
