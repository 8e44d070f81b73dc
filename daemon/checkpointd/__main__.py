"""``python -m checkpointd``: the command, where no script was installed."""

from checkpointd.cli import main

main()
