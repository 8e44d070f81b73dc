"""The command ``checkpointd``: each of its commands is a few lines over the rooms below.

``commands``    all commands under one name
``common``      what was asked beside a command, the way to the rooms, where it prints
``verbs``       the kinds of command, and how each ends
``options``     what may be given
``run``  ``passes``  ``control``  ``look``  ``refs``  ``quarantine``  ``setup``  ``doctor``  ``demo``
                the commands, by what they are for
``checks``      what doctor makes of what it is told
``documents``   values as JSON says them; an interface, since scripts rely on it
``stories``  ``reports``
                refs and conversations, the drain and its passes, as people read them
``tables``      what those pages are made of

Data goes to stdout, everything else to stderr. A command that fails says so in one sentence,
what was asked, what is true and what to do, and ends with a code of ``common.Code``.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the command line says, then exit with its code."""
    from checkpointd.cli.commands import checkpointd  # here, so that naming this room costs nothing

    checkpointd.main(argv)
