"""A store that can be killed, stalled and started again on its data, and whose clock can be moved."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import redis
from tests.conftest import server_binary

STARTS_WITHIN_S = 30.0

SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset_s;
__attribute__((constructor)) static void look(void) {
  const char *path = getenv("FAULT_CLOCK");
  int fd = path ? open(path, O_RDONLY) : -1;
  if (fd < 0) return;
  void *at = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) offset_s = at;
}
static long moved(void) { return offset_s ? *offset_s : 0; }
int gettimeofday(struct timeval *tv, void *tz) {
  int r = syscall(SYS_gettimeofday, tv, tz);
  if (r == 0 && tv) tv->tv_sec += moved();
  return r;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
  int r = syscall(SYS_clock_gettime, id, ts);
  if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += moved();
  return r;
}
time_t time(time_t *to) {
  struct timeval tv;
  gettimeofday(&tv, 0);
  if (to) *to = tv.tv_sec;
  return tv.tv_sec;
}
"""


class Clock:
    """The wall clock of the processes that are started with ``environment``."""

    def __init__(self, directory: Path) -> None:
        self._library = directory / "clock.so"
        source = directory / "clock.c"
        source.write_text(SHIM)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source)], check=True
        )
        self._offset = directory / "offset"
        self._offset.write_bytes(struct.pack("l", 0))
        with self._offset.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    @staticmethod
    def is_possible() -> str:
        """Nothing, or why no clock can be moved here."""
        if shutil.which("gcc") is None:
            return "the program gcc is not on PATH, so no clock can be moved"
        return ""

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "FAULT_CLOCK": str(self._offset)}

    def move(self, seconds: int) -> None:
        """So far ahead of the true time, or behind it."""
        self._shared[:8] = struct.pack("l", seconds)

    def show(self, moment: datetime) -> None:
        """This time now, and on from there."""
        self.move(round((moment - datetime.now(UTC)).total_seconds()))


class Server:
    """One server on a Unix socket, with append-only persistence in its directory."""

    def __init__(self, directory: Path, *, clock: Clock | None = None) -> None:
        self.directory = directory
        self.path = str(directory / "store.sock")
        self.binary = server_binary()
        self.clock = clock
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        """Start it on what it kept, and wait until it answers."""
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.binary,
                    *("--port", "0", "--unixsocket", self.path, "--unixsocketperm", "700"),
                    *("--dir", str(self.directory), "--save", ""),
                    # Not everysec, which puts a write off while the disk is busy and answers
                    # before it: what was answered must outlive a kill of the process.
                    *("--appendonly", "yes", "--appendfsync", "no"),
                    *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
                    *("--enable-debug-command", "yes"),
                ],
                stdout=log,
                stderr=log,
                env=os.environ | (self.clock.environment if self.clock else {}),
            )
        until = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                with redis.Redis(unix_socket_path=self.path, socket_timeout=1) as client:
                    client.ping()
                    return
            except redis.RedisError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with -9. Nothing that it had answered is lost: it writes before it answers."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def restart(self) -> None:
        """Kill it with -9 and start it again."""
        self.kill()
        await asyncio.to_thread(self.start)

    @contextlib.asynccontextmanager
    async def stalled(self) -> AsyncIterator[None]:
        """It stands still while the block lasts; what is sent to it meanwhile waits."""
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
