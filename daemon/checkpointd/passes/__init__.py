"""What the daemon does: four passes, each a plain coroutine that does one bounded piece of work.

``reconcile``  closes crash windows that were left open, unless so many are overdue that it doubts
``adopt``      brings the books up to what the legacy source shows
``drain``      claims due refs, replays them, commits or fails
``census``     reads the counters, decides the drain's state, mends half-copied control changes

A pass takes durations and numbers, never a settings object, and returns a report. It knows
nothing of its schedule: ``schedule`` calls it, one wrapper catches what it raises, and
``telemetry.record`` turns its report into numbers and log lines.
"""
