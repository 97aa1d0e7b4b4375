"""The user interfaces (MCP Apps) of an agent on another node, read at that node's `/agents/ID/mcp`.

The list of a node's agents says which `ui://` addresses their tools have. Everything else about prompts and resources
stays on the other node: its clients find it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from a2a_fabric.core.agent import Capability
from a2a_fabric.core.call import Emit
from a2a_fabric.core.errors import BadInput, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.propagation import chain_to_headers, format_traceparent
from a2a_fabric.outbound import sse
from a2a_fabric.protocols.mcp.apps import UI_EXTENSION, UI_SETTINGS, find_ui_uri
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceListing, PromptResourceQuery
from a2a_fabric.protocols.mcp.wire import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    METHOD_HEADER,
    NAME_HEADER,
    OWN_INFO,
    POST_HEADERS,
    PROTOCOL_VERSION_KEY,
    STATELESS_VERSION,
    VERSION_HEADER,
)
from a2a_fabric.runtimes.fabric.client import NodeClient

_READ = "resources/read"
_ENVELOPE = {
    PROTOCOL_VERSION_KEY: STATELESS_VERSION,
    CLIENT_INFO_KEY: OWN_INFO,
    CLIENT_CAPABILITIES_KEY: {"extensions": {UI_EXTENSION: UI_SETTINGS}},
}


class _RpcFailure(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _RpcReply(msgspec.Struct, frozen=True):
    result: dict[str, Any] | None = None
    error: _RpcFailure | None = None


class NodeUserInterfaces:
    """Those of one agent, which has the id `agent` on the other node."""

    def __init__(self, node: NodeClient, agent: str, capabilities: Sequence[Capability]) -> None:
        self._node = node
        self._path = f"/agents/{quote(agent, safe='')}/mcp"
        self._uris = {uri for each in capabilities if each.metadata and (uri := find_ui_uri(each.metadata))}

    @property
    def listing(self) -> PromptResourceListing:
        media_type = UI_SETTINGS["mimeTypes"][0]
        entries = ({"uri": uri, "name": uri, "mimeType": media_type} for uri in sorted(self._uris))
        return PromptResourceListing(resources=tuple(entries))

    async def load(self) -> PromptResourceListing:
        return self.listing

    async def ask(self, query: PromptResourceQuery, emit: Emit | None = None) -> dict[str, Any]:
        uri = query.params.get("uri")
        if query.method != _READ or uri not in self._uris or not (uri.isascii() and uri.isprintable()):
            raise BadInput(f"Node '{self._node.name}' shares the user interfaces of its agents, and no other resources")
        params = {"uri": uri, "_meta": {**_ENVELOPE, "traceparent": format_traceparent(query.trace)}}
        headers = {**POST_HEADERS, VERSION_HEADER: STATELESS_VERSION, METHOD_HEADER: _READ, NAME_HEADER: uri}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": _READ, "params": params})
        reply = await self._node.post(
            self._path, {**headers, **chain_to_headers(query.delegation_chain)}, body, query.timeout
        )
        answer = _read_answer(sse.is_event_stream(reply.headers), reply.body, self._node.reply_bytes)
        if answer.result is None:
            failure = answer.error or _RpcFailure(message=f"HTTP {reply.status}")
            raise self._node.add_hop(UpstreamRefused(failure.message[:1000], upstream_code=failure.code))
        return answer.result

    async def subscribe(
        self, uri: str, on_change: Callable[[], None], on_lost: Callable[[], None], start_timeout: float
    ) -> Callable[[], None]:
        raise BadInput(f"Node '{self._node.name}' does not tell when the user interfaces of its agents change")


def _read_answer(is_stream: bool, body: bytes, limit: int) -> _RpcReply:
    """The reply, which is the last message of a stream. Raises UpstreamFailed."""
    if is_stream:
        events = sse.SSEParser(limit)
        body = [b"", *events.feed(body), *events.flush()][-1]
    try:
        return msgspec.json.decode(body, type=_RpcReply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UpstreamFailed(f"The node's reply is not one of MCP: {exc}"[:300]) from exc
