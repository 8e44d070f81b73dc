"""The HTTP endpoint: numbers for Prometheus, yes or no for probes, a page for people.

Threads of its own, so that a stuck event loop is seen and not shared. They read what the loop
left for them (callables that do no I/O) and talk to their client, nothing else. Read-only, and
without a password: what must not be seen from outside is bound to loopback, the default.

The standard library serves it: a probe and a scrape need no framework, and nothing that
takes the signal handlers of the process away.
"""

from __future__ import annotations

import errno
import hashlib
import html
import io
import json
import socket
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

from checkpointd.domain.errors import CheckpointdError
from checkpointd.telemetry.logs import tidied

log = structlog.stdlib.get_logger(__name__)

REQUEST_S = 5.0
"""How long one request may take, from its first byte to its last."""
AT_ONCE = 16
"""Requests served at once; one more is told to come back."""

POLL_S = 0.2
"""How often the listening thread looks whether to stop, and whom to cut."""

Live = Callable[[], tuple[bool, str]]
Ready = Callable[[], tuple[bool, list[tuple[str, bool, str]]]]
Status = Callable[[], Mapping[str, Any]]
Headers = list[tuple[str, str]]


class EndpointUnavailableError(CheckpointdError):
    """The address cannot be listened on."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        self.host = host
        self.port = port
        if error.errno == errno.EADDRINUSE:
            why = "another process has the port; stop it, or set endpoint.listen to a free one"
        elif error.errno == errno.EACCES:
            why = "this user may not have the port; set endpoint.listen to one above 1023"
        else:
            why = f"{(error.strerror or str(error)).lower()}; set endpoint.listen to an address of this machine"
        super().__init__(f"the endpoint cannot listen on {shown_address(host, port)}: {why}")


def shown_address(host: str, port: int) -> str:
    """Host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint:
    """Serves ``/metrics``, ``/livez``, ``/readyz``, ``/status.json`` and ``/`` in the background.

    The callables are called in the endpoint's threads: they must be quick and do no I/O.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        registry: CollectorRegistry,
        live: Live,
        ready: Ready,
        status: Status,
    ) -> None:
        self._host = host
        self._port = port
        self._pages = Pages(registry, live=live, ready=ready, status=status)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, the real port where 0 was asked for; ``None`` while it does not."""
        return (self._host, self._server.server_port) if self._server is not None else None

    def start(self) -> None:
        """Listen, then serve in a thread. Again: nothing. ``EndpointUnavailableError``."""
        if self._server is not None:
            return
        try:
            self._server = _Server(self._host, self._port, self._pages)
        except OSError as error:
            raise EndpointUnavailableError(self._host, self._port, error) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": POLL_S},
            name="checkpointd-endpoint",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Free the port; requests under way are cut. Again: nothing.

        Takes up to ``POLL_S``: call it in a thread where the event loop must go on.
        """
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        server.shutdown()
        thread.join(timeout=REQUEST_S)
        server.server_close()


class Pages:
    """The WSGI application: one path, one page."""

    def __init__(
        self, registry: CollectorRegistry, *, live: Live, ready: Ready, status: Status
    ) -> None:
        self._metrics = make_wsgi_app(registry)
        self._live = live
        self._ready = ready
        self._status = status

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method not in ("GET", "HEAD"):
            status, headers, body = _text(405, "read-only: GET and HEAD are served\n")
            headers.append(("Allow", "GET, HEAD"))
        else:
            try:
                status, headers, body = self._page(path, environ)
            except Exception as error:  # noqa: BLE001  # a page that fails is a 500, never a traceback on stderr
                log.warning("page_failed", path=path, error=error)
                status, headers, body = _text(500, "this page failed; the log says why\n")
        headers += [
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        start(status, headers)
        return [b"" if method == "HEAD" else body]

    def _page(self, path: str, environ: WSGIEnvironment) -> tuple[str, Headers, bytes]:
        match path:
            case "/metrics":
                return self._scrape(environ)
            case "/livez":
                alive, why = self._live()
                return _text(200 if alive else 503, f"{'ok' if alive else 'failed'}: {why}\n")
            case "/readyz":
                asked = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
                return self._readiness(verbose="verbose" in asked)
            case "/status.json":
                body = json.dumps(tidied(None, "", dict(self._status())), indent=2, allow_nan=False)
                return _reply(200, "application/json", body + "\n")
            case "/":
                return self._for_people()
            case _:
                return _text(404, "served are /metrics /livez /readyz /status.json and /\n")

    def _scrape(self, environ: WSGIEnvironment) -> tuple[str, Headers, bytes]:
        answered: list[tuple[str, Headers]] = []

        def start(status: str, headers: Headers) -> None:
            answered.append((status, list(headers)))

        chunks = self._metrics({**environ, "REQUEST_METHOD": "GET"}, start)
        status, headers = answered[0]
        return status, headers, b"".join(chunks)

    def _readiness(self, *, verbose: bool) -> tuple[str, Headers, bytes]:
        ready, checks = self._ready()
        told = checks if verbose else [check for check in checks if not check[1]]
        lines = [f"[{'+' if ok else '-'}] {name}: {text}\n" for name, ok, text in told]
        return _text(
            200 if ready else 503, "".join([*lines, "ready\n" if ready else "not ready\n"])
        )

    def _for_people(self) -> tuple[str, Headers, bytes]:
        alive, why = self._live()
        ready, checks = self._ready()
        faults = [] if alive else [why]
        if not ready:
            faults += [f"{name}: {text}" for name, ok, text in checks if not ok]
        page = page_for_people(tidied(None, "", dict(self._status())), faults)
        status, headers, body = _reply(200, "text/html", page)
        headers.append(("Content-Security-Policy", CONTENT_SECURITY_POLICY))
        return status, headers, body


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}"
    "th,td{text-align:left;padding:.2rem 1.5rem .2rem 0;vertical-align:top;font-weight:normal}"
    "th{color:#555}.fault{color:#a00}progress{width:100%}"
)
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded, run, framed or sent: whatever an id or a reason says, it stays text."""


def page_for_people(status: Mapping[str, Any], faults: Iterable[str] = ()) -> str:
    """``/status.json`` as a page: the state and its sentence, then a table for each group."""
    state, sentence = status.get("state") or "starting", status.get("sentence") or ""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta http-equiv="refresh" content="15">',
        f"<title>checkpointd: {html.escape(str(state))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(str(state))}</h1><p>{html.escape(str(sentence))}</p>",
    ]
    parts += [f'<p class="fault">{html.escape(fault)}</p>' for fault in faults]
    progress = status.get("progress")
    if isinstance(progress, int | float):
        parts.append(f'<p><progress value="{progress:.4f}" max="1"></progress> {progress:.1%}</p>')
    single = {k: v for k, v in status.items() if not isinstance(v, dict) and k != "sentence"}
    parts.append(_table(single))
    for name, group in status.items():
        if isinstance(group, dict):
            parts += [f"<h2>{html.escape(name)}</h2>", _table(group)]
    parts.append("<p>Also: /metrics, /livez, /readyz?verbose, /status.json</p></body></html>\n")
    return "".join(parts)


def _table(rows: Mapping[str, Any]) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(name.replace('_', ' '))}</th><td>{html.escape(_cell(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{cells}</table>"


def _cell(value: Any) -> str:
    match value:
        case None:
            return "none"
        case dict():
            return (
                ", ".join(f"{k.replace('_', ' ')}: {_cell(v)}" for k, v in value.items()) or "none"
            )
        case list():
            return ", ".join(_cell(v) for v in value) or "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _reply(code: int, kind: str, body: str) -> tuple[str, Headers, bytes]:
    status = f"{code} {HTTPStatus(code).phrase}"
    return status, [("Content-Type", f"{kind}; charset=utf-8")], body.encode("utf-8", "replace")


def _text(code: int, body: str) -> tuple[str, Headers, bytes]:
    return _reply(code, "text/plain", body)


class _Handler(WSGIRequestHandler):
    """One request; quiet, and with a limit on each wait for its client."""

    timeout = REQUEST_S
    server_version = "checkpointd"

    @override
    def get_stderr(self) -> Any:
        return io.StringIO()

    @override
    def log_message(self, format: str, *args: Any) -> None:  # the base class's name
        """Nothing: probes and scrapes come every few seconds."""

    @override
    def address_string(self) -> str:
        return str(self.client_address[0])


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a request, ``AT_ONCE`` at most, each for ``REQUEST_S`` at most."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._began: dict[socket.socket, float] = {}
        super().__init__((host, port), _Handler)
        self.set_app(pages)

    @override
    def server_bind(self) -> None:
        """Bind without the base class's look-up of the host's name, which may wait for DNS."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )
        self.setup_environ()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._turn_away(request)
            return
        self._began[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._done(request)
            raise

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._done(request)

    @override
    def service_actions(self) -> None:
        """Cut requests that took their time: a client that sends a byte now and then has no right to a thread."""
        limit = time.monotonic() - REQUEST_S
        for request, began in list(self._began.items()):
            if began < limit:
                _cut(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        log.debug("request_failed", error=sys.exc_info()[1])

    @override
    def server_close(self) -> None:
        super().server_close()
        for request in list(self._began):
            _cut(request)

    def _done(self, request: socket.socket) -> None:
        if self._began.pop(request, None) is not None:
            self._free.release()

    def _turn_away(self, request: socket.socket) -> None:
        with suppress(OSError):
            request.settimeout(0.1)
            request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\nbusy\n")
        self.shutdown_request(request)


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # it may have ended by itself
        request.shutdown(socket.SHUT_RDWR)
