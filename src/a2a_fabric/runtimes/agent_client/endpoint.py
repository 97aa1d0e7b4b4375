"""A coding agent's endpoint as it stands in a manifest, and what each of its sessions is told."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from acp import schema
from acp.transports import DEFAULT_INHERITED_ENV_VARS
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.runtimes.agent_client.permissions import Policy
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.offered_node import node_as_server
from a2a_fabric.runtimes.process_child import Program, environment
from a2a_fabric.runtimes.process_jsonl import Restarts

Seconds = Annotated[float, Meta(ge=0)]
MCPServer = schema.McpServerStdio | schema.HttpMcpServer | schema.SseMcpServer


class MCPServerGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server for the agent to use: a program, or an address."""

    name: Annotated[str, Meta(min_length=1)]
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    url: str | None = None
    type: Literal["stdio", "http", "sse"] | None = None
    headers: dict[str, str] = {}


class AgentClientEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: list[str] | str  # a string is split like a shell would; there is no shell
    transport: Literal["stdio"] = "stdio"
    path: str = "."  # where the agent works, from the folder of the configuration
    env: dict[str, str] = {}
    permissions: Policy = "deny"
    answer_timeout: Annotated[float, Meta(gt=0)] = 300.0  # how long a request for permission waits for its answer
    authenticate: str | None = None  # id of the method to use
    mcp_servers: list[MCPServerGiven] = []
    offer_node: bool = False  # this node as one more MCP server
    max_sessions: Annotated[int, Meta(ge=1)] = 32  # conversations that are remembered
    start_timeout: Annotated[float, Meta(gt=0)] = 30.0  # until it has said who it is
    cancel_timeout: Seconds = 5.0  # until an agent that goes on after a cancel is ended
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    backoff: Seconds = 0.5
    backoff_max: Seconds = 30.0
    max_restarts: Annotated[int, Meta(ge=0)] | None = None
    line_bytes: Annotated[int, Meta(ge=1024)] | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a started agent is told and allowed."""

    cwd: str
    mcp_servers: tuple[MCPServer, ...]
    permissions: Policy
    authenticate: str | None
    start_timeout: float


def endpoint_of(manifest: Manifest) -> AgentClientEndpoint:
    """Raises BadInput."""
    return decode_endpoint(manifest, AgentClientEndpoint)


def restarts_of(endpoint: AgentClientEndpoint) -> Restarts:
    return Restarts(first=endpoint.backoff, longest=endpoint.backoff_max, most=endpoint.max_restarts)


def program_of(agent_id: str, endpoint: AgentClientEndpoint, context: RuntimeContext) -> Program:
    """Raises BadInput."""
    try:
        argv = shlex.split(endpoint.command) if isinstance(endpoint.command, str) else endpoint.command
    except ValueError as exc:
        raise _bad(agent_id, f"command: {exc}") from exc
    texts = [*argv, endpoint.path, *endpoint.env, *endpoint.env.values()]
    if not argv or not argv[0] or any("\0" in text for text in texts) or any("=" in name for name in endpoint.env):
        raise _bad(agent_id, "command or env cannot be run")
    inherited = _inherited(context)
    usual = {name: inherited[name] for name in DEFAULT_INHERITED_ENV_VARS if name in inherited}
    return Program(
        agent_id=agent_id,
        argv=tuple(argv),
        env=environment(inherited, {**usual, **endpoint.env}),
        cwd=_folder(endpoint, context),
    )


def terms_of(agent_id: str, endpoint: AgentClientEndpoint, context: RuntimeContext) -> Terms:
    """Raises BadInput."""
    servers = [_server(agent_id, given) for given in endpoint.mcp_servers]
    if endpoint.offer_node:
        servers.append(_this_node(_inherited(context)))
    return Terms(
        cwd=str(_folder(endpoint, context)),
        mcp_servers=tuple(servers),
        permissions=endpoint.permissions,
        authenticate=endpoint.authenticate,
        start_timeout=endpoint.start_timeout,
    )


def _inherited(context: RuntimeContext) -> Mapping[str, str]:
    inherited: Mapping[str, str] = context.options.get("environ", {})
    return inherited


def _folder(endpoint: AgentClientEndpoint, context: RuntimeContext) -> Path:
    return (context.base / endpoint.path).resolve()


def _server(agent_id: str, given: MCPServerGiven) -> MCPServer:
    if (given.command is None) == (given.url is None):
        raise _bad(agent_id, f"the MCP server {given.name!r} has either a `command` or a `url`")
    if given.command is not None:
        return _program_server(given.name, given.command, given.args, given.env)
    headers: list[Any] = [schema.HttpHeader(name=name, value=value) for name, value in given.headers.items()]
    if given.type == "sse":
        return schema.SseMcpServer(type="sse", name=given.name, url=str(given.url), headers=headers)
    return schema.HttpMcpServer(type="http", name=given.name, url=str(given.url), headers=headers)


def _this_node(environ: Mapping[str, str]) -> MCPServer:
    """Every agent starts programs."""
    node = node_as_server(environ)
    return _program_server(node.name, node.command, list(node.args), node.env)


def _program_server(name: str, command: str, args: list[str], env: dict[str, str]) -> schema.McpServerStdio:
    variables = [schema.EnvVariable(name=key, value=value) for key, value in env.items()]
    return schema.McpServerStdio(name=name, command=command, args=args, env=variables)


def _bad(agent_id: str, why: str) -> BadInput:
    return BadInput(f"Agent '{agent_id}' has a bad endpoint: {why}", agent_id=agent_id)
