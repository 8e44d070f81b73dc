"""A replayer of the application's own, by its name in the daemon's environment."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from checkpointd.domain.errors import ConfigError, InvalidIdError, PermanentReplayError, shortened
from checkpointd.domain.ids import check_id
from checkpointd.domain.states import FailureReason
from checkpointd.replay.port import Replayed, ReplayRequest

SCHEME = "python:"


class PythonReplayer:
    """Calls the ``replay`` of an object that an application's factory made.

    A coroutine function runs on the loop. A plain function runs in a thread of its own, so
    that a slow one does not stop the lease from being renewed; past its deadline it is
    abandoned, not stopped, and does not keep the process from exiting.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._replay: Callable[[ReplayRequest], Any] = target.replay

    @classmethod
    async def from_url(cls, url: str) -> PythonReplayer:
        """The replayer that ``python:package.module:factory`` makes.

        The factory takes no arguments and may be a coroutine function. ``ConfigError`` says in
        one sentence which step failed: the name, the import, the factory, its result.
        """
        target = await _made(url, _factory(url))
        if not callable(getattr(target, "replay", None)):
            raise _refused(
                url,
                f"its factory made a {type(target).__name__}, which has no replay method",
                "return an object with replay(request)",
            )
        return cls(target)

    async def replay(self, request: ReplayRequest) -> Replayed:
        """What the application's ``replay`` gave; its errors pass through unchanged.

        Anything but a ``Replayed`` with a usable id is a ``PermanentReplayError``: the
        application believes that it is done, and asking again would repeat its effects.
        """
        if inspect.iscoroutinefunction(self._replay):
            answer = await self._replay(request)
        else:
            answer = await _in_own_thread(self._replay, request)
            if inspect.isawaitable(answer):
                answer = await answer
        return _checked(answer)

    async def aclose(self) -> None:
        """Close the application's object, if it has an ``aclose``."""
        aclose = getattr(self._target, "aclose", None)
        if callable(aclose):
            closing = aclose()
            if inspect.isawaitable(closing):
                await closing


def _factory(url: str) -> Callable[[], object]:
    module_name, colon, path = url.removeprefix(SCHEME).partition(":")
    if not (url.startswith(SCHEME) and colon and module_name and path):
        raise _refused(url, "it does not name a factory", "write python:package.module:factory")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs foreign code, which raises anything
        raise _refused(
            url,
            f"the module {shortened(module_name)} cannot be imported ({_named(error)})",
            "install it in the daemon's environment or correct the name",
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise _refused(
                url, f"{shortened(module_name)} has no {shortened(path)}", "correct the name"
            )
        found = getattr(found, name)
    if not callable(found):
        raise _refused(
            url,
            f"{shortened(path)} is a {type(found).__name__}, not a function",
            "name a function that returns the replayer",
        )
    factory: Callable[[], object] = found
    return factory


async def _made(url: str, factory: Callable[[], object]) -> object:
    try:
        made = factory()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:  # foreign code raises anything
        raise _refused(
            url, f"its factory failed ({_named(error)})", "correct it or what it needs"
        ) from error


def _checked(answer: object) -> Replayed:
    if not isinstance(answer, Replayed):
        raise PermanentReplayError(
            FailureReason.REPLAY_ERROR,
            f"the replayer returned a {type(answer).__name__}, not a Replayed",
        )
    try:
        check_id(answer.checkpoint_id, what="checkpoint_id")
    except InvalidIdError as error:
        raise PermanentReplayError(FailureReason.REPLAY_ERROR, str(error)) from error
    return answer


def _in_own_thread(
    call: Callable[[ReplayRequest], object], request: ReplayRequest
) -> Awaitable[object]:
    """What ``call`` returns or raises, run in a daemon thread.

    Not ``asyncio.to_thread``: its pool is small and shared, and is joined at exit, so a few
    hung calls would stop the others and then the shutdown.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def settle(answer: object, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(answer)
        elif isinstance(error, StopIteration):  # which no future can carry
            future.set_exception(RuntimeError(f"replay raised {_named(error)}"))
        else:
            future.set_exception(error)

    def run() -> None:
        answer: object = None
        error: Exception | None = None
        try:
            answer = context.run(call, request)
        except Exception as raised:  # noqa: BLE001  carried to the loop, not swallowed
            error = raised
        except BaseException as raised:  # noqa: BLE001  an exit() of theirs is no exit of ours
            error = RuntimeError(f"replay raised {_named(raised)}")
        try:
            loop.call_soon_threadsafe(settle, answer, error)
        except RuntimeError:
            return  # the loop was closed meanwhile: nobody waits for the answer

    threading.Thread(target=run, name="replay", daemon=True).start()
    return future


def _refused(url: str, fact: str, remedy: str) -> ConfigError:
    return ConfigError([f"replay.url is {shortened(url, 200)}, but {fact}; {remedy}"])


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
