"""One run: everything started, the storm let loose, the drain brought to its end, the books read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from checkpointd.registry.connect import Connecting
from checkpointd.registry.operations import Operations
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store

from .books import read_books
from .checker import Acknowledged, Evidence, check, effects_in, log_in
from .inside.fault_controls import GUARDED, removed
from .observer import Observer
from .proxy import Proxy
from .server import Clock, Server
from .storm import Storm
from .workers import Worker, command, environment
from .workload import Application, LegacyDatabase, Operator

NAMESPACE = "faults"
PARTITIONS = 4
TTL_S = 1.5
GRACE = timedelta(seconds=2)

CONFIG = """\
[redis]
url = "redis://127.0.0.1:{port}/0"
timeout = "200ms"
connect_timeout = "200ms"
max_connections = 8
[registry]
namespace = "{namespace}"
partitions = {partitions}
environment = "faults"
[reconcile]
every = "300ms"
grace = "2s"
max_expiries = 100000
[source]
url = "sqlite://{source}"
settle = "0s"
[adopt]
every = "1s"
page = 100
[drain]
every = "200ms"
concurrency = 8
max_attempts = 50
backoff_base = "50ms"
backoff_cap = "500ms"
settle = "500ms"
[lease]
ttl = "1500ms"
deadline = "1s"
renew_every = "200ms"
[replay]
url = "python:fault_replayer:made"
timeout = "3s"
[shutdown]
grace = "1s"
[endpoint]
listen = "{listen}"
[log]
level = "info"
format = "json"
"""


@dataclass(slots=True, kw_only=True)
class Plan:
    """What a run is to be."""

    seconds: float
    seed: int
    without: str = ""
    """A guard that is taken out of the scripts, to see the checker fail."""
    workers: int = 3
    per_second: float = 15.0
    """New legacy threads."""
    move_clock: bool = False
    end_within_s: float = 90.0
    """After the faults: the drain's end."""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    plan: Plan
    findings: list[str]
    injected: Counter[str]
    figures: dict[str, Any] = field(default_factory=dict)

    def page(self) -> str:
        """The report: one page."""
        plan = self.plan
        head = f"faults: seed {plan.seed}, {plan.seconds:g} s, {plan.workers} replicas"
        if plan.without:
            head += f", WITHOUT the guard {plan.without}"
        lines = [head, "", "injected"]
        lines += [f"  {n:>6}  {name}" for name, n in sorted(self.injected.items())]
        lines += ["", "what went on"]
        lines += [f"  {value!s:>6}  {name}" for name, value in self.figures.items()]
        lines += ["", f"violations: {len(self.findings)}"]
        lines += [f"  {finding}" for finding in self.findings[:30]]
        if len(self.findings) > 30:
            lines.append(f"  … and {len(self.findings) - 30} more")
        return "\n".join(lines)


class Run:
    """One run of a plan, in a directory of its own."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.rng = random.Random(plan.seed)  # noqa: S311 - repeats a run, guards nothing
        self.clock = Clock(directory) if plan.move_clock and not Clock.is_possible() else None
        self.server = Server(directory / "store", clock=self.clock)
        self.told = Acknowledged()
        self.source = LegacyDatabase(directory, random.Random(plan.seed + 1))  # noqa: S311
        self.effects = directory / "effects"
        self.effects.mkdir()
        self.workers: list[Worker] = []
        self.proxies: list[Proxy] = []
        self.listen = ""
        self.began = time.monotonic()

    @contextlib.asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Server, proxies and replicas run while the block lasts."""
        self.server.start()
        try:
            for n in range(self.plan.workers + 2):
                proxy = Proxy(self.server.path, seed=self.plan.seed + n)
                await proxy.start()
                self.proxies.append(proxy)
                if n < self.plan.workers:
                    self.workers.append(self.worker(f"replica-{n}", proxy.port))
            for worker in self.workers:
                worker.start()
            for worker in self.workers:
                await worker.started(within_s=60)
            yield
        finally:
            for worker in self.workers:
                worker.kill()
            for proxy in self.proxies:
                await proxy.stop()
            self.server.kill()

    def worker(self, name: str, port: int) -> Worker:
        """A replica that reaches the store at this port; not started."""
        config = self.directory / f"{name}.toml"
        config.write_text(
            CONFIG.format(
                port=port,
                namespace=NAMESPACE,
                partitions=PARTITIONS,
                source=self.source.path,
                listen=self.listen,
            )
        )
        more = {
            "FAULT_EFFECTS": str(self.effects),
            "FAULT_BLOCK_S": str(2 * TTL_S),
            "FAULT_TURN_S": "5",
        }
        if self.plan.without:
            more["FAULT_WITHOUT"] = self.plan.without
        return Worker(name, self.directory, config, more)

    @contextlib.asynccontextmanager
    async def store(self, proxy: Proxy | None = None) -> AsyncIterator[Store]:
        """The registry, straight or through a proxy."""
        url = self.server.url if proxy is None else f"redis://127.0.0.1:{proxy.port}/0"
        how = Connecting(url=url, timeout_s=0.3, connect_timeout_s=0.3)
        store = await Store.open(
            how, namespace=NAMESPACE, partitions=PARTITIONS, environment="faults"
        )
        try:
            yield store
        finally:
            await store.aclose()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[aioredis.Redis]:
        """A plain client past every proxy."""
        client = aioredis.Redis(
            unix_socket_path=self.server.path, socket_timeout=2, retry=Retry(NoBackoff(), 0)
        )
        try:
            yield client
        finally:
            await client.aclose()


async def run(plan: Plan) -> Outcome:
    """Do it, and say what was found."""
    with (
        tempfile.TemporaryDirectory(prefix="cpd-faults-") as directory,
        removed(plan.without),
    ):
        return await _run(Run(plan, Path(directory)))


async def _run(this: Run) -> Outcome:
    plan = this.plan
    this.source.write(60)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(this.going())
        *lines, to_application, to_operator = this.proxies
        admin = await stack.enter_async_context(this.client())
        watching = await stack.enter_async_context(this.client())
        near = await stack.enter_async_context(this.store())
        app_store = await stack.enter_async_context(this.store(to_application))
        far = await stack.enter_async_context(this.store(to_operator))
        observer = Observer(watching, NAMESPACE, PARTITIONS)
        operator = Operator(near, far, to_operator, this.told)
        application = Application(
            RedisRegistry(app_store, actor="application"), this.told, this.rng, GRACE
        )
        storm = Storm(
            this.rng,
            workers=this.workers,
            proxies=lines,
            server=this.server,
            admin=admin,
            ttl_s=TTL_S,
            dwell_on=GUARDED.get(plan.without, ""),
        )
        watch = asyncio.create_task(observer.run(), name="observer")
        await operator.freeze()
        issuing = asyncio.create_task(application.run(per_second=20), name="application")
        writing = asyncio.create_task(_write(this), name="legacy-writer")
        racing = asyncio.create_task(_race(operator), name="operator")
        losing = asyncio.create_task(_lose(to_application, this.rng), name="lost-replies")
        try:
            await storm.run(plan.seconds)
        finally:
            for task in (writing, racing, losing, issuing):
                task.cancel()
            ends = await asyncio.gather(writing, racing, losing, issuing, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        calm_at = time.monotonic()
        await operator.freeze()
        nursing = asyncio.create_task(storm.nurse(), name="nurse")
        try:
            drained, status = await to_the_end(this, near)
        finally:
            nursing.cancel()
            await asyncio.gather(nursing, return_exceptions=True)
        end_s = time.monotonic() - calm_at
        codes = [await worker.stop(within_s=30) for worker in this.workers]
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await observer.look()
        books = await read_books(admin, NAMESPACE, PARTITIONS)
    log, noise = log_in(path for worker in this.workers for path in worker.logs)
    evidence = Evidence(
        books=books,
        steps=observer.steps,
        effects=effects_in(this.effects),
        log=log,
        noise=noise,
        acknowledged=this.told,
        heads=this.source.heads,
        observed=observer.findings,
        drained=drained,
        ended=str(status.get("sentence")),
    )
    findings = check(evidence)
    findings += [f"end: a replica ended with {code}, not 0" for code in codes if code != 0]
    return Outcome(
        plan, findings, storm.injected, _figures(this, evidence, operator, end_s, observer)
    )


def _figures(
    this: Run, evidence: Evidence, operator: Operator, end_s: float, observer: Observer
) -> dict[str, Any]:
    rows = evidence.books.rows
    began = Counter(e.name for e in evidence.effects if e.step == "began")
    done = Counter(e.name for e in evidence.effects if e.step == "done")
    events = Counter(line.get("event") for line in evidence.log)
    return {
        "legacy threads": len(evidence.heads),
        "refs": len(rows),
        "migrated, each with one link": sum(r.state == "m" for r in rows.values()),
        "expired, each once": evidence.books.count("expired:crash"),
        "superseded": evidence.books.count("expired:superseded"),
        "waived by the operator": sum(r.state == "w" for r in rows.values()),
        "replays begun": began.total(),
        "refs whose effect happened more than once": sum(n > 1 for n in done.values()),
        "leases lost and noticed": events["lease_lost"],
        "commits found already made": events["ref_found_migrated"],
        "transitions in the audit": sum(map(len, evidence.steps.values())),
        "turns issued by the application": len(this.told.registered),
        "finalized, as it was told": len(this.told.finalized),
        "too late, as it was told": len(this.told.expired),
        "late copies of a freeze after its thaw": operator.races,
        "replies lost": sum(p.replies_lost for p in this.proxies),
        "lives of the replicas": sum(w.lives for w in this.workers),
        "looks at the leases during the faults": observer.looks,
        "leases seen with a TTL": observer.leases_seen,
        "seconds from the last fault to the drain's end": round(end_s, 1),
        "seconds altogether": round(time.monotonic() - this.began, 1),
    }


async def _write(this: Run) -> None:
    """The old application goes on writing; every few seconds a thread that blocks its replayer."""
    tick = 0
    while True:
        await asyncio.sleep(1)
        tick += 1
        count = round(this.plan.per_second)
        await asyncio.to_thread(this.source.write, count, blocks=int(tick % 4 == 1))
        # Some while they are being replayed.
        await asyncio.to_thread(this.source.take_turns, count // 6, newest=2 * count)


async def _race(operator: Operator) -> None:
    while True:
        await asyncio.sleep(4)
        await operator.race()


async def _lose(line: Proxy, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0.3, 1))
        line.lose_replies(1)


async def to_the_end(this: Run, near: Store) -> tuple[bool, dict[str, Any]]:
    """Wait for the drain's end as an operator would, waiving what only an operator can move."""
    until = time.monotonic() + this.plan.end_within_s
    operations = Operations(near, actor="operator")
    config = this.workers[0].config
    status: dict[str, Any] = {}
    while (left := until - time.monotonic()) > 0:
        words = ("run", "--until", "drained", "--timeout", f"{left:.0f}s", "--json")
        process = await asyncio.create_subprocess_exec(
            *command(*words, config=config, actor="the-end"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(this.workers[0].environment),
        )
        stdout, _ = await process.communicate()
        status = json.loads(stdout) if stdout.strip() else {"sentence": "it said nothing"}
        if process.returncode == 0:
            return True, status
        quarantined = [record async for record in operations.quarantined()]
        await operations.waive(quarantined, reason="the faults are over")
    return False, status
