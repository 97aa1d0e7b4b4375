"""The A2A runtime: keeps the connection to an agent and turns calls of its skills into A2A tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress

import msgspec

from a2a_fabric.core.agent import Manifest, Status
from a2a_fabric.core.call import (
    Call,
    CallerEmitter,
    Emit,
    join_text,
    make_propagation_headers,
    make_propagation_metadata,
)
from a2a_fabric.core.callbacks import Callback
from a2a_fabric.core.errors import AgentOffline, BadInput, FabricError, UpstreamRefused
from a2a_fabric.core.forwarding import IDENTITY_META_KEY, sign_metadata
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.propagation import new_id
from a2a_fabric.core.result import Answers, Result
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.protocols.a2a.errors import TASK_LOST_REASONS, UNKNOWN_METHOD_REASONS, upstream_reason
from a2a_fabric.protocols.a2a.models import A2AMessage, A2ATaskState, CallersMessage, SendOptions, is_a2a
from a2a_fabric.runtimes.a2a.client import EXTENSION_HEADERS, A2AClient, RequestOptions, public_address
from a2a_fabric.runtimes.a2a.connection import (
    A2AConnection,
    A2AEndpoint,
    SkillInfo,
    connect,
    manifest_from_card,
    request_card,
)
from a2a_fabric.runtimes.a2a.messages import (
    SKILL_KEY,
    content_from_message,
    original_from_buffer,
    parse_continuation,
    parts_from_answer,
    parts_from_call,
    raw_with_bound_text,
    read_callers_message,
    result_from_question,
)
from a2a_fabric.runtimes.a2a.reply_buffer import ReplyBuffer, result_from_parts
from a2a_fabric.runtimes.a2a.task_follower import PushReceiver, TaskFollower
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.prompt import find_answer
from a2a_fabric.runtimes.remote_work import BackgroundCancels, ContextIds
from a2a_fabric.runtimes.upstream import check_probe_status

_EXTRA_SECONDS = 10.0  # beyond the call's own deadline, which ends the call first
_FAILURE_TEXTS: dict[A2ATaskState, str] = {
    "failed": "The agent's task failed",
    "rejected": "The agent rejected the task",
    "canceled": "The agent's task was cancelled",
}


class A2ARuntime:
    def __init__(self, manifest: Manifest, endpoint: A2AEndpoint, context: RuntimeContext) -> None:
        self._manifest = manifest
        self._full_manifest = manifest
        self._endpoint = endpoint
        self._context = context
        self._signer = context.signer
        self._connection: A2AConnection | None = None
        self._is_stale = False
        self._pending_connection: asyncio.Future[A2AConnection] | None = None
        self._context_ids = ContextIds()
        self._background_cancels = BackgroundCancels(manifest.agent_id)
        self._must_always_stream = False  # the agent cannot list its tasks, so only a stream tells their ids
        self._refuses_push = False  # although its card announces push notifications
        self._loses_pushes = False
        self._calls_by_client: Counter[A2AClient] = Counter()  # a client is closed only after its last call
        self._dead_urls: set[str] = set()  # of interfaces in the card that did not answer
        self.health_reason: str | None = None

    async def __call__(self, call: Call, emit: Emit) -> Result:
        connection = await self._get_connection()
        while True:
            try:
                async with self._use_client(connection.client):
                    return await self._run_call(connection, call, emit)
            except FabricError as exc:
                exc.details.setdefault("agent_id", self._manifest.agent_id)
                if isinstance(exc, AgentOffline) or upstream_reason(exc) in UNKNOWN_METHOD_REASONS:
                    self._is_stale = True  # the agent may have moved: fetch its card again before the next call
                if not isinstance(exc, AgentOffline) or not await self._leave_interface(connection):
                    raise
            connection = await self._get_connection()

    async def _leave_interface(self, connection: A2AConnection) -> bool:
        """Whether the card has another interface to try after this one, which certainly did not get the request."""
        if len({each.url for each in connection.card.interfaces}) < 2:
            return False
        self._dead_urls.add(connection.interface.url)
        self._is_stale = True
        with suppress(FabricError):
            if (await self._get_connection()).interface.url not in self._dead_urls:
                return True
        self._dead_urls.clear()  # none answers: the next call begins with the first again
        return False

    async def health(self) -> Status:
        """An agent that answers, though not at the interface that its card prefers, is degraded."""
        self.health_reason = None
        if self._dead_urls:
            dead_urls, self._dead_urls = self._dead_urls, set()
            self._is_stale = True  # the preferred interface may be back
            self.health_reason = f"no answer from {', '.join(sorted(map(public_address, dead_urls)))}"
        status = await self._probe(await self._get_connection())
        if self._dead_urls:
            return "degraded"
        self.health_reason = None
        return status

    async def _probe(self, connection: A2AConnection) -> Status:
        """Probe the card, and the interface if another server has it."""
        card_status: Status = "unknown"
        if connection.card_url is not None:
            reply = await request_card(self._context.http, connection.card_url, self._endpoint.headers)
            card_status = check_probe_status(reply.status, connection.card_url)
            if public_address(connection.interface.url) == public_address(connection.card_url):
                return card_status
        try:
            status = await connection.client.probe()
            # A server that answers, though it has nothing at the mere base of its paths, is there as the card says.
            return card_status if status == "unknown" else status
        except AgentOffline:
            if not await self._leave_interface(connection):
                raise
        self.health_reason = f"no answer from {public_address(connection.interface.url)}, which the card prefers"
        return await self._probe(await self._get_connection())

    async def describe(self) -> Manifest:
        """The manifest, with the skills of the card as capabilities."""
        connection = await self._share_connect()
        self._full_manifest = complete_manifest(self._manifest, manifest_from_card(self._manifest, connection.card))
        return self._full_manifest

    async def aclose(self) -> None:
        await self._background_cancels.aclose()
        if self._pending_connection is not None:
            await cancel_and_wait(self._pending_connection)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.client.aclose()

    async def _get_connection(self) -> A2AConnection:
        """The connection, made at the first call and again after an error. Raises FabricError."""
        return self._connection if self._connection is not None and not self._is_stale else await self._share_connect()

    async def _share_connect(self) -> A2AConnection:
        """Concurrent callers share one attempt to connect."""
        if self._pending_connection is None:
            self._pending_connection = asyncio.ensure_future(self._connect())
            self._pending_connection.add_done_callback(self._on_connect_done)
        return await asyncio.shield(self._pending_connection)

    async def _connect(self) -> A2AConnection:
        previous = self._connection
        self._connection = connection = await connect(self._endpoint, self._context, previous, self._dead_urls)
        self._is_stale = False
        if previous is not None:
            await self._close_if_unused(previous.client)
        return connection

    @asynccontextmanager
    async def _use_client(self, client: A2AClient) -> AsyncIterator[None]:
        """Keeps a client open, though the next calls may go to another interface already."""
        self._calls_by_client[client] += 1
        try:
            yield
        finally:
            self._calls_by_client[client] -= 1
            await self._close_if_unused(client)

    async def _close_if_unused(self, client: A2AClient) -> None:
        is_current = self._connection is not None and self._connection.client is client
        if not is_current and not self._calls_by_client[client]:
            del self._calls_by_client[client]
            await client.aclose()

    def _on_connect_done(self, future: asyncio.Future[A2AConnection]) -> None:
        self._pending_connection = None
        if not future.cancelled():
            future.exception()  # marks it as retrieved: all callers may have left

    async def _run_call(self, connection: A2AConnection, call: Call, emit: Emit) -> Result:
        message = (
            self._make_answer_message(connection, call.answers, call)
            if call.answers
            else self._make_message(connection, call)
        )
        message = self._sign_message(message, call)
        if isinstance(call.answers, Answers) and find_answer(call.answers).action == "cancel":
            return await self._cancel_task(connection, message, call)
        listener = CallerEmitter(emit)
        with self._open_callback(connection) as callback:
            follower = self._make_follower(connection, message, call, listener, callback)
            await self._run_follower(follower, connection, call, listener)
        self._context_ids.remember(call, follower.buffer.context_id)
        return _result_from_buffer(follower.buffer, keeps_original=is_a2a(call.original))

    async def _run_follower(
        self, follower: TaskFollower, connection: A2AConnection, call: Call, listener: CallerEmitter
    ) -> None:
        try:
            wants_stream = call.response.stream or self._must_stream(connection)
            await follower.run(streaming=connection.card.streaming and wants_stream)
        except BaseException as exc:
            if listener.is_caller_gone or not isinstance(exc, FabricError):  # the caller has left
                self._abandon(follower, connection.client)
                raise
            if call.answers and upstream_reason(exc) in TASK_LOST_REASONS and follower.buffer.state == "unknown":
                raise unknown_continuation() from exc
            raise
        finally:
            self._record_push_behaviour(follower)

    def _open_callback(self, connection: A2AConnection) -> AbstractContextManager[Callback | None]:
        """The callback for push notifications; None if the agent does not send them or cannot reach this node."""
        if not connection.card.supports_push or not self._endpoint.push or self._refuses_push:
            return nullcontext()
        return self._context.callbacks.open_callback(is_local=connection.interface.is_local)

    def _record_push_behaviour(self, follower: TaskFollower) -> None:
        self._refuses_push = self._refuses_push or follower.refuses_push
        if follower.push_receiver is not None and follower.push_receiver.are_lost is not None:
            self._loses_pushes = follower.push_receiver.are_lost

    def _must_stream(self, connection: A2AConnection) -> bool:
        """Whether only a stream tells the task's id early enough to cancel the task."""
        return self._must_always_stream or connection.interface.version == "0.3"

    def _should_block(self, connection: A2AConnection, *, receives_pushes: bool) -> bool:
        """Whether to wait for the answer in one request.

        In 0.3 the id of the task, which is needed to cancel it, would come only with the answer. Where pushes
        report progress, the request must return before the task has ended.
        """
        if self._endpoint.blocking is not None:
            return self._endpoint.blocking
        return connection.interface.version != "0.3" and not receives_pushes

    def _make_follower(
        self, connection: A2AConnection, message: A2AMessage, call: Call, emit: Emit, callback: Callback | None
    ) -> TaskFollower:
        callers_message = read_callers_message(call)
        request_options = self._make_request_options(connection, call, callers_message)
        output_modes = connection.skill_info(call.target.capability).output_modes
        if callers_message is not None:
            output_modes = callers_message.output_modes or output_modes
        emits_events = call.response.stream
        receives_pushes = (
            emits_events and callback is not None and not connection.card.streaming and not self._loses_pushes
        )
        send_options = SendOptions(
            output_modes=output_modes,
            blocking=self._should_block(connection, receives_pushes=receives_pushes),
            metadata=callers_message.metadata if callers_message is not None else {},
        )
        silence_timeout = None if self._loses_pushes else self._endpoint.look_seconds
        push_receiver = (
            PushReceiver(callback, silence_timeout, emits_events=emits_events) if callback is not None else None
        )
        buffer = ReplyBuffer(
            self._context.reply_bytes,
            message.task_id,
            message.context_id,
            emits_events=emits_events,
            names_artifacts=is_a2a(call.original),
        )
        return TaskFollower(
            connection.client,
            message,
            send_options,
            request_options,
            buffer,
            emit if emits_events else None,
            push_receiver,
        )

    def _sign_message(self, message: A2AMessage, call: Call) -> A2AMessage:
        if self._signer is None:
            return message
        identity = sign_metadata(self._signer, call, content_from_message(message))
        return msgspec.structs.replace(message, metadata={**message.metadata, **identity})

    def _make_message(self, connection: A2AConnection, call: Call) -> A2AMessage:
        name = call.target.capability
        skill_info = connection.skill_info(name)
        if (callers_message := read_callers_message(call)) is not None:
            return self._pass_on_message(callers_message, skill_info, call)
        parts = parts_from_call(call, self._full_manifest.find_capability(name), takes_json=skill_info.takes_json)
        metadata = make_propagation_metadata(call)
        if skill_info.skill is not None:
            metadata[SKILL_KEY] = skill_info.skill
        return A2AMessage(
            id=new_id(), role="user", parts=parts, metadata=metadata, context_id=self._context_ids.find(call)
        )

    def _pass_on_message(self, callers_message: CallersMessage, skill_info: SkillInfo, call: Call) -> A2AMessage:
        raw = callers_message.message
        metadata = {**(raw.get("metadata") or {}), **make_propagation_metadata(call)}
        metadata.pop(IDENTITY_META_KEY, None)  # was signed for this node, and is no business of the agent's
        if callers_message.names_skill:
            if skill_info.skill is not None:
                metadata[SKILL_KEY] = skill_info.skill
            if skill_info.takes_json:
                capability = self._full_manifest.find_capability(call.target.capability)
                raw = raw_with_bound_text(callers_message, call, capability)
        return A2AMessage(
            id=str(raw.get("messageId", "")),
            role="user",
            metadata=metadata,
            raw=raw,
            dialect=callers_message.dialect,
            context_id=self._context_ids.find(call),
        )

    def _make_request_options(
        self, connection: A2AConnection, call: Call, callers_message: CallersMessage | None
    ) -> RequestOptions:
        options = _request_options(call)
        if callers_message is None or not callers_message.extensions:
            return options
        extensions = dict.fromkeys((*self._endpoint.extensions, *callers_message.extensions))
        name = EXTENSION_HEADERS[connection.interface.version]
        return msgspec.structs.replace(options, headers={**options.headers, name: ", ".join(extensions)})

    def _make_answer_message(self, connection: A2AConnection, answers: Answers, call: Call) -> A2AMessage:
        continuation = parse_continuation(answers)
        if (callers_message := read_callers_message(call)) is not None:
            message = self._pass_on_message(callers_message, connection.skill_info(call.target.capability), call)
            return msgspec.structs.replace(message, task_id=continuation.task_id, context_id=continuation.context_id)
        answer = find_answer(answers)
        parts = parts_from_answer(answer, continuation) if answer.action != "cancel" else ()
        metadata = make_propagation_metadata(call)
        return A2AMessage(
            id=new_id(),
            role="user",
            parts=parts,
            metadata=metadata,
            task_id=continuation.task_id,
            context_id=continuation.context_id,
        )

    async def _cancel_task(self, connection: A2AConnection, message: A2AMessage, call: Call) -> Result:
        """The caller cancelled the question, so the agent's task is cancelled, too."""
        await connection.client.cancel(message.task_id, _request_options(call))
        raise BadInput("The agent's question was cancelled, and its task with it", field="answers")

    def _abandon(self, follower: TaskFollower, client: A2AClient) -> None:
        """Cancels the agent's task in the background, so that the caller does not wait for it."""

        async def abandon() -> None:
            try:
                async with self._use_client(client):
                    await follower.abandon()
            finally:
                self._must_always_stream = self._must_always_stream or follower.cannot_list_tasks

        self._background_cancels.start(abandon())


def _request_options(call: Call) -> RequestOptions:
    return RequestOptions(
        headers=make_propagation_headers(call), timeout=call.target.timeout_ms / 1000 + _EXTRA_SECONDS
    )


def _result_from_buffer(buffer: ReplyBuffer, *, keeps_original: bool) -> Result:
    """Raises UpstreamRefused for a task that did not succeed."""
    if buffer.needs_input:
        return result_from_question(buffer)
    if buffer.state in _FAILURE_TEXTS and buffer.message_parts is None:
        text = join_text(buffer.status_parts)
        raise UpstreamRefused((text or _FAILURE_TEXTS[buffer.state])[:500], state=buffer.state)
    result = result_from_parts(buffer.parts)
    if not keeps_original:
        return result
    return msgspec.structs.replace(result, original=original_from_buffer(buffer, result))
