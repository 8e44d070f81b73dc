"""Turn states: what a paused turn leaves behind, kept where any process can read it.

``store``   TurnCheckpointStore: record and load over a command port, no state of its own
``pauses``  the list of what a replay recorded, and the way to it from an old token
``ports``   the command port: two verbs
``memory``  ``redis``  ``saver``  the three ports

The protocol
------------
A pause is minted as a token. Its claims name the turn (run, session, thread, checkpoint,
scope, tool call, interrupt) and carry a ``jti``, one per mint. Before the question is
shown, the turn is recorded at its checkpoint:

    (thread, checkpoint)   turn_state:<jti>   the turn, canonical JSON
                           turn_pauses        the claims of every turn a replay recorded

1. ``stamped_turn`` takes every id from the claims, so a record and its token agree.
2. ``record`` says whether the turn landed. ``False`` is an answer, not an accident: the
   pause is not resumable, and whoever mints the token must not promise that it is.
3. ``load`` reads the port each time. What it finds must be readable and bear the claims'
   ids: anything else would answer one run's question into another's transcript.
4. A missing turn is lost (``CheckpointLostError``), unless one of the keys of older tokens,
   ``ask_user_request:<tool_call_id>`` or ``interrupt_payload:<interrupt_id>``, can be read at
   that checkpoint: then the token is older than turn states, which can be shown and
   answered but not continued from here. Those two keys are read and never written.

A replay writes one turn for each pending question, then the list of their claims, and
only then is the link committed: a list never names a turn that is not there, and a replay
that dies in between writes the same bytes again. The holder of an old token, whose
``jti`` nobody stored, follows the link to the new checkpoint and finds there the
claims with the same tool call or interrupt.

Ports
-----
A write that returned can be read back; one that cannot raises. The same bytes again are a
success. Other bytes under a key that has some either replace them (memory, Redis) or raise
(a LangGraph saver keeps the first write of a task): they are never dropped in silence.
"""
