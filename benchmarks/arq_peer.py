"""The peer of the drain: one arq worker, a job a ref, each under redis-py's ``Lock``.

A script of its own and not a part of the package, since arq and the daemon ask for different
versions of redis-py; it runs in an environment that has arq. It prints one JSON object.
Its settings are arq's best here: no result is kept, and the queue is polled without a pause to
speak of. The job does nothing under its lock, not even the link and the record that a drain writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import arq
import redis
from arq.connections import RedisSettings, create_pool
from arq.worker import Worker, func

LOCK_S = 15


async def replay(ctx: dict[str, Any], number: int) -> None:
    """Hold the ref's lock for nothing."""
    async with ctx["redis"].lock(f"lock:{number}", timeout=LOCK_S):
        pass


async def measured(socket: str, db: int, refs: int, jobs: int) -> dict[str, Any]:
    """The rate of so many jobs that wait in the queue when the worker begins."""
    pool = await create_pool(RedisSettings(unix_socket_path=socket, database=db))
    await pool.flushdb()
    for at in range(0, refs, 100):
        await asyncio.gather(
            *(pool.enqueue_job("replay", n) for n in range(at, min(at + 100, refs)))
        )
    worker = Worker(
        functions=[func(replay, name="replay", keep_result=0)],
        redis_pool=pool,
        burst=True,
        max_jobs=jobs,
        poll_delay=0.001,
        handle_signals=False,
        log_results=False,
    )
    began = time.perf_counter()
    await worker.async_run()
    took_s = time.perf_counter() - began
    done = worker.jobs_complete
    await worker.close()
    if done != refs:
        raise SystemExit(f"arq completed {done} of {refs} jobs")
    return {"rate": refs / took_s, "arq": arq.VERSION, "redis-py": redis.__version__}


def main() -> None:
    """Measure once, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("--db", type=int, default=0)
    parser.add_argument("--refs", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=16)
    asked = parser.parse_args()
    print(json.dumps(asyncio.run(measured(asked.socket, asked.db, asked.refs, asked.jobs))))


if __name__ == "__main__":
    main()
