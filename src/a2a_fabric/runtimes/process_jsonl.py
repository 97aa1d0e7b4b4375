"""Runtime: a program that speaks JSON lines.

It is started by the first call, and by the next one after its death; with back-off if it dies before it answers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from a2a_fabric.core.agent import Capability, Manifest, Status
from a2a_fabric.core.arguments import arguments_for
from a2a_fabric.core.call import Call
from a2a_fabric.core.content import left_behind, noted
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.errors import AgentBusy, AgentOffline, FabricError, UpstreamFailed, UpstreamInterrupted
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.result import Result, as_object
from a2a_fabric.runtimes.process_child import Program
from a2a_fabric.runtimes.process_lines import Conversation, Limits
from a2a_fabric.runtimes.process_starts import Starts
from a2a_fabric.runtimes.published import complete

HEALTH_TIMEOUT = 5.0
DESCRIBE_TIMEOUT = 10.0

_STATUS: dict[str, Status] = {"degraded": "degraded", "offline": "offline"}


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What `fabric.describe` may answer; any other field of a manifest is left alone."""

    capabilities: tuple[Capability, ...] = ()
    display_name: str = ""
    description: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """How soon after its nth failed start in a row a program is started again: `first`, twice that, … `longest`."""

    first: float
    longest: float
    most: int | None = None  # deaths in a row after which we give up

    def delay(self, deaths: int) -> float:
        return float(min(self.longest, self.first * 2 ** min(deaths - 1, 30)))

    def is_hopeless(self, deaths: int) -> bool:
        return self.most is not None and deaths > self.most


class JsonlRuntime:
    def __init__(self, manifest: Manifest, program: Program, limits: Limits, restarts: Restarts) -> None:
        self.manifest = manifest
        self._program = program
        self._limits = limits
        self._restarts = restarts
        self._current: Conversation | None = None
        self._all: set[Conversation] = set()
        self._starts = Starts()
        self._starting = asyncio.Lock()
        self._deaths = 0  # in a row, without an answer in between
        self._ready_at = 0.0
        self._is_closed = False

    async def __call__(self, call: Call, emit: Emit) -> Result:
        conversation = await self._conversation()
        request = self._request(call)
        try:
            said = await conversation.ask(request, emit)
        except AgentOffline as error:
            if error.is_answer or not conversation.is_over or not conversation.has_answered:
                raise
            said = await (await self._conversation()).ask(request, emit)  # it died before it was asked
        result = Result(data=as_object(said.value), parts=said.parts, notes=said.notes)
        return noted(result, left_behind(call.input, request["arguments"], request["name"]))

    async def health(self) -> Status:
        """Asks a running program; of one that is not running, only whether it could be started."""
        conversation = self._current
        if conversation is None or conversation.is_over:
            self._check_startable()
            self._program.path()
            return "online"
        if conversation.is_full:
            return "online"  # it is busy, and could not be asked
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                said = await conversation.ask({"name": "fabric.health", "arguments": {}}, ignore)
        except TimeoutError:
            return "degraded"
        except (AgentOffline, UpstreamInterrupted):
            raise
        except FabricError:
            return "online"  # it does not know the word, but it answers
        return _STATUS.get(str(as_object(said.value).get("status")), "online")

    async def describe(self) -> Manifest:
        """The manifest as it is if the program does not know `fabric.describe`."""
        conversation = await self._conversation()
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT):
                said = await conversation.ask({"name": "fabric.describe", "arguments": {}}, ignore)
        except (AgentOffline, AgentBusy, UpstreamInterrupted):
            raise
        except (FabricError, TimeoutError):
            return self.manifest
        self.manifest = complete(self.manifest, self._published(said.value))
        return self.manifest

    async def aclose(self) -> None:
        self._is_closed = True
        await self._starts.aclose()
        if ending := [asyncio.ensure_future(conversation.stop()) for conversation in self._all]:
            await asyncio.wait(ending)

    async def _conversation(self) -> Conversation:
        if self._current is None or self._current.is_over:
            async with self._starting:
                if self._current is None or self._current.is_over:
                    self._current = await self._start()
        return self._current

    async def _start(self) -> Conversation:
        self._check_startable()
        conversation = Conversation(await self._starts.child(self._program), self._limits, self._over)
        self._all = {each for each in self._all if not each.is_gone} | {conversation}
        return conversation

    def _check_startable(self) -> None:
        tell, agent_id = self._program.tell, self.manifest.agent_id
        if self._is_closed:
            raise AgentOffline(tell("is shut down with the node"), agent_id=agent_id)
        if self._restarts.is_hopeless(self._deaths):
            raise AgentOffline(tell(f"died {self._deaths} times in a row; it is not started again"), agent_id=agent_id)
        wait = self._ready_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise AgentOffline(tell(f"died; it is started again in {wait:.1f} s"), agent_id=agent_id, retry_after=wait)

    def _over(self, conversation: Conversation) -> None:
        """A program that had answered and died is started again by the next call; another one must wait."""
        if not conversation.has_failed:
            self._deaths = 0
        elif conversation.has_answered:
            self._deaths, self._ready_at = 1, 0.0
        else:
            self._deaths += 1
            self._ready_at = asyncio.get_running_loop().time() + self._restarts.delay(self._deaths)

    def _request(self, call: Call) -> dict[str, Any]:
        capability = self.manifest.capability(call.target.capability)
        told: dict[str, Any] = {
            "name": capability.name if capability else call.target.capability,
            "arguments": arguments_for(capability, call.input),
            "trace": call.trace,
            "target": call.target,
            "auth": call.auth,
            "stream": call.response.stream,
        }
        more = {
            "conversation_id": agent_conversation_id(call),
            "delegation_chain": call.delegation_chain,
            "on_behalf_of": call.on_behalf_of,
        }
        return told | {name: value for name, value in more.items() if value}

    def _published(self, said: Any) -> Manifest:
        try:
            published = msgspec.convert(said, Published)
        except msgspec.ValidationError as exc:
            why = f"The description cannot be read: {exc}"
            raise UpstreamFailed(why, agent_id=self.manifest.agent_id) from exc
        return Manifest(
            agent_id=self.manifest.agent_id, endpoint=self.manifest.endpoint, **msgspec.structs.asdict(published)
        )
