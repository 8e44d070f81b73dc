"""Commands around the settings: a file to begin with, and what is in force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType

from checkpointd.cli import tables
from checkpointd.cli.common import Asked, CommandFailedError
from checkpointd.cli.verbs import Verb, asks
from checkpointd.config import DEFAULT_FILE, describe, example_toml, hints

NEXT = (
    ("set redis.url", "the store that the application and the daemon share"),
    ("set source.url", "the legacy checkpoints: sqlite:///an/absolute/path"),
    ("checkpointd once adopt --dry-run", "what is there, before anything is written"),
    ("checkpointd doctor", "whether store, source and settings fit together"),
    ("checkpointd run", "the daemon"),
)


@click.command(cls=Verb, example="checkpointd init")
@click.option("--force", is_flag=True, help="Overwrite the file that is there.")
@asks
def init(asked: Asked, *, force: bool) -> None:
    """Write checkpointd.toml here.

    Every setting at its default, with its reason. Needs no store. With --config FILE the file of that name is written.
    """
    path = asked.config or Path(DEFAULT_FILE)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(example_toml())
    except FileExistsError as error:
        raise CommandFailedError(
            f"{path} was to be written and is there already; --force overwrites it"
        ) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CommandFailedError(
            f"{path} was to be written and cannot be ({why}); run this in a directory that you "
            "may write to, or name another file by --config"
        ) from error
    asked.tell({"written": str(path)}, people=lambda: _next(path))


def _next(path: Path) -> Group:
    return Group(
        tables.Line(f"{path} is written, every setting at its default. What comes next:"),
        tables.blank(),
        tables.grid((f"  {step}", why) for step, why in NEXT),
    )


@click.command("check-config", cls=Verb, example="checkpointd --config prod.toml check-config")
@asks
def check_config(asked: Asked) -> None:
    """The settings in force.

    From the file and the environment, secrets masked. Exit 78 with every complaint at once if they cannot be used.
    """
    settings = asked.settings()
    file = asked.file()
    said = hints(settings)
    asked.tell(
        {"file": str(file) if file else None, "settings": describe(settings), "hints": said},
        people=lambda: _in_force(file, describe(settings), said),
    )


def _in_force(
    file: Path | None, settings: dict[str, dict[str, Any]], said: tuple[str, ...]
) -> Group:
    parts: list[RenderableType] = [
        tables.Line(f"# in force, from {file or 'the defaults'} and the environment")
    ]
    for section, table in settings.items():
        parts += [tables.blank(), tables.Line((f"[{section}]", "bold"))]
        parts += [
            tables.Line(f"{key} = {json.dumps(value, ensure_ascii=False)}")
            for key, value in table.items()
        ]
    if said:
        parts += [tables.blank(), *(tables.Line(("# hint", "yellow"), f": {one}") for one in said)]
    return Group(*parts)
