"""A configuration to begin with, and what is in force."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from checkpointd.config import Settings, example_toml, load_settings


class TestInit:
    def test_writes_every_setting_with_its_reason(self, command: Any) -> None:
        assert command("init").exit_code == 0
        assert Path("checkpointd.toml").read_text() == example_toml()
        assert load_settings(Path("checkpointd.toml"), {}) == Settings()

    def test_says_what_comes_next(self, command: Any) -> None:
        said = command("init").stdout
        assert said.index("redis.url") < said.index("once adopt --dry-run") < said.index("run")
        assert max(map(len, said.splitlines())) <= 80

    def test_overwrites_nothing(self, command: Any) -> None:
        Path("checkpointd.toml").write_text("mine")
        result = command("init")
        assert result.exit_code == 1
        assert "--force" in result.stderr
        assert Path("checkpointd.toml").read_text() == "mine"

    def test_overwrites_when_forced(self, command: Any) -> None:
        Path("checkpointd.toml").write_text("mine")
        assert command("init", "--force").exit_code == 0
        assert Path("checkpointd.toml").read_text() == example_toml()

    def test_writes_the_file_that_is_named(self, command: Any) -> None:
        assert command.json("init", "--config", "other.toml") == {"written": "other.toml"}
        assert Path("other.toml").exists()
        assert not Path("checkpointd.toml").exists()

    @pytest.mark.parametrize("place", ["nowhere", "/proc/1"])
    def test_where_nothing_can_be_written_is_one_sentence(self, command: Any, place: str) -> None:
        result = command("init", "--config", f"{place}/x.toml")
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


class TestCheckConfig:
    def test_prints_what_is_in_force_as_a_file_says_it(self, command: Any) -> None:
        Path("checkpointd.toml").write_text('[reconcile]\ngrace = "2h"\n')
        said = command("check-config", CHECKPOINTD_DRAIN__CONCURRENCY="4").stdout
        in_force = tomllib.loads(said)
        assert in_force["reconcile"]["grace"] == "2h"
        assert in_force["drain"]["concurrency"] == 4
        assert "checkpointd.toml" in said.splitlines()[0]

    def test_says_so_where_there_is_no_file(self, command: Any) -> None:
        assert "the defaults" in command("check-config").stdout.splitlines()[0]
        assert command.json("check-config")["file"] is None

    def test_masks_secrets(self, command: Any) -> None:
        Path("checkpointd.toml").write_text('[redis]\npassword = "hunter2"\n')
        result = command("check-config", "--json")
        assert "hunter2" not in result.stdout
        assert "***" in result.stdout

    def test_hints_at_what_is_probably_not_meant(self, command: Any) -> None:
        hinted = {"CHECKPOINTD_RECONCILE__EVERY": "2h"}
        assert "# hint" in command("check-config", **hinted).stdout

    def test_refuses_with_every_complaint(self, command: Any) -> None:
        Path("checkpointd.toml").write_text("[redis]\nurll = 1\n[drain]\nconcurrency = 0\n")
        result = command("check-config")
        assert result.exit_code == 78
        assert "urll" in result.stderr
        assert "drain.concurrency" in result.stderr
