"""A daemon with nothing to do, as a process."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.servers import client_of, url_of

DB = 7
STARTUP_S = 20.0
SETTLE_S = 8.0
"""After its start: the first runs of all passes. What is watched then is as
long as the longest interval of a pass that looks at every partition."""


async def measured(path: str, *, watched_s: float = 60.0) -> list[Figure]:
    """Its memory, and what it asks of the store, over some seconds after its start."""
    with tempfile.TemporaryDirectory(prefix="checkpointd-idle-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "checkpointd", "run"),
            cwd=folder,
            env=_environment(path),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            await asyncio.wait_for(_started(process.stderr), STARTUP_S)
            reading = asyncio.create_task(process.stderr.read(), name="log")
            await asyncio.sleep(SETTLE_S)
            with client_of(path, DB) as client:
                before = _commands(client)
                await asyncio.sleep(watched_s)
                after = _commands(client)
            rss_mb = _rss_mb(process.pid)
            process.terminate()
            await asyncio.wait_for(process.wait(), STARTUP_S)
            said = await reading
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, f"the daemon ended with {process.returncode}"
    assert b"pass_failed" not in said, said.decode()
    with client_of(path, DB) as client:
        client.flushdb()
    asked = {name: n - before.get(name, 0) for name, n in after.items()}
    asked = {name: n for name, n in asked.items() if n}
    asked["info"] = asked.get("info", 1) - 1
    sent = sum(asked.values())
    return [
        Figure(
            name="idle daemon, resident memory",
            value=rss_mb,
            keeps="<=",
            target=80,
            unit="MB",
        ),
        Figure(
            name="idle daemon, store commands a second, 16 partitions",
            value=sent / watched_s,
            keeps="<=",
            target=5,
            unit="/s",
            facts={"watched_s": watched_s, "commands": asked},
        ),
    ]


def _environment(path: str) -> dict[str, str]:
    """No source and no ref: only what a daemon asks for by itself. With an endpoint."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CHECKPOINTD_")}
    return kept | {
        "CHECKPOINTD_REDIS__URL": url_of(path, DB),
        "CHECKPOINTD_ENDPOINT__LISTEN": "127.0.0.1:0",
    }


async def _started(log: asyncio.StreamReader) -> None:
    while line := await log.readline():
        if b"daemon_started" in line:
            return
    raise RuntimeError("the daemon ended before it had started")


def _commands(client: Any) -> dict[str, int]:
    """What the server has done, by command; those that scripts call count as well."""
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} tells no memory")
