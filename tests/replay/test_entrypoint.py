"""An application's own replayer, found by name: what is called, and each way the name can be wrong."""

from __future__ import annotations

import asyncio
import itertools
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpointd.domain.errors import ConfigError, PermanentReplayError, TransientReplayError
from checkpointd.domain.legacy import LegacyState
from checkpointd.replay.entrypoint import PythonReplayer
from checkpointd.replay.port import Replayed, ReplayRequest

Application = Callable[[str], str]
_numbers = itertools.count()


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Application:
    """``application(source)``: a module with that source, importable by the name it returns."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"application_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


@pytest.fixture
def request_(legacy: Callable[..., LegacyState], asked: Callable[..., ReplayRequest]) -> Any:
    return asked(legacy())


SYNC = """
    import threading
    from checkpointd.replay.port import Replayed

    class Sync:
        def replay(self, request):
            assert threading.current_thread() is not threading.main_thread()
            return Replayed(request.idempotency_key)

    def make():
        return Sync()
"""
ASYNC = """
    from checkpointd.replay.port import Replayed

    class Async:
        closed = False

        async def replay(self, request):
            return Replayed(request.idempotency_key)

        async def aclose(self):
            Async.closed = True

    async def make():
        return Async()

    class Nested:
        make = Async

    number = 7
"""


class TestCalling:
    @pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
    async def test_a_factory_and_its_replay_may_be_plain_or_coroutine_functions(
        self, application: Application, request_: ReplayRequest, source: str
    ) -> None:
        replayer = await PythonReplayer.from_url(f"python:{application(source)}:make")
        assert await replayer.replay(request_) == Replayed(request_.idempotency_key)
        await replayer.aclose()

    async def test_a_class_inside_another_is_a_factory_too(
        self, application: Application, request_: ReplayRequest
    ) -> None:
        replayer = await PythonReplayer.from_url(f"python:{application(ASYNC)}:Nested.make")
        assert await replayer.replay(request_) == Replayed(request_.idempotency_key)

    async def test_closing_closes_the_applications_object(self, application: Application) -> None:
        name = application(ASYNC)
        replayer = await PythonReplayer.from_url(f"python:{name}:make")
        await replayer.aclose()
        assert sys.modules[name].Async.closed

    async def test_a_plain_function_that_returns_a_coroutine_is_awaited(
        self, request_: ReplayRequest
    ) -> None:
        async def later() -> Replayed:
            return Replayed("later")

        class Wrapped:
            def replay(self, request: ReplayRequest) -> Any:
                return later()

        assert await PythonReplayer(Wrapped()).replay(request_) == Replayed("later")

    async def test_a_slow_plain_function_does_not_hold_up_the_loop_or_its_cancellation(
        self, request_: ReplayRequest
    ) -> None:
        loop = asyncio.get_running_loop()
        started, release = asyncio.Event(), threading.Event()

        class Slow:
            def replay(self, request: ReplayRequest) -> Replayed:
                loop.call_soon_threadsafe(started.set)
                release.wait(10)
                return Replayed("late")

        task = asyncio.create_task(PythonReplayer(Slow()).replay(request_))
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (thread,) = [t for t in threading.enumerate() if t.name == "replay"]
        assert thread.daemon
        release.set()
        thread.join(10)
        assert not thread.is_alive()


class TestErrorsOfTheApplication:
    @pytest.mark.parametrize(
        "error",
        [
            TransientReplayError("busy", retry_after_s=3),
            PermanentReplayError("absent"),
            KeyError("theirs"),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("plain", [True, False], ids=["plain", "coroutine"])
    async def test_they_pass_through_unchanged(
        self, request_: ReplayRequest, error: Exception, *, plain: bool
    ) -> None:
        class Plain:
            def replay(self, request: ReplayRequest) -> Replayed:
                raise error

        class Coroutine:
            async def replay(self, request: ReplayRequest) -> Replayed:
                raise error

        replayer = PythonReplayer(Plain() if plain else Coroutine())
        with pytest.raises(type(error)) as raised:
            await replayer.replay(request_)
        assert raised.value is error

    @pytest.mark.parametrize("error", [SystemExit(3), StopIteration()], ids=repr)
    async def test_an_exit_of_theirs_is_no_exit_of_ours(
        self, request_: ReplayRequest, error: BaseException
    ) -> None:
        class Exiting:
            def replay(self, request: ReplayRequest) -> Replayed:
                raise error

        with pytest.raises(RuntimeError, match=type(error).__name__):
            await PythonReplayer(Exiting()).replay(request_)

    @pytest.mark.parametrize("answer", [None, "an id", Replayed(""), Replayed("a\nb")], ids=repr)
    async def test_an_answer_that_names_no_checkpoint_is_permanent(
        self, request_: ReplayRequest, answer: Any
    ) -> None:
        class Odd:
            async def replay(self, request: ReplayRequest) -> Any:
                return answer

        with pytest.raises(PermanentReplayError) as refused:
            await PythonReplayer(Odd()).replay(request_)
        assert refused.value.reason == "replay_error"


class TestANameThatIsWrong:
    @pytest.mark.parametrize("url", ["python:", "python:a.b", "python::f", "python:a:", "a:f"])
    async def test_it_must_name_a_module_and_a_factory(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"write python:package\.module:factory"):
            await PythonReplayer.from_url(url)

    async def test_a_module_that_is_not_there_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"'no_such_thing\.at_all' cannot be imported") as bad:
            await PythonReplayer.from_url("python:no_such_thing.at_all:make")
        assert len(bad.value.complaints) == 1
        assert "\n" not in str(bad.value)

    @pytest.mark.parametrize("source", ["import no_such_thing", "def (", "raise OSError('disk')"])
    async def test_a_module_that_fails_at_its_import_is_named(
        self, application: Application, source: str
    ) -> None:
        with pytest.raises(ConfigError, match="cannot be imported"):
            await PythonReplayer.from_url(f"python:{application(source)}:make")

    async def test_a_relative_module_name_is_named(self) -> None:
        with pytest.raises(ConfigError, match="cannot be imported"):
            await PythonReplayer.from_url("python:.module:make")

    async def test_a_factory_that_is_not_there_is_named(self, application: Application) -> None:
        with pytest.raises(ConfigError, match="has no 'mkae'"):
            await PythonReplayer.from_url(f"python:{application(ASYNC)}:mkae")

    async def test_a_factory_that_is_no_function_is_named(self, application: Application) -> None:
        with pytest.raises(ConfigError, match="'number' is a int, not a function"):
            await PythonReplayer.from_url(f"python:{application(ASYNC)}:number")

    async def test_a_factory_that_fails_is_named(self, application: Application) -> None:
        name = application("def make():\n    raise OSError('no database')")
        with pytest.raises(ConfigError, match=r"factory failed \(OSError: no database\)"):
            await PythonReplayer.from_url(f"python:{name}:make")

    async def test_an_object_without_a_replay_method_is_named(
        self, application: Application
    ) -> None:
        name = application("def make():\n    return 7")
        with pytest.raises(ConfigError, match="made a int, which has no replay method"):
            await PythonReplayer.from_url(f"python:{name}:make")
