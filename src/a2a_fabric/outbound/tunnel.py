"""The way to an agent for callers who speak its own protocol, which we then hand through unchanged.

A runtime that can be reached like this has an attribute `tunnel`; a door asks for it
through its context, so neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP server: its headers are the node's own credentials, and never those of a caller."""

    uri: str
    headers: Mapping[str, str]
    reply_bytes: int


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program on stdin and stdout. Each `open` starts one, and yields what it says and what is said to it."""

    open: Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]


Tunnel = Address | Program
