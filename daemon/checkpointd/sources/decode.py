"""Bytes of a row to plain data, importing and calling nothing that the row names.

The library's own deserializer imports the module and calls the class that a row names,
so a row that names ``os.system`` runs it. Here a class stays a name beside its data.
There is no pickle: unpickling is running code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from checkpointd.domain.plain import Broken, Named
from checkpointd.sources.rows import Cell

_MAX_NESTED_EXTENSIONS = 64
_NUMPY_ARRAY = 6
_DELTA_SNAPSHOT = 7
_CONSTRUCTED = frozenset(range(6))


class UndecodableError(ValueError):
    """One value cannot be read; what that costs is for the reader of its thread to say."""


def decoder_is_installed() -> bool:
    """Whether the package that reads msgpack is there; it comes with the extra ``langgraph``."""
    return find_spec("ormsgpack") is not None


def decode(cell: Cell, *, limit: int) -> Any:
    """The plain value of ``cell``. More than ``limit`` bytes, or an unknown kind, is refused."""
    if cell.kind == "null":
        return None
    if cell.size > limit:
        raise UndecodableError(f"it has {cell.size:,} bytes and source.max_record is {limit:,}")
    if cell.blob is None:
        raise UndecodableError("it holds no bytes")
    match cell.kind or _sniffed(cell.blob):
        case "msgpack":
            return _unpacked(cell.blob)
        case "json":
            return _parsed(cell.blob)
        case "bytes" | "bytearray":
            return cell.blob
        case "pickle":
            raise UndecodableError("it is pickled, and unpickling would run what it names")
        case kind:
            raise UndecodableError(
                f"it was serialized as {kind[:40]!r}, which this build cannot read"
            )


def _sniffed(blob: bytes) -> str:
    """Old savers stored no word for the format: JSON begins with a brace or bracket."""
    return "json" if blob[:1] in (b"{", b"[") else "msgpack"


def _unpacked(blob: bytes) -> Any:
    import ormsgpack  # here, since the daemon starts without the extra that brings it

    def unpack(data: bytes, depth: int) -> Any:
        return ormsgpack.unpackb(data, ext_hook=hook_at(depth), option=ormsgpack.OPT_NON_STR_KEYS)

    def hook_at(depth: int) -> Callable[[int, bytes], Any]:
        def hook(code: int, data: bytes) -> Any:
            if depth >= _MAX_NESTED_EXTENSIONS:
                return Broken("nested too deep")
            try:
                return _named(code, unpack(bytes(data), depth + 1))
            except (ValueError, TypeError, RecursionError) as error:
                return Broken(f"extension {code}: {error}")

        return hook

    try:
        return unpack(blob, 0)
    except (ValueError, TypeError, RecursionError) as error:
        raise UndecodableError(f"its msgpack is damaged ({error})") from error


def _named(code: int, inner: Any) -> Named | Broken:
    if code == _DELTA_SNAPSHOT:
        return Named("langgraph.checkpoint.serde.types", "_DeltaSnapshot", inner)
    if not isinstance(inner, list | tuple) or len(inner) < 3:
        return Broken(f"extension {code} does not say what it is")
    if code == _NUMPY_ARRAY:
        return Named("numpy", "ndarray", {"dtype": str(inner[0]), "shape": inner[1]})
    if code in _CONSTRUCTED:
        return Named(str(inner[0]), str(inner[1]), inner[2])
    return Broken(f"extension {code} is unknown")


def _parsed(blob: bytes) -> Any:
    try:
        return json.loads(blob, object_hook=_constructor)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"its JSON is damaged ({error})") from error


def _constructor(value: dict[str, Any]) -> Any:
    """A JSON constructor as the name and the data that it is; nothing is constructed."""
    path = value.get("id")
    if value.get("type") != "constructor" or "lc" not in value or not isinstance(path, list):
        return value
    *module, name = [str(part) for part in path] or [""]
    arguments = value.get("args")
    single = arguments[0] if isinstance(arguments, list) and len(arguments) == 1 else arguments
    return Named(".".join(module), name, value.get("kwargs") or single or {})
