"""One thread's graphs, level by level: the root's checkpoint, and those of the graphs inside it.

A subgraph keeps checkpoints of its own in a namespace that ends in the id of the task
that runs it. What a person is asked is asked by the innermost task that waits, and its
transcript is the root's followed by those of the levels down to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from checkpointd.domain.errors import UnreadableStateError
from checkpointd.domain.head import (
    NULL_TASK,
    RESUME,
    SENDS_IN_PARENT_BELOW,
    TASKS,
    Interrupt,
    Send,
    Step,
    Task,
    TaskWrite,
    causal_leaf,
    innermost,
    read_step,
    scheduled_nodes,
    sends_of,
    waiting,
)
from checkpointd.domain.history import as_elements, fold, joined
from checkpointd.domain.messages import convert
from checkpointd.domain.plain import Broken, fields_of, text_of
from checkpointd.domain.transcript import call_ids
from checkpointd.sources.decode import UndecodableError, decode
from checkpointd.sources.rows import Cell, CheckpointRow, RawRows, WriteRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question as it was found, with everything it is told apart by."""

    task_id: str
    namespace: str
    interrupt: Interrupt
    send: Send | None
    elements: list[Any]
    """The transcript that leads up to it, not yet converted."""


class Level:
    """One checkpoint of one namespace, decoded."""

    def __init__(self, levels: Levels, row: CheckpointRow) -> None:
        self._levels = levels
        self.namespace = row.namespace
        self.checkpoint_id = row.checkpoint_id
        self.parent_id = row.parent_id
        self._metadata = row.metadata
        checkpoint = fields_of(levels.value(row.checkpoint, f"checkpoint {row.checkpoint_id}"))
        values = fields_of((checkpoint or {}).get("channel_values"))
        if checkpoint is None or values is None:
            raise levels.unreadable(f"checkpoint {row.checkpoint_id} has no channel values")
        self._checkpoint = checkpoint
        apart = {channel: levels.tolerant(cell) for channel, cell in row.channels.items()}
        self.values: dict[str, Any] = {str(key): value for key, value in values.items()} | apart
        self.ts = checkpoint.get("ts")

    @cached_property
    def writes(self) -> tuple[TaskWrite, ...]:
        """The pending writes kept here. One that cannot be decoded spoils only its own channel."""
        return self._levels.writes(self.namespace, self.checkpoint_id)

    @cached_property
    def sends(self) -> tuple[Send, ...]:
        """The tasks scheduled with arguments of their own; older formats keep them in the parent."""
        sends = sends_of(self.values.get(TASKS))
        version = self._checkpoint.get("v")
        if not isinstance(version, int) or version < SENDS_IN_PARENT_BELOW:
            sends += sends_of(self._checkpoint.get("pending_sends"))
            if not sends and self.parent_id:
                for write in self._levels.writes(self.namespace, self.parent_id, channel=TASKS):
                    sends += sends_of(write.value)
        return tuple(sends)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """What the next step would run; empty if the turn is over."""
        return scheduled_nodes(self.values, self.sends)

    @cached_property
    def step(self) -> Step:
        return read_step(self.writes)

    @property
    def sequence(self) -> int:
        """The step number; 0 where the metadata is unreadable."""
        metadata = fields_of(self._levels.tolerant(self._metadata)) or {}
        number = metadata.get("step")
        return number if isinstance(number, int) and not isinstance(number, bool) else 0

    @property
    def notes(self) -> dict[str, Any]:
        """What applications wrote beside the state, by key."""
        return {write.channel: write.value for write in self.writes if ":" in write.channel}

    def messages(self) -> list[Any] | None:
        """The messages channel, not converted; ``None`` if this graph has none."""
        channel = self._levels.messages_channel
        value = self.values.get(channel)
        if value is not None:
            return self._levels.sound(as_elements(value))
        versions = fields_of(self._checkpoint.get("channel_versions")) or {}
        return self._levels.rebuilt(self) if channel in versions else None

    def transcript(self) -> list[Any] | None:
        """The messages, and after them what the finished tasks of this step have to add.

        Without these a finished tool would run again. They come in the order in which
        the calls were made, whatever order the saver returned them in.
        """
        base = self.messages()
        if base is None:
            return None
        channel = self._levels.messages_channel
        calls = [call for message in convert(base).messages for call in call_ids(message)]
        place = {call_id: index for index, call_id in enumerate(calls)}

        def order(write: TaskWrite) -> tuple[int, str, str, int]:
            answered = [
                place.get(text_of((fields_of(one) or {}).get("tool_call_id")), len(calls))
                for one in as_elements(write.value)
            ]
            return (min(answered, default=len(calls)), *write.order)

        inputs = [w for w in self.writes if w.task_id == NULL_TASK and w.channel == channel]
        results = [w for task in self.step.tasks for w in task.output if w.channel == channel]
        added = [*inputs, *sorted(results, key=order)]
        return self._levels.sound(fold(base, [write.value for write in added]))


class Levels:
    """Loads the levels of one thread from its rows."""

    def __init__(
        self, rows: RawRows, thread_id: str, *, max_record: int, messages_channel: str
    ) -> None:
        self._rows = rows
        self.thread_id = thread_id
        self._max_record = max_record
        self.messages_channel = messages_channel

    def load(self, namespace: str, checkpoint_id: str) -> Level | None:
        """One checkpoint; ``None`` if it is not there, ``UnreadableStateError`` if it is broken."""
        row = self._rows.checkpoint(self.thread_id, namespace, checkpoint_id)
        return None if row is None else Level(self, row)

    def waiting(self, level: Level) -> tuple[Task, ...]:
        """The tasks of ``level`` that asked and still wait, without those that pass a question on."""
        step = level.step
        candidates = waiting(Step(step.tasks))
        if candidates and step.resumes:
            taken = [answer for task in candidates for answer in self._taken_below(level, task)]
            candidates = waiting(step, taken_elsewhere=taken)
        return innermost(candidates)

    def questions(
        self, level: Level, tasks: Sequence[Task], leading: Sequence[Any] = ()
    ) -> list[Asked]:
        """What ``tasks`` ask, innermost first asked; ``leading`` is the transcript above them."""
        own = level.transcript()
        elements = list(leading) if own is None else joined(leading, own)
        found: list[Asked] = []
        for task in tasks:
            inner = [
                asked
                for child in self._children(level, task)
                for asked in self.questions(child, self.waiting(child), elements)
            ]
            found += inner or [
                Asked(
                    task_id=task.task_id,
                    namespace=level.namespace,
                    interrupt=interrupt,
                    send=_send_of(task, level.sends),
                    elements=elements,
                )
                for interrupt in task.interrupts or [Interrupt()]
            ]
        if any(isinstance(asked.interrupt.payload, Broken) for asked in found):
            raise self.unreadable("what a paused task asks cannot be decoded")
        return found

    def rebuilt(self, level: Level) -> list[Any] | None:
        """The messages of a delta channel: the nearest stored value, and every write since.

        ``None`` if there is neither. A history whose beginning is gone is unreadable:
        half a conversation must not pass for the whole.
        """
        channel = self.messages_channel
        steps: list[tuple[TaskWrite, ...]] = []
        base: list[Any] | None = None
        seen = {level.checkpoint_id}
        parent_id = level.parent_id
        while parent_id and parent_id not in seen and base is None:
            seen.add(parent_id)
            ancestor = self.load(level.namespace, parent_id)
            if ancestor is None:
                raise self.unreadable(f"its history is cut: checkpoint {parent_id} is gone")
            steps.append(self.writes(level.namespace, parent_id, channel=channel))
            if channel in ancestor.values:
                base = as_elements(ancestor.values[channel])
            parent_id = ancestor.parent_id
        written = [write.value for writes in reversed(steps) for write in writes]
        if base is None and not written:
            return None
        return self.sound(fold(base or [], written))

    def writes(
        self, namespace: str, checkpoint_id: str, *, channel: str | None = None
    ) -> tuple[TaskWrite, ...]:
        """The writes at one checkpoint, on ``channel`` if given, in the order of a live run."""
        rows = self._rows.writes(self.thread_id, namespace, checkpoint_id)
        wanted = [row for row in rows if channel is None or row.channel == channel]
        return tuple(sorted((self._write(row) for row in wanted), key=lambda write: write.order))

    def value(self, cell: Cell, what: str) -> Any:
        """The decoded value of ``cell``, which this thread cannot be read without."""
        try:
            return decode(cell, limit=self._max_record)
        except UndecodableError as error:
            raise self.unreadable(f"{what}: {error}") from error

    def tolerant(self, cell: Cell) -> Any:
        """The decoded value of ``cell``, or what is wrong with it."""
        try:
            return decode(cell, limit=self._max_record)
        except UndecodableError as error:
            return Broken(str(error))

    def sound(self, elements: list[Any]) -> list[Any]:
        """``elements``, if each could be decoded: a hole in a conversation is not passed over."""
        for element in elements:
            if isinstance(element, Broken):
                raise self.unreadable(f"a message cannot be decoded: {element.why}")
        return elements

    def unreadable(self, why: str) -> UnreadableStateError:
        return UnreadableStateError(self.thread_id, why)

    @cached_property
    def _namespaces(self) -> tuple[str, ...]:
        return tuple(sorted(self._rows.namespaces(self.thread_id)))

    def _children(self, level: Level, task: Task) -> list[Level]:
        """The heads of the graphs that ``task`` runs, as far as they keep checkpoints."""
        own = [name for name in self._namespaces if _owner(name) == task.task_id]
        if not own and task.node:
            # A subgraph with a memory of its own lives in a namespace without task ids.
            lasting = "|".join([*_without_ids(level.namespace), task.node])
            own = [name for name in self._namespaces if name == lasting]
        found = []
        for namespace in own:
            pairs = self._rows.links(self.thread_id, namespace)
            child = self.load(namespace, causal_leaf(pairs))
            if child is not None and child.nodes:
                found.append(child)
        return found

    def _taken_below(self, level: Level, task: Task) -> list[Any]:
        """The last answer that each task below ``task`` has taken, in any of its steps."""
        below = [name for name in self._namespaces if f":{task.task_id}" in name]
        answers = []
        for namespace in below or [child.namespace for child in self._children(level, task)]:
            for checkpoint_id, _ in self._rows.links(self.thread_id, namespace):
                for write in self.writes(namespace, checkpoint_id, channel=RESUME):
                    value = write.value
                    if write.task_id != NULL_TASK and isinstance(value, list) and value:
                        answers.append(value[-1])
        return answers

    def _write(self, row: WriteRow) -> TaskWrite:
        value = self.tolerant(row.value)
        return TaskWrite(row.task_id, row.task_path, row.index, row.channel, value)


def _send_of(task: Task, sends: Sequence[Send]) -> Send | None:
    index = task.send_index
    return sends[index] if index is not None and index < len(sends) else None


def _owner(namespace: str) -> str:
    """The id of the task that runs this namespace's graph; a later graph of it has a number."""
    parts = [part for part in namespace.split("|") if not part.isdigit()]
    return parts[-1].rpartition(":")[2] if parts and ":" in parts[-1] else ""


def _without_ids(namespace: str) -> list[str]:
    parts = [part.partition(":")[0] for part in namespace.split("|") if not part.isdigit()]
    return [part for part in parts if part]
