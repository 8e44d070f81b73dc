"""Doctor, over a real store."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from checkpointd.cli import doctor
from checkpointd.config import Redis as RedisSettings
from checkpointd.config import Settings

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


class TestOtherKindsOfStore:
    def test_embedded_is_looked_at_too(
        self, command: Any, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("CHECKPOINTD_REDIS__URL", f"embedded://{tmp_path}/data")
        found = verdicts(command)
        assert (found["store"], found["persistence"]) == ("ok", "ok")

    def test_embedded_in_a_file_is_a_failure(
        self, command: Any, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("CHECKPOINTD_REDIS__URL", f"embedded://{tmp_path}/file")
        assert verdicts(command)["store"] == "fail"

    def test_a_cluster_must_serve_every_slot(
        self, command: Any, store: str, start_server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port = free_port()
        with start_server(port=port, options=("--cluster-enabled", "yes")) as server:
            monkeypatch.setenv("CHECKPOINTD_REDIS__URL", f"redis+cluster://127.0.0.1:{port}")
            with Redis(unix_socket_path=server.path) as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
                while client.cluster("INFO")["cluster_state"] != "ok":
                    pass
            found = verdicts(command)
        assert found["cluster"] == "ok"
        assert "replication" not in found

    def test_sentinels_must_find_a_quorum(
        self, command: Any, needs: Any, start_server: Any, tmp_path: Path
    ) -> None:
        binary = needs("redis-server")
        port, sentinel, nobody = free_port(), free_port(), free_port()
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {sentinel}\ndir {tmp_path}\nbind 127.0.0.1\n"
            f"sentinel monitor main 127.0.0.1 {port} 1\n"
        )
        with start_server(port=port), background(binary, str(config), "--sentinel"):
            with Redis(port=sentinel) as client:
                while not answers(client):
                    pass
            assert self.sentinels(sentinel) == "ok"
            assert self.sentinels(sentinel, nobody) == "warn"
            assert self.sentinels(nobody) == "fail"

    def sentinels(self, *ports: int) -> str:
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        settings = Settings(redis=RedisSettings(url=f"redis+sentinel://{places}/main"))
        return str(asyncio.run(doctor.quorum(settings)).verdict)


def free_port() -> int:
    """A port that nobody listens on now; below the ones whose cluster bus would not fit."""
    for _ in range(1000):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port: int = taken.getsockname()[1]
        if port < 55_000:
            return port
    pytest.fail("no port is free")


def answers(client: Any) -> bool:
    """Whether a server listens there already."""
    try:
        return bool(client.ping())
    except RedisConnectionError:
        return False


@contextmanager
def background(*words: str) -> Iterator[None]:
    """A program that runs until the block ends."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(15)
