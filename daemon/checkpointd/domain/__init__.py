"""Pure values and decisions: no clock is read here, no socket opened, no setting looked up.

Refs and their life
    ``ids``       what an id may be
    ``refs``      refs, boundaries, links, the freeze, leases
    ``states``    the words of a ref's life; the same in Lua, logs, metrics and JSON
    ``standing``  where a thread stands, decided from its refs
    ``errors``    one root, one class for each decision that a caller makes differently

The drain
    ``drain``     its state as one word and one sentence; progress; ETA; the breaker
    ``failure``   what an exception out of a replay means for its ref
    ``pace``      back-off, ramp-up, throttling
    ``tally``     what a census reads
    ``status``    the same as a document
    ``reports``   what a pass says of itself

Legacy state and turns
    ``legacy``      what a legacy store holds, as plain values
    ``head``        the verdict on a checkpoint, without its graph
    ``questions``   what a paused thread asked
    ``history``     folding in what finished beside a pause
    ``transcript``  open tool calls, orphans, safe cuts
    ``messages``    library messages to plain mappings, with a list of what was lost
    ``blocks``      the dialects of content blocks
    ``plain``       decoded values that stand for what was not imported
    ``turn``        what a paused turn leaves behind, and its strict encoding

Text
    ``durations``  "15m" to a timedelta and back
    ``redaction``  text without its secrets
"""
