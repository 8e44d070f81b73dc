"""What all commands share: options that stand everywhere, the way to the rooms, how a command ends."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console, RenderableType
from typing_extensions import override

from checkpointd import app
from checkpointd.config import Settings, find_config, load_settings
from checkpointd.domain.durations import QuantityError, parse_duration
from checkpointd.domain.errors import (
    CheckpointdError,
    ConfigError,
    InvalidIdError,
    StoreUnreachableError,
    WrongStoreError,
    shortened,
)
from checkpointd.domain.ids import check_id
from checkpointd.registry.connect import where
from checkpointd.registry.embedded import SCHEME as EMBEDDED
from checkpointd.registry.embedded import EmbeddedServerError
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
        work: Callable[[app.Rooms], Awaitable[T]],
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
                    app.open_rooms(settings, actor=self.who(), found=found) as rooms,
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


# What may be given -----------------------------------------------------------------------------


def thread(given: str) -> str:
    """A thread's id, by the registry's own rule."""
    return _by_rule(lambda: check_id(given, what="thread_id"))


def checkpoint(given: str) -> str:
    """A checkpoint's id, by the registry's own rule."""
    return _by_rule(lambda: check_id(given, what="checkpoint_id"))


def duration(given: str) -> timedelta:
    """``15m``, ``168h``, ``1h30m``; a bare number is refused."""
    return _by_rule(lambda: parse_duration(given))


def moment(given: str) -> datetime:
    """A time with its zone, or a duration that ends now."""
    try:
        return datetime.now(UTC) - parse_duration(given)
    except QuantityError:
        pass
    try:
        told = datetime.fromisoformat(given)
    except ValueError:
        raise click.BadParameter(
            f'{shortened(given)} is no time; write one such as "2026-01-31T09:30:00Z", or how long '
            'ago, such as "2h"'
        ) from None
    if told.tzinfo is None:
        raise click.BadParameter(
            f"{shortened(given)} has no zone; write {told.isoformat()}Z for UTC"
        )
    return told.astimezone(UTC)


def words(given: str) -> str:
    """Text that says something."""
    if not given.strip():
        raise click.BadParameter("it is empty; say why, since it stays on the record")
    return given


def _by_rule(parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (InvalidIdError, QuantityError) as error:
        raise click.BadParameter(str(error)) from error


def one_of(options: Iterable[StrEnum]) -> click.Choice[str]:
    """One of these words."""
    return click.Choice([str(option) for option in options])


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def reason(what: str = "Why; it stays on the record.", *, required: bool = True) -> Decorator:
    """The option ``--reason``."""
    return click.option("--reason", type=words, metavar="R", required=required, help=what)


def dry_run(what: str) -> Decorator:
    """The option ``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help=what)


asks = click.make_pass_decorator(Asked)
"""Gives a command what was asked beside it, as its first argument."""


# Commands --------------------------------------------------------------------------------------


def _noted(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name and not ctx.resilient_parsing:
        setattr(ctx.ensure_object(Asked), param.name, value)


def _everywhere(*, inner: bool) -> list[click.Option]:
    """The options of every command; those that go before it are not listed again after it."""
    return [
        click.Option(
            ["--config", "config"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            expose_value=False,
            callback=_noted,
            hidden=inner,
            help="The settings; else $CHECKPOINTD_CONFIG, ./checkpointd.toml, the defaults.",
        ),
        click.Option(
            ["--json", "as_json"],
            is_flag=True,
            expose_value=False,
            callback=_noted,
            help="Print data as JSON.",
        ),
        click.Option(
            ["--as", "actor"],
            metavar="NAME",
            expose_value=False,
            callback=_noted,
            help="Who the audit says it was; else $CHECKPOINTD_ACTOR, user@host.",
        ),
        click.Option(
            ["--debug", "debug"],
            is_flag=True,
            expose_value=False,
            callback=_noted,
            hidden=inner,
            help="Add tracebacks, and log everything.",
        ),
    ]


class Verb(click.Command):
    """A command with an example, and with the options that stand everywhere."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("epilog", _example(example))
        super().__init__(*args, **kwargs)
        self.params += _everywhere(inner=True)


class Family(click.Group):
    """Commands that belong together."""

    command_class = Verb
    group_class = type

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("epilog", _example(example))
        super().__init__(*args, **kwargs)
        self.params += _everywhere(inner=True)


class Root(click.Group):
    """The command itself: whatever happens below it, it ends with a sentence and a code."""

    command_class = Verb
    group_class = Family

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("epilog", _example(example))
        super().__init__(*args, **kwargs)
        self.params += _everywhere(inner=False)

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they were added, which is that of their use."""
        return list(self.commands)

    @override
    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run, then exit: with what the command returned, or with the code of its error."""
        asked = Asked()
        kwargs = {"prog_name": "checkpointd", **kwargs, "standalone_mode": False, "obj": asked}
        _take_any_character()
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            _let_go_of_stdout()
            code = Code.FAILED
        except Exception as error:  # noqa: BLE001  the one place where a command's failure becomes a code
            if asked.debug:
                traceback.print_exc()
            code = code_of(error)
            click.echo(f"checkpointd: {printable(sentence_of(error))}", err=True)
        sys.exit(int(code or 0))


def _example(text: str) -> str | None:
    lines = "".join(f"  {line}\n" for line in text.splitlines())
    return f"\b\nExample:\n{lines}" if lines else None


# Ends ------------------------------------------------------------------------------------------


def code_of(error: Exception) -> Code:
    """The exit code that an error stands for."""
    match error:
        case click.UsageError():
            return Code.USAGE
        case click.Abort():
            return Code.INTERRUPTED
        case StoreUnreachableError() | EmbeddedServerError():
            return Code.UNREACHABLE
        case ConfigError() | WrongStoreError():
            return Code.CONFIG
        case _:
            return Code.FAILED


def sentence_of(error: Exception) -> str:
    """What an error says to people, in one sentence."""
    match error:
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "checkpointd"
            said = error.format_message().rstrip(".")
            return f"{said}; `{path} --help` shows what may be given"
        case click.ClickException():
            return error.format_message()
        case click.Abort():
            return "interrupted"
        case CheckpointdError():
            return str(error)
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"it failed in a way that was not foreseen ({what}); --debug shows where"


def _take_any_character() -> None:
    """Let a terminal of another encoding show an escape instead of failing on a character."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _let_go_of_stdout() -> None:
    """Point stdout to nowhere, or the interpreter complains of its broken pipe when it exits."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # a stream without a descriptor breaks no pipe
