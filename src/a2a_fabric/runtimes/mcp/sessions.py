"""The session with an MCP server: one connection, owned by one task, and the supervisor that reopens it.

The SDK's cancel scopes belong to the task that entered them. So one task enters transport and
session, negotiates the era, waits, and leaves; requests may come from any task, because a request
only touches the session's queues. Messages that the server sends on its own go to the request
they belong to, or to the log. The supervisor opens the connection on first use and, after a
failure, again with back-off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import mcp_types as types
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, encode_header_value
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from a2a_fabric.core.errors import AgentOffline, FabricError, NotReached, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.result import Answer, Question
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, make_log_event, summarize_validation_error
from a2a_fabric.runtimes.mcp.questions import (
    CLIENT_EXTENSIONS,
    PendingMcpRequest,
    QuestionResponse,
    SessionCallbacks,
    SessionReply,
    response_from_answer,
)
from a2a_fabric.runtimes.programs import RestartPolicy
from a2a_fabric.version import __version__

_log = logging.getLogger(__name__)

CLIENT = types.Implementation(name="a2a-fabric", version=__version__)
PROBE_TIMEOUT = 3.0  # seconds, for a server that ignores methods that it does not know
CLOSE_TIMEOUT = 5.0
DRAIN_TIMEOUT = 60.0
LISTEN_TIMEOUT = 10.0
RELISTEN_DELAY = 5.0  # seconds after a lost subscription

Era = Literal["handshake", "stateless"]

_LIST_CHANGED = (
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
)

# The request for which something was sent; over HTTP the SDK passes the context on to what belongs to its reply.
current_request: ContextVar[PendingMcpRequest | None] = ContextVar("mcp_asking", default=None)


class McpTransport(Protocol):
    """A transport to one server; it is opened once."""

    is_ending: bool  # the server will send nothing more; why, is not known yet

    @property
    def end_reason(self) -> str:
        """Why it has ended, for people."""
        ...

    def open(self, ended: asyncio.Event) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        """The SDK's pair of message streams. Sets `ended` when the server sends nothing more."""
        ...


class McpConnection:
    """One connection. `on_closed` is called once, when no more calls are accepted.

    `on_changed` is called when the server's lists change, and `on_updated`, in the handshake era, with the URI of a
    subscribed resource that has changed.
    """

    def __init__(
        self,
        name: str,
        make_transport: Callable[[], McpTransport],
        era: Era | None,
        start_timeout: float,
        on_changed: Callable[[], None],
        on_closed: Callable[[McpConnection], None],
        *,
        may_ask: bool = True,
        on_updated: Callable[[str], None] = lambda uri: None,
    ) -> None:
        self.name = name
        self.transport = make_transport()
        self.pending_requests: dict[PendingMcpRequest, None] = {}  # in order
        self.progress_callbacks: dict[str | int, ProgressFnT] = {}  # of tasks, whose call has been answered already
        self._decline_depth = 0
        self.is_open = False
        self.is_closed = False
        self.has_failed = False
        self.was_open = False
        self.era = era
        # A program that ends because of an unknown request is started again, with a handshake.
        self._eras: tuple[Era | None, ...] = (None, "handshake") if era is None else (era,)
        self._make_transport = make_transport
        self.session: ClientSession  # set when it is open
        self._start_timeout = start_timeout
        self._may_ask = may_ask
        self._on_changed = on_changed
        self._on_closed = on_closed
        self._on_updated = on_updated
        self._failure_reason: str | None = None
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_retired = False
        self._drain_task: asyncio.Task[None] | None = None
        self._task = asyncio.ensure_future(self._run())

    @property
    def failure_reason(self) -> str:
        """Why it could not be opened, or has ended."""
        return self._failure_reason or self.transport.end_reason

    @property
    def is_finished(self) -> bool:
        return self._task.done()

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: ProgressFnT | None = None,
        capabilities: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> SessionReply:
        """The raw result, or the server's error. Cancelling notifies the server; the session stays open.

        The SDK has no public way to send methods of an extension, to read results of one, or to declare the
        `capabilities` of the client that asks, which a stateless server may need. Raises UpstreamInterrupted if the
        connection is closed, UpstreamFailed if the answer does not follow the protocol.
        """
        session, options = self.session, CallOptions()
        data: dict[str, Any] = {"method": method, "params": params}
        session._stamp(data, options)
        if capabilities is not None and self.era == "stateless":
            params["_meta"][types.CLIENT_CAPABILITIES_META_KEY] = capabilities
        if method.startswith("tasks/"):  # the SDK knows the names of the protocol's own methods only
            options.setdefault("headers", {})[MCP_NAME_HEADER] = encode_header_value(params["taskId"])
        if on_progress is not None:
            options["on_progress"] = on_progress
        if request_id is not None:
            options["request_id"] = request_id
        try:
            raw = await session._dispatcher.send_raw_request(method, params, options)
            if not is_task_result(raw):
                methods.validate_server_result(method, str(session.protocol_version), raw)
        except KeyError:
            return raw  # a method of an extension, which the SDK does not know
        except MCPError as error:
            if self.is_closed and error.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(self.failure_reason, agent_id=self.name) from error
            return UpstreamRpcError(error.code, error.message, error.data)
        except ValidationError as error:
            raise UpstreamFailed(
                f"The MCP server's answer does not follow the protocol: {summarize_validation_error(error)}"
            ) from error
        return raw

    @contextmanager
    def decline_questions(self) -> Iterator[None]:
        """Decline the server's questions during a request that is not a call: they may belong to that request."""
        self._decline_depth += 1
        try:
            yield
        finally:
            self._decline_depth -= 1

    async def wait_until_started(self) -> None:
        """Wait until it is open or closed."""
        await self._started.wait()

    async def wait_until_closed(self) -> None:
        """Wait until it is closed."""
        await asyncio.wait([self._task])

    def retire(self) -> None:
        """Accept no more calls, and close."""
        self._is_retired = True
        self._mark_closed()
        self._ended.set()

    def retire_when_idle(self) -> None:
        """Close when the requests that are pending now have ended, or after a while."""
        if self.pending_requests and not self.is_closed:
            self._drain_task = asyncio.ensure_future(self._drain(list(self.pending_requests)))
        else:
            self.retire()

    async def _drain(self, pending_requests: Sequence[PendingMcpRequest]) -> None:
        await asyncio.wait([request.ended for request in pending_requests], timeout=DRAIN_TIMEOUT)
        self.retire()

    async def aclose(self) -> None:
        """Close, and wait until everything has ended. May be called twice; never raises."""
        self.retire()
        if self._drain_task is not None:
            self._drain_task.cancel()
        if not self.was_open:  # it may wait for an answer that never comes
            self._task.cancel()
        _, pending = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        if pending:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)

    async def _run(self) -> None:
        try:
            for era in self._eras:
                try:
                    await self._open_and_wait(era)
                except Exception as error:  # from the SDK, often a group
                    self._failure_reason = self._describe_error(_find_cause(error))
                if self.was_open or self._is_retired or not self._ended.is_set():
                    break
                self._ended.clear()
                self.transport = self._make_transport()
        finally:
            self._mark_closed()

    async def _open_and_wait(self, era: Era | None) -> None:
        async with (
            self.transport.open(self._ended) as (incoming, outgoing),
            self._build_session(incoming, outgoing) as session,
        ):
            async with asyncio.timeout(self._start_timeout):
                self.era = await negotiate(session, era)
            self.session = session
            self.is_open = self.was_open = not self.is_closed
            self._failure_reason = None
            self._started.set()
            listen_task = asyncio.ensure_future(self._listen(session))
            try:
                await self._ended.wait()
            finally:
                self._mark_closed()
                listen_task.cancel()
                await asyncio.wait([listen_task])

    def _build_session(self, incoming: Any, outgoing: Any) -> ClientSession:
        callbacks = SessionCallbacks(self._answer_question)
        return ClientSession(
            incoming,
            outgoing,
            client_info=CLIENT,
            extensions=CLIENT_EXTENSIONS,
            logging_callback=self._on_log,
            message_handler=self._on_message,
            elicitation_callback=callbacks.elicit if self._may_ask else None,
            sampling_callback=callbacks.sample if self._may_ask else None,
            list_roots_callback=callbacks.list_roots if self._may_ask else None,
        )

    def _describe_error(self, error: BaseException) -> str:
        """Why the connection failed, for people."""
        match error:
            case FabricError():
                return error.full_message
            case TimeoutError():
                return f"The MCP server did not answer within {self._start_timeout:g} s of its start"
            case MCPError() if self._ended.is_set():
                return self.transport.end_reason
            case MCPError() if UpstreamRpcError(error.code, error.message, error.data).transport_problem:
                return error.message
            case MCPError():
                return f"The MCP server refused: {error.message}"
            case ValidationError():
                return "The MCP server's answer does not follow the protocol"
        return f"{type(error).__name__}: {error}"[:500]

    def _mark_closed(self) -> None:
        if not self.is_closed:
            self.is_closed, self.is_open = True, False
            self.has_failed = not self._is_retired
            self._started.set()
            if self.has_failed:
                _log.warning("%s: %s", self.name, self.failure_reason)
            self._on_closed(self)

    async def _listen(self, session: ClientSession) -> None:
        """Subscribe to changes at a stateless server. A lost subscription may have missed some."""
        if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        is_first = True
        while True:
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(LISTEN_TIMEOUT):
                        changes = await stack.enter_async_context(_listen_to_list_changes(session))
                    if not is_first:
                        self._on_changed()
                    is_first = False
                    async for _ in changes:
                        self._on_changed()
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            await asyncio.sleep(RELISTEN_DELAY)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, _LIST_CHANGED):
            self._on_changed()
        elif isinstance(message, types.ProgressNotification):
            params = message.params
            if (report := self.progress_callbacks.get(params.progress_token)) is not None:
                await report(params.progress, params.total, params.message)
        elif isinstance(message, types.ResourceUpdatedNotification):
            self._on_updated(str(message.params.uri))

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        pending = current_request.get()
        if pending is None and len(self.pending_requests) == 1:  # over pipes nothing tells to which request it belongs
            (pending,) = self.pending_requests
        event = make_log_event(params.level, params.data, params.logger)
        if pending is not None:
            pending.add_event(event)
        else:
            _log.info("%s: %s", self.name, event.data["message"])

    async def _answer_question(self, question: Question) -> QuestionResponse | None:
        pending = self._find_question_target()
        if pending is not None:
            return await pending.ask(question)
        _log.warning(
            "%s: a question of the server was declined, because nothing tells which call it belongs to", self.name
        )
        return response_from_answer("", question.kind, Answer(action="decline"))

    def _find_question_target(self) -> PendingMcpRequest | None:
        """The request that the question belongs to: over HTTP by its stream, else if there is only one caller."""
        if (pending := current_request.get()) is not None:
            return pending
        if self._decline_depth or len({each.owner for each in self.pending_requests}) != 1:
            return None
        without_questions = [each for each in self.pending_requests if not each.questions]
        return (without_questions or list(self.pending_requests))[-1]


def is_task_result(result: Mapping[str, Any]) -> bool:
    """Whether the server made a task of the call, as either revision says it."""
    return result.get("resultType") == "task" or (isinstance(result.get("task"), dict) and "content" not in result)


def _listen_to_list_changes(session: ClientSession) -> AbstractAsyncContextManager[Subscription]:
    return listen(session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)


async def negotiate(session: ClientSession, era: Era | None) -> Era:
    """Find out the era, or confirm the known one. Raises MCPError, or RuntimeError for an unknown version."""
    is_slow = False
    if era != "handshake":
        try:
            async with asyncio.timeout(None if era == "stateless" else PROBE_TIMEOUT):
                await session.discover()
            return "stateless"
        except (MCPError, RuntimeError, ValidationError, TimeoutError) as error:
            if era == "stateless":
                raise
            is_slow = isinstance(error, TimeoutError)
    try:
        await session.initialize()
    except MCPError as error:
        if not is_slow and (era is not None or error.code != types.UNSUPPORTED_PROTOCOL_VERSION):
            raise
        await session.discover()  # a stateless server that was slow to answer
        return "stateless"
    return "handshake"


def _find_cause(error: BaseException) -> BaseException:
    """The most informative error of a group: a broken stream only follows from another error."""
    leaves = list(_iterate_leaves(error))
    informative = (each for each in leaves if isinstance(each, FabricError | MCPError | TimeoutError | ValidationError))
    return next(informative, leaves[0])


def _iterate_leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _iterate_leaves(each)


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
