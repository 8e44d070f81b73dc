"""The replayer of the fault suite's workers: writes down what it does, and misbehaves as told.

How a thread's replay behaves stands in its id, between dots: ``.block.``, ``.die.``, ``.hang.``,
``.permanent.``, ``.transient.``, ``.slow.``. All but the last only at the first attempt.
Two lines an effect: when it began, and when it was done; in between it may be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import zlib
from pathlib import Path

from checkpointd.domain.errors import (
    PermanentReplayError,
    ReplayerUnreachableError,
    TransientReplayError,
)
from checkpointd.replay.port import Replayed, ReplayRequest

BLOCK_S = float(os.environ.get("FAULT_BLOCK_S", "3"))
DOWN = os.environ.get("FAULT_REPLAYER_DOWN", "")


class FaultReplayer:
    """Returns the key of each request as its checkpoint id, after a while."""

    def __init__(self) -> None:
        path = Path(os.environ["FAULT_EFFECTS"]) / f"{os.getpid()}.jsonl"
        self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _write(self, step: str, request: ReplayRequest, at: float) -> None:
        line = {
            "step": step,
            "at": at,
            "thread": request.thread_id,
            "legacy": request.legacy_checkpoint_id,
            "key": request.idempotency_key,
            "fence": request.fence,
            "attempt": request.attempt,
            "pid": os.getpid(),
        }
        os.write(self._log, json.dumps(line).encode() + b"\n")

    async def replay(self, request: ReplayRequest) -> Replayed:
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        if DOWN and Path(DOWN).exists():
            raise ReplayerUnreachableError("the fault suite told it to be out of reach")
        self._write("began", request, at)
        first = request.attempt == 1
        words = request.thread_id.split(".")
        draw = zlib.crc32(f"{request.thread_id} {request.fence}".encode()) % 1000 / 1000
        if first and "block" in words:
            time.sleep(BLOCK_S)  # noqa: ASYNC251 - the loop is to be blocked
        elif first and "hang" in words:
            await asyncio.Event().wait()
        else:
            # Long enough that a step which an earlier holder left on its way arrives meanwhile.
            long = not first or not {"slow", "permanent", "transient"}.isdisjoint(words)
            await asyncio.sleep((0.3 + 0.9 * draw) if long else (0.05 + 0.3 * draw))
        if first and "permanent" in words:
            raise PermanentReplayError("other", f"fence {request.fence}")
        if first and "transient" in words:
            raise TransientReplayError(f"fence {request.fence}")
        self._write("done", request, time.clock_gettime(time.CLOCK_BOOTTIME))
        if first and "die" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        return Replayed(request.idempotency_key)

    async def aclose(self) -> None:
        os.close(self._log)


def made() -> FaultReplayer:
    """The factory that ``replay.url`` names."""
    return FaultReplayer()
