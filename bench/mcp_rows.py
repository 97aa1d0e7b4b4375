"""MCP `tools/call` of a small tool: a server itself, then through a bare forwarder, our node and FastMCP's proxy."""

from __future__ import annotations

import asyncio
import json
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
        command=json.dumps(mcp_fastmcp.stdio_upstream(core)),
        folder=mcp_fastmcp.HOME.parent,
    )


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
            processes.node(manifests(uri, cores.load), cores.gateway) as node,
            _fastmcp(uri, cores) as (theirs, absent),
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
        Row("fabric node, handshake to handshake, events", *node, handshake(port, "/mcp", "events_add", TOKEN), OLD),
        Row("fabric node, handshake to stdio", *node, handshake(port, "/mcp", "pipe_add", TOKEN), OLD),
        Row("fabric node, bridge to handshake", *node, stateless(port, "/agents/events/mcp", "add", TOKEN), NEW),
        Row("fabric node, bridge to stdio", *node, stateless(port, "/agents/pipe/mcp", "add", TOKEN), NEW),
    ]


@contextmanager
def _fastmcp(uri: str, cores: Cores) -> Iterator[tuple[list[Row], dict[str, str]]]:
    """The proxy as it comes, and with a client that it uses again for all calls."""
    try:
        with (
            mcp_fastmcp.proxy(uri, cores.gateway) as plain,
            mcp_fastmcp.proxy(uri, cores.gateway, reused=True) as reused,
            mcp_fastmcp.proxy(json.dumps(mcp_fastmcp.stdio_upstream(cores.load)), cores.gateway, reused=True) as pipe,
        ):
            yield (
                [
                    _foreign(f"{FASTMCP}, 2026-07-28", plain, NEW),
                    _foreign(f"{FASTMCP}, handshake", plain, OLD),
                    _foreign(f"{FASTMCP}, handshake, reused client", reused, OLD),
                    _foreign(f"{FASTMCP}, handshake to stdio, reused client", pipe, OLD),
                ],
                {},
            )
    except mcp_fastmcp.NotInstalled as exc:
        yield [], {FASTMCP: f"cannot be installed: {exc}"}


def _foreign(name: str, served: ServerProcess, era: str) -> Row:
    connect = stateless if era == NEW else handshake
    return Row(name, *served, connect(served.port, "/mcp", "add"), era, is_foreign=True)


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
