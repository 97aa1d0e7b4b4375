"""Extracts title, text and links of an HTML page. Scripts are never run.

The standard library's parser takes quadratic time on hostile pages: a hundred seconds
for half a megabyte of `<!--`. This scanner reads tags strictly forward, and accepts
the malformed HTML that browsers accept."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin, urlsplit

from a2a_fabric.tools.toolkit import TimeLimit

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
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9_-]{2,40})", re.IGNORECASE)


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


def read_page(time_limit: TimeLimit, html: str, url: str) -> HtmlPage:
    page = HtmlPage(html, url)
    page.scan(time_limit)
    return page


def find_charset(html: bytes) -> str | None:
    match = _CHARSET.search(html[:2048])
    return match[1].decode() if match else None


def _resolve_link(base: str, href: str | None) -> str | None:
    """The absolute address of a link to another page, without its fragment."""
    try:
        link = urljoin(base, (href or "").strip()).partition("#")[0]
        return link if href and urlsplit(link).scheme in ("http", "https") else None
    except ValueError:
        return None
