"""What a replay recorded at a checkpoint, and the way to it from a token older than the replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields

from checkpointd.domain.errors import PayloadBindingError, shortened
from checkpointd.domain.refs import MigrationLink
from checkpointd.domain.turn import PauseClaims, canonical_json, strict_json
from checkpointd.turnstate.ports import CommandPort

PAUSES_KEY = "turn_pauses"
PAUSES_VERSION = 1

MigrationOf = Callable[[str, str], Awaitable[MigrationLink | None]]
"""The registry's ``migration_of``: (thread id, legacy checkpoint id) -> its link."""

_CLAIM_NAMES = frozenset(field.name for field in fields(PauseClaims))


async def write_pauses(port: CommandPort, pauses: Sequence[PauseClaims]) -> None:
    """List ``pauses`` at their checkpoint. Again: the same bytes.

    They share one thread and one checkpoint (``PayloadBindingError``). Written after the
    turns themselves, so the list never names one that is not there.
    """
    if not pauses:
        raise PayloadBindingError("an empty list of pauses names no checkpoint to keep it at")
    first = pauses[0]
    for claims in pauses:
        _check_at(claims, first.thread_id, first.checkpoint_id)
    listed = {"version": PAUSES_VERSION, "pauses": [claims.fields() for claims in pauses]}
    await port.write_metadata(
        first.thread_id, first.checkpoint_id, PAUSES_KEY, canonical_json(listed), first.run_id
    )


async def pauses_of(
    port: CommandPort, thread_id: str, checkpoint_id: str
) -> tuple[PauseClaims, ...]:
    """The claims of every turn that a replay recorded there, in the order of its questions.

    A closed thread has one, with neither tool call nor interrupt. ``()`` if no replay
    recorded anything there; ``PayloadBindingError`` if the list cannot be read.
    """
    raw = await port.read_metadata(thread_id, checkpoint_id, PAUSES_KEY)
    if raw is None:
        return ()
    try:
        pauses = _decode(raw)
    except ValueError as error:
        raise PayloadBindingError(
            f"the list of pauses at checkpoint {shortened(checkpoint_id)} of thread "
            f"{shortened(thread_id)} cannot be read: {error}"
        ) from error
    for claims in pauses:
        _check_at(claims, thread_id, checkpoint_id)
    return pauses


async def migrated_claims(
    port: CommandPort,
    migration_of: MigrationOf,
    claims: PauseClaims,
    legacy_checkpoint_id: str,
) -> PauseClaims | None:
    """The claims under which a replay recorded the pause that the old ``claims`` speak of.

    By the link, then by tool call, then by interrupt. ``None`` if the ref has no link, if
    nothing recorded matches, or if more than one does: two questions may share an
    interrupt id, and a guess would give an answer to the wrong one.

    What comes back bears the record's own run and scope; whether the holder may speak
    for the thread is for whoever verified the old token to say.
    """
    link = await migration_of(claims.thread_id, legacy_checkpoint_id)
    if link is None:
        return None
    return _match(claims, await pauses_of(port, claims.thread_id, link.checkpoint_id))


def _match(claims: PauseClaims, pauses: Sequence[PauseClaims]) -> PauseClaims | None:
    found = [p for p in pauses if claims.tool_call_id and p.tool_call_id == claims.tool_call_id]
    if len(found) > 1:
        found = [p for p in found if p.interrupt_id == claims.interrupt_id]
    elif not found:
        found = [
            p
            for p in pauses
            if claims.interrupt_id
            and p.interrupt_id == claims.interrupt_id
            and not (p.tool_call_id and claims.tool_call_id)
        ]
    return found[0] if len(found) == 1 else None


def _decode(raw: object) -> tuple[PauseClaims, ...]:
    value = strict_json(raw) if isinstance(raw, str | bytes | bytearray) else raw
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}, not a mapping")
    version = value.get("version")
    if type(version) is not int or version != PAUSES_VERSION:
        raise ValueError(
            f"it has version {shortened(version)} and this build reads version {PAUSES_VERSION}"
        )
    listed = value.get("pauses")
    if not isinstance(listed, list):
        raise ValueError(f"its pauses are a {type(listed).__name__}, not a list")
    return tuple(_decode_claims(item) for item in listed)


def _decode_claims(item: object) -> PauseClaims:
    if not isinstance(item, dict) or not all(isinstance(text, str) for text in item.values()):
        raise ValueError("one of its pauses is not a mapping of texts")
    if unknown := sorted(item.keys() - _CLAIM_NAMES):
        raise ValueError(f"one of its pauses has the unknown field {shortened(unknown[0])}")
    return PauseClaims(**item)


def _check_at(claims: PauseClaims, thread_id: str, checkpoint_id: str) -> None:
    if (claims.thread_id, claims.checkpoint_id) != (thread_id, checkpoint_id):
        raise PayloadBindingError(
            f"the list of pauses at checkpoint {shortened(checkpoint_id)} of thread "
            f"{shortened(thread_id)} names one of {shortened(claims.checkpoint_id)} of "
            f"{shortened(claims.thread_id)}; a list holds the pauses of one checkpoint"
        )
