"""Tools: percent-encoding."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict
from urllib.parse import quote, unquote

from msgspec import Meta

from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import Patience, in_thread


class URLArguments(Arguments, frozen=True, kw_only=True):
    text: Annotated[str, Meta(max_length=1_000_000, description="The text to encode or decode.")]
    decode: Annotated[bool, Meta(description="Decode instead of encode.")] = False


class URLResult(TypedDict):
    result: str
    operation: Literal["encode", "decode"]
    original_length: int
    result_length: int


async def _url(given: URLArguments, _: Toolbox) -> URLResult:
    return await in_thread(_converted, given)


def _converted(_: Patience, given: URLArguments) -> URLResult:
    try:
        result = unquote(given.text, errors="strict") if given.decode else quote(given.text, safe="")
    except UnicodeError as exc:
        raise tool_error("URL_ENCODE_ERROR", "The text cannot be converted: it is not UTF-8") from exc
    return {
        "result": result,
        "operation": "decode" if given.decode else "encode",
        "original_length": len(given.text),
        "result_length": len(result),
    }


TOOLS = (
    Tool(
        tool_id="encode.url",
        capability="url_encode",
        aliases=("encode",),
        category="encoding",
        display_name="URL encoding",
        description="Percent-encodes a text for use in an address, or decodes it.",
        arguments=URLArguments,
        result=URLResult,
        handler=_url,
    ),
)
