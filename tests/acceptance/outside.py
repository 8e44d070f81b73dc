"""What can be seen of a running daemon from outside: its pages, and what comes true in time."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable


def got(url: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  its own address
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def number(metrics: str, series: str) -> float:
    """The value of a series in the text of ``/metrics``; 0 where it is not."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


def until(true: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Look again and again; what is looked at is another process, so there is no event to await."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)
