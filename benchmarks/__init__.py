"""What the daemon costs, each figure against a peer in the same run.

``python -m benchmarks`` starts one server of its own on a Unix socket and prints a table; with
``--json`` the same as a document. Exit 1 if a target is missed. The machine's speed drifts, so
what counts is a ratio: both sides run in turns, in an order shuffled anew for each round, and the
figure is the median over the rounds.

``servers``   the one server
``loading``   registries of any size, written past the registry's own scripts, in seconds
``figures``   a figure, its target, and the rounds that it is the median of
``expiry``    overdue refs against a bare script, and with a hundred times as many settled refs
``drain``     a replayer that does nothing, against a job a ref in arq (``arq_peer``), as arq
              documents a worker and as one is tuned for this
``status``    the status of a million refs, in process
``idle``      a daemon with nothing to do, as a process
"""
