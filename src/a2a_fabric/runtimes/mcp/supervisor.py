"""Keeps the session with an MCP server open: on first use, and after a failure again, with back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from a2a_fabric.core.errors import AgentOffline, NotReached
from a2a_fabric.runtimes.mcp.sessions import Era, McpConnection
from a2a_fabric.runtimes.mcp.transports import McpTransport
from a2a_fabric.runtimes.programs import RestartPolicy

_CHANGE_INTERVAL = 1.0  # seconds; changes are reported at most this often
_CHANGE_DELAY = 0.05


class McpConnectionSupervisor:
    """Keeps one connection open, which all calls share."""

    def __init__(
        self,
        name: str,
        make_transport: Callable[[], McpTransport],
        restart_policy: RestartPolicy,
        *,
        era: Era | None,
        start_timeout: float,
        on_change: Callable[[], None],
        on_open: Callable[[], None] = lambda: None,
        on_resource_updated: Callable[[str], None] = lambda uri: None,
        may_ask: bool = True,
    ) -> None:
        self._name = name
        self._make_transport = make_transport
        self._restart_policy = restart_policy
        self._era = era
        self._is_era_fixed = era is not None
        self._start_timeout = start_timeout
        self._on_change = on_change
        self._on_open = on_open
        self._on_resource_updated = on_resource_updated
        self._may_ask = may_ask
        self._current: McpConnection | None = None
        self._connections: set[McpConnection] = set()
        self._last_opened: McpConnection | None = None
        self._failures = 0  # in a row
        self._ready_at = 0.0
        self._change_timer: asyncio.TimerHandle | None = None
        self._change_reported_at = 0.0
        self._is_closed = False

    @property
    def current(self) -> McpConnection | None:
        """The connection, if it is open."""
        return self._current if self._current is not None and self._current.is_open else None

    @property
    def is_starting(self) -> bool:
        """Whether a connection is being opened."""
        return self._current is not None and not self._current.was_open and not self._current.is_closed

    async def get_connection(self, timeout: float | None) -> McpConnection:
        """An open connection. Raises AgentOffline: at once during the back-off, else after the time-out."""
        connection = self._current
        if connection is None or connection.is_closed or connection.transport.is_ending:
            connection = self._current = self._open()
        if not connection.is_open:
            await self._wait_until_open(connection, timeout)
        if connection is not self._last_opened:
            self._record_open(connection)
        return connection

    def check_ready(self) -> None:
        """Raises AgentOffline during the back-off after a failure."""
        if self._is_closed:
            raise AgentOffline(
                "The MCP server has been stopped, because the node is shutting down", agent_id=self._name
            )
        wait = self._ready_at - asyncio.get_running_loop().time()
        if wait > 0:
            reason = self._current.failure_reason if self._current is not None else "The MCP server failed"
            raise AgentOffline(reason + f"; next try in {wait:.1f} s", agent_id=self._name, retry_after=wait)

    def drop(self, connection: McpConnection, *, forget_era: bool = False) -> None:
        """The server no longer knows this session; the next call opens another."""
        if forget_era and not self._is_era_fixed:
            self._era = None
        connection.retire()

    def switch_to_handshake(self) -> None:
        """Open connections of the handshake era from now on. Requests that are on their way end as they are."""
        self._era, self._is_era_fixed = "handshake", True
        previous, self._current = self._current, None
        if previous is not None:
            previous.retire_when_idle()

    async def aclose(self) -> None:
        self._is_closed = True
        if self._change_timer is not None:
            self._change_timer.cancel()
        if close_tasks := [asyncio.ensure_future(connection.aclose()) for connection in self._connections]:
            await asyncio.wait(close_tasks)

    def _open(self) -> McpConnection:
        self.check_ready()
        connection = McpConnection(
            self._name,
            self._make_transport,
            self._era,
            self._start_timeout,
            self._schedule_change_report,
            self._on_connection_closed,
            may_ask=self._may_ask,
            on_updated=self._on_resource_updated,
        )
        self._connections = {each for each in self._connections if not each.is_finished} | {connection}
        return connection

    async def _wait_until_open(self, connection: McpConnection, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await connection.wait_until_started()
        except TimeoutError as exc:
            reason = f"The MCP server is still starting after {timeout:.1f} s"
            raise NotReached(reason, agent_id=self._name) from exc
        if not connection.is_open:
            raise AgentOffline(connection.failure_reason, agent_id=self._name)

    def _record_open(self, connection: McpConnection) -> None:
        if self._last_opened is not None:
            self._schedule_change_report()  # a restarted server may offer other tools
        self._last_opened = connection
        self._failures = 0
        self._era = connection.era
        self._on_open()

    def _on_connection_closed(self, connection: McpConnection) -> None:
        """Start the back-off if the server did not open. A server that was open is opened again by the next call."""
        if not connection.has_failed:
            return
        if connection.was_open:
            self._failures, self._ready_at = 1, 0.0
            return
        self._failures += 1
        if not self._is_era_fixed:
            self._era = None
        self._ready_at = asyncio.get_running_loop().time() + self._restart_policy.delay(self._failures)

    def _schedule_change_report(self) -> None:
        """Report changes soon, but at most once per second."""
        if self._change_timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            delay = max(_CHANGE_DELAY, self._change_reported_at + _CHANGE_INTERVAL - loop.time())
            self._change_timer = loop.call_later(delay, self._report_change)

    def _report_change(self) -> None:
        self._change_timer = None
        self._change_reported_at = asyncio.get_running_loop().time()
        self._on_change()
