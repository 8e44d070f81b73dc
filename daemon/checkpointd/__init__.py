"""checkpointd: keeps the registry of agent checkpoints, expires crashes, drains legacy state.

The data's path, from a legacy database to a kernel checkpoint::

    sources/    reads a legacy thread: its head, judged without its graph
    passes/     adopt registers it; reconcile expires what a crash left; drain replays it
    registry/   holds every ref in Redis or Valkey; each step is one atomic script
    leases/     keeps the right to replay one ref, and stops whoever has lost it
    replay/     continues a legacy turn as a kernel checkpoint
    turnstate/  what a paused turn leaves behind, so that another process can continue it
    telemetry/  turns reports into metrics, log lines and pages

and around it::

    cli/        commands, a few lines each over the rooms
    app/        builds every object by hand; start and stop, in order
    schedule    when a pass runs, and who owns it while it does
    config      TOML and environment to frozen settings, all complaints at once
    domain/     pure values and decisions
    sample/     a small legacy database that real graphs left behind, for the demo

Imports point downwards only, and a linter keeps it so.
"""

__version__ = "0.1.0"
