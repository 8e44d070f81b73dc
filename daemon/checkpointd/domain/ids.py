"""What an id may be: the one rule that every room applies before an id reaches a key."""

from __future__ import annotations

import unicodedata

from checkpointd.domain.errors import InvalidIdError

MAX_ID_BYTES = 512


def check_id(value: str, *, what: str) -> str:
    """Return ``value`` if it may name something, else raise ``InvalidIdError``.

    An id is non-empty text of at most 512 UTF-8 bytes without control characters
    (category Cc) or lone surrogates. Anything else goes, since ids are made by
    applications: braces, quotes, spaces and joined emoji are all seen.
    The absence of control characters is what lets the store use them as separators.
    """
    if not isinstance(value, str):
        raise InvalidIdError(what, repr(type(value).__name__), "it is not text")
    if not value:
        raise InvalidIdError(what, value, "it is empty")
    if len(value) > MAX_ID_BYTES:
        raise InvalidIdError(what, value, f"it is longer than {MAX_ID_BYTES} UTF-8 bytes")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidIdError(what, value, "it holds a lone surrogate") from None
    if size > MAX_ID_BYTES:
        raise InvalidIdError(what, value, f"it is longer than {MAX_ID_BYTES} UTF-8 bytes")
    if not value.isprintable() and any(unicodedata.category(c) == "Cc" for c in value):
        raise InvalidIdError(what, value, "it holds a control character")
    return value
