"""Which checkpoints exist, and which may resume: the authority, in Redis or Valkey.

``port``        what a registry promises; ``memory`` is the model, ``redis`` the durable one
``keys``        the names of all keys: partitions by ``crc32(thread_id)``, one slot a script
``codec``       how a record lies in the store; what it cannot account for it refuses
``connect``     a client for whatever the URL names; reads are retried, writes never by the client
``scripts``     runs Lua: one round trip for all calls of one turn of the loop
``store``       the place: keys, scripts, reads, and whether it is ours
``control``     frozen, paused, halted: declared once, copied to each partition by epoch
``expiry``      expiring overdue refs in batches, and the brake
``ledger``      the drain's steps: peek, claim, renew, release, fail, commit
``books``       adoption's steps, and the record of the scan
``tallies``     what the store counts, and the recount that holds it to account
``operations``  an operator's hands: quarantine, restore, audit, verify
``embedded``    a server of our own, for ``embedded://DIR``
``lua/``        one script, one verb, one file; each header is its contract

The rules that all of it keeps. A script decides and writes, with every key in KEYS; so a step
either happened or did not. Counters, indexes and the audit change in the script that changes
the state. Ages are judged by the store's clock. A script that is sent twice does its step
once: it finds its own token, pass or link and answers as it did the first time. Only
``verify``, ``export`` and the recount walk the refs.
"""
