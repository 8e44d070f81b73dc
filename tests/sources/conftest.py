"""Legacy stores built row by row: plain messages in the savers' format, without the savers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkpointd import sample
from checkpointd.sources.langgraph import LangGraphReader
from checkpointd.sources.sqlite_rows import SqliteRows

SCHEMA = """
CREATE TABLE checkpoints (
    thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
    parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
CREATE TABLE writes (
    thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
    task_id TEXT NOT NULL, task_path TEXT NOT NULL DEFAULT '', idx INTEGER NOT NULL,
    channel TEXT NOT NULL, type TEXT, value BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
"""
_CLASSES = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}


def named(module: str, name: str, data: Any, *, code: int = 5) -> Any:
    """A value of a class, as the savers write one."""
    return extension(code, pack((module, name, data, "model_validate_json")))


def extension(code: int, blob: bytes) -> Any:
    """Raw bytes under an extension code, whether or not they can be decoded."""
    return pytest.importorskip("ormsgpack").Ext(code, blob)


def pack(value: Any) -> bytes:
    ormsgpack = pytest.importorskip("ormsgpack")
    return bytes(ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))


def message(kind: str, content: Any = "", **fields: Any) -> Any:
    module = f"langchain_core.messages.{kind}"
    return named(module, _CLASSES[kind], {"content": content, "type": kind, **fields})


def human(content: Any = "hi", **fields: Any) -> Any:
    return message("human", content, **fields)


def ai(content: Any = "", *calls: str, **fields: Any) -> Any:
    stored = [{"name": "f", "args": {"of": one}, "id": one, "type": "tool_call"} for one in calls]
    return message("ai", content, tool_calls=stored, **fields)


def tool(call_id: str, content: Any = "done", **fields: Any) -> Any:
    return message("tool", content, tool_call_id=call_id, **fields)


def send(node: str, argument: Any) -> Any:
    return named("langgraph.types", "Send", (node, argument), code=1)


def interrupt(value: Any, interrupt_id: str = "") -> Any:
    return named("langgraph.types", "Interrupt", {"value": value, "id": interrupt_id}, code=2)


def call(call_id: str) -> dict[str, Any]:
    return {"name": "f", "args": {}, "id": call_id, "type": "tool_call"}


def checkpoint_id(number: int) -> str:
    """Version 6 ids in order: number 1 is a little later than number 0."""
    return f"1f1ed0e3-{number:04x}-6000-8000-000000000000"


@dataclass
class Store:
    """A SQLite file in the saver's schema, filled by hand."""

    path: Path
    connection: sqlite3.Connection
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def checkpoint(
        self,
        thread_id: str = "t:_:x",
        *,
        messages: Any = None,
        values: dict[str, Any] | None = None,
        number: int = 1,
        parent: int | None = None,
        namespace: str = "",
        kind: str = "msgpack",
        blob: bytes | None = None,
        metadata: bytes | None = b'{"step": 7}',
        **fields: Any,
    ) -> str:
        channel_values = dict(values or {})
        if messages is not None:
            channel_values["messages"] = messages
        if blob is None:
            blob = pack(
                {
                    "v": 4,
                    "ts": "2026-11-30T22:34:27.781394+00:00",
                    "id": checkpoint_id(number),
                    "channel_values": channel_values,
                    "channel_versions": dict.fromkeys(channel_values, "1"),
                    **fields,
                }
            )
        self.connection.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                thread_id,
                namespace,
                checkpoint_id(number),
                None if parent is None else checkpoint_id(parent),
                kind,
                blob,
                metadata,
            ),
        )
        self.connection.commit()
        return checkpoint_id(number)

    def write(
        self,
        channel: str,
        value: Any = None,
        thread_id: str = "t:_:x",
        *,
        task: str = "task-1",
        path: str = "~__pregel_pull, node",
        number: int = 1,
        namespace: str = "",
        blob: bytes | None = None,
        kind: str = "msgpack",
    ) -> None:
        key = (thread_id, namespace + str(number) + task)
        self._counts[key] = index = self._counts.get(key, -1) + 1
        self.connection.execute(
            "INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                thread_id,
                namespace,
                checkpoint_id(number),
                task,
                path,
                index,
                channel,
                kind,
                pack(value) if blob is None else blob,
            ),
        )
        self.connection.commit()

    def reader(self, **options: Any) -> LangGraphReader:
        limit = options.setdefault("max_record", 1_000_000)
        return LangGraphReader(SqliteRows(self.connection, max_record=limit), **options)

    def head(self, thread_id: str = "t:_:x", **options: Any) -> Any:
        reading = self.reader(**options).head(thread_id)
        assert reading is not None
        return reading


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "built.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    yield Store(path, connection)
    connection.close()


@pytest.fixture
def sample_file(tmp_path: Path) -> Path:
    """A copy of the sample that a test may do anything with."""
    return sample.copy_to(tmp_path)


@pytest.fixture
def build() -> Any:
    """The builders of values, as attributes: test modules cannot import a conftest."""
    return _Builders


class _Builders:
    named = staticmethod(named)
    extension = staticmethod(extension)
    pack = staticmethod(pack)
    human = staticmethod(human)
    ai = staticmethod(ai)
    tool = staticmethod(tool)
    send = staticmethod(send)
    interrupt = staticmethod(interrupt)
    call = staticmethod(call)
    checkpoint_id = staticmethod(checkpoint_id)
    message = staticmethod(message)

    @staticmethod
    def json(value: Any) -> bytes:
        return json.dumps(value).encode()
