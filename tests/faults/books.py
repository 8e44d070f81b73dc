"""The store as it lies there, read without a line of the package that wrote it.

A parser of its own: what the checker finds must not rest on the code that it checks.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from typing_extensions import override

SEP = "\x1f"
REFS_SEP = "\x1e"
STATES = {
    "o": "open",
    "p": "pending",
    "x": "replaying",
    "r": "retryable",
    "q": "quarantined",
    "w": "waived",
    "m": "migrated",
    "e": "expired",
    "f": "finalized",
}
UNFINISHED = frozenset("opxrq")
CLAIMABLE = frozenset("pxr")


class Name(NamedTuple):
    """A ref."""

    thread: str
    checkpoint: str

    @override
    def __str__(self) -> str:
        return f"{self.thread!a} {self.checkpoint!a}"


@dataclass(frozen=True, slots=True)
class Row:
    """A ref's record, field by field as the layout's first version has them."""

    state: str
    line: str
    created: str
    opened: str
    by: str
    reason: str
    code: str
    detail: str
    attempts: int
    lease: str
    became: str
    replay_of: str
    hold: str
    kind: str

    @classmethod
    def parsed(cls, raw: bytes) -> Row:
        fields = raw.decode().split(SEP)
        assert fields[0] == "1", f"the layout's version is {fields[0]!a}"
        assert len(fields) <= 23, f"a record has {len(fields)} fields"
        fields += [""] * (23 - len(fields))
        return cls(
            state=fields[1],
            line=fields[2],
            created=fields[3],
            opened=fields[4],
            by=fields[6],
            reason=fields[7],
            code=fields[8],
            detail=fields[9],
            attempts=int(fields[10] or 0),
            lease=fields[11],
            became=fields[12],
            replay_of=fields[17],
            hold=fields[19],
            kind=fields[22],
        )

    @property
    def fence(self) -> int | None:
        """The fence of the last lease that the record knows."""
        return int(self.lease.split(":")[0]) if self.lease else None

    @property
    def word(self) -> str:
        return STATES[self.state]


class Step(NamedTuple):
    """One transition, as the audit has it."""

    id: str
    event: str
    name: Name
    was: str
    became: str
    by: str
    reason: str


def steps_of(entry: Any) -> list[Step]:
    """What a stream's entry tells of: one transition, of each of the refs that it names."""
    at, raw = entry
    got = {key.decode(): value.decode("utf-8", "replace") for key, value in raw.items()}
    return [
        Step(
            at.decode(), got["event"], _named(ref), got["from"], got["to"], got["by"], got["reason"]
        )
        for ref in got["refs"].split(REFS_SEP)
    ]


@dataclass(slots=True)
class Part:
    """One partition."""

    number: int
    open: set[Name] = field(default_factory=set)
    due: set[Name] = field(default_factory=set)
    unfinished: set[Name] = field(default_factory=set)
    quarantined: set[Name] = field(default_factory=set)
    counters: dict[str, int] = field(default_factory=dict)
    control: dict[str, str] = field(default_factory=dict)
    rows: dict[Name, Row] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Books:
    """Everything of one registry."""

    meta: dict[str, str]
    parts: list[Part]
    leases: dict[str, int]
    """Every key that is a lease or a turn, with its remaining milliseconds; -1 has none."""
    strangers: list[str]
    """Keys of the registry that are none of the kinds it has."""

    @property
    def rows(self) -> dict[Name, Row]:
        return {name: row for part in self.parts for name, row in part.rows.items()}

    def count(self, field_name: str) -> int:
        return sum(part.counters.get(field_name, 0) for part in self.parts)

    def counted(self, prefix: str) -> Counter[str]:
        """The counters whose names begin so, summed over the partitions, without zeros."""
        found: Counter[str] = Counter()
        for part in self.parts:
            for name, value in part.counters.items():
                if name.startswith(prefix) and value:
                    found[name] += value
        return found


async def read_books(client: Any, namespace: str, partitions: int) -> Books:
    """Read everything, by ``SCAN`` and plain reads, while nobody writes."""
    keys = [
        key
        async for key in client.scan_iter(match=f"{{{namespace}:*", count=1000)
        if key.startswith(f"{{{namespace}:".encode())
    ]
    meta = _texts(await client.hgetall(f"{{{namespace}:meta}}"))
    parts = [Part(p) for p in range(partitions)]
    for part in parts:
        tag = f"{{{namespace}:{part.number}}}"
        for index in ("open", "due", "unfinished", "quarantined"):
            setattr(part, index, {_name(m) for m in await client.zrange(f"{tag}:{index}", 0, -1)})
        counters = await client.hgetall(f"{tag}:counters")
        part.counters = {k.decode(): int(v) for k, v in counters.items()}
        part.control = _texts(await client.hgetall(f"{tag}:control"))
    leases: dict[str, int] = {}
    strangers: list[str] = []
    for key in sorted(set(keys)):
        tag, _, rest = key.decode()[1:].partition("}:")
        place = tag.removeprefix(f"{namespace}:")
        kind, _, rest = rest.partition(":")
        if kind in ("lease", "turn"):
            leases[key.decode()] = int(await client.pttl(key))
        elif kind == "thread":
            part = parts[int(place)]
            _read_thread(part, rest, await client.hgetall(key), partitions)
        elif kind not in (
            "",
            *("open", "due", "unfinished", "quarantined", "counters", "control", "audit"),
            *("turns", "passes"),
        ):
            strangers.append(key.decode())
    return Books(meta, parts, {k: v for k, v in leases.items() if v != -2}, strangers)


def _read_thread(part: Part, thread: str, fields: dict[bytes, bytes], partitions: int) -> None:
    if zlib.crc32(thread.encode()) % partitions != part.number:
        part.broken.append(f"thread {thread!a} lies in partition {part.number}, not in its own")
    for raw_name, raw in fields.items():
        if raw_name.startswith(b"c"):
            name = Name(thread, raw_name[1:].decode())
            try:
                part.rows[name] = Row.parsed(raw)
            except (AssertionError, ValueError) as error:
                part.broken.append(f"{name}: {error}")


def audit_keys(namespace: str, partitions: int) -> list[str]:
    """The streams of the partitions."""
    return [f"{{{namespace}:{p}}}:audit" for p in range(partitions)]


def _name(member: bytes) -> Name:
    return _named(member.decode())


def _named(member: str) -> Name:
    thread, _, checkpoint = member.partition(SEP)
    return Name(thread, checkpoint)


def _texts(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode("utf-8", "replace") for k, v in raw.items()}
