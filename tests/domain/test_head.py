"""The verdict's pieces, on plain data."""

from __future__ import annotations

from typing import Any

import pytest

from checkpointd.domain.head import (
    NULL_TASK,
    Interrupt,
    Send,
    Step,
    Task,
    TaskWrite,
    causal_leaf,
    innermost,
    is_ordinary,
    judge,
    paused_by_application,
    read_step,
    scheduled_nodes,
    sends_of,
    stands_before,
    waiting,
)
from checkpointd.domain.legacy import Verdict
from checkpointd.domain.plain import Broken, Named


def write(channel: str, value: Any = None, *, task: str = "t1", index: int = 0) -> TaskWrite:
    return TaskWrite(task, f"~__pregel_pull, {task}", index, channel, value)


class TestCausalLeaf:
    @pytest.mark.parametrize(
        ("links", "leaf"),
        [
            ([], ""),
            ([("1", None)], "1"),
            ([("1", None), ("2", "1"), ("3", "2")], "3"),
            ([("9", None), ("3", "9")], "3"),
            ([("1", None), ("2", "1"), ("3", "1")], "3"),
            ([("5", "gone"), ("4", "gone")], "5"),
            ([("1", "1")], "1"),
            ([("1", "2"), ("2", "1")], "2"),
        ],
    )
    def test_it_is_named_by_no_other(self, links: list[tuple[str, str | None]], leaf: str) -> None:
        assert causal_leaf(links) == leaf


class TestScheduled:
    def test_nodes_are_named_by_their_channels(self) -> None:
        values = {"branch:to:a": None, "__start__": {}, "messages": [], "branch:x:cond:b": 1}
        assert scheduled_nodes(values, [Send("tools"), Send("tools")]) == (
            "a",
            "__start__",
            "b",
            "tools",
        )

    def test_a_join_with_its_finish_counts_when_complete(self) -> None:
        seen = Named("builtins", "set", ["x+y", "z"])
        assert scheduled_nodes({"join:x+y+z:end": [seen, True]}, []) == ("end",)
        assert scheduled_nodes({"join:x+y+z:end": Named("builtins", "set", [])}, []) == ()

    def test_a_send_of_any_shape_is_scheduled(self) -> None:
        for value in (
            Named("langgraph.types", "Send", ["tools", 1]),
            Named("langgraph.types", "Send", {"node": "tools", "arg": 1}),
            {"node": "tools", "arg": 1},
        ):
            assert sends_of(value) == [Send("tools", 1)]
            assert sends_of([value]) == [Send("tools", 1)]
        assert sends_of(Broken("cut")) == [Send()]
        assert sends_of(None) == []


class TestStep:
    def test_control_writes_and_output_are_told_apart(self) -> None:
        interrupt = Named("langgraph.types", "Interrupt", {"value": "q", "id": "i"})
        step = read_step(
            [
                write("__interrupt__", [interrupt]),
                write("__resume__", ["a"]),
                write("__error__", "boom", task="t2"),
                write("__no_writes__", task="t3"),
                write("__resume__", "b", task=NULL_TASK),
                write("ask_user_request:1", "{}", task="run"),
                TaskWrite("run-7", "", 0, "application_flag", 1),
            ]
        )
        first, second, third = step.tasks
        assert (first.interrupts, first.answers, first.done) == (
            [Interrupt("q", "i")],
            ["a"],
            False,
        )
        assert second.failed
        assert third.done
        assert step.resumes == ("b",)

    @pytest.mark.parametrize("channel", ["messages", "branch:to:x", "join:a+b:c", "__no_writes__"])
    def test_a_graphs_own_channels_are_ordinary(self, channel: str) -> None:
        assert is_ordinary(channel)

    @pytest.mark.parametrize("channel", ["__scheduled__", "ask_user_request:x", "__resume__"])
    def test_control_and_metadata_are_not(self, channel: str) -> None:
        assert not is_ordinary(channel)

    def test_a_task_knows_its_node_or_its_send(self) -> None:
        assert Task("t", "~__pregel_pull, child").node == "child"
        pushed = Task("t", "~__pregel_push, 0000000002, 0000000000")
        assert (pushed.node, pushed.send_index) == ("", 2)
        assert Task("t", "~__pregel_push, ~__pregel_pull, node, 1").send_index is None

    def test_the_task_that_passes_a_question_on_is_not_innermost(self) -> None:
        outer = Task("o", "~__pregel_pull, node")
        inner = Task("i", "~__pregel_push, ~__pregel_pull, node, 0000000000, 1")
        other = Task("x", "~__pregel_pull, node2")
        assert innermost([outer, inner, other]) == (inner, other)
        assert innermost([Task("a"), Task("b")]) == (Task("a"), Task("b"))


class TestWaiting:
    asking = Task("t", asked=True)

    def test_a_task_that_asked_waits(self) -> None:
        assert waiting(Step((self.asking,))) == (self.asking,)

    def test_an_answer_that_nobody_took_ends_the_wait(self) -> None:
        assert waiting(Step((self.asking,), ("yes",))) == ()

    def test_an_answer_that_a_child_took_does_not(self) -> None:
        assert waiting(Step((self.asking,), ("yes",)), taken_elsewhere=["yes"]) == (self.asking,)

    def test_a_new_answer_after_an_old_one_does(self) -> None:
        task = Task("t", asked=True, answers=["first"])
        assert waiting(Step((task,), ("first",))) == (task,)
        assert waiting(Step((task,), ("second",))) == ()


class TestJudge:
    @pytest.mark.parametrize(
        ("nodes", "failed", "waits", "verdict"),
        [
            ([], True, True, Verdict.CLOSED),
            (["a"], False, False, Verdict.OPEN),
            (["a"], False, True, Verdict.PAUSED),
            (["a"], True, True, Verdict.FAILED),
        ],
    )
    def test_the_table(self, nodes: list[str], failed: bool, waits: bool, verdict: Verdict) -> None:
        assert judge(nodes, Step((Task("t", failed=failed),)), waits=waits) is verdict

    def test_the_application_is_believed_only_where_no_better_word_is_written(self) -> None:
        values = {"run_id": "r", "_interrupt_pending": {"run_id": "r"}}
        assert paused_by_application(values, []) == "_interrupt_pending"
        assert paused_by_application(values, [write("__resume__", "x")]) == ""
        assert paused_by_application(values, [write("_interrupt_pending", None)]) == ""
        assert paused_by_application({**values, "run_id": "other"}, []) == ""
        assert paused_by_application({"_interrupt_pending": None}, []) == ""

    def test_a_step_that_did_something_stands_at_no_breakpoint(self) -> None:
        assert stands_before(["a", "b"], ("b",), Step()) == "b"
        assert stands_before(["a"], ("b",), Step()) == ""
        assert stands_before(["b"], ("b",), Step((Task("t"),))) == ""
