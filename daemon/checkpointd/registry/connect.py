"""A client for whatever ``redis.url`` names: standalone, Sentinel or cluster.

Two policies, since a lost reply makes a client that retries send a write twice: reads are
retried a bounded number of times, writes never by the client. Whoever sends a script again
knows that it may have happened (``store``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis
import redis.asyncio as aioredis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.credentials import CredentialProvider
from redis.maint_notifications import MaintNotificationsConfig
from typing_extensions import override

from checkpointd.domain.errors import ConfigError

Client = Any
"""``redis.asyncio.Redis`` or ``RedisCluster``; the two share the calls that are used here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting:
    """How to reach the store."""

    url: str
    username: str | None = None
    password: Callable[[], str | None] | None = None
    """Asked again at each reconnect, so that a rotated secret is taken up."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_s: float = 1.0
    connect_timeout_s: float = 1.0
    max_connections: int = 32
    read_retries: int = 2


class _Credentials(CredentialProvider):
    """The user and whatever the password is now."""

    def __init__(self, username: str | None, password: Callable[[], str | None]) -> None:
        self._username = username
        self._password = password

    @override
    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password()
        if password is None:
            return (self._username or "",) if self._username else ()  # type: ignore[return-value]
        return (self._username, password) if self._username else (password,)


class _PacksInC:
    """Packs commands by hiredis, as redis-py's blocking connections can and its others cannot.

    For a script of many keys it is a tenth of the time, most of what a call costs on this side.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        return [hiredis.pack_command(_one_word_each(args))]

    def pack_commands(self, commands: Iterable[tuple[Any, ...]]) -> list[bytes]:
        return [b"".join(hiredis.pack_command(_one_word_each(args)) for args in commands)]


def _one_word_each(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``CONFIG GET`` and its like are one name to redis-py and two words to the server."""
    name = args[0]
    if isinstance(name, str) and " " in name:
        return (*name.split(), *args[1:])
    return tuple(args)


@cache
def packing_in_c(connection: type) -> type:
    """This class of connections, packing in C."""
    return type(f"Packing{connection.__name__}", (_PacksInC, connection), {})


def where(url: str) -> str:
    """The address in ``url`` without its secrets, for people."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2] + parts.path
    return f"{parts.scheme}://{place}"


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for part in netloc.rpartition("@")[2].split(","):
        host, _, port = part.rpartition(":") if ":" in part else (part, "", "")
        hosts.append((host.strip("[]"), int(port or default_port)))
    return hosts


def connect(how: Connecting, *, retried: bool) -> Client:
    """A client for the store; nothing is sent before its first command.

    ``retried`` is for reads only. Pools are bounded and block, so a burst waits
    instead of failing.
    """
    retry = (
        Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), how.read_retries)
        if retried
        else Retry(NoBackoff(), 0)
    )
    options: dict[str, Any] = {
        "socket_timeout": how.timeout_s,
        "socket_connect_timeout": how.connect_timeout_s,
        "retry": retry,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    parts = urlsplit(how.url)
    if how.password is not None and (how.password() is not None or how.username):
        options["credential_provider"] = _Credentials(how.username, how.password)
    secure = parts.scheme == "rediss"
    if secure:
        options |= {"ssl_ca_certs": how.ca_file}
        if how.cert_file:
            options |= {"ssl_certfile": how.cert_file, "ssl_keyfile": how.key_file}
    if parts.scheme in ("redis", "rediss", "unix"):
        pool = aioredis.BlockingConnectionPool.from_url(
            how.url, max_connections=how.max_connections, timeout=how.timeout_s, **options
        )
        pool.connection_class = packing_in_c(pool.connection_class)
        return aioredis.Redis.from_pool(pool)
    if "credential_provider" not in options and parts.password is not None:
        options["password"] = unquote(parts.password)
        if parts.username:
            options["username"] = unquote(parts.username)
    if parts.scheme == "redis+sentinel":
        # redis+sentinel://host:port,host:port/primary-name[/db]
        name, _, db = parts.path.strip("/").partition("/")
        if not name:
            raise ConfigError(["redis.url names no primary: redis+sentinel://host:26379/NAME"])
        watch = {k: options[k] for k in ("socket_timeout", "socket_connect_timeout", "retry")}
        sentinel = Sentinel(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
            _hosts(parts.netloc, 26379),
            sentinel_kwargs=watch,
            max_connections=how.max_connections,
            **{k: v for k, v in options.items() if k != "maint_notifications_config"},
        )
        return sentinel.master_for(name, db=int(db or 0))
    if parts.scheme == "redis+cluster":
        host, port = _hosts(parts.netloc, 6379)[0]
        if parse_qs(parts.query).get("ssl") == ["true"]:
            options["ssl"] = True
        return RedisCluster(host=host, port=port, max_connections=how.max_connections, **options)
    raise ConfigError([f"redis.url has the unknown scheme {parts.scheme!r}"])
