"""What is taken out of the scripts, one guard at a time, to see that the checker can fail.

Nothing of this is in the package: a worker is given a guard's name by FAULT_WITHOUT, and
``sitecustomize`` beside this file, found by PYTHONPATH alone, patches the text that it sends.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from functools import cache

GUARDS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "commit_lease": {
        "commit": ((r"if (redis\.)?call\('GET', \S+\) ~= \S+ then return \{'stale', ''\} end", ""),)
    },
    "fail_fence": {"fail": ((r"if value ~= \S+ then", "if false then"),)},
    "expire_finalized": {
        "expire_overdue": (
            (r"elseif rec\[STATE\] ~= 'o' then", "elseif false then"),
            (
                r"tonumber\(rec\[OPENED\]\) <",
                "(tonumber(rec[OPENED]) or tonumber(rec[CREATED])) <",
            ),
        )
    },
    "expired_counter": {"prelude": ((r"count\('expired:' \.\. KIND\[kind\], \w+\)", ""),)},
    "state_counter": {
        "prelude": (
            (
                r"states\[to\] = \(states\[to\] or 0\) \+ 1",
                "if to ~= 'm' then states[to] = (states[to] or 0) + 1 end",
            ),
        )
    },
    "thaw_epoch": {"control_copy": ((r"if tonumber\(copy\[1\] .*? then return 'known' end", ""),)},
}
"""Guard -> script, or the prelude of all scripts of a partition -> patterns and their replacements."""


GUARDED = {"commit_lease": "commit", "fail_fence": "fail", "expire_finalized": "expire_overdue"}
"""The script whose late arrival a guard is for; the others are met in every run."""


def install(guard: str) -> None:
    """Send scripts without this guard from now on. ``LookupError`` if it is not there any more."""
    from checkpointd.registry import scripts

    original = scripts.source_of
    changes = GUARDS[guard]

    @cache
    def without(name: str) -> tuple[str, str]:
        text, sha = original(name)
        is_of_a_partition = text.startswith("-- prelude:")
        wanted = changes.get("prelude" if is_of_a_partition else "", ()) or changes.get(name, ())
        if not wanted:
            return text, sha
        for pattern, new in wanted:
            text, found = re.subn(pattern, new.replace("\\", r"\\"), text)
            if found != 1:
                raise LookupError(f"the guard {guard} is {found} times in {name}.lua: {pattern}")
        return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    for name in changes:
        without("commit" if name == "prelude" else name)
    scripts.source_of = without


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
