"""What is taken out of the scripts, one guard at a time, to see that the checker can fail.

Nothing of this is in the package: a worker is given a guard's name by FAULT_WITHOUT, and
``sitecustomize`` beside this file, found by PYTHONPATH alone, patches the text that it sends.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from functools import cache

GUARDS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "commit_lease": {
        "commit": (
            ("if redis.call('GET', KEYS[9]) ~= ARGV[3] then return {'stale', ''} end", ""),
        )
    },
    "fail_fence": {"fail": (("if value ~= ARGV[3] then", "if false then"),)},
    "expire_finalized": {
        "expire_overdue": (
            ("elseif rec[STATE] ~= 'o' then", "elseif false then"),
            ("tonumber(rec[OPENED]) <", "(tonumber(rec[OPENED]) or tonumber(rec[CREATED])) <"),
        )
    },
    "expired_counter": {"*": (("count('expired:' .. KIND[kind], 1)", ""),)},
    "state_counter": {
        "*": (
            (
                "states[to] = (states[to] or 0) + 1",
                "if to ~= 'm' then states[to] = (states[to] or 0) + 1 end",
            ),
        )
    },
    "thaw_epoch": {
        "control_copy": (
            ("if tonumber(copy[1] or '-1') >= tonumber(ARGV[1]) then return 'known' end", ""),
        )
    },
}
"""Guard -> script (``*`` is every script of a partition) -> texts and what takes their place."""


def install(guard: str) -> None:
    """Send scripts without this guard from now on. ``LookupError`` if it is not there any more."""
    from checkpointd.registry import scripts

    original = scripts.source_of
    changes = GUARDS[guard]

    @cache
    def without(name: str) -> tuple[str, str]:
        text, sha = original(name)
        wanted = changes.get(name, changes.get("*", ()))
        if name not in changes and not any(old in text for old, _ in wanted):
            return text, sha
        for old, new in wanted:
            if text.count(old) != 1:
                raise LookupError(f"the guard {guard} is not in {name}.lua as {old!r}")
            text = text.replace(old, new)
        return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    scripts.source_of = without  # type: ignore[assignment]


@contextlib.contextmanager
def removed(guard: str) -> Iterator[None]:
    """Without this guard in this process, while the block lasts."""
    from checkpointd.registry import scripts

    original = scripts.source_of
    if guard:
        install(guard)
    try:
        yield
    finally:
        scripts.source_of = original
