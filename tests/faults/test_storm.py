"""A short storm, as part of every test run; ``python -m tests.faults`` makes long ones."""

from __future__ import annotations

import pytest

from .run import Plan, run


class TestAShortStorm:
    @pytest.mark.slow
    @pytest.mark.timeout(240)
    async def test_loses_nothing_and_doubles_nothing(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        outcome = await run(Plan(seconds=10, seed=7, workers=2, per_second=15, end_within_s=120))
        with capsys.disabled():
            print(f"\n{outcome.page()}\n")  # noqa: T201 - the report is for whoever runs it
        assert outcome.findings == []
        assert outcome.figures["migrated, each with one link"] > 50
