"""Reading legacy state: the stores that old graphs left behind, and what their rows mean.

What a source is, in one page. ``port.LegacySource`` is the whole of it: pages of thread
sketches, a thread's head judged, one checkpoint judged. Whoever adds a source promises:

1. **Nothing is changed.** Not a row, not a schema, not a journal mode, not a file beside the
   file. A saver's own ``setup`` is never called. What cannot be read without changing it is
   read from a copy.
2. **Nothing is run.** No class that a row names is imported or called; it becomes a
   ``Named``, its name beside its data. There is no pickle. No library of the store's is
   imported while reading, only a driver and a msgpack decoder.
3. **Memory is a page and a thread.** Ids come by the store's own query, above the last one
   seen, in order. A record larger than ``source.max_record`` is not even fetched.
4. **Trouble stays where it is.** A row that is corrupt, oversized or of an unknown kind makes
   its thread ``UNREADABLE``, with the id and time of the key; the scan goes on. Only a store
   that cannot be read as a whole raises, ``SourceUnreachableError``, with what to do.
5. **One reading is of one moment.** A head and the writes beside it are read together, since
   the two together are the verdict.
6. **The same conversation reads the same everywhere.** ``digest`` does not depend on the
   order in which a store returns rows, nor on the ids of messages.

Most of that is already done for stores of LangGraph's: they implement ``rows.RawRows``, four
queries over undecoded rows, and wrap ``langgraph.LangGraphReader`` around it. ``opening``
gives the new source its URL scheme.

The data's path through the room::

    sqlite_file    the file on disk, read without leaving a trace
    sqlite_rows    its queries, of the present schema and the old ones
    rows           the port to raw rows
    decode         bytes to plain data
    levels         one thread's graphs: the root, and the graphs that its tasks run
    langgraph      verdict, messages, questions, boundary
    sqlite         the source itself: threads, transactions, pages
    opening        from source.url to a source

What a state means is decided in ``domain``: ``head`` (the verdict), ``history`` (how message
lists grow), ``messages`` and ``blocks`` (role form), ``transcript`` (what is unanswered),
``questions`` (what a pause asks).
"""
