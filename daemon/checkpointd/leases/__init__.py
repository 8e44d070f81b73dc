"""Who may replay a ref now, and what happens to the one who may no longer.

The store decides who holds a lease: every lease is a key with a TTL whose value is
``fence:token``, and every step that rests on it compares the whole value in one script.
Local time is used only to stop sooner. A holder's own deadline is counted from *before* the
request was sent, is shorter than the TTL, and moves on only when a renewal is confirmed. So
a holder that cannot hear the store stops while its key still keeps others away.

``keeper``  one task renews all held leases, in the event loop of the replays: a loop that is
            blocked must lose its leases by itself, which a thread would hide
``clock``   local time that goes on while the machine sleeps

redis-py's own ``Lock`` is not used: one lost reply locks it out of its own key, a cancelled
acquire leaks the key, tasks share its token, and it has no fence and no word for a loss.
"""
