"""One server: the oldest that is supported, the distribution's, and Valkey, in either protocol."""

from __future__ import annotations

import pytest
from tests.registry import test_redis

from .drains import a_world, drain_through
from .leases import LeasesOnAStore
from .servers import Node, program_version

pytestmark = pytest.mark.server


class TestTheOldestServerInTheOldProtocol(test_redis._OnAStore):
    """The whole contract on Redis 6.2, in RESP2; on newer ones in RESP3 it is run elsewhere."""

    @pytest.fixture
    def url(self, oldest: Node) -> str:
        return f"redis://127.0.0.1:{oldest.port}?protocol=2"


class EveryServer:
    """One test for each server and protocol."""

    @pytest.fixture(
        params=[(server, p) for server in ("oldest", "installed", "valkey") for p in (2, 3)],
        ids=lambda param: f"{param[0]}-resp{param[1]}",
    )
    def url(self, request: pytest.FixtureRequest) -> str:
        server, protocol = request.param
        node: Node = request.getfixturevalue(server)
        return f"redis://127.0.0.1:{node.port}?protocol={protocol}"


class TestLeases(EveryServer, LeasesOnAStore):
    """The lease suite."""


class TestADrain(EveryServer):
    async def test_migrates_every_ref_once(self, url: str) -> None:
        async with a_world(url) as world:
            story = await drain_through(world)
        assert story.troubles == []


class TestTheOldest:
    def test_is_of_the_line_that_the_scripts_are_written_for(self, oldest: Node) -> None:
        assert program_version(oldest.binary).startswith("6.2.")
