"""The way to an agent for callers who speak its own protocol, which we then hand through unchanged.

A runtime that can be reached like this has an attribute `tunnel`; a door asks for it
through its context, so neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

# In the data of a JSON-RPC error that stands for an answer that never came: offline, interrupted, refused or gone.
TROUBLE = "a2a-fabric/trouble"

# Each `open` begins a conversation of its own, and yields what the agent says and what is said to it.
Open = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP server: its headers are the node's own credentials, and never those of a caller.

    `open` is for what cannot go through as it is: a conversation in messages instead of bytes.
    """

    uri: str
    headers: Mapping[str, str]
    reply_bytes: int
    open: Open | None = None


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program on stdin and stdout. Each `open` starts one."""

    open: Open


Tunnel = Address | Program
