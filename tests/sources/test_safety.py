"""Nothing that a row names is imported or run, and no row makes the reading raise."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpointd import sample
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.messages import convert
from checkpointd.sources.langgraph import LangGraphReader
from checkpointd.sources.sqlite_rows import SqliteRows

_READ_EVERYTHING = """
    import asyncio, json, sys

    from checkpointd.sources.opening import open_source

    path, forbidden = sys.argv[1], ("os.system", "subprocess.Popen", "os.exec", "pickle.find_class")
    seen = []

    def watch(event, args):
        if event.startswith(forbidden) or (event == "import" and args[0] == "planted_module"):
            seen.append(event)

    async def read():
        source = open_source("sqlite://" + path)
        verdicts = {}
        for sketch in (await source.page("", 1000)).threads:
            reading = await source.head(sketch.thread_id)
            verdicts[sketch.thread_id] = reading.head.verdict
        await source.aclose()
        return verdicts

    sys.addaudithook(watch)
    verdicts = asyncio.run(read())
    families = ("langgraph", "langchain_core", "langchain", "langsmith", "pickle5", "numpy")
    loaded = sorted({m.partition(".")[0] for m in sys.modules} & set(families))
    print(json.dumps({"verdicts": verdicts, "seen": seen, "loaded": loaded}))
"""


def read_in_a_process(path: Path) -> Any:
    import json

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_READ_EVERYTHING), str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestNothingIsRun:
    def test_no_library_of_the_graphs_is_imported(self, sample_file: Path) -> None:
        told = read_in_a_process(sample_file)
        assert len(told["verdicts"]) == 25
        assert told["loaded"] == []

    def test_a_planted_row_runs_nothing(self, store: Any, build: Any, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        command = f"touch {mark}"
        planted = [
            build.named("os", "system", command, code=0),
            build.named("os", "system", [command], code=1),
            build.named("planted_module", "Thing", {"content": "x", "type": "human"}),
        ]
        for number, value in enumerate(planted):
            store.checkpoint(f"in-channel-{number}", messages=[build.human()], values={"x": value})
            store.checkpoint(f"as-message-{number}", messages=[build.human(), value])
        store.checkpoint("json", kind="json", blob=_json_constructor(build, command))
        store.checkpoint("pickled", kind="pickle", blob=b"cos\nsystem\n(S'touch x'\ntR.")
        told = read_in_a_process(store.path)
        assert told["seen"] == []
        assert not mark.exists()
        assert told["verdicts"]["in-channel-0"] == Verdict.CLOSED
        assert told["verdicts"]["as-message-2"] == Verdict.CLOSED
        assert told["verdicts"]["pickled"] == Verdict.UNREADABLE


def _json_constructor(build: Any, command: str) -> bytes:
    call = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [command]}
    return bytes(build.json({"channel_values": {"messages": [call], "x": call}}))


def _mutated(blob: bytes, edits: list[tuple[int, int]]) -> bytes:
    raw = bytearray(blob)
    for place, byte in edits:
        if raw:
            raw[place % len(raw)] = byte
    return bytes(raw)


class TestNothingRaises:
    """Every reading of damaged rows ends in a state, never in an error."""

    edits = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8)

    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_on_rows_with_bytes_changed(self, data: Any) -> None:
        connection = sqlite3.connect(":memory:")
        _load_sample(connection)
        rows = connection.execute(
            "SELECT rowid, checkpoint FROM checkpoints WHERE thread_id != 't:_:long'"
        ).fetchall()
        for rowid, blob in data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=6)):
            damaged = data.draw(
                st.one_of(self.edits.map(lambda e, b=blob: _mutated(b, e)), st.binary(max_size=60))
            )
            connection.execute(
                "UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (damaged, rowid)
            )
        written = connection.execute("SELECT rowid, value FROM writes").fetchall()
        for rowid, blob in data.draw(st.lists(st.sampled_from(written), max_size=6)):
            damaged = _mutated(blob or b"\x00", data.draw(self.edits))
            connection.execute("UPDATE writes SET value = ? WHERE rowid = ?", (damaged, rowid))
        rows_read = SqliteRows(connection, max_record=1_000_000)
        reader = LangGraphReader(rows_read, max_record=1_000_000)
        for thread_id in rows_read.thread_ids("", 100):
            if thread_id == "t:_:long":
                continue
            reading = reader.head(thread_id)
            assert reading is not None
            assert reading.head.checkpoint_id
            assert reading.head.created_at.tzinfo is not None
        connection.close()

    @given(
        values=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(
                        ["type", "role", "content", "tool_calls", "id", "name", "args", "data"]
                    ),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=20,
        )
    )
    def test_on_messages_of_any_shape(self, values: Any) -> None:
        import json

        converted = convert(values if isinstance(values, list) else [values])
        json.dumps([dict(one) for one in converted.messages], allow_nan=False)


def _load_sample(connection: sqlite3.Connection) -> None:
    source = sqlite3.connect(
        f"file:{Path(sample.__file__).parent / sample.FILE_NAME}?mode=ro", uri=True
    )
    source.backup(connection)
    source.close()
