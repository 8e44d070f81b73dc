"""The drain with a replayer that does nothing, against a job a ref in arq with redis-py's ``Lock``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from benchmarks.figures import Figure, in_turns, median, ratios
from benchmarks.loading import due, send
from benchmarks.servers import client_of, url_of
from checkpointd.app import Rooms, open_rooms
from checkpointd.app.crew import Crew
from checkpointd.config import Settings
from checkpointd.domain.states import PassName, ReplayOutcome, WriterLine
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

PEER_WITHIN_S = 120


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

    async def rate(self, refs: int = REFS) -> float:
        """Refs a second of one drain pass to its end, its ramp-up included."""
        lot = next(self._lots)
        store = self.rooms.store
        send(self.path, due(store.keys, [f"due-{lot}-{i}" for i in range(refs)]), db=self.db)
        crew = await Crew.assembled(
            self.rooms, Recorder(Metrics(CollectorRegistry(), version="bench"))
        )
        with client_of(self.path, self.db) as client:
            reads = _reads(client)
            trips = store.scripts.round_trips
            began = time.perf_counter()
            report = await crew.once(PassName.DRAIN, dry_run=False)
            took_s = time.perf_counter() - began
            trips += _reads(client) - reads
        await crew.stop(crew.rooms.settings.shutdown.grace)
        migrated = report.outcomes.get(ReplayOutcome.MIGRATED, 0)
        assert migrated == refs, f"{report} of {refs}"
        self.round_trips.append((store.scripts.round_trips - trips) / refs)
        return refs / took_s


def _reads(client: Any) -> int:
    """Commands that the server has done, but for those inside scripts and our own looks."""
    stats = client.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {}).get("calls", 0)
        for name in ()
    )
