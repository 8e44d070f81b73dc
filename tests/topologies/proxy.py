"""A line between a client and a server, or a replica and its primary, that can go bad."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 65536


class Line:
    """Forwards from a port of its own, in a thread, so that no test's loop holds it up."""

    def __init__(self, port: int, to_port: int) -> None:
        self.port = port
        self._to_port = to_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="line", daemon=True)
        self._ready = threading.Event()
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hole = False
        self._since = 0
        self.accepted = 0

    def black_hole(self) -> None:
        """From now on what goes in never comes out, in either direction; nothing is closed."""
        self._hole = True

    def forget(self) -> None:
        """Connections that stand are half-open from now on; new ones are good."""
        self._since += 1

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._to_port)
            await asyncio.gather(self._pump(reader, there), self._pump(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, there):
                if one is not None:
                    one.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        since = self._since
        with contextlib.suppress(OSError):
            while chunk := await source.read(CHUNK):
                if not self._hole and since == self._since:
                    sink.write(chunk)
                    await sink.drain()
        sink.transport.abort()

    def __enter__(self) -> Line:
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)


@contextmanager
def mute_port() -> Iterator[int]:
    """A port that takes connections and whatever is sent, and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield int(listener.getsockname()[1])
