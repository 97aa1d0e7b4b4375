"""A form with files, as `multipart/form-data`."""

from __future__ import annotations

import secrets

import msgspec


class Field(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    content: bytes
    media_type: str | None = None
    filename: str | None = None


def encoded(fields: list[Field]) -> tuple[str, bytes]:
    """The content type and the body."""
    boundary = secrets.token_hex(16)
    pieces = [piece for field in fields for piece in (_head(field, boundary), field.content, b"\r\n")]
    return f"multipart/form-data; boundary={boundary}", b"".join([*pieces, f"--{boundary}--\r\n".encode()])


def _head(field: Field, boundary: str) -> bytes:
    lines = [f"--{boundary}", f'Content-Disposition: form-data; name="{_quoted(field.name)}"']
    if field.filename is not None:
        lines[1] += f'; filename="{_quoted(field.filename)}"'
    if field.media_type:
        lines.append(f"Content-Type: {_quoted(field.media_type)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")


def _quoted(text: str) -> str:
    """As browsers do, so that nothing in a name can end its header."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
