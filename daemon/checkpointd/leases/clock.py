"""Local time that only goes forward, and goes on while the machine sleeps."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since boot, suspend included where the system can tell, else monotonic.

    A laptop or a VM that slept past a lease's end must find the lease over, which
    the plain monotonic clock of Linux would not show.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
