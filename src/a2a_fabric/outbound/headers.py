"""Renders the headers of requests. Names are checked once per set of names, values with one scan per request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.version import __version__

MAX_TEMPLATES = 512
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a value may hold tabs
_CLIENT_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect"}
)
_templates: dict[tuple[str, ...], str] = {}
_as_json = msgspec.json.Encoder().encode


class FixedHeaders:
    """Headers that many requests have in common, besides a few whose values vary. What is fixed is rendered once."""

    __slots__ = ("headers", "text", "varying", "varying_template")

    def __init__(self, headers: Mapping[str, str], varying: tuple[str, ...]) -> None:
        """`varying` are the names of the others; values that `headers` has for them do not count."""
        self.headers = {name: value for name, value in headers.items() if name not in varying}
        self.varying = varying
        self.varying_template = "".join(f"{name}: %s\r\n" for name in varying)
        self.text: str | None = None  # rendered, and so checked, by the first request


class VaryingHeaders(Mapping[str, str]):
    """The headers of one request as a mapping, which our client renders without looking at all of them."""

    __slots__ = ("fixed", "varied")

    def __init__(self, fixed: FixedHeaders, varied: tuple[str, ...]) -> None:
        """`varied` has a value for each name in `fixed.varying`."""
        self.fixed = fixed
        self.varied = varied

    def __getitem__(self, name: str) -> str:
        if name in self.fixed.varying:
            return self.varied[self.fixed.varying.index(name)]
        return self.fixed.headers[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.fixed.headers
        yield from self.fixed.varying

    def __len__(self) -> int:
        return len(self.fixed.headers) + len(self.varied)


def render_headers(headers: Mapping[str, str]) -> str:
    """All header lines of the caller, with our user-agent unless the caller sets one. Raises ConnectFailed."""
    if type(headers) is VaryingHeaders:
        fixed, values = headers.fixed, headers.varied
        if fixed.text is None:
            _make_template((*fixed.headers, *fixed.varying))  # checks all names
            fixed.text = render_headers(fixed.headers)
        start, template = fixed.text, fixed.varying_template
    else:
        names, values = tuple(headers), tuple(headers.values())
        start, template = "", _templates.get(names) or _make_template(names)
    text = "".join(values)
    if not _is_plain(text) and _FORBIDDEN.search(text):
        raise ConnectFailed("A header with control characters cannot be sent")
    return start + template % values


def _is_plain(text: str) -> bool:
    """Whether the text certainly has no control characters. False means: look closer.

    A JSON string is longer than its text if it holds any, except DEL. Encoding it is several times faster than a
    regular expression.
    """
    try:
        return len(_as_json(text)) == len(text) + 2 and "\x7f" not in text
    except UnicodeEncodeError:  # a lone surrogate, which cannot be sent either
        return False


def _make_template(names: tuple[str, ...]) -> str:
    lowered = {name.lower() for name in names}
    if lowered & _CLIENT_HEADERS:
        raise ConnectFailed(f"The client itself sets the header {min(lowered & _CLIENT_HEADERS)}")
    if not all(map(TOKEN.fullmatch, names)):
        raise ConnectFailed("A header whose name is not well-formed cannot be sent")
    template = "".join(f"{name.replace('%', '%%')}: %s\r\n" for name in names)
    if "user-agent" not in lowered:
        template += f"user-agent: a2a-fabric/{__version__}\r\n"
    if len(_templates) >= MAX_TEMPLATES:
        _templates.clear()
    _templates[names] = template
    return template
