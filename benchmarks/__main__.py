"""``python -m benchmarks [--json] [--only PART] [--rounds N]``: measure, show, and judge."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence

from benchmarks import drain, expiry, idle, status
from benchmarks.figures import Figure
from benchmarks.servers import server

Part = Callable[[str, int], Awaitable[list[Figure]]]

PARTS: dict[str, Part] = {
    "expiry": lambda path, rounds: expiry.measured(path, rounds=rounds),
    "drain": lambda path, rounds: drain.measured(path, rounds=rounds),
    "status": lambda path, _: status.measured(path),
    "idle": lambda path, _: idle.measured(path),
}


def main() -> int:
    """Measure what is asked for; 0 if every target is kept, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a document instead of a table")
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts alone")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each ratio (5)")
    asked = parser.parse_args()
    figures = asyncio.run(measured(asked.only or list(PARTS), rounds=asked.rounds))
    if asked.json:
        print(json.dumps([figure.document() for figure in figures], indent=2))
    else:
        show(figures)
    return 0 if all(figure.is_kept for figure in figures) else 1


async def measured(parts: Sequence[str], *, rounds: int) -> list[Figure]:
    """The figures of these parts, one after the other on one server."""
    figures: list[Figure] = []
    with server() as path:
        for name in parts:
            print(f"measuring {name} …", file=sys.stderr)
            figures += await PARTS[name](path, rounds)
    return figures


def show(figures: Sequence[Figure]) -> None:
    """The table."""
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        value = f"{figure.value:,.2f} {figure.unit}".strip()
        print(f"{figure.name:<{width}}  {value:>12}  {figure.aim:>8}  {figure.verdict}")
        facts = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in figure.facts.items())
        if facts:
            print(f"    {facts}")


if __name__ == "__main__":
    sys.exit(main())
