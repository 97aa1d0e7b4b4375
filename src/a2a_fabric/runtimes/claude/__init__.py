"""Runtime for agents that are folders for Claude Code: instructions in CLAUDE.md, MCP servers in .mcp.json."""

from __future__ import annotations

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.runtimes.claude.endpoint import program_from_endpoint, read_endpoint
from a2a_fabric.runtimes.claude.process import ClaudeProcessLimits
from a2a_fabric.runtimes.claude.runtime import ClaudeRuntime
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.programs import build_node_mcp_server


def build(manifest: Manifest, context: RuntimeContext) -> ClaudeRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = read_endpoint(manifest)
    return ClaudeRuntime(
        manifest,
        endpoint,
        program_from_endpoint(manifest.agent_id, endpoint, context),
        ClaudeProcessLimits(line_bytes=endpoint.line_bytes or context.reply_bytes, grace=endpoint.grace),
        build_node_mcp_server(context.environ) if endpoint.offer_node else None,
    )


plugin = RuntimePlugin(build=build)
