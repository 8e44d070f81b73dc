"""Everything that a daemon and its operator do with a store, once, on the sample database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from checkpointd import sample
from checkpointd.app.crew import run_pass
from checkpointd.app.rooms import Rooms, open_rooms
from checkpointd.config import Settings, load_settings
from checkpointd.domain.states import ALL_LINES, DrainState, PassName

SOURCE = Path(sample.__file__).parent / sample.FILE_NAME


def settings_for(url: str, **more: str) -> Settings:
    """Settings as an environment gives them; ``redis__username="u"``."""
    given: Mapping[str, str] = {
        "redis__url": url,
        "registry__partitions": "2",
        "source__url": f"sqlite:///{SOURCE}",
        "reconcile__grace": "1s",
        "drain__settle": "0s",
        **more,
    }
    return load_settings(None, {f"CHECKPOINTD_{k.upper()}": v for k, v in given.items()})


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Rooms]:
    """The rooms of these settings."""
    async with open_rooms(settings, actor="test") as rooms:
        yield rooms


async def whole_run(settings: Settings) -> str:
    """Adopt, reconcile, freeze, drain, look, waive, count, verify; what the drain says then.

    Raises what the store does not allow; ``""`` where it let something be only half seen.
    """
    async with opened(settings) as rooms:
        await run_pass(rooms, PassName.ADOPT)
        await run_pass(rooms, PassName.RECONCILE)
        await rooms.control.freeze(reason="retiring it", lines=ALL_LINES, actor="test")
        await run_pass(rooms, PassName.ADOPT)
        drained = await run_pass(rooms, PassName.DRAIN)
        _whole(getattr(drained, "troubles", ()))
        blocked = [record async for record in rooms.operations.quarantined()]
        await rooms.operations.waive(blocked, reason="known")
        counted = await run_pass(rooms, PassName.CENSUS)
        _whole(getattr(counted, "troubles", ()))
        await run_pass(rooms, PassName.CENSUS)
        await rooms.operations.audit()
        await rooms.operations.audit(thread="closed")
        verified = await rooms.operations.verify()
        tally, status, document = await rooms.status()
        assert verified.findings == ()
        assert document["passes"]
        if tally.memory_ratio is None:
            return ""
        assert status.state is DrainState.DRAINED, status.sentence
        return str(status.state)


def _whole(troubles: tuple[str, ...]) -> None:
    assert troubles == (), troubles
