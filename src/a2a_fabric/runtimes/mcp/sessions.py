"""The session with an MCP server: one connection, owned by one task.

One task opens the transport, negotiates the era, waits, and leaves; requests may come from any task. The SDK's
session is used for what is rare: the handshake, typed lists, the server's questions. Calls go to the dispatcher below
it. Messages that the server sends on its own go to the request they belong to, or to the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import Context
from typing import Any, Literal

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, encode_header_value
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from a2a_fabric.core.call import Principal, owner_from_principal
from a2a_fabric.core.errors import FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.result import Answer, Event, Question
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.protocols.mcp.eras import LIST_CHANGES, RESOURCE_UPDATED
from a2a_fabric.runtimes.mcp.content import UpstreamRpcError, event_from_log, summarize_validation_error
from a2a_fabric.runtimes.mcp.dispatcher import (
    McpDispatcher,
    RawReply,
    current_request,
    decode_result,
    report_progress,
    to_request_key,
)
from a2a_fabric.runtimes.mcp.questions import (
    CLIENT_EXTENSIONS,
    PendingMcpRequest,
    QuestionResponse,
    SessionCallbacks,
    SessionReply,
    response_from_answer,
)
from a2a_fabric.runtimes.mcp.transports import McpTransport, RpcRequest
from a2a_fabric.version import __version__

_log = logging.getLogger(__name__)

CLIENT = types.Implementation(name="a2a-fabric", version=__version__)
PROBE_TIMEOUT = 3.0  # seconds, for a server that ignores methods that it does not know
CLOSE_TIMEOUT = 5.0
DRAIN_TIMEOUT = 60.0
LISTEN_TIMEOUT = 10.0
RELISTEN_DELAY = 5.0  # seconds after a lost subscription

Era = Literal["handshake", "stateless"]

_LIST_CHANGED = frozenset(method for _, method in LIST_CHANGES.values())


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
        self.pending_requests: dict[PendingMcpRequest | _DirectCall, None] = {}  # in order
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
        self._dispatcher: McpDispatcher  # as long as there is a transport
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
        # In an empty context: the connection outlives the call that opens it, and knows nothing of that call.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

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
        headers = options.setdefault("headers", {})
        if method.startswith("tasks/"):  # the SDK knows the names of the protocol's own methods only
            headers[MCP_NAME_HEADER] = encode_header_value(params["taskId"])
        reply = await self._dispatcher.request(method, params, headers, on_progress=on_progress, request_id=request_id)
        return self.read_reply(method, reply)

    async def call_directly(
        self,
        tool: str,
        params: dict[str, Any],
        headers: dict[str, str],
        capabilities: Mapping[str, Any],
        principal: Principal,
    ) -> RawReply | PendingMcpRequest:
        """Call a tool without a task of its own: the caller's task waits for the reply.

        If the server asks a question meanwhile, the call goes on as the request that is returned.
        """
        self.session._stamp({"method": "tools/call", "params": params}, CallOptions(headers=headers))
        if self.era == "stateless":
            params["_meta"][types.CLIENT_CAPABILITIES_META_KEY] = capabilities
        direct = _DirectCall(self, principal, tool)
        request = direct.request = self._dispatcher.start_request("tools/call", params, headers, call=direct)
        self.pending_requests[direct] = None
        reply: RawReply | PendingMcpRequest
        try:
            reply = await request.reply
        except asyncio.CancelledError:
            if isinstance(request.call, PendingMcpRequest):
                await request.call.cancel(CLOSE_TIMEOUT)
            else:
                await self._dispatcher.cancel(request)
            raise
        finally:
            self.pending_requests.pop(direct, None)
            if request.call is direct:
                self._dispatcher.finish(request)
                request.call = None  # each refers to the other, which only the garbage collector would end
        return reply

    def go_on(self, request: RpcRequest, principal: Principal, tool: str) -> PendingMcpRequest:
        """Let a request whose caller waits directly go on in a task, because the caller has to be asked something."""
        pending = PendingMcpRequest(principal, tool)
        waiter, request.reply, request.call = request.reply, asyncio.get_running_loop().create_future(), pending
        current_request.set(pending)
        pending.start(self._wait_for_reply(request), on_end=self.pending_requests.pop)
        self.pending_requests[pending] = None
        waiter.set_result(pending)
        return pending

    async def _wait_for_reply(self, request: RpcRequest) -> SessionReply:
        return self.read_reply(request.method, await self._dispatcher.wait_for_reply(request))

    def read_reply(self, method: str, reply: RawReply) -> SessionReply:
        """The result as the protocol has it, or the server's error. Raises UpstreamInterrupted, UpstreamFailed."""
        if isinstance(reply, UpstreamRpcError):
            if self.is_closed and reply.code == types.CONNECTION_CLOSED:
                raise UpstreamInterrupted(self.failure_reason, agent_id=self.name)
            return reply
        try:
            result = decode_result(reply)
            if not is_task_result(result):
                methods.validate_server_result(method, str(self.session.protocol_version), result)
        except KeyError:
            return result  # a method of an extension, which the SDK does not know
        except MCPError as error:
            raise UpstreamFailed(error.message) from error
        except ValidationError as error:
            raise UpstreamFailed(
                f"The MCP server's answer does not follow the protocol: {summarize_validation_error(error)}"
            ) from error
        return result

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

    async def _drain(self, pending_requests: Sequence[PendingMcpRequest | _DirectCall]) -> None:
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
        self._dispatcher = dispatcher = McpDispatcher(self.transport, self._on_notification)
        async with self.transport.open(dispatcher, self._on_transport_ended):
            try:
                async with self._build_session(dispatcher) as session:
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
                        await cancel_and_wait(listen_task)
            finally:
                await dispatcher.aclose()

    def _on_transport_ended(self) -> None:
        """The server sends nothing more. Requests in flight end with the reason, which is known now."""
        self._ended.set()
        if self.was_open:
            self._mark_closed()
        self._dispatcher.close()

    def _build_session(self, dispatcher: McpDispatcher) -> ClientSession:
        callbacks = SessionCallbacks(self._answer_question)
        return ClientSession(
            dispatcher=dispatcher,
            client_info=CLIENT,
            extensions=CLIENT_EXTENSIONS,
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

    async def _on_notification(self, method: str, params: dict[str, Any], request: RpcRequest | None) -> None:
        if method in _LIST_CHANGED:
            self._on_changed()
        elif method == "notifications/message":
            self._on_log(params, request)
        elif method == "notifications/progress":
            if (report := self.progress_callbacks.get(to_request_key(params.get("progressToken")))) is not None:
                await report_progress(report, params)
        elif method == RESOURCE_UPDATED:
            self._on_updated(str(params.get("uri")))

    def _on_log(self, params: dict[str, Any], request: RpcRequest | None) -> None:
        pending = request.call if request is not None else None
        if pending is None and len(self.pending_requests) == 1:  # over pipes nothing tells to which request it belongs
            (pending,) = self.pending_requests
        event = event_from_log(params)
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

    def _find_question_target(self) -> PendingMcpRequest | _DirectCall | None:
        """The request that the question belongs to: over HTTP by its stream, else if there is only one caller."""
        pending: PendingMcpRequest | _DirectCall | None = current_request.get()
        if pending is not None:
            return pending
        candidates = [each for each in self.pending_requests if not each.ended.done()]
        if self._decline_depth or len({each.owner for each in candidates}) != 1:
            return None
        return ([each for each in candidates if not each.questions] or candidates)[-1]


class _DirectCall:
    """A call whose caller waits for the reply itself, until the server asks the first question."""

    __slots__ = ("_connection", "_principal", "_tool", "request")
    questions: Mapping[str, Question] = {}  # none yet

    def __init__(self, connection: McpConnection, principal: Principal, tool: str) -> None:
        self.request: RpcRequest  # set when it is sent
        self._connection = connection
        self._principal = principal
        self._tool = tool

    @property
    def owner(self) -> str:
        return owner_from_principal(self._principal)

    @property
    def ended(self) -> asyncio.Future[Any]:
        return self.request.reply

    def add_event(self, event: Event) -> None:
        """The caller wants no events."""

    async def ask(self, question: Question) -> QuestionResponse | None:
        request = self.request
        if request.call is None or (request.call is self and request.is_answered):  # the call has ended
            return response_from_answer("", question.kind, Answer(action="cancel"))
        pending: PendingMcpRequest = (  # the caller's, if another question came first
            self._connection.go_on(request, self._principal, self._tool) if request.call is self else request.call
        )
        return await pending.ask(question)


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
