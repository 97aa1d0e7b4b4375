"""The endpoint of an Agent Client Protocol agent in a manifest: its program, its sessions, its permissions.

A permission request of the agent is decided by a policy, or passed to the caller as a question. The agent
offers options, each with an id, a name and a kind (allow or reject, once or always). A policy picks the least
far-reaching option of its kind; if there is none, the request is answered as cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from acp import schema
from acp.transports import DEFAULT_INHERITED_ENV_VARS
from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.result import Answer, Question
from a2a_fabric.runtimes.context import RuntimeContext, bad_endpoint, decode_endpoint
from a2a_fabric.runtimes.programs import ProgramSpec, RestartPolicy, build_node_mcp_server, build_program

PermissionPolicy = Literal["deny", "allow", "ask"]

_OPTION_FIELD = "option"
_MAX_TITLE = 2000


class PermissionOption(msgspec.Struct, frozen=True, rename="camel"):
    option_id: str
    name: str = ""
    kind: str = ""


class PermissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `session/request_permission` that are used here."""

    session_id: str
    options: tuple[PermissionOption, ...] = ()
    tool_call: dict[str, Any] = {}

    @property
    def title(self) -> str:
        label = self.tool_call.get("title") or self.tool_call.get("kind") or "something"
        return str(label)[:_MAX_TITLE]


PermissionOutcome = dict[str, Any]


def parse_request(params: Any) -> PermissionRequest | None:
    """None if the message is not a valid request."""
    try:
        return msgspec.convert(params, PermissionRequest)
    except msgspec.ValidationError:
        return None


def cancelled_outcome() -> PermissionOutcome:
    return {"outcome": {"outcome": "cancelled"}}


def outcome_from_policy(request: PermissionRequest, policy: Literal["deny", "allow"]) -> PermissionOutcome:
    return _select_option(request.options, "allow" if policy == "allow" else "reject")


def question_from_request(request: PermissionRequest, params: dict[str, Any]) -> Question:
    """A form with one field: which of the options."""
    choice = {
        "type": "string",
        "title": "Decision",
        "enum": [option.option_id for option in request.options],
        "enumNames": [option.name or option.option_id for option in request.options],
    }
    return Question(
        kind="form",
        message=f"The agent asks for permission: {request.title}",
        schema={"type": "object", "properties": {_OPTION_FIELD: choice}, "required": [_OPTION_FIELD]},
        params=params,
    )


def outcome_from_answer(key: str, request: PermissionRequest, answer: Answer) -> PermissionOutcome:
    """The outcome that the caller chose. Raises BadInput for an unknown option."""
    if answer.action == "cancel":
        return cancelled_outcome()
    if answer.action == "decline":
        return _select_option(request.options, "reject")
    choice = answer.content.get(_OPTION_FIELD) if isinstance(answer.content, dict) else answer.content
    if choice is None:
        return _select_option(request.options, "allow")
    for option in request.options:
        if choice in (option.option_id, option.name):
            return _selected_outcome(option)
    offered = ", ".join(option.option_id for option in request.options)
    raise BadInput(f"The answer to {key!r} must name one of the options: {offered}", field=f"answers.{key}")


def _select_option(options: Sequence[PermissionOption], verb: Literal["allow", "reject"]) -> PermissionOutcome:
    for kind in (f"{verb}_once", f"{verb}_always"):
        for option in options:
            if option.kind == kind:
                return _selected_outcome(option)
    return cancelled_outcome()


def _selected_outcome(option: PermissionOption) -> PermissionOutcome:
    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}


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
