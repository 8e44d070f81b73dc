"""The names of all keys. One partition, one hash tag, so one slot a script.

``P`` partitions hold the threads (``crc32(thread_id) mod P``); one more tag, ``meta``,
holds what is true of the whole store. The tag comes first in every key, so braces
inside ids cannot move a key to another slot.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import NamedTuple

SEP = "\x1f"
"""Parts of a member or a field. Ids hold no control characters, so it cannot be in one."""


def partition_of(thread_id: str, partitions: int) -> int:
    """Which partition a thread lives in; the same in every process and release."""
    return zlib.crc32(thread_id.encode()) % partitions


def member(thread_id: str, checkpoint_id: str) -> str:
    """How an index names a ref."""
    return f"{thread_id}{SEP}{checkpoint_id}"


def split_member(raw: bytes) -> tuple[str, str]:
    """The thread and checkpoint that an index's member names."""
    thread_id, _, checkpoint_id = raw.decode().partition(SEP)
    return thread_id, checkpoint_id


class PartitionKeys(NamedTuple):
    """The keys that every script of a partition is given, in this order: KEYS[1] to KEYS[7]."""

    open: str
    """zset: open refs by the start of their crash window"""
    due: str
    """zset: legacy refs that a drain may claim, by not-before time"""
    unfinished: str
    """zset: legacy refs that stand between the drain and its end, by created_at"""
    quarantined: str
    """zset: quarantined refs, by the time they came there"""
    counters: str
    """hash: refs by state, and the totals that only rise"""
    control: str
    """hash: this partition's copy of the control word"""
    audit: str
    """stream: every transition, bounded"""


class Keys:
    """Names keys for one registry: a namespace and its number of partitions."""

    def __init__(self, namespace: str, partitions: int) -> None:
        self.namespace = namespace
        self.partitions = partitions
        self._tags = [f"{{{namespace}:{p}}}" for p in range(partitions)]
        self.meta = f"{{{namespace}:meta}}"
        self.meta_audit = f"{self.meta}:audit"
        self.meta_passes = f"{self.meta}:passes"
        self.all: tuple[PartitionKeys, ...] = tuple(
            PartitionKeys(*(f"{self.tag(p)}:{name}" for name in PartitionKeys._fields))
            for p in range(partitions)
        )
        self.index = lru_cache(maxsize=4096)(self._index)

    def _index(self, thread_id: str) -> int:
        return partition_of(thread_id, self.partitions)

    def tag(self, partition: int) -> str:
        """The hash tag of a partition."""
        return self._tags[partition]

    def of(self, thread_id: str) -> PartitionKeys:
        """The seven keys of the thread's partition."""
        return self.all[self.index(thread_id)]

    def thread(self, thread_id: str) -> str:
        """hash: the thread's refs (fields ``c…``), boundaries (``b…``) and newest ones (``>…``)."""
        return self.thread_in(self.index(thread_id), thread_id)

    def thread_in(self, partition: int, thread_id: str) -> str:
        """The same, where the thread's partition is known."""
        return f"{self._tags[partition]}:thread:{thread_id}"

    def turns(self, thread_id: str) -> str:
        """hash: the thread's turn states, beside its refs."""
        return f"{self.tag(self.index(thread_id))}:turns:{thread_id}"

    def lease(self, thread_id: str, checkpoint_id: str) -> str:
        """string with a TTL: who replays this ref now."""
        tag = self.tag(self.index(thread_id))
        return f"{tag}:lease:{len(thread_id)}:{thread_id}:{checkpoint_id}"

    def turn_of(self, what: str) -> str:
        """string with a TTL: which replica does this store-wide work now."""
        return f"{self.meta}:turn:{what}"

    def threads_pattern(self) -> str:
        """The SCAN pattern of all threads, for the walks that verify, export and recount."""
        escaped = "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in self.namespace)
        return f"{{{escaped}:*}}:thread:*"

    def thread_of_key(self, key: bytes) -> str:
        """The thread id in a key that ``threads_pattern`` matched."""
        return key.decode().split("}:thread:", 1)[1]
