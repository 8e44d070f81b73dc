"""Durations and sizes as people write them: text with a unit, never a bare number.

A bare 30 has been read as seconds by one component and minutes by the next often
enough; here it is refused, with the question that it leaves open.
"""

from __future__ import annotations

import re
from datetime import timedelta

from checkpointd.domain.errors import CheckpointdError, shortened

_UNIT_US: dict[str, int] = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_SHOWN_UNITS = ("d", "h", "m", "s", "ms", "us")
_DURATION = re.compile(r"(?:\s*\d+(?:\.\d+)?(?:ms|us|[wdhms]))+\s*", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|[wdhms])", re.ASCII)
_BARE_NUMBER = re.compile(r"\s*[+-]?\d+(?:\.\d+)?\s*", re.ASCII)
LONGEST = timedelta(days=3650)
"""Ten years: whatever is longer is a slip of the pen, and would overflow somewhere else."""

_UNIT_BYTES: dict[str, int] = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_SIZE = re.compile(r"\s*(\d+)\s*(GiB|MiB|KiB|B)\s*", re.ASCII | re.IGNORECASE)
LARGEST = 1 << 40


class QuantityError(CheckpointdError, ValueError):
    """A duration or a size that cannot be told for certain."""


def parse_duration(given: object) -> timedelta:
    """The duration that ``given`` names: ``"250ms"``, ``"15m"``, ``"1h30m"``; never negative.

    ``QuantityError`` for anything else, a bare number above all.
    """
    if isinstance(given, timedelta):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        raise _of_what(str(given))
    if not isinstance(given, str):
        raise QuantityError(f'a {type(given).__name__} is no duration; write text such as "15m"')
    if _BARE_NUMBER.fullmatch(given):
        raise _of_what(given.strip())
    if not _DURATION.fullmatch(given):
        raise QuantityError(
            f'{shortened(given)} is no duration; write numbers with units, such as "250ms", '
            '"15m" or "1h30m"'
        )
    parts = _DURATION_PART.findall(given)
    units = [unit for _, unit in parts]
    if len(set(units)) < len(units):
        raise QuantityError(f"{shortened(given)} names one unit twice; write each once")
    us = sum(float(number) * _UNIT_US[unit] for number, unit in parts)
    if us > LONGEST / timedelta(microseconds=1):
        raise QuantityError(f"{shortened(given)} is longer than ten years; write a shorter one")
    return timedelta(microseconds=round(us))


def format_duration(duration: timedelta) -> str:
    """``duration`` as ``parse_duration`` reads it back: ``"1h30m"``, ``"0s"``."""
    left = duration // timedelta(microseconds=1)
    if left <= 0:
        return "0s" if left == 0 else f"-{format_duration(-duration)}"
    words: list[str] = []
    for unit in _SHOWN_UNITS:
        count, left = divmod(left, _UNIT_US[unit])
        if count:
            words.append(f"{count}{unit}")
    return "".join(words)


def parse_size(given: object) -> int:
    """The number of bytes that ``given`` names: ``"64MiB"``, ``"512 KiB"``, ``"100B"``.

    ``QuantityError`` for anything else, a bare number above all. Powers of 1024 only:
    ``MB`` means two different things.
    """
    if isinstance(given, int | float) or (isinstance(given, str) and _BARE_NUMBER.fullmatch(given)):
        shown = str(given).strip()
        raise QuantityError(f'{shown} of what? write "{shown}B", "{shown}KiB" or "{shown}MiB"')
    if not isinstance(given, str):
        raise QuantityError(f'a {type(given).__name__} is no size; write text such as "64MiB"')
    match = _SIZE.fullmatch(given)
    if match is None:
        raise QuantityError(
            f'{shortened(given)} is no size; write a whole number with B, KiB, MiB or GiB, such as "64MiB"'
        )
    unit = next(u for u in _UNIT_BYTES if u.lower() == match[2].lower())
    size = int(match[1][:20]) * _UNIT_BYTES[unit]
    if size > LARGEST:
        raise QuantityError(f"{shortened(given)} is more than 1024GiB; write a smaller one")
    return size


def format_size(size: int) -> str:
    """``size`` as ``parse_size`` reads it back, in the largest unit that divides it."""
    for unit, factor in _UNIT_BYTES.items():
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def _of_what(number: str) -> QuantityError:
    return QuantityError(f'{number} of what? write "{number}s", "{number}m" or "{number}h"')
