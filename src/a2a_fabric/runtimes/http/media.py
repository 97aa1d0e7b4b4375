"""Bodies by media type: a reply as a result, and forms with files.

JSON becomes the result as it is, text becomes the answer, and any other type becomes a part."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from email.message import Message
from urllib.parse import unquote

import msgspec

from a2a_fabric.core.call import part_kind_from_mime_type
from a2a_fabric.core.result import Part, Result, to_json_object
from a2a_fabric.outbound.port import HTTPReply
from a2a_fabric.runtimes.upstream import decode_json, read_json_excerpt, to_single_line

_TEXT_TYPES = ("text/", "application/xml", "application/yaml", "application/x-yaml", "application/x-ndjson")


def read_media_type(reply: HTTPReply) -> str:
    """The media type in lower case, without parameters; empty if the server sends none."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json_type(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def result_from_media(reply: HTTPReply) -> Result:
    """Raises UpstreamFailed for invalid JSON."""
    kind = read_media_type(reply)
    if not reply.body:
        return Result(data={})
    if is_json_type(kind):
        return Result(data=to_json_object(decode_json(reply.body)))
    if kind.startswith(_TEXT_TYPES) or kind.endswith("+xml"):
        return Result(data={"answer": decode_text(reply)})
    if kind:
        return Result(data={}, parts=(_part_from_reply(reply, kind),))
    return _guess_result(reply)


def decode_text(reply: HTTPReply) -> str:
    charset = _read_header_parameter(reply.headers.get("content-type", ""), "charset") or "utf-8"
    try:
        return reply.body.decode(charset, "replace")
    except LookupError:
        return reply.body.decode("utf-8", "replace")


def _part_from_reply(reply: HTTPReply, kind: str) -> Part:
    return Part(
        kind=part_kind_from_mime_type(kind),
        blob=b64encode(reply.body).decode(),
        mime_type=kind,
        name=_read_filename(reply),
    )


def _read_filename(reply: HTTPReply) -> str | None:
    """The file's name, without any folder that the server puts before it."""
    filename = _read_header_parameter(reply.headers.get("content-disposition", ""), "filename") or ""
    return re.split(r"[/\\]", filename)[-1][:255] or None


def _read_header_parameter(header: str, name: str) -> str | None:
    message = Message()
    message["x"] = header.replace("\r", "").replace("\n", "")[:2000]
    value = message.get_param(name, header="x")
    if isinstance(value, tuple):  # RFC 2231: charset, language, value
        return unquote(value[2], value[0] or "utf-8", "replace")
    return value or None


def _guess_result(reply: HTTPReply) -> Result:
    """The result of a reply without a media type."""
    try:
        return Result(data=to_json_object(msgspec.json.decode(reply.body)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return Result(data={"answer": reply.body.decode()})
    except UnicodeDecodeError:
        return Result(data={}, parts=(_part_from_reply(reply, "application/octet-stream"),))


def read_excerpt(reply: HTTPReply) -> str:
    """The text of an error page in one short line; empty if it is HTML."""
    kind = read_media_type(reply)
    if is_json_type(kind) or reply.body[:1] in (b"{", b"["):
        return read_json_excerpt(reply.body)
    if kind == "text/html" or not (kind.startswith("text/") or not kind):
        return ""
    first, _, _ = decode_text(reply).strip().partition("\n")
    return to_single_line(first)


class MultipartField(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    content: bytes
    media_type: str | None = None
    filename: str | None = None


def encode_multipart(fields: list[MultipartField]) -> tuple[str, bytes]:
    """The content type and the body."""
    boundary = secrets.token_hex(16)
    pieces = [piece for field in fields for piece in (_encode_head(field, boundary), field.content, b"\r\n")]
    return f"multipart/form-data; boundary={boundary}", b"".join([*pieces, f"--{boundary}--\r\n".encode()])


def _encode_head(field: MultipartField, boundary: str) -> bytes:
    lines = [f"--{boundary}", f'Content-Disposition: form-data; name="{_quote(field.name)}"']
    if field.filename is not None:
        lines[1] += f'; filename="{_quote(field.filename)}"'
    if field.media_type:
        lines.append(f"Content-Type: {_quote(field.media_type)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")


def _quote(text: str) -> str:
    """Quote a name as browsers do, so that it cannot end its header."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
