"""The installed command, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkpointd import sample

COMMAND = Path(sys.executable).parent / "checkpointd"
PATIENCE_S = 40.0


@dataclass(slots=True)
class Shell:
    """A directory, and an environment that says nothing but what a test put there."""

    directory: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, *words: str, timeout: float = PATIENCE_S, stdout: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            [COMMAND, *words],
            cwd=self.directory,
            env=self._environ(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )

    def json(self, *words: str) -> dict[str, Any]:
        """What it printed with ``--json``."""
        document: dict[str, Any] = json.loads(self(*words, "--json").stdout)
        return document

    @contextmanager
    def running(self, *words: str) -> Iterator[Daemon]:
        """The command in the background, started; killed at the end if it still runs."""
        process = subprocess.Popen(
            [COMMAND, *words],
            cwd=self.directory,
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        daemon = Daemon(process)
        try:
            yield daemon
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=PATIENCE_S)

    def set(self, **settings: str) -> None:
        """Settings of the environment, such as ``redis__url=…``."""
        self.environ |= {f"CHECKPOINTD_{name.upper()}": value for name, value in settings.items()}

    def _environ(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CHECKPOINTD_")}
        return {**kept, "COLUMNS": "80", **self.environ}


@dataclass(slots=True)
class Daemon:
    """A running ``checkpointd run``."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def said(self, event: str) -> dict[str, Any]:
        """Read its log up to the line of this event, and return that."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            document: dict[str, Any] = json.loads(line)
            if document["event"] == event:
                return document
        pytest.fail(f"it ended without {event}: {self.lines}")

    def keep_reading(self) -> None:
        """Take its log away from now on: a full pipe would hold it up."""
        stream = self.process.stderr
        assert stream is not None
        threading.Thread(target=lambda: self.lines.extend(stream), daemon=True).start()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal, and wait for its end; the rest of its log is in ``lines``."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end."""
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        self.lines += rest.splitlines()
        return self.process.returncode


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """The command in an empty directory."""
    return Shell(tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A copy of the sample."""
    return sample.copy_to(tmp_path)


@pytest.fixture
def ready(shell: Shell, database: Path, redis_server: Any) -> Shell:
    """The command over the sample and a registry of the test's own on a real store."""
    shell.set(
        redis__url=redis_server.url,
        registry__namespace=f"acc-{uuid.uuid4().hex[:12]}",
        source__url=f"sqlite://{database}",
        reconcile__grace="1s",
        drain__settle="0s",
        endpoint__listen="127.0.0.1:0",
    )
    return shell
