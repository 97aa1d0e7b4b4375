"""Agents that speak the Agent Client Protocol: programs that editors start to have code written."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.agent import Manifest
from a2a_fabric.runtimes.agent_client.endpoint import endpoint_of, program_of, restarts_of, terms_of
from a2a_fabric.runtimes.agent_client.keeper import Keeper
from a2a_fabric.runtimes.agent_client.link import Link
from a2a_fabric.runtimes.agent_client.runtime import AgentClientRuntime, Times
from a2a_fabric.runtimes.agent_client.wire import Pipes
from a2a_fabric.runtimes.context import RuntimeContext


def build(manifest: Manifest, context: RuntimeContext) -> AgentClientRuntime:
    """`context.options["environ"]` is the environment to inherit from. Raises BadInput for a bad endpoint."""
    endpoint = endpoint_of(manifest)
    program = program_of(manifest.agent_id, endpoint, context)
    terms = terms_of(manifest.agent_id, endpoint, context)
    pipes = Pipes(line_bytes=endpoint.line_bytes or context.reply_bytes, grace=endpoint.grace)

    def connect(over: Callable[[Link], None]) -> Link:
        return Link(program, pipes, terms, over)

    return AgentClientRuntime(
        manifest,
        program,
        Keeper(manifest.agent_id, connect, restarts_of(endpoint)),
        Times(answer_timeout=endpoint.answer_timeout, cancel_timeout=endpoint.cancel_timeout),
        max_sessions=endpoint.max_sessions,
        reply_bytes=context.reply_bytes,
    )
