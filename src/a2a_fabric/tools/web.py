"""The web tools: requests, pages and web search, through the node's guarded client."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict
from urllib.parse import parse_qs, urlencode, urlparse

import msgspec
from msgspec import Meta

from a2a_fabric.tools.computation import Computations, compute
from a2a_fabric.tools.fetch import WebToolRequest, WebToolResponse, fetch, read_page
from a2a_fabric.tools.spec import BuiltinTool, ToolArguments, Toolbox
from a2a_fabric.tools.toolkit import encode_utf8, tool_error

_MAX_BODY = 100_000
_FETCH_TIMEOUT = 30.0
_TEXT_TYPES = ("text/", "application/xhtml", "application/xml", "application/json")
_USER_AGENT = {"user-agent": "a2a-fabric"}

URL = Annotated[str, Meta(max_length=8192)]


class HttpRequestArguments(ToolArguments, frozen=True, kw_only=True):
    url: Annotated[URL, Meta(description="An http or https address.")]
    method: Annotated[
        Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"], Meta(description="The HTTP method.")
    ] = "GET"
    headers: Annotated[dict[str, str], Meta(max_length=100, description="Request headers.")] = {}  # noqa: RUF012  # msgspec copies it
    body: Annotated[Annotated[str, Meta(max_length=1_000_000)] | None, Meta(description="Request body.")] = None
    timeout: Annotated[int, Meta(ge=1, le=300_000, description="Milliseconds.")] = 30_000


class HttpRequestResult(TypedDict):
    status_code: int
    headers: dict[str, str]
    body: str
    elapsed_ms: int
    url: str


async def _send_request(arguments: HttpRequestArguments, toolbox: Toolbox) -> HttpRequestResult:
    body = encode_utf8(arguments.body, "PARSE_ERROR") if arguments.body is not None else None
    request = WebToolRequest(
        method=arguments.method, url=arguments.url, headers=_add_user_agent(arguments.headers), body=body
    )
    started_at = time.monotonic()
    response = await fetch(
        toolbox.web,
        request,
        timeout=arguments.timeout / 1000,
        limit=toolbox.settings.web_max_bytes,
        error_code="REQUEST_ERROR",
    )
    return {
        "status_code": response.status,
        "headers": dict(response.headers),
        "body": response.text[:_MAX_BODY],
        "elapsed_ms": round((time.monotonic() - started_at) * 1000),
        "url": response.url,
    }


def _add_user_agent(headers: dict[str, str]) -> dict[str, str]:
    return headers if any(name.lower() == "user-agent" for name in headers) else {**_USER_AGENT, **headers}


class FetchPageArguments(ToolArguments, frozen=True, kw_only=True):
    url: Annotated[URL, Meta(description="The page's http or https address.")]
    extract_text: Annotated[bool, Meta(description="Whether to return the page's text.")] = True
    max_length: Annotated[int, Meta(ge=0, le=1_000_000, description="Characters of text to return.")] = 50_000


class PageMetadata(TypedDict):
    content_type: str
    length: int


class FetchPageResult(TypedDict):
    title: str | None
    url: str
    links: list[str]
    metadata: PageMetadata
    text: str


async def _fetch_page(arguments: FetchPageArguments, toolbox: Toolbox) -> FetchPageResult:
    response = await fetch(
        toolbox.web,
        WebToolRequest(
            method="GET", url=arguments.url, headers={**_USER_AGENT, "accept": "text/html, text/*;q=0.8, */*;q=0.1"}
        ),
        timeout=_FETCH_TIMEOUT,
        limit=toolbox.settings.web_max_bytes,
        error_code="FETCH_ERROR",
    )
    if response.status >= 400:
        raise tool_error("FETCH_ERROR", f"{response.url[:200]} answered with status {response.status}")
    content_type = response.content_type.lower()
    if content_type and not content_type.startswith(_TEXT_TYPES):
        raise tool_error("FETCH_ERROR", f"{response.url[:200]} is {content_type[:100]}, which is not text")
    return await _build_page_result(response, arguments, toolbox.computations)


async def _build_page_result(
    response: WebToolResponse, arguments: FetchPageArguments, computations: Computations | None
) -> FetchPageResult:
    source = response.text
    page = (
        await compute(computations, len(source), read_page, source, response.url)
        if "html" in response.content_type.lower()
        else None
    )
    text = (page.text if page else source)[: arguments.max_length] if arguments.extract_text else ""
    return {
        "title": page.title if page else None,
        "url": response.url,
        "links": page.links if page else [],
        "metadata": {"content_type": response.content_type, "length": len(source)},
        "text": text,
    }


class ParseUrlArguments(ToolArguments, frozen=True, kw_only=True):
    url: Annotated[URL, Meta(description="Any address.")]


class ParseUrlResult(TypedDict):
    scheme: str
    netloc: str
    path: str
    params: str
    query: dict[str, str | list[str]]
    fragment: str
    hostname: str | None
    port: int | None


async def _parse_url(arguments: ParseUrlArguments, _: Toolbox) -> ParseUrlResult:
    try:
        parts = urlparse(arguments.url)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=1000)
        port = parts.port
    except ValueError as exc:
        raise tool_error("PARSE_ERROR", f"{arguments.url[:200]!r} is not an address: {exc}") from exc
    return {
        "scheme": parts.scheme,
        "netloc": parts.netloc,
        "path": parts.path,
        "params": parts.params,
        "query": {name: values[0] if len(values) == 1 else values for name, values in query.items()},
        "fragment": parts.fragment,
        "hostname": parts.hostname,
        "port": port,
    }


class BraveSearchArguments(ToolArguments, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=400, description="What to look for.")]
    recency_days: Annotated[
        Annotated[int, Meta(ge=1, le=3650)] | None, Meta(description="Not older than this; null for any age.")
    ] = 7
    max_results: Annotated[int, Meta(ge=1, le=20, description="How many results.")] = 5


class WebHit(TypedDict):
    title: str
    url: str
    snippet: str
    age_days: int | None


class BraveSearchResult(TypedDict):
    provider: str
    query: str
    results: list[WebHit]


class _BraveHit(msgspec.Struct):
    title: str = ""
    url: str = ""
    description: str = ""
    page_age: str | None = None


class _BraveWeb(msgspec.Struct):
    results: list[_BraveHit] = []


class _BraveReply(msgspec.Struct):
    web: _BraveWeb | None = None


async def _search_brave(arguments: BraveSearchArguments, toolbox: Toolbox) -> BraveSearchResult:
    today = datetime.now(UTC)
    response = await fetch(
        toolbox.web,
        WebToolRequest(
            method="GET", url=_build_brave_url(arguments, toolbox, today), headers=_build_brave_headers(toolbox)
        ),
        timeout=15.0,
        limit=toolbox.settings.web_max_bytes,
        error_code="SEARCH_ERROR",
        redirects=0,  # the key must reach no other address
    )
    if response.status != 200:
        raise tool_error("SEARCH_ERROR", f"The search service answered with status {response.status}")
    try:
        reply = msgspec.json.decode(response.body, type=_BraveReply)
    except msgspec.MsgspecError as exc:
        raise tool_error("SEARCH_ERROR", f"The search service's answer is not as expected: {exc}") from exc
    hits = reply.web.results if reply.web else []
    results = [_build_hit(hit, today) for hit in hits[: arguments.max_results]]
    return {"provider": "brave", "query": arguments.query, "results": results}


def _build_brave_headers(toolbox: Toolbox) -> dict[str, str]:
    key = toolbox.settings.brave_api_key
    if not key:
        raise tool_error("ACCESS_DENIED", "There is no search key: set tools.brave_api_key: env:NAME in fabric.yaml")
    return {**_USER_AGENT, "accept": "application/json", "x-subscription-token": key}


def _build_brave_url(arguments: BraveSearchArguments, toolbox: Toolbox, today: datetime) -> str:
    parameters: dict[str, Any] = {"q": arguments.query, "count": arguments.max_results}
    if arguments.recency_days is not None:
        since = today - timedelta(days=arguments.recency_days)
        parameters["freshness"] = f"{since:%Y-%m-%d}to{today:%Y-%m-%d}"
    return f"{toolbox.settings.brave_url}?{urlencode(parameters, errors='replace')}"


def _build_hit(hit: _BraveHit, today: datetime) -> WebHit:
    return {
        "title": hit.title,
        "url": hit.url,
        "snippet": hit.description,
        "age_days": _compute_age(hit.page_age, today),
    }


def _compute_age(page_age: str | None, today: datetime) -> int | None:
    try:
        published_at = datetime.fromisoformat(page_age or "")
    except ValueError:
        return None
    return max(0, (today - published_at.replace(tzinfo=published_at.tzinfo or UTC)).days)


TOOLS = (
    BuiltinTool(
        tool_id="web.http_request",
        capability="request",
        category="web",
        display_name="HTTP request",
        description="Sends an HTTP request and returns status, headers and the first 100000 characters of the body.",
        arguments=HttpRequestArguments,
        result=HttpRequestResult,
        handler=_send_request,
        deterministic=False,
        side_effects="writes",
    ),
    BuiltinTool(
        tool_id="web.fetch_page",
        capability="fetch",
        category="web",
        display_name="Fetch a page",
        description="The title, the text and the links of a web page.",
        arguments=FetchPageArguments,
        result=FetchPageResult,
        handler=_fetch_page,
        deterministic=False,
        side_effects="reads",
    ),
    BuiltinTool(
        tool_id="web.parse_url",
        capability="parse_url",
        aliases=("parse",),
        category="web",
        display_name="Parse a URL",
        description="The parts of an address; nothing is requested.",
        arguments=ParseUrlArguments,
        result=ParseUrlResult,
        handler=_parse_url,
    ),
    BuiltinTool(
        tool_id="web.brave_search",
        capability="search",
        category="web",
        display_name="Search the web",
        description="Searches the web with the Brave Search API.",
        arguments=BraveSearchArguments,
        result=BraveSearchResult,
        handler=_search_brave,
        deterministic=False,
        side_effects="reads",
        setting="brave_api_key",
    ),
)
