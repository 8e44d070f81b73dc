"""The command ``checkpointd``: each of its commands is a few lines over the rooms below.

``common``      the options that stand everywhere, the way to the rooms, how a command ends
``commands``    all commands under one name
``run``  ``passes``  ``control``  ``look``  ``refs``  ``quarantine``  ``setup``  ``doctor``  ``demo``
                the commands, by what they are for
``documents``   values as JSON says them; an interface, since scripts rely on it
``tables``      values as people read them

Data goes to stdout, everything else to stderr. A command that fails says so in one sentence,
what was asked, what is true and what to do, and ends with a code of ``common.Code``.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the command line says, then exit with its code."""
    from checkpointd.cli.commands import checkpointd  # here, so that naming this room costs nothing

    checkpointd.main(argv)
