"""The verdict on a checkpoint, from its rows alone: no graph, no library, plain data.

A graph writes down what it is about to do (its scheduling channels) and what each task
of that step has done so far (pending writes). The two say whether a turn is over, waits
for a person, failed, or is still running; the last cannot be told from a crash, and only
time does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpointd.domain.legacy import Verdict
from checkpointd.domain.plain import Broken, Named, fields_of, text_of

TASKS = "__pregel_tasks"
START = "__start__"
INTERRUPT = "__interrupt__"
RESUME = "__resume__"
ERROR = "__error__"
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""The task under whose name a run's input is written, a resume's answer among it."""
SENDS_IN_PARENT_BELOW = 4
"""Checkpoints of an older format keep their sends as writes of their parent."""
APPLICATION_PAUSES = ("_ask_user_pending", "_interrupt_pending")
"""Channels in which the application itself says that it is paused."""

_CONTROL = frozenset({INTERRUPT, RESUME, ERROR, "__scheduled__", "__error_source_node__"})
_SCHEDULING = ("branch:", "start:")
_OWN_PREFIXES = ("branch:", "start:", "join:")
_TASK_ID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_PUSHED = re.compile(r"^~__pregel_push, (\d+)")


@dataclass(frozen=True, slots=True)
class TaskWrite:
    """One pending write, decoded."""

    task_id: str
    path: str
    index: int
    channel: str
    value: Any

    @property
    def order(self) -> tuple[str, str, int]:
        """The order in which a live run applies writes; savers return them in any."""
        return (self.path, self.task_id, self.index)


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One question as a task put it: the row's id, and the payload."""

    payload: Any = None
    interrupt_id: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """One scheduled task with an argument of its own."""

    node: str = ""
    argument: Any = None


@dataclass(slots=True)
class Task:
    """What one task of a step has done so far."""

    task_id: str
    path: str = ""
    interrupts: list[Interrupt] = field(default_factory=list)
    asked: bool = False
    answers: list[Any] = field(default_factory=list)
    """Its own list of resume values, oldest first."""
    failed: bool = False
    output: list[TaskWrite] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return bool(self.output)

    @property
    def node(self) -> str:
        """The node of a task that a channel triggered; empty for one that was sent."""
        kind, _, node = self.path.partition(", ")
        return node if kind == "~__pregel_pull" else ""

    @property
    def send_index(self) -> int | None:
        """Which of the step's sends this task is; ``None`` if it was not sent."""
        found = _PUSHED.match(self.path)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Step:
    """The tasks of one step, and the answers that a run was started with."""

    tasks: tuple[Task, ...] = ()
    resumes: tuple[Any, ...] = ()
    """Values written under the null task: an answer that some task may not have taken yet."""


def causal_leaf(links: Iterable[tuple[str, str | None]]) -> str:
    """The head among (id, parent id) pairs: named by no other as parent; the newest of several.

    Usually the newest id; where a clock stepped back it is not.
    """
    pairs = list(links)
    parents = {parent for own, parent in pairs if parent and parent != own}
    leaves = [own for own, _ in pairs if own not in parents]
    return max(leaves or [own for own, _ in pairs], default="")


def sends_of(value: object) -> list[Send]:
    """The sends in a channel's value or in one write's."""
    if isinstance(value, list | tuple):
        return [send for one in value for send in _send(one)]
    return _send(value)


def scheduled_nodes(values: Mapping[str, Any], sends: Sequence[Send]) -> tuple[str, ...]:
    """The nodes that the next step would run, as far as their names are known."""
    nodes = []
    for channel, value in values.items():
        if channel == START:
            nodes.append(START)
        elif channel.startswith(_SCHEDULING) or _is_complete_join(channel, value):
            nodes.append(channel.rpartition(":")[2])
    return tuple(dict.fromkeys([*nodes, *(send.node for send in sends)]))


def read_step(writes: Iterable[TaskWrite]) -> Step:
    """What the step's tasks did, task by task. Metadata and foreign channels are passed over."""
    tasks: dict[str, Task] = {}
    resumes = []
    for write in sorted(writes, key=lambda write: write.order):
        if write.task_id == NULL_TASK:
            if write.channel == RESUME:
                resumes.append(write.value)
            continue
        if _is_foreign(write):
            continue
        task = tasks.setdefault(write.task_id, Task(write.task_id, write.path))
        if write.channel == INTERRUPT:
            task.asked = True
            task.interrupts.extend(_interrupts(write.value))
        elif write.channel == RESUME:
            task.answers.extend(write.value if isinstance(write.value, list) else [write.value])
        elif write.channel == ERROR:
            task.failed = True
        elif write.channel not in _CONTROL:
            task.output.append(write)
    return Step(tuple(tasks.values()), tuple(resumes))


def is_ordinary(channel: str) -> bool:
    """Whether a write there is a task's output. Applications park metadata under ``kind:id``."""
    return channel not in _CONTROL and (":" not in channel or channel.startswith(_OWN_PREFIXES))


def waiting(step: Step, *, taken_elsewhere: Sequence[Any] = ()) -> tuple[Task, ...]:
    """The tasks that asked and still wait.

    An answer under the null task ends the wait, unless it was taken already: by a task of
    this step, or by one of a child graph (``taken_elsewhere`` lists what those took). A
    task's own answers do not end it, since a tool may ask twice.
    """
    taken = [task.answers[-1] for task in step.tasks if task.answers]
    pending = [
        value for value in step.resumes if value not in taken and value not in taken_elsewhere
    ]
    if pending:
        return ()
    return tuple(task for task in step.tasks if task.asked and not task.done)


def innermost(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Those of ``tasks`` that do not merely pass on the question of a task they called."""
    return tuple(
        task
        for task in tasks
        if not (task.path and any(f", {task.path}, " in other.path for other in tasks))
    )


def paused_by_application(values: Mapping[str, Any], writes: Iterable[TaskWrite]) -> str:
    """The channel in which the application says that this run is paused; empty if none does.

    Only where no interrupt and no answer was written: those say it better. A pause that
    is set for another run is left over from it.
    """
    touched = {write.channel for write in writes}
    if touched & {INTERRUPT, RESUME, *APPLICATION_PAUSES}:
        return ""
    for channel in APPLICATION_PAUSES:
        pause = fields_of(values.get(channel))
        if pause and pause.get("run_id") == values.get("run_id"):
            return channel
    return ""


def stands_before(nodes: Iterable[str], breakpoints: Sequence[str], step: Step) -> str:
    """The listed node that a static breakpoint would have stopped at; empty if there is none.

    A step in which any task has done something was not stopped.
    """
    if step.tasks or step.resumes:
        return ""
    return next((node for node in nodes if node in breakpoints), "")


def judge(nodes: Sequence[str], step: Step, *, waits: bool) -> Verdict:
    """The verdict on a checkpoint whose next step would run ``nodes``.

    A failed task outweighs a waiting one: the run ended in an error, and nobody was
    shown the question.
    """
    if not nodes:
        return Verdict.CLOSED
    if any(task.failed for task in step.tasks):
        return Verdict.FAILED
    return Verdict.PAUSED if waits else Verdict.OPEN


def _is_foreign(write: TaskWrite) -> bool:
    """Whether an application, and no task of the graph, has written this beside the state."""
    if write.channel in _CONTROL:
        return False
    return not is_ordinary(write.channel) or not (write.path or _TASK_ID.match(write.task_id))


def _send(value: object) -> list[Send]:
    if value is None:
        return []
    if isinstance(value, Broken):
        return [Send()]
    data = value.data if isinstance(value, Named) else value
    if isinstance(data, list | tuple) and len(data) >= 2:
        return [Send(text_of(data[0]), data[1])]
    if isinstance(data, Mapping):
        return [Send(text_of(data.get("node")), data.get("arg"))]
    return [Send()]


def _interrupts(value: object) -> list[Interrupt]:
    return [_interrupt(one) for one in (value if isinstance(value, list | tuple) else [value])]


def _interrupt(value: object) -> Interrupt:
    if isinstance(value, Named) and isinstance(value.data, list | tuple):
        data = [*value.data, None, None]
        return Interrupt(data[0], text_of(data[1]))
    fields = fields_of(value)
    if fields is None or "value" not in fields:
        return Interrupt(value)
    return Interrupt(fields["value"], text_of(fields.get("id") or fields.get("interrupt_id")))


def _is_complete_join(channel: str, value: object) -> bool:
    """Whether everyone whom a join waits for has arrived: ``join:a+b:c`` holds a set of names."""
    if not channel.startswith("join:"):
        return False
    seen = value.data if isinstance(value, Named) else value
    if isinstance(seen, list | tuple) and len(seen) == 2 and isinstance(seen[1], bool):
        seen = seen[0].data if isinstance(seen[0], Named) else seen[0]
    if not isinstance(seen, list | tuple) or not seen:
        return False
    names = channel.removeprefix("join:").rpartition(":")[0]
    return len("+".join(map(str, seen))) == len(names) and all(str(one) in names for one in seen)
