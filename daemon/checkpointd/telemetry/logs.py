"""Log lines: one JSON object a line on stderr, or a form for people on a terminal.

structlog and the standard library's loggers end in one handler, so a library's line looks like
ours and carries the same bound facts. Everything that could go wrong while a line is made
(redaction, rendering, a pipe that nobody reads any more) happens inside that handler, where
a failure costs the line and never the work that wrote it.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from datetime import date, timedelta
from enum import Enum
from typing import IO, Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger
from typing_extensions import override

from checkpointd.domain.redaction import MASK, names_a_secret, redacted

DEEPEST = 6
"""How far into a value a line looks; what lies deeper is shown as text."""
LONGEST = 8000
"""Characters of one text in a line; an error may quote a whole record. The middle is left out."""
CHATTERING = ("apscheduler",)
"""Libraries whose info lines say what ours say already."""


def configure(*, level: str = "info", form: str = "auto", stream: IO[str] | None = None) -> None:
    """Send every logger's lines to ``stream`` (stderr) from ``level`` on.

    ``form``: ``json``, ``console``, or ``auto`` for console on a terminal only. Again: the new
    settings replace the old.
    """
    stream = stream if stream is not None else sys.stderr
    as_console = form == "console" or (form == "auto" and _is_terminal(stream))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = LineHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_for_people() if as_console else _for_machines()),
            ],
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, LineHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # A module's logger made before this call, or before the next one, obeys it too.
        cache_logger_on_first_use=False,
    )


def set_level(level: str) -> None:
    """Write lines from ``level`` on, from now on."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    for name in CHATTERING:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class LineHandler(logging.StreamHandler[IO[str]]):
    """Writes lines to a stream that may go away. Never raises, never complains."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line. A reader that is gone for good gets no further ones."""
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            self._let_go()

    def _let_go(self) -> None:
        """Point the stream's descriptor to nowhere.

        What is left in its buffer would otherwise fail again when the interpreter exits, and
        turn a clean exit into code 120.
        """
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            pass  # a stream without a descriptor has nothing to point elsewhere


def tidied(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The event as JSON can say it, without secrets: a processor.

    NaN and infinities become ``null``, which JSON has; times ISO 8601; a duration its
    seconds; an enumeration its word; anything else its text.
    """
    return {str(key): _value(str(key), value, 0) for key, value in event.items()}


def _value(key: str, value: Any, depth: int) -> Any:
    if names_a_secret(key) and value:
        return MASK
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Enum():
            return _value("", value.value, depth)
        case str():
            return _text(value)
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping() if depth < DEEPEST:
            return {str(k): _value(str(k), v, depth + 1) for k, v in value.items()}
        case list() | tuple() | set() | frozenset() if depth < DEEPEST:
            return [_value("", v, depth + 1) for v in value]
        case BaseException():
            return _text(f"{type(value).__name__}: {value}")
        case _:
            return _text(repr(value))


def _text(text: str) -> str:
    if len(text) > LONGEST:
        left_out = len(text) - LONGEST
        text = f"{text[: LONGEST // 2]}… ({left_out:,} characters) …{text[-LONGEST // 2 :]}"
    return redacted(text)


def _for_machines() -> tuple[Processor, ...]:
    return (
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
        ),
        tidied,
        structlog.processors.JSONRenderer(allow_nan=False),
    )


def _for_people() -> tuple[Processor, ...]:
    return (
        structlog.processors.format_exc_info,
        tidied,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    )


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
