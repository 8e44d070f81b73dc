"""``python -m tests.faults.soak MINUTES=30 SEED=7``: a steady life under mild faults, and its figures.

The old application goes on with a fixed set of threads, one turn after the other; the new one
issues and finalizes; the replicas adopt, expire and drain. After the warm-up nothing may grow:
not a replica's memory, connections or series, not the keys of the store. Records do: a ref is
recorded and never deleted, so they are counted and their bytes are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import secrets
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis

from checkpointd.domain.errors import CheckpointExpiredError, StoreError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import WriterLine
from checkpointd.registry.redis import RedisRegistry

from .books import read_books
from .checker import Acknowledged, Evidence, check, effects_in, log_in
from .observer import Observer
from .run import NAMESPACE, PARTITIONS, TTL_S, Plan, Run, to_the_end
from .storm import Storm
from .workload import Operator

THREADS = 120
TURNS_PER_SECOND = 8
SAMPLE_EVERY_S = 10.0
WARM_UP = 0.2
"""Of the whole time: imports, pools, caches and the audit's bound fill up in it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How much there is of everything, at one moment."""

    at_s: float
    rss_mib: float
    """Of the largest replica."""
    connections: int
    keys: int
    series: int
    """Of the replica that shows most."""
    files: int
    """Open ones of the replica that has most."""
    migrated: int
    refs: int
    store_mib: float


@dataclass(slots=True)
class Soak:
    """One soak."""

    run: Run
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    async def sample(self, client: aioredis.Redis) -> None:
        """Look at everything once."""
        pids = [w.pid for w in self.run.workers if w.process and w.process.poll() is None]
        series = await asyncio.gather(
            *(asyncio.to_thread(_series, worker.logs[-1]) for worker in self.run.workers)
        )
        clients = await client.info("clients")
        memory = await client.info("memory")
        counters = [
            _numbers(await client.hgetall(f"{{{NAMESPACE}:{p}}}:counters"))
            for p in range(PARTITIONS)
        ]
        self.samples.append(
            Sample(
                at_s=time.monotonic() - self.began,
                rss_mib=max((_rss_mib(pid) for pid in pids), default=0.0),
                connections=int(clients["connected_clients"]),
                keys=int(await client.dbsize()),
                series=max(series, default=0),
                files=max((_files(pid) for pid in pids), default=0),
                migrated=sum(c.get("legacy:migrated", 0) for c in counters),
                refs=sum(
                    n
                    for c in counters
                    for name, n in c.items()
                    if name.startswith(("legacy:", "kernel:"))
                ),
                store_mib=int(memory["used_memory"]) / 2**20,
            )
        )

    def growth(self) -> dict[str, tuple[float, float, float]]:
        """For what must be flat: at the warm-up's end, at the end, and what is tolerated."""
        warm = [s for s in self.samples if s.at_s >= WARM_UP * self.samples[-1].at_s]
        half = max(1, len(warm) // 4)

        def middle(name: str, samples: list[Sample]) -> float:
            return float(statistics.median(getattr(s, name) for s in samples))

        # Leases come and go as keys; connections as they are cut and made again.
        tolerated = {"rss_mib": 1.1, "connections": 1.25, "keys": 1.1, "series": 1.0, "files": 1.25}
        return {
            name: (middle(name, warm[:half]), middle(name, warm[-half:]), most)
            for name, most in tolerated.items()
        }

    def findings(self) -> list[str]:
        """What grew."""
        slack = {"rss_mib": 4.0, "connections": 4.0, "keys": 20.0, "series": 0.0, "files": 4.0}
        return [
            f"soak: {name} grew from {first:g} to {last:g}"
            for name, (first, last, most) in self.growth().items()
            if last > first * most + slack[name]
        ]


class OldApplication:
    """Each turn of a thread leaves a new head, and the checkpoints before it are pruned."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self._source = run.source
        self._rng = rng

    async def run(self) -> None:
        """Turns at a steady rate until cancelled."""
        while True:
            await asyncio.sleep(1)
            await asyncio.to_thread(self._source.take_turns, TURNS_PER_SECOND, prune=True)


class NewApplication:
    """Issues and finalizes on a fixed set of threads; one in twenty crashes."""

    def __init__(self, registry: RedisRegistry, told: Acknowledged, rng: random.Random) -> None:
        self._registry = registry
        self._told = told
        self._rng = rng

    async def run(self) -> None:
        """Every thread once, then any of them at a steady rate, until cancelled."""
        for turn in itertools.count():
            thread = turn if turn < THREADS else self._rng.randrange(THREADS)
            await asyncio.sleep(0 if turn < THREADS else 1 / TURNS_PER_SECOND)
            name = f"app {thread}", secrets.token_hex(8)
            with contextlib.suppress(StoreError, CheckpointExpiredError):
                ref = CheckpointRef(*name, WriterLine.KERNEL, datetime.now(UTC))
                await self._registry.register(ref, finalized=False)
                if self._rng.random() > 0.05:
                    await self._registry.finalize(*name)


async def soak(minutes: float, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="cpd-soak-") as directory:
        run = Run(Plan(seconds=minutes * 60, seed=seed, workers=2), Path(directory))
        run.listen = "127.0.0.1:0"
        run.source.write(THREADS, all_like=("t:_:closed", "plain"))
        return await _soak(Soak(run), minutes)


async def _soak(this: Soak, minutes: float) -> int:
    run = this.run
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(run.going())
        *lines, _, to_operator = run.proxies
        admin = await stack.enter_async_context(run.client())
        watching = await stack.enter_async_context(run.client())
        near = await stack.enter_async_context(run.store())
        far = await stack.enter_async_context(run.store(to_operator))
        operator = Operator(near, far, to_operator, run.told)
        await operator.freeze()
        observer = Observer(watching, NAMESPACE, PARTITIONS)
        storm = Storm(
            run.rng,
            workers=run.workers,
            proxies=lines,
            server=run.server,
            admin=admin,
            ttl_s=TTL_S,
            mild=True,
        )
        registry = RedisRegistry(near, actor="application")
        tasks = [
            asyncio.create_task(observer.run(), name="observer"),
            asyncio.create_task(OldApplication(run, run.rng).run(), name="old"),
            asyncio.create_task(NewApplication(registry, run.told, run.rng).run(), name="new"),
            asyncio.create_task(_sampling(this, admin), name="samples"),
        ]
        try:
            await storm.run(minutes * 60)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        drained, status = await to_the_end(run, near)
        codes = [await worker.stop(within_s=30) for worker in run.workers]
        await observer.look()
        books = await read_books(admin, NAMESPACE, PARTITIONS)
    log, noise = log_in(path for worker in run.workers for path in worker.logs)
    findings = check(
        Evidence(
            books=books,
            steps=observer.steps,
            effects=effects_in(run.effects),
            log=log,
            noise=noise,
            acknowledged=run.told,
            heads=run.source.heads,
            observed=observer.findings,
            drained=drained,
            ended=str(status.get("sentence")),
        )
    )
    findings += [f"end: a replica ended with {code}, not 0" for code in codes if code != 0]
    findings += this.findings()
    print(_page(this, minutes, storm, findings))  # noqa: T201
    return 1 if findings else 0


def _page(this: Soak, minutes: float, storm: Storm, findings: list[str]) -> str:
    last = this.samples[-1]
    lines = [f"soak: {minutes:g} min, {len(this.run.workers)} replicas, {THREADS} threads", ""]
    lines += [f"  {n:>6}  {name}" for name, n in sorted(storm.injected.items())]
    lines += [
        "",
        f"  {last.migrated:>6}  legacy refs migrated, {last.migrated / last.at_s:.1f} a second",
        f"  {last.refs:>6}  refs on record in {last.store_mib:.1f} MiB of store",
        "",
        "                 after warm-up    at the end",
    ]
    lines += [
        f"  {name:<12} {first:>14.1f} {end:>13.1f}"
        for name, (first, end, _) in this.growth().items()
    ]
    lines += ["", f"violations: {len(findings)}", *(f"  {f}" for f in findings[:30])]
    return "\n".join(lines)


async def _sampling(this: Soak, client: aioredis.Redis) -> None:
    while True:
        with contextlib.suppress(aioredis.RedisError, OSError):
            await this.sample(client)
        await asyncio.sleep(min(SAMPLE_EVERY_S, this.run.plan.seconds / 20))


def _numbers(raw: Any) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in raw.items()}


def _rss_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def _files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def _series(log: Path) -> int:
    """How many series a replica shows, at the endpoint that its log names."""
    for row in log.read_text().splitlines():
        if '"daemon_started"' in row:
            url: str = json.loads(row)["endpoint"]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/metrics") as reply:  # noqa: S310 - our own
                rows: list[bytes] = reply.read().splitlines()
                return sum(1 for row in rows if row and not row.startswith(b"#"))
    return 0


def main(words: list[str]) -> int:
    asked: dict[str, Any] = dict(word.split("=", 1) for word in words)
    minutes, seed = float(asked.get("MINUTES") or 30), int(asked.get("SEED") or 7)
    print(f"MINUTES={minutes:g} SEED={seed}", flush=True)  # noqa: T201
    return asyncio.run(soak(minutes, seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
