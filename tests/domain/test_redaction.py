from __future__ import annotations

import pytest

from checkpointd.domain.redaction import names_a_secret, redacted


class TestRedactedText:
    @pytest.mark.parametrize(
        "text",
        [
            "redis://user:hunter2@host:6379/0",
            "redis://:hunter2@host",
            "cannot reach redis://u:pa@hunter2@host now",
            "postgresql://u:a/hunter2@host/db",
            "host=x password=hunter2 dbname=y",
            "https://h/p?token=hunter2&x=1",
            "API_KEY=hunter2",
        ],
    )
    def test_does_not_hold_the_secret(self, text: str) -> None:
        assert "hunter2" not in redacted(text)

    @pytest.mark.parametrize(
        "text",
        ["redis://host:6379/0", "t:_:closed", "a:b@c", "http://127.0.0.1:9464/metrics", "x = y"],
    )
    def test_is_left_alone_where_there_is_none(self, text: str) -> None:
        assert redacted(text) == text

    def test_keeps_the_host_for_the_reader(self) -> None:
        assert redacted("redis://u:pw@host:1/0") == "redis://u:***@host:1/0"


class TestASecretsName:
    @pytest.mark.parametrize(
        "key", ["password", "redis_password", "Authorization", "api_key", "token"]
    )
    def test_is_known(self, key: str) -> None:
        assert names_a_secret(key)

    @pytest.mark.parametrize("key", ["thread_id", "fence", "password_file", "tokens", "passes"])
    def test_is_not_seen_in_others(self, key: str) -> None:
        assert not names_a_secret(key)
