"""From ``source.url`` to a source: the one place that knows which kinds of store there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from checkpointd.domain.errors import ConfigError
from checkpointd.sources.port import LegacySource
from checkpointd.sources.sqlite import SqliteSource

MAX_RECORD = 64 * 1024 * 1024
"""Bytes of one serialized value; more is not decoded, and its thread is unreadable."""


def open_source(
    url: str,
    *,
    max_record: int = MAX_RECORD,
    breakpoints: tuple[str, ...] = (),
    messages_channel: str = "messages",
) -> LegacySource:
    """The source that ``url`` names. Nothing is opened before the first question.

    ``max_record`` is in bytes. A URL that names no store is a ``ConfigError``; a store
    that cannot be read raises ``SourceUnreachableError`` when it is asked.
    """
    scheme, separator, rest = url.partition("://")
    opener = _SCHEMES.get(scheme) if separator else None
    if opener is None:
        raise ConfigError(
            [
                f"source.url begins with {scheme[:20]!r}, which is no kind of store known here; "
                f"known are {', '.join(f'{known}://' for known in sorted(_SCHEMES))}"
            ]
        )
    return opener(rest, max_record, breakpoints, messages_channel)


def _open_sqlite(
    rest: str, max_record: int, breakpoints: tuple[str, ...], messages_channel: str
) -> LegacySource:
    path = Path(unquote(rest))
    if not path.is_absolute() or path == Path("/") or "\x00" in str(path):
        raise ConfigError(
            [
                f"source.url sqlite://{rest} does not name a file; write sqlite:// and then the "
                "file's absolute path: sqlite:///srv/app/checkpoints.sqlite"
            ]
        )
    return SqliteSource(
        path,
        max_record=max_record,
        breakpoints=breakpoints,
        messages_channel=messages_channel,
    )


_Opener = Callable[[str, int, tuple[str, ...], str], LegacySource]
_SCHEMES: dict[str, _Opener] = {"sqlite": _open_sqlite}
