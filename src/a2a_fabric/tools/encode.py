"""The encoding tools: digests, base64 and percent-encoding."""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated, Literal, TypedDict
from urllib.parse import quote, unquote

from msgspec import Meta

from a2a_fabric.tools.computation import compute
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import TimeLimit, encode_utf8, tool_error

_ALGORITHMS = ("md5", "sha1", "sha256", "sha512")
_MAX_TEXT = 5_000_000

Text = Annotated[str, Meta(max_length=_MAX_TEXT)]


class HashArguments(ToolArguments, frozen=True, kw_only=True):
    data: Annotated[Text, Meta(description="The text; its UTF-8 bytes are hashed.")]
    algorithm: Annotated[
        str,
        Meta(description="Which digest; md5 and sha1 are no protection.", extra_json_schema={"enum": [*_ALGORITHMS]}),
    ] = "sha256"


class HashResult(TypedDict):
    hash: str
    algorithm: str
    bytes: int


async def _hash_text(arguments: HashArguments, _: Toolbox) -> HashResult:
    name = arguments.algorithm.lower()
    if name not in _ALGORITHMS:
        raise tool_error("INVALID_ALGORITHM", f"Unknown algorithm {name[:40]!r}; there are {', '.join(_ALGORITHMS)}")
    content = encode_utf8(arguments.data, "HASH_ERROR")
    digest = hashlib.new(name, content, usedforsecurity=False).hexdigest()
    return {"hash": digest, "algorithm": name, "bytes": len(content)}


class Base64Arguments(ToolArguments, frozen=True, kw_only=True):
    data: Annotated[Text, Meta(description="The text to encode, or the base64 to decode.")]
    decode: Annotated[bool, Meta(description="Decode instead of encode.")] = False


class Base64Result(TypedDict):
    result: str
    operation: Literal["encode", "decode"]


async def _convert_base64(arguments: Base64Arguments, _: Toolbox) -> Base64Result:
    content = encode_utf8(arguments.data, "BASE64_ERROR")
    if not arguments.decode:
        return {"result": base64.b64encode(content).decode(), "operation": "encode"}
    try:
        decoded = base64.b64decode(content, validate=True)
    except ValueError as exc:
        raise tool_error("BASE64_ERROR", f"The data is not base64: {exc}") from exc
    try:
        return {"result": decoded.decode(), "operation": "decode"}
    except UnicodeDecodeError as exc:
        raise tool_error("BASE64_ERROR", "The decoded data is not UTF-8 text") from exc


class URLArguments(ToolArguments, frozen=True, kw_only=True):
    text: Annotated[str, Meta(max_length=1_000_000, description="The text to encode or decode.")]
    decode: Annotated[bool, Meta(description="Decode instead of encode.")] = False


class URLResult(TypedDict):
    result: str
    operation: Literal["encode", "decode"]
    original_length: int
    result_length: int


async def _convert_url(arguments: URLArguments, toolbox: Toolbox) -> URLResult:
    return await compute(toolbox.computations, len(arguments.text), _percent_encode, arguments)


def _percent_encode(_: TimeLimit, arguments: URLArguments) -> URLResult:
    try:
        result = unquote(arguments.text, errors="strict") if arguments.decode else quote(arguments.text, safe="")
    except UnicodeError as exc:
        raise tool_error("URL_ENCODE_ERROR", "The text cannot be converted: it is not UTF-8") from exc
    return {
        "result": result,
        "operation": "decode" if arguments.decode else "encode",
        "original_length": len(arguments.text),
        "result_length": len(result),
    }


TOOLS = (
    BuiltinTool(
        tool_id="security.hash",
        capability="hash",
        category="security",
        display_name="Hash",
        description="The digest of a text, in hexadecimal.",
        arguments=HashArguments,
        result=HashResult,
        handler=_hash_text,
    ),
    BuiltinTool(
        tool_id="security.base64",
        capability="base64_encode",
        aliases=("encode",),
        category="security",
        display_name="Base64",
        description="Encodes a text as base64, or decodes it.",
        arguments=Base64Arguments,
        result=Base64Result,
        handler=_convert_base64,
    ),
    BuiltinTool(
        tool_id="encode.url",
        capability="url_encode",
        aliases=("encode",),
        category="encoding",
        display_name="URL encoding",
        description="Percent-encodes a text for use in an address, or decodes it.",
        arguments=URLArguments,
        result=URLResult,
        handler=_convert_url,
    ),
)
