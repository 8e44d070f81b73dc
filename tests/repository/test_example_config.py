from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

from checkpointd.config import SECTIONS, Settings, example_toml, load_settings

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"


class TestTheExampleConfiguration:
    def test_is_what_the_code_generates(self) -> None:
        assert EXAMPLE.read_text("utf-8") == example_toml(), (
            "write it anew: python -c 'from checkpointd.config import example_toml; "
            'print(example_toml(), end="")\' > config.example.toml'
        )

    def test_is_accepted_and_means_the_defaults(self) -> None:
        assert load_settings(EXAMPLE, {}) == Settings()

    def test_lists_every_setting(self) -> None:
        listed = tomllib.loads(EXAMPLE.read_text("utf-8"))
        assert {s: set(table) for s, table in listed.items()} == {
            s: set(model.model_fields) for s, model in SECTIONS.items()
        }

    def test_gives_each_setting_a_reason(self) -> None:
        lines = EXAMPLE.read_text("utf-8").splitlines()
        for before, line in pairwise(lines):
            if " = " in line and not line.startswith("#"):
                assert before.startswith("# "), line
