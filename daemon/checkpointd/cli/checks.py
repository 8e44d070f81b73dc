"""What ``doctor`` makes of what it was told: pure judgements, a word and a sentence each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from math import isinf
from typing import Any

from checkpointd.config import Settings
from checkpointd.domain.durations import format_duration
from checkpointd.registry.store import SCHEMA

OLDEST = {"redis": (6, 2), "valkey": (7, 0)}
"""The oldest release of each kind whose commands the scripts rely on."""

MEMORY_WARN, MEMORY_FAIL = 0.80, 0.95
CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 60.0
SLOW_SHARE = 0.25
"""A round trip of more than this share of redis.timeout leaves little for a bad moment."""
ENOUGH_TURNS = 20
"""Fewer finalized turns than this say nothing of how long they take."""

Info = Mapping[str, Any]


class Verdict(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    sentence: str


def ok(name: str, sentence: str) -> Check:
    return Check(name, Verdict.OK, sentence)


def warn(name: str, sentence: str) -> Check:
    return Check(name, Verdict.WARN, sentence)


def fail(name: str, sentence: str) -> Check:
    return Check(name, Verdict.FAIL, sentence)


def cannot_say(name: str, why: str) -> Check:
    """What was not told, and why: not a fault by itself, and not to be relied on either."""
    return warn(name, f"cannot say: {why}.")


# The server ------------------------------------------------------------------------------------


def round_trip(where: str, took_s: float, timeout: timedelta) -> Check:
    """How fast it answers."""
    said = f"{where} answers in {took_s * 1000:.1f} ms"
    if took_s > SLOW_SHARE * timeout.total_seconds():
        return warn(
            "store",
            f"{said}, and redis.timeout is {format_duration(timeout)}: a slower moment would look "
            "like an outage; bring them closer together, or raise it",
        )
    return ok("store", f"{said}.")


def server(info: Info) -> Check:
    """Which server it is, and whether its commands are enough."""
    kind = (
        "valkey" if info.get("valkey_version") or info.get("server_name") == "valkey" else "redis"
    )
    version = str(info.get(f"{kind}_version") or info.get("redis_version") or "")
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    named = f"{kind.capitalize()} {version}"
    if len(numbers) < 2:
        return cannot_say("server", "it does not tell its version")
    oldest = OLDEST[kind]
    if numbers < oldest:
        least = ".".join(map(str, oldest))
        return fail("server", f"{named} is too old; {kind.capitalize()} {least} is the least.")
    other = next((k for k in ("dragonfly_version", "garnet_version") if info.get(k)), None)
    if other:
        return warn("server", f"it is {other.partition('_')[0]}, which the tests do not cover.")
    return ok("server", f"{named}.")


def eviction(policy: str) -> Check:
    """Whether it may throw refs away."""
    if policy == "noeviction":
        return ok("eviction", "maxmemory-policy is noeviction: what is recorded stays.")
    return fail(
        "eviction",
        f"maxmemory-policy is {policy}: the server may delete refs, which are recorded for good; "
        "set it to noeviction",
    )


def memory(info: Info) -> Check:
    """How much room is left."""
    used, limit = int(info.get("used_memory") or 0), int(info.get("maxmemory") or 0)
    if not limit:
        return ok("memory", f"{mib(used)} used, and no limit is set.")
    ratio = used / limit
    said = f"{mib(used)} of {mib(limit)} are used ({ratio:.0%})"
    if ratio >= MEMORY_FAIL:
        return fail("memory", f"{said}; it is about to refuse writes, raise maxmemory")
    if ratio >= MEMORY_WARN:
        return warn("memory", f"{said}; raise maxmemory before it refuses writes")
    return ok("memory", f"{said}.")


def persistence(info: Info) -> Check:
    """Whether the registry outlives the server."""
    if info.get("loading"):
        return fail("persistence", "it is still reading its data; ask again when it is done")
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            return fail("persistence", "its append-only file cannot be written; look at its disk")
        return ok("persistence", "append-only: a crash costs a second of writes at most.")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return fail("persistence", "its last snapshot failed; look at its disk")
    return warn(
        "persistence",
        "no append-only file: a crash loses refs, at best back to the last snapshot; set "
        "appendonly yes",
    )


def replication(info: Info) -> Check:
    """Whether it is the one that takes writes."""
    role = str(info.get("role") or "")
    if role != "master":
        return fail(
            "replication",
            f"it is a {role or 'server of unknown role'}, which takes no writes; point redis.url to "
            "the primary",
        )
    replicas = int(info.get("connected_slaves") or 0)
    match replicas:
        case 0:
            return ok("replication", "primary, with no replica.")
        case 1:
            return ok("replication", "primary with 1 connected replica.")
        case _:
            return ok("replication", f"primary with {replicas} connected replicas.")


def cluster(info: Info) -> Check:
    """Whether the cluster serves every slot."""
    state, served = info.get("cluster_state"), int(info.get("cluster_slots_ok") or 0)
    size = int(info.get("cluster_size") or 0)
    primaries = "1 primary" if size == 1 else f"{size} primaries"
    said = f"cluster of {primaries}, {served:,} of 16,384 slots served"
    if state != "ok" or served < 16_384:
        return fail("cluster", f"{said} and its state is {state}; mend it before a drain")
    return ok("cluster", f"{said}.")


def clock(offset_s: float) -> Check:
    """Whether this machine's clock agrees with the store's, which judges all ages."""
    said = f"this clock is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} the store's"
    if abs(offset_s) >= CLOCK_FAIL_S:
        return fail("clock", f"{said}; synchronize both")
    if abs(offset_s) >= CLOCK_WARN_S:
        return warn("clock", f"{said}; synchronize both")
    return ok("clock", f"it differs from the store's by {abs(offset_s) * 1000:.0f} ms.")


# The registry ----------------------------------------------------------------------------------


def registry(meta: Mapping[str, str], settings: Settings) -> list[Check]:
    """Whether the registry there is the one that is configured."""
    if not meta.get("schema"):
        missing = "no registry is there yet: the first command that writes founds it"
        return [ok(name, f"{missing}.") for name in ("schema", "partitions", "environment")]
    wanted, name = settings.registry, settings.registry.namespace
    found: list[Check] = []
    if int(meta.get("min_reader") or 0) > SCHEMA:
        found.append(
            fail(
                "schema",
                f"the registry needs a client of schema {meta['min_reader']}, and this build knows "
                f"{SCHEMA}; upgrade checkpointd here",
            )
        )
    else:
        found.append(ok("schema", f"schema {meta['schema']}, which this build reads and writes."))
    if meta.get("partitions") != str(wanted.partitions):
        found.append(
            fail(
                "partitions",
                f"the registry {name!r} has {meta.get('partitions')} partitions and "
                f"registry.partitions is {wanted.partitions}; set it to {meta.get('partitions')}",
            )
        )
    else:
        found.append(ok("partitions", f"{wanted.partitions}, as configured."))
    if meta.get("environment") != wanted.environment:
        found.append(
            fail(
                "environment",
                f"the registry {name!r} belongs to {meta.get('environment')!r} and "
                f"registry.environment is {wanted.environment!r}; point redis.url to the right store",
            )
        )
    else:
        found.append(ok("environment", f"{wanted.environment}, as configured."))
    return found


# The settings ----------------------------------------------------------------------------------


def lease_arithmetic(settings: Settings) -> Check:
    """Whether a holder notices the loss of its lease before somebody else gets it."""
    lease, timeout = settings.lease, settings.redis.timeout
    spare = lease.deadline - 1.2 * lease.renew_every - timeout
    lost = int(spare / (1.2 * lease.renew_every)) if lease.renew_every else 0
    said = (
        f"renewed every {format_duration(lease.renew_every)}, given up after "
        f"{format_duration(lease.deadline)}, taken over after {format_duration(lease.ttl)}"
    )
    if lost < 1:
        return warn(
            "lease",
            f"{said}: one renewal that is lost ends a replay; lower lease.renew_every or raise "
            "lease.deadline",
        )
    renewals = "1 renewal" if lost == 1 else f"{lost} renewals"
    return ok("lease", f"{said}: {renewals} in a row may be lost.")


def grace(grace: timedelta, buckets: Mapping[float, int], *, late: int) -> Check:
    """Whether the grace is longer than honest turns take, by what was observed."""
    total = sum(buckets.values())
    set_to = format_duration(grace)
    if late:
        return warn(
            "grace",
            f"{late:,} writers came back after their refs had expired: reconcile.grace is {set_to}, "
            "which is shorter than some honest turns; raise it",
        )
    if total < ENOUGH_TURNS:
        return ok("grace", f"{set_to}; too few turns were finalized to compare it with ({total}).")
    slowest = quantile_bound(buckets, 0.99)
    if isinf(slowest) or timedelta(seconds=slowest) > grace:
        known = (
            "over 4h" if isinf(slowest) else f"up to {format_duration(timedelta(seconds=slowest))}"
        )
        return warn(
            "grace",
            f"reconcile.grace is {set_to} and 99 % of turns take {known} to finalize: honest turns "
            "may be expired; raise it",
        )
    took = format_duration(timedelta(seconds=slowest))
    return ok("grace", f"{set_to}, and 99 % of {total:,} turns were finalized within {took}.")


def quantile_bound(buckets: Mapping[float, int], share: float) -> float:
    """The upper bound of the bucket in which the quantile lies."""
    wanted, seen = share * sum(buckets.values()), 0
    for bound in sorted(buckets):
        seen += buckets[bound]
        if seen >= wanted:
            return bound
    return float("inf")


def mib(size: int) -> str:
    """Bytes, for people."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"
