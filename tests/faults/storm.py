"""The faults, drawn from a seed, one after the other and beside each other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import redis.asyncio as aioredis
import redis.exceptions as rx

from checkpointd.registry import scripts

from .proxy import Proxy, Weather
from .server import Server
from .workers import Worker

Fault = Callable[[], Awaitable[bool]]

AT_ONCE = 3

LATE_STEPS: tuple[tuple[int, float, tuple[str, ...]], ...] = (
    # The narrowest to meet: another must have claimed the ref and be at work on it just then.
    (5, 1.1, ("commit", "renew", "release")),
    (2, 0.3, ("fail",)),
    (2, 1.1, ("fail", "renew", "release")),
    (4, 0.3, ("expire_overdue",)),
    (1, 0.3, ("claim",)),
    (1, 0.3, ("release",)),
    (1, 0.3, ("adopt",)),
)
"""Weight, least delay in TTLs, and the scripts that are late while all others pass: what one step
alone may meet."""

MOST_LATE = 2.0
DWELL = 20


def marks_of(script: str) -> tuple[bytes, bytes]:
    """What a request for this script contains: its hash, or its text."""
    _, sha = scripts.source_of(script)
    return sha.encode(), f"-- {script}: ".encode()


class Storm:
    """Does harm until it is over, and leaves everything running when it ends."""

    def __init__(
        self,
        rng: random.Random,
        *,
        workers: Sequence[Worker],
        proxies: Sequence[Proxy],
        server: Server,
        admin: aioredis.Redis,
        ttl_s: float,
        mild: bool = False,
        dwell_on: str = "",
    ) -> None:
        """``dwell_on`` names a script that is late far more often than others: where a guard of it
        is taken out, a short run must meet the moment that it guards."""
        self._rng = rng
        self._workers = workers
        self._proxies = proxies
        self._server = server
        self._admin = admin
        self._ttl_s = ttl_s
        self._mild = mild
        self._late_steps_drawn = [
            (weight * (DWELL if dwell_on in late else 1), least, late)
            for weight, least, late in LATE_STEPS
        ]
        self._late_weight = 60 if dwell_on else 20
        self._server_busy = False
        self._going: set[asyncio.Task[None]] = set()
        self.injected: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """For so long; returns when the last fault is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        faults = self._mild_ones() if self._mild else self._all()
        words, weights = zip(*((name, weight) for name, (weight, _) in faults.items()), strict=True)
        # Each of them once, so that a short storm has them all; then by their weights.
        first = self._rng.sample(words, len(words))
        try:
            while loop.time() < until:
                name = first.pop() if first else self._rng.choices(words, weights)[0]
                task = asyncio.create_task(self._do(name, faults[name][1]), name=f"fault {name}")
                self._going.add(task)
                task.add_done_callback(self._going.discard)
                while len(self._going) >= AT_ONCE:
                    await asyncio.wait(self._going, return_when=asyncio.FIRST_COMPLETED)
                pause_s = self._rng.uniform(2, 6) if self._mild else self._rng.uniform(0.1, 0.4)
                await asyncio.sleep(pause_s)
                self._revive()
        finally:
            await asyncio.gather(*self._going)
            self._revive()

    async def nurse(self) -> None:
        """Start whoever dies, until cancelled; for when the storm is over."""
        while True:
            self._revive()
            await asyncio.sleep(0.1)

    async def _do(self, name: str, fault: Fault) -> None:
        if await fault():
            self.injected[name] += 1

    def _revive(self) -> None:
        for worker in self._workers:
            if not worker.busy and worker.revive():
                self.injected["died and was started again"] += 1

    def _all(self) -> dict[str, tuple[int, Fault]]:
        faults: dict[str, tuple[int, Fault]] = {
            "kill -9 of a replica": (4, self._kill),
            "SIGSTOP of a replica past its leases": (4, self._stop),
            "CLIENT KILL of all": (1, self._client_kill),
            "CLIENT KILL of one": (4, self._client_kill_one),
            "SCRIPT FLUSH": (3, self._script_flush),
            "server stalled": (2, self._stall),
            "network slow": (3, self._slow),
            "network cut": (3, lambda: self._weather(Weather.CUT, 0.2, 1.5)),
            "network a black hole": (3, lambda: self._weather(Weather.HOLE, 0.3, 2.0)),
            "requests delivered late": (3, self._late),
            "steps delivered late": (self._late_weight, self._late_steps),
            "one reply lost": (8, self._lose),
            "server killed and restarted": (1, self._restart),
        }
        if self._server.clock is not None:
            faults["server's clock moved by 60 s"] = (1, self._clock)
        return faults

    def _mild_ones(self) -> dict[str, tuple[int, Fault]]:
        everything = self._all()
        mild = (
            "CLIENT KILL of all",
            "SCRIPT FLUSH",
            "network slow",
            "one reply lost",
            "network cut",
        )
        return {name: everything[name] for name in mild}

    # On a replica ------------------------------------------------------------------------------

    async def _kill(self) -> bool:
        with self._free_worker() as worker:
            if worker is None:
                return False
            worker.send(signal.SIGKILL)
            if worker.process is not None:
                await asyncio.to_thread(worker.process.wait)
            await asyncio.sleep(self._rng.uniform(0, 0.5))
            worker.start()
            return True

    async def _stop(self) -> bool:
        with self._free_worker() as worker:
            if worker is None:
                return False
            worker.send(signal.SIGSTOP)
            await asyncio.sleep(self._rng.uniform(0.3, 1.8 * self._ttl_s))
            worker.send(signal.SIGCONT)
            return True

    @contextlib.contextmanager
    def _free_worker(self) -> Iterator[Worker | None]:
        """A replica that no other fault is at, never the last one; or none."""
        free = [w for w in self._workers if not w.busy]
        worker = self._rng.choice(free) if len(free) > 1 else None
        if worker is not None:
            worker.busy = True
        try:
            yield worker
        finally:
            if worker is not None:
                worker.busy = False

    # On the network ----------------------------------------------------------------------------

    def _clear_line(self) -> Proxy | None:
        lines = [p for p in self._proxies if p.weather is Weather.CLEAR and not p.delay_s]
        return self._rng.choice(lines) if lines else None

    async def _weather(
        self, weather: Weather, least_s: float, most_s: float, only: tuple[bytes, ...] = ()
    ) -> bool:
        line = self._clear_line()
        if line is None:
            return False
        async with line.under(weather, only=only):
            await asyncio.sleep(self._rng.uniform(least_s, most_s))
        return True

    async def _late(self) -> bool:
        # Until another may have claimed what this replica holds, and is at work on it.
        return await self._weather(Weather.LATE, 1.1 * self._ttl_s, MOST_LATE * self._ttl_s)

    async def _late_steps(self) -> bool:
        drawn = self._late_steps_drawn
        _, least, late = self._rng.choices(drawn, [weight for weight, *_ in drawn])[0]
        return await self._weather(
            Weather.LATE,
            least * self._ttl_s,
            MOST_LATE * self._ttl_s,
            only=tuple(marker for script in late for marker in marks_of(script)),
        )

    async def _slow(self) -> bool:
        line = self._clear_line()
        if line is None:
            return False
        line.delay_s = self._rng.uniform(0.01, 0.15)
        await asyncio.sleep(self._rng.uniform(0.5, 1.5))
        line.delay_s = 0.0
        return True

    async def _lose(self) -> bool:
        self._rng.choice(self._proxies).lose_replies(1)
        return True

    # On the store ------------------------------------------------------------------------------

    async def _client_kill(self) -> bool:
        return await self._say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def _client_kill_one(self) -> bool:
        try:
            clients = await self._admin.client_list(_type="normal")
            drawn = self._rng.choice(clients)["id"]
            await self._admin.client_kill_filter(_id=drawn)
        except (rx.RedisError, OSError):
            return False  # itself, or it had gone
        return True

    async def _script_flush(self) -> bool:
        return await self._say("SCRIPT", "FLUSH")

    async def _say(self, *words: str) -> bool:
        try:
            await self._admin.execute_command(*words)  # type: ignore[no-untyped-call]
        except (rx.RedisError, OSError):
            return False
        return True

    async def _stall(self) -> bool:
        async with self._free_server() as free:
            if free:
                async with self._server.stalled():
                    await asyncio.sleep(self._rng.uniform(0.2, 1.4 * self._ttl_s))
            return free

    async def _restart(self) -> bool:
        async with self._free_server() as free:
            if free:
                await self._server.restart()
            return free

    async def _clock(self) -> bool:
        clock = self._server.clock
        async with self._free_server() as free:
            if free and clock is not None:
                clock.move(self._rng.choice((60, -60)))
                await asyncio.sleep(self._rng.uniform(0.5, 3.0))
                clock.move(0)
            return free

    @contextlib.asynccontextmanager
    async def _free_server(self) -> AsyncIterator[bool]:
        """Whether no other fault is at the store."""
        if self._server_busy:
            yield False
            return
        self._server_busy = True
        try:
            yield True
        finally:
            self._server_busy = False
