"""Content blocks of every provider's dialect to the blocks of role form.

Text, images, files and sound become what most providers read; calls and results that
providers write among the content become calls and tool messages. A block of any other
type passes unchanged, since a list of blocks can carry it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpointd.domain.plain import Note, fields_of, json_safe, text_of

_CALL_TYPES = ("tool_use", "function_call", "tool_call")
_FRAGMENTS = ("tool_call_chunk", "input_json_delta", "server_tool_call_chunk", "invalid_tool_call")
_TEXT_FIELDS = frozenset({"type", "text"})


@dataclass(slots=True)
class Content:
    """What one message's content turned out to hold."""

    blocks: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls found among the blocks, in role form."""
    results: list[tuple[str, Any]] = field(default_factory=list)
    """Tool results found among the blocks: call id and raw content."""

    @property
    def value(self) -> str | list[dict[str, Any]]:
        """Text where there is nothing but text, else the blocks."""
        if all(block.get("type") == "text" for block in self.blocks):
            return "\n".join(str(block.get("text", "")) for block in self.blocks)
        return self.blocks


def read_content(raw: object, note: Note) -> Content:
    """The content of one message, whatever shape it was stored in."""
    content = Content()
    if raw is None or raw == "":
        return content
    for block in raw if isinstance(raw, list | tuple) else [raw]:
        fields = fields_of(block)
        if fields is None:
            content.blocks.append({"type": "text", "text": _as_text(block, note)})
        else:
            _read_block(fields, content, note)
    return content


def role_form_call(call_id: object, name: object, arguments: object, note: Note) -> dict[str, Any]:
    """One tool call in role form. ``arguments`` is text already, or the value to be written so."""
    text = (
        arguments
        if isinstance(arguments, str)
        else json.dumps(json_safe(arguments, note), ensure_ascii=False)
    )
    return {
        "id": text_of(call_id),
        "type": "function",
        "function": {"name": text_of(name), "arguments": text},
    }


def _read_block(block: Mapping[str, Any], content: Content, note: Note) -> None:
    kind = text_of(block.get("type"))
    if kind in _CALL_TYPES and "name" in block:
        arguments: Any = next((block[k] for k in ("input", "args", "arguments") if k in block), {})
        call_id = block.get("call_id") or block.get("id")
        content.calls.append(role_form_call(call_id, block["name"], arguments, note))
    elif kind == "tool_result":
        content.results.append((text_of(block.get("tool_use_id")), block.get("content")))
        if block.get("is_error"):
            note("tool_status", "error")
    elif kind in _FRAGMENTS:
        note("invalid_tool_call", kind)
    elif kind == "text" and isinstance(block.get("text"), str) and "source_type" not in block:
        if extra := sorted(str(key) for key in block.keys() - _TEXT_FIELDS if block[key]):
            note("block_field", ", ".join(extra))
        content.blocks.append({"type": "text", "text": block["text"]})
    else:
        content.blocks.append(json_safe(_translated(kind, block), note))


def _translated(kind: str, block: Mapping[str, Any]) -> Mapping[str, Any]:
    """``block`` in the common dialect, or itself where there is no common word for it."""
    url = _data_url(block)
    match kind:
        case "image" | "media" | "" if url.startswith("data:image/") or (kind == "image" and url):
            return {"type": "image_url", "image_url": {"url": url}}
        case "file" if "file" not in block and url.startswith("data:"):
            extras = fields_of(block.get("extras")) or fields_of(block.get("metadata")) or {}
            name = block.get("filename") or extras.get("filename")
            return {
                "type": "file",
                "file": {"file_data": url} | ({"filename": name} if name else {}),
            }
        case "file" if "file" not in block and _file_id(block):
            return {"type": "file", "file": {"file_id": _file_id(block)}}
        case "audio" if url.startswith("data:") and text_of(block.get("mime_type")):
            sound = {"data": url.partition(",")[2], "format": block["mime_type"].split("/")[-1]}
            return {"type": "input_audio", "input_audio": sound}
        case _:
            return block


def _data_url(block: Mapping[str, Any]) -> str:
    """Where the data of an image, file or sound is, as one URL; empty if it does not say."""
    source = fields_of(block.get("source")) or {}
    image = fields_of(block.get("image")) or {}
    inner = fields_of(image.get("source")) or {}
    mime = block.get("mime_type") or source.get("media_type")
    if image.get("format"):
        mime = f"image/{image['format']}"
    for data in (block.get("base64"), block.get("data"), source.get("data"), inner.get("bytes")):
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode("ascii")
        if mime and isinstance(data, str):
            return f"data:{mime};base64,{data}"
    return text_of(block.get("url")) or text_of(source.get("url"))


def _file_id(block: Mapping[str, Any]) -> str:
    named = text_of(block.get("file_id"))
    return named or (text_of(block.get("id")) if block.get("source_type") == "id" else "")


def _as_text(value: object, note: Note) -> str:
    """A value that stands where text or a block should: text as it is, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return str(json_safe(value, note))
    return json.dumps(json_safe(value, note), ensure_ascii=False)


def calls_unknown_to(
    known: Sequence[Mapping[str, Any]], found: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Those of ``found`` that are not among ``known`` by id: providers write each call twice."""
    ids = {call["id"] for call in known}
    return [call for call in found if call["id"] not in ids]
