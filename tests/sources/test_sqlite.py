"""Files in every condition: read without a trace, or refused with one clear sentence."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from checkpointd.domain.errors import SourceUnreachableError
from checkpointd.domain.legacy import Verdict
from checkpointd.sources import sqlite as sqlite_source
from checkpointd.sources.sqlite import SqliteSource


def source_of(path: Path, **options: Any) -> SqliteSource:
    return SqliteSource(path, max_record=options.pop("max_record", 1_000_000), **options)


async def read_all(path: Path, **options: Any) -> dict[str, Verdict]:
    source = source_of(path, **options)
    try:
        verdicts = {}
        after: str | None = ""
        while after is not None:
            page = await source.page(after, 10)
            for sketch in page.threads:
                reading = await source.head(sketch.thread_id)
                assert reading is not None
                verdicts[sketch.thread_id] = reading.head.verdict
            after = page.next_after
        return verdicts
    finally:
        await source.aclose()


def digests(directory: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()
    }


def into_wal_mode(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


class TestNothingIsChanged:
    async def test_the_bytes_stay_and_nothing_lies_beside_the_file(self, sample_file: Path) -> None:
        before = digests(sample_file.parent)
        await read_all(sample_file)
        assert digests(sample_file.parent) == before

    async def test_a_file_in_wal_mode_gets_no_sidecars(self, sample_file: Path) -> None:
        into_wal_mode(sample_file)
        before = digests(sample_file.parent)
        assert len(before) == 1
        assert len(await read_all(sample_file)) == 25
        assert digests(sample_file.parent) == before

    async def test_a_file_in_wal_mode_is_read_again_when_it_has_changed(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human()])
        store.connection.close()
        into_wal_mode(store.path)
        source = source_of(store.path)
        assert len((await source.page("", 10)).threads) == 1
        with sqlite3.connect(store.path) as connection:
            connection.execute(
                "INSERT INTO checkpoints SELECT 't:_:y', checkpoint_ns, checkpoint_id, NULL, "
                "type, checkpoint, metadata FROM checkpoints"
            )
        connection.close()
        assert len((await source.page("", 10)).threads) == 2
        await source.aclose()

    async def test_a_file_that_its_writer_has_open_in_wal_mode_is_read_in_place(
        self, sample_file: Path
    ) -> None:
        writer = sqlite3.connect(sample_file, isolation_level=None)
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute(
            "UPDATE checkpoints SET thread_id = 't:_:renamed' WHERE thread_id = 't:_:exit'"
        )
        assert "t:_:renamed" in await read_all(sample_file)
        writer.close()

    async def test_what_a_crash_left_unfinished_is_rolled_back_in_a_copy_only(
        self, sample_file: Path, tmp_path: Path
    ) -> None:
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        writer = sqlite3.connect(sample_file, isolation_level=None)
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN")
        writer.execute("DELETE FROM checkpoints")
        for name in (sample_file.name, f"{sample_file.name}-journal"):
            shutil.copyfile(sample_file.parent / name, crashed / name)
        writer.execute("ROLLBACK")
        writer.close()
        before = digests(crashed)
        assert len(await read_all(crashed / sample_file.name)) == 25
        assert digests(crashed) == before

    async def test_a_schema_of_before_task_paths_is_read_and_stays(self, sample_file: Path) -> None:
        with sqlite3.connect(sample_file) as connection:
            connection.execute("ALTER TABLE writes DROP COLUMN task_path")
        connection.close()
        before = digests(sample_file.parent)
        verdicts = await read_all(sample_file)
        assert verdicts["t:_:paused_two"] is Verdict.PAUSED
        assert digests(sample_file.parent) == before

    async def test_the_first_schema_is_read(self, tmp_path: Path, build: Any) -> None:
        path = tmp_path / "first.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute(
                "CREATE TABLE checkpoints (thread_id TEXT, thread_ts TEXT, parent_ts TEXT, "
                "checkpoint BLOB, metadata BLOB, PRIMARY KEY (thread_id, thread_ts))"
            )
            blob = build.json(
                {"v": 1, "ts": "x", "channel_values": {"messages": [["user", "hello"]]}}
            )
            connection.execute(
                "INSERT INTO checkpoints VALUES ('old', ?, NULL, ?, NULL)",
                (build.checkpoint_id(1), blob),
            )
        connection.close()
        assert await read_all(path) == {"old": Verdict.CLOSED}


class TestOneClearSentence:
    async def refusal(self, path: Path, **options: Any) -> str:
        source = source_of(path, **options)
        try:
            with pytest.raises(SourceUnreachableError) as refused:
                await source.page("", 10)
        finally:
            await source.aclose()
        assert "\n" not in str(refused.value)
        return str(refused.value)

    async def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        said = await self.refusal(tmp_path / "none.sqlite")
        assert "no such file; check source.url" in said
        assert not (tmp_path / "none.sqlite").exists()

    async def test_a_directory(self, tmp_path: Path) -> None:
        assert "is a directory" in await self.refusal(tmp_path)

    async def test_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert "no regular file" in await self.refusal(tmp_path / "pipe")

    async def test_a_path_through_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        assert "Not a directory" in await self.refusal(tmp_path / "file" / "db")

    async def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("hello " * 100)
        assert "not a SQLite database" in await self.refusal(tmp_path / "text")

    async def test_a_truncated_file(self, sample_file: Path) -> None:
        os.truncate(sample_file, 100_000)
        assert "truncated" in await self.refusal(sample_file)

    async def test_a_file_cut_within_its_header(self, sample_file: Path) -> None:
        os.truncate(sample_file, 50)
        assert "damaged or truncated" in await self.refusal(sample_file)

    async def test_a_damaged_file(self, sample_file: Path) -> None:
        raw = bytearray(sample_file.read_bytes())
        raw[100:600] = b"\xff" * 500
        sample_file.write_bytes(raw)
        assert "damaged or truncated" in await self.refusal(sample_file)

    async def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        assert "no table 'checkpoints'" in await self.refusal(tmp_path / "empty")

    async def test_a_database_of_something_else(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "other") as connection:
            connection.execute("CREATE TABLE checkpoints (a)")
        connection.close()
        assert "no column 'thread_id'" in await self.refusal(tmp_path / "other")

    async def test_a_file_that_stays_locked(self, sample_file: Path) -> None:
        holder = sqlite3.connect(sample_file, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        said = await self.refusal(sample_file, busy_timeout_s=0.05)
        assert "locked for over 0.05 s" in said
        holder.close()

    async def test_a_file_that_changes_whenever_it_is_copied(
        self, sample_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        into_wal_mode(sample_file)
        copyfile = shutil.copyfile

        def copy_and_disturb(source: Path, target: Path) -> None:
            copyfile(source, target)
            sample_file.write_bytes(sample_file.read_bytes() + b"\x00")

        monkeypatch.setattr(shutil, "copyfile", copy_and_disturb)
        assert "stop its writer" in await self.refusal(sample_file)

    async def test_a_missing_decoder_names_the_extra(
        self, sample_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_source, "decoder_is_installed", lambda: False)
        assert "extra langgraph" in await self.refusal(sample_file)

    async def test_a_source_that_comes_back_is_read_again(
        self, sample_file: Path, tmp_path: Path
    ) -> None:
        source = source_of(sample_file)
        away = sample_file.rename(tmp_path / "away")
        with pytest.raises(SourceUnreachableError):
            await source.page("", 10)
        away.rename(sample_file)
        assert len((await source.page("", 100)).threads) == 25
        await source.aclose()


class TestPages:
    async def test_ids_of_every_kind_are_paged_once(self, store: Any, build: Any) -> None:
        ids = sorted(["", 'a:b{c}|"d" é👩‍💻', "A", "a", "a\x00b", "%", "z" * 600, "\x01"])
        for thread_id in ids:
            store.checkpoint(thread_id, messages=[build.human()])
        source = source_of(store.path)
        for limit in (1, 2, 3, 100):
            seen: list[str] = []
            after: str | None = ""
            while after is not None:
                page = await source.page(after, limit)
                seen += [one.thread_id for one in page.threads]
                after = page.next_after
            assert seen == ids
        for thread_id in ids:
            assert await source.head(thread_id) is not None
        await source.aclose()

    async def test_an_id_that_is_not_utf8_is_listed_and_found(self, store: Any, build: Any) -> None:
        store.checkpoint("x", messages=[build.human()])
        store.connection.execute("UPDATE checkpoints SET thread_id = CAST(x'ff61' AS TEXT)")
        store.connection.commit()
        source = source_of(store.path)
        (sketch,) = (await source.page("", 5)).threads
        reading = await source.head(sketch.thread_id)
        assert reading is not None
        assert reading.head.verdict is Verdict.CLOSED
        assert (await source.page(sketch.thread_id, 5)).threads == ()
        await source.aclose()

    async def test_a_thread_without_a_root_is_listed_without_a_head(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human()], namespace="child:1")
        source = source_of(store.path)
        (sketch,) = (await source.page("", 5)).threads
        assert (sketch.head_id, sketch.checkpoint_ids) == ("", frozenset())
        await source.aclose()

    async def test_an_empty_store_is_one_empty_page(self, store: Any) -> None:
        source = source_of(store.path)
        page = await source.page("", 5)
        assert (page.threads, page.next_after) == ((), None)
        with pytest.raises(ValueError, match="at least"):
            await source.page("", 0)
        await source.aclose()


class TestSqliteSource:
    async def test_its_identity_is_the_file(self, sample_file: Path) -> None:
        assert source_of(sample_file).identity == f"sqlite://{sample_file}"

    async def test_a_symlink_is_followed_to_where_the_sidecars_are(
        self, sample_file: Path, tmp_path: Path
    ) -> None:
        into_wal_mode(sample_file)
        (tmp_path / "links").mkdir()
        link = tmp_path / "links" / "db"
        link.symlink_to(sample_file)
        assert len(await read_all(link)) == 25
        assert [one.name for one in (tmp_path / "links").iterdir()] == ["db"]
        assert not sample_file.with_name(f"{sample_file.name}-wal").exists()

    async def test_closing_twice_does_nothing(self, sample_file: Path) -> None:
        source = source_of(sample_file)
        await source.page("", 1)
        await source.aclose()
        await source.aclose()

    async def test_many_may_ask_at_once(self, sample_file: Path) -> None:
        source = source_of(sample_file)
        names = [sketch.thread_id for sketch in (await source.page("", 100)).threads]
        readings = await asyncio.gather(*(source.head(name) for name in names * 4))
        assert len({r.head.digest for r in readings if r}) > 10
        await source.aclose()

    async def test_the_loop_goes_on_while_the_file_is_locked(self, sample_file: Path) -> None:
        holder = sqlite3.connect(sample_file, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN EXCLUSIVE")
        source = source_of(sample_file, busy_timeout_s=20)
        asked = asyncio.create_task(source.page("", 100))
        await asyncio.to_thread(threading.Event().wait, 0.05)
        assert not asked.done()
        holder.execute("ROLLBACK")
        assert len((await asked).threads) == 25
        holder.close()
        await source.aclose()

    async def test_it_reads_one_checkpoint_by_its_id(self, sample_file: Path) -> None:
        source = source_of(sample_file)
        reading = await source.head("t:_:crash_model_turn2")
        assert reading is not None
        assert reading.ancestor is not None
        again = await source.state("t:_:crash_model_turn2", reading.ancestor.checkpoint_id)
        assert again == reading.ancestor
        assert await source.state("t:_:crash_model_turn2", "gone") is None
        assert await source.head("gone") is None
        await source.aclose()
