"""What must be true after the faults, whatever they were. Each rule names what breaks it."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .books import CLAIMABLE, UNFINISHED, Books, Name, Row, Step

LEGAL = {
    ("", "open"),
    ("", "pending"),
    ("", "finalized"),
    ("", "expired"),
    ("open", "finalized"),
    ("open", "pending"),
    ("open", "expired"),
    ("open", "migrated"),
    ("finalized", "expired"),
    ("pending", "pending"),
    ("pending", "replaying"),
    ("pending", "expired"),
    ("pending", "migrated"),
    ("pending", "quarantined"),
    ("retryable", "retryable"),
    ("retryable", "replaying"),
    ("retryable", "expired"),
    ("retryable", "migrated"),
    ("retryable", "quarantined"),
    ("replaying", "replaying"),
    ("replaying", "pending"),
    ("replaying", "retryable"),
    ("replaying", "quarantined"),
    ("replaying", "migrated"),
    ("replaying", "expired"),
    ("quarantined", "pending"),
    ("quarantined", "waived"),
    ("quarantined", "expired"),
    ("quarantined", "migrated"),
    ("waived", "quarantined"),
    ("waived", "expired"),
    ("waived", "migrated"),
    ("expired", "quarantined"),
    ("expired", "pending"),
    ("expired", "finalized"),
    ("expired", "expired"),  # a late finalization, stamped
}
STORE_AWAY = "checkpointd: the store "
"""How a replica that finds no store at its start, or one that is loading its data, ends: with one
sentence; whoever tends it starts it again."""

HOLDERS_OWN = frozenset({"ref_migrated", "ref_failed", "ref_released"})
"""What only the holder of a lease may do to its ref; a quarantine too, where it is not a claim's."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the replayer's own log."""

    step: str
    at: float
    name: Name
    key: str
    fence: int
    attempt: int
    pid: int


@dataclass(slots=True)
class Acknowledged:
    """What the application was told: it must stay true."""

    registered: set[Name] = field(default_factory=set)
    finalized: set[Name] = field(default_factory=set)
    expired: set[Name] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Evidence:
    """All that a run leaves behind."""

    books: Books
    steps: Mapping[str, list[Step]]
    """The whole audit, a list for each partition; empty where nobody followed it."""
    effects: list[Effect] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    """The replicas' log lines."""
    noise: list[str] = field(default_factory=list)
    """What replicas wrote that is no log line."""
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    heads: set[Name] = field(default_factory=set)
    """The heads of the source: each must have come to an end."""
    observed: set[str] = field(default_factory=set)
    drained: bool | None = None
    ended: str = ""


def effects_in(directory: Path) -> list[Effect]:
    """The effects of every process; the last line of a killed one may be torn."""
    found: list[Effect] = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                e = json.loads(line)
            except ValueError:
                continue
            found.append(
                Effect(
                    e["step"],
                    e["at"],
                    Name(e["thread"], e["legacy"]),
                    e["key"],
                    e["fence"],
                    e["attempt"],
                    e["pid"],
                )
            )
    return found


def log_in(paths: Iterable[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """The JSON lines of the replicas, and whatever else they wrote."""
    lines: list[dict[str, Any]] = []
    noise: list[str] = []
    for path in paths:
        text = path.read_text("utf-8", "replace")
        complete = text.endswith("\n")
        rows = text.splitlines()
        for n, row in enumerate(rows):
            try:
                lines.append(json.loads(row))
            except ValueError:
                if row.startswith(STORE_AWAY):
                    continue
                if complete or n < len(rows) - 1:
                    noise.append(f"{path.name}: {row[:300]}")
    return lines, noise


def check(evidence: Evidence) -> list[str]:
    """Every violation, in words; nothing is the good answer."""
    rows = evidence.books.rows
    steps = [step for part in evidence.steps.values() for step in part]
    return [
        *(f"store: {broken}" for part in evidence.books.parts for broken in part.broken),
        *(f"store: an unknown key {key!a}" for key in evidence.books.strangers),
        *_links(rows),
        *_indexes(evidence.books),
        *_counters(evidence.books),
        *_leases(evidence.books),
        *_copies(evidence.books),
        *(_audit(evidence) if steps else ()),
        *_effects(rows, evidence.effects, partitions=len(evidence.books.parts)),
        *_reports(rows, steps, evidence.log),
        *_told(rows, evidence.acknowledged),
        *_ends(rows, evidence),
        *sorted(evidence.observed),
        *(f"noise: {line}" for line in evidence.noise[:20]),
    ]


def _links(rows: Mapping[Name, Row]) -> Iterable[str]:
    became: dict[Name, list[Name]] = defaultdict(list)
    for name, row in rows.items():
        if row.line == "l" and row.state == "m":
            new = Name(name.thread, row.became)
            became[new].append(name)
            other = rows.get(new)
            if other is None:
                yield f"orphan link: {name} became {row.became!a}, which is not registered"
            elif other.line != "k" or other.state not in ("f", "e"):
                yield f"link: {name} became {row.became!a}, which is {other.line} {other.word}"
            elif other.replay_of != name.checkpoint:
                yield f"link: {name} became {row.became!a}, a replay of {other.replay_of!a}"
            elif row.lease and other.created != row.created:  # linked by a commit, not by hand
                yield f"link: {name} became younger or older than it was"
        elif row.became:
            yield f"link: {name} is {row.word} and has a link"
        if row.line == "k" and row.replay_of:
            old = rows.get(Name(name.thread, row.replay_of))
            if old is None or old.state != "m" or old.became != name.checkpoint:
                yield f"orphan ref: {name} is a replay of {row.replay_of!a}, which has no such link"
    for new, olds in became.items():
        if len(olds) > 1:
            yield f"links: {len(olds)} refs became {new}"


def _indexes(books: Books) -> Iterable[str]:
    for part in books.parts:
        rows = part.rows
        due = {n for n, r in rows.items() if r.line == "l" and r.state in CLAIMABLE and not r.hold}
        expected = {
            "open": {n for n, r in rows.items() if r.state == "o"},
            "due": due,
            "unfinished": {n for n, r in rows.items() if r.line == "l" and r.state in UNFINISHED},
            "quarantined": {n for n, r in rows.items() if r.state == "q"},
        }
        for index, names in expected.items():
            kept = getattr(part, index)
            for name in sorted(names - kept)[:5]:
                yield f"index: {name} is {rows[name].word} and not in {index}"
            for name in sorted(kept - names)[:5]:
                what = rows[name].word if name in rows else "unknown"
                yield f"index: {name} is {what} and in {index}"


def _counters(books: Books) -> Iterable[str]:
    for part in books.parts:
        found: Counter[str] = Counter()
        for row in part.rows.values():
            line = "legacy" if row.line == "l" else "kernel"
            found[f"{line}:{row.word}"] += 1
            if row.state == "q":
                found[f"blocked:{row.code}"] += 1
        kept = {
            name: value
            for name, value in part.counters.items()
            if name.startswith(("legacy:", "kernel:", "blocked:")) and value
        }
        if kept != dict(found):
            differ = {
                n: (kept.get(n, 0), found[n]) for n in kept | found if kept.get(n) != found[n]
            }
            yield f"counters of partition {part.number}, kept and found: {differ}"


def _leases(books: Books) -> Iterable[str]:
    for key, ttl in books.leases.items():
        if ttl == -1:
            yield f"lease: {key!a} has no TTL"


def _copies(books: Books) -> Iterable[str]:
    epoch = books.meta.get("epoch", "0")
    for part in books.parts:
        if part.control.get("epoch", "0") != epoch:
            yield f"control: partition {part.number} carries {part.control.get('epoch')} of {epoch}"
        elif part.control.get("frozen", "") != books.meta.get("frozen", ""):
            yield f"control: partition {part.number} is frozen otherwise than declared"


def _audit(evidence: Evidence) -> Iterable[str]:
    rows = evidence.books.rows
    expiries: Counter[str] = Counter()
    state: dict[Name, str] = {}
    for part, (key, steps) in zip(evidence.books.parts, evidence.steps.items(), strict=True):
        if len(steps) != part.counters.get("audited", 0):
            audited = part.counters.get("audited", 0)
            yield f"audit: {key} has {len(steps)} entries and counts {audited}"
        holder: dict[Name, str] = {}
        for step in steps:
            if step.event == "counters_mended":
                yield f"counters: a recount had to mend them in partition {part.number}"
                continue
            name = step.name
            before = state.get(name, "")
            if step.was != before:
                yield f"audit: {name} was {before!r}, and {step.event} found it {step.was!r}"
            if (step.was, step.became) not in LEGAL:
                yield f"audit: {name} went from {step.was!r} to {step.became!r} ({step.event})"
            if step.was == "finalized" and step.became == "expired" and "crash" in step.reason:
                yield f"expiry: {name} was finalized and expired as crashed by {step.by}"
            if step.event == "ref_claimed":
                holder[name] = step.by
            own = step.event in HOLDERS_OWN or (
                step.event == "ref_quarantined"
                and step.was == "replaying"
                and step.reason != "attempts_exhausted"
            )
            if own and step.was == "replaying" and holder.get(name) != step.by:
                yield (
                    f"lease: {step.event} of {name} by {step.by}, while {holder.get(name)} held it"
                )
            if step.event == "ref_expired":
                expiries[_kind(step.reason)] += 1
            state[name] = step.became
    for name, row in rows.items():
        if state.get(name) != row.word:
            yield f"audit: {name} is {row.word}, and its last step says {state.get(name)!r}"
    kept = Counter(
        {k.removeprefix("expired:"): v for k, v in evidence.books.counted("expired:").items()}
    )
    if kept != expiries:
        yield f"expiries: the store counts {dict(kept)} and the audit has {dict(expiries)}"


def _kind(reason: str) -> str:
    if reason.startswith("crash-expiry"):
        return "crash"
    return "superseded" if reason.startswith("superseded") else "operator"


def _effects(rows: Mapping[Name, Row], effects: list[Effect], *, partitions: int) -> Iterable[str]:
    highest: dict[Name, int] = {}
    keys: dict[Name, set[str]] = defaultdict(set)
    fences: dict[tuple[int, int], set[Name]] = defaultdict(set)
    for effect in effects:
        highest[effect.name] = max(highest.get(effect.name, 0), effect.fence)
        keys[effect.name].add(effect.key)
        partition = zlib.crc32(effect.name.thread.encode()) % partitions
        fences[partition, effect.fence].add(effect.name)
    for (partition, fence), names in fences.items():
        if len(names) > 1:
            yield f"lease: fence {fence} of partition {partition} was issued for {len(names)} refs"
    for name, used in keys.items():
        if len(used) > 1:
            yield f"effects: {name} was replayed under {len(used)} keys"
        row = rows.get(name)
        if row is None:
            yield f"effects: {name} was replayed and is not registered"
            continue
        if row.state == "m":
            if row.became not in used:
                yield f"effects: {name} became {row.became!a}, which no replay made"
            if row.fence is not None and row.fence < highest[name]:
                yield (
                    f"lease: {name} was linked under fence {row.fence}, "
                    f"after fence {highest[name]} had been issued"
                )
        if row.state in ("q", "w", "r") and row.detail.startswith("fence "):
            told = int(row.detail.split()[1])
            if row.fence is not None and told < row.fence:
                yield f"lease: {name} was failed under fence {told} while {row.fence} held it"
    for name, row in rows.items():
        if row.line == "l" and row.state == "m" and name not in keys and row.lease and effects:
            yield f"effects: {name} is migrated and nothing replayed it"


def _reports(
    rows: Mapping[Name, Row], steps: list[Step], log: list[dict[str, Any]]
) -> Iterable[str]:
    expired = Counter(
        step.name for step in steps if step.event == "ref_expired" and _kind(step.reason) == "crash"
    )
    told: Counter[Name] = Counter()
    migrated: Counter[Name] = Counter()
    for line in log:
        name = Name(str(line.get("thread_id", "")), str(line.get("checkpoint_id", "")))
        match line.get("event"):
            case "ref_expired":
                told[name] += 1
            case "ref_migrated":
                migrated[name] += 1
            case "counters_mended":
                yield f"counters: mended, says a replica: {line}"
        if line.get("exception") or line.get("exc_info"):
            yield f"log: {line.get('event')}: {str(line.get('exception'))[-300:]}"
    for name, times in told.items():
        if steps and times > expired[name]:
            yield f"reports: {name} expired {expired[name]} times and was reported {times} times"
    for name, times in migrated.items():
        if times > 1:
            yield f"reports: {name} was reported as migrated {times} times"
        if name in rows and rows[name].state != "m":
            yield f"reports: {name} was reported as migrated and is {rows[name].word}"


def _told(rows: Mapping[Name, Row], told: Acknowledged) -> Iterable[str]:
    yield from told.findings
    for name in told.registered:
        if name not in rows:
            yield f"lost: {name} was registered, and the store does not know it"
    for name in told.finalized:
        if name in rows and rows[name].state in ("o", "e"):
            yield f"lost: {name} was finalized, and is {rows[name].word}"
    for name in told.expired:
        if name in rows and rows[name].state != "e":
            yield f"revived: {name} was expired, and is {rows[name].word}"


def _ends(rows: Mapping[Name, Row], evidence: Evidence) -> Iterable[str]:
    for name in evidence.heads:
        row = rows.get(name)
        if row is None:
            yield f"lost: the head {name} of the source was never registered"
        elif evidence.drained is not None and row.state not in ("m", "w", "e"):
            yield f"end: the head {name} is still {row.word}"
    if evidence.drained is False:
        yield f"end: the drain did not reach its end: {evidence.ended}"
