"""Values as they lie in a row: plain data, and the names of classes that nobody looks up.

A row may name any class of any module. Importing or calling what it names would let
whoever can write a row run code here, so a class becomes its name beside its data.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100
"""How deep a value may nest before its inside is given up; honest data stays below 20."""

Note = Callable[[str, str], None]
"""Told of each loss: a word of ``LossKind`` and a detail."""


@dataclass(frozen=True, slots=True)
class Named:
    """A value that a row says is of class ``module.name``; ``data`` is what it was made from."""

    module: str
    name: str
    data: Any

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Broken:
    """Bytes inside a row that cannot be decoded, while what lies around them can."""

    why: str


def fields_of(value: object) -> Mapping[str, Any] | None:
    """The fields of a mapping, or of a class made from keywords; ``None`` for anything else."""
    data = value.data if isinstance(value, Named) else value
    return data if isinstance(data, Mapping) else None


def text_of(value: object) -> str:
    """``value`` if it is text, else empty text."""
    return value if isinstance(value, str) else ""


def json_safe(value: Any, note: Note, *, depth: int = 0) -> Any:
    """``value`` as JSON can carry it, with each thing that had to change told to ``note``.

    Not-a-number and the infinities become null, bytes base64 text, a named class its data.
    Text is never touched, whatever it holds.
    """
    if depth > MAX_DEPTH:
        note("too_deep", "")
        return None
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            note("not_a_number", repr(value))
            return None
        case Mapping():
            return {
                _key(key, note): json_safe(inner, note, depth=depth + 1)
                for key, inner in value.items()
            }
        case list() | tuple():
            return [json_safe(inner, note, depth=depth + 1) for inner in value]
        case bytes() | bytearray():
            note("foreign_value", "bytes")
            return base64.b64encode(value).decode("ascii")
        case Named():
            note("foreign_value", value.path)
            return json_safe(value.data, note, depth=depth + 1)
        case Broken():
            note("unreadable_value", value.why)
            return None
        case _:
            note("foreign_value", type(value).__name__)
            return str(value)


def _key(key: object, note: Note) -> str:
    if isinstance(key, str):
        return key
    note("foreign_value", "key")
    return str(key)


def silent(kind: str, detail: str) -> None:
    """A ``Note`` for where nobody counts: values that are shown, not carried over."""
