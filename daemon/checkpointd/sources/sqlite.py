"""The source for files of LangGraph's SQLite saver: ``sqlite:///absolute/path``."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from checkpointd.domain.errors import SourceUnreachableError
from checkpointd.domain.head import causal_leaf
from checkpointd.domain.legacy import HeadReading, LegacyState, SourcePage, ThreadSketch
from checkpointd.sources.decode import decoder_is_installed
from checkpointd.sources.langgraph import LangGraphReader
from checkpointd.sources.sqlite_file import SqliteFile
from checkpointd.sources.sqlite_rows import ForeignSchemaError, SqliteRows

_T = TypeVar("_T")


class SqliteSource:
    """One SQLite file, read by one connection in worker threads, one question at a time.

    Each question is one read transaction: a head and its writes are of one moment. The
    file is opened by the first question, so a daemon starts while its source is away.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_record: int,
        breakpoints: tuple[str, ...] = (),
        messages_channel: str = "messages",
        busy_timeout_s: float = 5.0,
    ) -> None:
        self._identity = f"sqlite://{path.absolute()}"
        self._file = SqliteFile(
            path.absolute(), where=self._identity, busy_timeout_s=busy_timeout_s
        )
        self._max_record = max_record
        self._breakpoints = breakpoints
        self._messages_channel = messages_channel
        self._one_at_a_time = threading.Lock()

    @property
    def identity(self) -> str:
        """The path as it was given; a symlink keeps its own name, so what it points to may move."""
        return self._identity

    async def page(self, after: str, limit: int) -> SourcePage:
        """Up to ``limit`` threads above ``after``; nothing is decoded."""
        if limit < 1:
            raise ValueError(f"a page of {limit} threads was asked for; ask for one at least")
        return await asyncio.to_thread(self._asked, lambda rows: _page(rows, after, limit))

    async def head(self, thread_id: str) -> HeadReading | None:
        return await asyncio.to_thread(self._asked, lambda rows: self._reader(rows).head(thread_id))

    async def state(self, thread_id: str, checkpoint_id: str) -> LegacyState | None:
        return await asyncio.to_thread(
            self._asked, lambda rows: self._reader(rows).state(thread_id, checkpoint_id)
        )

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _reader(self, rows: SqliteRows) -> LangGraphReader:
        return LangGraphReader(
            rows,
            max_record=self._max_record,
            breakpoints=self._breakpoints,
            messages_channel=self._messages_channel,
        )

    def _asked(self, question: Callable[[SqliteRows], _T]) -> _T:
        """Answer ``question`` from one read transaction. Runs in a worker thread."""
        if not decoder_is_installed():
            raise SourceUnreachableError(
                self._identity,
                "the package ormsgpack is missing; install checkpointd with the extra langgraph",
            )
        with self._one_at_a_time:
            try:
                connection = self._file.connection()
                connection.execute("BEGIN")
                try:
                    return question(SqliteRows(connection, max_record=self._max_record))
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._file.close()
                raise self._file.failed(error) from error
            except ForeignSchemaError as error:
                raise SourceUnreachableError(
                    self._identity, f"{error}; check source.url"
                ) from error

    def _close(self) -> None:
        with self._one_at_a_time:
            self._file.close()


def _page(rows: SqliteRows, after: str, limit: int) -> SourcePage:
    ids = rows.thread_ids(after, limit + 1)
    # An empty id would be the beginning again if a page ended with it.
    more = len(ids) > limit
    kept = ids if ids[:1] == [""] else ids[:limit]
    sketches = []
    for thread_id in kept:
        links = rows.links(thread_id, "")
        sketches.append(
            ThreadSketch(
                thread_id=thread_id,
                head_id=causal_leaf(links),
                checkpoint_ids=frozenset(own for own, _ in links),
            )
        )
    return SourcePage(threads=tuple(sketches), next_after=kept[-1] if more else None)
