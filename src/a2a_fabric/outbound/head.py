"""The head of a request as text: what callers may say in it, and what only the client says.

Header names are checked once per set of names and kept as a template; the
values of each request are checked by a single look at all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from a2a_fabric.outbound.port import ConnectFailed
from a2a_fabric.outbound.url import Url
from a2a_fabric.version import __version__

TEMPLATES = 512
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a tab may stand in a value
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect"}
)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})  # these tell a length even if it is 0
_templates: dict[tuple[str, ...], str] = {}
_as_json = msgspec.json.Encoder().encode


def start_of_head(method: str, url: Url) -> str:
    if not _TOKEN.fullmatch(method) or method == "CONNECT":
        raise ConnectFailed(f"{method[:20]!r} is not a method that can be sent")
    return f"{method} {url.target} HTTP/1.1\r\nhost: {url.authority}\r\n"


def end_without_body(method: str) -> str:
    return "content-length: 0\r\n\r\n" if method in _WITH_BODY else "\r\n"


def fields(headers: Mapping[str, str]) -> str:
    """All header lines of the caller, and who we are unless they say it."""
    names, values = tuple(headers), tuple(headers.values())
    template = _templates.get(names) or _template(names)
    text = "".join(values)
    if not _is_plain(text) and _FORBIDDEN.search(text):
        raise ConnectFailed("A header with control characters cannot be sent")
    return template % values


def _is_plain(text: str) -> bool:
    """Whether it has no control characters for sure. JSON writes them as more than one character each, except DEL, and
    finds out that there are none several times as fast as anything else at hand.
    """
    try:
        return len(_as_json(text)) == len(text) + 2 and "\x7f" not in text
    except UnicodeEncodeError:  # a half of a character, which cannot be sent either
        return False


def _template(names: tuple[str, ...]) -> str:
    lowered = {name.lower() for name in names}
    if lowered & _OURS:
        raise ConnectFailed(f"The client itself sets the header {min(lowered & _OURS)}")
    if not all(map(_TOKEN.fullmatch, names)):
        raise ConnectFailed("A header whose name is not well-formed cannot be sent")
    template = "".join(f"{name.replace('%', '%%')}: %s\r\n" for name in names)
    if "user-agent" not in lowered:
        template += f"user-agent: a2a-fabric/{__version__}\r\n"
    if len(_templates) >= TEMPLATES:
        _templates.clear()
    _templates[names] = template
    return template
