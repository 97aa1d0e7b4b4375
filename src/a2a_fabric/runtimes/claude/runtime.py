"""Runtime: an agent that is a folder with instructions, and Claude Code started in it for each call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import not_carried, noted, parts_of
from a2a_fabric.core.delegation import in_environment
from a2a_fabric.core.errors import AgentBusy, AgentOffline
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.result import Result
from a2a_fabric.core.trace import traceparent
from a2a_fabric.runtimes.claude.command import Asked, Message, Way, arguments_of, message_of
from a2a_fabric.runtimes.claude.conversations import Conversation, Conversations
from a2a_fabric.runtimes.claude.endpoint import ClaudeEndpoint
from a2a_fabric.runtimes.claude.folder import about
from a2a_fabric.runtimes.claude.hearing import Hearing
from a2a_fabric.runtimes.claude.outcome import is_unknown_session, is_used_session, refusal_of, result_of
from a2a_fabric.runtimes.claude.run import Limits, Run, death_of
from a2a_fabric.runtimes.claude.version import Version
from a2a_fabric.runtimes.offered_node import OfferedNode
from a2a_fabric.runtimes.process_child import Program
from a2a_fabric.runtimes.process_starts import Starts
from a2a_fabric.runtimes.prompt import ASK, words_of
from a2a_fabric.runtimes.published import complete

_PROTOCOL = "Claude Code"
_LOST = "the session of this conversation was lost; it begins again"


class _OtherWay(Exception):
    """The session is not what we took it for."""


class ClaudeRuntime:
    def __init__(
        self,
        manifest: Manifest,
        endpoint: ClaudeEndpoint,
        program: Program,
        limits: Limits,
        node: OfferedNode | None,
    ) -> None:
        self.manifest = manifest
        self._endpoint = endpoint
        self._program = program
        self._limits = limits
        self._node = node
        self._version = Version(program)
        self._conversations = Conversations(manifest.agent_id, endpoint.max_sessions)
        self._slots = asyncio.Semaphore(endpoint.max_concurrent)
        self._pending = 0
        self._starts = Starts()
        self._runs: set[Run] = set()
        self._endings: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Call, emit: Emit) -> Result:
        if self._pending >= self._endpoint.max_pending:
            raise AgentBusy(
                f"The agent is busy with {self._pending} calls, the most it takes at a time",
                agent_id=self.manifest.agent_id,
            )
        ends_at = asyncio.get_running_loop().time() + call.target.timeout_ms / 1000
        heard = emit if call.response.stream else ignore
        self._pending += 1
        try:
            return await self._in_turn(call, heard, ends_at)
        finally:
            self._pending -= 1

    async def health(self) -> Status:
        await self._version.check()
        return "online"

    async def describe(self) -> Manifest:
        self._program.path()
        found = await asyncio.to_thread(about, self._folder)
        asked = Capability(
            name=ASK,
            description=found.description or f"Ask {found.name or self.manifest.agent_id} in words.",
            streaming=True,
            modalities=("text", "json", "image"),
        )
        published = Manifest(
            agent_id=self.manifest.agent_id,
            endpoint=self.manifest.endpoint,
            capabilities=(asked,),
            display_name=found.name,
            description=found.description,
            version=found.version,
        )
        self.manifest = complete(self.manifest, published)
        return self.manifest

    async def aclose(self) -> None:
        """Calls under way end with their programs."""
        await self._starts.aclose()
        if stopping := [asyncio.ensure_future(run.stop()) for run in self._runs]:
            await asyncio.wait(stopping)
        if self._endings:
            await asyncio.wait(self._endings)

    @property
    def _folder(self) -> Path:
        return self._program.cwd

    async def _in_turn(self, call: Call, emit: Emit, ends_at: float) -> Result:
        """One run per conversation at a time, and not too many in all."""
        conversation = self._conversations.of(call)
        if conversation is None:
            async with self._slots:
                return await self._run(call, emit, ends_at, None)
        async with conversation.turn, self._slots:
            await conversation.quiet()
            return await self._continued(call, emit, ends_at, conversation)

    async def _continued(self, call: Call, emit: Emit, ends_at: float, conversation: Conversation) -> Result:
        """In its session; if that is there though we did not know, or is not though we did, then in the other way."""
        ways: tuple[Way, Way] = ("resume", "new") if conversation.has_begun else ("new", "resume")
        try:
            return await self._run(call, emit, ends_at, conversation, ways[0])
        except _OtherWay:
            pass
        try:
            await conversation.quiet()
            result = await self._run(call, emit, ends_at, conversation, ways[1])
        except _OtherWay as exc:
            why = f"The session {conversation.session_id} can neither be begun nor resumed"
            raise AgentOffline(why, agent_id=self.manifest.agent_id) from exc
        return noted(result, (_LOST,)) if ways[1] == "new" else result

    async def _run(
        self, call: Call, emit: Emit, ends_at: float, conversation: Conversation | None, way: Way = "new"
    ) -> Result:
        """Raises _OtherWay if there is no such session, or if there is one already; nothing was done then."""
        message = self._message(call)
        hearing = Hearing(self.manifest.agent_id, in_pieces=call.response.stream)
        run = Run(await self._starts.child(self._prepared(call, message, conversation, way)), self._limits)
        self._runs.add(run)
        try:
            obituary = await run.heard_out(message.stdin, hearing, emit, ends_at)
        finally:
            self._see_off(run, conversation)
        result = self._result(hearing, obituary)
        if conversation is not None:
            conversation.has_begun = True
        return noted(result, not_carried(message.left, _PROTOCOL))

    def _result(self, hearing: Hearing, obituary: str) -> Result:
        said = hearing.result
        if said is None:
            if not hearing.has_begun and is_used_session(obituary):
                raise _OtherWay
            raise death_of(hearing, obituary)
        if is_unknown_session(said):
            raise _OtherWay
        if said.get("is_error"):
            raise refusal_of(hearing, said)
        return result_of(hearing, said)

    def _message(self, call: Call) -> Message:
        words = words_of(self.manifest, call)
        return message_of(words, parts_of(call.input), may_command=self._endpoint.commands)

    def _prepared(self, call: Call, message: Message, conversation: Conversation | None, way: Way) -> Program:
        capability = self.manifest.capability(call.target.capability)
        asked = Asked(
            stream=call.response.stream,
            schema=capability.output_schema if capability is not None else None,
            session=None if conversation is None else (way, conversation.session_id),
        )
        passed = in_environment(call.delegation_chain)
        arguments = arguments_of(self._endpoint, self._folder, asked, self._offered(passed))
        told = {"FABRIC_TRACE_ID": call.trace.trace_id, "TRACEPARENT": traceparent(call.trace), **passed}

        return replace(
            self._program,
            argv=(*self._program.argv, *message.options, *arguments),
            env={**told, **self._program.env},
        )

    def _offered(self, passed: dict[str, str]) -> OfferedNode | None:
        """This node as a server for the program, which is told what the call has passed."""
        if self._node is None:
            return None
        return replace(self._node, env={**self._node.env, **passed})

    def _see_off(self, run: Run, conversation: Conversation | None) -> None:
        """The process ends while nobody waits for it, except the next turn of its conversation."""
        ending = asyncio.ensure_future(run.see_off())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        ending.add_done_callback(lambda _: self._runs.discard(run))
        if conversation is not None:
            conversation.ending = ending
