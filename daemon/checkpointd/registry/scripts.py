"""Runs the Lua scripts: gathers the calls of one turn of the loop into one round trip.

Every script may be sent twice without doing its step twice; each file's header says how it
knows. So a call whose reply was lost with its connection is sent once more from here, knowing
what that means, and never by the client behind our back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import redis.exceptions as rx

from checkpointd.domain.errors import StoreError, StoreRefusedError, StoreUnreachableError
from checkpointd.registry.connect import Client, drop_idle, many

WEIGHT = 300
"""Keys in one round trip, at most, unless one call alone has more: some 32 commits. Bounds how
long others wait; and the store works on one round trip while this side reads another's replies."""


_META = frozenset(
    {
        "meta_create",
        "control_freeze",
        "control_thaw",
        "control_pause",
        "control_resume",
        "control_halt",
        "control_in_force",
        "heartbeat",
        "expiry_hold",
        "expiry_release",
        "expiry_allow",
        "take_allowance",
        "give_allowance",
        "drain_mark",
        "meta_put",
        "take_turn",
        "give_turn",
        "rights",
    }
)

_LEASE = frozenset({"acquire", "claim", "renew", "release", "fail", "commit"})

Arg = str | int | bytes
Call = tuple[str, Sequence[str], Sequence[Arg], asyncio.Future[Any]]
"""A script's name, its keys, its arguments, and who waits for its reply."""


@cache
def source_of(name: str) -> tuple[str, str]:
    """The text of a script with its prelude, and its SHA-1."""
    folder = resources.files("checkpointd.registry") / "lua"
    prelude = "meta_prelude" if name in _META else "prelude"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (prelude, name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def classed(error: Exception, where: str, what: str) -> StoreError:
    """The error of this package that a client's error means.

    What a server refuses by name is a refusal, whatever class redis-py has for it.
    """
    told = str(error) or type(error).__name__
    code = getattr(error, "status_code", None)
    if isinstance(error, rx.ResponseError) or code:
        return StoreRefusedError(what, f"{code} {told}" if code and code != "ERR" else told)
    if isinstance(error, rx.ClusterError):
        return StoreRefusedError(what, f"CLUSTERDOWN {told}")
    return StoreUnreachableError(where, told)


def is_lost(error: object) -> bool:
    """Whether it is not known what became of a call: no answer came."""
    unanswered = isinstance(error, rx.ConnectionError | rx.TimeoutError | OSError | TimeoutError)
    return unanswered and not getattr(error, "status_code", None)


def leads_elsewhere(error: object) -> bool:
    """Whether idle connections are in doubt: they may lead to a server that was the primary."""
    return isinstance(error, rx.ReadOnlyError) or is_lost(error)


class Scripts:
    """Runs scripts by name on one store."""

    def __init__(
        self, client: Client, where: str, on_error: Callable[[str], None] = lambda _: None
    ) -> None:
        self._client = client
        self._where = where
        self.on_error = on_error
        """Told ``write`` or ``lease`` for each call that failed."""
        self._waiting: list[Call] = []
        self._flushes: set[asyncio.Task[None]] = set()
        self.round_trips = 0

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """The script's reply; ``StoreUnreachableError`` or ``StoreRefusedError``.

        After ``StoreUnreachableError`` it is not known whether the step happened. A
        cancelled call may have happened as well.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((name, keys, args, future))
        return await future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        lot: list[Call] = []
        weight = 0
        for call in waiting:
            if lot and weight + len(call[1]) > WEIGHT:
                self._send_soon(lot)
                lot, weight = [], 0
            lot.append(call)
            weight += len(call[1])
        self._send_soon(lot)

    def _send_soon(self, calls: list[Call]) -> None:
        task = asyncio.get_running_loop().create_task(self._send(calls), name="script-round-trip")
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _send(self, calls: list[Call]) -> None:
        try:
            replies = await self._round_trip(calls)
            if any(leads_elsewhere(reply) for reply in replies):
                await drop_idle(self._client)
            lost = [
                i for i, r in enumerate(replies) if isinstance(r, rx.ConnectionError) and is_lost(r)
            ]
            missing = [i for i, r in enumerate(replies) if isinstance(r, rx.NoScriptError)]
            again = [i for i in lost + missing if not calls[i][3].cancelled()]
            if again:
                second = await self._round_trip([calls[i] for i in again], whole=True)
                for i, reply in zip(again, second, strict=True):
                    replies[i] = reply
        except BaseException as error:  # nobody is left waiting, whatever it was
            for *_, future in calls:
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                elif not future.done():
                    future.set_exception(error)
            raise
        for (name, _, _, future), reply in zip(calls, replies, strict=True):
            if future.done():
                continue
            if isinstance(reply, Exception):
                self.on_error("lease" if name in _LEASE else "write")
                what = f"run {name.replace('_', ' ')}"
                future.set_exception(classed(reply, self._where, what))
            else:
                future.set_result(reply)

    async def _round_trip(
        self,
        calls: Sequence[Call],
        *,
        whole: bool = False,
    ) -> list[Any]:
        """One reply or exception for each call. ``whole`` sends texts instead of their hashes."""
        self.round_trips += 1
        commands: list[tuple[Any, ...]] = []
        for name, keys, args, _ in calls:
            text, sha = source_of(name)
            command = ("EVAL", text) if whole else ("EVALSHA", sha)
            commands.append((*command, len(keys), *keys, *args))
        try:
            if len(commands) == 1:
                return [await self._client.execute_command(*commands[0])]
            return await many(self._client, commands)
        except (rx.RedisError, OSError, TimeoutError) as error:
            return [error for _ in calls]

    async def settle(self) -> None:
        """Wait for round trips under way."""
        while self._flushes:
            await asyncio.gather(*self._flushes, return_exceptions=True)
