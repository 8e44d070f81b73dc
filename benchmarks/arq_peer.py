"""The peer of the drain: one arq worker, a job a ref, each under redis-py's ``Lock``.

A script of its own and not a part of the package, since arq and the daemon ask for different
versions of redis-py; it runs in an environment that has arq. It prints one JSON object.
The work is the drain's: the refs are in the store, each gets its job, and the job, under the ref's
lock, sees that there is no link yet and writes one. No record, counter, audit, attempt or fence.
How the worker is set up is told on the command line; without a word, as arq sets itself up. No
result is kept, and no line is logged for each job, in either setting: that is to arq's advantage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import arq  # type: ignore[import-not-found] # in its own environment alone
import redis
from arq.connections import RedisSettings, create_pool  # type: ignore[import-not-found]
from arq.worker import Worker, func  # type: ignore[import-not-found]

LOCK_S = 15


async def replay(ctx: dict[str, Any], number: int) -> None:
    """Replay by doing nothing, and link the ref, unless it is linked."""
    store = ctx["redis"]
    async with store.lock(f"lock:{number}", timeout=LOCK_S):
        if await store.hget("links", number) is None:
            await store.hset("links", number, f"new-{number}")


async def measured(socket: str, db: int, refs: int, *, jobs: int, poll_s: float) -> dict[str, Any]:
    """The rate at which so many refs get their job and their link, and that of the jobs alone."""
    pool = await create_pool(RedisSettings(unix_socket_path=socket, database=db))
    await pool.flushdb()
    began = time.perf_counter()
    for at in range(0, refs, 100):
        await asyncio.gather(
            *(pool.enqueue_job("replay", n) for n in range(at, min(at + 100, refs)))
        )
    enqueued = time.perf_counter()
    worker = Worker(
        functions=[func(replay, name="replay", keep_result=0)],
        redis_pool=pool,
        burst=True,
        max_jobs=jobs,
        poll_delay=poll_s,
        handle_signals=False,
        log_results=False,
    )
    await worker.async_run()
    ended = time.perf_counter()
    links = await pool.hlen("links")
    await worker.close()
    if links != refs:
        raise SystemExit(f"arq linked {links} of {refs} refs")
    return {
        "rate": refs / (ended - began),
        "jobs_alone": refs / (ended - enqueued),
        "arq": arq.VERSION,
        "redis_py": redis.__version__,
    }


def main() -> None:
    """Measure once, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("--db", type=int, default=0)
    parser.add_argument("--refs", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--poll-s", type=float, default=0.5)
    asked = parser.parse_args()
    told = measured(asked.socket, asked.db, asked.refs, jobs=asked.jobs, poll_s=asked.poll_s)
    print(json.dumps(asyncio.run(told)))


if __name__ == "__main__":
    main()
