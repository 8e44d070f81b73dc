"""An opened store and everything that is built on it: what a command works with."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from checkpointd.config import Settings
from checkpointd.domain.drain import DrainRules, assess
from checkpointd.domain.status import status_document
from checkpointd.domain.tally import DrainStatus, StoreTally
from checkpointd.registry.books import AdoptionBooks
from checkpointd.registry.connect import Connecting
from checkpointd.registry.control import Control
from checkpointd.registry.embedded import EmbeddedServer, embedded_directory
from checkpointd.registry.expiry import Expiry
from checkpointd.registry.ledger import DrainLedger
from checkpointd.registry.operations import Operations
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store
from checkpointd.registry.tallies import Tallies
from checkpointd.replay.opening import open_replayer
from checkpointd.replay.port import Replayer
from checkpointd.replay.turnstate import TurnstateReplayer
from checkpointd.sources.opening import open_source
from checkpointd.sources.port import LegacySource
from checkpointd.turnstate.redis import RedisCommandPort
from checkpointd.turnstate.store import TurnCheckpointStore


class Rooms:
    """Everything that commands and passes work with. Made by ``open_rooms``, closed by it."""

    def __init__(self, settings: Settings, store: Store, *, actor: str) -> None:
        self.settings = settings
        self.actor = actor
        self.store = store
        self.registry = RedisRegistry(store, actor=actor, lease_ttl=settings.lease.ttl)
        self.control = Control(store)
        self.expiry = Expiry(store)
        self.ledger = DrainLedger(store, actor=actor, lease_ttl=settings.lease.ttl)
        self.books = AdoptionBooks(store, actor=actor)
        self.operations = Operations(store, actor=actor)
        self.tallies = Tallies(store)
        self.turns = TurnCheckpointStore(
            RedisCommandPort(
                store.client,
                lambda thread_id: store.keys.turns(thread_id).encode(),
                where=store.where,
            ),
            migration_of=self.registry.migration_of,
        )
        self._source: LegacySource | None = None
        self._replayer: Replayer | None = None

    @property
    def rules(self) -> DrainRules:
        """What these settings say of the drain's end."""
        return drain_rules(self.settings)

    async def source(self) -> LegacySource | None:
        """The configured source, opened once; ``None`` if none is configured."""
        if self._source is None and self.settings.source.url:
            self._source = legacy_source(self.settings)
        return self._source

    async def replayer(self) -> Replayer:
        """The configured replayer, made once."""
        if self._replayer is None:
            self._replayer = await open_replayer(
                self.settings.replay.url,
                turnstate=lambda: TurnstateReplayer(
                    self.turns, unanswered=self.settings.drain.unanswered
                ),
            )
        return self._replayer

    async def status(self) -> tuple[StoreTally, DrainStatus, dict[str, Any]]:
        """The counters, the drain's word for them, and both as a document."""
        tally = await self.tallies.read(grace=self.settings.reconcile.grace)
        drain = assess(tally, self.rules)
        return tally, drain, status_document(tally, drain, await self.tallies.passes())

    async def aclose(self) -> None:
        """Close the source and the replayer, then the store."""
        try:
            for room in (self._source, self._replayer):
                if room is not None:
                    await room.aclose()
        finally:
            await self.store.aclose()


def drain_rules(settings: Settings) -> DrainRules:
    """The part of the settings that decides the drain's state."""
    return DrainRules(
        has_source=bool(settings.source.url),
        stall_after=settings.drain.stall_after,
        settle=settings.drain.settle,
        accept_unregistrable=settings.drain.accept_unregistrable,
    )


def legacy_source(settings: Settings) -> LegacySource:
    """The source that the settings name; nothing is read yet."""
    return open_source(
        settings.source.url,
        max_record=settings.source.max_record,
        breakpoints=settings.source.breakpoints,
        messages_channel=settings.source.messages_channel,
    )


def connecting(settings: Settings, url: str | None = None) -> Connecting:
    """How the settings say to reach the store; ``url`` in place of an embedded one's."""
    redis = settings.redis
    return Connecting(
        url=url or redis.url,
        username=redis.read_username(),
        password=redis.read_password,
        ca_file=redis.ca_file or None,
        cert_file=redis.cert_file or None,
        key_file=redis.key_file or None,
        timeout_s=redis.timeout.total_seconds(),
        connect_timeout_s=redis.connect_timeout.total_seconds(),
        max_connections=redis.max_connections,
        read_retries=redis.read_retries,
    )


@contextlib.asynccontextmanager
async def open_rooms(settings: Settings, *, actor: str, found: bool = True) -> AsyncIterator[Rooms]:
    """The store, opened and seen to be ours, with everything on it; closed at the end.

    An ``embedded://`` store is started, or shared with the daemon that runs it.
    """
    server: EmbeddedServer | None = None
    how = connecting(settings)
    if settings.redis.url.startswith("embedded:"):
        server = await EmbeddedServer.start(embedded_directory(settings.redis.url))
        how = Connecting(url=server.url, timeout_s=how.timeout_s)
    try:
        store = await Store.open(
            how,
            namespace=settings.registry.namespace,
            partitions=settings.registry.partitions,
            environment=settings.registry.environment,
            found=found,
        )
        rooms = Rooms(settings, store, actor=actor)
        try:
            yield rooms
        finally:
            await rooms.aclose()
    finally:
        if server is not None:
            await server.stop()
