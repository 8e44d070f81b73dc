"""The user that is shipped may do what the daemon does, and no more: with any right fewer it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import redis

from checkpointd.domain.errors import CheckpointdError, StoreRefusedError
from checkpointd.registry.store import Store

from .conftest import bundled_server, installed_server, oldest_server
from .servers import ClusterOfNodes, Node
from .whole import settings_for, whole_run

pytestmark = pytest.mark.server

RULE = next(
    line
    for line in (Path(__file__).parents[2] / "deploy" / "redis" / "checkpointd.acl")
    .read_text("utf-8")
    .splitlines()
    if line.startswith("user ")
)
PASSWORD = "p4ss word/with:odd@signs"  # noqa: S105 - of a server that lives as long as its test
RIGHTS = tuple(word for word in RULE.split() if word.startswith("+"))
OF_A_CLUSTER = tuple(right for right in RIGHTS if right.startswith("+cluster|"))


def words(*, without: str = "", namespace: str = "checkpointd") -> list[str]:
    """The rule as ``ACL SETUSER`` takes it, as somebody who follows its comments would send it."""
    parts = RULE.removeprefix("user ").split()
    assert parts[:3] == ["checkpointd", "off", ">CHANGE-ME"]
    return [
        parts[0],
        *("reset", "on", f">{PASSWORD}"),
        *(w.replace("{checkpointd:", f"{{{namespace}:") for w in parts[3:] if w != without),
    ]


SERVERS = {"oldest": oldest_server, "installed": installed_server, "valkey": bundled_server}


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Node]:
    with Node(("--maxmemory", "200mb"), binary=SERVERS[request.param]()) as node:
        yield node


@pytest.fixture
def fresh(server: Node) -> Node:
    """Empty, without scripts, with the user as it is shipped."""
    server.ask("FLUSHALL")
    server.ask("SCRIPT", "FLUSH")
    server.ask("ACL", "SETUSER", *words())
    return server


def as_the_user(node: Node, scheme: str = "redis") -> dict[str, str]:
    return {
        "url": f"{scheme}://127.0.0.1:{node.port}",
        "redis__username": "checkpointd",
        "redis__password": PASSWORD,
    }


class TestTheRule:
    async def test_suffices_for_a_whole_run(self, fresh: Node) -> None:
        assert await whole_run(settings_for(**as_the_user(fresh))) == "drained"

    async def test_leaves_no_denial_in_the_servers_log(self, fresh: Node) -> None:
        fresh.ask("ACL", "LOG", "RESET")
        await whole_run(settings_for(**as_the_user(fresh)))
        assert fresh.ask("ACL", "LOG") == []

    async def test_reaches_no_key_of_another_registry(self, fresh: Node) -> None:
        settings = settings_for(**as_the_user(fresh), registry__namespace="other")
        with pytest.raises(StoreRefusedError, match="NOPERM"):
            await whole_run(settings)
        assert fresh.ask("DBSIZE") == 0

    @pytest.mark.parametrize("command", [("CONFIG", "GET", "*"), ("FLUSHALL",), ("KEYS", "*")])
    def test_lets_nobody_do_anything_else(self, fresh: Node, command: tuple[str, ...]) -> None:
        login = {"username": "checkpointd", "password": PASSWORD}
        with (
            redis.Redis(port=fresh.port, **login) as client,  # type: ignore[arg-type]
            pytest.raises(redis.exceptions.NoPermissionError),
        ):
            client.execute_command(*command)


@pytest.mark.parametrize("server", ["installed"], indirect=True)
class TestOneRightFewer:
    @pytest.mark.parametrize("right", [r for r in RIGHTS if r not in OF_A_CLUSTER])
    async def test_is_one_too_few(self, fresh: Node, right: str) -> None:
        fresh.ask("ACL", "SETUSER", *words(without=right))
        try:
            said = await whole_run(settings_for(**as_the_user(fresh)))
        except (CheckpointdError, AssertionError) as error:
            said = str(error)
        if right == "+info":
            assert said == ""  # all but the memory ratio
        else:
            assert "NOPERM" in said

    @pytest.mark.parametrize("right", ["+xadd", "+hincrby", "+zrem", "+pexpire", "+del"])
    async def test_is_named_before_anything_is_written(self, fresh: Node, right: str) -> None:
        fresh.ask("ACL", "SETUSER", *words(without=right))
        with pytest.raises(StoreRefusedError, match=f"NOPERM.* {right[1:].upper()}"):
            await whole_run(settings_for(**as_the_user(fresh)))
        left = [key for key in fresh.ask("KEYS", "*") if not key.endswith(":turn:rights")]
        assert left == []


class TestOnACluster:
    @pytest.mark.parametrize("right", ["", *OF_A_CLUSTER])
    async def test_the_two_more_rights_are_needed(
        self, clustered: ClusterOfNodes, right: str
    ) -> None:
        namespace = f"acl{len(right)}"
        for node in clustered.nodes:
            node.ask("ACL", "SETUSER", *words(without=right, namespace=namespace))
        how = {"redis__username": "checkpointd", "redis__password": PASSWORD}
        settings = settings_for(clustered.url, **how, registry__namespace=namespace)
        try:
            said = await whole_run(settings)
        except (CheckpointdError, AssertionError) as error:
            said = str(error)
        # A cluster without a memory limit has no ratio to show, which is all that is missing.
        assert said == "" if not right else "NOPERM" in said


class TestTheCheckAtTheStart:
    def test_tries_every_command_of_the_scripts(self) -> None:
        lua = resources.files("checkpointd.registry") / "lua"
        texts = {f.name: f.read_text("utf-8") for f in lua.iterdir() if f.name.endswith(".lua")}
        tried = set(re.findall(r"try\('([A-Z]+)'", texts.pop("rights.lua")))
        used = set(re.findall(r"\bp?call\('([A-Z]+)'", "\n".join(texts.values())))
        assert tried == used

    async def test_leaves_nothing_behind(self, fresh: Node) -> None:
        store = await Store.open(f"redis://127.0.0.1:{fresh.port}", namespace="n", partitions=2)
        await store.aclose()
        assert not [key for key in fresh.ask("KEYS", "*") if "rights" in key]
