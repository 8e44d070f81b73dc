"""What an id may be."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointd.domain.errors import CheckpointdError, InvalidIdError
from checkpointd.domain.ids import MAX_ID_BYTES, check_id


class TestWhatGoes:
    @pytest.mark.parametrize(
        "text",
        [
            "a",
            " ",
            'a:b{c}|"d" é👩‍💻',
            "nb\u00a0sp",
            "zero\u200bwidth",
            "line\u2028separator",
            "\ufeff",
            "%*?[]^$\\",
            "x" * 512,
            "é" * 256,
            "👩" * 128,
        ],
        ids=lambda text: ascii(text)[:20],
    )
    def test_an_id_comes_back_as_it_was_given(self, text: str) -> None:
        assert check_id(text, what="thread_id") == text

    @given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=128))
    def test_any_text_without_controls_and_surrogates_goes(self, text: str) -> None:
        assert check_id(text, what="thread_id") == text


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "empty"),
            ("x" * (MAX_ID_BYTES + 1), "longer than 512"),
            ("é" * 257, "longer than 512"),
            ("👩" * 128 + "x", "longer than 512"),
            ("x" * 10_000_000, "longer than 512"),
            ("a\ud800b", "lone surrogate"),
            ("\udfff", "lone surrogate"),
            ("a\x00", "control character"),
            ("\t", "control character"),
            ("a\nb", "control character"),
            ("\x1f", "control character"),
            ("\x7f", "control character"),
            ("\x85", "control character"),
        ],
        ids=lambda text: ascii(text)[:20],
    )
    def test_it_says_in_one_short_sentence_which_id_and_why(self, text: str, why: str) -> None:
        with pytest.raises(InvalidIdError) as refused:
            check_id(text, what="checkpoint_id")
        sentence = str(refused.value)
        assert why in sentence
        assert sentence.startswith("checkpoint_id ")
        assert len(sentence) < 300
        assert sentence.isprintable()

    @pytest.mark.parametrize("value", [None, 7, b"bytes", ["a"], True])
    def test_what_is_not_text_is_refused(self, value: object) -> None:
        with pytest.raises(InvalidIdError, match="not text"):
            check_id(value, what="thread_id")  # type: ignore[arg-type]

    def test_both_the_plain_contracts_error_and_ours_catch_it(self) -> None:
        for kind in (ValueError, CheckpointdError):
            with pytest.raises(kind):
                check_id("", what="thread_id")

    @given(st.text(max_size=600))
    def test_the_rule_is_the_contracts_and_nothing_else(self, text: str) -> None:
        allowed = bool(text) and len(text.encode("utf-8", "surrogatepass")) <= 512
        allowed &= not any(unicodedata.category(c) in ("Cc", "Cs") for c in text)
        try:
            assert check_id(text, what="thread_id") == text
        except InvalidIdError:
            assert not allowed
        else:
            assert allowed
