"""What speaks at an address: every protocol is tried at once, and the most telling answer is believed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Protocol

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.outbound.port import HTTPClient
from a2a_fabric.probing import a2a, acp, fabric, mcp, openapi, plain
from a2a_fabric.probing.asking import Asker, Unanswered
from a2a_fabric.probing.findings import Finding, Look, Report

_PATIENCE = 4.0  # deadlines: a try asks several pages, each within its own


class Try(Protocol):
    async def __call__(self, asker: Asker, url: str, *, beside: bool = True) -> Finding | str:
        """What was found at the address, or also `beside` it; else what answers instead. Raises Unanswered."""
        ...


# In the order in which they are believed. A server of any protocol may have an OpenAPI document beside it.
_TRIES: dict[str, Try] = {
    "mcp": mcp.look,
    "fabric": fabric.look,
    "http": plain.look,
    "agentzero": a2a.look_for_zero,
    "a2a": a2a.look,
    "acp": acp.look,
    "openapi": openapi.look,
}


async def look_at(http: HTTPClient, url: str, headers: Mapping[str, str], timeout: float) -> Report:
    """Never raises for what the server does."""
    asker = Asker(http, headers, timeout)
    try:
        began_at = time.perf_counter()
        await asker.page(url)
        looks = await asyncio.gather(*(_tried(protocol, asker, url) for protocol in _TRIES))
        return Report(target=url, looks=tuple(looks))
    except Unanswered as exc:
        seconds = time.perf_counter() - began_at
        return Report(target=url, looks=(Look(protocol="http", outcome=str(exc), seconds=seconds),))
    finally:
        await asker.aclose()


async def _tried(protocol: str, asker: Asker, url: str) -> Look:
    began_at = time.perf_counter()
    found: Finding | None = None
    try:
        async with asyncio.timeout(_PATIENCE * asker.timeout):
            outcome = await _TRIES[protocol](asker, url)
    except Unanswered as exc:
        outcome = str(exc)
    except TimeoutError:
        outcome = f"no answer within {_PATIENCE * asker.timeout:g} s"
    if isinstance(outcome, Finding):
        found, outcome = outcome, outcome.told
    return Look(protocol=protocol, outcome=outcome, seconds=time.perf_counter() - began_at, found=found)


async def guess(http: HTTPClient, url: str, headers: Mapping[str, str], timeout: float) -> Finding | None:
    """What speaks at this very address, found out with as few questions as will do.

    Pages are read first: a server that nobody knows may act on whatever is posted to
    it. Raises AgentOffline if nobody is there, Unanswered if somebody may only be slow.
    """
    asker = Asker(http, headers, timeout)
    late: Unanswered | None = None
    try:
        for tried in (("http",), ("openapi", "fabric", "agentzero", "a2a", "acp"), ("mcp",)):
            looks = [_told(_TRIES[protocol](asker, url, beside=False)) for protocol in tried]
            for told in await asyncio.gather(*looks):
                if isinstance(told, Finding):
                    return told
                late = late or told
    finally:
        await asker.aclose()
    if late is not None:
        raise late
    return None


async def _told(looking: Awaitable[Finding | str]) -> Finding | Unanswered | None:
    try:
        found = await looking
    except Unanswered as exc:
        if exc.is_offline:
            raise AgentOffline(str(exc)) from exc
        return exc if exc.is_late else None
    return found if isinstance(found, Finding) else None
