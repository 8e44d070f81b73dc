"""All commands under one name."""

from __future__ import annotations

import click

from checkpointd import __version__
from checkpointd.cli import control, look, passes, quarantine, refs, run, setup
from checkpointd.cli.demo import demo
from checkpointd.cli.doctor import doctor
from checkpointd.cli.verbs import Root


@click.group(cls=Root, name="checkpointd", example="checkpointd demo", invoke_without_command=True)
@click.version_option(__version__, prog_name="checkpointd", message="%(prog)s %(version)s")
@click.pass_context
def checkpointd(ctx: click.Context) -> None:
    """Tends agent checkpoints: expires crashes, drains a legacy format, shows both.

    Data goes to stdout, logs to stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 not drained,
    4 timed out, 69 store unreachable, 78 configuration.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


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
