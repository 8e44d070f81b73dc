"""What may be shown of a secret: that it is there. Used by every page, log line and sentence."""

from __future__ import annotations

import re

MASK = "***"
_URL_PASSWORD = re.compile(r"(//[^\s/:@]*):[^\s]*@")
_NAMED_SECRET = re.compile(
    r"\b(pass(?:word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key)=[^\s&;,]+", re.IGNORECASE
)
_SECRET_KEY = re.compile(
    r"pass(?:word|wd|phrase)|secret|api[_-]?key|access[_-]?key|private[_-]?key|authori[sz]ation"
    r"|credential|bearer|^token$|_token$",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """``text`` without the passwords of the URLs and ``password=…`` pairs in it.

    Takes too much rather than too little: a URL's password reaches to the last ``@``
    before a space, since people do paste unescaped ones.
    """
    if "@" in text and "//" in text:
        text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    if "=" in text:
        text = _NAMED_SECRET.sub(rf"\1={MASK}", text)
    return text


def names_a_secret(key: str) -> bool:
    """Whether what stands under ``key`` is never shown, whatever it looks like."""
    return _SECRET_KEY.search(key) is not None and not key.endswith("_file")
