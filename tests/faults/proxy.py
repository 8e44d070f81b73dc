"""A TCP proxy that is the network between one process and the store, and does it harm.

``late`` is the fault that nothing else makes: bytes that were sent are delivered seconds after
their sender has given up and gone. A write that arrives then must find that its time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from enum import StrEnum

CHUNK = 65536
LATE_SPREAD_S = 1.0
"""Late requests do not all come at once: one of those sent again and again meets its moment."""


class Weather(StrEnum):
    """What becomes of bytes that are on their way."""

    CLEAR = "clear"
    CUT = "cut"
    """Connections are closed, new ones refused."""
    HOLE = "hole"
    """Connections stand, and what goes in never comes out: half-open ones, for good."""
    LATE = "late"
    """What goes in is delivered when the weather clears, also if its sender has gone."""


class Proxy:
    """Listens on a port of its own and forwards to a Unix socket."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        self._upstream = upstream
        self._rng = random.Random(seed)  # noqa: S311 - repeats a run, guards nothing
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._cleared = asyncio.Event()
        self._cleared.set()
        self.weather = Weather.CLEAR
        self._only: tuple[bytes, ...] = ()
        self.delay_s = 0.0
        self.replies_to_lose = 0
        self.replies_lost = 0
        self.held_back = 0
        self.port = 0

    async def start(self) -> None:
        """Listen; ``port`` is known afterwards."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        self.clear()
        self._stopped = True
        if self._server is not None:
            self._server.close()
        self._hang_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * LATE_SPREAD_S)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def under(self, weather: Weather, *, only: tuple[bytes, ...] = ()) -> AsyncIterator[None]:
        """This weather while the block lasts; for requests that contain one of ``only``, if given."""
        self.weather = weather
        self._only = only
        self._cleared.clear()
        if weather is Weather.CUT:
            self._hang_up()
        try:
            yield
        finally:
            self.clear()

    def clear(self) -> None:
        """Good weather; what was held back goes on its way."""
        self.weather = Weather.CLEAR
        self.delay_s = 0.0
        self._cleared.set()

    def lose_replies(self, count: int) -> None:
        """The next so many replies are lost with their connections; the requests were done."""
        self.replies_to_lose += count

    def _hang_up(self) -> None:
        for writer in tuple(self._clients):
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped or self.weather is Weather.CUT:
            writer.transport.abort()
            return
        self._clients.add(writer)
        task = asyncio.create_task(self._carry(reader, writer), name="proxy-connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._joined(reader, writer)
        finally:
            self._clients.discard(writer)
            writer.transport.abort()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_store, to_store = await asyncio.open_unix_connection(self._upstream)
        except OSError:  # the store is down: so is the line to it
            return
        there = asyncio.create_task(self._there(reader, to_store), name="proxy-there")
        back = asyncio.create_task(self._back(from_store, writer), name="proxy-back")
        try:
            await asyncio.wait((there, back), return_when=asyncio.ALL_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            to_store.transport.abort()

    async def _there(self, reader: asyncio.StreamReader, to_store: asyncio.StreamWriter) -> None:
        """Requests. Their sender's going away does not take back what it has sent."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self.weather is Weather.HOLE:
                    await self._swallow(reader)
                    break
                if self.weather is Weather.LATE and self._is_meant(chunk):
                    self.held_back += 1
                    await self._cleared.wait()
                    await asyncio.sleep(self._rng.uniform(0, LATE_SPREAD_S))
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                to_store.write(chunk)
                await to_store.drain()
        with contextlib.suppress(OSError, RuntimeError):
            to_store.write_eof()

    def _is_meant(self, chunk: bytes) -> bool:
        return not self._only or any(marker in chunk for marker in self._only)

    async def _back(self, from_store: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Replies; read to the end in any case, since a store that is hung up on reads no more."""
        with contextlib.suppress(OSError):
            while chunk := await from_store.read(CHUNK):
                if self.replies_to_lose > 0:
                    self.replies_to_lose -= 1
                    self.replies_lost += 1
                    writer.transport.abort()
                    continue
                if self.weather is Weather.HOLE:
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not writer.is_closing():
                    writer.write(chunk)
                    with contextlib.suppress(OSError):
                        await writer.drain()
        writer.transport.abort()

    @staticmethod
    async def _swallow(reader: asyncio.StreamReader) -> None:
        while await reader.read(CHUNK):
            pass
