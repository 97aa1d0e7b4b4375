"""What other nodes know of a trace: those that this node called with the runtime `fabric`.

Each is asked once, with the credentials of its agent's entry, so it decides what this node may see. Only the operator's
question goes on to other nodes, a few nodes deep and within a few seconds. A node that cannot be asked, or does not
permit it, is named with the reason; the rest of the trace is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from a2a_fabric.core.errors import (
    AgentOffline,
    AuthExpired,
    AuthInvalid,
    CallTimeout,
    FabricError,
    Forbidden,
    Unauthenticated,
)
from a2a_fabric.core.spans import OffersTraces, RemoteTrace, Span, TraceAnswer, TraceNode
from a2a_fabric.gateway import Gateway

MAX_DEPTH = 4
_RUNTIME = "fabric"
_SECONDS_PER_NODE = 2.0  # of depth, so that a node has time to ask further
_MAX_NODES = 16
_MAX_SPANS = 5000
_MAX_REASON = 300
_NOT_PERMITTED = (Forbidden, AuthInvalid, AuthExpired, Unauthenticated)
_KEY_CODES = (AuthInvalid.code, AuthExpired.code, Unauthenticated.code)  # of a node that does not accept our key
_UNREACHABLE = (AgentOffline, CallTimeout, TimeoutError)


async def read_remote_traces(gateway: Gateway, trace_id: str, spans: Iterable[Span], depth: int) -> RemoteTrace:
    """Of the nodes that `spans` say were called. Never raises FabricError."""
    agent_ids = _list_agents(spans)
    if not agent_ids or depth < 1 or gateway.load_runtime is None:
        return RemoteTrace()
    readers: dict[str, tuple[str, OffersTraces]] = {}
    nodes: list[TraceNode] = []
    for agent_id in agent_ids:
        try:
            reader = await _find_reader(gateway, agent_id)
        except FabricError as error:
            nodes.append(_describe_failure(agent_id, error))
            continue
        if reader is not None and reader.node_address not in readers:
            readers[reader.node_address] = agent_id, reader
    asked_readers = list(readers.values())[:_MAX_NODES]
    nodes += [_make_node(agent_id, "refused", "Too many nodes") for agent_id, _ in list(readers.values())[_MAX_NODES:]]
    answers = await asyncio.gather(*(_ask(agent_id, reader, trace_id, depth) for agent_id, reader in asked_readers))
    all_spans = [span for answer in answers for span in answer.spans]
    return RemoteTrace(
        spans=tuple(all_spans[:_MAX_SPANS]), nodes=(*nodes, *(each for a in answers for each in a.nodes))
    )


def list_forbidden_nodes(spans: Iterable[Span]) -> list[TraceNode]:
    """The nodes that are not asked for a caller who is not the operator."""
    reason = "Only the operator's question goes on to other nodes"
    return [_make_node(agent_id, "not_permitted", reason) for agent_id in _list_agents(spans)]


def _list_agents(spans: Iterable[Span]) -> list[str]:
    """Agents at other nodes that were called, each once."""
    nodes = {
        str(span.attributes.get("fabric.agent_id")): None
        for span in spans
        if span.kind == "runtime" and span.attributes.get("fabric.runtime") == _RUNTIME
    }
    return list(nodes)


async def _find_reader(gateway: Gateway, agent_id: str) -> OffersTraces | None:
    """Raises FabricError."""
    manifest = gateway.registry.catalog.get(agent_id)
    if manifest is None or gateway.load_runtime is None:
        raise AgentOffline(f"Agent '{agent_id}' is no longer listed, so its node cannot be asked")
    runtime = await gateway.load_runtime(manifest)
    return runtime if isinstance(runtime, OffersTraces) else None


async def _ask(agent_id: str, reader: OffersTraces, trace_id: str, depth: int) -> RemoteTrace:
    timeout = _SECONDS_PER_NODE * depth
    try:
        async with asyncio.timeout(timeout):
            trace = await reader.read_trace(trace_id, depth - 1, timeout)
    except (FabricError, TimeoutError) as error:
        return RemoteTrace(nodes=(_describe_failure(agent_id, error),))
    reason = None if trace.spans else "It has nothing of this trace that this node may see"
    own = TraceNode(agent_id=agent_id, status="ok", spans=len(trace.spans), reason=reason)
    further = [msgspec.structs.replace(each, agent_id=f"{agent_id} > {each.agent_id}"[:200]) for each in trace.nodes]
    return RemoteTrace(spans=trace.spans, nodes=(own, *further[:_MAX_NODES]))


def _describe_failure(agent_id: str, error: FabricError | TimeoutError) -> TraceNode:
    if isinstance(error, TimeoutError):
        return _make_node(agent_id, "unreachable", "It did not answer in time")
    status: TraceAnswer = "refused"
    if isinstance(error, _NOT_PERMITTED) or error.details.get("upstream_code") in _KEY_CODES:
        status = "not_permitted"
    elif isinstance(error, _UNREACHABLE):
        status = "unreachable"
    return _make_node(agent_id, status, error.message)


def _make_node(agent_id: str, status: TraceAnswer, reason: str) -> TraceNode:
    return TraceNode(agent_id=agent_id, status=status, reason=reason[:_MAX_REASON])
