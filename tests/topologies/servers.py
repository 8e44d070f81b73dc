"""Servers in every arrangement that a URL can name: alone, with replicas and sentinels, as a cluster.

Each is a process of its own on a port that was free a moment ago, ended by its process id.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.conftest import server_binary

READY_WITHIN_S = 20.0
LOOK_EVERY_S = 0.02


_PORTS = random.SystemRandom().sample(range(12_000, 32_000), 20_000)
"""Below those that the system gives to clients, so that none of them takes one in between."""


def free_port() -> int:
    """A port that nobody listens on, and that this process has not had."""
    while True:
        port = _PORTS.pop()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(true: Callable[[], object], what: str, *, within_s: float = READY_WITHIN_S) -> Any:
    """What ``true`` says once it says something; an error of the store counts as nothing."""
    until = time.monotonic() + within_s
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if said := true():
                return said
        assert time.monotonic() < until, f"{what} did not come about within {within_s:g} s"
        time.sleep(LOOK_EVERY_S)


@dataclass
class Node:
    """One server process in a directory of its own."""

    options: tuple[str, ...] = ()
    binary: str = field(default_factory=server_binary)
    login: dict[str, Any] = field(default_factory=dict)
    """How the test itself logs in, where the server asks for it."""
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cpd-node-"))

    @property
    def arguments(self) -> list[str]:
        """What the program is told."""
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *("--maxmemory-policy", "noeviction"),
            *self.options,
        ]

    def start(self, *, wait: bool = True) -> Node:
        """Start it on what its directory holds."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *self.arguments], stdout=log, stderr=log, cwd=self.directory
            )
        if wait:
            wait_until(
                self._answers, f"{self.binary} on port {self.port} (see {self.directory}/log)"
            )
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()[-800:]
        return bool(self.ask("PING"))

    def ask(self, *command: Any) -> Any:
        """What it answers, raw; for the test's own hand on it."""
        with redis.Redis(
            port=self.port,
            socket_timeout=5,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            **self.login,
        ) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """Kill it with -9. Again: nothing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def aclose(self) -> None:
        """End it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.aclose()


def program_version(binary: str) -> str:
    """What the server says of itself, such as ``6.2.5``."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return told.partition("v=")[2].split()[0]


# A primary with replicas and sentinels --------------------------------------------------------


@dataclass
class Watched:
    """A primary, its replica and the sentinels that watch them."""

    primary: Node
    replica: Node
    sentinels: list[Node]
    name: str = "tended"

    @property
    def url(self) -> str:
        """What a configuration would say."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}"

    def leader(self) -> int:
        """The port of the primary, as the sentinels have it."""
        told = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return int(told[1])

    def fail_over(self) -> None:
        """Let the sentinels promote the replica, as an operator does."""
        wait_until(
            lambda: self.sentinels[0].ask("SENTINEL", "FAILOVER", self.name), "a manual failover"
        )


@contextmanager
def watched(
    *,
    sentinels: int = 3,
    link_port: int | None = None,
    primary_port: int | None = None,
    **how: Any,
) -> Iterator[Watched]:
    """A primary and a replica that follows it (by way of ``link_port``), watched by sentinels."""
    with ExitStack() as stack:
        primary = stack.enter_context(
            Node(("--repl-diskless-sync-delay", "0"), port=primary_port or free_port(), **how)
        )
        replica = stack.enter_context(
            Node(
                (
                    *("--replicaof", "127.0.0.1", str(link_port or primary.port)),
                    *("--repl-diskless-sync-delay", "0"),
                ),
                **how,
            )
        )
        wait_until(lambda: "master_link_status:up" in _replication(replica), "the replica's link")
        quorum = sentinels // 2 + 1
        watchers = [
            stack.enter_context(_sentinel(primary.port, quorum, **how)) for _ in range(sentinels)
        ]
        group = Watched(primary, replica, watchers)
        for watcher in watchers:
            wait_until(lambda w=watcher: _sees(w, sentinels), "the sentinels' knowing each other")
        yield group


def _replication(node: Node) -> str:
    with redis.Redis(port=node.port, socket_timeout=5) as client:
        return "\n".join(f"{k}:{v}" for k, v in client.info("replication").items())


def _sees(watcher: Node, sentinels: int) -> bool:
    told = watcher.ask("SENTINEL", "MASTERS")[0]
    facts = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
    seen = (int(facts["num-slaves"]), int(facts["num-other-sentinels"]))
    return seen == (1, sentinels - 1)


class _Sentinel(Node):
    """A server in sentinel mode, by a file that it rewrites."""

    @property
    def arguments(self) -> list[str]:
        return [str(self.directory / "sentinel.conf"), "--sentinel"]


def _sentinel(primary_port: int, quorum: int, **how: Any) -> _Sentinel:
    node = _Sentinel(**how)
    (node.directory / "sentinel.conf").write_text(
        f"port {node.port}\nbind 127.0.0.1\ndir {node.directory}\n"
        f"sentinel monitor tended 127.0.0.1 {primary_port} {quorum}\n"
        "sentinel down-after-milliseconds tended 700\n"
        "sentinel failover-timeout tended 3000\n"
    )
    return node


# A cluster ----------------------------------------------------------------------------------------

SLOTS = 16384


@dataclass
class ClusterOfNodes:
    """Three primaries, a replica to each, all slots served."""

    nodes: list[Node]
    ids: dict[int, str]
    """Each node's name in the cluster, by its port."""

    @property
    def url(self) -> str:
        """What a configuration would say."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])
        return f"redis+cluster://{hosts}"

    def at(self, port: int) -> Node:
        """The node on that port."""
        return next(node for node in self.nodes if node.port == port)

    def primaries(self) -> list[Node]:
        """The nodes that serve slots now, as one of those that live tells."""
        alive = next(node for node in self.nodes if node.process is not None)
        shards = slots_of(alive)
        return [self.at(port) for port in dict.fromkeys(port for _, _, port in shards)]

    def owner(self, slot: int) -> Node:
        """The primary that serves the slot."""
        alive = next(node for node in self.nodes if node.process is not None)
        return next(self.at(p) for first, last, p in slots_of(alive) if first <= slot <= last)

    def is_well(self) -> bool:
        """Whether all that live say that all slots are served and by the same nodes."""
        alive = [node for node in self.nodes if node.process is not None]
        told = {str(slots_of(node)) for node in alive}
        served = {port for _, _, port in slots_of(alive[0])}
        return (
            served <= {n.port for n in alive}
            and len(told) == 1
            and all("cluster_state:ok" in raw(node, "CLUSTER", "INFO") for node in alive)
        )

    def begin_moving(self, slot: int, source: Node, target: Node) -> None:
        """Declare that the slot is on its way: keys that are not here are asked for there."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source.port])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target.port])

    def move_keys(self, slot: int, source: Node, target: Node, most: int) -> int:
        """Move up to ``most`` keys of the slot; how many there were to move."""
        with redis.Redis(port=source.port, socket_timeout=5) as client:
            keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, most)
            if keys:
                client.execute_command(
                    "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys
                )
            return len(keys)

    def end_moving(self, slot: int, target: Node) -> None:
        """Tell everybody whose it is now."""
        for node in (target, *(n for n in self.primaries() if n is not target)):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target.port])


def raw(node: Node, *command: Any) -> str:
    """The answer as text, before any client makes something of it."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=5) as line:
        line.sendall((" ".join(map(str, command)) + "\r\n").encode())
        head, _, rest = line.recv(1 << 16).partition(b"\r\n")
        wanted = int(head[1:])
        while len(rest) < wanted:
            rest += line.recv(1 << 16)
    return rest.decode()


def slots_of(node: Node) -> list[tuple[int, int, int]]:
    """First slot, last slot and the primary's port, for each range that the node knows of."""
    return sorted(
        (int(first), int(last), int(port))
        for first, last, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS")
    )


@contextmanager
def cluster(*, node_timeout_ms: int = 1000, **how: Any) -> Iterator[ClusterOfNodes]:
    """Three primaries and three replicas, joined by the commands that a tool would send."""
    with ExitStack() as stack:
        buses = [free_port() for _ in range(6)]
        nodes = [
            Node(
                (
                    *("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms)),
                    *("--cluster-port", str(bus), "--repl-diskless-sync-delay", "0"),
                    *("--cluster-replica-validity-factor", "0"),
                ),
                **how,
            )
            for bus in buses
        ]
        for node in nodes:
            stack.callback(node.aclose)
            node.start(wait=False)
        for node in nodes:
            wait_until(node._answers, "a node of the cluster")
        ids = {node.port: str(node.ask("CLUSTER", "MYID")) for node in nodes}
        bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        for n, node in enumerate(nodes[:3]):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            node.ask("CLUSTER", "ADDSLOTS", *range(bounds[n], bounds[n + 1]))
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in nodes:
            wait_until(lambda n=node: raw(n, "CLUSTER", "NODES").count("\n") >= 6, "the meeting")
        for primary, replica in zip(nodes[:3], nodes[3:], strict=True):
            wait_until(
                lambda p=primary, r=replica: r.ask("CLUSTER", "REPLICATE", ids[p.port]), "a replica"
            )
        made = ClusterOfNodes(nodes, ids)
        wait_until(made.is_well, "the cluster")
        for replica in nodes[3:]:
            wait_until(lambda r=replica: "link_status:up" in _replication(r), "a replica's link")
        yield made
