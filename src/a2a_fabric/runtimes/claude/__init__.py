"""Agents that are folders for Claude Code: instructions in CLAUDE.md, MCP servers in .mcp.json."""

from __future__ import annotations

from collections.abc import Mapping

from a2a_fabric.core.agent import Manifest
from a2a_fabric.runtimes.claude.endpoint import endpoint_of, program_of
from a2a_fabric.runtimes.claude.run import Limits
from a2a_fabric.runtimes.claude.runtime import ClaudeRuntime
from a2a_fabric.runtimes.context import RuntimeContext
from a2a_fabric.runtimes.offered_node import node_as_server


def build(manifest: Manifest, context: RuntimeContext) -> ClaudeRuntime:
    """`context.options["environ"]` is the environment to inherit from. Raises BadInput for a bad endpoint."""
    endpoint = endpoint_of(manifest)
    environ: Mapping[str, str] = context.options.get("environ", {})
    return ClaudeRuntime(
        manifest,
        endpoint,
        program_of(manifest.agent_id, endpoint, context),
        Limits(line_bytes=endpoint.line_bytes or context.reply_bytes, grace=endpoint.grace),
        node_as_server(environ) if endpoint.offer_node else None,
    )
