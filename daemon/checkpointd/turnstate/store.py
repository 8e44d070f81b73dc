"""The turn-state store: any process can continue a turn that another one paused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import structlog

from checkpointd.domain import turn as turns
from checkpointd.domain.errors import (
    CheckpointLostError,
    InteractionConfigurationError,
    PauseCheckpointNotFoundError,
    PayloadBindingError,
    shortened,
)
from checkpointd.domain.turn import PauseClaims, TurnCheckpoint
from checkpointd.turnstate import pauses as listed
from checkpointd.turnstate.pauses import MigrationOf
from checkpointd.turnstate.ports import CommandPort

log = structlog.get_logger(__name__)


class TurnCheckpointStore:
    """Records and loads turns over a command port; no state of its own, nothing cached.

    Without a port it is *not wired*: nothing is recorded and nothing can be continued,
    and each verb says so in its own way. ``migration_of`` is the registry's; only
    ``migrated_claims`` needs it.
    """

    def __init__(
        self, port: CommandPort | None = None, *, migration_of: MigrationOf | None = None
    ) -> None:
        self._port = port
        self._migration_of = migration_of

    @property
    def wired(self) -> bool:
        """Whether a port is there."""
        return self._port is not None

    @staticmethod
    def stamped_turn(state: object, claims: PauseClaims) -> TurnCheckpoint:
        """The prompt and messages of ``state`` under the ids of ``claims``, all of them."""
        return turns.stamped_turn(state, claims)

    async def record(self, claims: PauseClaims, checkpoint: TurnCheckpoint) -> bool:
        """Keep the turn of these claims; say whether it landed.

        ``False`` (a failing port, or none) means that the pause is not resumable, and the
        caller must act on it. Never raises for a failing port: the turn that pauses would
        die of it. Claims without a jti: ``PayloadBindingError``.

        Again with the same turn: the same answer. The ids are not compared here;
        ``stamped_turn`` makes them agree, and ``load`` refuses what does not.
        """
        if self._port is None:
            return False
        key, value = _turn_key(claims), checkpoint.encode()
        try:
            await self._port.write_metadata(
                claims.thread_id, claims.checkpoint_id, key, value, claims.run_id
            )
        except Exception as error:  # noqa: BLE001  the contract: a failing port is an answer
            _log_unkept(claims, error)
            return False
        return True

    async def load(self, claims: PauseClaims) -> TurnCheckpoint:
        """The turn of these claims, read from the port on every call.

        Absences: ``InteractionConfigurationError`` (not wired), ``PauseCheckpointNotFoundError``
        (a build that wrote no turn states minted the token), ``CheckpointLostError``.
        Something is here and it is wrong: ``PayloadBindingError`` (no jti, unreadable, of
        another version, or of other ids). A port that cannot be read raises its own error.
        """
        port = self._wired_port("continue a paused turn")
        key = _turn_key(claims)
        raw = await port.read_metadata(claims.thread_id, claims.checkpoint_id, key)
        if raw is None:
            await _raise_absence(port, claims)
        try:
            turn = TurnCheckpoint.decode(raw)
        except ValueError as error:
            raise PayloadBindingError(
                f"the turn state at {_place(claims)} cannot be continued: {error}"
            ) from error
        if wrong := claims.disagreements(turn):
            raise PayloadBindingError(
                f"the turn state at {_place(claims)} belongs to another pause (different "
                f"{', '.join(wrong)}); it is not continued under these claims"
            )
        return turn

    async def find(self, claims: PauseClaims) -> TurnCheckpoint | None:
        """As ``load``, but ``None`` for the three absences; what is there and wrong still raises."""
        try:
            return await self.load(claims)
        except (InteractionConfigurationError, CheckpointLostError, PauseCheckpointNotFoundError):
            return None

    async def record_pauses(self, pauses: Sequence[PauseClaims]) -> bool:
        """List what a replay recorded at one checkpoint, after its turns; say whether it landed.

        As ``record``: never raises for a failing port. Again: the same list.
        """
        if self._port is None:
            return False
        try:
            await listed.write_pauses(self._port, pauses)
        except PayloadBindingError:
            raise
        except Exception as error:  # noqa: BLE001  the contract: a failing port is an answer
            _log_unkept(pauses[0], error)
            return False
        return True

    async def pauses_of(self, thread_id: str, checkpoint_id: str) -> tuple[PauseClaims, ...]:
        """The claims of every turn that a replay recorded there; see ``pauses.pauses_of``."""
        port = self._wired_port("list the pauses of a checkpoint")
        return await listed.pauses_of(port, thread_id, checkpoint_id)

    async def migrated_claims(
        self, claims: PauseClaims, legacy_checkpoint_id: str
    ) -> PauseClaims | None:
        """Where an old token's pause went in the drain; see ``pauses.migrated_claims``."""
        port = self._wired_port("follow a pause to its replay")
        if self._migration_of is None:
            raise InteractionConfigurationError(
                "a pause cannot be followed to its replay: the turn-state store was built without "
                "the registry's migration_of; pass it"
            )
        return await listed.migrated_claims(port, self._migration_of, claims, legacy_checkpoint_id)

    def _wired_port(self, what: str) -> CommandPort:
        if self._port is None:
            raise InteractionConfigurationError(
                f"the turn-state store cannot {what}: no command port is wired; build it with one"
            )
        return self._port


async def _raise_absence(port: CommandPort, claims: PauseClaims) -> NoReturn:
    for key in _older_keys(claims):
        older = await port.read_metadata(claims.thread_id, claims.checkpoint_id, key)
        if older is not None:
            raise PauseCheckpointNotFoundError(
                f"the pause at {_place(claims)} was minted by a build that recorded no turn "
                "states; it can be shown and answered as far as that build could, but not "
                "continued from here"
            )
    raise CheckpointLostError(
        f"no turn state is kept at {_place(claims)}; the pause cannot be continued, begin the "
        "turn anew"
    )


def _turn_key(claims: PauseClaims) -> str:
    if not claims.jti:
        raise PayloadBindingError(
            f"the claims on {_place(claims)} have no jti, so no turn state can be theirs; use a "
            "token that was minted with one"
        )
    return f"turn_state:{claims.jti}"


def _older_keys(claims: PauseClaims) -> tuple[str, ...]:
    """The names that tokens older than turn states used: read here, never written."""
    keys = (
        f"ask_user_request:{claims.tool_call_id}" if claims.tool_call_id else "",
        f"interrupt_payload:{claims.interrupt_id}" if claims.interrupt_id else "",
    )
    return tuple(key for key in keys if key)


def _place(claims: PauseClaims) -> str:
    return f"checkpoint {shortened(claims.checkpoint_id)} of thread {shortened(claims.thread_id)}"


def _log_unkept(claims: PauseClaims, error: Exception) -> None:
    log.warning(
        "turn_state_unkept",
        thread_id=claims.thread_id,
        checkpoint_id=claims.checkpoint_id,
        error=f"{type(error).__name__}: {error}",
    )
