"""Replaying: a legacy turn becomes a kernel checkpoint that continues it.

``port``        what a replayer promises, and the request it is given
``turnstate``   the built-in one: records what the source holds, runs no application code
``entrypoint``  ``python:package.module:factory`` in the daemon's environment
``opening``     ``replay.url`` to a replayer

The protocol
------------
Effects are delivered at least once, the link exactly once. A lock cannot protect what a
replay writes elsewhere: its holder may be paused, lose the lease, and write all the
same. So

1. every request carries ``idempotency_key``, derived from thread, legacy checkpoint and
   boundary alone. Whoever replays the ref next is given the same one;
2. a replayer writes under that key, and a second call with it gives the same checkpoint;
3. the drain, not the replayer, registers the new checkpoint and links it, in one step that
   is refused once the lease is lost. What a late replayer wrote is then reachable by
   nobody, or is the same bytes as the winner's;
4. past ``deadline`` the call is cancelled.

How it ends:

``Replayed(id)``              the drain commits
``TransientReplayError``      tried again after a back-off, or after ``retry_after_s``
``ReplayerUnreachableError``  the replayer as a whole is down: the drain waits, no attempt is lost
``PermanentReplayError``      quarantined with its reason until an operator says otherwise
anything else                 passed on unchanged: how to class it is the drain's decision
"""
