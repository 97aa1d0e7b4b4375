"""Is there an OpenAPI document, at the address or in one of the usual places?"""

from __future__ import annotations

import re
from typing import Any

from a2a_fabric.outbound.port import Reply
from a2a_fabric.probing.asking import Asker, Unanswered, base_of, json_in, origin_of
from a2a_fabric.probing.findings import Finding, words

_PLACES = ("openapi.json", "openapi.yaml", "swagger.json", "v3/api-docs", "api/openapi.json")
_YAML = re.compile(rb"(?m)^(?:openapi:\s*[\"']?(3\.[\d.]+)|swagger:\s*[\"']?(2\.0))")
_TITLE = re.compile(rb"^info:.*?\btitle:\s*[\"']?([^\"',}\n]+)", re.MULTILINE | re.DOTALL)
_START = 4096


async def look(asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
    """Raises Unanswered."""
    below = [f"{base}/{name}" for base in dict.fromkeys([base_of(url), origin_of(url)]) for name in _PLACES]
    for place in dict.fromkeys([url, *(below if beside else ())]):
        try:
            reply = await asker.page(place)
        except Unanswered:
            if place == url:
                raise
            continue
        if reply.status == 200 and (found := _document(reply)) is not None:
            version, info = found
            return Finding(
                runtime="http",
                endpoint={"openapi": place},
                told=f"OpenAPI document ({version})",
                name=words(info.get("title")),
                description=words(info.get("summary") or info.get("description")),
                version=words(info.get("version")),
                is_exact=place == url,
            )
    return "no document in the usual places"


def _document(reply: Reply) -> tuple[str, dict[str, Any]] | None:
    """Its version and what it says of the API. YAML is recognised, not read."""
    value = json_in(reply)
    if isinstance(value, dict):
        version = words(value.get("openapi") or value.get("swagger"), 20)
        info = value.get("info")
        is_one = version.startswith("3.") or version == "2.0"
        return (version, info if isinstance(info, dict) else {}) if is_one and "paths" in value else None
    named = _YAML.search(reply.body[:_START])
    if named is None:
        return None
    title = _TITLE.search(reply.body[:_START])
    return (named[1] or named[2]).decode(), {"title": title[1].decode(errors="replace")} if title else {}
