"""From a URL to a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpointd.domain.errors import ConfigError
from checkpointd.sources.opening import open_source


class TestOpenSource:
    async def test_a_sqlite_url_names_a_file(self, sample_file: Path) -> None:
        source = open_source(f"sqlite://{sample_file}")
        assert source.identity == f"sqlite://{sample_file}"
        assert (await source.page("", 1)).next_after == "t:_:abandoned_pause"
        await source.aclose()

    async def test_a_space_may_be_written_in_percent(self, sample_file: Path) -> None:
        target = sample_file.rename(sample_file.with_name("a b#c?.sqlite"))
        source = open_source(f"sqlite://{target.parent}/a%20b%23c%3F.sqlite")
        assert len((await source.page("", 3)).threads) == 3
        await source.aclose()

    @pytest.mark.parametrize("url", ["mysql://u:secret@h/db", "legacy.sqlite", "", "SQLITE:///x"])
    def test_an_unknown_kind_is_refused_with_the_known_ones(self, url: str) -> None:
        with pytest.raises(ConfigError, match="sqlite://") as refused:
            open_source(url)
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://rel/x", "sqlite:///%00"])
    def test_a_url_without_an_absolute_path_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError, match="absolute path"):
            open_source(url)
