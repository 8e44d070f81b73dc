"""The README against the code: what it names exists, and what exists it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from checkpointd.config import Settings
from checkpointd.domain.durations import parse_duration
from checkpointd.telemetry.metrics import Metrics

README = (Path(__file__).parents[2] / "README.md").read_text()


def section(heading: str) -> str:
    """The text of one chapter."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", README, re.S | re.M)
    assert found is not None, f"the README has no chapter {heading!r}"
    return found[1]


def metrics_of_the_code() -> set[str]:
    """The names of the declared metrics as a scrape shows them, without the prefix."""
    names = set()
    for family in Metrics(CollectorRegistry(), version="0").registry.collect():
        if family.name.startswith("checkpointd_"):
            total = "_total" if family.type == "counter" else ""
            names.add(family.name.removeprefix("checkpointd_") + total)
    return names


class TestMetrics:
    def test_the_table_and_the_code_name_the_same(self) -> None:
        table = set(re.findall(r"^\| `(\w+)` \|", section("Metrics"), re.M))
        assert table == metrics_of_the_code()

    def test_none_is_listed_twice(self) -> None:
        rows = re.findall(r"^\| `(\w+)` \|", section("Metrics"), re.M)
        assert len(rows) == len(set(rows))


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "default"), re.findall(r"^\| `(\w+\.\w+)` \| (.+?) \|", section("Settings"), re.M)
    )
    def test_a_listed_one_exists_and_has_the_default_that_is_listed(
        self, name: str, default: str
    ) -> None:
        table, key = name.split(".")
        in_force = getattr(getattr(Settings(), table), key)
        shown = default.strip("`")
        if shown == "none":
            assert in_force == ""
        elif isinstance(in_force, str | int):
            assert str(in_force) == shown
        else:
            assert parse_duration(shown) == in_force
