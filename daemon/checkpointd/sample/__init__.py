"""A small legacy database that real graphs left behind, for ``checkpointd demo`` and the tests.

``legacy.sqlite`` is a LangGraph SQLite store of 25 threads: closed ones, paused ones with one
or two questions, subgraphs, a delta channel, and some whose process was killed in the middle
of a tool or a model call. Of the thread ``t:_:long`` only the newest checkpoint is kept. It is
read from a copy and never written to.
"""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path

FILE_NAME = "legacy.sqlite"


def copy_to(directory: Path) -> Path:
    """Put a copy of the sample into ``directory``; an older copy there is replaced."""
    target = directory / FILE_NAME
    with as_file(files(__name__) / FILE_NAME) as original:
        shutil.copyfile(original, target)
    return target
