"""How message lists grow."""

from __future__ import annotations

from typing import Any

from checkpointd.domain.history import REMOVE_ALL, as_elements, fold, joined
from checkpointd.domain.plain import Named


def said(content: str, identity: str | None = None) -> dict[str, Any]:
    return {"type": "human", "content": content, "id": identity}


def removal(identity: str) -> Named:
    return Named(
        "langchain_core.messages.modifier", "RemoveMessage", {"id": identity, "type": "remove"}
    )


class TestFold:
    def test_new_messages_are_appended_and_known_ones_replaced(self) -> None:
        result = fold(
            [said("a", "1"), said("b", "2")], [[said("B", "2"), said("c")], said("d", "3")]
        )
        assert [one["content"] for one in result] == ["a", "B", "c", "d"]

    def test_a_removal_removes_and_may_be_undone(self) -> None:
        assert fold([said("a", "1"), said("b", "2")], [removal("1")]) == [said("b", "2")]
        assert fold([said("a", "1")], [[removal("1"), said("A", "1")]]) == [said("A", "1")]
        assert fold([said("a", "1")], [removal("unknown")]) == [said("a", "1")]

    def test_everything_may_be_removed(self) -> None:
        assert fold([said("a")], [[said("b"), removal(REMOVE_ALL), said("c")]]) == [said("c")]

    def test_an_overwrite_begins_anew_in_each_of_its_forms(self) -> None:
        for reset in (
            Named("langgraph.types", "Overwrite", {"value": [said("x")]}),
            {"__overwrite__": [said("x")]},
            {"type": "__overwrite__", "value": [said("x")]},
        ):
            assert fold([said("a")], [reset, said("y")]) == [said("x"), said("y")]

    def test_ten_thousand_messages_fold_in_no_time(self) -> None:
        writes = [said("x", str(number)) for number in range(10_000)]
        assert len(fold(writes, [writes, writes])) == 10_000


class TestJoined:
    def test_a_child_that_was_given_everything_only_adds(self) -> None:
        parent = [said("a", "1"), said("b")]
        assert joined(parent, [*parent, said("c", "2")]) == [*parent, said("c", "2")]

    def test_a_child_with_a_task_of_its_own_follows(self) -> None:
        assert joined([said("a", "1")], [said("task", "9")]) == [said("a", "1"), said("task", "9")]

    def test_a_message_said_twice_is_kept_twice(self) -> None:
        assert joined([said("a")], [said("a"), said("a")]) == [said("a"), said("a")]


class TestAsElements:
    def test_one_message_alone_is_a_list_of_it(self) -> None:
        assert as_elements(said("a")) == [said("a")]
        assert as_elements(None) == []
        assert as_elements(Named("m", "_DeltaSnapshot", [said("a")])) == [said("a")]
