from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from checkpointd.config import (
    RELOADABLE,
    SECTIONS,
    Reconcile,
    Redis,
    Settings,
    describe,
    find_config,
    hints,
    load_settings,
    reloadable_changes,
)
from checkpointd.domain.errors import ConfigError
from checkpointd.domain.redaction import MASK

Write = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "checkpointd.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def complaints(path: Path | None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load_settings(path, environ or {})
    return refused.value.complaints


class TestTheFileThatIsRead:
    def test_is_the_one_asked_for(self, tmp_path: Path) -> None:
        asked = tmp_path / "a.toml"
        assert find_config(asked, {"CHECKPOINTD_CONFIG": "/b"}, tmp_path) == asked

    def test_is_else_the_one_of_the_environment(self, tmp_path: Path) -> None:
        (tmp_path / "checkpointd.toml").touch()
        assert find_config(None, {"CHECKPOINTD_CONFIG": "/b"}, tmp_path) == Path("/b")

    def test_is_else_the_one_beside(self, tmp_path: Path) -> None:
        (tmp_path / "checkpointd.toml").touch()
        found = find_config(None, {"CHECKPOINTD_CONFIG": ""}, tmp_path)
        assert found == tmp_path / "checkpointd.toml"

    def test_is_else_none_and_the_defaults_hold(self, tmp_path: Path) -> None:
        assert find_config(None, {}, tmp_path) is None
        assert load_settings(None, {}) == Settings()

    def test_must_exist(self, tmp_path: Path) -> None:
        (why,) = complaints(tmp_path / "none.toml")
        assert "no such file" in why

    def test_must_be_a_file(self, tmp_path: Path) -> None:
        (why,) = complaints(tmp_path)
        assert "cannot be read" in why

    def test_must_be_toml_or_the_line_is_named(self, written: Write) -> None:
        (why,) = complaints(written("[redis]\nurl = \n"))
        assert "not TOML" in why
        assert "line 2" in why

    def test_that_nests_for_ever_is_refused(self, written: Write) -> None:
        (why,) = complaints(written("x = " + "[" * 100_000))
        assert "not TOML" in why

    def test_must_be_text(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.toml"
        path.write_bytes(b"# caf\xe9\n")
        (why,) = complaints(path)
        assert "UTF-8" in why

    def test_may_begin_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "bom.toml"
        path.write_bytes(b'\xef\xbb\xbf[reconcile]\ngrace = "2h"\n')
        assert load_settings(path, {}).reconcile.grace == timedelta(hours=2)

    def test_is_named_in_the_refusal(self, written: Write) -> None:
        path = written("[redis]\nurll = 1\n")
        with pytest.raises(ConfigError, match=str(path)):
            load_settings(path, {})


class TestTheEnvironment:
    def test_goes_before_the_file(self, written: Write) -> None:
        path = written('[reconcile]\ngrace = "2h"\nevery = "30s"\n')
        settings = load_settings(path, {"CHECKPOINTD_RECONCILE__GRACE": "3h"})
        assert settings.reconcile == Reconcile(
            grace=timedelta(hours=3), every=timedelta(seconds=30)
        )

    def test_gives_each_kind_of_value(self) -> None:
        settings = load_settings(
            None,
            {
                "CHECKPOINTD_REDIS__PASSWORD": "pw",
                "CHECKPOINTD_REGISTRY__PARTITIONS": "64",
                "CHECKPOINTD_SOURCE__BREAKPOINTS": "ask, review",
                "CHECKPOINTD_SOURCE__MAX_RECORD": "1MiB",
                "CHECKPOINTD_DRAIN__ACCEPT_UNREGISTRABLE": "true",
                "CHECKPOINTD_DRAIN__UNANSWERED": "truncate",
                "CHECKPOINTD_ENDPOINT__LISTEN": "",
            },
        )
        assert settings.redis.read_password() == "pw"
        assert settings.registry.partitions == 64
        assert settings.source.breakpoints == ("ask", "review")
        assert settings.source.max_record == 1 << 20
        assert settings.drain.accept_unregistrable is True
        assert settings.drain.unanswered == "truncate"
        assert settings.endpoint.address is None

    def test_gives_a_list_as_json_too(self) -> None:
        settings = load_settings(None, {"CHECKPOINTD_SOURCE__BREAKPOINTS": '["a,b"]'})
        assert settings.source.breakpoints == ("a,b",)

    def test_a_wrong_value_is_blamed_on_its_variable(self) -> None:
        (why,) = complaints(None, {"CHECKPOINTD_DRAIN__CONCURRENCY": "many"})
        assert why == "CHECKPOINTD_DRAIN__CONCURRENCY: 'many' is no whole number"

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("SOURCE__BREAKPOINTS", "[oops", "no list"),
            ("DRAIN__ACCEPT_UNREGISTRABLE", "perhaps", "neither true nor false"),
            ("SOURCE__MAX_RECORD", "5", "of what?"),
            ("REPLAY__TIMEOUT", "30", "of what?"),
        ],
    )
    def test_a_value_that_cannot_be_read_is_refused(self, name: str, text: str, said: str) -> None:
        (why,) = complaints(None, {f"CHECKPOINTD_{name}": text})
        assert why.startswith(f"CHECKPOINTD_{name}: ")
        assert said in why

    def test_a_misspelt_variable_is_noticed(self) -> None:
        assert complaints(
            None, {"CHECKPOINTD_REDIS__URLL": "x", "CHECKPOINTD_RECONCIL__GRACE": "1h"}
        ) == (
            "CHECKPOINTD_RECONCIL__GRACE: there is no section [reconcil]; did you mean reconcile?",
            "CHECKPOINTD_REDIS__URLL: there is no setting redis.urll; did you mean redis.url?",
        )

    def test_a_single_underscore_is_noticed(self) -> None:
        (why,) = complaints(None, {"CHECKPOINTD_REDIS_URL": "redis://h"})
        assert "CHECKPOINTD_REDIS__URL" in why

    def test_what_kubernetes_puts_there_is_left_alone(self) -> None:
        environ = {
            "CHECKPOINTD_SERVICE_HOST": "10.0.0.1",
            "CHECKPOINTD_PORT_9464_TCP_ADDR": "10.0.0.1",
            "CHECKPOINTD_CONFIG": "x",
            "CHECKPOINTD_ACTOR": "ann",
            "OTHER_REDIS__URL": "x",
        }
        assert load_settings(None, environ) == Settings()


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[redis]\nurll = 1", "there is no setting redis.urll; did you mean redis.url?"),
            ("[Redis]\nurl = 'x'", "there is no section [Redis]; did you mean redis?"),
            ("[drian]\n", "there is no section [drian]; did you mean drain?"),
            ("[drain]\nttl = '1s'", "there is no setting drain.ttl; did you mean lease.ttl?"),
            ("grace = '1h'", "'grace' stands outside a section; it belongs under [reconcile] or"),
            ("redis = 'x'", "redis is a section; write [redis] and its settings below"),
            ("[log]\ncolour = 1", "there is no setting log.colour; known are level, format"),
            ("[zzz]\n", "there is no section [zzz]; known are redis, registry"),
        ],
    )
    def test_are_refused_with_what_was_probably_meant(
        self, written: Write, text: str, said: str
    ) -> None:
        (why,) = complaints(written(text))
        assert why.startswith(said)


class TestValues:
    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("reconcile.grace", "30", "30 of what?"),
            ("reconcile.grace", '"0s"', "longer than zero"),
            ("reconcile.grace", '"-5s"', "is no duration"),
            ("reconcile.every", '"0s"', "longer than zero"),
            ("reconcile.max_expiries", "0", "1 is the least"),
            ("registry.partitions", "0", "1 is the least"),
            ("registry.partitions", "1025", "1,024 is the most"),
            ("registry.partitions", "true", "no whole number"),
            ("registry.partitions", "1.5", "no whole number"),
            ("registry.partitions", '"16"', "no whole number"),
            ("registry.namespace", '""', "empty"),
            ("registry.namespace", '"a{b}"', "brace"),
            ("registry.namespace", r'"a\u0000"', "control character"),
            ("registry.namespace", f'"{"x" * 65}"', "64 is the most"),
            ("redis.url", '"http://h"', "known are redis, rediss"),
            ("redis.url", '"rdis://h"', "did you mean redis?"),
            ("redis.url", '"redis"', "unknown here"),
            ("redis.url", '"redis://"', "names no host"),
            ("redis.url", '"redis://h:99999"', "no valid port"),
            ("redis.url", '"redis+sentinel://a:1,b:x/m"', "no valid port"),
            ("redis.url", '"redis://[::1"', "is no URL"),
            ("redis.url", '"embedded://"', "names no path"),
            ("redis.url", "5", "is no text"),
            ("source.url", '"/a/b.sqlite"', "sqlite:////a/b.sqlite"),
            ("source.url", '"python:nothing"', "names no factory"),
            ("source.max_record", "5", "of what?"),
            ("source.breakpoints", '"ask"', "no list"),
            ("source.breakpoints", "[1]", "is no text"),
            ("source.messages_channel", '""', "empty"),
            ("drain.unanswered", '"drop"', "'quarantine' or 'truncate'"),
            ("drain.accept_unregistrable", '"perhaps"', "neither true nor false"),
            ("replay.url", '"turnstat:"', "did you mean turnstate"),
            ("replay.url", '"turnstate"', "unknown here"),
            ("replay.url", '"python:a.b"', "names no factory"),
            ("replay.url", '"http://"', "names no host"),
            ("endpoint.listen", '"9464"', "HOST:PORT"),
            ("endpoint.listen", '":9464"', "0.0.0.0:9464"),
            ("endpoint.listen", '"::1:9464"', "[::1]:9464"),
            ("endpoint.listen", '"h:70000"', "no valid port"),
            ("log.level", '"loud"', "none of"),
        ],
    )
    def test_that_cannot_be_used_are_refused(
        self, written: Write, key: str, value: str, said: str
    ) -> None:
        section, name = key.split(".")
        (why,) = complaints(written(f"[{section}]\n{name} = {value}\n"))
        assert why.startswith(f"{key}: ")
        assert said in why

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("redis.url", "rediss://u:p@h:6380/1"),
            ("redis.url", "unix:///run/redis.sock"),
            ("redis.url", "redis+sentinel://a:1,b:2/main/0"),
            ("redis.url", "redis+cluster://a:1,b:2"),
            ("redis.url", "embedded://./data"),
            ("redis.url", "embedded:///var/lib/checkpointd"),
            ("source.url", "sqlite:///a/b.sqlite"),
            ("source.url", "python:package.module:factory"),
            ("replay.url", "python:package.module:factory"),
            ("replay.url", "http://127.0.0.1:8080/replay"),
            ("drain.settle", "0s"),
            ("source.settle", "0s"),
            ("registry.namespace", "chèque:1"),
            ("endpoint.listen", "[::1]:0"),
        ],
    )
    def test_that_can_be_used_are_taken(self, written: Write, key: str, value: str) -> None:
        section, name = key.split(".")
        load_settings(written(f'[{section}]\n{name} = "{value}"\n'), {})

    def test_all_complaints_come_at_once(self, written: Write) -> None:
        path = written(
            '[redis]\nurll = 1\n[reconcile]\ngrace = 30\nevery = "x"\n[lease]\nttl = "2s"\n[nope]\n'
        )
        said = complaints(path, {"CHECKPOINTD_LOG__LEVEL": "loud"})
        assert len(said) == 6

    def test_of_a_section_that_failed_the_others_are_still_compared(self, written: Write) -> None:
        said = complaints(written('[lease]\nttl = "11s"\nrenew_every = 5\n'))
        assert any("lease.ttl 11s is too short" in why for why in said)
        assert not any("leaves no room" in why for why in said)

    def test_an_enormous_one_is_not_repeated_whole(self, written: Write) -> None:
        (why,) = complaints(written(f'[redis]\nurl = "{"x" * 1_000_000}"\n'))
        assert len(why) < 400


class TestValuesBesideEachOther:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('[lease]\nrenew_every = "8s"', "no room for one renewal"),
            ('[redis]\ntimeout = "8s"', "no room for one renewal"),
            ('[lease]\nttl = "14s"', "at least 1.5 * lease.deadline = 15s"),
            ('[drain]\nbackoff_cap = "1ms"', "below drain.backoff_base"),
            ('[redis]\npassword = "a"\npassword_file = "/b"', "keep one of them"),
            ('[redis]\nurl = "redis://:a@h"\npassword = "b"', "keep one of them"),
            ('[redis]\nurl = "redis://u@h"\nusername = "v"', "each name a user"),
            ('[redis]\nurl = "rediss://h"\ncert_file = "a"', "needs its key"),
            ('[redis]\nca_file = "a"', "does not use TLS"),
        ],
    )
    def test_that_contradict_each_other_are_refused(
        self, written: Write, text: str, said: str
    ) -> None:
        (why,) = complaints(written(text))
        assert said in why

    def test_a_lease_too_short_for_a_second_is_refused(self) -> None:
        environ = {
            "CHECKPOINTD_LEASE__TTL": "900ms",
            "CHECKPOINTD_LEASE__DEADLINE": "500ms",
            "CHECKPOINTD_LEASE__RENEW_EVERY": "10ms",
            "CHECKPOINTD_REDIS__TIMEOUT": "50ms",
        }
        (why,) = complaints(None, environ)
        assert "1s is the least" in why

    def test_the_defaults_agree_and_give_no_hint(self) -> None:
        assert hints(load_settings(None, {})) == ()

    def test_an_interval_above_the_grace_is_a_hint(self, written: Write) -> None:
        (hint,) = hints(load_settings(written('[reconcile]\ngrace = "1s"\n'), {}))
        assert "reconcile.every 1m is longer than reconcile.grace 1s" in hint


class TestSecrets:
    @pytest.mark.parametrize(
        "text",
        [
            '[redis]\npassword = "hunter2"',
            '[redis]\nurl = "redis://u:hunter2@h"',
            '[source]\nurl = "postgresql://u:hunter2@h/db"',
            '[replay]\nurl = "http://u:hunter2@h/"',
        ],
    )
    def test_are_shown_nowhere(self, written: Write, text: str) -> None:
        settings = load_settings(written(text), {})
        assert "hunter2" not in repr(settings) + str(settings) + str(describe(settings))

    @pytest.mark.parametrize(
        "text",
        [
            '[redis]\nurl = "rdis://u:hunter2@h"',
            '[redis]\nurl = "redis://u:hunter2@h:x"',
            '[redis]\npassword = ["hunter2"]',
            '[source]\nurl = "//u:hunter2@h"',
            '[replay]\nurl = "htp://u:hunter2@h"',
        ],
    )
    def test_are_in_no_complaint(self, written: Write, text: str) -> None:
        with pytest.raises(ConfigError) as refused:
            load_settings(written(text), {})
        assert "hunter2" not in str(refused.value)

    def test_a_file_is_read_again_each_time(self, tmp_path: Path) -> None:
        path = tmp_path / "password"
        redis = Redis(password_file=str(path))
        path.write_text("one\n")
        assert redis.read_password() == "one"
        path.write_text("two")
        assert redis.read_password() == "two"

    def test_a_file_that_is_gone_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"password_file .* cannot be read"):
            Redis(password_file=str(tmp_path / "none")).read_password()

    def test_are_taken_from_the_url_unquoted(self) -> None:
        redis = Redis(url="redis://ann:p%40w@h")
        assert (redis.read_username(), redis.read_password()) == ("ann", "p@w")

    def test_none_is_none(self) -> None:
        assert (Redis().read_username(), Redis().read_password()) == (None, None)


class TestSettings:
    def test_do_not_change(self) -> None:
        with pytest.raises(ValidationError):
            Settings().redis.timeout = timedelta(seconds=3)  # type: ignore[misc]

    def test_are_described_as_a_file_would_say_them(self) -> None:
        shown = describe(Settings(redis=Redis(password=SecretStr("x"))))
        assert shown["redis"]["password"] == MASK
        assert shown["reconcile"] == {"every": "1m", "grace": "1h", "max_expiries": 1000}
        assert shown["source"]["max_record"] == "64MiB"
        assert shown["source"]["breakpoints"] == []

    def test_the_address_to_listen_on_is_taken_apart(self) -> None:
        settings = load_settings(None, {"CHECKPOINTD_ENDPOINT__LISTEN": "[::1]:9464"})
        assert settings.endpoint.address == ("::1", 9464)


class TestAReload:
    def test_takes_what_may_change_and_names_the_rest(self, written: Write) -> None:
        old = Settings()
        new = load_settings(
            written(
                '[reconcile]\ngrace = "2h"\n[lease]\nttl = "20s"\n[log]\nlevel = "debug"\nformat = "json"\n'
            ),
            {},
        )
        now, refused = reloadable_changes(old, new)
        assert now.reconcile.grace == timedelta(hours=2)
        assert now.log.level == "debug"
        assert now.lease == old.lease
        assert now.log.format == "auto"
        assert refused == ["lease.ttl", "log.format"]

    def test_of_the_same_settings_changes_nothing(self) -> None:
        assert reloadable_changes(Settings(), Settings()) == (Settings(), [])

    def test_what_may_change_exists(self) -> None:
        names = {f"{s}.{k}" for s, model in SECTIONS.items() for k in model.model_fields}
        assert names >= RELOADABLE
