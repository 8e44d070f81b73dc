"""A client for whatever ``redis.url`` names: standalone, Sentinel or cluster.

Two policies, since a lost reply makes a client that retries send a write twice: reads are
retried a bounded number of times, writes never by the client. Whoever sends a script again
knows that it may have happened (``store``).

Every URL may end in ``?protocol=2`` for a server or proxy that does not know RESP3, those of
sentinels and clusters in ``?ssl=true`` for TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

import hiredis
import redis.asyncio as aioredis
import redis.exceptions as rx
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.credentials import CredentialProvider
from redis.maint_notifications import MaintNotificationsConfig
from typing_extensions import override

from checkpointd.domain.errors import ConfigError
from checkpointd.registry.cluster import Cluster

Client = Any
"""``redis.asyncio.Redis`` or ``Cluster``; the two share the calls that are used here."""


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
        try:
            password = self._password()
        except ConfigError as error:  # the file is being replaced, or has gone
            raise rx.ConnectionError(str(error)) from error
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


class _Sentinels(Sentinel):
    """Asks all sentinels at once, so that one which never answers holds nobody up."""

    @override
    async def discover_master(self, service_name: str) -> Any:
        alone = [self._one(watcher, service_name) for watcher in self.sentinels]
        told: Exception = MasterNotFoundError(f"no sentinel knows a primary named {service_name!r}")
        asking = [asyncio.create_task(one, name="ask-sentinel") for one in alone]
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    return await answer
                except MasterNotFoundError as error:
                    told = error
                except (rx.RedisError, OSError) as error:
                    if not isinstance(told, MasterNotFoundError):
                        told = error
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise told

    async def _one(self, watcher: Any, service_name: str) -> tuple[str, int]:
        state = (await watcher.sentinel_masters()).get(service_name)
        if not state or not self.check_master_state(state, service_name):
            raise MasterNotFoundError(f"the sentinels see no primary named {service_name!r}")
        return str(state["ip"]), int(state["port"])


class _SentinelPool(SentinelConnectionPool, aioredis.BlockingConnectionPool):
    """Connections to whoever is the primary; bounded, and a burst waits."""


def _without_login(url: str) -> str:
    """``url`` for a client that is given the login by other means, and refuses two."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


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
    parts = urlsplit(how.url)
    if parts.scheme in ("redis", "rediss", "unix"):
        return _standalone(how, retried=retried)
    if parts.scheme == "redis+sentinel":
        return _watched(how, retried=retried)
    if parts.scheme == "redis+cluster":
        return _cluster(how, retried=retried)
    raise ConfigError([f"redis.url has the unknown scheme {parts.scheme!r}"])


def _standalone(how: Connecting, *, retried: bool) -> Client:
    options = _options(how, retried=retried) | _tls(how)
    pool = aioredis.BlockingConnectionPool.from_url(
        _without_login(how.url) if "credential_provider" in options else how.url,
        max_connections=how.max_connections,
        timeout=how.timeout_s,
        **options,
    )
    pool.connection_class = packing_in_c(cast(type, pool.connection_class))
    return aioredis.Redis.from_pool(pool)


def _watched(how: Connecting, *, retried: bool) -> Client:
    """``redis+sentinel://host:port,host:port/primary-name[/db]``: whoever is the primary now."""
    parts = urlsplit(how.url)
    name, _, db = parts.path.strip("/").partition("/")
    if not name:
        raise ConfigError(["redis.url names no primary: redis+sentinel://host:26379/NAME"])
    options = _options(how, retried=retried) | _tls(how)
    unasked = ("credential_provider", "username", "password")  # those are the primary's
    sentinel = _Sentinels(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        _hosts(parts.netloc, 26379),
        sentinel_kwargs={k: v for k, v in options.items() if k not in unasked}
        | {"retry": Retry(NoBackoff(), 0), "ssl": _is_secure(how.url)},
    )
    kind = SentinelManagedSSLConnection if _is_secure(how.url) else SentinelManagedConnection
    pool = _SentinelPool(  # type: ignore[no-untyped-call]
        name,
        sentinel,
        connection_class=packing_in_c(kind),
        max_connections=how.max_connections,
        timeout=how.timeout_s,
        db=int(db or 0),
        **options,
    )
    return aioredis.Redis.from_pool(pool)


def _cluster(how: Connecting, *, retried: bool) -> Client:
    """``redis+cluster://host:port,host:port``: any nodes of it."""
    options = _options(how, retried=False) | _tls(how)
    kind = packing_in_c(SSLConnection if _is_secure(how.url) else Connection)

    def node(address: tuple[str, int]) -> aioredis.Redis:
        host, port = address
        pool = aioredis.BlockingConnectionPool(
            connection_class=kind,
            max_connections=how.max_connections,
            timeout=how.timeout_s,
            host=host,
            port=port,
            **options,
        )
        return aioredis.Redis.from_pool(pool)

    hosts = _hosts(urlsplit(how.url).netloc, 6379)
    return Cluster(hosts, node, retries=how.read_retries if retried else 0)


def _options(how: Connecting, *, retried: bool) -> dict[str, Any]:
    """What every connection to the store is given."""
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
        "driver_info": None,  # else each connection asks for a right that it does without
    }
    parts = urlsplit(how.url)
    if protocol := _asked(how.url, "protocol"):
        options["protocol"] = int(protocol)
    if how.password is not None and (how.password() is not None or how.username):
        options["credential_provider"] = _Credentials(how.username, how.password)
    elif parts.password is not None:
        options["password"] = unquote(parts.password)
        if parts.username:
            options["username"] = unquote(parts.username)
    return options


def _tls(how: Connecting) -> dict[str, Any]:
    if not _is_secure(how.url):
        return {}
    options: dict[str, Any] = {"ssl_ca_certs": how.ca_file}
    if how.cert_file:
        options |= {"ssl_certfile": how.cert_file, "ssl_keyfile": how.key_file}
    return options


def _is_secure(url: str) -> bool:
    """TLS: ``rediss://``, or ``?ssl=true`` for a cluster or sentinels."""
    return urlsplit(url).scheme == "rediss" or _asked(url, "ssl") == "true"


def _asked(url: str, name: str) -> str:
    return parse_qs(urlsplit(url).query).get(name, [""])[0]


async def many(client: Client, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """A reply or an exception for each command, in one round trip a node, without MULTI.

    Raises where nothing is known of any of them.
    """
    if isinstance(client, Cluster):
        return await client.many(commands)
    async with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        return list(await pipe.execute(raise_on_error=False))


async def drop_idle(client: Client) -> None:
    """Close idle connections, for they may lead to where the store was and is no more."""
    if isinstance(client, Cluster):
        await client.drop_idle()
    else:
        await client.connection_pool.disconnect(inuse_connections=False)


async def close(client: Client) -> None:
    """Close all of its connections, those to its sentinels too. Again: nothing."""
    await client.aclose()
    if isinstance(client, Cluster):
        return
    pool = client.connection_pool
    await pool.disconnect()
    if isinstance(pool, _SentinelPool):
        await pool.sentinel_manager.aclose()
