"""What all commands share: what was asked beside them, the way to the rooms, where they print."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.config import Settings, find_config, load_settings
from checkpointd.domain.errors import CheckpointdError, StoreUnreachableError
from checkpointd.registry.connect import where
from checkpointd.registry.embedded import SCHEME as EMBEDDED
from checkpointd.telemetry import logs

T = TypeVar("T")

ENV_ACTOR = "CHECKPOINTD_ACTOR"


class Code(IntEnum):
    """How a command ends; scripts rely on these numbers."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_DRAINED = 3
    TIMED_OUT = 4
    UNREACHABLE = 69
    CONFIG = 78
    INTERRUPTED = 130


class CommandFailedError(CheckpointdError):
    """What was asked cannot be done as things stand; the sentence says why, and what to do."""


@dataclass(slots=True)
class Asked:
    """What the command line says beside the command itself, before its name or after it."""

    config: Path | None = None
    actor: str = ""
    as_json: bool = False
    debug: bool = False

    def file(self) -> Path | None:
        """The configuration file; ``None`` for the defaults."""
        return find_config(self.config, os.environ, Path.cwd())

    def settings(self) -> Settings:
        """The settings in force, read now. ``ConfigError`` carries every complaint."""
        return load_settings(self.file(), os.environ)

    def who(self) -> str:
        """The actor in the audit: ``--as``, else CHECKPOINTD_ACTOR, else user@host."""
        return self.actor or os.environ.get(ENV_ACTOR, "").strip() or f"{_user()}@{_host()}"

    def tell(self, document: Mapping[str, Any], *, people: Callable[[], RenderableType]) -> None:
        """Print a result to stdout: the document with ``--json``, else the page for people."""
        if self.as_json:
            print_json(document)
        else:
            show(console(), people())

    def within(
        self,
        work: Callable[[Rooms], Awaitable[T]],
        *,
        found: bool = True,
        patience_s: float | None = None,
    ) -> T:
        """What ``work`` gives over the opened rooms, which are closed again.

        With ``found=False`` an empty store stays empty: for commands that only look. A store that
        has not answered after ``patience_s`` is unreachable, whatever its timeouts add up to.
        """
        settings = self.settings()
        if settings.redis.url.startswith(EMBEDDED):
            patience_s = None  # its server may first have to read its data

        async def opened() -> T:
            limit = asyncio.timeout(patience_s)
            try:
                async with (
                    limit,
                    open_rooms(settings, actor=self.who(), found=found) as rooms,
                ):
                    return await work(rooms)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                why = f"it did not answer within {patience_s:g} s"
                raise StoreUnreachableError(where(settings.redis.url), why) from error

        return self.awaited(opened())

    def awaited(self, work: Coroutine[Any, Any, T], *, level: str = "warning") -> T:
        """What a coroutine gives. Logged is from ``level`` on, everything with ``--debug``."""
        logs.configure(level="debug" if self.debug else level)
        return asyncio.run(work)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return f"uid{os.getuid()}"


def _host() -> str:
    return socket.gethostname() or "localhost"


# Printing --------------------------------------------------------------------------------------


def console() -> Console:
    """Where people read: stdout, nothing in the text taken for markup; no colour in a pipe."""
    return Console(markup=False, highlight=False, emoji=False)


def show(out: Console, page: RenderableType) -> None:
    """Print a page; in a pipe its lines are as long as they are."""
    out.print(page, crop=out.is_terminal)


def print_json(document: Mapping[str, Any]) -> None:
    """``document`` on stdout. Escaped to ASCII: whatever an id holds, a terminal only shows it."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def printable(text: str) -> str:
    """``text`` with everything escaped that a terminal might obey instead of show.

    The zero-width joiner stays: it holds emoji together.
    """
    return "".join(
        c if c.isprintable() or c == "\u200d" else c.encode("unicode_escape").decode() for c in text
    )
