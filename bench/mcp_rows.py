"""MCP `tools/call` of a small tool: the server itself, then through a bare forwarder and through our node."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path

from bench import calls, processes
from bench.mcp_wire import handshake, stateless
from bench.processes import TOKEN, Cores, ServerProcess
from bench.rows import Effort, Row, alternate, print_table, require_ready

BARE = "bare forwarder"
# All clients of the bench are one caller, which has only a share of the sessions with one agent.
SETTINGS = "doors: [{kind: fabric}, {kind: mcp, sessions_per_agent: 256}]\n"
_MANIFESTS = """\
- agent_id: new
  runtime: mcp
  endpoint: {{transport: http, uri: '{uri}', era: stateless}}
  trust_tier: org
- agent_id: old
  runtime: mcp
  endpoint: {{transport: http, uri: '{uri}', era: handshake}}
  trust_tier: org
- agent_id: events
  runtime: mcp
  endpoint: {{transport: http, uri: '{events_uri}', era: handshake}}
  trust_tier: org
- agent_id: pipe
  runtime: mcp
  endpoint: {{transport: stdio, command: {command}, cwd: '{folder}', era: handshake}}
  trust_tier: org
"""


def manifests(uri: str, core: int | None) -> str:
    """The upstream at this address, in both eras, and on stdio, as a program on this core."""
    return _MANIFESTS.format(
        uri=uri,
        events_uri=uri.replace("/mcp", "/events"),
        command=json.dumps(processes.stdio_server(core)),
        folder=Path(__file__).parents[1],
    )


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with ExitStack() as stack:
        upstream = stack.enter_context(processes.mcp_server(cores.load))
        uri = f"http://127.0.0.1:{upstream.port}/mcp"
        bare = bare_row(stack.enter_context(processes.module("bench.mcp_forwarder", uri, core=cores.gateway)))
        agents = manifests(uri, cores.load)
        node = stack.enter_context(processes.node(agents, cores.gateway, settings=SETTINGS))
        others = calls.manifests(upstream.port, calls.MANY_AGENTS - agents.count("agent_id"))
        large = stack.enter_context(processes.node(agents + others, cores.gateway))
        rows = [
            Row("server directly", *upstream, stateless(upstream.port, "/mcp", "add")),
            bare,
            *_rows(node),
            Row(
                f"`/mcp`, stateless server, {calls.MANY_AGENTS:,} agents",
                *large,
                stateless(large.port, "/mcp", "new_add", TOKEN),
            ),
        ]
        require_ready(runner, rows)
        runner.run(alternate(rows, effort))
        print_table("MCP `tools/call`", rows, lambda _: bare)


def bare_row(forwarder: ServerProcess) -> Row:
    return Row(BARE, *forwarder, stateless(forwarder.port, "/mcp", "add"))


def _rows(node: ServerProcess) -> list[Row]:
    port = node.port
    plans = {
        "`/mcp`, stateless server": stateless(port, "/mcp", "new_add", TOKEN),
        "`/mcp`, stateless server, handshake client": handshake(port, "/mcp", "new_add", TOKEN),
        "`/mcp`, handshake server": handshake(port, "/mcp", "old_add", TOKEN),
        "`/mcp`, handshake server, events": handshake(port, "/mcp", "events_add", TOKEN),
        "`/mcp`, handshake server, stateless client": stateless(port, "/mcp", "events_add", TOKEN),
        "`/mcp`, stdio server": handshake(port, "/mcp", "pipe_add", TOKEN),
        "`/agents/ID/mcp`, stateless server": stateless(port, "/agents/new/mcp", "add", TOKEN),
        "`/agents/ID/mcp`, handshake server": handshake(port, "/agents/old/mcp", "add", TOKEN),
        "`/agents/ID/mcp`, handshake server, events": handshake(port, "/agents/events/mcp", "add", TOKEN),
        "`/agents/ID/mcp`, stdio server": handshake(port, "/agents/pipe/mcp", "add", TOKEN),
        "bridge, handshake client to stateless server": handshake(port, "/agents/new/mcp", "add", TOKEN),
        "bridge, stateless client to handshake server": stateless(port, "/agents/events/mcp", "add", TOKEN),
        "bridge, stateless client to stdio server": stateless(port, "/agents/pipe/mcp", "add", TOKEN),
    }
    return [Row(name, *node, plan) for name, plan in plans.items()]
