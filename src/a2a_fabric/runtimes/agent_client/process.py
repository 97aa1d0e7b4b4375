"""One agent process with its handshake, sessions and errors, and the supervisor that restarts it with back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from acp import PROTOCOL_VERSION, schema
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from pydantic import BaseModel, ValidationError

from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, NotReached, UpstreamFailed, UpstreamRefused
from a2a_fabric.runtimes.agent_client.content import ContentBlock
from a2a_fabric.runtimes.agent_client.endpoint import (
    AgentLaunchSettings,
    MCPServerConfig,
    cancelled_outcome,
    outcome_from_policy,
    parse_request,
)
from a2a_fabric.runtimes.agent_client.jsonrpc import (
    AgentMessageHandler,
    AgentRPCError,
    JSONRPCPipe,
    PipeLimits,
    SendReply,
)
from a2a_fabric.runtimes.agent_client.turn import PromptResponse, PromptTurn
from a2a_fabric.runtimes.programs import ChildProcess, ProgramSpec, RestartPolicy
from a2a_fabric.version import __version__

AUTH_REQUIRED = -32000
_INVALID_PARAMS = -32602
_MAX_ERROR_TEXT = 2000
_LOGIN_HINT = "log in with the agent's own program, set its variables under `env`, or name a method as `authenticate`"

AuthMethod = schema.EnvVarAuthMethod | schema.TerminalAuthMethod | schema.AuthMethodAgent


def error_text(error: AgentRPCError) -> str:
    """`Internal error: out of cheese`"""
    details = _details_text(error.data)
    return (f"{error.message}: {details}" if details else error.message or f"error {error.code}")[:_MAX_ERROR_TEXT]


def error_from_prompt(error: AgentRPCError, methods: Sequence[AuthMethod]) -> FabricError:
    """The error for a prompt that failed; the prompt may have run."""
    if error.code == AUTH_REQUIRED:
        return login_required(error, methods)
    if error.code == _INVALID_PARAMS:
        return BadInput(error_text(error), upstream_code=error.code)
    return UpstreamRefused(error_text(error), upstream_code=error.code)


def error_from_session(error: AgentRPCError, methods: Sequence[AuthMethod]) -> AgentOffline:
    """The error for a request that precedes the prompt, so no work has run."""
    if error.code == AUTH_REQUIRED:
        return login_required(error, methods)
    return AgentOffline(f"The agent did not open a session: {error_text(error)}", upstream_code=error.code)


def login_required(error: AgentRPCError, methods: Sequence[AuthMethod]) -> AgentOffline:
    descriptions = "; ".join(_describe_method(method) for method in methods)
    known_methods = f" Its login methods: {descriptions}." if descriptions else ""
    why = f"The agent requires a login ({error_text(error)}): {_LOGIN_HINT}.{known_methods}"
    return AgentOffline(why, upstream_code=error.code, auth_methods=[method.id for method in methods])


def _describe_method(method: AuthMethod) -> str:
    """`gemini-api-key (Use an API key; GEMINI_API_KEY)`"""
    variables = [each.name for each in method.vars] if isinstance(method, schema.EnvVarAuthMethod) else []
    return f"{method.id} ({'; '.join([method.name, *variables])})"


def _details_text(data: Any) -> str:
    if data is None or isinstance(data, str):
        return data or ""
    if isinstance(data, dict) and isinstance(text := data.get("details") or data.get("message"), str):
        return text
    return msgspec.json.encode(data).decode()


_CLOSE_TIMEOUT = 5.0
_CLIENT_INFO = schema.Implementation(name="a2a-fabric", title="Fabric", version=__version__)


class AgentProcess(AgentMessageHandler):
    """Opens in the background and calls `on_closed` once, when it can no longer be used; then `exit_reason` is set."""

    def __init__(
        self,
        program: ProgramSpec,
        pipe_limits: PipeLimits,
        launch_settings: AgentLaunchSettings,
        on_closed: Callable[[AgentProcess], None],
    ) -> None:
        self.handshake = schema.InitializeResponse(protocol_version=PROTOCOL_VERSION)
        self.is_open = False
        self.is_closed = False
        self.has_failed = False
        self.has_answered = False
        self.exit_reason = ""
        self._program = program
        self._pipe_limits = pipe_limits
        self._launch_settings = launch_settings
        self._on_closed = on_closed
        self._turns: dict[str, PromptTurn] = {}
        self._is_retired = False
        self._pipe: JSONRPCPipe | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._start_task = asyncio.ensure_future(self._start())

    @property
    def has_exited(self) -> bool:
        return self._start_task.done() and (self._pipe is None or self._pipe.has_exited)

    @property
    def prompt_capabilities(self) -> schema.PromptCapabilities:
        return self._capabilities.prompt_capabilities or schema.PromptCapabilities()

    @property
    def auth_methods(self) -> Sequence[AuthMethod]:
        return self.handshake.auth_methods or []

    async def wait_started(self) -> None:
        """Wait until the process is open or closed."""
        await asyncio.wait([self._start_task])

    async def new_session(self) -> str:
        """Raises FabricError; then no work has run."""
        request = schema.NewSessionRequest(cwd=self._launch_settings.cwd, mcp_servers=[*self._usable_servers()])
        try:
            reply = await self._request("session_new", request)
            return schema.NewSessionResponse.model_validate(reply).session_id
        except AgentRPCError as error:
            raise error_from_session(error, self.auth_methods) from error
        except ValidationError as error:
            raise AgentOffline("The agent's new session has no id") from error

    async def restore_session(self, session_id: str) -> bool:
        """Restore a session of an earlier process. Returns whether the agent still has it."""
        sessions = self._capabilities.session_capabilities
        fields: dict[str, Any] = {
            "cwd": self._launch_settings.cwd,
            "session_id": session_id,
            "mcp_servers": [*self._usable_servers()],
        }
        try:
            if sessions is not None and sessions.resume is not None:
                await self._request("session_resume", schema.ResumeSessionRequest(**fields))
            elif self._capabilities.load_session:
                await self._request("session_load", schema.LoadSessionRequest(**fields))
            else:
                return False
        except AgentRPCError:
            return False
        return True

    async def close_session(self, session_id: str) -> None:
        """Close the session at the agent, if it supports that. Never raises."""
        sessions = self._capabilities.session_capabilities
        if self.is_closed or sessions is None or sessions.close is None:
            return
        with suppress(AgentRPCError, FabricError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._request("session_close", schema.CloseSessionRequest(session_id=session_id))

    def unsupported_server_notes(self) -> tuple[str, ...]:
        """A note for each MCP server that this agent cannot use."""
        offered = set(map(id, self._usable_servers()))
        return tuple(
            f"the MCP server '{server.name}' was not offered: the agent uses none over {server.type}"
            for server in self._launch_settings.mcp_servers
            if id(server) not in offered and not isinstance(server, schema.McpServerStdio)
        )

    async def run_prompt(
        self, session_id: str, turn: PromptTurn, blocks: list[ContentBlock], meta: dict[str, Any]
    ) -> PromptResponse:
        """Run one turn; updates from the agent go to `turn`. Raises FabricError."""
        self._turns[session_id] = turn
        try:
            request = schema.PromptRequest(session_id=session_id, prompt=[*blocks], field_meta=meta or None)
            reply = await self._request("session_prompt", request)
            self.has_answered = True
            return msgspec.convert(reply, PromptResponse)
        except AgentRPCError as error:
            self.has_answered = True
            raise error_from_prompt(error, self.auth_methods) from error
        except msgspec.ValidationError as error:
            raise UpstreamFailed(f"The agent's reply cannot be read: {error}") from error
        finally:
            del self._turns[session_id]
            self._stop_if_idle()

    def cancel(self, session_id: str) -> None:
        request = schema.CancelNotification(session_id=session_id)
        if self._pipe is not None:
            self._pipe.notify(AGENT_METHODS["session_cancel"], to_json(request))

    def retire(self) -> None:
        """Accept no further turns, and stop the process when no turn is waiting."""
        self._is_retired = True
        self._close("it went on with work that was cancelled")
        self._stop_if_idle()

    async def aclose(self) -> None:
        """Never raises."""
        self._close("it is shut down with the node")
        self._start_task.cancel()
        await asyncio.wait([self._start_task])
        if self._pipe is not None:
            await self._pipe.stop()

    def on_notification(self, method: str, params: Any, size: int) -> None:
        match params:
            case {"sessionId": str(session_id), "update": dict(update)} if method == CLIENT_METHODS["session_update"]:
                turn = self._turns.get(session_id)
                if turn is not None:
                    turn.add_update(update, size)

    def on_request(self, method: str, params: Any, reply: SendReply) -> bool:
        """Only permission requests are supported: the agent gets neither files nor a terminal of this node."""
        request = parse_request(params) if method == CLIENT_METHODS["session_request_permission"] else None
        if request is None:
            return False
        turn, policy = self._turns.get(request.session_id), self._launch_settings.permissions
        if turn is None:
            reply(cancelled_outcome())
        elif policy == "ask":
            turn.add_permission_request(request, params, reply)
        else:
            reply(outcome_from_policy(request, policy))
            if policy == "deny":
                turn.notes.append(f"permission was denied, as the manifest says: {request.title}")
        return True

    @property
    def _capabilities(self) -> schema.AgentCapabilities:
        return self.handshake.agent_capabilities or schema.AgentCapabilities()

    def _usable_servers(self) -> list[MCPServerConfig]:
        """The MCP servers that the agent can reach; every agent can start programs."""
        capabilities = self._capabilities.mcp_capabilities or schema.McpCapabilities()
        supported = {"http": capabilities.http, "sse": capabilities.sse}
        return [
            server
            for server in self._launch_settings.mcp_servers
            if isinstance(server, schema.McpServerStdio) or supported[server.type]
        ]

    async def _request(self, method: str, request: BaseModel) -> Any:
        if self._pipe is None:
            raise AgentOffline(self.exit_reason or "The agent is not running")
        return await self._pipe.request(AGENT_METHODS[method], to_json(request))

    async def _start(self) -> None:
        try:
            child = await ChildProcess.start(self._program)
            self._pipe = JSONRPCPipe(child, self._pipe_limits, self, self._on_pipe_closed)
            async with asyncio.timeout(self._launch_settings.start_timeout):
                await self._initialize()
            self.is_open = not self.is_closed
        except FabricError as error:
            await self._fail(error.full_message)
        except AgentRPCError as error:
            await self._fail(self._program.describe(f"refused the login: {error_text(error)}"))
        except ValidationError:
            await self._fail(self._program.describe("sent a handshake that the protocol does not allow"))
        except TimeoutError:
            timeout_text = f"it did not answer the handshake within {self._launch_settings.start_timeout:g} s"
            reason = self._pipe.exit_reason if self._pipe else self._program.describe("did not start")
            await self._fail(reason + f"; {timeout_text}")

    async def _initialize(self) -> None:
        request = schema.InitializeRequest(
            protocol_version=PROTOCOL_VERSION, client_capabilities=schema.ClientCapabilities(), client_info=_CLIENT_INFO
        )
        handshake = schema.InitializeResponse.model_validate(await self._request("initialize", request))
        if handshake.protocol_version != PROTOCOL_VERSION:
            why = f"The agent speaks protocol version {handshake.protocol_version}, this node {PROTOCOL_VERSION}"
            raise AgentOffline(why)
        self.handshake = handshake
        if self._launch_settings.authenticate is not None:
            await self._request(
                "authenticate", schema.AuthenticateRequest(method_id=self._launch_settings.authenticate)
            )

    async def _fail(self, why: str) -> None:
        if not self.is_closed:
            self.has_failed = True
        self._close(why)
        if self._pipe is not None:
            await self._pipe.stop()

    def _on_pipe_closed(self, pipe: JSONRPCPipe) -> None:
        if not self.is_closed:
            self.has_failed = pipe.has_failed
        self._close(pipe.exit_reason)

    def _close(self, why: str) -> None:
        if not self.is_closed:
            self.is_open, self.is_closed, self.exit_reason = False, True, why
            self._on_closed(self)

    def _stop_if_idle(self) -> None:
        is_needed = any(not turn.is_abandoned for turn in self._turns.values())
        if self._is_retired and not is_needed and self._pipe is not None and self._stop_task is None:
            self._stop_task = asyncio.ensure_future(self._pipe.stop())


def to_json(request: BaseModel) -> dict[str, Any]:
    return request.model_dump(mode="json", by_alias=True, exclude_none=True)


StartProcess = Callable[[Callable[[AgentProcess], None]], AgentProcess]


class AgentProcessSupervisor:
    """Keeps one agent process for all calls; `connect` starts a new one."""

    def __init__(self, name: str, start_process: StartProcess, restarts: RestartPolicy) -> None:
        self._name = name
        self._start_process = start_process
        self._restarts = restarts
        self._current: AgentProcess | None = None
        self._processes: set[AgentProcess] = set()
        self._failures = 0  # in a row, without an answer in between
        self._ready_at = 0.0
        self._is_closed = False

    @property
    def current(self) -> AgentProcess | None:
        """The process, if it is open."""
        return self._current if self._current is not None and self._current.is_open else None

    async def get_process(self, timeout: float | None = None) -> AgentProcess:
        """An open process. Raises AgentOffline: at once during back-off, else when the time-out is over."""
        process = self._current
        if process is None or process.is_closed:
            self.check_ready()
            process = self._current = self._start_process(self._on_closed)
            self._processes = {each for each in self._processes if not each.has_exited} | {process}
        if not process.is_open:
            await self._wait_started(process, timeout)
        return process

    def check_ready(self) -> None:
        """Raises AgentOffline if the agent has failed and is not started again yet."""
        if self._is_closed:
            raise AgentOffline("The agent is shut down with the node", agent_id=self._name)
        reason = self._current.exit_reason if self._current is not None else "it failed"
        if self._restarts.is_exhausted(self._failures):
            raise AgentOffline(
                reason + f"; after {self._failures} failures it is not started again", agent_id=self._name
            )
        wait = self._ready_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise AgentOffline(reason + f"; it is started again in {wait:.1f} s", agent_id=self._name, retry_after=wait)

    async def aclose(self) -> None:
        self._is_closed = True
        if tasks := [asyncio.ensure_future(process.aclose()) for process in self._processes]:
            await asyncio.wait(tasks)

    async def _wait_started(self, process: AgentProcess, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await process.wait_started()
        except TimeoutError as exc:
            raise NotReached(f"The agent is still starting after {timeout:.1f} s", agent_id=self._name) from exc
        if not process.is_open:
            raise AgentOffline(process.exit_reason, agent_id=self._name)

    def _on_closed(self, process: AgentProcess) -> None:
        """An agent that had answered before it exited is restarted by the next call; any other after back-off."""
        if process.has_failed and process.has_answered:
            self._failures, self._ready_at = 1, 0.0
        elif process.has_failed:
            self._failures += 1
            self._ready_at = asyncio.get_running_loop().time() + self._restarts.delay(self._failures)
