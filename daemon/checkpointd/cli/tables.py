"""What pages are made of: lines, grids, numbers and times, at eighty columns and more.

Nothing here is markup: ids, reasons and details are other people's text, and are shown with
whatever a terminal might obey escaped. In a pipe lines are not broken, so that they can be searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checkpointd.cli.common import printable
from checkpointd.domain.durations import format_duration
from checkpointd.domain.status import iso

STYLES = {
    "drained": "bold green",
    "draining": "bold cyan",
    "settling": "bold cyan",
    "idle": "bold",
    "paused": "bold yellow",
    "halted": "bold red",
    "stalled": "bold red",
    "unknown": "bold red",
    "migrated": "green",
    "finalized": "green",
    "resumable": "green",
    "quarantined": "red",
    "expired": "yellow",
    "waived": "yellow",
    "retryable": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}
"""Colours of words, wherever they stand."""

ROW_WIDTH = 64
"""Characters of a row of counts: with its name before it, it fits into eighty."""

SHOWN = 20
"""Refs that a report names before it says how many more there are."""


class Line:
    """A sentence: broken at words on a terminal, and left whole in a pipe."""

    def __init__(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        self._text = Text.assemble(*(_clean_part(part) for part in parts))
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield Padding(self._text, (0, 0, 0, self._indent))
        else:
            lead = " " * self._indent
            whole = options.update(no_wrap=True, overflow="ignore", width=1_000_000)
            text = Text.assemble(lead, self._text)
            yield from console.render(text, whole)


def _clean_part(part: str | tuple[str, str]) -> str | tuple[str, str]:
    return printable(part) if isinstance(part, str) else (printable(part[0]), part[1])


def word(text: str) -> tuple[str, str]:
    """A word in its colour."""
    return (text, STYLES.get(text, ""))


def blank() -> Text:
    """An empty line."""
    return Text("")


def grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names on the left, what they stand for on the right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(
            name, Text(printable(value), overflow="fold") if isinstance(value, str) else value
        )
    return table


def columns(*names: str, right: Sequence[str] = ()) -> Table:
    """An empty table with a line of headings and no frame."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(
            name, justify="right" if name in right else "left", overflow="fold", header_style="bold"
        )
    return table


def cell(text: str, style: str = "") -> Text:
    """Other people's text in a table."""
    return Text(printable(text), style=style or STYLES.get(text, ""), overflow="fold")


def counts(numbers: Mapping[str, int], *, zeros: bool = True) -> str:
    """``open 0 · pending 3``: the counts of a row."""
    return " · ".join(f"{name} {n:,}" for name, n in numbers.items() if n or zeros) or "none"


def folded(numbers: Mapping[str, int]) -> Text:
    """Counts in lines that part no name from its number."""
    lines = [""]
    for item in counts(numbers).split(" · "):
        longer = f"{lines[-1]} · {item}" if lines[-1] else item
        if len(longer) > ROW_WIDTH:
            lines.append(item)
        else:
            lines[-1] = longer
    return Text("\n".join(lines))


def when(moment: datetime | None) -> str:
    """A moment as everything else prints it, to the second."""
    return "" if moment is None else iso(moment.replace(microsecond=0)) or ""


def plural(n: int, noun: str, plural_form: str = "") -> str:
    """``1 ref``, ``2 refs``."""
    return f"{n:,} {noun if n == 1 else plural_form or noun + 's'}"


def seconds(s: float) -> str:
    """So many seconds, as people say them: ``4ms``, ``1.3s``, ``1h2m5s``."""
    if 1 <= s < 10:
        return f"{s:.1f}".removesuffix(".0") + "s"
    return format_duration(timedelta(seconds=round(s) if s >= 1 else round(s, 3)))


def more(n: int) -> Iterable[RenderableType]:
    """How many there are beyond those shown."""
    if n > 0:
        yield Line((f"… and {n:,} more; --json lists all", "dim"), indent=2)
