"""What would be changed in one client's file: worked out as text, written by whoever asked."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from a2a_fabric.connecting import json_text, toml_text
from a2a_fabric.connecting.clients import TOKEN_INPUT, TOKEN_VARIABLE, Client
from a2a_fabric.connecting.json_text import JSONText
from a2a_fabric.connecting.toml_text import TOMLText

Action = Literal["connected", "updated", "already connected", "disconnected", "not connected"]


_MARKS = ("a2a-fabric", "a2a_fabric", TOKEN_VARIABLE, TOKEN_INPUT)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the new text; empty: nothing but our entry was in the file; None: it stays as it is."""

    action: Action
    text: str | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: dict[str, Any]
    inputs: tuple[dict[str, Any], ...] = ()


def snippet(client: Client, entry: Entry) -> str:
    write = toml_text.snippet if client.is_toml else json_text.snippet
    return write(entry.name, entry.value, client.key, entry.inputs)


def with_entry(client: Client, entry: Entry, text: str, path: str) -> Change:
    file = _file(client, text, path)
    present = file.entry(entry.name)
    if present == entry.value:
        return Change(action="already connected")
    action: Action = "connected" if present is None else "updated"
    return Change(action=action, text=file.having(entry.name, entry.value, entry.inputs))


def without_entry(client: Client, name: str, text: str, before: str | None, path: str) -> Change:
    """Without our entry, or with the one that stood in its place before."""
    file = _file(client, text, path)
    if file.entry(name) is None:
        return Change(action="not connected")
    earlier = _file(client, before, path).entry(name) if before is not None else None
    if earlier is not None and not _is_ours(earlier):
        return Change(action="disconnected", text=file.having(name, earlier))
    return Change(action="disconnected", text=file.without(name, client.inputs))


def _is_ours(entry: dict[str, Any]) -> bool:
    """Whether an earlier `connect` wrote it."""
    text = str(entry)
    return any(mark in text for mark in _MARKS)


def _file(client: Client, text: str, path: str) -> JSONText | TOMLText:
    return TOMLText(text, path, client.key) if client.is_toml else JSONText(text, path, client.key)
