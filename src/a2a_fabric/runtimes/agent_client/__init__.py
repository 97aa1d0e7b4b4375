"""Runtime for agents that speak the Agent Client Protocol, as the coding agents of editors do."""

from __future__ import annotations

from collections.abc import Callable

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.runtimes.agent_client.endpoint import (
    launch_settings_from_endpoint,
    program_from_endpoint,
    read_endpoint,
    restarts_from_endpoint,
)
from a2a_fabric.runtimes.agent_client.jsonrpc import PipeLimits
from a2a_fabric.runtimes.agent_client.process import AgentProcess, AgentProcessSupervisor
from a2a_fabric.runtimes.agent_client.runtime import AgentClientRuntime, AgentTimeouts
from a2a_fabric.runtimes.context import RuntimeContext


def build(manifest: Manifest, context: RuntimeContext) -> AgentClientRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = read_endpoint(manifest)
    program = program_from_endpoint(manifest.agent_id, endpoint, context)
    launch_settings = launch_settings_from_endpoint(manifest.agent_id, endpoint, context)
    pipe_limits = PipeLimits(line_bytes=endpoint.line_bytes or context.reply_bytes, grace=endpoint.grace)

    def start_process(on_closed: Callable[[AgentProcess], None]) -> AgentProcess:
        return AgentProcess(program, pipe_limits, launch_settings, on_closed)

    return AgentClientRuntime(
        manifest,
        program,
        AgentProcessSupervisor(manifest.agent_id, start_process, restarts_from_endpoint(endpoint)),
        AgentTimeouts(answer_timeout=endpoint.answer_timeout, cancel_timeout=endpoint.cancel_timeout),
        max_sessions=endpoint.max_sessions,
        reply_bytes=context.reply_bytes,
    )


plugin = RuntimePlugin(build=build)
