"""Doctor, over a real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis

pytestmark = pytest.mark.server


def verdicts(command: Any) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in command.json("doctor")["checks"]}


class TestDoctor:
    def test_finds_nothing_wrong_where_nothing_is(self, command: Any, source: Path) -> None:
        document = command.json("doctor")
        assert document["ok"] is True
        assert {check["name"] for check in document["checks"]} >= {
            *("store", "server", "eviction", "memory", "persistence", "replication", "schema"),
            *("partitions", "environment", "scripts", "clock", "grace", "source", "lease"),
        }
        assert command("doctor").exit_code == 0

    def test_writes_nothing(self, command: Any, source: Path, store: str) -> None:
        with Redis(unix_socket_path=store.removeprefix("unix://")) as client:
            before = sorted(client.keys())
            command("doctor")
            assert sorted(client.keys()) == before

    def test_fits_into_eighty_columns(self, command: Any, source: Path) -> None:
        assert max(map(len, command("doctor").stdout.splitlines())) <= 80

    def test_says_a_store_that_is_down_and_looks_at_the_rest(
        self, command: Any, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CHECKPOINTD_REDIS__URL", "unix:///nowhere/none.sock")
        found = verdicts(command)
        assert (found["store"], found["source"], found["lease"]) == ("fail", "ok", "ok")
        assert command("doctor").exit_code == 1

    def test_says_a_registry_that_is_another_ones(
        self, command: Any, registered: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registered("a", "1")
        monkeypatch.setenv("CHECKPOINTD_REGISTRY__ENVIRONMENT", "production")
        monkeypatch.setenv("CHECKPOINTD_REGISTRY__PARTITIONS", "8")
        found = verdicts(command)
        assert (found["schema"], found["environment"], found["partitions"]) == (
            "ok",
            "fail",
            "fail",
        )

    def test_says_a_source_that_cannot_be_read(self, command: Any, source: Path) -> None:
        source.write_bytes(b"no database at all")
        assert verdicts(command)["source"] == "fail"

    def test_says_a_source_that_the_registry_does_not_account_for(
        self, command: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command("once", "adopt")
        other = tmp_path / "other.sqlite"
        other.write_bytes(source.read_bytes())
        monkeypatch.setenv("CHECKPOINTD_SOURCE__URL", f"sqlite://{other}")
        assert verdicts(command)["source"] == "fail"

    def test_tells_the_sources_size(self, command: Any, source: Path) -> None:
        said = command("doctor").stdout
        assert "25 threads in 0.3 MiB" in said

    def test_of_a_server_that_evicts_is_a_failure(
        self, command: Any, store: str, start_server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evicting = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
        with start_server(options=evicting) as server:
            monkeypatch.setenv("CHECKPOINTD_REDIS__URL", server.url)
            assert verdicts(command)["eviction"] == "fail"

    def test_says_that_it_cannot_say_where_it_may_not_ask(
        self, command: Any, store: str, start_server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with start_server() as server:
            with Redis(unix_socket_path=server.path) as client:
                client.execute_command("ACL", "SETUSER", "default", "-info", "-config")
            monkeypatch.setenv("CHECKPOINTD_REDIS__URL", server.url)
            found = {c["name"]: c for c in command.json("doctor")["checks"]}
        for name in ("server", "eviction", "memory", "persistence", "replication"):
            assert found[name]["verdict"] == "warn"
            assert found[name]["sentence"].startswith("cannot say")
        assert found["scripts"]["verdict"] == "ok"

    def test_says_that_scripts_may_not_be_run(
        self, command: Any, store: str, start_server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with start_server() as server:
            with Redis(unix_socket_path=server.path) as client:
                client.execute_command("ACL", "SETUSER", "default", "-@scripting")
            monkeypatch.setenv("CHECKPOINTD_REDIS__URL", server.url)
            assert verdicts(command)["scripts"] == "fail"

    def test_without_a_source_is_content(self, command: Any, store: str) -> None:
        assert verdicts(command)["source"] == "ok"
