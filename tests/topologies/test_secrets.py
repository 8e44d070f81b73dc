"""TLS, a password that is rotated, and nothing secret where anybody may read it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import SSLConnection
from tests.acceptance.conftest import Shell

from checkpointd.app.rooms import connecting, open_rooms
from checkpointd.domain.errors import StoreRefusedError, StoreUnreachableError
from checkpointd.registry.store import Store

from .certificates import Certificates, made_in
from .conftest import installed_server
from .servers import Node, free_port
from .whole import SOURCE, settings_for, whole_run

pytestmark = pytest.mark.server

PASSWORD = "s3cr3t-of-the-store"  # noqa: S105 - of a server that lives as long as its test
NEXT = "s3cr3t-of-tomorrow"
PAGES = ("/status.json", "/", "/metrics", "/livez?verbose", "/readyz?verbose")


@pytest.fixture(scope="module")
def certificates(
    tmp_path_factory: pytest.TempPathFactory, needs: Callable[[str], str]
) -> Certificates:
    needs("openssl")
    return made_in(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Iterator[Node]:
    """A server that speaks TLS only, and only with clients whom the authority knows."""
    port = free_port()
    login = {
        "ssl": True,
        "ssl_ca_certs": certificates.file("ca.crt"),
        "ssl_certfile": certificates.file("client.crt"),
        "ssl_keyfile": certificates.file("client.key"),
    }
    with Node(
        certificates.server_options(port), port=port, login=login, binary=installed_server()
    ) as node:
        yield node


def trusting(certificates: Certificates, *, ca: str = "ca", client: bool = True) -> dict[str, str]:
    files = {"redis__ca_file": certificates.file(f"{ca}.crt")}
    if client:
        files["redis__cert_file"] = certificates.file("client.crt")
        files["redis__key_file"] = certificates.file("client.key")
    return files


class TestTLS:
    async def test_a_whole_run_with_the_authority_and_a_certificate_of_our_own(
        self, tls: Node, certificates: Certificates
    ) -> None:
        tls.ask("CONFIG", "SET", "maxmemory", "200mb")
        settings = settings_for(f"rediss://127.0.0.1:{tls.port}", **trusting(certificates))
        assert await whole_run(settings) == "drained"

    async def test_a_server_of_another_authority_is_not_talked_to(
        self, tls: Node, certificates: Certificates
    ) -> None:
        how = settings_for(f"rediss://127.0.0.1:{tls.port}", **trusting(certificates, ca="other"))
        with pytest.raises(StoreUnreachableError, match="certificate verify failed"):
            await Store.open(connecting(how))

    async def test_a_name_that_is_not_in_the_certificate_is_not_talked_to(
        self, tls: Node, certificates: Certificates
    ) -> None:
        how = settings_for(f"rediss://127.0.0.2:{tls.port}", **trusting(certificates))
        with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.2"):
            await Store.open(connecting(how))

    async def test_without_a_certificate_of_our_own_the_server_hangs_up(
        self, tls: Node, certificates: Certificates
    ) -> None:
        how = settings_for(f"rediss://127.0.0.1:{tls.port}", **trusting(certificates, client=False))
        with pytest.raises(StoreUnreachableError):
            await Store.open(connecting(how))

    async def test_a_plain_connection_is_a_clear_sentence(self, tls: Node) -> None:
        with pytest.raises(StoreUnreachableError):
            await Store.open(f"redis://127.0.0.1:{tls.port}")

    @pytest.mark.parametrize("kind", ["sentinel", "cluster"])
    async def test_reaches_sentinels_and_a_cluster_too(
        self, certificates: Certificates, kind: str
    ) -> None:
        """Their ports stay plain here but for the store's: what is asked is that TLS is spoken."""
        scheme = f"redis+{kind}://127.0.0.1:{free_port()}"
        url = f"{scheme}/tended?ssl=true" if kind == "sentinel" else f"{scheme}?ssl=true"
        store = Store(
            connecting(settings_for(url, **trusting(certificates))), namespace="n", partitions=2
        )
        pools = _pools(store)
        await store.aclose()
        assert all(issubclass(pool.connection_class, SSLConnection) for pool in pools)
        assert all(
            pool.connection_kwargs["ssl_ca_certs"] == certificates.file("ca.crt") for pool in pools
        )


def _pools(store: Store) -> list[Any]:
    client: Any = store.client
    if hasattr(client, "connection_pool"):
        pool = client.connection_pool
        return [pool, *(s.connection_pool for s in pool.sentinel_manager.sentinels)]
    return [client._node(("127.0.0.1", 1)).connection_pool]


class TestAPasswordFile:
    @pytest.fixture
    def guarded(self) -> Iterator[Node]:
        with Node(
            ("--requirepass", PASSWORD), login={"password": PASSWORD}, binary=installed_server()
        ) as node:
            yield node

    async def test_is_read_again_at_each_reconnect(self, guarded: Node, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(PASSWORD + "\n")
        settings = settings_for(f"redis://127.0.0.1:{guarded.port}", redis__password_file=str(file))
        async with open_rooms(settings, actor="test") as rooms:
            await rooms.status()
            guarded.ask("CONFIG", "SET", "requirepass", NEXT)
            guarded.login = {"password": NEXT}
            guarded.ask("CLIENT", "KILL", "TYPE", "normal")
            with pytest.raises(StoreRefusedError, match="WRONGPASS") as refused:
                await rooms.status()
            assert not refused.value.transient
            file.write_text(NEXT + "\n")
            await rooms.status()
            await rooms.control.thaw(reason="r", actor="test")

    async def test_that_is_gone_for_a_moment_is_named_and_waited_for(
        self, guarded: Node, tmp_path: Path
    ) -> None:
        file = tmp_path / "password"
        file.write_text(PASSWORD)
        settings = settings_for(f"redis://127.0.0.1:{guarded.port}", redis__password_file=str(file))
        async with open_rooms(settings, actor="test") as rooms:
            guarded.ask("CLIENT", "KILL", "TYPE", "normal")
            file.unlink()
            for asked in (rooms.status(), rooms.control.thaw(reason="r", actor="test")):
                with pytest.raises(StoreUnreachableError, match=r"password_file .* cannot be read"):
                    await asked
            file.write_text(PASSWORD)
            await rooms.status()

    async def test_is_for_the_primary_and_not_for_its_sentinels(self, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(PASSWORD)
        url = f"redis+sentinel://127.0.0.1:{free_port()}/tended"
        settings = settings_for(url, redis__password_file=str(file))
        store = Store(connecting(settings), namespace="n", partitions=2)
        primary, *watchers = _pools(store)
        await store.aclose()
        provider = primary.connection_kwargs["credential_provider"]
        assert provider.get_credentials() == (PASSWORD,)
        assert watchers
        assert not any(pool.connection_kwargs.get("credential_provider") for pool in watchers)


class TestASecret:
    """A password in the URL or in a file: neither is ever shown."""

    @pytest.fixture
    def guarded(self) -> Iterator[Node]:
        with Node(
            ("--requirepass", PASSWORD), login={"password": PASSWORD}, binary=installed_server()
        ) as node:
            yield node

    @pytest.fixture
    def shell(self, tmp_path: Path) -> Shell:
        shell = Shell(tmp_path)
        shell.set(
            source__url=f"sqlite:///{SOURCE}", endpoint__listen="127.0.0.1:0", drain__settle="0s"
        )
        return shell

    @pytest.fixture(params=["url", "file"])
    def given(self, request: pytest.FixtureRequest, shell: Shell, guarded: Node) -> str:
        """The shell knows the password by this way."""
        place = f"127.0.0.1:{guarded.port}"
        match request.param:
            case "url":
                shell.set(redis__url=f"redis://:{PASSWORD}@{place}")
            case "file":
                (shell.directory / "password").write_text(PASSWORD)
                shell.set(
                    redis__url=f"redis://{place}",
                    redis__password_file=str(shell.directory / "password"),
                )
        return str(request.param)

    def test_is_in_no_log_line_page_or_print_of_the_settings(
        self, shell: Shell, guarded: Node, given: str
    ) -> None:
        assert given
        shell.set(reconcile__every="1s")
        seen: list[str] = []
        for words in (("check-config",), ("check-config", "--json"), ("doctor",), ("status",)):
            done = shell(*words)
            seen += [done.stdout, done.stderr]
        with shell.running("--debug", "run") as daemon:
            address = daemon.said("daemon_started")["endpoint"]
            seen += [_page(address + page) for page in PAGES]
            guarded.ask("CONFIG", "SET", "requirepass", NEXT)
            guarded.login = {"password": NEXT}
            guarded.ask("CLIENT", "KILL", "TYPE", "normal")
            while "WRONGPASS" not in str(daemon.said("pass_failed")):
                pass
            seen += [_page(address + page) for page in PAGES]
            assert daemon.end() == 0
            seen += daemon.lines
        assert seen
        assert not [text for text in seen if PASSWORD in text or NEXT in text]

    def test_is_in_no_traceback(self, shell: Shell, guarded: Node, given: str) -> None:
        assert given
        guarded.ask("CONFIG", "SET", "requirepass", NEXT)
        guarded.login = {"password": NEXT}
        done = shell("--debug", "status")
        assert "Traceback" in done.stderr
        assert "WRONGPASS" in done.stderr
        assert PASSWORD not in done.stdout + done.stderr


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())
