"""Pure values and decisions: no clock is read here, no socket opened, no setting looked up.

``ids``       what an id may be
``refs``      the registry's values: refs, boundaries, links, the freeze
``states``    the words of a ref's life; the same in Lua, logs, metrics and JSON
``errors``    one root, one class for each decision that a caller makes differently
``turn``      what a paused turn leaves behind, and its strict encoding
``drain``     the state of the drain as one word and one sentence; progress; ETA
``pace``      back-off, ramp-up, throttling and the breaker
``head``      the verdict on a thread's newest checkpoint, without its graph
``transcript``  open tool calls, orphans, safe cuts
``messages``  library messages to plain mappings, with a list of what was lost
``legacy``   what a legacy store holds, as plain values
``reports``  what a pass says of itself
"""
