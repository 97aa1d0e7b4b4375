"""An OpenAPI document: found, fetched or read from a file, parsed from JSON or YAML, of version 3 or 2.0."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import yaml

from a2a_fabric.core.errors import AgentBusy, AgentOffline, BadInput, FabricError, UpstreamFailed
from a2a_fabric.outbound.port import HTTPClient, OutboundError, Reply
from a2a_fabric.runtimes.http_exchange import bad_status, ours, public
from a2a_fabric.runtimes.http_openapi_schema import checked
from a2a_fabric.runtimes.http_openapi_swagger import as_version_3

USUAL_PLACES = ("openapi.json", "openapi.yaml", "swagger.json", "v3/api-docs", "api/openapi.json")
_SECONDS = 20.0
_BYTES = 32 * 1024 * 1024
_YAML_BYTES = 4 * 1024 * 1024  # reading YAML takes long

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]  # which of the two is known at run time only
    """Dates stay as they are written: JSON has none."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Of version 3, whatever it was; `source` is the address it came from, None for a file."""

    value: dict[str, Any]
    source: str | None = None
    mark: str = ""  # tells whether it has changed since


async def fetched(http: HTTPClient, url: str, headers: dict[str, str], known: Document | None = None) -> Document:
    """The known one again if it has not changed. Raises FabricError."""
    asked = {"accept": "application/json, application/yaml;q=0.9, */*;q=0.5", **headers}
    if known is not None and known.mark and known.source == url:
        asked["if-none-match"] = known.mark
    try:
        reply = await http.request("GET", url, headers=asked, timeout=_SECONDS, limit=_BYTES)
    except OutboundError as exc:
        raise ours(exc, _SECONDS, public(url)) from exc
    if reply.status == 304 and known is not None:
        return known
    return await _understood(reply, url)


async def _understood(reply: Reply, url: str) -> Document:
    if reply.status != 200:
        raise bad_status(reply.status, "there is no OpenAPI document at this address")
    value = await asyncio.to_thread(parsed, reply.body)
    return Document(value=value, source=url, mark=reply.headers.get("etag", ""))


async def found(http: HTTPClient, uri: str, headers: dict[str, str]) -> Document:
    """At the address itself, or at one of the usual places below it or at its origin. Raises FabricError."""
    first: FabricError | None = None
    for url in places(uri):
        try:
            return await fetched(http, url, headers)
        except (AgentOffline, AgentBusy):
            raise
        except FabricError as exc:
            first = first or exc
    raise UpstreamFailed(
        f"No OpenAPI document at {public(uri)} or in the usual places beside it; name it as `openapi`"
    ) from first


def places(uri: str) -> list[str]:
    parts = urlsplit(uri)
    below, origin = f"{uri.partition('?')[0].rstrip('/')}/", f"{parts.scheme}://{parts.netloc}/"
    return list(dict.fromkeys([uri, *(urljoin(base, name) for base in (below, origin) for name in USUAL_PLACES)]))


async def read(path: Path, known: Document | None = None) -> Document:
    """Raises BadInput."""
    return await asyncio.to_thread(_read, path, known)


def _read(path: Path, known: Document | None) -> Document:
    try:
        stat = path.stat()
        mark = f"{stat.st_mtime_ns} {stat.st_size}"
        if known is not None and known.mark == mark:
            return known
        if stat.st_size > _BYTES:
            raise BadInput(f"{path.name}: larger than {_BYTES} bytes")
        return Document(value=parsed(path.read_bytes()), mark=mark)
    except OSError as exc:
        raise BadInput(f"The OpenAPI document {path.name} cannot be read: {exc.strerror}") from exc


def parsed(body: bytes) -> dict[str, Any]:
    """Raises UpstreamFailed for what is no OpenAPI document."""
    return as_version_3(checked(_value(body)))


def _value(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if body.lstrip()[:1] in (b"{", b"[", b"<") or len(body) > _YAML_BYTES:
            raise UpstreamFailed(f"The OpenAPI document cannot be read: {exc}"[:300]) from exc
    try:
        return _with_text_keys(yaml.load(body, Loader=_Loader))  # noqa: S506  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise UpstreamFailed(f"The OpenAPI document cannot be read: {exc}"[:300]) from exc


def _with_text_keys(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """`200:` is a number in YAML and a name in JSON. What is written once and used often stays one object."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, dict):
        made: Any = {}
        seen[id(value)] = made
        made.update({_key(key): _with_text_keys(inner, seen) for key, inner in value.items()})
        return made
    if isinstance(value, list):
        seen[id(value)] = made = []
        made.extend(_with_text_keys(inner, seen) for inner in value)
        return made
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)
