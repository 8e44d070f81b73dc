"""``python -m tests.faults SECONDS=600 SEED=7 [WITHOUT=guard] [CLOCK=1]``: a long run.

Prints a one-page report; the exit code is 0 only if nothing was violated.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from .inside.fault_controls import GUARDS
from .run import Plan, run


def main(words: list[str]) -> int:
    asked = dict(word.split("=", 1) for word in words)
    unknown = set(asked) - {"SECONDS", "SEED", "WITHOUT", "WORKERS", "CLOCK", "RATE"}
    without = asked.get("WITHOUT", "")
    if unknown or (without and without not in GUARDS):
        print(__doc__, "\nguards:", ", ".join(GUARDS), file=sys.stderr)  # noqa: T201
        return 2
    seconds = float(asked.get("SECONDS") or 60)
    plan = Plan(
        seconds=seconds,
        seed=int(asked.get("SEED") or secrets.randbelow(10_000)),
        without=without,
        workers=int(asked.get("WORKERS") or 3),
        per_second=float(asked.get("RATE") or 15),
        move_clock=asked.get("CLOCK", "1") == "1",
        end_within_s=240,
    )
    print(f"SECONDS={seconds:g} SEED={plan.seed} WITHOUT={without}", flush=True)  # noqa: T201
    outcome = asyncio.run(run(plan))
    print(outcome.page())  # noqa: T201
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
