"""A figure, its target, and the rounds that it is the median of."""

from __future__ import annotations

import operator
import random
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_KEEPS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    unit: str
    keeps: str = ""
    """How it must stand to the target: one of >=, <=, <. Empty: a fact, which is not judged."""
    target: float = 0.0
    rounds: Sequence[float] = ()
    """What it is the median, or the worst, of."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it was worked out from, and how that was measured."""

    @property
    def is_kept(self) -> bool:
        """Whether the target is held, if there is one."""
        return not self.keeps or bool(_KEEPS[self.keeps](self.value, self.target))

    @property
    def aim(self) -> str:
        """The target in words; empty where there is none."""
        return f"{self.keeps} {self.target:g}" if self.keeps else ""

    @property
    def verdict(self) -> str:
        """One word on it, for the table."""
        if not self.keeps:
            return "fact"
        return "kept" if self.is_kept else "MISSED"

    def document(self) -> dict[str, Any]:
        """The figure as ``--json`` prints it."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "target": self.aim or None,
            "kept": self.is_kept if self.keeps else None,
            "rounds": [round(r, 4) for r in self.rounds],
            **self.facts,
        }


Slice = Callable[[], Awaitable[float]]
"""Does one slice of work and returns its rate, a second, or its time."""


async def in_turns(slices: Mapping[str, Slice], *, rounds: int) -> dict[str, list[float]]:
    """Each slice once a round, in an order shuffled anew; one round before them is not counted."""
    results: dict[str, list[float]] = {name: [] for name in slices}
    order = list(slices)
    for number in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            result = await slices[name]()
            if number:
                results[name].append(result)
    return results


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """One over the other, round by round: what drifts between rounds cancels out."""
    return [a / b for a, b in zip(over, under, strict=True)]


median = statistics.median


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
