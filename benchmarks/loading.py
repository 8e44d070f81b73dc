"""Registries of any size, written past the registry's own scripts, in seconds.

What is written is what the scripts would have left, but for the audit: records as the codec reads
them, the indexes, and the counters. ``benchmarks.status`` recounts what it loaded by the
registry's own recount, so that a layout which has moved on is noticed.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from checkpointd.registry.codec import FIELDS, RECORD_VERSION
from checkpointd.registry.keys import Keys, member

THREAD_REFS = 10
"""Settled refs a thread: a conversation of ten turns."""

CREATED_US = 1_750_000_000_000_000
"""When all that is loaded began: long before any grace."""

Command = Sequence[str | int | bytes]


def record(**fields: str) -> str:
    """A record with these fields, the others empty, as the scripts pack it."""
    values = {"version": RECORD_VERSION, **fields}
    return "\x1f".join(values.get(name, "") for name in FIELDS).rstrip("\x1f")


def send(path: str, commands: Iterable[Command], *, db: int = 0) -> None:
    """Send many commands at once and wait until all have been done."""
    rest = iter(commands)
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(path)
        answers = wire.makefile("rb")
        batch: list[Command] = [("SELECT", db)]
        while batch:
            wire.sendall(b"".join(_packed(command) for command in batch))
            for _ in batch:
                answer = answers.readline()
                if not answer.startswith((b":", b"+")):
                    raise RuntimeError(f"the loader was answered {answer!r}")
            batch = list(islice(rest, 1000))


def _packed(command: Command) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    for word in command:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(parts)


def counted(keys: Keys, counts: dict[int, Counter[str]], sign: int = 1) -> Iterator[Command]:
    """The counters of each partition, raised or lowered."""
    for partition, fields in counts.items():
        for name, number in fields.items():
            yield ("HINCRBY", keys.all[partition].counters, name, sign * number)


def settled(keys: Keys, refs: int) -> Iterator[Command]:
    """So many settled refs, ten a thread: half of them migrated with what they became."""
    counts: dict[int, Counter[str]] = {p: Counter() for p in range(keys.partitions)}
    half = THREAD_REFS // 2
    done = record(state="f", line="k", created=str(CREATED_US), changed=str(CREATED_US), by="load")
    for number in range(refs // THREAD_REFS):
        thread = f"settled-{number}"
        command: list[str | int | bytes] = ["HSET", keys.thread(thread)]
        for turn in range(half):
            migrated = record(
                state="m",
                line="l",
                created=str(CREATED_US),
                changed=str(CREATED_US),
                by="load",
                attempts="1",
                became=f"k{number}-{turn}",
                boundary="b1",
                linked=str(CREATED_US),
            )
            command += (f"cl{number}-{turn}", migrated, f"ck{number}-{turn}", done)
        counts[keys.index(thread)].update(
            {"legacy:migrated": half, "kernel:finalized": half, "transitions": half}
        )
        yield command
    yield from counted(keys, counts)


def overdue(keys: Keys, threads: Sequence[str]) -> Iterator[Command]:
    """One open kernel ref for each thread, its crash window begun long ago."""
    counts: dict[int, Counter[str]] = {p: Counter() for p in range(keys.partitions)}
    window = record(state="o", line="k", created=str(CREATED_US), opened=str(CREATED_US))
    for thread in threads:
        counts[keys.index(thread)]["kernel:open"] += 1
        yield ("HSET", keys.thread(thread), "copen", window)
        yield ("ZADD", keys.of(thread).open, CREATED_US, member(thread, "open"))
    yield from counted(keys, counts)


def expired_again(keys: Keys, threads: Sequence[str]) -> Iterator[Command]:
    """Take away what ``overdue`` brought and a pass expired, so that the size stays."""
    counts: dict[int, Counter[str]] = {p: Counter() for p in range(keys.partitions)}
    for thread in threads:
        counts[keys.index(thread)].update({"kernel:expired": 1, "expired:crash": 1})
        yield ("DEL", keys.thread(thread))
    yield from counted(keys, counts, sign=-1)


def due(keys: Keys, threads: Sequence[str]) -> Iterator[Command]:
    """One legacy ref for each thread that a drain may claim now, with its boundary marked."""
    counts: dict[int, Counter[str]] = {p: Counter() for p in range(keys.partitions)}
    pending = record(state="p", line="l", created=str(CREATED_US), boundary="b1")
    boundary = "\x1f".join((RECORD_VERSION, "1", "l", str(CREATED_US), "0" * 64))
    for thread in threads:
        at, name = keys.of(thread), member(thread, "legacy")
        counts[keys.index(thread)].update({"legacy:pending": 1, "transitions": 1, "births": 1})
        yield ("HSET", keys.thread(thread), "clegacy", pending, "bb1", boundary, ">l", "b1")
        yield ("ZADD", at.due, CREATED_US, name)
        yield ("ZADD", at.unfinished, CREATED_US, name)
    yield from counted(keys, counts)
