"""Turn states in Redis, beside the registry's keys of their thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis import exceptions
from redis.asyncio import Redis, RedisCluster

from checkpointd.domain.errors import StoreRefusedError, StoreUnreachableError

SEPARATOR = "\x1f"
"""No id holds a control character, so checkpoint and key cannot run into each other."""


class RedisCommandPort:
    """A command port over one hash a thread.

    ``key_of`` gives the hash's name, in the slot of the thread's partition. A write is one
    ``HSET``: sent twice after a lost reply it leaves the same bytes.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        key_of: Callable[[str], bytes],
        *,
        where: str = "redis.url",
    ) -> None:
        self._client = client
        self._key_of = key_of
        self._where = where

    async def write_metadata(
        self, thread_id: str, checkpoint_id: str, key: str, value: bytes, task_id: str
    ) -> None:
        """Keep ``value``; the last write stands. ``StoreError`` if the store did not take it."""
        with self._named("keep a turn state"):
            await self._client.hset(self._key_of(thread_id), _field(checkpoint_id, key), value)

    async def read_metadata(self, thread_id: str, checkpoint_id: str, key: str) -> object:
        """What was written last, or ``None``. ``StoreError`` if the store did not answer."""
        with self._named("read a turn state"):
            found = await self._client.hget(self._key_of(thread_id), _field(checkpoint_id, key))
        return found.encode() if isinstance(found, str) else found  # a client may decode replies

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            word = getattr(error, "status_code", None)
            unanswered = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
            if isinstance(error, unanswered) and not word:
                raise StoreUnreachableError(self._where, str(error)) from error
            told = f"{word} {error}" if word and word != "ERR" else str(error)
            raise StoreRefusedError(what, told) from error


def _field(checkpoint_id: str, key: str) -> bytes:
    return f"{checkpoint_id}{SEPARATOR}{key}".encode()
