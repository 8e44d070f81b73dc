"""From the setting to a replayer, or to one sentence that says why not."""

from __future__ import annotations

import pytest

from checkpointd.domain.errors import ConfigError
from checkpointd.replay.entrypoint import PythonReplayer
from checkpointd.replay.opening import open_replayer
from checkpointd.replay.port import Replayed, Replayer, ReplayRequest


class Application:
    """A replayer that a name can lead to."""

    async def replay(self, request: ReplayRequest) -> Replayed:
        return Replayed(request.idempotency_key)

    async def aclose(self) -> None:
        return None


def must_not_be_made() -> Replayer:
    raise AssertionError("the built-in replayer was made though it was not asked for")


class TestOpeningAReplayer:
    async def test_the_built_in_one_is_made_when_it_is_named(self) -> None:
        built_in = Application()
        assert await open_replayer("turnstate:", turnstate=lambda: built_in) is built_in

    async def test_an_entry_point_is_imported(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = tmp_path_factory.mktemp("application")
        (directory / "opened_application.py").write_text(
            "class Mine:\n    def replay(self, request): ...\n"
        )
        monkeypatch.syspath_prepend(directory)
        opened = await open_replayer("python:opened_application:Mine", turnstate=must_not_be_made)
        assert isinstance(opened, PythonReplayer)

    @pytest.mark.parametrize("url", ["http://user:secret@app:80/replay", "https://app/secret"])
    async def test_http_is_refused_in_one_sentence_without_its_address(self, url: str) -> None:
        with pytest.raises(ConfigError, match="no http replayer yet") as refused:
            await open_replayer(url, turnstate=must_not_be_made)
        assert len(refused.value.complaints) == 1
        assert "turnstate: or python:" in str(refused.value)
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize(
        "url", ["", "turnstate", "turnstate:x", "grpc://app", ":", "pyhton:a:b"]
    )
    async def test_what_names_no_replayer_is_refused_with_what_would(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"use turnstate: or python:package\.module:factory"):
            await open_replayer(url, turnstate=must_not_be_made)
