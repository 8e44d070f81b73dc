"""The rows of LangGraph's SQLite saver, of its present schema and of the ones before.

Ids are passed as bytes and compared as text, so an id that is not valid UTF-8 is found
again under the name that it was listed by.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from checkpointd.sources.rows import Cell, CheckpointRow, WriteRow

_TEXT = "CAST(? AS TEXT)"
_CHECKPOINTS: Mapping[str, tuple[str, ...]] = {
    "thread_id": ("thread_id",),
    "namespace": ("checkpoint_ns", "''"),
    "checkpoint_id": ("checkpoint_id", "thread_ts"),
    "parent_id": ("parent_checkpoint_id", "parent_ts", "NULL"),
    "type": ("type", "NULL"),
    "checkpoint": ("checkpoint",),
    "metadata": ("metadata", "NULL"),
}
_WRITES: Mapping[str, tuple[str, ...]] = {
    "thread_id": ("thread_id",),
    "namespace": ("checkpoint_ns", "''"),
    "checkpoint_id": ("checkpoint_id", "thread_ts"),
    "task_id": ("task_id",),
    "task_path": ("task_path", "''"),
    "idx": ("idx", "0"),
    "channel": ("channel",),
    "type": ("type", "NULL"),
    "value": ("value", "blob"),
}
"""What is read, and what each schema calls it; a literal where a schema has nothing."""


class ForeignSchemaError(ValueError):
    """The file is a SQLite database, but no LangGraph saver wrote it."""


class SqliteRows:
    """``RawRows`` over one connection, and the paged queries over thread ids."""

    def __init__(self, connection: sqlite3.Connection, *, max_record: int) -> None:
        self._connection = connection
        self._max_record = max_record
        self._c = _layout(connection, "checkpoints", _CHECKPOINTS)
        has_writes = bool(_columns(connection, "writes"))
        self._w = _layout(connection, "writes", _WRITES) if has_writes else {}

    def thread_ids(self, after: str, limit: int) -> list[str]:
        """Up to ``limit`` ids above ``after``, in order; each is found by one step in the index.

        Not ``SELECT DISTINCT``, which walks over every checkpoint of every thread.
        """
        # Text sorts below every blob, so an id that is no text does not come into it.
        step = (
            "(SELECT thread_id FROM checkpoints WHERE thread_id {op} {bound} AND thread_id < x'' "
            "ORDER BY thread_id LIMIT 1)"
        )
        first = step.format(op=">" if after else ">=", bound=_TEXT)
        following = step.format(op=">", bound="found.id")
        query = (
            f"WITH RECURSIVE found(id) AS (SELECT {first} UNION ALL SELECT {following} "  # noqa: S608
            "FROM found WHERE found.id IS NOT NULL) SELECT id FROM found WHERE id IS NOT NULL LIMIT ?"
        )
        return [str(row[0]) for row in self._connection.execute(query, (_bytes(after), limit))]

    def links(self, thread_id: str, namespace: str) -> Sequence[tuple[str, str | None]]:
        c = self._c
        query = (
            f"SELECT {c['checkpoint_id']}, {c['parent_id']} FROM checkpoints "  # noqa: S608
            f"WHERE {c['thread_id']} = {_TEXT} AND {c['namespace']} = {_TEXT}"
        )
        rows = self._connection.execute(query, (_bytes(thread_id), _bytes(namespace)))
        return [(_id(own), _id(parent) or None) for own, parent in rows]

    def namespaces(self, thread_id: str) -> Sequence[str]:
        c = self._c
        query = (
            f"SELECT DISTINCT {c['namespace']} FROM checkpoints "  # noqa: S608
            f"WHERE {c['thread_id']} = {_TEXT}"
        )
        return [_id(row[0]) for row in self._connection.execute(query, (_bytes(thread_id),))]

    def checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str
    ) -> CheckpointRow | None:
        c = self._c
        query = (
            f"SELECT {c['parent_id']}, {c['type']}, {_bounded(c['checkpoint'])}, "  # noqa: S608
            f"{_bounded(c['metadata'])} FROM checkpoints WHERE {c['thread_id']} = {_TEXT} "
            f"AND {c['namespace']} = {_TEXT} AND {c['checkpoint_id']} = {_TEXT}"
        )
        key = (_bytes(thread_id), _bytes(namespace), _bytes(checkpoint_id))
        row = self._connection.execute(query, (self._max_record, self._max_record, *key)).fetchone()
        if row is None:
            return None
        parent, kind, blob, size, metadata, metadata_size = row
        return CheckpointRow(
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            parent_id=_id(parent) or None,
            checkpoint=_cell(kind, blob, size),
            metadata=_cell(None, metadata, metadata_size),
        )

    def writes(self, thread_id: str, namespace: str, checkpoint_id: str) -> Sequence[WriteRow]:
        if not self._w:
            return []
        w = self._w
        query = (
            f"SELECT {w['task_id']}, {w['task_path']}, {w['idx']}, {w['channel']}, {w['type']}, "  # noqa: S608
            f"{_bounded(w['value'])} FROM writes WHERE {w['thread_id']} = {_TEXT} "
            f"AND {w['namespace']} = {_TEXT} AND {w['checkpoint_id']} = {_TEXT}"
        )
        key = (_bytes(thread_id), _bytes(namespace), _bytes(checkpoint_id))
        return [
            WriteRow(
                task_id=_id(task_id),
                task_path=_id(path),
                index=index if isinstance(index, int) else 0,
                channel=_id(channel),
                value=_cell(kind, blob, size),
            )
            for task_id, path, index, channel, kind, blob, size in self._connection.execute(
                query, (self._max_record, *key)
            )
        ]


def _layout(
    connection: sqlite3.Connection, table: str, wanted: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """What each column is called in this file."""
    there = _columns(connection, table)
    if not there:
        raise ForeignSchemaError(f"it has no table {table!r}, so no LangGraph saver wrote it")
    layout = {}
    for meaning, names in wanted.items():
        found = next((name for name in names if name in there or not name.isidentifier()), None)
        if found is None and "NULL" not in names:
            raise ForeignSchemaError(
                f"its table {table!r} has no column {names[0]!r}, so no LangGraph saver wrote it"
            )
        layout[meaning] = found or "NULL"
    return layout


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _bounded(column: str) -> str:
    """A value's bytes, unless there are more than the limit (one parameter), and its size."""
    size = (
        f"CASE typeof({column}) WHEN 'blob' THEN length({column}) "
        f"WHEN 'text' THEN length(CAST({column} AS BLOB)) ELSE -1 END"
    )
    return f"CASE WHEN {size} <= ? THEN CAST({column} AS BLOB) END, {size}"


def _cell(kind: object, blob: object, size: int) -> Cell:
    sound = isinstance(blob, bytes) and size >= 0
    return Cell(_id(kind) or None, blob if sound and isinstance(blob, bytes) else None, size)


def _id(value: object) -> str:
    """A column that should be text, as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return "" if value is None else str(value)


def _bytes(text: str) -> bytes:
    """The bytes that ``text`` was read from. Surrogates of no byte are kept apart from all."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
