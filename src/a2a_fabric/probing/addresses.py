"""Probes an address: tries every protocol at once and picks the most specific match."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Protocol

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.probing import protocols
from a2a_fabric.probing.client import ProbeClient, ProbeUnanswered
from a2a_fabric.probing.findings import Finding, ProbeAttempt, ProbeReport

_TIMEOUT_FACTOR = 4.0  # an attempt requests several pages, each with the time-out of one request


class ProtocolProbe(Protocol):
    async def __call__(self, client: ProbeClient, url: str, *, nearby: bool = True) -> Finding | str:
        """The finding, at the address or, if `nearby`, close to it; else what answers there. Raises ProbeUnanswered."""
        ...


# In order of preference: a server of any protocol may also publish an OpenAPI document.
_PROBES: dict[str, ProtocolProbe] = {
    "mcp": protocols.probe_mcp,
    "fabric": protocols.probe_fabric,
    "http": protocols.probe_http_contract,
    "agentzero": protocols.probe_agent_zero,
    "a2a": protocols.probe_a2a,
    "acp": protocols.probe_acp,
    "openapi": protocols.probe_openapi,
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
            probes = [_finding_or_timeout(_PROBES[protocol](client, url, nearby=False)) for protocol in group]
            for outcome in await asyncio.gather(*probes):
                if isinstance(outcome, Finding):
                    return outcome
                timeout_error = timeout_error or outcome
    finally:
        await client.aclose()
    if timeout_error is not None:
        raise timeout_error
    return None


async def _finding_or_timeout(probe: Awaitable[Finding | str]) -> Finding | ProbeUnanswered | None:
    try:
        outcome = await probe
    except ProbeUnanswered as exc:
        if exc.is_offline:
            raise AgentOffline(str(exc)) from exc
        return exc if exc.is_late else None
    return outcome if isinstance(outcome, Finding) else None
