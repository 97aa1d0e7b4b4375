"""Runtime for agents that speak the Agent Client Protocol, as the coding agents of editors do.

It starts turns, waits for permissions, and cancels turns without a caller. There is one agent session per
conversation; the least recently used one is closed first. A session takes one turn at a time, so the next call
of a conversation waits for the previous one. A call without a conversation gets a session of its own."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import (
    Call,
    Emit,
    add_notes,
    derive_conversation_id,
    describe_unsupported_parts,
    ignore_event,
    make_propagation_metadata,
    owner_from_principal,
    parts_from_input,
)
from a2a_fabric.core.errors import Conflict, FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.forwarding import CallSigner, sign_metadata
from a2a_fabric.core.pending_questions import PendingQuestions, unknown_continuation
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.result import Answers, Result, make_input_required
from a2a_fabric.runtimes.agent_client.content import (
    ContentBlock,
    blocks_from_parts,
    modalities_from_capabilities,
    text_block,
)
from a2a_fabric.runtimes.agent_client.endpoint import (
    launch_settings_from_endpoint,
    program_from_endpoint,
    read_endpoint,
    restarts_from_endpoint,
)
from a2a_fabric.runtimes.agent_client.jsonrpc import PipeLimits
from a2a_fabric.runtimes.agent_client.process import AgentProcess, AgentProcessSupervisor, to_json
from a2a_fabric.runtimes.agent_client.turn import PromptResponse, PromptTurn
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest
from a2a_fabric.runtimes.programs import ProgramSpec
from a2a_fabric.runtimes.prompt import DEFAULT_CAPABILITY, build_format_instruction, build_prompt, find_json_object

ConversationKey = str  # a conversation id that is bound to its caller

_FORGOTTEN_NOTE = "the agent was restarted and has lost this conversation, so the conversation begins again"
_AWAITS_ANSWER = "The agent waits for the answer to a question of its own in this conversation: answer that first"


class AgentSession:
    def __init__(self) -> None:
        self.id = ""
        self.process: AgentProcess | None = None
        self.turn: PromptTurn | None = None
        self._lock = asyncio.Lock()

    @property
    def is_free(self) -> bool:
        return not self._lock.locked()

    async def acquire(self) -> None:
        """Raises Conflict if the turn that uses the session waits for an answer."""
        if self.turn is not None and self.turn.questions:
            raise Conflict(_AWAITS_ANSWER)
        await self._lock.acquire()

    def release(self) -> None:
        self.turn = None
        self._lock.release()

    async def attach(self, process: AgentProcess) -> tuple[str, ...]:
        """Open or restore the session in this process; the notes say if its history was lost. Raises FabricError."""
        if self.process is process:
            return ()
        has_history = self.id != ""
        if not (has_history and await process.restore_session(self.id)):
            self.id = await process.new_session()
            self.process = process
            return (_FORGOTTEN_NOTE,) if has_history else ()
        self.process = process
        return ()


class AgentSessions:
    """`close` is called for each session that no call can reach any more."""

    def __init__(self, max_sessions: int, close: Callable[[AgentSession], None]) -> None:
        self._max_sessions = max_sessions
        self._close = close
        self._by_key: OrderedDict[ConversationKey, AgentSession] = OrderedDict()

    async def acquire(self, key: ConversationKey | None) -> AgentSession:
        """The session of the conversation, once no other call uses it."""
        session = AgentSession() if key is None else self._get_or_create(key)
        await session.acquire()
        return session

    def release(self, session: AgentSession, key: ConversationKey | None) -> None:
        session.release()
        if key is None:
            self._close(session)
        else:
            self._trim()

    def _get_or_create(self, key: ConversationKey) -> AgentSession:
        session = self._by_key.setdefault(key, AgentSession())
        self._by_key.move_to_end(key)
        return session

    def _trim(self) -> None:
        free = [key for key, session in self._by_key.items() if session.is_free]
        for key in free[: max(0, len(self._by_key) - self._max_sessions)]:
            self._close(self._by_key.pop(key))


_START_TIME_SHARE = 0.8  # of a call's time, for an agent that is still starting: a fallback can use the rest
_PROTOCOL = "the agent"
_INCOMPLETE_NOTES = {
    "max_tokens": "the agent stopped in the middle: it has used up its tokens",
    "max_turn_requests": "the agent stopped in the middle: it has reached its limit of model requests",
}


class AgentTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    answer_timeout: float
    cancel_timeout: float


class AgentClientRuntime:
    def __init__(
        self,
        manifest: Manifest,
        program: ProgramSpec,
        supervisor: AgentProcessSupervisor,
        timeouts: AgentTimeouts,
        *,
        max_sessions: int,
        reply_bytes: int,
        signer: CallSigner | None = None,
    ) -> None:
        self._signer = signer
        self.manifest = manifest
        self._program = program
        self._supervisor = supervisor
        self._timeouts = timeouts
        self._reply_bytes = reply_bytes
        self._sessions = AgentSessions(max_sessions, self._close_session)
        self._pending_permissions = PendingQuestions[PromptTurn](
            manifest.agent_id, timeouts.answer_timeout, self._abandon_turn
        )
        self._session_by_turn: dict[PromptTurn, AgentSession] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __call__(self, call: Call, emit: Emit) -> Result:
        if call.answers:
            turn = self._resume_turn(call, call.answers)
            turn.set_listening(is_listening=call.response.stream)
        else:
            turn = await self._start_turn(call)
        return await self._finish_turn(turn, call, emit)

    async def health(self) -> Status:
        """The protocol has no health request: a running agent is healthy, any other if its program can be started."""
        if self._supervisor.current is None:
            self._supervisor.check_ready()
            self._program.find_executable()
        return "online"

    async def describe(self) -> Manifest:
        process = await self._supervisor.get_process()
        info = process.handshake.agent_info
        name = (info.title or info.name) if info is not None else ""
        capability = Capability(
            name=DEFAULT_CAPABILITY,
            description=f"Ask {name or 'the agent'} in words.",
            streaming=True,
            modalities=modalities_from_capabilities(process.prompt_capabilities),
        )
        published = Manifest(
            agent_id=self.manifest.agent_id,
            endpoint=self.manifest.endpoint,
            capabilities=(capability,),
            display_name=name,
            version=info.version if info is not None else "",
        )
        self.manifest = complete_manifest(self.manifest, published)
        return self.manifest

    async def aclose(self) -> None:
        self._is_closed = True
        self._pending_permissions.close()
        for task in self._background_tasks:
            task.cancel()
        await self._supervisor.aclose()
        if self._background_tasks:
            await asyncio.wait(self._background_tasks)

    def _resume_turn(self, call: Call, answers: Answers) -> PromptTurn:
        """Pass the answers to the turn that waits for them. Raises BadInput; then the turn goes on waiting."""
        turn = self._pending_permissions.find(answers.continuation, _pending_key(call))
        if turn is None:
            raise unknown_continuation()
        turn.apply_answers(answers.answers)
        self._pending_permissions.remove(answers.continuation)
        return turn

    async def _start_turn(self, call: Call) -> PromptTurn:
        """Start a turn in the conversation's session. Raises FabricError; then no work has run."""
        key, turn = derive_conversation_id(call), PromptTurn(call, self._reply_bytes)
        session = await self._sessions.acquire(key)
        try:
            process, notes = await self._attach_session(session, _START_TIME_SHARE * call.target.timeout_ms / 1000)
            turn.notes += [*notes, *process.unsupported_server_notes()]
            blocks = self._build_blocks(call, process, turn)
            identity = sign_metadata(self._signer, call, [to_json(block) for block in blocks])
        except BaseException:
            self._sessions.release(session, key)
            raise
        session.turn = turn
        self._session_by_turn[turn] = session
        meta = {**make_propagation_metadata(call), **identity}
        turn.start(process.run_prompt(session.id, turn, blocks, meta), lambda turn: self._on_turn_ended(turn, key))
        return turn

    async def _attach_session(self, session: AgentSession, timeout: float) -> tuple[AgentProcess, tuple[str, ...]]:
        """An open process that has the session, with notes for the caller. Raises FabricError."""
        process = await self._supervisor.get_process(timeout)
        try:
            return process, await session.attach(process)
        except FabricError:
            if not process.is_closed or not process.has_answered:
                raise
        process = await self._supervisor.get_process(timeout)  # the agent had exited before the request
        return process, await session.attach(process)

    def _build_blocks(self, call: Call, process: AgentProcess, turn: PromptTurn) -> list[ContentBlock]:
        capability = self.manifest.find_capability(call.target.capability)
        text = "\n\n".join(filter(None, (build_prompt(self.manifest, call), build_format_instruction(capability))))
        blocks, unsupported = blocks_from_parts(parts_from_input(call.input), process.prompt_capabilities)
        turn.notes += describe_unsupported_parts(unsupported, _PROTOCOL)
        return [text_block(text), *blocks]

    async def _finish_turn(self, turn: PromptTurn, call: Call, emit: Emit) -> Result:
        """The turn is abandoned unless it ended with an answer or waits for one."""
        try:
            response = await turn.emit_until_pause(emit if call.response.stream else ignore_event)
            if response is not None:
                return self._result_from_turn(turn, response, call)
            if not self._pending_permissions.is_full:
                return make_input_required(turn.questions, self._pending_permissions.add(turn, _pending_key(call)))
            raise UpstreamRefused("Too many requests of this agent wait for a permission. Try again later.")
        except BaseException:
            if not turn.has_ended:
                self._abandon_turn(turn)
            raise

    def _result_from_turn(self, turn: PromptTurn, response: PromptResponse, call: Call) -> Result:
        text = turn.transcript.text
        if response.stop_reason == "refusal":
            raise UpstreamRefused(text[:2000] or "The agent refused to go on", stop_reason=response.stop_reason)
        if response.stop_reason == "cancelled":
            raise UpstreamInterrupted("The agent cancelled the work by itself", stop_reason=response.stop_reason)
        capability = self.manifest.find_capability(call.target.capability)
        parsed, notes = find_json_object(text, capability)
        costs = {"usage": response.usage, "cost": turn.transcript.cost}
        answer = {"answer": text, **{name: value for name, value in costs.items() if value}}
        data = answer if parsed is None else parsed
        if response.stop_reason in _INCOMPLETE_NOTES:
            data = {**data, "stop_reason": response.stop_reason}
            notes = (*notes, _INCOMPLETE_NOTES[response.stop_reason])
        return add_notes(Result(data=data, parts=turn.transcript.parts), (*turn.notes, *notes))

    def _on_turn_ended(self, turn: PromptTurn, key: ConversationKey | None) -> None:
        self._sessions.release(self._session_by_turn.pop(turn), key)

    def _abandon_turn(self, turn: PromptTurn) -> None:
        """Cancel the turn at the agent without waiting; the session stays in use until the turn has stopped."""
        session = self._session_by_turn.get(turn)
        if session is None or session.process is None:
            return
        session.process.cancel(session.id)
        turn.abandon()
        self._run_in_background(self._enforce_cancel(turn, session.process))

    async def _enforce_cancel(self, turn: PromptTurn, process: AgentProcess) -> None:
        """An agent that goes on after a cancellation is stopped as soon as no other turn uses it."""
        if not await turn.ends_within(self._timeouts.cancel_timeout):
            process.retire()
            await turn.cancel()

    def _close_session(self, session: AgentSession) -> None:
        if session.process is not None and not self._is_closed:
            self._run_in_background(session.process.close_session(session.id))

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run in the background; only `aclose` waits for it."""
        task = asyncio.ensure_future(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)


def _pending_key(call: Call) -> tuple[str, str]:
    return owner_from_principal(call.auth), call.target.capability


def build(manifest: Manifest, context: RuntimeContext) -> AgentClientRuntime:
    """Raises BadInput for a bad endpoint."""
    endpoint = read_endpoint(manifest)
    program = program_from_endpoint(manifest.agent_id, endpoint, context)
    launch_settings = launch_settings_from_endpoint(manifest.agent_id, endpoint, context)
    pipe_limits = PipeLimits(line_bytes=endpoint.line_bytes or context.reply_bytes, grace=endpoint.grace)

    def start_process(on_closed: Callable[[AgentProcess], None]) -> AgentProcess:
        return AgentProcess(program, pipe_limits, launch_settings, on_closed)

    return AgentClientRuntime(
        manifest,
        program,
        AgentProcessSupervisor(manifest.agent_id, start_process, restarts_from_endpoint(endpoint)),
        AgentTimeouts(answer_timeout=endpoint.answer_timeout, cancel_timeout=endpoint.cancel_timeout),
        max_sessions=endpoint.max_sessions,
        reply_bytes=context.reply_bytes,
        signer=context.signer,
    )


plugin = RuntimePlugin(build=build)
