"""A dry run says what would happen and changes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from checkpointd.domain.errors import PermanentReplayError
from checkpointd.domain.legacy import ThreadSketch, Verdict
from checkpointd.domain.reports import DrainReport
from checkpointd.domain.states import AdoptOutcome, FailureReason, RefState, ReplayOutcome
from checkpointd.passes.rehearsal import rehearse_adoption, rehearse_drain

from .world import YOUNG, FakeSource, World, many, ref

pytestmark = pytest.mark.server


class TestRehearsingAdoption:
    async def survey(self, source: FakeSource, *, settle: timedelta = timedelta(0)):
        return await rehearse_adoption(source, page=2, source_settle=settle)

    async def test_it_needs_no_store_and_counts_what_a_first_adoption_would_take(self) -> None:
        source = FakeSource()
        for thread in many(3):
            source.holds(thread)
        source.holds("paused", verdict=Verdict.PAUSED)
        source.holds("crashed", "c1")
        source.holds("crashed", "c2", Verdict.OPEN)
        source.holds("blocked", blocker=FailureReason.UNANSWERED_CALL)
        report = await self.survey(source)
        assert (report.threads, report.adopted, report.fallbacks) == (6, 7, 1)
        assert report.verdicts == {"CLOSED": 4, "PAUSED": 1, "OPEN": 1}
        assert report.blockers == {"unanswered_call": 1}
        assert report.samples["unanswered_call"] == ("blocked",)
        assert report.dry_run
        assert report.complete

    async def test_it_foretells_what_adoption_then_does(self, world: World) -> None:
        world.source.holds("a")
        world.source.holds("b", "c1")
        world.source.holds("b", "c2", Verdict.FAILED)
        foretold = await self.survey(world.source)
        done = await world.adopt()
        assert (foretold.adopted, foretold.verdicts) == (done.adopted, done.verdicts)

    async def test_young_heads_and_nameless_threads_are_told_apart(self) -> None:
        source = FakeSource()
        source.holds("young", age=timedelta(seconds=1))
        source.extra_sketches = [
            ThreadSketch(thread_id="rootless"),
            ThreadSketch(thread_id="bad\n", head_id="c1"),
        ]
        report = await self.survey(source, settle=timedelta(minutes=1))
        assert (report.too_young, report.adopted) == (1, 0)
        assert report.outcomes == {AdoptOutcome.UNREGISTRABLE: 2}

    async def test_a_thread_deleted_meanwhile_is_passed_over(self) -> None:
        source = FakeSource()
        source.extra_sketches = [ThreadSketch(thread_id="gone", head_id="c1")]
        assert (await self.survey(source)).adopted == 0


class TestRehearsingTheDrain:
    async def foretold(self, world: World, *, source: bool = True, **how: bool) -> DrainReport:
        before = (await world.tally()).transitions
        report = await rehearse_drain(
            world.operations,
            world.source if source else None,
            truncate_unanswered=how.get("truncate", False),
        )
        assert (await world.tally()).transitions == before
        assert world.replayer.requests == []
        return report

    async def test_it_needs_no_freeze_and_calls_no_replayer(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        report = await self.foretold(world)
        assert report.dry_run
        assert report.outcomes == {ReplayOutcome.MIGRATED: 1}

    async def test_it_foretells_what_the_drain_then_does(self, world: World) -> None:
        world.source.holds("good")
        world.source.holds("moved")
        world.source.holds("gone")
        world.source.holds("blocked", blocker=FailureReason.UNANSWERED_CALL)
        world.source.holds("crashed", "c1")
        world.source.holds("crashed", "c2", Verdict.OPEN)
        world.source.holds("running", "c1")
        world.source.holds("running", "c2", Verdict.OPEN, age=YOUNG)
        await world.adopt()
        await world.reconcile()
        world.source.holds("moved", "c2")
        world.source.forgets("gone")
        report = await self.foretold(world)
        assert report.outcomes == {
            ReplayOutcome.MIGRATED: 2,
            ReplayOutcome.SUPERSEDED: 1,
            ReplayOutcome.QUARANTINED: 2,
        }
        assert report.failures == {
            FailureReason.ABSENT: 1,
            FailureReason.UNANSWERED_CALL: 1,
        }

    async def test_a_fallback_whose_head_closed_after_all_would_be_superseded(
        self, world: World
    ) -> None:
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", Verdict.OPEN)
        await world.adopt()
        await world.reconcile()
        world.source.turns("t", Verdict.CLOSED)
        report = await self.foretold(world)
        assert report.outcomes == {ReplayOutcome.SUPERSEDED: 1}

    async def test_a_fallback_that_is_gone_would_be_absent(self, world: World) -> None:
        world.source.holds("t", "c1")
        world.source.holds("t", "c2", Verdict.OPEN)
        await world.adopt()
        await world.reconcile()
        del world.source.threads["t"][0]
        assert (await self.foretold(world)).failures == {FailureReason.ABSENT: 1}

    async def test_a_head_that_reads_as_open_would_be_waited_for(self, world: World) -> None:
        await world.registry.register(ref())
        world.source.holds("t", verdict=Verdict.OPEN)
        assert (await self.foretold(world)).outcomes == {ReplayOutcome.RETRYABLE: 1}

    async def test_an_unanswered_call_that_may_be_cut_off_would_migrate(self, world: World) -> None:
        world.source.holds("t", blocker=FailureReason.UNANSWERED_CALL)
        await world.adopt()
        report = await self.foretold(world, truncate=True)
        assert report.outcomes == {ReplayOutcome.MIGRATED: 1}

    async def test_without_a_source_the_marked_boundaries_decide(self, world: World) -> None:
        await world.registry.register(ref("marked"))
        await world.registry.register(ref("bare"))
        await world.registry.mark_safe_boundary(
            "marked", sequence=1, digest="d", writer_line=ref().writer_line
        )
        report = await self.foretold(world, source=False)
        assert report.outcomes == {ReplayOutcome.MIGRATED: 1, ReplayOutcome.QUARANTINED: 1}
        assert report.failures == {FailureReason.NO_SAFE_BOUNDARY: 1}

    async def test_what_is_in_quarantine_already_is_not_foretold(self, world: World) -> None:
        world.source.holds("t")
        await world.adopt()
        await world.freeze()
        world.replayer.will("t", PermanentReplayError("other"))
        await world.drain()
        world.replayer.requests.clear()
        assert await world.state() is RefState.QUARANTINED
        assert (await self.foretold(world)).outcomes == {}
