from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from checkpointd.domain.states import PassName
from checkpointd.telemetry.logs import LineHandler, configure, set_level, tidied

pytestmark = pytest.mark.usefixtures("fresh_logging")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure(level="debug", form="json", stream=stream)
    return stream


@contextmanager
def only_our_handler() -> Iterator[None]:
    """Without pytest's own handlers, which let a line's failure through."""
    root = logging.getLogger()
    others = [h for h in root.handlers if not isinstance(h, LineHandler)]
    for handler in others:
        root.removeHandler(handler)
    try:
        yield
    finally:
        for handler in others:
            root.addHandler(handler)


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class TestALine:
    def test_is_one_json_object(self, stream: io.StringIO) -> None:
        structlog.get_logger("here").info("ref_expired", thread_id='a:b{c}|"d"\n é👩‍💻', n=3)
        (line,) = read(stream)
        assert (line["event"], line["level"], line["logger"], line["n"]) == (
            "ref_expired",
            "info",
            "here",
            3,
        )
        assert line["thread_id"] == 'a:b{c}|"d"\n é👩‍💻'
        assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)

    def test_is_written_once_after_a_second_configuration(self, stream: io.StringIO) -> None:
        configure(level="info", form="json", stream=stream)
        structlog.get_logger().info("pass_ended")
        assert len(read(stream)) == 1

    def test_below_the_level_is_not_written(self, stream: io.StringIO) -> None:
        log = structlog.get_logger()
        set_level("warning")
        log.info("ref_expired")
        logging.getLogger("lib").info("x")
        set_level("info")
        log.info("ref_migrated")
        assert [line["event"] for line in read(stream)] == ["ref_migrated"]

    def test_of_a_library_looks_like_ours(self, stream: io.StringIO) -> None:
        logging.getLogger("redis").warning("lost %s", "it", extra={"host": "h"})
        (line,) = read(stream)
        assert (line["event"], line["level"], line["logger"], line["host"]) == (
            "lost it",
            "warning",
            "redis",
            "h",
        )

    def test_of_a_library_carries_what_was_bound(self, stream: io.StringIO) -> None:
        with bound_contextvars(run_id="r1"):
            logging.getLogger("aiosqlite").warning("slow")
        assert read(stream)[0]["run_id"] == "r1"

    async def test_of_another_task_does_not(self, stream: io.StringIO) -> None:
        async def work(name: str) -> None:
            with bound_contextvars(run_id=name):
                await asyncio.sleep(0)
                logging.getLogger("lib").warning(name)

        await asyncio.gather(work("a"), work("b"))
        lines = [line for line in read(stream) if line["logger"] == "lib"]
        assert [line["run_id"] for line in lines] == [line["event"] for line in lines]

    def test_of_a_chattering_library_is_left_out(self, stream: io.StringIO) -> None:
        logging.getLogger("apscheduler.executors.default").info("Running job")
        assert read(stream) == []

    def test_is_made_of_a_warning_too(self, stream: io.StringIO) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(capture=True)
            warnings.warn("old", stacklevel=1)
        assert "old" in read(stream)[0]["event"]

    def test_keeps_a_traceback_on_one_line_without_the_locals(self, stream: io.StringIO) -> None:
        hidden = "hunter2"
        try:
            raise ZeroDivisionError(f"division of {len(hidden)}")
        except ZeroDivisionError:
            structlog.get_logger().exception("pass_failed")
        (line,) = read(stream)
        assert line["exception"][0]["exc_type"] == "ZeroDivisionError"
        assert "hunter2" not in json.dumps(
            line["exception"][0].get("frames", [{}])[0].get("locals", "")
        )
        assert "locals" not in line["exception"][0]["frames"][0]

    def test_is_console_form_on_a_terminal_only(self) -> None:
        for stream, is_json in ((Terminal(), False), (io.StringIO(), True)):
            configure(form="auto", stream=stream)
            structlog.get_logger().info("ref_expired", n=1)
            assert stream.getvalue().startswith("{") is is_json

    def test_in_console_form_hides_locals_and_secrets_too(self) -> None:
        stream = io.StringIO()
        configure(form="console", stream=stream)
        hidden = "hunter2".upper()
        try:
            raise ZeroDivisionError(str(len(hidden)))
        except ZeroDivisionError:
            structlog.get_logger().exception("pass_failed", password=hidden)
        assert "ZeroDivisionError" in stream.getvalue()
        assert hidden not in stream.getvalue()


class TestValues:
    def test_that_json_lacks_are_said_otherwise(self) -> None:
        said = tidied(
            None,
            "",
            {
                "nan": float("nan"),
                "inf": float("-inf"),
                "at": datetime(2026, 5, 1, tzinfo=UTC),
                "took": timedelta(seconds=1.5),
                "word": PassName.DRAIN,
                "error": ValueError("why"),
                "set": {3},
                "bytes": b"x",
                "nested": {"a": (float("nan"), {"b": None})},
                3: True,
            },
        )
        assert json.loads(json.dumps(said, allow_nan=False)) == {
            "nan": None,
            "inf": None,
            "at": "2026-05-01T00:00:00+00:00",
            "took": 1.5,
            "word": "drain",
            "error": "ValueError: why",
            "set": [3],
            "bytes": "b'x'",
            "nested": {"a": [None, {"b": None}]},
            "3": True,
        }

    def test_that_contain_themselves_come_to_an_end(self, stream: io.StringIO) -> None:
        loop: list[Any] = []
        loop.append(loop)
        structlog.get_logger().info("ref_expired", loop=loop)
        assert len(read(stream)) == 1

    def test_of_great_length_lose_their_middle(self) -> None:
        said = tidied(None, "", {"x": "a" * 100_000 + "end"})["x"]
        assert len(said) < 9000
        assert said.endswith("end")

    @pytest.mark.parametrize(
        "facts",
        [
            {"password": "hunter2"},
            {"url": "redis://u:hunter2@h"},
            {"error": ConnectionError("redis://u:hunter2@h refused")},
            {"settings": {"redis": {"password": "hunter2"}}},
            {"headers": {"Authorization": "Bearer hunter2"}},
            {"dsn": "host=h password=hunter2"},
            {"many": [{"api_key": "hunter2"}]},
        ],
    )
    def test_that_are_secret_are_not_written(
        self, stream: io.StringIO, facts: dict[str, Any]
    ) -> None:
        structlog.get_logger().info("store_opened", **facts)
        logging.getLogger("lib").warning("redis://u:hunter2@h %s", "x", extra=facts)
        assert len(read(stream)) == 2
        assert "hunter2" not in stream.getvalue()

    def test_of_a_traceback_that_are_secret_are_not_written(self, stream: io.StringIO) -> None:
        try:
            raise ConnectionError("redis://u:hunter2@h")
        except ConnectionError as error:
            structlog.get_logger().error("pass_failed", exc_info=error)
        assert len(read(stream)) == 1
        assert "//u:hunter2" not in json.dumps(read(stream)[0]["exception"][0]["exc_value"])


class TestAFailureToLog:
    def test_does_not_reach_the_work(self, stream: io.StringIO) -> None:
        class Nasty:
            def __repr__(self) -> str:
                raise RuntimeError("no")

        with only_our_handler():
            structlog.get_logger().info("ref_expired", what=Nasty())
            logging.getLogger("lib").warning("%d", "not a number")
            structlog.get_logger().info("ref_migrated")
        assert [line["event"] for line in read(stream)] == ["ref_migrated"]

    def test_of_a_closed_stream_does_not_either(self, stream: io.StringIO) -> None:
        stream.close()
        structlog.get_logger().info("ref_expired")

    def test_of_a_pipe_that_nobody_reads_leaves_the_exit_clean(self) -> None:
        program = (
            "import structlog, sys\n"
            "from checkpointd.telemetry.logs import configure\n"
            "configure(form='json')\n"
            "log = structlog.get_logger()\n"
            "sys.stdin.readline()\n"
            "for _ in range(300): log.info('ref_expired')\n"
            "print('done')\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Buffered, as a daemon's stderr is: what stays in the buffer fails again at exit.
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        ) as child:
            assert child.stderr is not None
            child.stderr.close()
            child.stderr = None
            out, _ = child.communicate("\n", timeout=30)
        assert out == "done\n"
        assert child.returncode == 0
