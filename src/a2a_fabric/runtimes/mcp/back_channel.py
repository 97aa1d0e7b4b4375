"""Requests in which a server of both eras asks its client over a back channel, which only the handshake era has.

Fabric talks to such a server in the stateless era, where its question fails: the server answers that there is no back
channel. Then the request is sent again over a session of the handshake era, and so is every later one of its kind. To
repeat it is what the stateless era itself does with a request in which a server asks.

Over HTTP that session is open beside the stateless connection. A program has one connection only, because a second
process would not know what the first one keeps in memory: it is started again, with a handshake, and stays so."""

from __future__ import annotations

import logging
import re

from a2a_fabric.core.errors import AgentOffline
from a2a_fabric.runtimes.mcp.content import ToolReply, UpstreamRpcError
from a2a_fabric.runtimes.mcp.sessions import McpConnection
from a2a_fabric.runtimes.mcp.supervisor import McpConnectionSupervisor

_log = logging.getLogger(__name__)

_MAX_KEYS = 10_000  # a server could refuse any name that callers think of
_MAX_TEXT = 2000
# The words of the official SDKs; other servers name the request that they could not send.
_REFUSAL = re.compile(
    r"no back[- ]?channel|(elicitation/create|sampling/createMessage|roots/list).{0,200}"
    r"(back[- ]?channel|server-initiated|server-to-client|not supported|not available|cannot be sent)",
    re.IGNORECASE | re.DOTALL,
)


def lacks_back_channel(reply: object) -> bool:
    """Whether the server says that it could not ask its client."""
    if isinstance(reply, UpstreamRpcError):
        return reply.transport_problem is None and _REFUSAL.search(reply.message[:_MAX_TEXT]) is not None
    if not isinstance(reply, ToolReply) or not reply.is_error:
        return False
    return any(_REFUSAL.search(block.text[:_MAX_TEXT]) is not None for block in reply.content if block.text)


class McpBackChannel:
    """Chooses the connection for a request. `key` names a kind of requests, such as the calls of one tool.

    `sessions` opens connections of the handshake era. If the server `is_program`, they only show that it speaks that
    era, too. If the operator has fixed the era, none is opened (`is_allowed`).
    """

    def __init__(
        self,
        supervisor: McpConnectionSupervisor,
        sessions: McpConnectionSupervisor,
        *,
        is_program: bool,
        is_allowed: bool,
    ) -> None:
        self._supervisor = supervisor
        self._sessions = sessions
        self._is_program = is_program
        self._is_allowed = is_allowed
        self._is_switched = False
        self._keys: set[str] = set()

    def is_needed(self, key: str) -> bool:
        return key in self._keys

    async def get_connection(self, key: str, timeout: float | None) -> McpConnection:
        """The connection for such a request. Raises AgentOffline."""
        supervisor = self._sessions if key in self._keys else self._supervisor
        return await supervisor.get_connection(timeout)

    async def open(self, key: str, timeout: float | None) -> McpConnection | None:
        """A connection over which the server can ask; None if there is none."""
        if not self._is_allowed:
            return None
        try:
            if not self._is_switched:
                connection = await self._sessions.get_connection(timeout)
        except AgentOffline as error:
            _log.info("The MCP server wants to ask over a back channel, but opens no session: %s", error.message)
            return None
        if self._is_program:
            if not self._is_switched:
                self._is_switched = True
                self._supervisor.switch_to_handshake()
                await self._sessions.aclose()
            return await self._supervisor.get_connection(timeout)
        if len(self._keys) < _MAX_KEYS:
            self._keys.add(key)
        return connection

    async def aclose(self) -> None:
        await self._sessions.aclose()
