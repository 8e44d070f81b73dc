"""checkpointd: keeps the registry of agent checkpoints, expires crashes, drains legacy state."""

__version__ = "0.1.0"
