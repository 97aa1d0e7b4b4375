"""What a person sees of an HTML page: its title, its words, its links. No script is ever run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from a2a_fabric.tools.work import Patience

MAX_LINKS = 50
_UNSEEN = frozenset({"script", "style", "template", "noscript"})
_BLOCKS = frozenset(
    {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table", "ul", "ol"}
)
_PIECE = 16_384
_BLANKS = re.compile(r"[^\S\n]+")
_GAPS = re.compile(r" ?\n[ \n]*")
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([A-Za-z0-9_-]{2,40})", re.IGNORECASE)


class Page(HTMLParser):
    def __init__(self, url: str, patience: Patience) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self._base = url
        self._patience = patience
        self._unseen = 0
        self._in_title = False
        self._title: list[str] = []
        self._words: list[str] = []

    @property
    def title(self) -> str | None:
        return " ".join("".join(self._title).split()) or None

    @property
    def text(self) -> str:
        return _GAPS.sub("\n", _BLANKS.sub(" ", "".join(self._words))).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._patience.check()
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag == "title":
            self._in_title = not self._title
        elif tag == "base":
            self._base = _joined(self._base, dict(attrs).get("href")) or self._base
        elif tag == "a":
            self._link(dict(attrs).get("href"))
        if tag in _BLOCKS:
            self._words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN and self._unseen:
            self._unseen -= 1
        elif tag == "title":
            self._in_title = False
        if tag in _BLOCKS:
            self._words.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._unseen:
            self._words.append(data)

    def _link(self, href: str | None) -> None:
        link = _joined(self._base, href)
        if link and len(self.links) < MAX_LINKS and link not in self.links:
            self.links.append(link)


def read_page(patience: Patience, html: str, url: str) -> Page:
    page = Page(url, patience)
    for start in range(0, len(html), _PIECE):
        patience.check()
        page.feed(html[start : start + _PIECE])
    page.close()
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
