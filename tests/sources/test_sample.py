"""The sample database, thread by thread: what each must be read as."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from checkpointd import sample
from checkpointd.domain.legacy import HeadReading, Verdict
from checkpointd.domain.states import FailureReason
from checkpointd.sources.opening import open_source
from checkpointd.sources.times import time_of_id

CLOSED = {
    "closed": 6,
    "parallel": 5,
    "resumed": 4,
    "fork": 4,
    "exit": 4,
    "long": 100,
    "messages": 10,
    "delta": 8,
    "subgraph_done": 4,
}
PAUSED = {
    "paused_in_tool": [("call_a1", 2)],
    "paused_parallel": [("call_a1", 3)],
    "paused_two": [("call_a1", 2), ("call_a2", 2)],
    "ask_user": [("call_ask1", 2)],
    "ask_user_ns": [("call_ask1", 2)],
    "generic": [("", 1)],
    "generic_ns": [("", 1)],
    "subgraph_paused": [("call_a1", 2)],
}
OPEN = ("crash_tool", "crash_parallel", "crash_model", "crash_after_resume", "interrupt_before")


@dataclass
class Sample:
    path: Path

    async def head(self, name: str, **options: tuple[str, ...]) -> HeadReading:
        source = open_source(f"sqlite://{self.path}", **options)
        try:
            reading = await source.head(f"t:_:{name}")
        finally:
            await source.aclose()
        assert reading is not None
        return reading


@pytest.fixture
def sampled(sample_file: Path) -> Sample:
    return Sample(sample_file)


class TestTheSample:
    @pytest.mark.parametrize("name", CLOSED)
    async def test_a_closed_thread_is_its_own_boundary(self, sampled: Sample, name: str) -> None:
        reading = await sampled.head(name)
        assert reading.head.verdict is Verdict.CLOSED
        assert reading.head.blocker is None
        assert len(reading.head.messages) == CLOSED[name]
        assert reading.ancestor is None

    @pytest.mark.parametrize("name", PAUSED)
    async def test_a_paused_thread_has_a_record_for_each_question(
        self, sampled: Sample, name: str
    ) -> None:
        head = (await sampled.head(name)).head
        assert head.verdict is Verdict.PAUSED
        assert head.blocker is None
        asked = sorted((one.tool_call_id, len(one.messages)) for one in head.questions)
        assert asked == PAUSED[name]
        assert all(one.task_id and one.interrupt_id for one in head.questions)

    @pytest.mark.parametrize("name", OPEN)
    async def test_a_crash_in_the_first_turn_has_nothing_to_fall_back_to(
        self, sampled: Sample, name: str
    ) -> None:
        reading = await sampled.head(name)
        assert reading.head.verdict is Verdict.OPEN
        assert reading.ancestor is None

    async def test_a_tool_that_raised_failed(self, sampled: Sample) -> None:
        reading = await sampled.head("error")
        assert reading.head.verdict is Verdict.FAILED
        assert reading.ancestor is None

    async def test_a_crash_in_the_second_turn_falls_back_to_the_first(
        self, sampled: Sample
    ) -> None:
        reading = await sampled.head("crash_model_turn2")
        assert reading.head.verdict is Verdict.OPEN
        assert reading.ancestor is not None
        assert reading.ancestor.verdict is Verdict.CLOSED
        assert [one["role"] for one in reading.ancestor.messages] == ["user", "assistant"]
        assert reading.ancestor.checkpoint_id < reading.head.checkpoint_id

    async def test_an_abandoned_pause_is_blocked_by_its_unanswered_call(
        self, sampled: Sample
    ) -> None:
        head = (await sampled.head("abandoned_pause")).head
        assert head.verdict is Verdict.CLOSED
        assert head.blocker is FailureReason.UNANSWERED_CALL
        assert "call_a1" in head.detail
        assert len(head.messages) == 4

    async def test_a_finished_sibling_is_folded_in_from_its_writes(self, sampled: Sample) -> None:
        (question,) = (await sampled.head("paused_parallel")).head.questions
        assert question.messages[-1] == {
            "role": "tool",
            "content": "Lyon: 21C",
            "tool_call_id": "call_w1",
            "name": "get_weather",
        }

    async def test_what_was_asked_is_the_prompt(self, sampled: Sample) -> None:
        (asked,) = (await sampled.head("ask_user")).head.questions
        (generic,) = (await sampled.head("generic_ns")).head.questions
        (tool,) = (await sampled.head("paused_in_tool")).head.questions
        assert asked.prompt == "Which plan?"
        assert (generic.name, generic.interrupt_id) == ("approval", "i-0123456789ab")
        assert '"amount":12' in generic.prompt
        assert tool.prompt == '{"amount":9,"type":"approve"}'

    async def test_a_subgraphs_question_carries_the_childs_asking_message(
        self, sampled: Sample
    ) -> None:
        (question,) = (await sampled.head("subgraph_paused")).head.questions
        assert question.namespace.startswith("child:")
        assert [one["content"] for one in question.messages] == ["sub", "child asks"]
        assert question.messages[1]["tool_calls"][0]["id"] == "call_a1"

    async def test_a_listed_breakpoint_is_a_pause(self, sampled: Sample) -> None:
        head = (await sampled.head("interrupt_before", breakpoints=("tools",))).head
        assert head.verdict is Verdict.PAUSED
        (question,) = head.questions
        assert (question.name, question.tool_call_id) == ("breakpoint", "call_w1")
        assert len(question.messages) == 2
        crash = (await sampled.head("crash_parallel", breakpoints=("tools",))).head
        assert crash.verdict is Verdict.OPEN, "its sibling has run, so nothing stopped it"

    async def test_every_loss_is_listed(self, sampled: Sample) -> None:
        head = (await sampled.head("messages")).head
        kinds = {(loss.index, loss.kind) for loss in head.losses}
        assert {(4, "artifact"), (5, "invalid_tool_call"), (8, "custom_class")} <= kinds

    async def test_the_identity_comes_from_channels_and_the_id(self, sampled: Sample) -> None:
        identity = (await sampled.head("ask_user")).head.identity
        assert (identity.run_id, identity.session_id) == ("run-ask", "ask_user")
        assert identity.scope_hash == hashlib.sha256(b"t:_:_").hexdigest()[:16]

    async def test_times_agree_with_the_ids(self, sampled: Sample) -> None:
        for name in (*CLOSED, *PAUSED, *OPEN):
            head = (await sampled.head(name)).head
            inside = time_of_id(head.checkpoint_id)
            assert inside is not None
            assert abs((head.created_at - inside).total_seconds()) < 0.01

    async def test_a_second_reading_gives_the_same_digest(self, sampled: Sample) -> None:
        for name in ("paused_two", "delta", "messages"):
            first, second = await sampled.head(name), await sampled.head(name)
            assert first == second
            assert len(first.head.digest) == 64

    async def test_all_threads_come_in_pages(self, sampled: Sample) -> None:
        source = open_source(f"sqlite://{sampled.path}")
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await source.page(after, 7)
            assert len(page.threads) <= 7
            seen += [sketch.thread_id for sketch in page.threads]
            after = page.next_after
        await source.aclose()
        assert seen == sorted(seen)
        assert len(seen) == len(set(seen)) == 25

    async def test_the_sketch_knows_the_head_without_decoding(self, sampled: Sample) -> None:
        source = open_source(f"sqlite://{sampled.path}")
        for sketch in (await source.page("", 100)).threads:
            reading = await source.head(sketch.thread_id)
            assert reading is not None
            assert reading.head.checkpoint_id == sketch.head_id
            assert sketch.head_id in sketch.checkpoint_ids
        await source.aclose()

    def test_copying_the_sample_replaces_an_older_copy(self, tmp_path: Path) -> None:
        (tmp_path / sample.FILE_NAME).write_bytes(b"older")
        assert sample.copy_to(tmp_path).read_bytes().startswith(b"SQLite format 3")
