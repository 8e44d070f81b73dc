"""Every error that the daemon names. One root; one class for each decision a caller makes differently.

The domain errors also derive from the built-in that a caller of the plain
contract would catch, so code written against the contract alone keeps working.
"""

from __future__ import annotations

from datetime import datetime

from typing_extensions import override

from checkpointd.domain.refusals import refusal_of


def shortened(text: object, limit: int = 80) -> str:
    """``text`` as a quoted, printable word of bounded length, for use in a sentence."""
    shown = ascii(text) if not (isinstance(text, str) and text.isprintable()) else repr(text)
    return shown if len(shown) <= limit else f"{shown[:limit]}… ({len(str(text)):,} characters)"


class CheckpointdError(Exception):
    """The root of all errors that this package raises on purpose."""


class ConfigError(CheckpointdError):
    """The configuration cannot be used. Carries every complaint, not just the first."""

    def __init__(self, complaints: tuple[str, ...] | list[str], *, where: str = "") -> None:
        self.complaints = tuple(complaints)
        self.where = where
        lead = f"the configuration{f' in {where}' if where else ''} cannot be used: "
        super().__init__(lead + "; ".join(self.complaints))


# The registry's contract -----------------------------------------------------------------------


class InvalidIdError(CheckpointdError, ValueError):
    """An id that cannot name anything."""

    def __init__(self, what: str, value: object, why: str) -> None:
        self.what = what
        self.value = value
        self.why = why
        super().__init__(
            f"{what} {shortened(value)} is refused: {why}; an id is 1 to 512 UTF-8 bytes of text "
            "without control characters"
        )


class UnknownCheckpointError(CheckpointdError, KeyError):
    """The registry has never seen this checkpoint, so it is not authoritative here."""

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.sentence = (
            f"checkpoint {shortened(checkpoint_id)} of thread {shortened(thread_id)} was never "
            "registered here; register it before anything else is said of it"
        )
        super().__init__(self.sentence)

    @override
    def __str__(self) -> str:
        return self.sentence


class WriterLineChangedError(CheckpointdError, ValueError):
    """A checkpoint was registered once by one generation of code and now by the other."""

    def __init__(self, thread_id: str, checkpoint_id: str, known: str, asked: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.known = known
        self.asked = asked
        super().__init__(
            f"checkpoint {shortened(checkpoint_id)} of thread {shortened(thread_id)} is registered "
            f"as {known} and cannot become {asked}; a writer line never changes"
        )


class CheckpointExpiredError(CheckpointdError, ValueError):
    """The writer came back too late: its checkpoint was expired and stays so."""

    def __init__(
        self, thread_id: str, checkpoint_id: str, reason: str, at: datetime | None
    ) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.reason = reason
        self.at = at
        when = f" at {at.isoformat()}" if at else ""
        super().__init__(
            f"checkpoint {shortened(checkpoint_id)} of thread {shortened(thread_id)} expired{when} "
            f"({reason}); it is not revived, begin the turn anew"
        )


class IssuanceFrozenError(CheckpointdError, RuntimeError):
    """New issuance is closed for this line."""

    def __init__(
        self, thread_id: str, checkpoint_id: str, line: str, reason: str, *, replay_of: str = ""
    ) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.line = line
        self.reason = reason
        self.replay_of = replay_of
        if replay_of:
            sentence = (
                f"a replay of {shortened(replay_of)} of thread {shortened(thread_id)} into "
                f"{shortened(checkpoint_id)} is refused: issuance is frozen ({reason}), and only "
                "state that the registry accounts for may be drained"
            )
        else:
            sentence = (
                f"checkpoint {shortened(checkpoint_id)} of thread {shortened(thread_id)} is "
                f"refused: issuance of {line} checkpoints is frozen ({reason})"
            )
        super().__init__(sentence)


class LeaseLostError(CheckpointdError):
    """The lease ran out or was taken away while its holder was still working.

    Not an unlock failure: by now another drainer may hold the same ref, so the
    holder must stop before its next write rather than after it.
    """

    def __init__(self, name: str, fence: int) -> None:
        self.name = name
        self.fence = fence
        super().__init__(
            f"the lease on {name} (fence {fence}) is not held any more; its holder must write "
            "nothing more"
        )


class LeaseBusyError(CheckpointdError):
    """Another holder has the lease; nobody waits for one."""

    def __init__(self, name: str, remaining_s: float) -> None:
        self.name = name
        self.remaining_s = remaining_s
        super().__init__(
            f"{name} is being replayed by another holder for up to {remaining_s:.1f} s more; "
            "try again after that"
        )


class AlreadyMigratedError(CheckpointdError):
    """The ref has its link; there is nothing left to replay."""

    def __init__(self, thread_id: str, checkpoint_id: str, became: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.became = became
        super().__init__(
            f"checkpoint {shortened(checkpoint_id)} of thread {shortened(thread_id)} already "
            f"became {shortened(became)}; follow the link"
        )


class CommitRefusedError(CheckpointdError):
    """The registry would not link this replay; its state is untouched."""

    def __init__(self, thread_id: str, checkpoint_id: str, reason: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.reason = reason
        super().__init__(
            f"the replay of {shortened(checkpoint_id)} of thread {shortened(thread_id)} was "
            f"refused at its commit ({reason}); nothing was written"
        )


# The store -------------------------------------------------------------------------------------


class StoreError(CheckpointdError):
    """The registry's store cannot be used now, or not at all."""


class StoreUnreachableError(StoreError, ConnectionError):
    """The store did not answer in time, or not at all. Nothing is known of what it did."""

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        self.why = why
        super().__init__(
            f"the store at {where} cannot be reached ({why}); check that it runs and that "
            "redis.url points to it"
        )


class StoreRefusedError(StoreError):
    """The store answered, and its answer is no: nothing was written.

    ``word`` is the store's own, empty where the refusal is about this one command;
    ``transient`` says whether it passes by itself.
    """

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        refusal = refusal_of(why)
        self.word = refusal.word
        self.transient = refusal.transient
        told = why
        if refusal.word:
            told = f"{refusal.word}: {refusal.meaning}"
            told += "" if refusal.transient or why == refusal.word else f" ({why})"
        super().__init__(f"the store refused to {what}: {told}")


class WrongStoreError(StoreError):
    """The configuration points at a store that belongs to something else."""


class CorruptRecordError(StoreError, ValueError):
    """A record in the store cannot be accounted for by this build."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"the record of {what} cannot be read: {why}")


# The replay path -------------------------------------------------------------------------------


class SourceUnreachableError(CheckpointdError):
    """The legacy store as a whole cannot be read; no thread is to blame."""

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        self.why = why
        super().__init__(f"the legacy source {where} cannot be read: {why}")


class UnreadableStateError(CheckpointdError, ValueError):
    """One thread's legacy state cannot be decoded; the others are not affected."""

    def __init__(self, thread_id: str, why: str) -> None:
        self.thread_id = thread_id
        self.why = why
        super().__init__(f"the legacy state of thread {shortened(thread_id)} is unreadable: {why}")


class ReplayError(CheckpointdError):
    """A replay did not produce a checkpoint."""


class TransientReplayError(ReplayError):
    """It may succeed later: the ref is tried again after a back-off."""

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        self.detail = detail
        self.retry_after_s = retry_after_s
        super().__init__(detail)


class ReplayerUnreachableError(TransientReplayError):
    """The replayer as a whole is out of reach: no ref is to blame and none loses an attempt."""


class PermanentReplayError(ReplayError):
    """It will not succeed by itself: the ref is quarantined with ``reason``.

    ``reason`` is a word of ``FailureReason``; any other word becomes ``other``.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


# The turn-state store --------------------------------------------------------------------------


class PayloadBindingError(CheckpointdError, ValueError):
    """What is stored does not belong to the claims that ask for it, or cannot be read."""


class InteractionConfigurationError(CheckpointdError, RuntimeError):
    """No command port is wired, so nothing can be continued."""


class CheckpointLostError(CheckpointdError, LookupError):
    """A turn state was recorded, or should have been, and is not there."""


class PauseCheckpointNotFoundError(CheckpointdError, LookupError):
    """The pause is older than turn states: it can be shown and answered, not continued from here."""
