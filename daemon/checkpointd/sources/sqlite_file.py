"""A SQLite file that is read and never touched: not by a journal switch, a recovery or a sidecar.

SQLite itself would write: it rolls back a journal that a crash left, and it leaves
``-wal`` and ``-shm`` files beside a file in WAL mode that nobody has open. Where reading in
place would do either, a private copy is read instead, renewed when the file changes.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote

from checkpointd.domain.errors import SourceUnreachableError

_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\x00"
_WAL_VERSION = 2
_SIDECARS = ("-wal", "-journal")
_COPY_ATTEMPTS = 3

_Stamp = tuple[tuple[int, int, int], ...]


class SqliteFile:
    """One file on disk and the connection that reads it. Not for two threads at once."""

    def __init__(self, path: Path, *, where: str, busy_timeout_s: float) -> None:
        self._named = path
        self._path = path
        """Where the name leads: SQLite keeps its sidecars beside that, not beside a symlink."""
        self._where = where
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._stamp: _Stamp = ()

    def connection(self) -> sqlite3.Connection:
        """An open connection to what the file holds now; reopened if the file was replaced."""
        try:
            self._path = self._named.resolve()
            if self._connection is None or not self._is_current():
                self.close()
                self._connection = self._open()
        except FileNotFoundError as error:
            raise self.unreachable("there is no such file; check source.url") from error
        except IsADirectoryError as error:
            raise self.unreachable("it is a directory and not a SQLite file") from error
        except OSError as error:
            raise self.unreachable(f"{error.strerror or error}; check source.url") from error
        return self._connection

    def close(self) -> None:
        """Let go of the connection and of the copy; a second call does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def unreachable(self, why: str) -> SourceUnreachableError:
        return SourceUnreachableError(self._where, why)

    def failed(self, error: sqlite3.Error) -> SourceUnreachableError:
        """What a driver's error says of the file, in words for the person who must act."""
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_NOTADB"):
            return self.unreachable("it is not a SQLite database; check source.url")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_IOERR_SHORT_READ")):
            return self.unreachable("it is damaged or truncated; restore it from a backup")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return self.unreachable(
                f"another process kept it locked for over {self._busy_timeout_s:g} s; "
                "end that process or wait for it"
            )
        return self.unreachable(str(error))

    def _is_current(self) -> bool:
        """Whether what is open is still what the file holds."""
        if self._copy is not None:
            return self._stamp == self._fingerprint()
        return self._readable_in_place() and self._stamp == self._identity()

    def _open(self) -> sqlite3.Connection:
        if self._readable_in_place():
            self._stamp = self._identity()
            try:
                return self._opened(self._path)
            except sqlite3.OperationalError as error:
                name = getattr(error, "sqlite_errorname", "") or ""
                if not name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                    raise
        return self._opened(self._copied())

    def _opened(self, path: Path) -> sqlite3.Connection:
        # A private copy may be recovered by SQLite itself, which has to write for that.
        mode = "ro" if path == self._path else "rw"
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._refuse_truncated(path)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_truncated(self, path: Path) -> None:
        """Compare the length that the header promises with the length there is.

        Called with the read lock held, so no writer is half-way through growing the file.
        """
        header = _header(path)
        if _is_wal(header) or header[24:28] != header[92:96]:
            return
        page_bytes = int.from_bytes(header[16:18], "big")
        promised = (65536 if page_bytes == 1 else page_bytes) * int.from_bytes(header[28:32], "big")
        if (there := path.stat().st_size) < promised:
            raise self.unreachable(
                f"it is truncated: {there:,} bytes are there and {promised:,} belong to it; "
                "restore it from a backup"
            )

    def _readable_in_place(self) -> bool:
        """Whether opening the file leaves nothing behind.

        A file in WAL mode is opened in place only while another process has it open:
        then the sidecars are there already, and theirs to remove.
        """
        if not stat.S_ISREG(self._path.stat().st_mode) and not self._path.is_dir():
            raise self.unreachable("it is no regular file; check source.url")
        header = _header(self._path)
        if header and not header.startswith(_MAGIC):
            raise self.unreachable("it is not a SQLite database; check source.url")
        return not _is_wal(header) or all(
            self._sidecar(ending).exists() for ending in ("-wal", "-shm")
        )

    def _copied(self) -> Path:
        """A private copy of the file with what belongs to it, as of one moment."""
        for _ in range(_COPY_ATTEMPTS):
            before = self._fingerprint()
            if self._copy is not None:
                self._copy.cleanup()
            self._copy = tempfile.TemporaryDirectory(prefix="checkpointd-source-")
            target = Path(self._copy.name) / "copy.sqlite"
            shutil.copyfile(self._path, target)
            for ending in _SIDECARS:
                if (beside := self._sidecar(ending)).exists():
                    shutil.copyfile(beside, f"{target}{ending}")
            if self._fingerprint() == before:
                self._stamp = before
                return target
        raise self.unreachable(
            "it can only be read from a copy, and it changed each time while it was copied; "
            "stop its writer"
        )

    def _sidecar(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)

    def _identity(self) -> _Stamp:
        found = self._path.stat()
        return ((found.st_dev, found.st_ino, 0),)

    def _fingerprint(self) -> _Stamp:
        """Changes whenever the file, or what SQLite keeps beside it, may have changed."""
        found = [self._path.stat()]
        found += [p.stat() for ending in _SIDECARS if (p := self._sidecar(ending)).exists()]
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER_BYTES)


def _is_wal(header: bytes) -> bool:
    return len(header) == _HEADER_BYTES and header[18] == _WAL_VERSION
