"""Runtime: an agent that speaks the Agent Client Protocol on its stdin and stdout, as editors' coding agents do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import not_carried, noted, parts_of
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.delegation import in_metadata
from a2a_fabric.core.errors import FabricError, UpstreamInterrupted, UpstreamRefused
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.agent_client.content import Block, blocks_of, modalities, text_block
from a2a_fabric.runtimes.agent_client.keeper import Keeper
from a2a_fabric.runtimes.agent_client.link import Link
from a2a_fabric.runtimes.agent_client.parking import Parking
from a2a_fabric.runtimes.agent_client.sessions import Key, Session, Sessions
from a2a_fabric.runtimes.agent_client.turn import Ended, Turn, owner_of
from a2a_fabric.runtimes.process_child import Program
from a2a_fabric.runtimes.prompt import ASK, in_which_form, object_in, words_of
from a2a_fabric.runtimes.published import complete

_WAIT_SHARE = 0.8  # of a call's time, for an agent that is still starting: then another may be asked
_PROTOCOL = "the agent"
_CUT_SHORT = {
    "max_tokens": "the agent stopped in the middle: it has used up its tokens",
    "max_turn_requests": "the agent stopped in the middle: it has asked its model as often as it may",
}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    answer_timeout: float
    cancel_timeout: float


class AgentClientRuntime:
    def __init__(
        self, manifest: Manifest, program: Program, keeper: Keeper, times: Times, *, max_sessions: int, reply_bytes: int
    ) -> None:
        self.manifest = manifest
        self._program = program
        self._keeper = keeper
        self._times = times
        self._reply_bytes = reply_bytes
        self._sessions = Sessions(max_sessions, self._close_session)
        self._parking = Parking(manifest.agent_id, times.answer_timeout, self._give_up)
        self._places: dict[Turn, Session] = {}
        self._afterwards: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __call__(self, call: Call, emit: Emit) -> Result:
        if call.answers:
            turn = self._parking.resume(call.answers, owner_of(call.auth), call.target.capability)
            turn.listen(is_listening=call.response.stream)
        else:
            turn = await self._begin(call)
        return await self._outcome(turn, call, emit)

    async def health(self) -> Status:
        """The protocol has no word for it: of a running agent that it runs, of another that it could be started."""
        if self._keeper.current is None:
            self._keeper.check_ready()
            self._program.path()
        return "online"

    async def describe(self) -> Manifest:
        link = await self._keeper.link()
        info = link.about.agent_info
        name = (info.title or info.name) if info is not None else ""
        asked = Capability(
            name=ASK,
            description=f"Ask {name or 'the agent'} in words.",
            streaming=True,
            modalities=modalities(link.takes),
        )
        published = Manifest(
            agent_id=self.manifest.agent_id,
            endpoint=self.manifest.endpoint,
            capabilities=(asked,),
            display_name=name,
            version=info.version if info is not None else "",
        )
        self.manifest = complete(self.manifest, published)
        return self.manifest

    async def aclose(self) -> None:
        self._is_closed = True
        self._parking.close()
        for task in self._afterwards:
            task.cancel()
        await self._keeper.aclose()
        if self._afterwards:
            await asyncio.wait(self._afterwards)

    async def _begin(self, call: Call) -> Turn:
        """A turn in the conversation's session, started. Raises FabricError; then nothing has run."""
        key, turn = _key_of(call), Turn(call, self._reply_bytes)
        session = await self._sessions.take(key)
        try:
            link, notes = await self._settled(session, _WAIT_SHARE * call.target.timeout_ms / 1000)
            turn.notes += [*notes, *link.not_offered()]
            blocks = self._blocks(call, link, turn)
        except BaseException:
            self._sessions.leave(session, key)
            raise
        session.turn = turn
        self._places[turn] = session
        meta = in_metadata(call.delegation_chain)
        turn.start(link.prompt(session.id, turn, blocks, meta), lambda turn: self._ended(turn, key))
        return turn

    async def _settled(self, session: Session, patience: float) -> tuple[Link, tuple[str, ...]]:
        """An open link that knows the session, and what to note about that. Raises FabricError."""
        link = await self._keeper.link(patience)
        try:
            return link, await session.settle(link)
        except FabricError:
            if not link.is_over or not link.has_answered:
                raise
        link = await self._keeper.link(patience)  # the agent had died before it was asked
        return link, await session.settle(link)

    def _blocks(self, call: Call, link: Link, turn: Turn) -> list[Block]:
        capability = self.manifest.capability(call.target.capability)
        words = "\n\n".join(filter(None, (words_of(self.manifest, call), in_which_form(capability))))
        blocks, left = blocks_of(parts_of(call.input), link.takes)
        turn.notes += not_carried(left, _PROTOCOL)
        return [text_block(words), *blocks]

    async def _outcome(self, turn: Turn, call: Call, emit: Emit) -> Result:
        """Leaving for whatever reason but an answer or a question ends the turn."""
        try:
            ended = await turn.heard_out(emit if call.response.stream else ignore)
            if ended is not None:
                return self._result(turn, ended, call)
            if not self._parking.is_full:
                return self._parking.park(turn)
            raise UpstreamRefused("Too many requests of this agent wait for somebody's permission")
        except BaseException:
            if not turn.is_over:
                self._give_up(turn)
            raise

    def _result(self, turn: Turn, ended: Ended, call: Call) -> Result:
        text = turn.report.text
        if ended.stop_reason == "refusal":
            raise UpstreamRefused(text[:2000] or "The agent refused to go on", stop_reason=ended.stop_reason)
        if ended.stop_reason == "cancelled":
            raise UpstreamInterrupted("The agent cancelled the work by itself", stop_reason=ended.stop_reason)
        capability = self.manifest.capability(call.target.capability)
        found, notes = object_in(text, capability)
        told = {"usage": ended.usage, "cost": turn.report.cost}
        spoken = {"answer": text, **{name: value for name, value in told.items() if value}}
        data = spoken if found is None else found
        if ended.stop_reason in _CUT_SHORT:
            data = {**data, "stop_reason": ended.stop_reason}
            notes = (*notes, _CUT_SHORT[ended.stop_reason])
        return noted(Result(data=data, parts=turn.report.parts), (*turn.notes, *notes))

    def _ended(self, turn: Turn, key: Key | None) -> None:
        self._sessions.leave(self._places.pop(turn), key)

    def _give_up(self, turn: Turn) -> None:
        """Tell the agent, without waiting for it; the session stays taken until it has stopped."""
        session = self._places.get(turn)
        if session is None or session.link is None:
            return
        session.link.cancel(session.id)
        turn.give_up()
        self._later(self._wind_down(turn, session.link))

    async def _wind_down(self, turn: Turn, link: Link) -> None:
        """An agent that goes on all the same is ended, as soon as nobody else needs it."""
        if not await turn.ends_within(self._times.cancel_timeout):
            link.retire()
            await turn.drop()

    def _close_session(self, session: Session) -> None:
        if session.link is not None and not self._is_closed:
            self._later(session.link.close_session(session.id))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that nobody waits for, except the end of the runtime."""
        task = asyncio.ensure_future(work)
        self._afterwards.add(task)
        task.add_done_callback(self._afterwards.discard)


def _key_of(call: Call) -> Key | None:
    """None for a call without a conversation. Another caller who names the same id gets another session."""
    return agent_conversation_id(call)
