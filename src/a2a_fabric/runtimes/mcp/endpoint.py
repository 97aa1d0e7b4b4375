"""The endpoint of an MCP server: its address or its command, and how a connection to it is opened."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.runtimes.context import RuntimeContext, bad_endpoint, decode_endpoint
from a2a_fabric.runtimes.mcp.sse import McpSseTransport
from a2a_fabric.runtimes.mcp.stdio import McpStdioTransport
from a2a_fabric.runtimes.mcp.transports import McpHttpTarget, McpHttpTransport, McpTransport
from a2a_fabric.runtimes.programs import RestartPolicy, build_program

Seconds = Annotated[float, Meta(ge=0)]


class McpServerEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoint of a manifest: a command to start, or an address (Streamable HTTP, or `transport: sse`)."""

    transport: Literal["stdio", "http", "streamable-http", "sse"] | None = (
        None  # by default it follows from the other fields
    )
    era: Literal["auto", "handshake", "stateless"] = "auto"
    start_timeout: Annotated[float, Meta(gt=0)] = 30.0  # seconds until the first answer
    answer_timeout: Seconds = 300.0  # seconds that a question of the server waits; 0: it may not ask
    backoff: Seconds | None = None
    backoff_max: Seconds | None = None
    # stdio
    command: list[str] | str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str = "."  # relative to the folder of the configuration
    grace: Seconds = 2.0  # between SIGTERM and SIGKILL
    line_bytes: Annotated[int, Meta(ge=1024)] | None = None
    shared: bool = False  # the server keeps nothing per session: all clients of `/agents/ID/mcp` share one process
    # http
    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)] | None = None
    headers: dict[str, str] = {}


def read_endpoint(manifest: Manifest) -> McpServerEndpoint:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, McpServerEndpoint)
    if (endpoint.uri is None) == (endpoint.command is None):
        raise bad_endpoint(manifest.agent_id, "an MCP server has either a `command` or a `uri`")
    if endpoint.transport is not None and (endpoint.transport == "stdio") == (endpoint.command is None):
        required_key = "command" if endpoint.transport == "stdio" else "uri"
        raise bad_endpoint(manifest.agent_id, f"transport {endpoint.transport} needs a `{required_key}`")
    if endpoint.shared and endpoint.command is None:
        raise bad_endpoint(manifest.agent_id, "`shared` is for a program; clients of a `uri` share the server anyway")
    return endpoint


def build_http_target(endpoint: McpServerEndpoint, context: RuntimeContext) -> McpHttpTarget | None:
    if endpoint.uri is None:
        return None
    uri, headers = _move_credentials(endpoint.uri, endpoint.headers)
    return McpHttpTarget(uri=uri, headers=headers, reply_bytes=context.reply_bytes)


def _move_credentials(uri: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """A user name and a password in the address become a header: our HTTP client sends no address that has any."""
    parts = urlsplit(uri)
    credentials, separator, host = parts.netloc.rpartition("@")
    if not separator:
        return uri, headers
    user, _, password = credentials.partition(":")
    basic = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    has_own = "authorization" in {name.lower() for name in headers}
    own_headers = headers if has_own else {**headers, "authorization": f"Basic {basic}"}
    return urlunsplit(parts._replace(netloc=host)), own_headers


def build_restart_policy(endpoint: McpServerEndpoint) -> RestartPolicy:
    """Programs are restarted less eagerly than addresses are tried, because starting them costs more."""
    first_delay, max_delay = (0.5, 30.0) if endpoint.uri is None else (0.1, 2.0)
    return RestartPolicy(
        first_delay=first_delay if endpoint.backoff is None else endpoint.backoff,
        max_delay=max_delay if endpoint.backoff_max is None else endpoint.backoff_max,
    )


def make_transport_factory(
    agent_id: str, endpoint: McpServerEndpoint, target: McpHttpTarget | None, context: RuntimeContext
) -> Callable[[], McpTransport]:
    """The returned function makes a new transport each time it is called."""
    if target is not None and endpoint.transport == "sse":
        return lambda: McpSseTransport(target, context.http)
    if target is not None:
        return lambda: McpHttpTransport(target, context.http)
    program = build_program(
        context,
        agent_id,
        _join_command(endpoint),
        env=endpoint.env,
        cwd=endpoint.cwd,
        inherited=DEFAULT_INHERITED_ENV_VARS,
    )
    return lambda: McpStdioTransport(program, endpoint.line_bytes or context.reply_bytes, endpoint.grace)


def _join_command(endpoint: McpServerEndpoint) -> list[str] | str:
    """A string with `args` beside it is the program's name; a string alone is split as a shell would."""
    command = endpoint.command or []
    if isinstance(command, list):
        return [*command, *endpoint.args]
    return [command, *endpoint.args] if endpoint.args else command
