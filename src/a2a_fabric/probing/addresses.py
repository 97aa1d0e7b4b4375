"""Probes an address: tries every protocol at once and picks the most specific match.

There is one probe per HTTP protocol: MCP, Fabric node, plain HTTP contract, Agent Zero, A2A, ACP and OpenAPI."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.outbound.port import HTTPClient, HTTPReply
from a2a_fabric.outbound.sse import is_event_stream
from a2a_fabric.probing.client import (
    ProbeClient,
    ProbeUnanswered,
    describe_status,
    is_root_url,
    parse_json,
    url_base,
    url_origin,
)
from a2a_fabric.probing.findings import Finding, ProbeAttempt, ProbedAgentInfo, ProbeReport, first_text, one_line
from a2a_fabric.protocols.a2a.card import CARD_PATHS, is_card
from a2a_fabric.protocols.jsonrpc import read_result
from a2a_fabric.protocols.mcp.wire import (
    DISCOVER_HEADERS,
    DISCOVER_REQUEST,
    INITIALIZE_REQUEST,
    POST_HEADERS,
    SERVER_INFO_KEY,
    SESSION_HEADER,
    STATELESS_VERSION,
)

_ENDPOINT_EVENT = re.compile(rb"(?m)^event: ?endpoint\r?$")


async def probe_mcp(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """At the address, or at `/mcp` or `/sse` below it. Raises ProbeUnanswered."""
    found = await _probe_mcp_at(client, url)
    if isinstance(found, Finding):
        return found
    if (sse_finding := await _probe_sse_at(client, url)) is not None:
        return sse_finding
    if not nearby or url_base(url).endswith(("/mcp", "/sse")):
        return found
    nested = await _probe_mcp_at(client, f"{url_base(url)}/mcp", is_exact=False)
    if isinstance(nested, Finding):
        return nested
    return await _probe_sse_at(client, f"{url_base(url)}/sse", is_exact=False) or found


async def _probe_sse_at(client: ProbeClient, url: str, *, is_exact: bool = True) -> Finding | None:
    """A server of the transport HTTP+SSE begins its stream with the address for messages."""
    try:
        page = await client.get_page(url)
    except ProbeUnanswered:
        return None
    if page.status != 200 or not is_event_stream(page.headers) or not _ENDPOINT_EVENT.search(page.body):
        return None
    endpoint = {"transport": "sse", "uri": url}
    return Finding(runtime="mcp", endpoint=endpoint, evidence="MCP (HTTP+SSE, 2024-11-05)", is_exact=is_exact)


async def _probe_mcp_at(client: ProbeClient, url: str, *, is_exact: bool = True) -> Finding | str:
    reply = await client.send("POST", url, DISCOVER_REQUEST, **DISCOVER_HEADERS)
    result = read_result(parse_json(reply))
    if result is not None and isinstance(result.get("supportedVersions"), list):
        return _mcp_finding(url, result, f"stateless, {STATELESS_VERSION}", is_exact)
    if reply.status in (401, 403):
        return describe_status(reply)
    reply = await client.send("POST", url, INITIALIZE_REQUEST, **POST_HEADERS)
    result = read_result(parse_json(reply))
    if result is None or not is_mcp_server(result):
        return describe_status(reply)
    await _end_mcp_session(client, url, reply)
    return _mcp_finding(url, result, f"handshake, {one_line(result['protocolVersion'], 20)}", is_exact)


async def _end_mcp_session(client: ProbeClient, url: str, reply: HTTPReply) -> None:
    """The probe's session is not needed any more."""
    session = reply.headers.get(SESSION_HEADER)
    if session:
        try:
            await client.send("DELETE", url, mcp_session_id=session)
        except ProbeUnanswered:
            pass


def is_mcp_server(result: dict[str, Any]) -> bool:
    """Whether this is an MCP server's result of `initialize`."""
    return isinstance(result.get("protocolVersion"), str) and isinstance(result.get("capabilities"), dict)


def mcp_server_info(result: dict[str, Any]) -> ProbedAgentInfo:
    """How the server describes itself, in either era."""
    meta = result.get("_meta")
    info = result.get("serverInfo") or (meta or {}).get(SERVER_INFO_KEY)
    info = info if isinstance(info, dict) else {}
    description = first_text(info.get("description"), result.get("instructions"))
    return {"name": one_line(info.get("name")), "description": description, "version": one_line(info.get("version"))}


def _mcp_finding(url: str, result: dict[str, Any], detail: str, is_exact: bool) -> Finding:
    endpoint = {"transport": "http", "uri": url}
    return Finding(
        runtime="mcp", endpoint=endpoint, evidence=f"MCP ({detail})", is_exact=is_exact, **mcp_server_info(result)
    )


_FABRIC_VERSION_PREFIX = "af-mcp-"


async def probe_fabric(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """At the address, or at the root of its host. Raises ProbeUnanswered."""
    for base in dict.fromkeys([url_base(url), *([url_origin(url)] if nearby else [])]):
        health = await client.get_json(f"{base}/health")
        version = one_line(health.get("version")) if isinstance(health, dict) else ""
        if version.startswith(_FABRIC_VERSION_PREFIX):
            evidence = f"Fabric node ({version})"
            return Finding(runtime="fabric", endpoint={"uri": base}, evidence=evidence, is_exact=base == url_base(url))
    return "no health page of a Fabric node"


async def probe_http_contract(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """Raises ProbeUnanswered."""
    published = await client.get_json(url)
    if not isinstance(published, dict) or not isinstance(published.get("capabilities"), list):
        return "publishes no manifest"
    if not all(isinstance(each, dict) and each.get("name") for each in published["capabilities"]):
        return "publishes no manifest"
    if not isinstance(published.get("agent_id"), str):
        return "publishes no manifest"
    return Finding(
        runtime="http",
        endpoint={"transport": "http", "uri": url},
        evidence="the plain contract, with a manifest",
        name=one_line(published["agent_id"]),
        description=first_text(published.get("description"), published.get("display_name")),
        version=one_line(published.get("version")),
    )


async def probe_a2a(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """Raises ProbeUnanswered."""
    refusals: list[str] = []
    async for card_url, card in _fetch_cards(client, [url, *_card_urls(url, nearby)], refusals):
        if not _is_agent_zero(card):
            return Finding(
                runtime="a2a",
                endpoint={"transport": "http", "uri": url},
                evidence=f"A2A card ({_card_version(card) or 'no version'})",
                is_exact=card_url.startswith(url_base(url)),
                **_card_info(card),
            )
    return next(iter(refusals), "no agent card")


async def probe_agent_zero(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """Below `/a2a`, where Agent Zero serves A2A, if the address has no path. Raises ProbeUnanswered."""
    refusals: list[str] = []
    default_urls = [f"{url_origin(url)}/a2a{path}" for path in CARD_PATHS] if is_root_url(url) else []
    async for card_url, card in _fetch_cards(client, [*default_urls, *_card_urls(url, nearby)], refusals):
        if _is_agent_zero(card):
            evidence = f"Agent Zero's A2A ({_card_version(card) or 'no version'})"
            endpoint = {"uri": url if is_root_url(url) else _card_base(card_url)}
            return Finding(runtime="agentzero", endpoint=endpoint, evidence=evidence, **_card_info(card))
    return next(iter(refusals), "no card of Agent Zero")


def _card_base(card_url: str) -> str:
    """The URL below which the card was found."""
    for path in CARD_PATHS:
        card_url = card_url.removesuffix(path)
    return card_url


def _card_urls(url: str, nearby: bool) -> list[str]:
    bases = dict.fromkeys([url_base(url), *([url_origin(url)] if nearby else [])])
    return [base + path for base in bases for path in CARD_PATHS]


async def _fetch_cards(
    client: ProbeClient, urls: list[str], refusals: list[str]
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Notes pages that ask for credentials in `refusals`. Raises ProbeUnanswered if the first URL does not answer."""
    for url in urls:
        try:
            reply = await client.get_page(url)
        except ProbeUnanswered:
            if url == urls[0]:
                raise
            continue
        document = parse_json(reply) if reply.status == 200 else None
        if isinstance(document, dict) and is_card(document) and {"skills", "capabilities"} & document.keys():
            yield url, document
        elif reply.status in (401, 403) and url.endswith(CARD_PATHS):
            refusals.append(f"its card {describe_status(reply)}")


def _is_agent_zero(card: dict[str, Any]) -> bool:
    """By its name, or because it speaks A2A 0.2, which only the Agent Zero runtime supports."""
    return "agent zero" in card["name"].lower() or _card_version(card).startswith("0.2")


def _card_version(card: dict[str, Any]) -> str:
    interfaces = card.get("supportedInterfaces")
    versions = [each.get("protocolVersion") for each in interfaces or () if isinstance(each, dict)]
    return next((one_line(each, 20) for each in (*versions, card.get("protocolVersion")) if isinstance(each, str)), "")


def _card_info(card: dict[str, Any]) -> ProbedAgentInfo:
    fields = {name: one_line(card.get(name)) for name in ("name", "description", "version")}
    return ProbedAgentInfo(name=fields["name"], description=fields["description"], version=fields["version"])


_ACP_AGENT_KEYS = ("input_content_types", "output_content_types", "metadata")


async def probe_acp(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """Raises ProbeUnanswered."""
    document = await client.get_json(f"{url_base(url)}/agents")
    agents = document.get("agents") if isinstance(document, dict) else None
    if not isinstance(agents, list) or not agents or not all(_is_acp_agent(each) for each in agents):
        return "no list of agents"
    names = ", ".join(one_line(each["name"], 40) for each in agents[:5])
    single: dict[str, Any] = agents[0] if len(agents) == 1 else {}
    return Finding(
        runtime="acp",
        endpoint={"uri": url_base(url)},
        evidence=f"ACP ({len(agents)} {'agent' if single else 'agents'}: {names})",
        name=one_line(single.get("name")),
        description=one_line(single.get("description")),
    )


def _is_acp_agent(value: Any) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("name"), str) and any(key in value for key in _ACP_AGENT_KEYS)
    )


_DOCUMENT_PATHS = ("openapi.json", "openapi.yaml", "swagger.json", "v3/api-docs", "api/openapi.json")
_YAML_VERSION = re.compile(rb"(?m)^(?:openapi:\s*[\"']?(3\.[\d.]+)|swagger:\s*[\"']?(2\.0))")
_YAML_TITLE = re.compile(rb"^info:.*?\btitle:\s*[\"']?([^\"',}\n]+)", re.MULTILINE | re.DOTALL)
_SCANNED_BYTES = 4096


async def probe_openapi(client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
    """Raises ProbeUnanswered."""
    candidates = [
        f"{base}/{name}" for base in dict.fromkeys([url_base(url), url_origin(url)]) for name in _DOCUMENT_PATHS
    ]
    for document_url in dict.fromkeys([url, *(candidates if nearby else ())]):
        try:
            reply = await client.get_page(document_url)
        except ProbeUnanswered:
            if document_url == url:
                raise
            continue
        if reply.status == 200 and (document := _parse_openapi(reply)) is not None:
            version, info = document
            return Finding(
                runtime="http",
                endpoint={"openapi": document_url},
                evidence=f"OpenAPI document ({version})",
                name=one_line(info.get("title")),
                description=one_line(info.get("summary") or info.get("description")),
                version=one_line(info.get("version")),
                is_exact=document_url == url,
            )
    return "no OpenAPI document at the usual paths"


def _parse_openapi(reply: HTTPReply) -> tuple[str, dict[str, Any]] | None:
    """The version and the `info` object. YAML is recognised by its first lines, not parsed."""
    value = parse_json(reply)
    if isinstance(value, dict):
        version = one_line(value.get("openapi") or value.get("swagger"), 20)
        info = value.get("info")
        is_openapi = version.startswith("3.") or version == "2.0"
        return (version, info if isinstance(info, dict) else {}) if is_openapi and "paths" in value else None
    version_match = _YAML_VERSION.search(reply.body[:_SCANNED_BYTES])
    if version_match is None:
        return None
    title_match = _YAML_TITLE.search(reply.body[:_SCANNED_BYTES])
    return (version_match[1] or version_match[2]).decode(), {
        "title": title_match[1].decode(errors="replace")
    } if title_match else {}


_TIMEOUT_FACTOR = 4.0  # an attempt requests several pages, each with the time-out of one request


class ProtocolProbe(Protocol):
    async def __call__(self, client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
        """The finding, at the address or, if `nearby`, close to it; else what answers there. Raises ProbeUnanswered."""
        ...


# In order of preference: a server of any protocol may also publish an OpenAPI document.
_PROBES: dict[str, ProtocolProbe] = {
    "mcp": probe_mcp,
    "fabric": probe_fabric,
    "http": probe_http_contract,
    "agentzero": probe_agent_zero,
    "a2a": probe_a2a,
    "acp": probe_acp,
    "openapi": probe_openapi,
}


async def probe_address(http: HTTPClient, url: str, headers: Mapping[str, str], timeout: float) -> ProbeReport:
    """Whatever the server does becomes part of the report; nothing is raised for it."""
    client = ProbeClient(http, headers, timeout)
    try:
        began_at = time.perf_counter()
        await client.get_page(url)
        attempts = await asyncio.gather(*(_attempt(protocol, client, url) for protocol in _PROBES))
        return ProbeReport(target=url, attempts=tuple(attempts))
    except ProbeUnanswered as exc:
        return ProbeReport(target=url, attempts=(ProbeAttempt.from_outcome("http", str(exc), began_at),))
    finally:
        await client.aclose()


async def _attempt(protocol: str, client: ProbeClient, url: str) -> ProbeAttempt:
    began_at = time.perf_counter()
    try:
        async with asyncio.timeout(_TIMEOUT_FACTOR * client.timeout):
            outcome = await _PROBES[protocol](client, url)
    except ProbeUnanswered as exc:
        outcome = str(exc)
    except TimeoutError:
        outcome = f"no answer within {_TIMEOUT_FACTOR * client.timeout:g} s"
    return ProbeAttempt.from_outcome(protocol, outcome, began_at)


async def detect(http: HTTPClient, url: str, headers: Mapping[str, str], timeout: float) -> Finding | None:
    """The protocol at exactly this address, found with as few requests as possible.

    Pages are read first, because an unknown server may act on anything that is posted to it.
    Raises AgentOffline if nothing listens, ProbeUnanswered if the server may only be slow.
    """
    client = ProbeClient(http, headers, timeout)
    timeout_error: ProbeUnanswered | None = None
    try:
        for group in (("http",), ("openapi", "fabric", "agentzero", "a2a", "acp"), ("mcp",)):
            probes = [_finding_or_timeout(_PROBES[protocol], client, url) for protocol in group]
            for outcome in await asyncio.gather(*probes):
                if isinstance(outcome, Finding):
                    return outcome
                timeout_error = timeout_error or outcome
    finally:
        await client.aclose()
    if timeout_error is not None:
        raise timeout_error
    return None


async def _finding_or_timeout(probe: ProtocolProbe, client: ProbeClient, url: str) -> Finding | ProbeUnanswered | None:
    try:
        outcome = await probe(client, url, nearby=False)
    except ProbeUnanswered as exc:
        if exc.is_offline:
            raise AgentOffline(str(exc)) from exc
        return exc if exc.is_late else None
    return outcome if isinstance(outcome, Finding) else None
