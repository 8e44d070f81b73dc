"""A registry of metrics of the test's own, and the log lines that a test caused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import LogCapture

from checkpointd.telemetry.logs import LineHandler
from checkpointd.telemetry.metrics import Metrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, version="1.2.3")


@pytest.fixture
def scraped(registry: CollectorRegistry) -> Callable[[], dict[str, float]]:
    """The samples of a scrape now, as ``name{label="value"}`` to number."""

    def scrape() -> dict[str, float]:
        lines = generate_latest(registry).decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    return scrape


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """The events logged from here on, of every level."""
    capture = LogCapture()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, capture],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    ours = logging.getLogger("checkpointd")
    level = ours.level
    ours.setLevel(logging.DEBUG)
    yield capture.entries
    ours.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def fresh_logging() -> Iterator[None]:
    """Logging as it was before, whatever the test configured."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [h for h in root.handlers if isinstance(h, LineHandler)]:
        root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    logging.getLogger("apscheduler").setLevel(logging.NOTSET)
    structlog.reset_defaults()
