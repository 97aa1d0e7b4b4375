"""Tools: digests and base64."""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from a2a_fabric.tools.encodings import utf8
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox

_ALGORITHMS = ("md5", "sha1", "sha256", "sha512")
_MAX_TEXT = 5_000_000

Text = Annotated[str, Meta(max_length=_MAX_TEXT)]


class HashArguments(Arguments, frozen=True, kw_only=True):
    data: Annotated[Text, Meta(description="The text; its UTF-8 bytes are hashed.")]
    algorithm: Annotated[
        str,
        Meta(description="Which digest; md5 and sha1 are no protection.", extra_json_schema={"enum": [*_ALGORITHMS]}),
    ] = "sha256"


class HashResult(TypedDict):
    hash: str
    algorithm: str
    bytes: int


async def _hash(given: HashArguments, _: Toolbox) -> HashResult:
    name = given.algorithm.lower()
    if name not in _ALGORITHMS:
        raise tool_error("INVALID_ALGORITHM", f"Unknown algorithm {name[:40]!r}; there are {', '.join(_ALGORITHMS)}")
    content = utf8(given.data, "HASH_ERROR")
    digest = hashlib.new(name, content, usedforsecurity=False).hexdigest()
    return {"hash": digest, "algorithm": name, "bytes": len(content)}


class Base64Arguments(Arguments, frozen=True, kw_only=True):
    data: Annotated[Text, Meta(description="The text to encode, or the base64 to decode.")]
    decode: Annotated[bool, Meta(description="Decode instead of encode.")] = False


class Base64Result(TypedDict):
    result: str
    operation: Literal["encode", "decode"]


async def _base64(given: Base64Arguments, _: Toolbox) -> Base64Result:
    content = utf8(given.data, "BASE64_ERROR")
    if not given.decode:
        return {"result": base64.b64encode(content).decode(), "operation": "encode"}
    try:
        decoded = base64.b64decode(content, validate=True)
    except ValueError as exc:
        raise tool_error("BASE64_ERROR", f"The data is not base64: {exc}") from exc
    try:
        return {"result": decoded.decode(), "operation": "decode"}
    except UnicodeDecodeError as exc:
        raise tool_error("BASE64_ERROR", "The decoded data is not UTF-8 text") from exc


TOOLS = (
    Tool(
        tool_id="security.hash",
        capability="hash",
        category="security",
        display_name="Hash",
        description="The digest of a text, in hexadecimal.",
        arguments=HashArguments,
        result=HashResult,
        handler=_hash,
    ),
    Tool(
        tool_id="security.base64",
        capability="base64_encode",
        aliases=("encode",),
        category="security",
        display_name="Base64",
        description="Encodes a text as base64, or decodes it.",
        arguments=Base64Arguments,
        result=Base64Result,
        handler=_base64,
    ),
)
