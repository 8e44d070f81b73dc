"""What goes on while the faults happen: an old application, a new one, and an operator."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from checkpointd.domain.errors import CheckpointExpiredError, IssuanceFrozenError, StoreError
from checkpointd.domain.refs import CheckpointRef
from checkpointd.domain.states import WriterLine
from checkpointd.registry.control import Control, HalfCopiedError
from checkpointd.registry.redis import RedisRegistry
from checkpointd.registry.store import Store
from checkpointd.sample import copy_to

from .books import Name
from .checker import Acknowledged
from .proxy import Proxy, Weather

TEMPLATES = (
    ("t:_:closed", 80),
    ("t:_:crash_model_turn2", 8),
    ("t:_:paused_in_tool", 6),
    ("t:_:crash_model", 3),
    ("t:_:abandoned_pause", 3),
)
"""Threads of the sample that others are copied from, and how often."""

MISCHIEF = (
    ("plain", 65),
    ("slow", 10),
    ("permanent", 10),
    ("transient", 10),
    ("hang", 3),
    ("die", 2),
)
ODD = ("", " x ", "{a}:b", "ünï", "%s*[", "👩‍👧")


def _tables(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10, isolation_level=None)


class LegacyDatabase:
    """A file as the old application leaves it, with threads that are copies of the sample's."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.path = directory / "legacy.sqlite"
        sample = copy_to(directory)
        shutil.move(sample, self.path)
        self._rng = rng
        self._numbers = 0
        with contextlib.closing(_tables(self.path)) as db:
            self._rows = {
                name: (
                    db.execute("SELECT * FROM checkpoints WHERE thread_id = ?", (name,)).fetchall(),
                    db.execute("SELECT * FROM writes WHERE thread_id = ?", (name,)).fetchall(),
                )
                for name, _ in TEMPLATES
            }
            db.execute("DELETE FROM checkpoints")
            db.execute("DELETE FROM writes")
            # Read in place and written beside it, without a reader in the writer's way.
            db.execute("PRAGMA journal_mode = DELETE")
        self.heads: set[Name] = set()

    def write(
        self, count: int, *, blocks: int = 0, all_like: tuple[str, str] | None = None
    ) -> None:
        """So many threads more; ``blocks`` of them will block the loop of whoever replays them.

        ``all_like`` names the sample's thread that each is a copy of, and how its replay behaves.
        """
        with contextlib.closing(_tables(self.path)) as db:
            db.execute("BEGIN IMMEDIATE")
            for n in range(count):
                template = "t:_:closed" if n < blocks else self._drawn(TEMPLATES)
                mischief = "block" if n < blocks else self._drawn(MISCHIEF)
                if all_like is not None:
                    template, mischief = all_like
                self._numbers += 1
                odd = self._rng.choice(ODD)
                thread = f"{self._numbers:05}{odd}.{mischief}.{template.removeprefix('t:_:')}"
                checkpoints, writes = self._rows[template]
                db.executemany(
                    f"INSERT INTO checkpoints VALUES ({','.join('?' * len(checkpoints[0]))})",  # noqa: S608
                    [(thread, *row[1:]) for row in checkpoints],
                )
                if writes:
                    db.executemany(
                        f"INSERT INTO writes VALUES ({','.join('?' * len(writes[0]))})",  # noqa: S608
                        [(thread, *row[1:]) for row in writes],
                    )
                newest = max(row[2] for row in checkpoints if row[1] == "")
                self.heads.add(Name(thread, newest))
            db.execute("COMMIT")

    def take_turns(self, count: int, *, newest: int = 0, prune: bool = False) -> None:
        """So many closed threads go on by a turn each: each has a new head.

        Drawn from the ``newest`` threads, or from all; with ``prune`` the old head's row goes.
        """
        closed = sorted(name for name in self.heads if name.thread.endswith(".closed"))
        drawn = self._rng.sample(closed[-newest:], min(count, len(closed[-newest:])))
        with contextlib.closing(_tables(self.path)) as db:
            db.execute("BEGIN IMMEDIATE")
            for old in drawn:
                # The next in the order of ids, which is that of time.
                new = str(uuid.UUID(int=uuid.UUID(old.checkpoint).int + self._rng.randrange(1, 99)))
                db.execute(
                    "INSERT INTO checkpoints SELECT thread_id, checkpoint_ns, ?, checkpoint_id, "
                    "type, checkpoint, metadata FROM checkpoints "
                    "WHERE thread_id = ? AND checkpoint_id = ?",
                    (new, *old),
                )
                if prune:
                    db.execute(
                        "DELETE FROM checkpoints WHERE thread_id = ? AND checkpoint_id <> ?",
                        (old.thread, new),
                    )
                    db.execute("DELETE FROM writes WHERE thread_id = ?", (old.thread,))
                self.heads.remove(old)
                self.heads.add(Name(old.thread, new))
            db.execute("COMMIT")

    def _drawn(self, table: tuple[tuple[str, int], ...]) -> str:
        words, weights = zip(*table, strict=True)
        return str(self._rng.choices(words, weights)[0])


class Application:
    """Issues kernel checkpoints and finalizes them: at once, near the grace, or never."""

    def __init__(
        self, registry: RedisRegistry, told: Acknowledged, rng: random.Random, grace: timedelta
    ) -> None:
        self._registry = registry
        self._told = told
        self._rng = rng
        self._grace_s = grace.total_seconds()
        self._turns: set[asyncio.Task[None]] = set()
        self.unknown = 0
        """Calls whose outcome nobody told."""

    async def run(self, *, per_second: float) -> None:
        """Begin turns at this rate until cancelled, then wait for those under way."""
        try:
            while True:
                turn = asyncio.create_task(self._turn(), name="turn")
                self._turns.add(turn)
                turn.add_done_callback(self._turns.discard)
                await asyncio.sleep(self._rng.expovariate(per_second))
        finally:
            await asyncio.gather(*self._turns, return_exceptions=True)

    async def _turn(self) -> None:
        name = Name(
            f"app {self._rng.randrange(200)}", str(uuid.UUID(int=self._rng.getrandbits(128)))
        )
        draw = self._rng.random()
        near = self._grace_s + self._rng.uniform(-0.3, 0.6)
        wait_s = 0.1 * self._rng.random() if draw < 0.4 else near
        ref = CheckpointRef(*name, WriterLine.KERNEL, datetime.now(UTC))
        try:
            await self._registry.register(ref, finalized=False)
        except IssuanceFrozenError:
            return
        except StoreError:
            self.unknown += 1
            return
        self._told.registered.add(name)
        if draw > 0.9:
            return  # this process crashed
        await asyncio.sleep(wait_s)
        try:
            await self._registry.finalize(*name)
        except CheckpointExpiredError:
            self._told.expired.add(name)
        except StoreError:
            self.unknown += 1
        else:
            self._told.finalized.add(name)


class Operator:
    """Freezes, and thaws while the freeze's copies are still on their way."""

    def __init__(self, near: Store, far: Store, line: Proxy, told: Acknowledged) -> None:
        self._near = Control(near)
        self._near_store = near
        self._registry = RedisRegistry(near, actor="operator")
        self._far = Control(far)
        self._far_store = far
        self._line = line
        self._told = told
        self.races = 0

    async def freeze(self) -> None:
        """Close legacy issuance; return when that is in force."""
        for _ in range(200):
            try:
                await self._near.freeze(
                    reason="faults", lines=(WriterLine.LEGACY,), actor="operator"
                )
            except (StoreError, HalfCopiedError):
                await asyncio.sleep(0.1)
            else:
                return
        raise TimeoutError("no freeze came through")

    async def race(self) -> None:
        """Thaw while copies of the freeze are late; none of them may freeze anything again."""
        await self._thaw()
        with contextlib.suppress(StoreError):
            await self._far_store.meta(
                "control_freeze", "lk", "a freeze that comes late", "operator"
            )
            word = await self._far.read()
            async with self._line.under(Weather.LATE):
                with contextlib.suppress(StoreError, HalfCopiedError):
                    await self._far._copy(word, "the late freeze")
                await self._thaw()
            await asyncio.sleep(0.2)
            await self._nothing_is_refused()
            self.races += 1
        await self.freeze()

    async def _thaw(self) -> None:
        for _ in range(100):
            try:
                await self._near.thaw(reason="faults", actor="operator")
            except (StoreError, HalfCopiedError):
                await asyncio.sleep(0.1)
            else:
                return
        raise TimeoutError("no thaw came through")

    async def _nothing_is_refused(self) -> None:
        for n in range(8):
            name = Name(f"probe {n}", uuid.uuid4().hex)
            try:
                await self._registry.register(
                    CheckpointRef(*name, WriterLine.KERNEL, datetime.now(UTC))
                )
            except IssuanceFrozenError as error:
                self._told.findings.append(f"thaw: a late copy froze it again: {error}")
            except StoreError:
                return
