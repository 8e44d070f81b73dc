"""Whose conversation a thread is: the channels that say so, else the parts of its id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from checkpointd.domain.legacy import Identity
from checkpointd.domain.plain import text_of

_NONE = "_"


def identity_of(thread_id: str, values: Mapping[str, Any]) -> Identity:
    """The identity behind ``tenant:sub-or-_:session``.

    Channels are preferred to splitting the id, since a tenant's name may hold a colon.
    An id of another form is a session as a whole.
    """
    parts = thread_id.split(":", 2)
    tenant, sub, session = parts if len(parts) == 3 else ("", "", thread_id)
    tenant = text_of(values.get("tenant_id")) or tenant
    sub = text_of(values.get("sub_tenant_id")) or sub or _NONE
    if thread_id.startswith(prefix := f"{tenant}:{sub}:"):
        session = thread_id.removeprefix(prefix)
    namespace = text_of(values.get("namespace")) or _NONE
    scope = hashlib.sha256(f"{tenant}:{sub}:{namespace}".encode("utf-8", "surrogatepass"))
    return Identity(
        run_id=text_of(values.get("run_id")),
        session_id=session,
        scope_hash=scope.hexdigest()[:16],
    )
