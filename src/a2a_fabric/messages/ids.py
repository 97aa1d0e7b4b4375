"""Ids that follow from others, so that asking for the same twice is asking once."""

from __future__ import annotations

import hashlib

from a2a_fabric.core.message import new_conversation_id


def conversation_for(owner: str, key: str | None) -> str:
    """A new one; the same for a message that is sent twice."""
    return new_conversation_id() if key is None else f"conv_{_digest(owner, key)}"


def delivery_id(message_id: str) -> str:
    """Of the job that brings a message."""
    return f"task_{_digest(message_id)}"


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:32]
