from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from checkpointd.domain.errors import CheckpointdError
from checkpointd.telemetry import endpoint as module
from checkpointd.telemetry.endpoint import Endpoint, EndpointUnavailableError, page_for_people
from checkpointd.telemetry.metrics import Metrics


class Daemon:
    """What the endpoint is given to show."""

    def __init__(self) -> None:
        self.alive = (True, "the event loop turns")
        self.ready: tuple[bool, list[tuple[str, bool, str]]] = (True, [("store", True, "answers")])
        self.status: dict[str, Any] = {"state": "draining", "sentence": "3 of 9 left"}
        self.hold: Callable[[], None] = lambda: None

    def live(self) -> tuple[bool, str]:
        self.hold()
        return self.alive


@pytest.fixture(autouse=True)
def quick_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def endpoint(daemon: Daemon, registry: CollectorRegistry, metrics: Metrics) -> Iterator[Endpoint]:
    served = made(daemon, registry)
    served.start()
    yield served
    served.stop()


def made(daemon: Daemon, registry: CollectorRegistry, port: int = 0) -> Endpoint:
    return Endpoint(
        host="127.0.0.1",
        port=port,
        registry=registry,
        live=daemon.live,
        ready=lambda: daemon.ready,
        status=lambda: daemon.status,
    )


def port_of(endpoint: Endpoint) -> int:
    assert endpoint.address is not None
    return endpoint.address[1]


def ask(
    endpoint: Endpoint, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body
    finally:
        connection.close()


class TestMetricsPage:
    def test_is_prometheus_text(self, endpoint: Endpoint) -> None:
        status, headers, body = ask(endpoint, "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        assert 'checkpointd_build_info{version="1.2.3"} 1.0' in body

    def test_can_be_filtered_and_compressed(self, endpoint: Endpoint) -> None:
        _, _, body = ask(endpoint, "/metrics?name[]=checkpointd_build_info")
        assert "checkpointd_redis_up" not in body
        _, headers, _ = ask(endpoint, "/metrics", headers={"Accept-Encoding": "gzip"})
        assert headers["content-encoding"] == "gzip"


class TestProbes:
    def test_a_live_daemon_is_200_and_another_503(self, endpoint: Endpoint, daemon: Daemon) -> None:
        assert ask(endpoint, "/livez")[0] == 200
        daemon.alive = (False, "the event loop has not turned for 9 s")
        status, _, body = ask(endpoint, "/livez")
        assert (status, body) == (503, "failed: the event loop has not turned for 9 s\n")
        assert ask(endpoint, "/metrics")[0] == 200

    def test_readiness_names_what_fails(self, endpoint: Endpoint, daemon: Daemon) -> None:
        assert ask(endpoint, "/readyz")[::2] == (200, "ready\n")
        daemon.ready = (False, [("config", True, "read"), ("store", False, "no answer")])
        assert ask(endpoint, "/readyz")[::2] == (503, "[-] store: no answer\nnot ready\n")

    @pytest.mark.parametrize("query", ["?verbose", "?verbose=1"])
    def test_readiness_can_name_everything(self, endpoint: Endpoint, query: str) -> None:
        assert ask(endpoint, f"/readyz{query}")[2] == "[+] store: answers\nready\n"


class TestStatusPages:
    def test_the_json_is_valid_whatever_a_number_is(
        self, endpoint: Endpoint, daemon: Daemon
    ) -> None:
        daemon.status = {"state": "draining", "progress": float("nan"), "refs": {"open": 1}}
        status, headers, body = ask(endpoint, "/status.json")
        assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
        assert json.loads(body) == {"state": "draining", "progress": None, "refs": {"open": 1}}

    def test_the_page_shows_the_same_to_people(self, endpoint: Endpoint, daemon: Daemon) -> None:
        daemon.status = {
            "state": "stalled",
            "sentence": "one ref waits",
            "progress": 0.5,
            "eta_seconds": None,
            "refs": {"quarantined": 12345},
            "passes": {"drain": {"last_run": "2026-05-01", "ok": True, "lines": ["a", "b"]}},
        }
        daemon.ready = (False, [("store", False, "no answer")])
        daemon.alive = (False, "stuck")
        status, headers, body = ask(endpoint, "/")
        assert status == 200
        assert headers["content-type"] == "text/html; charset=utf-8"
        for said in ("stalled", "one ref waits", "50.0%", "12,345", "no answer", "stuck", "a, b"):
            assert said in body

    def test_the_page_escapes_everything(self) -> None:
        nasty = "<script>alert(1)</script>&\"'"
        page = page_for_people(
            {"state": nasty, "sentence": nasty, nasty: nasty, "g": {nasty: {nasty: [nasty]}}},
            [nasty],
        )
        assert "<script" not in page
        assert "alert(1)" in page

    def test_the_page_lets_nothing_be_loaded_or_run(self, endpoint: Endpoint) -> None:
        _, headers, _ = ask(endpoint, "/")
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy

    def test_the_page_is_there_before_anything_is_known(
        self, endpoint: Endpoint, daemon: Daemon
    ) -> None:
        daemon.status = {}
        assert "starting" in ask(endpoint, "/")[2]

    def test_a_page_that_fails_is_a_500_without_its_reason(
        self,
        endpoint: Endpoint,
        daemon: Daemon,
        lines: list[Any],
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        daemon.status = 5  # type: ignore[assignment]  # what no caller gives
        status, _, body = ask(endpoint, "/status.json")
        assert (status, body) == (500, "this page failed; the log says why\n")
        assert [line["event"] for line in lines] == ["page_failed"]
        assert capfd.readouterr().err == ""


class TestRequests:
    @pytest.mark.parametrize(
        "path", ["/nope", "/metrics/", "//x", "/livez/x", "/favicon.ico", "/%00"]
    )
    def test_for_anything_else_are_404(self, endpoint: Endpoint, path: str) -> None:
        assert ask(endpoint, path)[0] == 404

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
    @pytest.mark.parametrize("path", ["/metrics", "/livez", "/"])
    def test_that_would_change_something_are_405(
        self, endpoint: Endpoint, method: str, path: str
    ) -> None:
        status, headers, _ = ask(endpoint, path, method=method)
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    @pytest.mark.parametrize(
        "path", ["/metrics", "/livez", "/readyz", "/status.json", "/", "/nope"]
    )
    def test_for_the_head_alone_get_no_body(self, endpoint: Endpoint, path: str) -> None:
        got, head = ask(endpoint, path), ask(endpoint, path, method="HEAD")
        assert head[0] == got[0]
        assert head[2] == ""
        assert int(head[1]["content-length"]) > 0

    @pytest.mark.parametrize(
        "raw", [b"\x00\x01\xff\n\n", b"GET\n\n", b"GET / HTTP/9.9\n\n", b"GET " + b"x" * 70_000]
    )
    def test_that_are_garbage_are_refused_quietly(
        self, endpoint: Endpoint, raw: bytes, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=10) as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        assert ask(endpoint, "/livez")[0] == 200
        assert capfd.readouterr().err == ""

    def test_that_dawdle_are_cut(self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "REQUEST_S", 0.1)
        with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=10) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\n")
            assert client.recv(100) == b""

    def test_are_bounded_in_number_and_one_more_is_told_to_come_back(
        self, endpoint: Endpoint, daemon: Daemon
    ) -> None:
        go, waiting = threading.Event(), threading.Semaphore(0)

        def hold() -> None:
            waiting.release()
            go.wait(10)

        daemon.hold = hold
        held = [
            threading.Thread(target=ask, args=(endpoint, "/livez")) for _ in range(module.AT_ONCE)
        ]
        for thread in held:
            thread.start()
        for _ in held:
            assert waiting.acquire(timeout=10)
        assert ask(endpoint, "/metrics")[0] == 503
        go.set()
        for thread in held:
            thread.join(10)
        daemon.hold = lambda: None
        assert ask(endpoint, "/metrics")[0] == 200


class TestStartAndStop:
    def test_start_stop_start_on_one_port_works(
        self, daemon: Daemon, registry: CollectorRegistry
    ) -> None:
        first = made(daemon, registry)
        first.start()
        first.start()
        port = port_of(first)
        ask(first, "/livez")
        first.stop()
        first.stop()
        assert first.address is None
        for _ in range(2):
            again = made(daemon, registry, port)
            again.start()
            assert ask(again, "/livez")[0] == 200
            again.stop()

    def test_a_port_in_use_is_one_sentence_that_names_it(
        self, endpoint: Endpoint, daemon: Daemon, registry: CollectorRegistry
    ) -> None:
        port = port_of(endpoint)
        second = made(daemon, registry, port)
        with pytest.raises(EndpointUnavailableError) as refused:
            second.start()
        assert str(refused.value) == (
            f"the endpoint cannot listen on 127.0.0.1:{port}: another process has the port; "
            "stop it, or set endpoint.listen to a free one"
        )
        assert isinstance(refused.value, CheckpointdError)
        second.stop()

    def test_an_address_that_is_not_of_this_machine_is_named(
        self, registry: CollectorRegistry, daemon: Daemon
    ) -> None:
        elsewhere = Endpoint(
            host="192.0.2.1",
            port=9464,
            registry=registry,
            live=daemon.live,
            ready=lambda: daemon.ready,
            status=lambda: daemon.status,
        )
        with pytest.raises(EndpointUnavailableError, match=r"192\.0\.2\.1:9464"):
            elsewhere.start()

    def test_a_stop_does_not_wait_for_a_client_that_says_nothing(
        self, daemon: Daemon, registry: CollectorRegistry
    ) -> None:
        served = made(daemon, registry)
        served.start()
        with socket.create_connection(("127.0.0.1", port_of(served)), timeout=10) as client:
            ask(served, "/livez")
            served.stop()
            assert client.recv(10) == b""
