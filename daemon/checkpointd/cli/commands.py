"""All commands under one name."""

from __future__ import annotations

import click

from checkpointd import __version__
from checkpointd.cli import control, look, passes, quarantine, refs, run, setup
from checkpointd.cli.common import Root
from checkpointd.cli.demo import demo
from checkpointd.cli.doctor import doctor


@click.group(cls=Root, name="checkpointd", example="checkpointd demo")
@click.version_option(__version__, prog_name="checkpointd", message="%(prog)s %(version)s")
def checkpointd() -> None:
    """Tends agent checkpoints: expires crashes, drains a legacy format, shows both.

    Data goes to stdout, logs to stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 not drained,
    4 timed out, 69 store unreachable, 78 configuration.
    """


for command in (
    run.run,
    passes.once,
    look.status,
    control.freeze,
    control.thaw,
    control.pause,
    control.resume,
    control.expiries,
    look.explain,
    refs.refs,
    quarantine.quarantine,
    look.audit,
    look.verify,
    doctor,
    setup.check_config,
    setup.init,
    demo,
):
    checkpointd.add_command(command)
