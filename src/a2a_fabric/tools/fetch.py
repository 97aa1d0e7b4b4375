"""HTTP requests of the web tools: through the guarded client only, with bounded replies.

The client never follows a redirect itself; this module does, so each hop passes the
guard again and credentials for one site are not sent to another. The title, text and links of an HTML page
are extracted here; scripts are never run. The standard library's parser takes quadratic time on hostile pages:
a hundred seconds for half a megabyte of `<!--`. This scanner reads tags strictly forward, and accepts the
malformed HTML that browsers accept."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from html import unescape
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from a2a_fabric.core.errors import FabricError
from a2a_fabric.outbound.port import AddressRefused, DeadlineExceeded, HTTPClient, OutboundError
from a2a_fabric.tools.toolkit import TimeLimit, find_encoding, tool_error

MAX_LINKS = 50
_MAX_TAG = 10_000
_RAW_TAGS = frozenset({"script", "style", "textarea", "title", "template", "noscript", "iframe"})
_BLOCK_TAGS = frozenset(
    {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table", "ul", "ol"}
)
_NAME = re.compile(r"[A-Za-z][^\s/>]*")
_ATTRIBUTE = re.compile(
    r"[\s/]*(?P<name>[^\s/>=]+)(?:\s*=\s*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s>]*)))?"
)
_BLANKS = re.compile(r"[^\S\n]+")
_GAPS = re.compile(r" ?\n[ \n]*")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9_-]{2,40})", re.IGNORECASE)


class PageContent(NamedTuple):
    title: str | None
    text: str
    links: list[str]


class HtmlPage:
    def __init__(self, html: str, url: str) -> None:
        self.title: str | None = None
        self.links: list[str] = []
        self._html = html
        self._base = url
        self._fragments: list[str] = []

    @property
    def text(self) -> str:
        return _GAPS.sub("\n", _BLANKS.sub(" ", "".join(self._fragments))).strip()

    def scan(self, time_limit: TimeLimit) -> None:
        at = 0
        while at < len(self._html):
            time_limit.check()
            tag_start = self._html.find("<", at)
            if tag_start < 0:
                tag_start = len(self._html)
            if tag_start > at:
                self._fragments.append(unescape(self._html[at:tag_start]))
            at = self._scan_markup(tag_start)

    def _scan_markup(self, at: int) -> int:
        """Read a tag or comment and return where it ends; one that is never closed ends with the page."""
        html = self._html
        if html.startswith("<!--", at):
            return self._find_end("-->", at + 2)
        if html.startswith(("<!", "<?"), at):
            return self._find_end(">", at)
        closing = html.startswith("</", at)
        name = _NAME.match(html, at + 1 + closing, at + 100)
        if name is None:
            self._fragments.append(html[at : at + 1])
            return at + 1
        tag = name[0].lower()
        if tag in _BLOCK_TAGS:
            self._fragments.append("\n")
        return self._find_end(">", at) if closing else self._scan_tag(tag, name.end())

    def _scan_tag(self, tag: str, at: int) -> int:
        attributes, at = self._scan_attributes(at)
        if tag == "a":
            self._add_link(attributes.get("href"))
        elif tag == "base":
            self._base = _resolve_link(self._base, attributes.get("href")) or self._base
        return self._skip_raw(tag, at) if tag in _RAW_TAGS else at

    def _scan_attributes(self, at: int) -> tuple[dict[str, str], int]:
        attributes: dict[str, str] = {}
        end = min(len(self._html), at + _MAX_TAG)
        while match := _ATTRIBUTE.match(self._html, at, end):
            value = match["double"] or match["single"] or match["bare"] or ""
            attributes.setdefault(match["name"].lower(), unescape(value))
            at = match.end()
        return attributes, self._find_end(">", at)

    def _skip_raw(self, tag: str, at: int) -> int:
        """Skip an element whose content is not text of the page; a title is recorded."""
        closing = re.compile(f"</{tag}(?=[\\s/>])", re.IGNORECASE).search(self._html, at)
        end = closing.start() if closing else len(self._html)
        if tag == "title" and self.title is None:
            self.title = " ".join(unescape(self._html[at:end]).split()) or None
        return self._find_end(">", end)

    def _find_end(self, terminator: str, at: int) -> int:
        index = self._html.find(terminator, at)
        return len(self._html) if index < 0 else index + len(terminator)

    def _add_link(self, href: str | None) -> None:
        if len(self.links) < MAX_LINKS:
            link = _resolve_link(self._base, href)
            if link and link not in self.links:
                self.links.append(link)


def read_page(time_limit: TimeLimit, html: str, url: str) -> PageContent:
    page = HtmlPage(html, url)
    page.scan(time_limit)
    return PageContent(page.title, page.text, page.links)


def find_charset(html: bytes) -> str | None:
    match = _META_CHARSET.search(html[:2048])
    return match[1].decode() if match else None


def _resolve_link(base: str, href: str | None) -> str | None:
    """The absolute address of a link to another page, without its fragment."""
    try:
        link = urljoin(base, (href or "").strip()).partition("#")[0]
        return link if href and urlsplit(link).scheme in ("http", "https") else None
    except ValueError:
        return None


MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_LIMIT = 1 << 40  # `_send` stops reading at its own limit; the client would drop the whole reply
_FORWARDED_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent"})  # sent to another site too
_FORBIDDEN_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"}
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f\\]")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CHARSET = re.compile(r"charset\s*=\s*\"?([A-Za-z0-9_-]{2,40})", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


class WebToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class WebToolResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The last response of a chain of redirects, with its body up to the limit."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def text(self) -> str:
        match = _CHARSET.search(self.content_type)
        charset = match[1] if match else find_charset(self.body)
        return self.body.decode(find_encoding(charset or "utf-8") or "utf-8", "replace")


async def fetch(
    client: HTTPClient,
    request: WebToolRequest,
    *,
    timeout: float,
    limit: int,
    error_code: str,
    redirects: int = MAX_REDIRECTS,
) -> WebToolResponse:
    """Raises ACCESS_DENIED, PARSE_ERROR (a bad address or header), TIMEOUT, or `error_code` for the rest."""
    deadline = time.monotonic() + timeout
    check_headers(request.headers)
    for _ in range(redirects + 1):
        check_url(request.url)
        response = await _send(client, request, deadline - time.monotonic(), limit, error_code)
        location = response.headers.get("location")
        if response.status not in _REDIRECTS or not location or not redirects:
            return response
        request = build_redirect(request, response.status, location)
    raise tool_error(error_code, f"More than {redirects} redirects")


async def _send(
    client: HTTPClient, request: WebToolRequest, timeout: float, limit: int, error_code: str
) -> WebToolResponse:
    try:
        if timeout <= 0:
            raise DeadlineExceeded("the time is up")
        async with client.stream(
            request.method, request.url, headers=request.headers, body=request.body, timeout=timeout, limit=_NO_LIMIT
        ) as reply:
            body = bytearray()
            async for chunk in reply.chunks():
                body += chunk
                if len(body) >= limit:
                    break
            return WebToolResponse(
                url=request.url, status=reply.status, headers=dict(reply.headers), body=bytes(body[:limit])
            )
    except OutboundError as exc:
        raise _translate_error(exc, request.url, error_code) from exc


def _translate_error(exc: OutboundError, url: str, error_code: str) -> FabricError:
    host = urlsplit(url).hostname
    if isinstance(exc, AddressRefused):
        return tool_error("ACCESS_DENIED", f"{host} may not be reached; to allow it, list it in tools.web_allow")
    if isinstance(exc, DeadlineExceeded):
        return tool_error("TIMEOUT", f"{host} did not answer in time")
    return tool_error(error_code, f"{host}: {str(exc)[:200] or type(exc).__name__}")


def build_redirect(request: WebToolRequest, status: int, location: str) -> WebToolRequest:
    """The request that a redirect asks for. Another origin gets no credentials and no secret headers."""
    try:
        url = urljoin(request.url, location)
        same_origin = _origin_from_url(urlsplit(url)) == _origin_from_url(urlsplit(request.url))
    except ValueError as exc:
        raise tool_error("PARSE_ERROR", f"The server redirects to {location[:200]!r}, which is not an address") from exc
    headers = request.headers
    if not same_origin:
        headers = {name: value for name, value in headers.items() if name.lower() in _FORWARDED_HEADERS}
    becomes_get = status == 303 or (status in (301, 302) and request.method == "POST")
    if becomes_get and request.method != "HEAD":
        headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
        return WebToolRequest(method="GET", url=url, headers=headers)
    return WebToolRequest(method=request.method, url=url, headers=headers, body=request.body)


def _origin_from_url(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or _UNPRINTABLE.search(url):
        raise tool_error("PARSE_ERROR", f"{url[:200]!r} is not an http or https address")
    if "@" in parts.netloc:
        raise tool_error("PARSE_ERROR", "The address holds credentials; send them in a header")


def check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or _CONTROLS.search(value) or len(value) > 8192:
            raise tool_error("PARSE_ERROR", f"The header {name[:100]!r} is not well-formed")
        if name.lower() in _FORBIDDEN_HEADERS:
            raise tool_error("PARSE_ERROR", f"The header {name!r} is set by the gateway itself")
