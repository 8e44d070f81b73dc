"""A LangGraph store as raw rows: what each kind of store has to fetch, and nothing more.

A store implements ``RawRows``; everything that is known about LangGraph's format lives
above it, in ``langgraph``. Nothing here is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Cell:
    """One serialized value: the serializer's word for it, and its bytes."""

    kind: str | None
    """``msgpack``, ``json``, ``null``, ``bytes``, …; ``None`` where the store kept no word."""
    blob: bytes | None
    """``None`` where it is larger than the store was told to fetch, or is no bytes at all."""
    size: int
    """Bytes as stored; -1 for a value that is no bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One checkpoint of one namespace."""

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: Cell
    metadata: Cell
    channels: Mapping[str, Cell] = field(default_factory=dict)
    """Channel values that the store keeps apart from the checkpoint (Postgres does)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRow:
    """One pending write."""

    task_id: str
    task_path: str
    index: int
    channel: str
    value: Cell


class RawRows(Protocol):
    """The rows of a store, blocking, as of one moment for as long as one thread is read.

    A value larger than the configured record size is returned without its bytes, so one
    huge row costs its thread and no memory. A store that cannot be read raises
    ``SourceUnreachableError``.
    """

    def links(self, thread_id: str, namespace: str) -> Sequence[tuple[str, str | None]]:
        """Every checkpoint of the namespace as (id, parent id), in any order."""
        ...

    def namespaces(self, thread_id: str) -> Sequence[str]:
        """Every namespace of the thread that holds a checkpoint; ``""`` is the root."""
        ...

    def checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str
    ) -> CheckpointRow | None:
        """One checkpoint, or ``None`` if it is not there."""
        ...

    def writes(self, thread_id: str, namespace: str, checkpoint_id: str) -> Sequence[WriteRow]:
        """The pending writes kept at one checkpoint, in any order."""
        ...
