"""The control word: frozen, paused, halted. Declared once, copied to every partition by epoch.

A declaration raises the epoch in the store-wide record, then every partition's copy follows;
a copy takes only a higher epoch. A freeze is in force once all copies carry it, which a second
round tells them, each noting then what was unfinished. Whoever dies between the rounds leaves
a half-copied change, and any replica's census completes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from checkpointd.domain.errors import CheckpointdError, StoreError
from checkpointd.domain.refs import IssuanceFreeze, from_us
from checkpointd.domain.states import ALL_LINES, PassName, WriterLine
from checkpointd.registry.codec import LINE_LETTERS, clean
from checkpointd.registry.store import Store


class HalfCopiedError(CheckpointdError):
    """A control change was declared and did not reach every partition yet."""

    def __init__(self, what: str, carried: int, partitions: int) -> None:
        self.what = what
        self.carried = carried
        self.partitions = partitions
        super().__init__(
            f"{what} was declared but only {carried} of {partitions} partitions carry it; any "
            "running daemon completes it, or run the same command again"
        )


class ThawedMeanwhileError(CheckpointdError):
    """A freeze was undone before it came into force."""

    def __init__(self) -> None:
        super().__init__(
            "the freeze was declared and somebody thawed it before it was in force; nothing is "
            "frozen, agree on who decides and freeze again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWord:
    """What is declared store-wide."""

    epoch: int = 0
    freeze: IssuanceFreeze | None = None
    in_force_at: datetime | None = None
    halted: str = ""
    canary: str = ""
    """The epoch whose claims may still go on, a canary's; empty for no limit."""
    canary_left: int = 0
    paused: Mapping[PassName, str] = field(default_factory=dict)
    """The reason for each pass that an operator holds."""
    raw: Mapping[str, str] = field(default_factory=dict)
    """Every field of the store-wide record, for what else is kept there."""

    @property
    def legacy_frozen(self) -> bool:
        """Whether a drain may claim: legacy is frozen, and everywhere."""
        return (
            self.in_force_at is not None
            and self.freeze is not None
            and WriterLine.LEGACY in self.freeze.lines
        )


def control_word(fields: Mapping[bytes, bytes]) -> ControlWord:
    """The control word in the store-wide record's fields."""
    raw = {k.decode(): v.decode("utf-8", "replace") for k, v in fields.items()}
    freeze = None
    if raw.get("frozen"):
        freeze = IssuanceFreeze(
            raw.get("reason", ""),
            from_us(int(raw["frozen_at"])),
            tuple(line for line in ALL_LINES if LINE_LETTERS[line] in raw["frozen"]),
        )
    return ControlWord(
        epoch=int(raw.get("epoch") or 0),
        freeze=freeze,
        in_force_at=from_us(int(raw["in_force_at"])) if raw.get("in_force_at") else None,
        halted=raw.get("halted", ""),
        canary=raw.get("canary", ""),
        canary_left=int(raw.get("canary_left") or 0),
        paused={p: raw[f"paused:{p}"] for p in PassName if raw.get(f"paused:{p}")},
        raw=raw,
    )


class Control:
    """Declares and completes control changes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self) -> ControlWord:
        """What is declared now."""
        key = self._store.keys.meta
        return control_word(await self._store.read(lambda c: c.hgetall(key)))

    async def freeze(
        self, *, reason: str, lines: tuple[WriterLine, ...], actor: str
    ) -> IssuanceFreeze:
        """Close issuance; return when it is in force. Again: the first freeze, completed."""
        if not lines:
            raise ValueError("a freeze names no line; give at least one")
        letters = "".join(LINE_LETTERS[line] for line in ALL_LINES if line in lines)
        await self._store.meta("control_freeze", letters, clean(reason), clean(actor, 120))
        word = await self.complete("the freeze")
        if word.freeze is None:
            raise ThawedMeanwhileError
        return word.freeze

    async def thaw(self, *, reason: str, actor: str) -> bool:
        """Open issuance; return when every partition carries it. Again: ``False``."""
        reply = await self._store.meta("control_thaw", clean(reason), clean(actor, 120))
        await self.complete("the thaw")
        return bool(reply[0] == b"thawed")

    async def pause(self, which: PassName, *, reason: str, actor: str) -> bool:
        """Hold a pass; return when every partition carries it. Again: ``False``."""
        reply = await self._store.meta(
            "control_pause", which, clean(reason) or "no reason given", clean(actor, 120)
        )
        await self.complete("the pause")
        return bool(reply[0] == b"paused")

    async def resume(self, which: PassName, *, actor: str, refs: int = 0) -> bool:
        """Let a pass go on, the drain for ``refs`` refs if given; ``False`` if nothing held it."""
        failed, ended = await self.replays()
        reply = await self._store.meta(
            "control_resume", which, refs, clean(actor, 120), failed, ended
        )
        await self.complete("the resume")
        return bool(reply[0] == b"resumed")

    async def halt(self, *, reason: str, actor: str, epoch: int) -> bool:
        """Stop the drain, judged at ``epoch``; ``False`` if it was stopped or resumed meanwhile."""
        reply = await self._store.meta("control_halt", clean(reason), clean(actor, 120), epoch)
        await self.complete("the halt")  # also where a lost reply hid that it was declared here
        return bool(reply[0] == b"halted")

    async def judge_anew(self) -> None:
        """Begin a new window of the breaker here: the last one was well."""
        failed, ended = await self.replays()
        key = self._store.keys.meta
        fields = {"breaker_failed": failed, "breaker_ended": ended}
        await self._store.write(lambda c: c.hset(key, mapping=fields))

    async def take_canary(self, want: int) -> int:
        """Take from the canary's number of refs; 0 when it is used up."""
        return int(await self._store.meta("take_allowance", "canary_left", want))

    async def give_canary(self, unused: int, *, epoch: str) -> None:
        """Give back what was taken for that epoch and not claimed."""
        if unused > 0:
            token = secrets.token_hex(8)
            await self._store.meta("give_allowance", "canary_left", unused, epoch, token)

    async def replays(self) -> tuple[int, int]:
        """Replays that failed for reasons of their own, and that ended at all, store-wide."""
        rows = await self._store.read_many(
            [
                ("HMGET", keys.counters, "replays:failed", "replays:migrated")
                for keys in self._store.keys.all
            ]
        )
        failed = sum(int(row[0] or 0) for row in rows)
        return failed, failed + sum(int(row[1] or 0) for row in rows)

    async def complete(self, what: str = "the last change") -> ControlWord:
        """Bring every partition up to what is declared, and a freeze into force.

        Idempotent, and safe beside others that do the same: copies take only a higher
        epoch. ``HalfCopiedError`` if a partition did not answer.
        """
        for _ in range(8):
            word = await self.read()
            await self._copy(word, what)
            if word.freeze is None:
                return word
            if await self._store.meta("control_in_force", word.epoch) == b"other":
                continue
            answers = await self._everywhere("control_enforce", [word.epoch], what)
            if b"other" not in answers:
                return await self.read()
        raise HalfCopiedError(what, 0, self._store.keys.partitions)

    async def _copy(self, word: ControlWord, what: str) -> None:
        raw = word.raw
        args: list[str | int] = [
            word.epoch,
            raw.get("frozen", ""),
            raw.get("reason", ""),
            raw.get("frozen_at", ""),
            word.paused.get(PassName.DRAIN, ""),
            word.halted,
            word.canary,
        ]
        await self._everywhere("control_copy", args, what)

    async def _everywhere(self, name: str, args: list[str | int], what: str) -> list[bytes]:
        partitions = range(self._store.keys.partitions)
        answers = await asyncio.gather(
            *(self._store.at(p, name, [], args) for p in partitions), return_exceptions=True
        )
        good = [a for a in answers if not isinstance(a, BaseException)]
        if len(good) < len(answers):
            trouble = next(a for a in answers if isinstance(a, BaseException))
            if not isinstance(trouble, StoreError) or not good:
                raise trouble
            raise HalfCopiedError(what, len(good), len(answers)) from trouble
        return good
