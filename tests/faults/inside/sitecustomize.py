"""Run by every Python that has this directory on its path: the fault suite's workers."""

import os

if os.environ.get("FAULT_WITHOUT"):
    import fault_controls  # type: ignore[import-not-found]  # beside this file, wherever that is

    fault_controls.install(os.environ["FAULT_WITHOUT"])

if os.environ.get("FAULT_TURN_S"):
    # How long a killed replica's turn at the scan or the recount stands in others' way is no
    # setting, and a short run cannot wait for half a minute.
    from datetime import timedelta

    from checkpointd.registry.books import AdoptionBooks
    from checkpointd.registry.tallies import Tallies

    AdoptionBooks.TURN_TTL = timedelta(seconds=float(os.environ["FAULT_TURN_S"]))
    Tallies.RECOUNT_TTL_MS = int(float(os.environ["FAULT_TURN_S"]) * 1000)
