"""The replicas: the installed command as processes that are killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
"""On the workers' path: the replayer, and what takes guards out."""


@dataclass(slots=True)
class Worker:
    """One replica. Each life has a log of its own, and its own name in the audit."""

    name: str
    directory: Path
    config: Path
    environment: Mapping[str, str]
    words: tuple[str, ...] = ("run",)
    lives: int = 0
    deaths: int = 0
    """Lives that ended before they were told to."""
    process: subprocess.Popen[bytes] | None = None
    busy: bool = False
    """Whether a fault is at work on it."""
    logs: list[Path] = field(default_factory=list)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Begin a life."""
        self.lives += 1
        log = self.directory / f"{self.name}-{self.lives}.log"
        self.logs.append(log)
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command(*self.words, config=self.config, actor=f"{self.name}.{self.lives}"),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment(self.environment),
            )

    async def started(self, within_s: float) -> None:
        """Return once its daemon says that it is there."""
        async with asyncio.timeout(within_s):
            while b"daemon_started" not in self.logs[-1].read_bytes():
                assert self.process is not None
                assert self.process.poll() is None, self.logs[-1].read_text()
                await asyncio.sleep(0.05)

    def revive(self) -> bool:
        """Begin another life if this one is over; whether it was."""
        if self.process is not None and self.process.poll() is None:
            return False
        self.deaths += 1
        self.start()
        return True

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            assert self.process is not None
            self.process.send_signal(number)

    async def stop(self, within_s: float) -> int:
        """SIGTERM, and its exit code; killed if it does not end. 0 if it was dead before."""
        assert self.process is not None
        if self.process.poll() is not None:
            return 0
        self.send(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -9

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def command(*words: str, config: Path, actor: str) -> list[str]:
    """The installed command."""
    return [sys.executable, "-m", "checkpointd", "--config", str(config), "--as", actor, *words]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """What a worker sees: the path to what is inside it, and nothing of the caller's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CHECKPOINTD_")}
    path = os.pathsep.join(filter(None, (str(INSIDE), kept.get("PYTHONPATH", ""))))
    return kept | {"PYTHONPATH": path, **more}
