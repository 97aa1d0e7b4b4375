"""The endpoint of an Agent Client Protocol agent in a manifest, and the program and session settings made from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from acp import schema
from acp.transports import DEFAULT_INHERITED_ENV_VARS
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.runtimes.agent_client.permissions import PermissionPolicy
from a2a_fabric.runtimes.context import RuntimeContext, bad_endpoint, decode_endpoint
from a2a_fabric.runtimes.programs import ProgramSpec, RestartPolicy, build_node_mcp_server, build_program

Seconds = Annotated[float, Meta(ge=0)]
MCPServerConfig = schema.McpServerStdio | schema.HttpMcpServer | schema.SseMcpServer


class MCPServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    permissions: PermissionPolicy = "deny"
    answer_timeout: Annotated[float, Meta(gt=0)] = 300.0  # how long a request for permission waits for its answer
    authenticate: str | None = None  # id of the method to use
    mcp_servers: list[MCPServerSettings] = []
    offer_node: bool = False  # this node as one more MCP server
    max_sessions: Annotated[int, Meta(ge=1)] = 32  # conversations that are remembered
    start_timeout: Annotated[float, Meta(gt=0)] = 30.0  # until the agent has answered the handshake
    cancel_timeout: Seconds = 5.0  # until an agent that ignores a cancel is stopped
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    backoff: Seconds = 0.5
    backoff_max: Seconds = 30.0
    max_restarts: Annotated[int, Meta(ge=0)] | None = None
    line_bytes: Annotated[int, Meta(ge=1024)] | None = None


class AgentLaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a started agent: working folder, MCP servers, permissions and limits."""

    cwd: str
    mcp_servers: tuple[MCPServerConfig, ...]
    permissions: PermissionPolicy
    authenticate: str | None
    start_timeout: float


def read_endpoint(manifest: Manifest) -> AgentClientEndpoint:
    """Raises BadInput."""
    return decode_endpoint(manifest, AgentClientEndpoint)


def restarts_from_endpoint(endpoint: AgentClientEndpoint) -> RestartPolicy:
    return RestartPolicy(first_delay=endpoint.backoff, max_delay=endpoint.backoff_max, max_deaths=endpoint.max_restarts)


def program_from_endpoint(agent_id: str, endpoint: AgentClientEndpoint, context: RuntimeContext) -> ProgramSpec:
    """Raises BadInput."""
    return build_program(
        context,
        agent_id,
        endpoint.command,
        env=endpoint.env,
        cwd=endpoint.path,
        inherited=DEFAULT_INHERITED_ENV_VARS,
    )


def launch_settings_from_endpoint(
    agent_id: str, endpoint: AgentClientEndpoint, context: RuntimeContext
) -> AgentLaunchSettings:
    """Raises BadInput."""
    servers = [_convert_server(agent_id, settings) for settings in endpoint.mcp_servers]
    if endpoint.offer_node:
        node = build_node_mcp_server(context.environ)
        servers.append(_stdio_server(node.name, node.command, list(node.args), node.env))
    return AgentLaunchSettings(
        cwd=str((context.base / endpoint.path).resolve()),
        mcp_servers=tuple(servers),
        permissions=endpoint.permissions,
        authenticate=endpoint.authenticate,
        start_timeout=endpoint.start_timeout,
    )


def _convert_server(agent_id: str, settings: MCPServerSettings) -> MCPServerConfig:
    if (settings.command is None) == (settings.url is None):
        raise bad_endpoint(agent_id, f"the MCP server {settings.name!r} has either a `command` or a `url`")
    if settings.command is not None:
        return _stdio_server(settings.name, settings.command, settings.args, settings.env)
    headers: list[Any] = [schema.HttpHeader(name=name, value=value) for name, value in settings.headers.items()]
    if settings.type == "sse":
        return schema.SseMcpServer(type="sse", name=settings.name, url=str(settings.url), headers=headers)
    return schema.HttpMcpServer(type="http", name=settings.name, url=str(settings.url), headers=headers)


def _stdio_server(name: str, command: str, args: list[str], env: dict[str, str]) -> schema.McpServerStdio:
    variables = [schema.EnvVariable(name=key, value=value) for key, value in env.items()]
    return schema.McpServerStdio(name=name, command=command, args=args, env=variables)
