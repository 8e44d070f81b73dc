"""The kinds of command, and how each of them ends: with a sentence and a code."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click
from typing_extensions import override

from checkpointd.cli.common import Asked, Code, printable
from checkpointd.domain.errors import (
    CheckpointdError,
    ConfigError,
    StoreRefusedError,
    StoreUnreachableError,
    WrongStoreError,
)
from checkpointd.domain.redaction import redacted
from checkpointd.registry.embedded import EmbeddedServerError

asks = click.make_pass_decorator(Asked)
"""Gives a command what was asked beside it, as its first argument."""


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
        kwargs.setdefault("no_args_is_help", False)  # a name alone is a slip, and told as one
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
            click.echo(f"checkpointd: {printable(redacted(sentence_of(error)))}", err=True)
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
        case StoreRefusedError(transient=True):
            return Code.UNREACHABLE  # it is there and serves nobody now: loading, failing over
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
