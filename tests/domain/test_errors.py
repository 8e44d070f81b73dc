"""Errors: one root, the built-in that the plain contract's callers catch, and a sentence each."""

from __future__ import annotations

import inspect
import pickle
from datetime import UTC, datetime

import pytest

from checkpointd.domain import errors
from checkpointd.domain.errors import (
    AlreadyMigratedError,
    CheckpointdError,
    CheckpointExpiredError,
    CommitRefusedError,
    ConfigError,
    CorruptRecordError,
    InvalidIdError,
    IssuanceFrozenError,
    LeaseBusyError,
    LeaseLostError,
    PermanentReplayError,
    StoreRefusedError,
    StoreUnreachableError,
    TransientReplayError,
    UnknownCheckpointError,
    WriterLineChangedError,
    shortened,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]
SPOKEN = (
    InvalidIdError("thread_id", "", "it is empty"),
    UnknownCheckpointError("t", "c"),
    WriterLineChangedError("t", "c", "legacy", "kernel"),
    CheckpointExpiredError("t", "c", "gone", AT),
    IssuanceFrozenError("t", "c", "legacy", "cut-over"),
    IssuanceFrozenError("t", "c", "kernel", "cut-over", replay_of="l"),
    LeaseLostError("t/c", 7),
    LeaseBusyError("t/c", 3.25),
    AlreadyMigratedError("t", "c", "k"),
    CommitRefusedError("t", "c", "id_conflict"),
    StoreUnreachableError("redis://h:1", "refused"),
    StoreRefusedError("run register", "OOM"),
    CorruptRecordError("checkpoint c", "no version"),
    PermanentReplayError("absent", "nothing there"),
    TransientReplayError("later", retry_after_s=2.0),
    ConfigError(["one thing", "another"], where="checkpointd.toml"),
)


class TestKinds:
    @pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
    def test_each_has_the_one_root_and_is_named_an_error(self, kind: type[Exception]) -> None:
        assert issubclass(kind, CheckpointdError)
        assert kind.__name__.endswith("Error")
        assert kind.__doc__

    @pytest.mark.parametrize(
        ("kind", "builtin"),
        [
            (UnknownCheckpointError, KeyError),
            (WriterLineChangedError, ValueError),
            (CheckpointExpiredError, ValueError),
            (InvalidIdError, ValueError),
            (IssuanceFrozenError, RuntimeError),
            (StoreUnreachableError, ConnectionError),
        ],
    )
    def test_the_plain_contracts_built_in_catches_it(
        self, kind: type[Exception], builtin: type[Exception]
    ) -> None:
        assert issubclass(kind, builtin)


class TestSentences:
    @pytest.mark.parametrize("error", SPOKEN, ids=lambda error: type(error).__name__)
    def test_each_is_one_printable_line_that_is_no_repr(self, error: Exception) -> None:
        sentence = str(error)
        assert sentence.isprintable()
        assert not sentence.startswith(("'", '"', "("))

    def test_a_key_error_speaks_its_sentence_and_not_its_repr(self) -> None:
        assert str(UnknownCheckpointError("t", "c")).startswith("checkpoint 'c' of thread 't'")

    def test_a_frozen_issuance_names_the_reason_and_the_checkpoint(self) -> None:
        error = IssuanceFrozenError("t", "c-9", "legacy", "cut-over")
        assert "cut-over" in str(error)
        assert "c-9" in str(error)
        assert (error.line, error.reason, error.replay_of) == ("legacy", "cut-over", "")

    def test_a_refused_replay_says_what_may_be_drained(self) -> None:
        error = IssuanceFrozenError("t", "c", "kernel", "cut-over", replay_of="l-1")
        assert "only state that the registry accounts for may be drained" in str(error)
        assert "l-1" in str(error)

    def test_a_configurations_complaints_are_all_told(self) -> None:
        error = ConfigError(["one thing", "another"], where="x.toml")
        assert "one thing; another" in str(error)
        assert error.complaints == ("one thing", "another")

    def test_an_expired_ref_says_when_if_it_is_known(self) -> None:
        assert AT.isoformat() in str(CheckpointExpiredError("t", "c", "gone", AT))
        assert "None" not in str(CheckpointExpiredError("t", "c", "gone", None))

    def test_an_id_of_any_size_makes_a_short_sentence(self) -> None:
        assert len(str(UnknownCheckpointError("t" * 10_000_000, "c" * 10_000_000))) < 500


class TestShortened:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain", "'plain'"),
            ("é👩", "'é👩'"),
            ("a\nb", r"'a\nb'"),
            ("\ud800", r"'\ud800'"),
            (7, "7"),
        ],
    )
    def test_text_is_quoted_and_printable(self, text: object, shown: str) -> None:
        assert shortened(text) == shown

    def test_long_text_is_cut_and_its_length_told(self) -> None:
        shown = shortened("x" * 10_000)
        assert len(shown) < 120
        assert "10,000 characters" in shown


def test_errors_without_facts_of_their_own_survive_pickling() -> None:
    error = errors.WrongStoreError("another store")
    assert str(pickle.loads(pickle.dumps(error))) == "another store"  # noqa: S301 - our own bytes
