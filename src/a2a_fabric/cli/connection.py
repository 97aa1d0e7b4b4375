"""Which node a command talks to, with which key, and what becomes of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from a2a_fabric.cli.output import reported
from a2a_fabric.cli.state import State
from a2a_fabric.client.client import DEFAULT_URL, FabricClient
from a2a_fabric.config import environment
from a2a_fabric.core.delegation import VARIABLE, from_header
from a2a_fabric.core.hosts import is_loopback

T = TypeVar("T")


def connect(url: str | None, token: str | None, timeout: float = 60.0) -> FabricClient:
    environ = environment()
    state = State(environ)
    node = state.node()
    known = node.url if node else DEFAULT_URL
    url = url or environ.get("FABRIC_URL") or known
    chain = from_header(environ.get(VARIABLE))  # if an agent of a node started us
    return FabricClient(url, token or token_for(url, environ, state), timeout, delegation_chain=chain)


def ask(client: FabricClient, question: Callable[[FabricClient], Awaitable[T]], *, as_json: bool) -> T:
    """Run one exchange with the node. With `as_json`, an error is a JSON object on stdout too."""

    async def exchange() -> T:
        async with client:
            return await question(client)

    with reported(as_json=as_json):
        return asyncio.run(exchange())


def token_for(url: str, environ: Mapping[str, str], state: State) -> str | None:
    """The kept key opens this user's own nodes; it is never shown to anybody else's."""
    given = environ.get("FABRIC_TOKEN") or environ.get("FABRIC_PSK")
    node = state.node()
    is_ours = (node is not None and url == node.url) or _is_here(url)
    if given or not is_ours:
        return given
    return state.key.read()


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
