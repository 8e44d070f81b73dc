"""What may be given to a command: its values, and the options that several have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import click

from checkpointd.domain.durations import QuantityError, parse_duration
from checkpointd.domain.errors import InvalidIdError, shortened
from checkpointd.domain.ids import check_id

T = TypeVar("T")


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
