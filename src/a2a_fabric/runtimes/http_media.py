"""A reply of any media type as a result: JSON as it is, words as the answer, everything else as a part."""

from __future__ import annotations

import re
from base64 import b64encode
from email.message import Message
from typing import Any
from urllib.parse import unquote

import msgspec

from a2a_fabric.core.content import kind_of
from a2a_fabric.core.part import Part
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.outbound.port import Reply
from a2a_fabric.runtimes.http_exchange import json_of

_WORDS = ("text/", "application/xml", "application/yaml", "application/x-yaml", "application/x-ndjson")
_EXCERPT = 300
_REASONS = ("message", "detail", "error_description", "reason", "title", "error", "errors")
_TAG = re.compile(r"<[^>]*>")


def media_type(reply: Reply) -> str:
    """Without its parameters, in lower case; empty if the server names none."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def result_of(reply: Reply) -> Result:
    """Raises UpstreamFailed for JSON that is none."""
    kind = media_type(reply)
    if not reply.body:
        return Result(data={})
    if is_json(kind):
        return Result(data=as_object(json_of(reply.body)))
    if kind.startswith(_WORDS) or kind.endswith("+xml"):
        return Result(data={"answer": text_of(reply)})
    if kind:
        return Result(data={}, parts=(_part(reply, kind),))
    return _guessed(reply)


def text_of(reply: Reply) -> str:
    charset = _parameter(reply.headers.get("content-type", ""), "charset") or "utf-8"
    try:
        return reply.body.decode(charset, "replace")
    except LookupError:
        return reply.body.decode("utf-8", "replace")


def _part(reply: Reply, kind: str) -> Part:
    return Part(kind=kind_of(kind), blob=b64encode(reply.body).decode(), mime_type=kind, name=_name(reply))


def _name(reply: Reply) -> str | None:
    """The file's name, without any folder that the server may want it in."""
    named = _parameter(reply.headers.get("content-disposition", ""), "filename") or ""
    return re.split(r"[/\\]", named)[-1][:255] or None


def _parameter(header: str, name: str) -> str | None:
    message = Message()
    message["x"] = header.replace("\r", "").replace("\n", "")[:2000]
    found = message.get_param(name, header="x")
    if isinstance(found, tuple):  # RFC 2231: charset, language, value
        return unquote(found[2], found[0] or "utf-8", "replace")
    return found or None


def _guessed(reply: Reply) -> Result:
    """The server does not say what it is."""
    try:
        return Result(data=as_object(msgspec.json.decode(reply.body)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return Result(data={"answer": reply.body.decode()})
    except UnicodeDecodeError:
        return Result(data={}, parts=(_part(reply, "application/octet-stream"),))


def excerpt(reply: Reply) -> str:
    """What an error page says, in one short line; nothing if it is made for browsers."""
    kind = media_type(reply)
    if is_json(kind) or reply.body[:1] in (b"{", b"["):
        try:
            return _line(reason_in(msgspec.json.decode(reply.body)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
    if kind == "text/html" or not (kind.startswith("text/") or not kind):
        return ""
    first, _, _ = text_of(reply).strip().partition("\n")
    return _line(first)


def reason_in(value: Any) -> str:
    """The sentence in an error object, wherever APIs usually put it."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in _REASONS:
            if value.get(name):
                return reason_in(value[name])
    return msgspec.json.encode(value).decode() if value else ""


def _line(text: str) -> str:
    return " ".join(_TAG.sub(" ", text[: 4 * _EXCERPT]).split())[:_EXCERPT]
