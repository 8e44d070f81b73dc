"""How the daemon is seen: numbers, log lines, and the pages that show them.

A pass returns a report and knows nothing of this room. ``record`` turns each report into
numbers and lines, so one place decides what is worth a line and at which level; the same
deed has the same event name whoever did it, a pass or an operator.

``metrics``       every metric of one replica, declared once; and through ``store`` of all
``store_series``  what the census read, as metrics that all replicas agree on
``record``        reports to metrics and log lines
``logs``          one JSON object a line on stderr; no secret, no frame's locals
``endpoint``      /metrics, /livez, /readyz, /status.json and a page, from threads of their own
``heartbeat``     whether the event loop turns and the passes go on, judged from outside of it

Three rules keep the numbers honest.

1. **Store-wide gauges come from the census alone.** They are true even when the drain is
   stuck, and equal on every replica: aggregate with ``max``. One census is swapped in whole,
   so no scrape sees half of one. A census that fails turns them to NaN and the drain's state
   to ``unknown``: an old number is worse than none. Before the first census they are NaN too,
   and store-wide counters are not there yet, since a 0 before the total would be a rise of
   the whole total after every restart.
2. **A replica's counters claim what it saw**, from 0 at its start, every label value there at
   once: ``sum`` them. The store's own counts, not these, are the truth.
3. **Labels name kinds.** Their values come from the enumerations in ``domain.states``, so the
   number of series does not depend on what is stored. No id, tenant or error text.

No signal handler touches a metric, and the endpoint's threads do no I/O but to their client.
"""
