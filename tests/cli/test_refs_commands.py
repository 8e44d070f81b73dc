"""Single refs, and what is in quarantine."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.server


class TestRefsList:
    def test_lists_all_refs(self, command: Any, registered: Any) -> None:
        for thread in ("a", "b"):
            registered(thread, "1")
        listed = command.json("refs", "list")
        assert {ref["thread_id"] for ref in listed["refs"]} == {"a", "b"}
        assert listed["more"] is False

    def test_lists_those_in_one_state(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        registered("b", "1", finalized=False)
        listed = command.json("refs", "list", "--state", "open")
        assert [ref["thread_id"] for ref in listed["refs"]] == ["b"]

    def test_says_that_there_are_more_than_were_asked_for(
        self, command: Any, registered: Any
    ) -> None:
        for thread in "abc":
            registered(thread, "1")
        assert "and more" in command("refs", "list", "--limit", "2").stdout
        assert command.json("refs", "list", "--limit", "2")["more"] is True

    def test_breaks_no_line_in_a_pipe(self, command: Any, registered: Any) -> None:
        registered("t" * 200, "c" * 200)
        first = command("refs", "list").stdout.splitlines()[0]
        assert "t" * 200 in first
        assert "c" * 200 in first

    def test_of_none_says_so(self, command: Any, store: str) -> None:
        assert command("refs", "list").stdout == "There is no such ref.\n"

    def test_an_unknown_state_is_a_wrong_command_line(self, command: Any) -> None:
        assert command("refs", "list", "--state", "nosuch").exit_code == 2


class TestRefsShow:
    def test_tells_all_that_is_kept(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unreadable")
        ref = command.json("refs", "show", "a", "1")
        assert (ref["state"], ref["code"], ref["detail"]) == (
            "quarantined",
            "unreadable",
            "seen by a test",
        )
        assert "seen by a test" in command("refs", "show", "a", "1").stdout

    def test_tells_of_a_crash_its_grace_and_which_pass_expired_it(
        self, command: Any, registered: Any
    ) -> None:
        registered("a", "1", finalized=False)
        command("once", "reconcile")
        ref = command.json("refs", "show", "a", "1")
        assert ref["grace_seconds"] == 1.0
        assert ref["by"].startswith("reconcile ")
        assert ref["reason"] == "crash-expiry: issued but never finalized"
        said = command("refs", "show", "a", "1").stdout
        assert "grace" in said

    def test_of_one_that_was_never_registered_fails(self, command: Any, store: str) -> None:
        result = command("refs", "show", "a", "1")
        assert result.exit_code == 1
        assert "never registered" in result.stderr


class TestRefsExpire:
    def test_keeps_the_reason(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        ref = command.json("refs", "expire", "a", "1", "--reason", "a test turn")["ref"]
        assert (ref["expired"], ref["expired_reason"]) == (True, "a test turn")

    def test_again_keeps_the_first_reason(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        command("refs", "expire", "a", "1", "--reason", "first")
        ref = command.json("refs", "expire", "a", "1", "--reason", "second")["ref"]
        assert ref["expired_reason"] == "first"

    def test_of_a_migrated_one_is_refused(self, command: Any, registered: Any, inside: Any) -> None:
        registered("a", "1")
        registered("a", "2", line="kernel")
        inside(
            lambda rooms: rooms.registry.record_migration(
                "a", "1", checkpoint_id="2", boundary_id="b"
            )
        )
        result = command("refs", "expire", "a", "1", "--reason", "r")
        assert result.exit_code == 1
        assert "has been migrated" in result.stderr

    def test_of_an_unknown_one_fails(self, command: Any, store: str) -> None:
        assert command("refs", "expire", "a", "1", "--reason", "r").exit_code == 1


class TestRefsResolve:
    def test_names_what_would_be_resumed(self, command: Any, registered: Any) -> None:
        registered("a", "1", line="kernel")
        assert command.json("refs", "resolve", "a")["ref"]["checkpoint_id"] == "1"
        assert command("refs", "resolve", "a").stdout.startswith("1  kernel")

    def test_of_nothing_resumable_is_an_answer(self, command: Any, store: str) -> None:
        result = command("refs", "resolve", "a")
        assert result.exit_code == 0
        assert "Nothing of it can be resumed" in result.stdout
        assert command.json("refs", "resolve", "a")["ref"] is None


class TestRefsReplay:
    def test_moves_what_is_due_to_the_front(self, command: Any, registered: Any) -> None:
        registered("a", "1")
        assert command.json("refs", "replay", "a") == {"thread_id": "a", "moved": 1}
        assert "1 ref moved" in command("refs", "replay", "a").stdout

    def test_of_nothing_due_says_so(self, command: Any, store: str) -> None:
        assert "Nothing of it is due" in command("refs", "replay", "a").stdout


class TestRefsRestore:
    @pytest.fixture
    def late(self, command: Any, registered: Any, inside: Any) -> None:
        """A ref that expired while its writer was at work."""
        registered("a", "1", finalized=False)
        command("once", "reconcile")

        async def come_back(rooms: Any) -> None:
            with pytest.raises(ValueError, match="expired"):
                await rooms.registry.finalize("a", "1")

        inside(come_back)

    RESTORE = ("refs", "restore", "--late", "--since", "1h", "--reason", "grace too short")

    def test_brings_back_what_expired_too_early(self, command: Any, late: None) -> None:
        assert len(command.json(*self.RESTORE)["done"]) == 1
        assert command.json("refs", "show", "a", "1")["state"] == "pending"

    def test_a_rehearsal_changes_nothing(self, command: Any, late: None) -> None:
        said = command(*self.RESTORE, "--dry-run").stdout
        assert said.startswith("1 ref would be restored")
        assert command.json("refs", "show", "a", "1")["state"] == "expired"

    def test_only_late_ones_can_be_asked_for(self, command: Any, store: str) -> None:
        assert command("refs", "restore", "--since", "1h", "--reason", "r").exit_code == 2


class TestQuarantineList:
    def test_names_each_with_its_reason_and_the_ways_out(
        self, command: Any, quarantined: Any
    ) -> None:
        quarantined("a", "1", "unreadable")
        said = command("quarantine", "list").stdout
        assert "unreadable: seen by a test" in said
        assert "quarantine waive --blocked-by unreadable" in said

    def test_is_narrowed_by_thread_and_by_reason(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unreadable")
        quarantined("b", "1", "absent")

        def threads(*words: str) -> list[str]:
            refs = command.json("quarantine", "list", *words)["refs"]
            return sorted(ref["thread_id"] for ref in refs)

        assert threads() == ["a", "b"]
        assert threads("--thread", "a") == ["a"]
        assert threads("--blocked-by", "absent") == ["b"]
        assert threads("--thread", "a", "--blocked-by", "absent") == []

    def test_of_nothing_says_so(self, command: Any, store: str) -> None:
        assert "Nothing is in quarantine" in command("quarantine", "list").stdout


class TestQuarantineDecisions:
    @pytest.mark.parametrize("verb", ["release", "waive", "unwaive"])
    def test_must_say_which_refs_are_meant(self, command: Any, verb: str) -> None:
        result = command("quarantine", verb, "--reason", "r")
        assert result.exit_code == 2
        assert "--all" in result.stderr

    @pytest.mark.parametrize("verb", ["release", "waive", "unwaive"])
    def test_must_say_why(self, command: Any, verb: str) -> None:
        assert command("quarantine", verb, "--all").exit_code == 2

    def test_waive_lets_the_drain_end(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unreadable")
        result = command("quarantine", "waive", "--all", "--reason", "user left")
        assert result.stdout.startswith("1 ref waived")
        assert command.json("refs", "show", "a", "1")["state"] == "waived"

    def test_release_gives_it_back_to_the_drain(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unreadable")
        command("quarantine", "release", "--thread", "a", "--reason", "mended")
        ref = command.json("refs", "show", "a", "1")
        assert (ref["state"], ref["attempts"]) == ("pending", 0)

    @pytest.mark.parametrize("which", ["--all", "--thread a", "--blocked-by unreadable"])
    def test_unwaive_takes_it_back(self, command: Any, quarantined: Any, which: str) -> None:
        quarantined("a", "1", "unreadable")
        command("quarantine", "waive", "--all", "--reason", "r")
        result = command("quarantine", "unwaive", *which.split(), "--reason", "she is back")
        assert result.stdout.startswith("1 ref unwaived")
        ref = command.json("refs", "show", "a", "1")
        assert (ref["state"], ref["code"]) == ("quarantined", "unreadable")

    def test_a_rehearsal_lists_and_changes_nothing(self, command: Any, quarantined: Any) -> None:
        quarantined("a", "1", "unreadable")
        result = command("quarantine", "waive", "--all", "--reason", "r", "--dry-run")
        assert result.stdout.startswith("1 ref would be waived")
        assert "seen by a test" in result.stdout
        assert command.json("refs", "show", "a", "1")["state"] == "quarantined"

    def test_all_of_several_reasons_must_be_told_apart(
        self, command: Any, quarantined: Any
    ) -> None:
        quarantined("a", "1", "unreadable")
        quarantined("b", "1", "absent")
        result = command("quarantine", "waive", "--all", "--reason", "r")
        assert result.exit_code == 2
        assert "absent 1 · unreadable 1" in result.stderr
        assert command.json("status")["refs"]["waived"] == 0
        command("quarantine", "waive", "--all", "--blocked-by", "absent", "--reason", "r")
        assert command.json("status")["blocked"] == {"unreadable": 1}

    def test_of_nothing_is_no_failure(self, command: Any, store: str) -> None:
        result = command("quarantine", "waive", "--all", "--reason", "r")
        assert (result.exit_code, result.stdout) == (0, "0 refs waived.\n")
