"""Tools: the web, through the node's guarded client."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict
from urllib.parse import parse_qs, urlencode, urlparse

import msgspec
from msgspec import Meta

from a2a_fabric.tools.encodings import utf8
from a2a_fabric.tools.fetch import Answer, Request, fetch
from a2a_fabric.tools.page import read_page
from a2a_fabric.tools.spec import Arguments, Tool, tool_error
from a2a_fabric.tools.toolbox import Toolbox
from a2a_fabric.tools.work import in_thread

_MAX_BODY = 100_000
_FETCH_TIMEOUT = 30.0
_READABLE = ("text/", "application/xhtml", "application/xml", "application/json")
_AGENT = {"user-agent": "a2a-fabric"}

URL = Annotated[str, Meta(max_length=8192)]


class RequestArguments(Arguments, frozen=True, kw_only=True):
    url: Annotated[URL, Meta(description="An http or https address.")]
    method: Annotated[
        Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"], Meta(description="The HTTP method.")
    ] = "GET"
    headers: Annotated[dict[str, str], Meta(max_length=100, description="Request headers.")] = {}  # noqa: RUF012  # msgspec copies it
    body: Annotated[Annotated[str, Meta(max_length=1_000_000)] | None, Meta(description="Request body.")] = None
    timeout: Annotated[int, Meta(ge=1, le=300_000, description="Milliseconds.")] = 30_000


class RequestResult(TypedDict):
    status_code: int
    headers: dict[str, str]
    body: str
    elapsed_ms: int
    url: str


async def _request(given: RequestArguments, toolbox: Toolbox) -> RequestResult:
    body = utf8(given.body, "PARSE_ERROR") if given.body is not None else None
    request = Request(method=given.method, url=given.url, headers=_with_agent(given.headers), body=body)
    started = time.monotonic()
    answer = await fetch(
        toolbox.web,
        request,
        timeout=given.timeout / 1000,
        limit=toolbox.settings.web_max_bytes,
        failing_as="REQUEST_ERROR",
    )
    return {
        "status_code": answer.status,
        "headers": dict(answer.headers),
        "body": answer.text[:_MAX_BODY],
        "elapsed_ms": round((time.monotonic() - started) * 1000),
        "url": answer.url,
    }


def _with_agent(headers: dict[str, str]) -> dict[str, str]:
    return headers if any(name.lower() == "user-agent" for name in headers) else {**_AGENT, **headers}


class FetchArguments(Arguments, frozen=True, kw_only=True):
    url: Annotated[URL, Meta(description="The page's http or https address.")]
    extract_text: Annotated[bool, Meta(description="Whether the page's words are wanted.")] = True
    max_length: Annotated[int, Meta(ge=0, le=1_000_000, description="Characters of text to return.")] = 50_000


class PageMetadata(TypedDict):
    content_type: str
    length: int


class FetchResult(TypedDict):
    title: str | None
    url: str
    links: list[str]
    metadata: PageMetadata
    text: str


async def _fetch_page(given: FetchArguments, toolbox: Toolbox) -> FetchResult:
    answer = await fetch(
        toolbox.web,
        Request(method="GET", url=given.url, headers={**_AGENT, "accept": "text/html, text/*;q=0.8, */*;q=0.1"}),
        timeout=_FETCH_TIMEOUT,
        limit=toolbox.settings.web_max_bytes,
        failing_as="FETCH_ERROR",
    )
    if answer.status >= 400:
        raise tool_error("FETCH_ERROR", f"{answer.url[:200]} answered with status {answer.status}")
    kind = answer.content_type.lower()
    if kind and not kind.startswith(_READABLE):
        raise tool_error("FETCH_ERROR", f"{answer.url[:200]} is {kind[:100]}, which is not text")
    return await _read(answer, given)


async def _read(answer: Answer, given: FetchArguments) -> FetchResult:
    source = answer.text
    page = await in_thread(read_page, source, answer.url) if "html" in answer.content_type.lower() else None
    text = (page.text if page else source)[: given.max_length] if given.extract_text else ""
    return {
        "title": page.title if page else None,
        "url": answer.url,
        "links": page.links if page else [],
        "metadata": {"content_type": answer.content_type, "length": len(source)},
        "text": text,
    }


class ParseArguments(Arguments, frozen=True, kw_only=True):
    url: Annotated[URL, Meta(description="Any address.")]


class ParseResult(TypedDict):
    scheme: str
    netloc: str
    path: str
    params: str
    query: dict[str, str | list[str]]
    fragment: str
    hostname: str | None
    port: int | None


async def _parse_url(given: ParseArguments, _: Toolbox) -> ParseResult:
    try:
        parts = urlparse(given.url)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=1000)
        port = parts.port
    except ValueError as exc:
        raise tool_error("PARSE_ERROR", f"{given.url[:200]!r} is not an address: {exc}") from exc
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


class SearchArguments(Arguments, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=400, description="What to look for.")]
    recency_days: Annotated[
        Annotated[int, Meta(ge=1, le=3650)] | None, Meta(description="Not older than this; null for any age.")
    ] = 7
    max_results: Annotated[int, Meta(ge=1, le=20, description="How many results.")] = 5


class Hit(TypedDict):
    title: str
    url: str
    snippet: str
    age_days: int | None


class SearchResult(TypedDict):
    provider: str
    query: str
    results: list[Hit]


class _BraveHit(msgspec.Struct):
    title: str = ""
    url: str = ""
    description: str = ""
    page_age: str | None = None


class _BraveWeb(msgspec.Struct):
    results: list[_BraveHit] = []


class _BraveReply(msgspec.Struct):
    web: _BraveWeb | None = None


async def _brave_search(given: SearchArguments, toolbox: Toolbox) -> SearchResult:
    today = datetime.now(UTC)
    answer = await fetch(
        toolbox.web,
        Request(method="GET", url=_brave_url(given, toolbox, today), headers=_brave_headers(toolbox)),
        timeout=15.0,
        limit=toolbox.settings.web_max_bytes,
        failing_as="SEARCH_ERROR",
        redirects=0,  # the key goes to that address only
    )
    if answer.status != 200:
        raise tool_error("SEARCH_ERROR", f"The search service answered with status {answer.status}")
    try:
        found = msgspec.json.decode(answer.body, type=_BraveReply)
    except msgspec.MsgspecError as exc:
        raise tool_error("SEARCH_ERROR", f"The search service's answer is not as expected: {exc}") from exc
    hits = found.web.results if found.web else []
    results = [_hit(hit, today) for hit in hits[: given.max_results]]
    return {"provider": "brave", "query": given.query, "results": results}


def _brave_headers(toolbox: Toolbox) -> dict[str, str]:
    key = toolbox.settings.brave_api_key
    if not key:
        raise tool_error("ACCESS_DENIED", "There is no search key: set tools.brave_api_key: env:NAME in fabric.yaml")
    return {**_AGENT, "accept": "application/json", "x-subscription-token": key}


def _brave_url(given: SearchArguments, toolbox: Toolbox, today: datetime) -> str:
    asked: dict[str, Any] = {"q": given.query, "count": given.max_results}
    if given.recency_days is not None:
        since = today - timedelta(days=given.recency_days)
        asked["freshness"] = f"{since:%Y-%m-%d}to{today:%Y-%m-%d}"
    return f"{toolbox.settings.brave_url}?{urlencode(asked, errors='replace')}"


def _hit(hit: _BraveHit, today: datetime) -> Hit:
    return {"title": hit.title, "url": hit.url, "snippet": hit.description, "age_days": _age(hit.page_age, today)}


def _age(page_age: str | None, today: datetime) -> int | None:
    try:
        dated = datetime.fromisoformat(page_age or "")
    except ValueError:
        return None
    return max(0, (today - dated.replace(tzinfo=dated.tzinfo or UTC)).days)


TOOLS = (
    Tool(
        tool_id="web.http_request",
        capability="request",
        category="web",
        display_name="HTTP request",
        description="Sends an HTTP request and returns status, headers and the first 100000 characters of the body.",
        arguments=RequestArguments,
        result=RequestResult,
        handler=_request,
        deterministic=False,
        side_effects="writes",
    ),
    Tool(
        tool_id="web.fetch_page",
        capability="fetch",
        category="web",
        display_name="Fetch a page",
        description="The title, the words and the links of a web page.",
        arguments=FetchArguments,
        result=FetchResult,
        handler=_fetch_page,
        deterministic=False,
        side_effects="reads",
    ),
    Tool(
        tool_id="web.parse_url",
        capability="parse_url",
        aliases=("parse",),
        category="web",
        display_name="Parse a URL",
        description="The parts of an address; nothing is requested.",
        arguments=ParseArguments,
        result=ParseResult,
        handler=_parse_url,
    ),
    Tool(
        tool_id="web.brave_search",
        capability="search",
        category="web",
        display_name="Search the web",
        description="Searches the web with the Brave Search API.",
        arguments=SearchArguments,
        result=SearchResult,
        handler=_brave_search,
        deterministic=False,
        side_effects="reads",
        setting="brave_api_key",
    ),
)
