"""One start of an agent: the program, who it says it is, its sessions, and the turns under way in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from acp import PROTOCOL_VERSION, schema
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from pydantic import BaseModel, ValidationError

from a2a_fabric.core.errors import AgentOffline, FabricError, UpstreamFailed
from a2a_fabric.runtimes.agent_client import permissions
from a2a_fabric.runtimes.agent_client.content import Block
from a2a_fabric.runtimes.agent_client.endpoint import MCPServer, Terms
from a2a_fabric.runtimes.agent_client.errors import AuthMethod, never_began, refusal_of, words_of
from a2a_fabric.runtimes.agent_client.turn import Ended, Turn
from a2a_fabric.runtimes.agent_client.wire import Listener, Pipes, Reply, RPCError, Wire
from a2a_fabric.runtimes.process_child import Child, Program
from a2a_fabric.version import __version__

_CLOSE_TIMEOUT = 5.0
_US = schema.Implementation(name="a2a-fabric", title="Fabric", version=__version__)


class Link(Listener):
    """Opens by itself; `over` hears once, when it is of no more use: then `why` says why."""

    def __init__(self, program: Program, pipes: Pipes, terms: Terms, over: Callable[[Link], None]) -> None:
        self.about = schema.InitializeResponse(protocol_version=PROTOCOL_VERSION)
        self.is_open = False
        self.is_over = False
        self.has_failed = False
        self.has_answered = False
        self.why = ""
        self._program = program
        self._pipes = pipes
        self._terms = terms
        self._over = over
        self._turns: dict[str, Turn] = {}
        self._is_retired = False
        self._wire: Wire | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._opening = asyncio.ensure_future(self._open())

    @property
    def is_gone(self) -> bool:
        return self._opening.done() and (self._wire is None or self._wire.is_gone)

    @property
    def takes(self) -> schema.PromptCapabilities:
        return self._can.prompt_capabilities or schema.PromptCapabilities()

    @property
    def auth_methods(self) -> Sequence[AuthMethod]:
        return self.about.auth_methods or []

    async def settled(self) -> None:
        """Until it is open or over."""
        await asyncio.wait([self._opening])

    async def new_session(self) -> str:
        """Raises FabricError; nothing was run then."""
        request = schema.NewSessionRequest(cwd=self._terms.cwd, mcp_servers=[*self._servers()])
        try:
            reply = await self._ask("session_new", request)
            return schema.NewSessionResponse.model_validate(reply).session_id
        except RPCError as error:
            raise never_began(error, self.auth_methods) from error
        except ValidationError as error:
            raise AgentOffline("The agent's new session has no id") from error

    async def revive_session(self, session_id: str) -> bool:
        """A session of an earlier start; whether the agent still knows it."""
        sessions = self._can.session_capabilities
        given: dict[str, Any] = {"cwd": self._terms.cwd, "session_id": session_id, "mcp_servers": [*self._servers()]}
        try:
            if sessions is not None and sessions.resume is not None:
                await self._ask("session_resume", schema.ResumeSessionRequest(**given))
            elif self._can.load_session:
                await self._ask("session_load", schema.LoadSessionRequest(**given))
            else:
                return False
        except RPCError:
            return False
        return True

    async def close_session(self, session_id: str) -> None:
        """Let the agent forget it, if it can. Never raises."""
        sessions = self._can.session_capabilities
        if self.is_over or sessions is None or sessions.close is None:
            return
        with suppress(RPCError, FabricError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._ask("session_close", schema.CloseSessionRequest(session_id=session_id))

    def not_offered(self) -> tuple[str, ...]:
        """A note for each MCP server that this agent cannot use."""
        offered = set(map(id, self._servers()))
        return tuple(
            f"the MCP server '{server.name}' was not offered: the agent uses none over {server.type}"
            for server in self._terms.mcp_servers
            if id(server) not in offered and not isinstance(server, schema.McpServerStdio)
        )

    async def prompt(self, session_id: str, turn: Turn, blocks: list[Block], meta: dict[str, Any]) -> Ended:
        """One turn; what the agent reports meanwhile goes to `turn`. Raises FabricError."""
        self._turns[session_id] = turn
        try:
            request = schema.PromptRequest(session_id=session_id, prompt=[*blocks], field_meta=meta or None)
            reply = await self._ask("session_prompt", request)
            self.has_answered = True
            return msgspec.convert(reply, Ended)
        except RPCError as error:
            self.has_answered = True
            raise refusal_of(error, self.auth_methods) from error
        except msgspec.ValidationError as error:
            raise UpstreamFailed(f"The agent's reply cannot be read: {error}") from error
        finally:
            del self._turns[session_id]
            self._stop_if_idle()

    def cancel(self, session_id: str) -> None:
        request = schema.CancelNotification(session_id=session_id)
        if self._wire is not None:
            self._wire.notify(AGENT_METHODS["session_cancel"], _plain(request))

    def retire(self) -> None:
        """Takes no more turns, and ends when nobody waits for one any more."""
        self._is_retired = True
        self._end("it went on with work that was cancelled")
        self._stop_if_idle()

    async def aclose(self) -> None:
        """Never raises."""
        self._end("it is shut down with the node")
        self._opening.cancel()
        await asyncio.wait([self._opening])
        if self._wire is not None:
            await self._wire.stop()

    def notified(self, method: str, params: Any, size: int) -> None:
        match params:
            case {"sessionId": str(session_id), "update": dict(update)} if method == CLIENT_METHODS["session_update"]:
                turn = self._turns.get(session_id)
                if turn is not None:
                    turn.hear(update, size)

    def requested(self, method: str, params: Any, reply: Reply) -> bool:
        """Permissions only: neither our files nor a terminal are offered."""
        request = permissions.read(params) if method == CLIENT_METHODS["session_request_permission"] else None
        if request is None:
            return False
        turn, policy = self._turns.get(request.session_id), self._terms.permissions
        if turn is None:
            reply(permissions.nobody_chose())
        elif policy == "ask":
            turn.ask(request, params, reply)
        else:
            reply(permissions.decided(request, policy))
            if policy == "deny":
                turn.notes.append(f"permission was denied, as the manifest says: {request.title}")
        return True

    @property
    def _can(self) -> schema.AgentCapabilities:
        return self.about.agent_capabilities or schema.AgentCapabilities()

    def _servers(self) -> list[MCPServer]:
        """Those that the agent can reach; each starts programs."""
        can = self._can.mcp_capabilities or schema.McpCapabilities()
        reached = {"http": can.http, "sse": can.sse}
        return [
            server
            for server in self._terms.mcp_servers
            if isinstance(server, schema.McpServerStdio) or reached[server.type]
        ]

    async def _ask(self, method: str, request: BaseModel) -> Any:
        if self._wire is None:
            raise AgentOffline(self.why or "The agent is not running")
        return await self._wire.request(AGENT_METHODS[method], _plain(request))

    async def _open(self) -> None:
        try:
            child = await Child.start(self._program)
            self._wire = Wire(child, self._pipes, self, self._wire_over)
            async with asyncio.timeout(self._terms.start_timeout):
                await self._introduce()
            self.is_open = not self.is_over
        except FabricError as error:
            await self._fail(error.sentence)
        except RPCError as error:
            await self._fail(self._program.tell(f"did not let us in: {words_of(error)}"))
        except ValidationError:
            await self._fail(self._program.tell("does not introduce itself as the protocol says"))
        except TimeoutError:
            late = f"it has not said who it is within {self._terms.start_timeout:g} s"
            fate = self._wire.fate if self._wire else self._program.tell("did not start")
            await self._fail(fate + f"; {late}")

    async def _introduce(self) -> None:
        hello = schema.InitializeRequest(
            protocol_version=PROTOCOL_VERSION, client_capabilities=schema.ClientCapabilities(), client_info=_US
        )
        about = schema.InitializeResponse.model_validate(await self._ask("initialize", hello))
        if about.protocol_version != PROTOCOL_VERSION:
            why = f"The agent speaks version {about.protocol_version} of the protocol, we speak {PROTOCOL_VERSION}"
            raise AgentOffline(why)
        self.about = about
        if self._terms.authenticate is not None:
            await self._ask("authenticate", schema.AuthenticateRequest(method_id=self._terms.authenticate))

    async def _fail(self, why: str) -> None:
        if not self.is_over:
            self.has_failed = True
        self._end(why)
        if self._wire is not None:
            await self._wire.stop()

    def _wire_over(self, wire: Wire) -> None:
        if not self.is_over:
            self.has_failed = wire.has_failed
        self._end(wire.fate)

    def _end(self, why: str) -> None:
        if not self.is_over:
            self.is_open, self.is_over, self.why = False, True, why
            self._over(self)

    def _stop_if_idle(self) -> None:
        is_needed = any(not turn.is_given_up for turn in self._turns.values())
        if self._is_retired and not is_needed and self._wire is not None and self._stopping is None:
            self._stopping = asyncio.ensure_future(self._wire.stop())


def _plain(request: BaseModel) -> dict[str, Any]:
    return request.model_dump(mode="json", by_alias=True, exclude_none=True)
