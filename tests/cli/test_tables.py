"""What people read: at eighty columns, whole in a pipe, and never obeyed by the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from checkpointd.cli import reports, stories, tables
from checkpointd.cli.common import show
from checkpointd.cli.demo import Stage
from checkpointd.domain.refs import CheckpointRef, IssuanceFreeze, MigrationLink
from checkpointd.domain.reports import AdoptReport, CensusReport, DrainReport, ReconcileReport
from checkpointd.domain.standing import RefRecord
from checkpointd.domain.states import (
    DrainState,
    FailureReason,
    Hold,
    HoldReason,
    PassName,
    RefState,
    ReplayOutcome,
    ThrottleReason,
    WriterLine,
)
from checkpointd.domain.status import status_document
from checkpointd.domain.tally import DrainStatus, StoreTally
from checkpointd.registry.operations import AuditEntry, AuditPage, BulkResult, Finding, Verification

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)


def printed(page: Any, *, terminal: bool = False, width: int = 80) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=terminal,
        color_system=None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    show(console, page)
    return out.getvalue()


def record(state: RefState, **more: Any) -> RefRecord:
    ref = CheckpointRef("t", "c", WriterLine.LEGACY, NOW)
    return RefRecord(ref=ref, state=state, changed_at=NOW, by="anna", **more)


def status(tally: StoreTally, *, state: DrainState = DrainState.DRAINING, **more: Any) -> str:
    drain = DrainStatus(state=state, sentence="A sentence.", **more)
    return printed(reports.status_page(status_document(tally, drain, {})))


class TestLine:
    SENTENCE = "word " * 40

    def test_is_broken_at_words_on_a_terminal(self) -> None:
        lines = printed(tables.Line(self.SENTENCE, indent=2), terminal=True).splitlines()
        assert len(lines) == 3
        assert all(line.startswith("  word") for line in lines)
        assert max(map(len, lines)) <= 80

    def test_is_left_whole_in_a_pipe(self) -> None:
        assert printed(tables.Line(self.SENTENCE, indent=2)) == f"  {self.SENTENCE}\n"

    def test_is_no_markup(self) -> None:
        assert printed(tables.Line("[red]x[/red] :smile:")) == "[red]x[/red] :smile:\n"

    def test_escapes_what_a_terminal_would_obey(self) -> None:
        assert printed(tables.Line("a\x1b[31mb")) == "a\\x1b[31mb\n"


class TestFolded:
    def test_parts_no_name_from_its_number(self) -> None:
        many = {f"state{n}": n * 1000 for n in range(12)}
        lines = tables.folded(many).plain.splitlines()
        assert len(lines) > 1
        assert " · ".join(lines) == tables.counts(many)

    def test_of_nothing_says_none(self) -> None:
        assert tables.counts({}, zeros=False) == "none"


class TestWords:
    @pytest.mark.parametrize(
        ("s", "said"), [(0.0042, "4ms"), (1.26, "1.3s"), (42.4, "42s"), (3725, "1h2m5s")]
    )
    def test_a_span_is_as_exact_as_it_is_short(self, s: float, said: str) -> None:
        assert tables.seconds(s) == said

    def test_one_is_not_many(self) -> None:
        assert (tables.plural(1, "ref"), tables.plural(2_000, "ref")) == ("1 ref", "2,000 refs")

    def test_a_moment_is_utc_to_the_second(self) -> None:
        assert tables.when(NOW) == "2026-01-02T03:04:05Z"


class TestStory:
    @pytest.mark.parametrize(
        ("told", "said"),
        [
            (record(RefState.OPEN, opened_at=NOW), "began 2026-01-02T03:04:05Z"),
            (record(RefState.PENDING), "waits for the drain"),
            (record(RefState.PENDING, reason="mended"), "waits for the drain (mended)"),
            (record(RefState.PENDING, hold=Hold.PAUSED), "a question waits"),
            (record(RefState.PENDING, hold=Hold.FALLBACK, stands_in_for="h"), "stands in for h"),
            (record(RefState.REPLAYING, attempts=2), "attempt 2"),
            (
                record(RefState.RETRYABLE, attempts=1, code=FailureReason.TIMEOUT),
                "1 attempt so far: timeout",
            ),
            (
                record(RefState.QUARANTINED, code=FailureReason.ABSENT, detail="gone"),
                "absent: gone",
            ),
            (record(RefState.WAIVED, reason="user left"), "user left (waived by anna)"),
            (
                record(RefState.MIGRATED, link=MigrationLink("t", "c", "new", "b", NOW)),
                "became new",
            ),
            (record(RefState.EXPIRED, reason="crash", late_at=NOW), "its writer came back 2026"),
            (record(RefState.FINALIZED, replay_of="old"), "continues legacy old"),
            (record(RefState.FINALIZED), "whole"),
        ],
    )
    def test_says_why_a_ref_stands_where_it_stands(self, told: RefRecord, said: str) -> None:
        assert said in stories.story(told)

    def test_every_state_has_one(self) -> None:
        assert all(stories.story(record(state)) for state in RefState)


class TestRefPage:
    def test_shows_what_there_is_and_leaves_out_what_there_is_not(self) -> None:
        said = printed(stories.ref_page(record(RefState.PENDING)))
        assert "anna" in said
        assert "became" not in said

    def test_shows_where_a_migrated_one_went(self) -> None:
        link = MigrationLink("t", "c", "new", "b", NOW)
        said = printed(stories.ref_page(record(RefState.MIGRATED, link=link, grace_s=3600.0)))
        assert "migrated" in said
        assert "1h" in said


class TestStatusPage:
    def test_says_what_is_unusual_and_only_that(self) -> None:
        quiet = status(StoreTally(at=NOW))
        for word in ("late", "throttled", "paused", "held", "overdue", "reopened", "frozen"):
            assert word not in quiet

    def test_tells_of_writers_that_missed_the_freeze(self) -> None:
        assert "2 refs written after the freeze" in status(StoreTally(written_since_freeze=2))

    def test_tells_what_throttles(self) -> None:
        assert "by source" in status(StoreTally(throttled=ThrottleReason.SOURCE))

    def test_tells_what_is_paused_and_why(self) -> None:
        assert "adopt (look first)" in status(StoreTally(paused={PassName.ADOPT: "look first"}))

    @pytest.mark.parametrize("held", HoldReason)
    def test_tells_why_expiry_is_held_and_what_ends_it(self, held: HoldReason) -> None:
        said = status(StoreTally(held=held, open_overdue=5_000))
        assert "expiries allow" in " ".join(said.split())

    def test_tells_what_is_overdue(self) -> None:
        assert "3 refs to be expired" in status(StoreTally(open_overdue=3))

    def test_tells_of_a_freeze_that_is_not_in_force(self) -> None:
        freeze = IssuanceFreeze("cut-over", NOW)
        assert "not in force yet" in " ".join(status(StoreTally(frozen=freeze)).split())

    def test_tells_when_it_ended_and_when_it_began_again(self) -> None:
        said = status(StoreTally(drained_at=NOW, reopened_at=NOW))
        assert said.count("2026-01-02T03:04:05Z") == 2

    def test_draws_how_far_it_is(self) -> None:
        said = status(StoreTally(baseline=1_000), progress=0.25, eta_s=754.2)
        assert "25.0%" in said
        assert "1,000 at the freeze" in said
        assert "ETA 12m34s" in " ".join(said.split())

    def test_fits_into_eighty_columns(self) -> None:
        huge = dict.fromkeys(RefState, 1234567)
        said = status(StoreTally(legacy=huge, kernel=huge, baseline=9_876_543), progress=0.5)
        assert max(len(line.rstrip()) for line in said.splitlines()) <= 80

    def test_of_an_unreadable_store_has_its_word_and_sentence(self) -> None:
        drain = DrainStatus(state=DrainState.UNKNOWN, sentence="It cannot be read.")
        said = printed(reports.status_page(status_document(None, drain, {})))
        assert said.startswith("unknown  It cannot be read.")


class TestReports:
    def test_troubles_are_told(self) -> None:
        report = DrainReport(at=NOW, troubles=("partition 3: it is gone",))
        assert "partition 3: it is gone" in printed(reports.report_page(report))

    def test_a_drain_that_found_nothing_says_so(self) -> None:
        assert "Nothing was due" in printed(reports.report_page(DrainReport(at=NOW)))

    def test_a_drain_tells_outcomes_failures_and_who_else_is_at_it(self) -> None:
        report = DrainReport(
            at=NOW,
            outcomes={ReplayOutcome.MIGRATED: 3, ReplayOutcome.QUARANTINED: 1},
            failures={FailureReason.ABSENT: 1},
            busy=2,
            took_s=1.5,
        )
        said = printed(reports.report_page(report))
        assert "migrated 3 · quarantined 1 in 1.5s." in said
        assert "1 ref blocked by absent" in said
        assert "2 refs held by another replica" in said

    @pytest.mark.parametrize("word", ["not_frozen", "paused", "halted", "canary:7", "elsewhere"])
    def test_a_drain_that_waits_says_for_what(self, word: str) -> None:
        said = printed(reports.report_page(DrainReport(at=NOW, waiting_for=word)))
        assert said.startswith("Nothing was claimed: ")
        assert "not_frozen" not in said

    def test_a_scan_that_did_not_end_or_left_heads_says_so(self) -> None:
        said = printed(reports.report_page(AdoptReport(at=NOW, threads=5, too_young=2, took_s=1)))
        assert "not complete" in said
        assert "2 heads too young" in said

    def test_a_scan_that_was_not_made_says_why(self) -> None:
        report = AdoptReport(at=NOW, skipped="another replica is scanning")
        assert "another replica is scanning" in printed(reports.report_page(report))

    def test_a_held_expiry_says_what_ends_it(self) -> None:
        report = ReconcileReport(at=NOW, grace_s=60, overdue=5, held=HoldReason.MASS)
        assert "expiries allow" in printed(reports.report_page(report))

    def test_a_census_tells_what_it_completed_and_whether_the_breaker_tripped(self) -> None:
        report = CensusReport(
            at=NOW,
            tally=StoreTally(),
            status=DrainStatus(state=DrainState.HALTED),
            completed_copies=True,
            halted=True,
        )
        said = printed(reports.report_page(report))
        assert "half-copied" in said
        assert "breaker tripped" in said


class TestOtherPages:
    def test_an_audit_says_how_much_of_it_is_gone(self) -> None:
        entry = AuditEntry(at=NOW, event="ref_adopted", thread_id="t", became="open", by="anna")
        said = printed(stories.audit_page(AuditPage(entries=(entry,), trimmed=7)))
        assert "7 older entries trimmed" in said
        assert "ref_adopted new -> open  t  by anna" in said

    def test_a_story_whose_audit_is_gone_says_so(self) -> None:
        told = (record(RefState.PENDING),)
        page = stories.story_page("t", "migrating", "S.", told, AuditPage(entries=(), trimmed=3))
        assert "trimmed" in printed(page)

    def test_a_verification_lists_findings_and_counts_the_rest(self) -> None:
        findings = (
            Finding(thread_id="t", checkpoint_id="c", what="it has a link and is open"),
            Finding(thread_id="", checkpoint_id="", what="partition 0 counts 2"),
        )
        found = Verification(refs=5, threads=2, findings=findings, more=3)
        said = printed(stories.verification_page(found))
        assert "5 findings" in said
        assert "t  c" in said
        assert "counters" in said
        assert "3 more" in said

    def test_a_decision_says_what_changed_meanwhile(self) -> None:
        result = BulkResult(done=(record(RefState.QUARANTINED),), skipped=2)
        assert "2 refs had changed meanwhile" in printed(stories.bulk_page(result, "waived"))

    def test_a_quarantine_of_several_reasons_names_none(self) -> None:
        blocked = record(RefState.QUARANTINED, code=FailureReason.ABSENT)
        other = replace(blocked, code=FailureReason.UNREADABLE)
        assert "--blocked-by CODE" in printed(stories.quarantine_page([blocked, other]))


class TestTheDemosStage:
    TALLY = StoreTally(
        legacy={RefState.MIGRATED: 18, RefState.QUARANTINED: 1}, baseline=19, grace=timedelta(1)
    )

    def test_draws_a_bar_that_fits_on_a_terminal(self) -> None:
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, color_system=None)
        with Stage(console).progress() as draw:
            draw(self.TALLY, DrainStatus(state=DrainState.STALLED))
        bars = [line for line in out.getvalue().splitlines() if "18/19" in line]
        assert "migrated 18 · quarantined 1" in bars[-1]

    def test_says_each_change_once_in_a_pipe(self) -> None:
        out = io.StringIO()
        with Stage(Console(file=out, width=80)).progress() as draw:
            for _ in range(3):
                draw(self.TALLY, DrainStatus(state=DrainState.STALLED))
        assert out.getvalue() == "  stalled  18/19  migrated 18 · quarantined 1\n"

    def test_is_silent_without_a_console(self) -> None:
        stage = Stage(None)
        stage.says("nothing")
        stage.step("nothing", "nothing")
        with stage.progress() as draw:
            draw(self.TALLY, DrainStatus(state=DrainState.STALLED))
