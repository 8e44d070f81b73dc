"""How lists of messages grow: writes folded into a channel, a child's list after its parent's.

Works on messages as the rows hold them; ``domain.messages`` converts the result. Ids are
used where they are there, and never needed: a saver may have stored a message before
it was given one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from checkpointd.domain.plain import Named, fields_of, text_of

REMOVE_ALL = "__remove_all__"
_OVERWRITE = "__overwrite__"


def as_elements(value: object) -> list[Any]:
    """A channel's or a write's value as a list: one message alone is a list of it."""
    if isinstance(value, Named) and isinstance(value.data, list | tuple):
        value = value.data  # a set, a deque, a delta channel's snapshot
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]


def fold(base: Sequence[Any], writes: Iterable[Any]) -> list[Any]:
    """``base`` after ``writes``: appended, replaced where the id is known, removed, or reset.

    A removal of what is not there removes nothing.
    """
    grown = _Growing(base)
    for write in writes:
        reset, value = _overwrite(write)
        if reset:
            grown = _Growing(as_elements(value))
            continue
        for element in as_elements(value):
            if is_removal(element) and id_of(element) == REMOVE_ALL:
                grown = _Growing(())
            else:
                grown.take(element)
    return grown.elements()


def joined(parent: Sequence[Any], child: Sequence[Any]) -> list[Any]:
    """A child graph's messages after those of its parent, each message once.

    A child is usually given its parent's messages, but may also begin with a few of them
    or with a task of its own.
    """
    known = {identity for element in parent if (identity := id_of(element))}
    rest = [element for element in parent if not id_of(element)]
    result = list(parent)
    for element in child:
        if (identity := id_of(element)) and identity in known:
            continue
        if not identity and element in rest:
            rest.remove(element)
            continue
        result.append(element)
    return result


def id_of(element: object) -> str:
    """The id that a message was given by its graph; empty if it has none."""
    return text_of((fields_of(element) or {}).get("id"))


def is_removal(element: object) -> bool:
    """Whether this is no message but an order to remove one."""
    if isinstance(element, Named) and element.name == "RemoveMessage":
        return True
    return (fields_of(element) or {}).get("type") == "remove"


class _Growing:
    """A list with the place of each id beside it, so a long history folds in one walk."""

    def __init__(self, base: Sequence[Any]) -> None:
        self._slots: list[tuple[bool, Any]] = []
        self._places: dict[str, int] = {}
        for element in base:
            self._append(element)

    def take(self, element: Any) -> None:
        """Append ``element``, or put it in the place of the one with its id, or remove that."""
        identity = id_of(element)
        place = self._places.get(identity) if identity else None
        if is_removal(element):
            if place is not None:
                self._slots[place] = (False, None)
                del self._places[identity]
        elif place is not None:
            self._slots[place] = (True, element)
        else:
            self._append(element)

    def elements(self) -> list[Any]:
        return [element for kept, element in self._slots if kept]

    def _append(self, element: Any) -> None:
        if identity := id_of(element):
            self._places[identity] = len(self._slots)
        self._slots.append((True, element))


def _overwrite(write: Any) -> tuple[bool, Any]:
    """Whether ``write`` replaces the whole channel, and the value either way."""
    fields = fields_of(write)
    if fields is not None:
        if isinstance(write, Named) and write.name == "Overwrite":
            return True, fields.get("value")
        if len(fields) == 1 and _OVERWRITE in fields:
            return True, fields[_OVERWRITE]
        if fields.get("type") == _OVERWRITE and "value" in fields:
            return True, fields["value"]
    elif isinstance(write, Named) and write.name == "Overwrite":
        return True, write.data
    return False, write
