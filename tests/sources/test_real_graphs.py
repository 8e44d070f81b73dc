"""Graphs run for real, then read without them: the two must agree.

The library is the oracle here, and in no other place: nothing that is shipped imports it.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from typing_extensions import TypedDict

from checkpointd.domain.legacy import HeadReading, LegacyState, Verdict
from checkpointd.sources.langgraph import LangGraphReader
from checkpointd.sources.sqlite_rows import SqliteRows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("langgraph.graph")
    pytest.importorskip("langgraph.checkpoint.sqlite")
    from langchain_core.messages import (
        AIMessage,
        HumanMessage,
        RemoveMessage,
        ToolMessage,
        convert_to_openai_messages,
    )
    from langgraph.channels.delta import DeltaChannel
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.func import task
    from langgraph.graph import START, StateGraph
    from langgraph.graph.message import _messages_delta_reducer, add_messages
    from langgraph.types import Command, Overwrite, Send, interrupt

pytestmark = pytest.mark.filterwarnings("ignore")


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    note: str


class DeltaState(TypedDict, total=False):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


class Private(TypedDict, total=False):
    """A child's state that shares nothing with its parent's but the name of a channel."""

    messages: Annotated[list[Any], add_messages]


def calling(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "f", "args": {"n": one}, "id": one} for one in ids])


def says(*messages: Any) -> Callable[[Any], Any]:
    # Copies, since a channel gives the message that it is handed an id.
    return lambda state: {"messages": [one.model_copy(deep=True) for one in messages]}


def asks(*questions: Any) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        return {"note": str([interrupt(question) for question in questions])}

    return node


def one_call(argument: Any) -> Any:
    """A tool's task: calls that begin with ``ask`` ask, the others answer."""
    call_id = argument["id"]
    answer = interrupt({"q": call_id}) if call_id.startswith("ask") else "ok"
    return {"messages": [ToolMessage(str(answer), tool_call_id=call_id)]}


class Lab:
    """A store, and the real graphs that fill it."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.saver = SqliteSaver(self.connection)
        self.graph: Any = None

    def build(self, *nodes: tuple[str, Any], state: Any = State, **options: Any) -> StateGraph:
        """Nodes in a row, each after the one before."""
        graph = StateGraph(state, **options)
        before = START
        for name, node in nodes:
            graph.add_node(name, node)
            graph.add_edge(before, name)
            before = name
        return graph

    def run(self, graph: StateGraph, *inputs: Any, **options: Any) -> Lab:
        self.graph = graph.compile(checkpointer=self.saver)
        for one in inputs:
            value = one if isinstance(one, Command) else {"messages": [HumanMessage(one)]}
            self.graph.invoke(value, self.config(), **options)
        return self

    def config(self, checkpoint_id: str | None = None) -> Any:
        chosen = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
        return {"configurable": {"thread_id": "t:_:x", **chosen}}

    @property
    def reader(self) -> LangGraphReader:
        rows = SqliteRows(self.connection, max_record=10_000_000)
        return LangGraphReader(rows, max_record=10_000_000)

    def reading(self) -> HeadReading:
        reading = self.reader.head("t:_:x")
        assert reading is not None
        return reading

    def head(self) -> LegacyState:
        return self.reading().head

    def agrees(self) -> None:
        """Every checkpoint is closed here exactly where its graph has nothing next."""
        for snapshot in list(self.graph.get_state_history(self.config())):
            checkpoint_id = snapshot.config["configurable"]["checkpoint_id"]
            state = self.reader.state("t:_:x", checkpoint_id)
            assert state is not None
            assert (state.verdict is Verdict.CLOSED) == (snapshot.next == ()), checkpoint_id
            if state.verdict is Verdict.CLOSED:
                stored = snapshot.values.get("messages", [])
                assert list(state.messages) == convert_to_openai_messages(stored)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "real.sqlite")
    yield lab
    lab.connection.close()


class TestAgreement:
    def test_on_a_conversation(self, lab: Lab) -> None:
        lab.run(lab.build(("a", says(AIMessage("one"))), ("b", says(AIMessage("two")))), "x", "y")
        lab.agrees()
        assert len(lab.head().messages) == 6

    def test_on_a_join(self, lab: Lab) -> None:
        graph = StateGraph(State)
        for name in "ab":
            graph.add_node(name, says(AIMessage(name)))
            graph.add_edge(START, name)
        graph.add_node("c", says(AIMessage("c")))
        graph.add_edge(["a", "b"], "c")
        lab.run(graph, "x", "y")
        lab.agrees()

    def test_on_a_deferred_node(self, lab: Lab) -> None:
        graph = lab.build(("a", says(AIMessage("a"))), ("b", says(AIMessage("b"))))
        graph.add_node("last", says(AIMessage("last")), defer=True)
        graph.add_edge("a", "last")
        graph.add_edge("b", "last")
        lab.run(graph, "x")
        lab.agrees()

    def test_on_sends(self, lab: Lab) -> None:
        graph = StateGraph(State)
        graph.add_node("model", says(calling("a", "b")))
        graph.add_node("tool", one_call)
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda s: [Send("tool", c) for c in s["messages"][-1].tool_calls]
        )
        lab.run(graph, "x", "y")
        lab.agrees()

    def test_on_a_fork_and_an_edited_state(self, lab: Lab) -> None:
        lab.run(lab.build(("a", says(AIMessage("one"))), ("b", says(AIMessage("two")))), "x")
        older = list(lab.graph.get_state_history(lab.config()))[1]
        lab.graph.update_state(older.config, {"messages": [AIMessage("edited")]}, as_node="b")
        lab.agrees()
        assert lab.head().messages[-1]["content"] == "edited"

    def test_on_removed_messages(self, lab: Lab) -> None:
        def forget(state: Any) -> Any:
            return {"messages": [RemoveMessage(id=state["messages"][0].id), AIMessage("new")]}

        lab.run(lab.build(("a", forget)), "x", "y")
        lab.agrees()

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_on_a_delta_channel(self, lab: Lab, durability: str) -> None:
        graph = lab.build(("a", says(AIMessage("one"))), state=DeltaState)
        lab.run(graph, "x", "y", "z", durability=durability)
        lab.agrees()
        assert len(lab.head().messages) == 6

    def test_on_a_delta_channel_that_was_reset(self, lab: Lab) -> None:
        def node(state: Any) -> Any:
            kept = [HumanMessage("summary")]
            return {"messages": Overwrite(kept) if len(state["messages"]) > 3 else [AIMessage("a")]}

        lab.run(lab.build(("a", node), state=DeltaState), "x", "y", "z", "w")
        lab.agrees()

    def test_on_a_static_breakpoint(self, lab: Lab) -> None:
        graph = lab.build(("a", says(AIMessage("one"))), ("b", says(AIMessage("two"))))
        stopped = graph.compile(checkpointer=lab.saver, interrupt_before=["b"])
        stopped.invoke({"messages": [HumanMessage("x")]}, lab.config())
        lab.graph = stopped
        lab.agrees()
        assert lab.head().verdict is Verdict.OPEN
        rows = SqliteRows(lab.connection, max_record=10_000_000)
        reader = LangGraphReader(rows, max_record=10_000_000, breakpoints=("b",))
        reading = reader.head("t:_:x")
        assert reading is not None
        assert reading.head.verdict is Verdict.PAUSED


class TestPauses:
    def prompts(self, lab: Lab) -> list[str]:
        assert lab.head().verdict is Verdict.PAUSED
        live = sorted(one.id for one in lab.graph.get_state(lab.config()).interrupts)
        found = sorted(one.interrupt_id for one in lab.head().questions)
        assert set(live) <= set(found)
        return sorted(one.prompt for one in lab.head().questions)

    def test_a_node_that_asks_twice_waits_for_the_second_answer(self, lab: Lab) -> None:
        graph = lab.build(("a", asks("first?", "second?")))
        assert self.prompts(lab.run(graph, "x")) == ["first?"]
        assert self.prompts(lab.run(graph, Command(resume="yes"))) == ["second?"]
        lab.run(graph, Command(resume="yes"))
        assert lab.head().verdict is Verdict.CLOSED
        lab.agrees()

    def test_a_subgraph_whose_second_node_asks_waits_again(self, lab: Lab) -> None:
        child = lab.build(("a", asks("first?")), ("b", asks("second?"))).compile()
        graph = lab.build(("child", child))
        assert self.prompts(lab.run(graph, "x")) == ["first?"]
        assert self.prompts(lab.run(graph, Command(resume="yes"))) == ["second?"]
        lab.run(graph, Command(resume="yes"))
        assert lab.head().verdict is Verdict.CLOSED

    def test_a_subgraph_in_a_subgraph(self, lab: Lab) -> None:
        inner = lab.build(("model", says(calling("c1"))), ("ask", asks("deep?"))).compile()
        middle = lab.build(("inner", inner)).compile()
        lab.run(lab.build(("outer", middle)), "x")
        assert self.prompts(lab) == ["deep?"]
        (question,) = lab.head().questions
        assert question.namespace.count("|") == 1
        assert question.tool_call_id == "c1"
        assert [one["role"] for one in question.messages] == ["user", "assistant"]

    def test_a_subgraph_with_a_memory_of_its_own(self, lab: Lab) -> None:
        child = lab.build(("say", says(calling("c1"))), ("ask", asks("kept?")))
        lab.run(lab.build(("child", child.compile(checkpointer=True))), "x")
        assert self.prompts(lab) == ["kept?"]
        assert lab.head().questions[0].namespace == "child"

    def test_the_second_graph_that_a_node_calls(self, lab: Lab) -> None:
        quiet = lab.build(("a", says(AIMessage("quiet")))).compile()
        asking = lab.build(("a", asks("loud?"))).compile()

        def node(state: Any) -> Any:
            quiet.invoke(state)
            return asking.invoke(state)

        lab.run(lab.build(("both", node)), "x")
        assert self.prompts(lab) == ["loud?"]
        assert lab.head().questions[0].namespace.endswith("|1")

    def test_tasks_that_a_node_calls_ask_for_themselves(self, lab: Lab) -> None:
        @task
        def ask(question: str) -> Any:
            return interrupt(question)

        def node(state: Any) -> Any:
            return {"note": str([one.result() for one in [ask("a?"), ask("b?")]])}

        lab.run(lab.build(("node", node)), "x")
        assert self.prompts(lab) == ["a?", "b?"]

    def test_parallel_tools_of_which_two_ask(self, lab: Lab) -> None:
        graph = StateGraph(State)
        graph.add_node("model", says(calling("ask1", "plain", "ask2")))
        graph.add_node("tool", one_call)
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda s: [Send("tool", c) for c in s["messages"][-1].tool_calls]
        )
        lab.run(graph, "x")
        assert self.prompts(lab) == ['{"q":"ask1"}', '{"q":"ask2"}']
        head = lab.head()
        assert sorted(one.tool_call_id for one in head.questions) == ["ask1", "ask2"]
        assert head.messages[-1]["tool_call_id"] == "plain"
        assert head.blocker is None

    def test_one_of_two_answered_by_its_id(self, lab: Lab) -> None:
        graph = StateGraph(State)
        graph.add_node("model", says(calling("ask1", "ask2")))
        graph.add_node("tool", one_call)
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda s: [Send("tool", c) for c in s["messages"][-1].tool_calls]
        )
        lab.run(graph, "x")
        first = next(one for one in lab.head().questions if one.tool_call_id == "ask1")
        lab.run(graph, Command(resume={first.interrupt_id: "yes"}))
        (left,) = lab.head().questions
        assert left.tool_call_id == "ask2"
        assert left.messages[-1] == {"role": "tool", "content": "yes", "tool_call_id": "ask1"}

    def test_a_child_with_a_task_of_its_own_follows_its_parent(self, lab: Lab) -> None:
        child = lab.build(("say", says(calling("c1"))), ("ask", asks("sure?"))).compile()

        def delegate(state: Any) -> Any:
            child.invoke({"messages": [HumanMessage("subtask")]})
            return {"messages": [ToolMessage("done", tool_call_id="hand")]}

        lab.run(lab.build(("model", says(calling("hand"))), ("child", delegate)), "x")
        (question,) = lab.head().questions
        assert [one["content"] for one in question.messages] == ["x", "", "subtask", ""]
        assert question.tool_call_id == "c1"
        assert lab.head().blocker is None


class TestFailures:
    def test_a_node_that_raises_fails_the_head_and_the_turn_before_remains(self, lab: Lab) -> None:
        def node(state: Any) -> Any:
            if len(state["messages"]) > 2:
                raise RuntimeError("boom")
            return {"messages": [AIMessage("fine")]}

        graph = lab.build(("a", node))
        lab.run(graph, "x")
        with pytest.raises(RuntimeError):
            lab.run(graph, "y")
        reading = lab.reading()
        assert reading.head.verdict is Verdict.FAILED
        assert reading.ancestor is not None
        assert [one["content"] for one in reading.ancestor.messages] == ["x", "fine"]
