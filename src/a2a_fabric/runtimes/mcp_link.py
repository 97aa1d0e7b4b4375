"""One open session with an MCP server, owned by one task from opening to closing.

The SDK's cancel scopes belong to the task that entered them. So a task of ours enters
transport and session, agrees on the era, stays, and leaves; requests come from any
task, for a request touches nothing but the session's queues. Whatever the server sends
without being asked goes to the one call it belongs to, or to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import mcp_types as types
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.question import Answer, Question
from a2a_fabric.runtimes.mcp_asked import Asked
from a2a_fabric.runtimes.mcp_content import RPCError, log_event
from a2a_fabric.runtimes.mcp_offer import Offer
from a2a_fabric.runtimes.mcp_questions import Response, response_of
from a2a_fabric.version import __version__

_log = logging.getLogger(__name__)

CLIENT = types.Implementation(name="a2a-fabric", version=__version__)
PROBE_TIMEOUT = 3.0  # for a server that ignores what it does not know
CLOSE_TIMEOUT = 5.0
LISTEN_TIMEOUT = 10.0
LISTEN_AGAIN = 5.0  # seconds after a lost subscription

Era = Literal["handshake", "stateless"]

_CHANGES = (
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
)

# The call on whose behalf something was sent: the SDK carries contexts from the request to what answers it over HTTP.
asking: ContextVar[Asked | None] = ContextVar("mcp_asking", default=None)


class Transport(Protocol):
    """A way to one server; opened once."""

    is_http: bool
    is_ending: bool  # nothing more will come; what comes next is how it ended

    @property
    def fate(self) -> str:
        """Why it is over, for people."""
        ...

    def open(self, ended: asyncio.Event) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        """The SDK's pair of message streams; sets `ended` when nothing more will come."""
        ...


class Link:
    """`on_over` hears once that no more calls are taken; `on_changed` hears that what the server offers is else now.

    `on_updated` hears the URI of a resource that was subscribed to and has changed, in the handshake era.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Transport],
        era: Era | None,
        start_timeout: float,
        on_changed: Callable[[], None],
        on_over: Callable[[Link], None],
        *,
        may_ask: bool = True,
        on_updated: Callable[[str], None] = lambda uri: None,
    ) -> None:
        self.name = name
        self.transport = connect()
        self.asked: dict[Asked, None] = {}  # in order
        self._on_nobodys_behalf = 0
        self.is_open = False
        self.is_over = False
        self.has_failed = False
        self.was_open = False
        self.era = era
        # A program that dies of a question it does not know is asked again in the old way.
        self._eras: tuple[Era | None, ...] = (None, "handshake") if era is None else (era,)
        self._connect = connect
        self.session: ClientSession  # as soon as it is open
        self._start_timeout = start_timeout
        self._may_ask = may_ask
        self._on_changed = on_changed
        self._on_over = on_over
        self._on_updated = on_updated
        self._why: str | None = None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_unwanted = False
        self._life = asyncio.ensure_future(self._live())

    @property
    def why(self) -> str:
        """Why it could not be opened, or is over."""
        return self._why or self.transport.fate

    @property
    def is_gone(self) -> bool:
        return self._life.done()

    @contextmanager
    def on_nobodys_behalf(self) -> Iterator[None]:
        """Around a request other than a call: what the server asks meanwhile may be about that, and is declined."""
        self._on_nobodys_behalf += 1
        try:
            yield
        finally:
            self._on_nobodys_behalf -= 1

    async def settled(self) -> None:
        """Wait until it is open or over."""
        await self._settled.wait()

    async def over(self) -> None:
        """Wait until it is over."""
        await asyncio.wait([self._life])

    def retire(self) -> None:
        """Take no more calls and close."""
        self._is_unwanted = True
        self._close()
        self._ended.set()

    async def aclose(self) -> None:
        """Close and wait until everything is gone. May be called twice; never raises."""
        self.retire()
        if not self.was_open:  # it may be waiting for an answer that never comes
            self._life.cancel()
        _, pending = await asyncio.wait([self._life], timeout=CLOSE_TIMEOUT)
        if pending:
            self._life.cancel()
            await asyncio.wait([self._life], timeout=CLOSE_TIMEOUT)

    async def _live(self) -> None:
        try:
            for era in self._eras:
                try:
                    await self._open_and_stay(era)
                except Exception as error:  # of the SDK's making, often a group
                    self._why = self._told(_cause_in(error))
                if self.was_open or self._is_unwanted or not self._ended.is_set():
                    break
                self._ended.clear()
                self.transport = self._connect()
        finally:
            self._close()

    async def _open_and_stay(self, era: Era | None) -> None:
        async with (
            self.transport.open(self._ended) as (incoming, outgoing),
            self._session(incoming, outgoing) as session,
        ):
            async with asyncio.timeout(self._start_timeout):
                self.era = await negotiate(session, era)
            self.session = session
            self.is_open = self.was_open = not self.is_over
            self._why = None
            self._settled.set()
            listening = asyncio.ensure_future(self._listen(session))
            try:
                await self._ended.wait()
            finally:
                self._close()
                listening.cancel()
                await asyncio.wait([listening])

    def _session(self, incoming: Any, outgoing: Any) -> ClientSession:
        offer = Offer(self._answered)
        return ClientSession(
            incoming,
            outgoing,
            client_info=CLIENT,
            logging_callback=self._heard_log,
            message_handler=self._heard,
            elicitation_callback=offer.elicit if self._may_ask else None,
            sampling_callback=offer.sample if self._may_ask else None,
            list_roots_callback=offer.roots if self._may_ask else None,
        )

    def _told(self, error: BaseException) -> str:
        """Why it did not work, in words."""
        match error:
            case FabricError():
                return error.sentence
            case TimeoutError():
                return f"The MCP server did not answer within {self._start_timeout:g} s of its start"
            case MCPError() if self._ended.is_set():
                return self.transport.fate
            case MCPError() if RPCError(error.code, error.message, error.data).trouble:
                return error.message
            case MCPError():
                return f"The MCP server refused: {error.message}"
            case ValidationError():
                return "The MCP server's answer does not follow the protocol"
        return f"{type(error).__name__}: {error}"[:500]

    def _close(self) -> None:
        if not self.is_over:
            self.is_over, self.is_open = True, False
            self.has_failed = not self._is_unwanted
            self._settled.set()
            if self.has_failed:
                _log.warning("%s: %s", self.name, self.why)
            self._on_over(self)

    async def _listen(self, session: ClientSession) -> None:
        """Stateless servers tell of changes only those who ask; a lost subscription may have missed some."""
        if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        is_first = True
        while True:
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(LISTEN_TIMEOUT):
                        changes = await stack.enter_async_context(_news(session))
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
            await asyncio.sleep(LISTEN_AGAIN)

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, _CHANGES):
            self._on_changed()
        elif isinstance(message, types.ResourceUpdatedNotification):
            self._on_updated(str(message.params.uri))

    async def _heard_log(self, params: types.LoggingMessageNotificationParams) -> None:
        asked = asking.get()
        if asked is None and len(self.asked) == 1:  # over pipes nothing says whose words these are
            (asked,) = self.asked
        event = log_event(params.level, params.data, params.logger)
        if asked is not None:
            asked.hear(event)
        else:
            _log.info("%s: %s", self.name, event.data["message"])

    async def _answered(self, question: Question) -> Response | None:
        asked = self._whose_question()
        if asked is not None:
            return await asked.ask(question)
        _log.warning("%s: a question of the server was declined, for nothing says whom it is meant for", self.name)
        return response_of("", question.kind, Answer(action="decline"))

    def _whose_question(self) -> Asked | None:
        """Over HTTP the stream of a call says so. Else any of a caller's calls will do, if there is but one caller."""
        if (asked := asking.get()) is not None:
            return asked
        if self._on_nobodys_behalf or len({each.owner for each in self.asked}) != 1:
            return None
        busy = [each for each in self.asked if not each.questions]
        return (busy or list(self.asked))[-1]


def _news(session: ClientSession) -> AbstractAsyncContextManager[Subscription]:
    return listen(session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)


async def negotiate(session: ClientSession, era: Era | None) -> Era:
    """Agree on the era, or go by the one known. Raises MCPError, or RuntimeError for a version nobody knows."""
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
        await session.discover()  # it was only slow to say so
        return "stateless"
    return "handshake"


def _cause_in(error: BaseException) -> BaseException:
    """Of a group, what tells most: a stream that broke tells only that something else was over."""
    leaves = list(_leaves(error))
    telling = (each for each in leaves if isinstance(each, FabricError | MCPError | TimeoutError | ValidationError))
    return next(telling, leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _leaves(each)
