"""Runtime: another Fabric node, and each of its agents.

    {agent_id: lab, runtime: fabric, endpoint: {uri: "https://fabric.lab.example", psk: "env:LAB_PSK"}}

makes the agents of that node appear here as `lab/…`; `lab` itself answers to
`AGENT.CAPABILITY`. With `agent: percy` in the endpoint the entry is that one agent,
under an id that this node chooses. An agent that cannot be read is left out of the node's list.

The node may answer a call with a job instead of a result. Then the job is followed through broken
connections until it ends, and cancelled when the caller here leaves, so no work is left running there
unnoticed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import (
    AgentId,
    Audience,
    Capability,
    ListedAgent,
    Manifest,
    NodeListing,
    Status,
    is_imported,
    node_entry_of,
)
from a2a_fabric.core.call import Call, Emit
from a2a_fabric.core.errors import (
    AgentOffline,
    BadInput,
    CapabilityNotFound,
    FabricError,
    RateLimited,
    StoreUnavailable,
    UpstreamFailed,
    UpstreamInterrupted,
)
from a2a_fabric.core.federation import Provider
from a2a_fabric.core.pending_questions import unknown_continuation
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.propagation import UNNAMED_NODE
from a2a_fabric.core.result import EVENT_KINDS, Answers, Event, Fallback, Questions, Result, make_input_required
from a2a_fabric.core.spans import RemoteTrace
from a2a_fabric.protocols.mcp.runtime_ports import PromptResourceProvider
from a2a_fabric.runtimes import remote_work
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.fabric.client import (
    NodeClient,
    NodeFrame,
    NodeReply,
    build_call_arguments,
    questions_from_reply,
    read_event_data,
    read_final,
)
from a2a_fabric.runtimes.fabric.user_interfaces import NodeUserInterfaces
from a2a_fabric.runtimes.remote_work import BackgroundCancels, OutputLimit

_FIRST_PAUSE = 0.1
_MAX_PAUSE = 2.0
_CALL, _JOB = "call", "job"  # the kinds of continuation


class NodeCall:
    """`agent_id` and `capability` are the names on the other node; `prefix` makes its agent ids valid here."""

    def __init__(
        self,
        node: NodeClient,
        cancels: BackgroundCancels,
        agent_id: str,
        capability: str,
        *,
        prefix: str,
        call: Call,
        emit: Emit,
    ) -> None:
        self._node = node
        self._cancels = cancels
        self._agent_id = agent_id
        self._capability = capability
        self._prefix = prefix
        self._call = call
        self._emit = emit
        self._output_limit = OutputLimit(node.reply_bytes)
        self._ends_at = time.monotonic() + call.target.timeout_ms / 1000

    async def get_result(self) -> Result:
        """Raises FabricError. Cancelling it cancels the work on the other node."""
        kind, continued_id = _parse_continuation(self._call.answers)
        reply = await (self._send_answers(continued_id) if kind == _JOB else self._send_call(continued_id))
        if reply.job_id is not None:
            reply = await self._follow_or_cancel(reply)
        return self._result_from_reply(reply)

    async def _send_call(self, continuation: str | None) -> NodeReply:
        arguments = build_call_arguments(self._call, self._agent_id, self._capability)
        if continuation is not None and self._call.answers:
            arguments |= {"continuation": continuation, "answers": self._call.answers.answers}
        if not self._call.response.stream:
            return await self._node.call_operation("fabric.call", arguments, self._remaining_seconds)
        async with self._node.stream_operation("fabric.call", arguments, self._remaining_seconds) as reply:
            return reply if isinstance(reply, NodeReply) else await self._relay_frames(reply)

    async def _relay_frames(self, frames: AsyncIterator[NodeFrame]) -> NodeReply:
        async for frame in frames:
            if frame.event == "final":
                return read_final(frame)
            await self._relay_event(frame)
        raise UpstreamInterrupted(f"The stream of node '{self._node.name}' ended before its final event")

    async def _relay_event(self, frame: NodeFrame) -> None:
        """Relay all events except those that this node emits again: the start of the work, and questions."""
        if frame.event not in EVENT_KINDS or frame.event == "input_required":
            return
        event = Event(frame.event, read_event_data(frame))  # type: ignore[arg-type]  # one of EVENT_KINDS
        if event.kind != "status" or "message" in event.data or "reset" in event.data:
            await self._emit(self._output_limit.check(event))

    async def _send_answers(self, job_id: str | None) -> NodeReply:
        """Send the answers to the agent's questions; the job continues."""
        answers = self._call.answers.answers if self._call.answers else {}
        reply = await self._node.call_operation(
            "fabric.job.answer", {"job_id": job_id, "answers": answers}, self._remaining_seconds
        )
        return msgspec.structs.replace(reply, job_id=job_id)

    async def _follow_or_cancel(self, handle: NodeReply) -> NodeReply:
        job_id, event_count = str(handle.job_id), handle.data.get("events")
        after = event_count if isinstance(event_count, int) and event_count >= 0 else 0
        try:
            return await self._follow_job(job_id, after) if questions_from_reply(handle) is None else handle
        except FabricError as error:
            if not _is_job_outcome(error, job_id):
                self._cancel(job_id)
            raise
        except BaseException:
            self._cancel(job_id)
            raise

    async def _follow_job(self, job_id: str, after: int) -> NodeReply:
        """Follow the job to its end. After a broken connection, the missed events are read from its log."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._node.stream_operation(
                    "fabric.job.stream", {"job_id": job_id, "after": after}, self._remaining_seconds
                ) as reply:
                    if isinstance(reply, NodeReply):
                        return reply
                    async for frame in reply:
                        if frame.event == "final":
                            return read_final(frame)
                        after, pause = frame.number or after, _FIRST_PAUSE
                        if self._call.response.stream:
                            await self._relay_event(frame)
            except FabricError as error:
                if _is_job_outcome(error, job_id) or not _may_reconnect(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def _cancel(self, job_id: str) -> None:
        self._cancels.start(
            self._node.call_operation("fabric.job.cancel", {"job_id": job_id}, remote_work.CANCEL_TIMEOUT)
        )

    def _result_from_reply(self, reply: NodeReply) -> Result:
        questions = questions_from_reply(reply)
        if questions is not None:
            return _build_question_result(questions, reply.job_id)
        return Result(
            data=reply.data, parts=reply.parts, notes=reply.notes, fallback=self._translate_fallback(reply.fallback)
        )

    def _translate_fallback(self, fallback: Fallback | None) -> Fallback | None:
        """The agent that answered on the other node, under the id that it has here."""
        if fallback is None:
            return None
        used = f"{self._prefix}{fallback.used}"
        attempts = tuple(f"{self._prefix}{attempt}" for attempt in fallback.attempts)
        return msgspec.structs.replace(fallback, requested=self._call.target.agent_id, used=used, attempts=attempts)

    @property
    def _remaining_seconds(self) -> float:
        return self._ends_at - time.monotonic()


def _parse_continuation(answers: Answers | msgspec.UnsetType) -> tuple[str, str | None]:
    """The kind and id that the answers belong to. Raises BadInput for an unknown continuation."""
    if not answers:
        return _CALL, None
    kind, _, continued_id = answers.continuation.partition(":")
    if kind not in (_CALL, _JOB) or not continued_id:
        raise unknown_continuation()
    return kind, continued_id


def _build_question_result(questions: Questions, job_id: str | None) -> Result:
    """The continuation of a job is its id."""
    return make_input_required(
        questions.questions, f"{_JOB}:{job_id}" if job_id else f"{_CALL}:{questions.continuation}"
    )


def _is_job_outcome(error: FabricError, job_id: str) -> bool:
    """Whether the error is the outcome of the job, and not of the connection."""
    return error.details.get("job_id") == job_id


def _may_reconnect(error: FabricError) -> bool:
    """Whether the node is unreachable, busy or about to stop for a while; the job is kept."""
    is_unavailable = isinstance(error, AgentOffline | UpstreamInterrupted | RateLimited)
    return is_unavailable or error.details.get("upstream_code") == StoreUnavailable.code


_log = logging.getLogger(__name__)
_MAX_AGENTS = 10_000
_MAX_METADATA = 64 * 1024  # bytes of one capability, as the runtime `mcp` takes them from a server
_CAPABILITY_FIELDS = frozenset(Capability.__struct_fields__)


class _AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a listed agent that are used here."""

    agent_id: str
    display_name: str = ""
    version: str = ""
    status: Status = "unknown"
    error: str | None = None
    description: str = ""
    node_id: str = UNNAMED_NODE
    runtime: str | None = None
    tags: tuple[str, ...] = ()
    audience: Audience | None = None
    role: str = ""
    signals: tuple[str, ...] = ()
    provider: Provider | None = None
    delegate_id: str | None = None
    cog_id: str | None = None
    realm: str | None = None
    capabilities: tuple[dict[str, Any], ...] = ()

    @property
    def is_node(self) -> bool:
        """Whether the entry is a further node, which has no capabilities of its own."""
        return self.runtime == "fabric" and not self.capabilities


def agents_from_entries(entries: Any, node_id: str) -> tuple[ListedAgent, ...]:
    """The node's own agents. Entries of further nodes are left out, because such lists could be circular."""
    agents = (
        _hosted_agent_from_entry(entry, node_id)
        for entry in (entries if isinstance(entries, list) else [])[:_MAX_AGENTS]
    )
    return tuple(each for each in agents if each is not None)


def _hosted_agent_from_entry(entry: Any, node_id: str) -> ListedAgent | None:
    try:
        agent_entry = msgspec.convert(entry, _AgentEntry)
        if is_imported(agent_entry.agent_id) or agent_entry.is_node:
            return None
        manifest = _build_manifest(agent_entry, node_id)
        msgspec.convert(agent_entry.agent_id, AgentId)
    except msgspec.ValidationError as exc:
        _log.info("An agent of node %s was left out: %s", node_id, exc)
        return None
    return ListedAgent(manifest=manifest, status=agent_entry.status, error=agent_entry.error)


def agent_from_entry(entry: Any) -> ListedAgent | None:
    """An agent requested by name, on whichever node it runs; None if the entry cannot be read."""
    try:
        agent_entry = msgspec.convert(entry, _AgentEntry)
        return ListedAgent(
            manifest=_build_manifest(agent_entry, UNNAMED_NODE), status=agent_entry.status, error=agent_entry.error
        )
    except msgspec.ValidationError:
        return None


def _build_manifest(agent_entry: _AgentEntry, node_id: str) -> Manifest:
    return Manifest(
        agent_id=agent_entry.agent_id,
        endpoint={},
        capabilities=tuple(_read_capability(each) for each in agent_entry.capabilities),
        display_name=agent_entry.display_name if agent_entry.display_name != agent_entry.agent_id else "",
        description=agent_entry.description,
        version=agent_entry.version,
        node_id=agent_entry.node_id if agent_entry.node_id != UNNAMED_NODE else node_id,
        audience=agent_entry.audience,
        role=agent_entry.role,
        signals=agent_entry.signals,
        provider=agent_entry.provider,
        tags=agent_entry.tags,
        delegate_id=agent_entry.delegate_id,
        cog_id=agent_entry.cog_id,
        realm=agent_entry.realm,
    )


def _read_capability(fields: dict[str, Any]) -> Capability:
    """Values of a later version and large metadata are left out, and an empty schema counts as none."""
    supported = {name: value for name, value in fields.items() if name in _CAPABILITY_FIELDS}
    if "metadata" in supported and len(msgspec.json.encode(supported["metadata"])) > _MAX_METADATA:
        del supported["metadata"]
    for name in ("input_schema", "output_schema"):
        supported[name] = supported.get(name) or None
    return msgspec.convert(supported, Capability)


_PROBE_TIMEOUT = 5.0
_LISTING_WAIT_MS = 20_000  # for changes of a node's agents; shorter than the idle time-out of proxies
_MAX_PAGES = 1000  # of a list of agents
_LISTING_GRACE = 10.0  # after that, until a silent node counts as offline


class FabricEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    psk: str | None = None
    passport: str | None = None
    agent: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    agents: tuple[str, ...] | None = None  # ids with * and ?; None: all
    tags: tuple[str, ...] | None = None  # only agents with one of these; None: all

    def takes(self, agent_id: str, tags: Sequence[str]) -> bool:
        """Whether an agent of the other node is taken in here."""
        is_named = self.agents is None or any(fnmatchcase(agent_id, pattern) for pattern in self.agents)
        return is_named and (self.tags is None or not set(self.tags).isdisjoint(tags))


class RemoteAgentRuntime:
    """One agent of another node."""

    def __init__(self, manifest: Manifest, agent: str, node: NodeClient) -> None:
        self._manifest = manifest
        self._agent = agent
        self._node = node
        self._cancels = BackgroundCancels(manifest.agent_id)
        self._is_listed = is_imported(manifest.agent_id)
        self.prompts_and_resources: PromptResourceProvider = NodeUserInterfaces(node, agent, manifest.capabilities)

    async def __call__(self, call: Call, emit: Emit) -> Result:
        prefix = f"{self._node.name}/" if self._is_listed else ""
        node_call = NodeCall(
            self._node, self._cancels, self._agent, call.target.capability, prefix=prefix, call=call, emit=emit
        )
        return await node_call.get_result()

    async def health(self) -> Status:
        """The health of a listed agent comes with the node's list, so it is not requested for each agent."""
        return "unknown" if self._is_listed else (await self._fetch_entry()).status

    async def describe(self) -> Manifest:
        described = complete_manifest(self._manifest, (await self._fetch_entry()).manifest)
        self.prompts_and_resources = NodeUserInterfaces(self._node, self._agent, described.capabilities)
        return described

    @property
    def node_address(self) -> str:
        return self._node.base_url

    async def read_trace(self, trace_id: str, depth: int, timeout: float) -> RemoteTrace:
        return await self._node.read_trace(trace_id, depth, timeout)

    async def aclose(self) -> None:
        await self._cancels.aclose()

    async def _fetch_entry(self) -> ListedAgent:
        reply = await self._node.call_operation("fabric.agent.describe", {"agent_id": self._agent}, _PROBE_TIMEOUT)
        entry = agent_from_entry(reply.data.get("agent"))
        if entry is None:
            raise AgentOffline(f"Node '{self._node.name}' describes agent '{self._agent}' in an unknown format")
        return entry


class RemoteNodeRuntime:
    """The other node as one agent."""

    def __init__(self, manifest: Manifest, node: NodeClient, endpoint: FabricEndpoint) -> None:
        self._manifest = manifest
        self._node = node
        self._endpoint = endpoint
        self._taken_in: set[str] | None = None  # if only some are: the agents of the last list
        self._cancels = BackgroundCancels(manifest.agent_id)

    def _choose(self, agents: Sequence[ListedAgent]) -> tuple[ListedAgent, ...]:
        """The agents that this node takes in."""
        endpoint = self._endpoint
        if endpoint.agents is None and endpoint.tags is None:
            return tuple(agents)
        chosen = tuple(each for each in agents if endpoint.takes(each.manifest.agent_id, each.manifest.tags))
        self._taken_in = {each.manifest.agent_id for each in chosen}
        return chosen

    def _is_taken_in(self, agent: str) -> bool:
        if self._endpoint.tags is None:
            return self._endpoint.takes(agent, ())
        return self._taken_in is not None and agent in self._taken_in

    async def __call__(self, call: Call, emit: Emit) -> Result:
        """`percy.reason` is the capability `reason` of the node's agent `percy`."""
        agent, _, capability = call.target.capability.rpartition(".")
        if not agent or not capability:
            raise CapabilityNotFound(self._manifest.agent_id, call.target.capability, ["AGENT.CAPABILITY"])
        if not self._is_taken_in(agent):
            raise CapabilityNotFound(self._manifest.agent_id, call.target.capability, sorted(self._taken_in or ()))
        prefix = f"{self._node.name}/"
        node_call = NodeCall(self._node, self._cancels, agent, capability, prefix=prefix, call=call, emit=emit)
        return await node_call.get_result()

    async def list_agents(self, known_revision: str | None) -> NodeListing:
        wait_arguments = {"known": known_revision, "wait_ms": _LISTING_WAIT_MS} if known_revision is not None else {}
        timeout = _LISTING_GRACE + (_LISTING_WAIT_MS / 1000 if known_revision is not None else 0)
        reply = await self._node.call_operation("fabric.agent.list", {"details": True, **wait_arguments}, timeout)
        revision, node_id = reply.data.get("revision"), reply.data.get("node_id")
        source_node = node_id if isinstance(node_id, str) else UNNAMED_NODE
        # The revision of the first page counts: if the list changes meanwhile, the next question finds it outdated.
        listing_revision = revision if isinstance(revision, str) else None
        if reply.data.get("unchanged") is True:
            return NodeListing(agents=None, revision=listing_revision)
        agents = list(agents_from_entries(reply.data.get("agents"), source_node))
        for _ in range(_MAX_PAGES):
            cursor = reply.data.get("next_cursor")
            if not isinstance(cursor, str):
                return NodeListing(agents=self._choose(agents), revision=listing_revision)
            arguments = {"details": True, "cursor": cursor}
            reply = await self._node.call_operation("fabric.agent.list", arguments, _LISTING_GRACE)
            agents += agents_from_entries(reply.data.get("agents"), source_node)
        raise UpstreamFailed(f"The list of the node's agents has more than {_MAX_PAGES} pages")

    async def health(self) -> Status:
        await self._node.call_operation("fabric.health", {}, _PROBE_TIMEOUT)
        return "online"

    async def describe(self) -> Manifest:
        """The node has no capabilities of its own; its agents are listed separately."""
        health = (await self._node.call_operation("fabric.health", {}, _PROBE_TIMEOUT)).data
        version = health.get("software_version")
        published = Manifest(
            agent_id=self._manifest.agent_id,
            endpoint={},
            description=f"Fabric node '{health.get('node_id')}'",
            version=version if isinstance(version, str) else "",
        )
        return complete_manifest(self._manifest, published)

    @property
    def node_address(self) -> str:
        return self._node.base_url

    async def read_trace(self, trace_id: str, depth: int, timeout: float) -> RemoteTrace:
        return await self._node.read_trace(trace_id, depth, timeout)

    async def aclose(self) -> None:
        await self._cancels.aclose()


def build(manifest: Manifest, context: RuntimeContext) -> RemoteAgentRuntime | RemoteNodeRuntime:
    """Raises BadInput."""
    endpoint = decode_endpoint(manifest, FabricEndpoint)
    if "@" in urlsplit(endpoint.uri).netloc:
        raise BadInput(
            f"Agent '{manifest.agent_id}' has a user name in its uri; put the node's key into `psk`, as env:NAME",
            agent_id=manifest.agent_id,
        )
    psk = None if endpoint.psk is None else endpoint.psk.removeprefix("Bearer ")  # of a whole header in a registry
    credentials = {
        **({"authorization": f"Bearer {psk}"} if psk else {}),
        **({"x-agent-passport": endpoint.passport} if endpoint.passport else {}),
    }
    node = NodeClient(node_entry_of(manifest.agent_id), endpoint.uri, credentials, context.http, context.reply_bytes)
    return (
        RemoteNodeRuntime(manifest, node, endpoint)
        if endpoint.agent is None
        else RemoteAgentRuntime(manifest, endpoint.agent, node)
    )


plugin = RuntimePlugin(build=build)
