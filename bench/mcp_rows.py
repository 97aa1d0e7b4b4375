"""MCP `tools/call` of a small tool: a server itself, then through a bare forwarder, our node and FastMCP's proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from bench import mcp_fastmcp, processes
from bench.mcp_wire import handshake, stateless
from bench.processes import TOKEN, Cores, ServerProcess
from bench.rows import CONNECTIONS, Effort, Row, alternate, cells, why_not_ready

BARE = "bare forwarder"
FASTMCP = f"FastMCP {mcp_fastmcp.VERSION} proxy"
NEW, OLD = "2026-07-28", "handshake"
_MANIFESTS = """\
- agent_id: new
  runtime: mcp
  endpoint: {{transport: http, uri: '{uri}', era: stateless}}
  trust_tier: org
- agent_id: old
  runtime: mcp
  endpoint: {{transport: http, uri: '{uri}', era: handshake}}
  trust_tier: org
"""


def manifests(uri: str) -> str:
    return _MANIFESTS.format(uri=uri)


def run(runner: asyncio.Runner, cores: Cores, effort: Effort) -> None:
    with _rows(cores) as (rows, absent):
        measured = []
        for row in rows:
            why = runner.run(why_not_ready(row))
            if why is None:
                measured.append(row)
            elif row.is_foreign:
                absent[row.name] = f"does not answer: {why}"
            else:
                raise SystemExit(f"{row.name} does not answer: {why}")
        runner.run(alternate(measured, effort))
        _show(measured, absent)


@contextmanager
def _rows(cores: Cores) -> Iterator[tuple[list[Row], dict[str, str]]]:
    """The rows, and the reasons why rows are missing."""
    with processes.module("bench.mcp_upstream", core=cores.load) as upstream:
        processes.wait_for(upstream.port)
        uri = f"http://127.0.0.1:{upstream.port}/mcp"
        with (
            processes.module("bench.mcp_sdk_server", core=cores.gateway) as sdk,
            processes.module("bench.mcp_forwarder", uri, core=cores.gateway) as bare,
            processes.node(manifests(uri), cores.gateway) as node,
            _fastmcp(uri, cores.gateway) as (theirs, absent),
        ):
            yield [*_without_a_gateway(upstream, sdk, bare), *_through(node), *theirs], absent


def _without_a_gateway(upstream: ServerProcess, sdk: ServerProcess, bare: ServerProcess) -> list[Row]:
    return [
        Row("server directly, 2026-07-28", *upstream, stateless(upstream.port, "/mcp", "add"), NEW),
        Row("server directly, handshake", *upstream, handshake(upstream.port, "/mcp", "add"), OLD),
        Row("plain SDK server, 2026-07-28", *sdk, stateless(sdk.port, "/mcp", "add"), NEW),
        Row("plain SDK server, handshake", *sdk, handshake(sdk.port, "/mcp", "add"), OLD),
        Row(BARE, *bare, stateless(bare.port, "/mcp", "add"), NEW),
    ]


def _through(node: ServerProcess) -> list[Row]:
    port = node.port
    return [
        Row("fabric node, 2026-07-28", *node, stateless(port, "/mcp", "new_add", TOKEN), NEW),
        Row("fabric node, 2026-07-28, one agent", *node, stateless(port, "/agents/new/mcp", "add", TOKEN), NEW),
        Row("fabric node, handshake", *node, handshake(port, "/mcp", "new_add", TOKEN), OLD),
        Row("fabric node, handshake, one agent", *node, handshake(port, "/agents/new/mcp", "add", TOKEN), OLD),
        Row("fabric node, 2026-07-28 to handshake", *node, stateless(port, "/mcp", "old_add", TOKEN), NEW),
        Row("fabric node, handshake to handshake", *node, handshake(port, "/mcp", "old_add", TOKEN), OLD),
    ]


@contextmanager
def _fastmcp(uri: str, core: int | None) -> Iterator[tuple[list[Row], dict[str, str]]]:
    try:
        with mcp_fastmcp.proxy(uri, core) as (port, pid):
            new, old = stateless(port, "/mcp", "add"), handshake(port, "/mcp", "add")
            rows = [
                Row(f"{FASTMCP}, 2026-07-28", port, pid, new, NEW, is_foreign=True),
                Row(f"{FASTMCP}, handshake", port, pid, old, OLD, is_foreign=True),
            ]
            yield rows, {}
    except mcp_fastmcp.NotInstalled as exc:
        yield [], {FASTMCP: f"cannot be installed: {exc}"}


def _show(rows: list[Row], absent: dict[str, str]) -> None:
    print("\n| MCP tools/call | connections | calls/s | p50 ms | p99 ms | CPU µs/call | share of forwarder "
          "| times FastMCP's proxy |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    bare = next(row for row in rows if row.name == BARE)
    for connections in CONNECTIONS:
        for row in rows:
            print(f"{cells(row, connections, bare)} {_times_theirs(row, rows, connections)} |")
    for name, why in absent.items():
        print(f"\n{name}: {why}")
    for row in rows:
        if row.failures:
            print(f"\n{row.name}: {row.failures:,} calls failed")


def _times_theirs(row: Row, rows: list[Row], connections: int) -> str:
    """The ratio to FastMCP's proxy with a client of the same era, else of any era."""
    theirs = [each for each in rows if each.is_foreign]
    theirs.sort(key=lambda each: each.era != row.era)
    return f"{row.median(connections).rate / theirs[0].median(connections).rate:.1f}" if theirs else "–"
