"""What rows mean: verdicts, boundaries, questions and messages, on stores built by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from checkpointd.domain.legacy import Verdict
from checkpointd.domain.states import FailureReason
from checkpointd.sources.langgraph import LangGraphReader
from checkpointd.sources.rows import Cell, CheckpointRow

NULL = "00000000-0000-0000-0000-000000000000"
GO = {"branch:to:node": None}


class TestVerdict:
    def test_nothing_scheduled_is_closed(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human(), build.ai("yes")])
        assert store.head().head.verdict is Verdict.CLOSED

    @pytest.mark.parametrize("channel", ["branch:to:node", "__start__"])
    def test_something_scheduled_is_open(self, store: Any, build: Any, channel: str) -> None:
        store.checkpoint(messages=[build.human()], values={channel: None})
        assert store.head().head.verdict is Verdict.OPEN

    def test_an_empty_list_of_sends_schedules_nothing(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values={"__pregel_tasks": []})
        assert store.head().head.verdict is Verdict.CLOSED

    def test_a_complete_join_schedules_its_node(self, store: Any, build: Any) -> None:
        both = build.named("builtins", "set", ["b", "a"], code=0)
        store.checkpoint(messages=[build.human()], values={"join:a+b:c": both})
        assert store.head().head.verdict is Verdict.OPEN

    def test_a_join_that_waits_for_one_more_schedules_nothing(self, store: Any, build: Any) -> None:
        one = build.named("builtins", "set", ["a"], code=0)
        store.checkpoint(messages=[build.human()], values={"join:a+b:c": one})
        assert store.head().head.verdict is Verdict.CLOSED

    def test_an_interrupt_is_a_pause(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?", "i1")])
        head = store.head().head
        assert head.verdict is Verdict.PAUSED
        (question,) = head.questions
        assert (question.prompt, question.interrupt_id) == ("sure?", "i1")

    def test_a_failed_task_outweighs_a_waiting_one(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?")])
        store.write("__error__", "RuntimeError()", task="task-2")
        assert store.head().head.verdict is Verdict.FAILED

    def test_ordinary_output_ends_the_wait(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?")])
        store.write("final_response", "ok")
        assert store.head().head.verdict is Verdict.OPEN

    def test_metadata_of_the_same_task_does_not_end_it(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?")])
        store.write("ask_user_request:call_1", "{}")
        store.write("turn_state:abc", "{}")
        assert store.head().head.verdict is Verdict.PAUSED

    def test_a_tasks_own_answers_do_not_end_it(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("and now?")])
        store.write("__resume__", ["first answer"])
        assert store.head().head.verdict is Verdict.PAUSED

    def test_an_answer_that_no_task_has_taken_ends_it(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?")])
        store.write("__resume__", "yes", task=NULL, path="")
        assert store.head().head.verdict is Verdict.OPEN

    def test_an_answer_that_was_taken_already_does_not(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("and now?")])
        store.write("__resume__", ["yes"])
        store.write("__resume__", "yes", task=NULL, path="")
        assert store.head().head.verdict is Verdict.PAUSED

    def test_an_answer_taken_by_a_sibling_leaves_the_other_waiting(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("a?")], task="task-1")
        store.write("__resume__", ["yes"], task="task-1")
        store.write("x", 1, task="task-1")
        store.write("__interrupt__", [build.interrupt("b?")], task="task-2")
        store.write("__resume__", "yes", task=NULL, path="")
        (question,) = store.head().head.questions
        assert question.prompt == "b?"

    def test_old_formats_keep_their_sends_in_the_parent(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO, number=1, v=3)
        store.write("__pregel_tasks", build.send("tools", [build.call("c1")]), number=1)
        store.write("__pregel_tasks", build.send("tools", [build.call("c2")]), number=1)
        asking = build.ai("", "c1", "c2")
        store.checkpoint(messages=[build.human(), asking], number=2, parent=1, v=3)
        assert store.head().head.verdict is Verdict.OPEN
        store.write(
            "__interrupt__",
            [build.interrupt("pay?")],
            number=2,
            path="~__pregel_push, 0000000001, 0000000000",
        )
        (question,) = store.head().head.questions
        assert question.tool_call_id == "c2"

    def test_the_parents_sends_mean_nothing_to_the_present_format(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human()], values=GO, number=1)
        store.write("__pregel_tasks", build.send("tools", []), number=1)
        store.checkpoint(messages=[build.human()], number=2, parent=1)
        assert store.head().head.verdict is Verdict.CLOSED

    @pytest.mark.parametrize("channel", ["_ask_user_pending", "_interrupt_pending"])
    def test_the_applications_own_word_counts_where_the_interrupt_is_lost(
        self, store: Any, build: Any, channel: str
    ) -> None:
        pending = {
            "run_id": "r1",
            "tool_call_id": "c1",
            "request_input": {"questions": [{"question": "Which?"}]},
        }
        values = {**GO, "run_id": "r1", channel: pending}
        store.checkpoint(messages=[build.human(), build.ai("", "c1")], values=values)
        head = store.head().head
        assert head.verdict is Verdict.PAUSED
        assert (head.questions[0].prompt, head.questions[0].tool_call_id) == ("Which?", "c1")

    def test_a_pause_of_another_run_is_a_leftover(self, store: Any, build: Any) -> None:
        values = {**GO, "run_id": "r2", "_ask_user_pending": {"run_id": "r1"}}
        store.checkpoint(messages=[build.human()], values=values)
        assert store.head().head.verdict is Verdict.OPEN


class TestHead:
    def test_the_head_is_the_causal_leaf_though_a_clock_stepped_back(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human("old")], number=9)
        store.checkpoint(messages=[build.human("old"), build.ai("new")], number=3, parent=9)
        assert store.head().head.checkpoint_id == build.checkpoint_id(3)

    def test_of_a_fork_the_newest_leaf_is_the_head(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], number=1)
        store.checkpoint(messages=[build.human("a")], number=2, parent=1)
        store.checkpoint(messages=[build.human("b")], number=3, parent=1)
        assert store.head().head.checkpoint_id == build.checkpoint_id(3)

    def test_parents_in_a_circle_still_have_a_head(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO, number=1, parent=2)
        store.checkpoint(messages=[build.human()], values=GO, number=2, parent=1)
        assert store.head().head.checkpoint_id == build.checkpoint_id(2)

    def test_a_thread_without_a_root_checkpoint_has_no_head(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], namespace="child:1")
        assert store.reader().head("t:_:x") is None
        assert store.reader().head("never") is None
        assert store.reader().state("t:_:x", "never") is None

    def test_unreadable_metadata_costs_only_the_step_number(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], number=1, metadata=b"\xff\x00{")
        head = store.head().head
        assert (head.verdict, head.sequence) == (Verdict.CLOSED, 0)
        store.checkpoint(messages=[build.human()], number=1)
        assert store.head().head.sequence == 7


class TestAncestor:
    def test_it_is_the_nearest_closed_and_answered_one(self, store: Any, build: Any) -> None:
        turn = [build.human(), build.ai("one")]
        store.checkpoint(messages=turn, number=1)
        store.checkpoint(messages=[*turn, build.ai("", "c")], number=2, parent=1)
        store.checkpoint(messages=turn, values=GO, number=3, parent=2)
        ancestor = store.head().ancestor
        assert ancestor.checkpoint_id == build.checkpoint_id(1), "the nearer one has an open call"

    def test_the_walk_ends_at_the_first_unreadable_one(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], number=1)
        store.checkpoint(blob=b"\xc1\xc1", number=2, parent=1)
        store.checkpoint(messages=[build.human()], values=GO, number=3, parent=2)
        assert store.head().ancestor is None


class TestBoundary:
    def test_an_id_that_is_used_again_is_open_again(self, store: Any, build: Any) -> None:
        answered = [build.human(), build.ai("", "c"), build.tool("c"), build.ai("so")]
        store.checkpoint(messages=[*answered, build.human(), build.ai("", "c")])
        head = store.head().head
        assert head.blocker is FailureReason.UNANSWERED_CALL

    def test_an_answer_to_nothing_is_no_boundary(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.tool("gone"), build.human()])
        head = store.head().head
        assert (head.verdict, head.blocker) == (Verdict.CLOSED, FailureReason.NO_SAFE_BOUNDARY)
        assert "message 0" in head.detail

    def test_a_graph_without_messages_has_no_boundary(self, store: Any, build: Any) -> None:
        store.checkpoint(values={"other": 1})
        assert store.head().head.blocker is FailureReason.NO_SAFE_BOUNDARY
        store.checkpoint(values={"chat": [build.human()]})
        assert store.head(messages_channel="chat").head.blocker is None

    def test_a_channel_of_that_name_with_other_things_is_no_conversation(self, store: Any) -> None:
        store.checkpoint(messages={"to": "ann", "subject": "hi"})
        assert store.head().head.blocker is FailureReason.NO_SAFE_BOUNDARY

    def test_a_call_left_open_before_the_asking_round_blocks_a_pause(
        self, store: Any, build: Any
    ) -> None:
        past = [build.human(), build.ai("", "old"), build.human("never mind")]
        store.checkpoint(messages=[*past, build.ai("", "new")], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?")])
        head = store.head().head
        assert (head.verdict, head.blocker) == (Verdict.PAUSED, FailureReason.UNANSWERED_CALL)
        assert "old" in head.detail
        assert head.questions[0].tool_call_id == "new"

    def test_two_calls_in_the_asking_round_may_both_be_open(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human(), build.ai("", "a", "b")], values=GO)
        store.write("__interrupt__", [build.interrupt("sure?")])
        head = store.head().head
        assert head.blocker is None
        assert head.questions[0].tool_call_id == "", "which of the two it is, nobody wrote down"


class TestQuestions:
    def test_two_tasks_that_share_an_interrupt_id_are_two_questions(
        self, store: Any, build: Any
    ) -> None:
        sends = [build.send("tools", [build.call(c)]) for c in ("a", "b")]
        store.checkpoint(
            messages=[build.human(), build.ai("", "a", "b")], values={"__pregel_tasks": sends}
        )
        for number in (0, 1):
            store.write(
                "__interrupt__",
                [build.interrupt("sure?", "same")],
                task=f"task-{number}",
                path=f"~__pregel_push, {number:010d}, 0000000000",
            )
        questions = store.head().head.questions
        assert [one.tool_call_id for one in questions] == ["a", "b"]
        assert {one.interrupt_id for one in questions} == {"same"}

    def test_two_questions_of_one_task_are_told_apart(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", [build.interrupt("a?"), build.interrupt("b?")])
        questions = store.head().head.questions
        assert [one.prompt for one in questions] == ["a?", "b?"]
        assert len({(one.namespace, one.task_id, one.tool_call_id) for one in questions}) == 2

    def test_results_of_siblings_come_in_the_order_of_the_calls(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human(), build.ai("", "a", "b", "c")], values=GO)
        store.write("messages", [build.tool("b")], task="task-1")
        store.write("messages", [build.tool("a")], task="task-2")
        store.write("__interrupt__", [build.interrupt("c?")], task="task-3")
        (question,) = store.head().head.questions
        assert [m.get("tool_call_id") for m in question.messages[2:]] == ["a", "b"]
        assert question.tool_call_id == "c"

    def test_the_payloads_own_ids_come_first(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human(), build.ai("", "a", "b")], values=GO)
        payload = {"tool_call_id": "b", "interrupt_id": "own", "name": "n", "question": "Well?"}
        store.write("__interrupt__", [build.interrupt(payload, "row")])
        (question,) = store.head().head.questions
        assert (question.tool_call_id, question.interrupt_id) == ("b", "own")
        assert (question.name, question.prompt) == ("n", "Well?")

    def test_the_metadata_is_read_where_the_payload_is_lost(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human(), build.ai("", "c1")], values=GO)
        store.write("__interrupt__", [build.interrupt(None)])
        store.write("ask_user_request:c1", '{"questions": [{"question": "Which?"}]}', task="run")
        (question,) = store.head().head.questions
        assert question.prompt == "Which?"

    def test_a_childs_messages_follow_its_parents(self, store: Any, build: Any) -> None:
        parent = [build.human("plan", id="m1"), build.ai("", "delegate", id="m2")]
        store.checkpoint(messages=parent, values=GO, number=1)
        store.write("__interrupt__", [build.interrupt("sure?", "i")], task="root-task")
        store.checkpoint(
            messages=[build.human("subtask", id="m3"), build.ai("", "c", id="m4")],
            values=GO,
            number=2,
            namespace="node:root-task",
        )
        store.write(
            "__interrupt__",
            [build.interrupt("sure?", "i")],
            task="child-task",
            number=2,
            namespace="node:root-task",
        )
        head = store.head().head
        (question,) = head.questions
        assert (question.task_id, question.tool_call_id) == ("child-task", "c")
        assert [one["content"] for one in question.messages] == ["plan", "", "subtask", ""]
        assert head.blocker is None, "the parent's call is what the child is working on"

    def test_an_unreadable_question_makes_the_thread_unreadable(
        self, store: Any, build: Any
    ) -> None:
        store.checkpoint(messages=[build.human()], values=GO)
        store.write("__interrupt__", blob=b"\xc1")
        assert store.head().head.verdict is Verdict.UNREADABLE


class TestDeltaChannel:
    def delta(self, store: Any, build: Any, *, snapshot: bool) -> None:
        first = [build.human("1", id="m1"), build.ai("2", id="m2")]
        if snapshot:
            snapshot_value = build.extension(7, build.pack(first))
            store.checkpoint(messages=snapshot_value, values=GO, number=1)
        else:
            versions = {"messages": "1"}
            store.checkpoint(values=GO, number=1, channel_versions=versions)
            store.write("messages", first, number=1, task="t0")
        store.write("messages", [build.human("3", id="m3")], number=1)
        store.checkpoint(values=GO, number=2, parent=1, channel_versions={"messages": "2"})
        store.write("messages", build.ai("4", id="m4"), number=2)
        store.checkpoint(number=3, parent=2, channel_versions={"messages": "3"})

    @pytest.mark.parametrize("snapshot", [True, False])
    def test_the_conversation_is_rebuilt_whole(
        self, store: Any, build: Any, *, snapshot: bool
    ) -> None:
        self.delta(store, build, snapshot=snapshot)
        head = store.head().head
        assert [one["content"] for one in head.messages] == ["1", "2", "3", "4"]

    def test_a_history_that_is_cut_is_unreadable_and_not_short(
        self, store: Any, build: Any
    ) -> None:
        self.delta(store, build, snapshot=False)
        store.connection.execute(
            "DELETE FROM checkpoints WHERE checkpoint_id = ?", (build.checkpoint_id(1),)
        )
        head = store.head().head
        assert head.verdict is Verdict.UNREADABLE
        assert "cut" in head.detail

    def test_a_channel_that_was_written_and_is_nowhere_is_no_empty_conversation(
        self, store: Any
    ) -> None:
        store.checkpoint(channel_versions={"messages": "3"})
        assert store.head().head.blocker is FailureReason.NO_SAFE_BOUNDARY


class TestUnreadable:
    @pytest.mark.parametrize(
        ("kind", "blob", "says"),
        [
            ("msgpack", b"\xc1\x00", "damaged"),
            ("msgpack", b"", "damaged"),
            ("json", b"{", "damaged"),
            ("pickle", b"cos\nsystem\n(S'true'\ntR.", "pickled"),
            ("msgpack+aes", b"\x00", "msgpack+aes"),
            ("null", b"", "no channel values"),
            ("bytes", b"abc", "no channel values"),
            ("msgpack", b"\x93\x01\x02\x03", "no channel values"),
        ],
    )
    def test_its_thread_says_why_and_keeps_its_key(
        self, store: Any, build: Any, kind: str, blob: bytes, says: str
    ) -> None:
        store.checkpoint("t:_:bad", kind=kind, blob=blob)
        store.checkpoint("t:_:good", messages=[build.human()])
        bad = store.head("t:_:bad").head
        assert (bad.verdict, bad.blocker) == (Verdict.UNREADABLE, FailureReason.UNREADABLE)
        assert says in bad.detail
        assert bad.checkpoint_id == build.checkpoint_id(1)
        assert bad.created_at.date() == datetime(2026, 11, 30, tzinfo=UTC).date()
        assert store.head("t:_:good").head.verdict is Verdict.CLOSED

    def test_a_record_over_the_limit_is_not_decoded(self, store: Any, build: Any) -> None:
        store.checkpoint(messages=[build.human("x" * 5_000)])
        assert store.head(max_record=4_000).head.verdict is Verdict.UNREADABLE
        assert "max_record" in store.head(max_record=4_000).head.detail
        assert store.head(max_record=9_000).head.verdict is Verdict.CLOSED

    def test_a_message_that_cannot_be_decoded_is_not_passed_over(
        self, store: Any, build: Any
    ) -> None:
        hole = build.extension(5, b"\xc1")
        store.checkpoint(messages=[build.human(), hole])
        assert store.head().head.verdict is Verdict.UNREADABLE

    def test_junk_in_another_channel_costs_nothing(self, store: Any, build: Any) -> None:
        junk = build.extension(99, b"\xc1")
        store.checkpoint(messages=[build.human()], values={"junk": junk})
        store.write("junk", blob=b"\xc1", task="task-9")
        head = store.head().head
        assert (head.verdict, len(head.messages)) == (Verdict.CLOSED, 1)

    def test_constructor_json_is_read_as_the_data_it_is(self, store: Any, build: Any) -> None:
        path = ["langchain", "schema", "messages", "HumanMessage"]
        old = {"lc": 1, "type": "constructor", "id": path, "kwargs": {"content": "hello"}}
        blob = build.json(
            {"v": 1, "ts": "2024-01-02T03:04:05", "channel_values": {"messages": [old]}}
        )
        store.checkpoint(kind="json", blob=blob)
        head = store.head().head
        assert head.messages == ({"role": "user", "content": "hello"},)
        assert head.created_at == datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)

    def test_an_id_without_a_time_is_dated_1970(self, store: Any) -> None:
        store.connection.execute(
            "INSERT INTO checkpoints VALUES ('t:_:x', '', 'plain', NULL, 'msgpack', x'c1', NULL)"
        )
        assert store.head().head.created_at.year == 1970


class TestAnyStore:
    """What a store other than SQLite may hand over."""

    def reader(self, build: Any, **channels: Any) -> LangGraphReader:
        blob = build.pack({"v": 4, "channel_values": {}, "channel_versions": {"messages": "1"}})

        class Rows:
            def links(self, thread_id: str, namespace: str) -> Any:
                return [(build.checkpoint_id(1), None)]

            def namespaces(self, thread_id: str) -> Any:
                return [""]

            def checkpoint(self, thread_id: str, namespace: str, checkpoint_id: str) -> Any:
                return CheckpointRow(
                    namespace=namespace,
                    checkpoint_id=checkpoint_id,
                    parent_id=None,
                    checkpoint=Cell("msgpack", blob, len(blob)),
                    metadata=Cell(None, None, -1),
                    channels=channels,
                )

            def writes(self, thread_id: str, namespace: str, checkpoint_id: str) -> Any:
                return []

        return LangGraphReader(Rows(), max_record=1_000)

    def head(self, build: Any, **channels: Any) -> Any:
        reading = self.reader(build, **channels).head("t")
        assert reading is not None
        return reading.head

    def test_channels_may_be_kept_apart_from_the_checkpoint(self, build: Any) -> None:
        blob = build.pack([build.human("apart")])
        head = self.head(build, messages=Cell("msgpack", blob, len(blob)))
        assert head.messages == ({"role": "user", "content": "apart"},)

    def test_a_channel_kept_apart_that_cannot_be_decoded_is_unreadable(self, build: Any) -> None:
        head = self.head(build, messages=Cell("msgpack", None, 5_000))
        assert head.verdict is Verdict.UNREADABLE

    def test_rows_of_an_unforeseen_shape_are_unreadable(self, build: Any) -> None:
        head = self.head(build, messages="no cell at all")
        assert head.verdict is Verdict.UNREADABLE
        assert "unforeseen" in head.detail


class TestDigest:
    def test_it_does_not_depend_on_the_order_of_rows(self, store: Any, build: Any) -> None:
        for thread, order in (("t:_:a", (0, 1)), ("t:_:b", (1, 0))):
            calls = build.ai("", "a", "b", "c")
            store.checkpoint(thread, messages=[build.human(), calls], values=GO)
            store.write("__interrupt__", [build.interrupt("c?", "i")], thread, task="asks")
            for number in order:
                result = [build.tool("ab"[number])]
                store.write("messages", result, thread, task=f"task-{order.index(number)}")
        first, second = store.head("t:_:a").head, store.head("t:_:b").head
        assert first.messages == second.messages
        assert first.digest == second.digest
        assert first.digest

    def test_another_word_is_another_digest(self, store: Any, build: Any) -> None:
        store.checkpoint("t:_:a", messages=[build.human("a")])
        store.checkpoint("t:_:b", messages=[build.human("b")])
        assert store.head("t:_:a").head.digest != store.head("t:_:b").head.digest
