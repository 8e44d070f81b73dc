"""``doctor``: whether the store, the source and the settings fit together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click
import redis.asyncio as aioredis
import redis.exceptions as rx
from rich.console import Group
from rich.table import Table

from checkpointd.app.rooms import Rooms, connecting, legacy_source
from checkpointd.cli import checks, tables
from checkpointd.cli.checks import Check, Verdict, cannot_say, fail, ok, warn
from checkpointd.cli.common import Asked, Code
from checkpointd.cli.verbs import Verb, asks
from checkpointd.config import Settings, hints
from checkpointd.domain.errors import CheckpointdError, StoreError, StoreRefusedError
from checkpointd.registry.embedded import SCHEME, EmbeddedServer, embedded_directory
from checkpointd.registry.store import Store

T = TypeVar("T")

COUNTING_S = 3.0
"""How long the source's threads are counted; a large one is only known to be large."""
PAGE = 5_000


@click.command(cls=Verb, example="checkpointd doctor")
@asks
def doctor(asked: Asked) -> int:
    """Whether store, source and settings fit.

    Nothing is written. Each check is a word and a sentence; exit 1 if one of them failed. What
    the store will not tell, for want of a permission, is a warning.
    """
    found = asked.awaited(examine(asked.settings(), actor=asked.who()))
    failed = any(check.verdict is Verdict.FAIL for check in found)
    asked.tell(
        {
            "ok": not failed,
            "checks": [
                {"name": c.name, "verdict": str(c.verdict), "sentence": c.sentence} for c in found
            ],
        },
        people=lambda: _page(found),
    )
    return Code.FAILED if failed else Code.DONE


def _page(found: list[Check]) -> Group:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in found:
        table.add_row(
            tables.cell(str(check.verdict)), tables.cell(check.name), tables.cell(check.sentence)
        )
    bad = {v: sum(check.verdict is v for check in found) for v in (Verdict.FAIL, Verdict.WARN)}
    said = f"{tables.plural(bad[Verdict.FAIL], 'failure')}, {tables.plural(bad[Verdict.WARN], 'warning')}."
    return Group(table, tables.blank(), tables.Line(said))


async def examine(settings: Settings, *, actor: str) -> list[Check]:
    """Every check; one that cannot be made says why, and stops no other."""
    found: list[Check] = []
    meta: Mapping[str, str] = {}
    try:
        async with _unclaimed(settings) as store:
            await store.ping()
            found += await _of_store(store, settings)
            rooms = Rooms(settings, store, actor=actor)
            meta = (await rooms.control.read()).raw
            found += await _of_registry(rooms, meta)
    except (StoreError, OSError) as error:
        found += [fail("store", str(error)), cannot_say("registry", "the store is out of reach")]
    found.append(await _of_source(settings, accounted=meta.get("source", "")))
    found.append(checks.lease_arithmetic(settings))
    found += [warn("settings", f"{hint}.") for hint in hints(settings)]
    return found


@asynccontextmanager
async def _unclaimed(settings: Settings) -> AsyncIterator[Store]:
    """The store as it is, whoever's registry it holds: that is one of the questions."""
    server: EmbeddedServer | None = None
    how = connecting(settings)
    if how.url.startswith(SCHEME):
        server = await EmbeddedServer.start(embedded_directory(how.url))
        how = replace(how, url=server.url, username=None, password=None)
    try:
        store = Store(
            how, namespace=settings.registry.namespace, partitions=settings.registry.partitions
        )
        try:
            yield store
        finally:
            await store.aclose()
    finally:
        if server is not None:
            await server.stop()


# The store -------------------------------------------------------------------------------------


async def _of_store(store: Store, settings: Settings) -> list[Check]:
    began = time.perf_counter()
    await store.ping()
    found = [checks.round_trip(store.where, time.perf_counter() - began, settings.redis.timeout)]
    for name, section, judge in (
        ("server", "server", checks.server),
        ("memory", "memory", checks.memory),
        ("persistence", "persistence", checks.persistence),
        ("replication", "replication", checks.replication),
    ):
        found.append(await _judged(name, store.info(section), judge))
    found.insert(2, await _eviction(store))
    scheme = urlsplit(settings.redis.url).scheme
    if scheme == "redis+cluster":
        found = [check for check in found if check.name != "replication"]
        asked = store.read(lambda c: c.execute_command("CLUSTER INFO"))
        found.append(await _judged("cluster", asked, lambda told: checks.cluster(_one(told))))
    if scheme == "redis+sentinel":
        found.append(await quorum(settings))
    return found


async def _judged(name: str, asked: Awaitable[T], judge: Callable[[T], Check]) -> Check:
    """A check on what the store tells; a store that will not tell is not thereby ill."""
    try:
        return judge(await asked)
    except StoreRefusedError as error:
        return cannot_say(name, f"this user may not ask ({error.why})")


async def _eviction(store: Store) -> Check:
    """The policy by INFO, which more users may ask than CONFIG."""
    try:
        policy = (await store.info("memory")).get("maxmemory_policy")
        if not policy:
            told = await store.read(lambda c: c.config_get("maxmemory-policy"))
            policy = told.get("maxmemory-policy") or told.get(b"maxmemory-policy")
    except StoreRefusedError as error:
        return cannot_say("eviction", f"this user may not ask ({error.why})")
    if not policy:
        return cannot_say("eviction", "the server does not tell its maxmemory-policy")
    return checks.eviction(policy.decode() if isinstance(policy, bytes) else str(policy))


def _one(told: Any) -> checks.Info:
    """The answer of one node, where a client gives them by node."""
    if isinstance(told, dict) and told and all(isinstance(v, dict) for v in told.values()):
        return dict(next(iter(told.values())))
    return dict(told)


async def quorum(settings: Settings) -> Check:
    """Whether the sentinels that ``redis.url`` names would find a quorum for a failover."""
    parts = urlsplit(settings.redis.url)
    name = parts.path.strip("/").partition("/")[0]
    places = parts.netloc.rpartition("@")[2].split(",")
    refusals: list[str] = []
    for place in places:
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "26379")
        client = aioredis.Redis(
            host=host.strip("[]"),
            port=int(port),
            socket_timeout=settings.redis.timeout.total_seconds(),
            socket_connect_timeout=settings.redis.connect_timeout.total_seconds(),
        )
        try:
            await client.execute_command("SENTINEL", "CKQUORUM", name)  # type: ignore[no-untyped-call]
        except (rx.RedisError, OSError) as error:
            refusals.append(f"{place}: {error}")
        finally:
            await client.aclose()
    if not refusals:
        return ok("sentinel", f"all {len(places)} sentinels would find a quorum.")
    said = f"{len(refusals)} of {len(places)} sentinels would not fail over ({refusals[0]})"
    return (fail if len(refusals) == len(places) else warn)("sentinel", f"{said}; mend them")


# The registry in it ----------------------------------------------------------------------------


async def _of_registry(rooms: Rooms, meta: Mapping[str, str]) -> list[Check]:
    settings, store = rooms.settings, rooms.store
    found = checks.registry(meta, settings)
    found.append(await _scripts(store))
    if any(check.verdict is Verdict.FAIL for check in found):
        return [*found, cannot_say("clock", "the registry is not ours to read")]
    tally = await rooms.tallies.read(grace=settings.reconcile.grace)
    found.append(checks.clock(tally.clock_offset_s))
    found.append(
        checks.grace(settings.reconcile.grace, tally.ttf_buckets, late=tally.late_finalizations)
    )
    return found


async def _scripts(store: Store) -> Check:
    """Whether this user may run scripts over the registry's keys: by one that only reads."""
    try:
        await store.at(0, "peek", [], [1])
    except StoreRefusedError as error:
        return fail(
            "scripts",
            f"this user may not run scripts over the registry's keys ({error.why}); every step is "
            "one, so grant it +eval, +evalsha, +script and the keys of the namespace",
        )
    return ok("scripts", "this user may run scripts over the registry's keys.")


# The source ------------------------------------------------------------------------------------


async def _of_source(settings: Settings, *, accounted: str) -> Check:
    """Whether it can be read, is the one that the registry accounts for, and how large it is."""
    if not settings.source.url:
        return ok("source", "none is configured: only what applications register is drained.")
    try:
        source = legacy_source(settings)
    except CheckpointdError as error:
        return fail("source", str(error))
    try:
        if accounted and accounted != source.identity:
            return fail(
                "source",
                f"the registry accounts for {accounted} and source.url names {source.identity}; "
                "use another registry.namespace for another source",
            )
        threads, after = 0, ""
        first = None
        began = time.monotonic()
        while True:
            page = await source.page(after, PAGE)
            threads += len(page.threads)
            first = first or (page.threads[0].thread_id if page.threads else None)
            if page.next_after is None or time.monotonic() - began > COUNTING_S:
                break
            after = page.next_after
        if first is not None:
            await source.head(first)
    except CheckpointdError as error:
        return fail("source", str(error))
    finally:
        await source.aclose()
    least = "at least " if page.next_after is not None else ""
    return ok("source", f"readable, {least}{tables.plural(threads, 'thread')}{_size_of(settings)}.")


def _size_of(settings: Settings) -> str:
    """The size of a source that is a file."""
    parts = urlsplit(settings.source.url)
    if parts.scheme != "sqlite":
        return ""
    try:
        return f" in {checks.mib(Path(unquote(parts.path)).stat().st_size)}"
    except OSError:
        return ""
