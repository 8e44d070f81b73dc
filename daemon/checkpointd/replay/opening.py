"""From ``replay.url`` to a replayer."""

from __future__ import annotations

from collections.abc import Callable

from checkpointd.domain.errors import ConfigError, shortened
from checkpointd.replay.entrypoint import SCHEME, PythonReplayer
from checkpointd.replay.port import Replayer

BUILT_IN = "turnstate:"


async def open_replayer(url: str, *, turnstate: Callable[[], Replayer]) -> Replayer:
    """The replayer that ``url`` names; ``turnstate`` makes the built-in one when it is asked for.

    ``ConfigError``, one sentence, for a url that this build cannot serve. Only its scheme
    is repeated, since the rest may hold a secret.
    """
    if url == BUILT_IN:
        return turnstate()
    if url.startswith(SCHEME):
        return await PythonReplayer.from_url(url)
    scheme, colon, _ = url.partition(":")
    if colon and scheme.lower() in ("http", "https"):
        raise ConfigError(
            [f"replay.url is a {scheme}: url, but this build has no http replayer yet; use {_USE}"]
        )
    if colon and f"{scheme}:" == BUILT_IN:
        raise ConfigError(
            [f"replay.url says more than {BUILT_IN}, which takes no address; use {_USE}"]
        )
    shown = f"a {shortened(scheme + ':')} url" if colon else shortened(url)
    raise ConfigError([f"replay.url is {shown}, which names no replayer; use {_USE}"])


_USE = "turnstate: or python:package.module:factory"
