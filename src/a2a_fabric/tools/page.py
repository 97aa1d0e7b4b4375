"""What a person sees of an HTML page: its title, its words, its links. No script is ever run.

The standard library's parser takes quadratic time on pages made for it (a
hundred seconds for half a megabyte of `<!--`), and pages come from strangers; so this
reads tags by itself, strictly forward, and forgives what browsers forgive.
"""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin, urlsplit

from a2a_fabric.tools.work import Patience

MAX_LINKS = 50
_MAX_TAG = 10_000
_RAW = frozenset({"script", "style", "textarea", "title", "template", "noscript", "iframe"})
_BLOCKS = frozenset(
    {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table", "ul", "ol"}
)
_NAME = re.compile(r"[A-Za-z][^\s/>]*")
_ATTRIBUTE = re.compile(
    r"[\s/]*(?P<name>[^\s/>=]+)(?:\s*=\s*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s>]*)))?"
)
_BLANKS = re.compile(r"[^\S\n]+")
_GAPS = re.compile(r" ?\n[ \n]*")
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9_-]{2,40})", re.IGNORECASE)


class Page:
    def __init__(self, html: str, url: str) -> None:
        self.title: str | None = None
        self.links: list[str] = []
        self._html = html
        self._base = url
        self._words: list[str] = []

    @property
    def text(self) -> str:
        return _GAPS.sub("\n", _BLANKS.sub(" ", "".join(self._words))).strip()

    def read(self, patience: Patience) -> None:
        at = 0
        while at < len(self._html):
            patience.check()
            opening = self._html.find("<", at)
            if opening < 0:
                opening = len(self._html)
            if opening > at:
                self._words.append(unescape(self._html[at:opening]))
            at = self._markup(opening)

    def _markup(self, at: int) -> int:
        """Behind the tag or comment that starts here; what never ends goes on to the end of the page."""
        html = self._html
        if html.startswith("<!--", at):
            return self._behind("-->", at + 2)
        if html.startswith(("<!", "<?"), at):
            return self._behind(">", at)
        closing = html.startswith("</", at)
        name = _NAME.match(html, at + 1 + closing, at + 100)
        if name is None:
            self._words.append(html[at : at + 1])
            return at + 1
        tag = name[0].lower()
        if tag in _BLOCKS:
            self._words.append("\n")
        return self._behind(">", at) if closing else self._tag(tag, name.end())

    def _tag(self, tag: str, at: int) -> int:
        attributes, at = self._attributes(at)
        if tag == "a":
            self._link(attributes.get("href"))
        elif tag == "base":
            self._base = _joined(self._base, attributes.get("href")) or self._base
        return self._raw(tag, at) if tag in _RAW else at

    def _attributes(self, at: int) -> tuple[dict[str, str], int]:
        found: dict[str, str] = {}
        end = min(len(self._html), at + _MAX_TAG)
        while match := _ATTRIBUTE.match(self._html, at, end):
            value = match["double"] or match["single"] or match["bare"] or ""
            found.setdefault(match["name"].lower(), unescape(value))
            at = match.end()
        return found, self._behind(">", at)

    def _raw(self, tag: str, at: int) -> int:
        """Skip what is no text of the page, up to its closing tag; only a title is looked at."""
        closing = re.compile(f"</{tag}(?=[\\s/>])", re.IGNORECASE).search(self._html, at)
        end = closing.start() if closing else len(self._html)
        if tag == "title" and self.title is None:
            self.title = " ".join(unescape(self._html[at:end]).split()) or None
        return self._behind(">", end)

    def _behind(self, mark: str, at: int) -> int:
        found = self._html.find(mark, at)
        return len(self._html) if found < 0 else found + len(mark)

    def _link(self, href: str | None) -> None:
        if len(self.links) < MAX_LINKS:
            link = _joined(self._base, href)
            if link and link not in self.links:
                self.links.append(link)


def read_page(patience: Patience, html: str, url: str) -> Page:
    page = Page(html, url)
    page.read(patience)
    return page


def declared_charset(html: bytes) -> str | None:
    found = _CHARSET.search(html[:2048])
    return found[1].decode() if found else None


def _joined(base: str, href: str | None) -> str | None:
    """The absolute address of a link to another page, without its fragment."""
    try:
        link = urljoin(base, (href or "").strip()).partition("#")[0]
        return link if href and urlsplit(link).scheme in ("http", "https") else None
    except ValueError:
        return None
