"""Runtime for a server of the Agent Communication Protocol: each of its agents is a capability.

A call is a run, followed from its start until it has ended or awaits a message. The mode decides how: by
event stream (the default), by polling, or by waiting for the reply. A run goes on at the server if its stream
breaks or falls silent, so it is then polled. A caller that leaves early cancels the run; if the run's id is
not known yet, the cancel is sent as soon as it is. Calls of one conversation share a session at the server.
The server's list of agents completes the manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Capability, Manifest, Modality, Status, normalize_name
from a2a_fabric.core.call import Call, Emit, derive_conversation_id, ignore_event, make_propagation_headers
from a2a_fabric.core.errors import (
    BadInput,
    CapabilityNotFound,
    FabricError,
    UpstreamFailed,
    UpstreamInterrupted,
    UpstreamRefused,
)
from a2a_fabric.core.ports import RuntimePlugin
from a2a_fabric.core.result import Answers, Event, Result, status
from a2a_fabric.core.tasks import cancel_and_wait
from a2a_fabric.outbound import sse
from a2a_fabric.outbound.port import StreamedReply
from a2a_fabric.runtimes.acp.client import (
    RUNS_PATH,
    ACPAgent,
    ACPAgentUnknown,
    ACPClient,
    ACPError,
    ACPMessagePart,
    ACPRun,
    ACPRunEvent,
    ACPRunRequest,
    error_from_acp,
    run_path,
)
from a2a_fabric.runtimes.acp.content import (
    events_from_part,
    message_from_call,
    read_run_id,
    render_resume,
    result_from_output,
    result_from_question,
)
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.prompt import find_answer
from a2a_fabric.runtimes.remote_work import BackgroundCancels, poll_until
from a2a_fabric.runtimes.upstream import JSONAPIClient, check_probe_status, check_uri, decode_reply, read_bounded

_STOP_EVENTS = frozenset({"run.awaiting", "run.completed", "run.failed", "run.cancelled"})


class RunProgress:
    """The state of one run. `event_count` counts its events from the start, or is None if that is not known."""

    def __init__(self, emit: Emit) -> None:
        self.run_id: str | None = None
        self.run_id_set = asyncio.Event()  # set when `run_id` is known
        self.event_count: int | None = None
        self.activity_count = 0  # changes with every event
        self._emit = emit
        self._part_count = 0  # of the current message

    def set_run_id(self, run_id: str) -> None:
        self.run_id = run_id
        self.run_id_set.set()

    def stop_emitting(self) -> None:
        """The caller has left."""
        self._emit = ignore_event

    async def handle_event(self, event: ACPRunEvent) -> ACPRun | None:
        """The run, if it stopped with this event; else None. Raises FabricError for an error event."""
        self.activity_count += 1
        if self.event_count is not None:
            self.event_count += 1
        if event.run is not None:
            self.set_run_id(event.run.run_id)
            if event.type in _STOP_EVENTS:
                return event.run
        if event.type == "error":
            raise error_from_acp(event.error or ACPError())
        if event.type == "generic":
            await self._emit(_status_from_generic(event))
        else:
            await self._handle_message_event(event)
        return None

    async def _handle_message_event(self, event: ACPRunEvent) -> None:
        """Emits the parts of a message as they arrive, or all at its end if the server sends it as a whole."""
        if event.type == "message.created":
            self._part_count = 0
        elif event.type == "message.part" and event.part is not None:
            await self._emit_part(event.part)
        elif event.type == "message.completed" and event.message is not None and not self._part_count:
            for part in event.message.parts:
                await self._emit_part(part)

    async def _emit_part(self, part: ACPMessagePart) -> None:
        self._part_count += 1
        for each in events_from_part(part):
            await self._emit(each)


def _status_from_generic(event: ACPRunEvent) -> Event:
    """A generic event, which may hold any data of the agent."""
    content = event.generic if isinstance(event.generic, dict) else {"value": event.generic}
    message = content.get("message")
    return status("running", message if isinstance(message, str) else None, generic=content)


ACPRunMode = Literal["stream", "async", "sync"]

SILENCE_TIMEOUT = 5.0  # seconds without an event, after which the run is polled in case the stream missed its end

RunTask = asyncio.Task[ACPRun | None]


class RunFollower:
    def __init__(
        self,
        client: ACPClient,
        mode: ACPRunMode,
        background_cancels: BackgroundCancels,
        silence_timeout: float = SILENCE_TIMEOUT,
    ) -> None:
        self._client = client
        self._mode = mode
        self._background_cancels = background_cancels
        self._silence_timeout = silence_timeout

    async def follow(self, run_request: ACPRunRequest, progress: RunProgress) -> ACPRun:
        """Returns the run when it has stopped. Raises FabricError and ACPAgentUnknown."""
        task: RunTask = asyncio.ensure_future(self._start_run(run_request, progress))
        try:
            run = await self._await_task(task, progress)
            return run if run is not None and run.is_stopped else await self._poll_until_stopped(progress)
        except (BadInput, ACPAgentUnknown):  # no run was started
            raise
        except BaseException:
            progress.stop_emitting()
            if not self._background_cancels.start(self._cancel_run(task, progress)):
                task.cancel()
            raise

    async def _await_task(self, task: RunTask, progress: RunProgress) -> ACPRun | None:
        """The run; None if the stream ended early or missed the end, so that the run must be polled."""
        while not task.done():
            activity_count = progress.activity_count
            await asyncio.wait({task}, timeout=self._silence_timeout)
            if not task.done() and activity_count == progress.activity_count and await self._is_stopped(progress):
                await cancel_and_wait(task)
                return None
        try:
            return task.result()
        except UpstreamInterrupted:
            if progress.run_id is None:
                raise
            return None

    async def _poll_until_stopped(self, progress: RunProgress) -> ACPRun:
        if progress.run_id is None:
            raise UpstreamInterrupted("The agent's stream ended before it named its run")
        run = await poll_until(lambda: self._poll_once(progress), lambda run: run is not None and run.is_stopped)
        assert run is not None  # noqa: S101  # the condition of `poll_until`
        return run

    async def _cancel_run(self, task: RunTask, progress: RunProgress) -> None:
        id_waiter = asyncio.ensure_future(progress.run_id_set.wait())
        try:
            await asyncio.wait({task, id_waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(id_waiter, task)
        if progress.run_id is not None:
            await self._client.cancel_run(progress.run_id)

    async def _start_run(self, run_request: ACPRunRequest, progress: RunProgress) -> ACPRun | None:
        if self._mode == "stream":
            return await self._read_stream(run_request, progress)
        run = await self._client.start_run(run_request, self._mode)
        progress.set_run_id(run.run_id)
        return run

    async def _read_stream(self, run_request: ACPRunRequest, progress: RunProgress) -> ACPRun | None:
        async with self._client.stream_run(run_request) as reply:
            if run_id := reply.headers.get("run-id"):
                progress.set_run_id(run_id)
            if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return await self._read_events(reply, progress)
            run = decode_reply(await read_bounded(reply, self._client.api.reply_bytes), ACPRun)
            progress.set_run_id(run.run_id)
            return run

    async def _read_events(self, reply: StreamedReply, progress: RunProgress) -> ACPRun | None:
        events = sse.SSEParser(self._client.api.reply_bytes)
        async for chunk in reply.chunks():
            for data in events.feed(chunk):
                if (run := await progress.handle_event(decode_reply(data, ACPRunEvent))) is not None:
                    return run
        for data in events.flush():
            if (run := await progress.handle_event(decode_reply(data, ACPRunEvent))) is not None:
                return run
        return None

    async def _is_stopped(self, progress: RunProgress) -> bool:
        """Errors are ignored here, because the stream is still open."""
        if progress.run_id is None:
            return False
        try:
            return (await self._client.get_run(progress.run_id)).is_stopped
        except FabricError:
            return False

    async def _poll_once(self, progress: RunProgress) -> ACPRun | None:
        """The run if it has stopped, else None; events that the stream missed are emitted."""
        assert progress.run_id is not None  # noqa: S101  # checked by `_poll_until_stopped`
        if progress.event_count is None:
            return await self._client.get_run(progress.run_id)
        for event in (await self._client.list_events(progress.run_id))[progress.event_count :]:
            if (run := await progress.handle_event(event)) is not None:
                return run
        return None


_MODALITIES: dict[str, Modality] = {"text": "text", "image": "image", "audio": "audio", "video": "video"}
_JSON = "application/json"
_MAX_NAME_LENGTH = 256


def manifest_from_agents(declared: Manifest, agents: Sequence[ACPAgent]) -> Manifest:
    """Each agent of the server is a capability; a single agent also gives its name and description."""
    named_agents = [agent for agent in agents if 0 < len(agent.name) <= _MAX_NAME_LENGTH]
    single = named_agents[0] if len(named_agents) == 1 else None
    tags = single.metadata.tags if single is not None and single.metadata is not None else None
    return Manifest(
        agent_id=declared.agent_id,
        endpoint=declared.endpoint,
        capabilities=tuple(_capability_from_agent(agent) for agent in named_agents),
        display_name=single.name if single is not None else "",
        description=(single.description or "")[:1000] if single is not None else "",
        tags=tuple(tags or ()),
    )


def _capability_from_agent(agent: ACPAgent) -> Capability:
    return Capability(
        name=agent.name,
        description=(agent.description or "")[:1000],
        streaming=True,
        modalities=_modalities_from_agent(agent),
    )


def _modalities_from_agent(agent: ACPAgent) -> tuple[Modality, ...]:
    """From the content types of input and output, without `*/*`."""
    types = [*(agent.input_content_types or ()), *(agent.output_content_types or ())]
    modalities = dict.fromkeys(_modality_from_type(each) for each in types if each != "*/*")
    return tuple(modalities) or ("text",)


def _modality_from_type(content_type: str) -> Modality:
    if content_type == _JSON:
        return "json"
    return _MODALITIES.get(content_type.partition("/")[0], "file")


_SESSION_NAMESPACE = UUID("0d1c2f0e-5f0b-4f4b-9d4c-6f6f1f3a8a11")  # of session ids derived from conversation ids


class ACPEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's address, the agent to call, and how its runs are followed."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    agent: str | None = None  # unset: the agent is chosen by the capability's name
    mode: ACPRunMode = "stream"
    token: str | None = None  # sent as `Authorization: Bearer`
    headers: dict[str, str] = {}


class ACPRuntime:
    def __init__(self, manifest: Manifest, endpoint: ACPEndpoint, client: ACPClient) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._client = client
        self._background_cancels = BackgroundCancels(manifest.agent_id)
        self._follower = RunFollower(client, endpoint.mode, self._background_cancels)
        self._agent_names: dict[str, str] = {}  # the names of the server's agents by their normalized form

    async def __call__(self, call: Call, emit: Emit) -> Result:
        progress = RunProgress(emit if call.response.stream else ignore_event)
        if call.answers:
            return self._result_from_run(await self._resume_run(call, call.answers, progress))
        return self._result_from_run(await self._start_run(call, progress))

    async def health(self) -> Status:
        """Probes the agent's entry on the server, or, without a name, the list of agents."""
        return check_probe_status(await self._client.agent_status(self._endpoint.agent), self._client.api.upstream)

    async def describe(self) -> Manifest:
        return complete_manifest(self._manifest, manifest_from_agents(self._manifest, await self._fetch_agents()))

    async def aclose(self) -> None:
        await self._background_cancels.aclose()

    async def _fetch_agents(self) -> list[ACPAgent]:
        name = self._endpoint.agent
        agents = await self._client.list_agents() if name is None else [await self._client.get_agent(name)]
        self._agent_names = {normalize_name(agent.name): agent.name for agent in agents}
        return agents

    async def _start_run(self, call: Call, progress: RunProgress) -> ACPRun:
        """If the server does not know the name, its list of agents may have it in another spelling."""
        name = self._agent_name(call.target.capability)
        try:
            return await self._run(call, name, progress)
        except ACPAgentUnknown:
            await self._fetch_agents()
        if (exact_name := self._agent_name(call.target.capability)) == name:
            raise CapabilityNotFound(self._manifest.agent_id, name, self._agent_names.values())
        try:
            return await self._run(call, exact_name, progress)
        except ACPAgentUnknown as exc:
            raise CapabilityNotFound(self._manifest.agent_id, name, self._agent_names.values()) from exc

    def _agent_name(self, capability: str) -> str:
        return self._endpoint.agent or self._agent_names.get(normalize_name(capability), capability)

    async def _run(self, call: Call, name: str, progress: RunProgress) -> ACPRun:
        body: dict[str, Any] = {
            "agent_name": name,
            "input": [message_from_call(call, self._manifest.find_capability(call.target.capability))],
            **_session_fields(call),
        }
        progress.event_count = 0 if call.response.stream else None
        return await self._follower.follow(_make_run_request(call, RUNS_PATH, body), progress)

    async def _resume_run(self, call: Call, answers: Answers, progress: RunProgress) -> ACPRun:
        run_id, answer = read_run_id(answers), find_answer(answers)
        if answer.action != "accept":
            await self._client.cancel_run(run_id)
            raise UpstreamRefused("The agent's question was not answered, so its run was cancelled")
        if self._endpoint.mode == "async" and call.response.stream:
            progress.event_count = await self._client.count_events(run_id)
        progress.set_run_id(run_id)
        run_request = _make_run_request(
            call, run_path(run_id), {"run_id": run_id, "await_resume": render_resume(answer)}
        )
        return await self._follower.follow(run_request, progress)

    def _result_from_run(self, run: ACPRun) -> Result:
        match run.status:
            case "completed":
                return result_from_output(run.output)
            case "awaiting":
                return result_from_question(run)
            case "failed":
                raise error_from_acp(run.error or ACPError(), upstream=self._client.api.upstream)
            case "cancelled":
                raise UpstreamRefused("The run was cancelled at the agent's server", upstream=self._client.api.upstream)
        raise UpstreamFailed(f"The agent's run is in a state that ACP does not define: {run.status[:100]!r}")


def _make_run_request(call: Call, path: str, body: dict[str, Any]) -> ACPRunRequest:
    return ACPRunRequest(
        path=path, body=body, timeout=call.target.timeout_ms / 1000, headers=make_propagation_headers(call)
    )


def _session_fields(call: Call) -> dict[str, str]:
    """A session id must be a UUID; it is derived, so that a conversation has the same one on every node."""
    conversation_id = derive_conversation_id(call)
    return {} if conversation_id is None else {"session_id": str(uuid5(_SESSION_NAMESPACE, conversation_id))}


def build(manifest: Manifest, context: RuntimeContext) -> ACPRuntime:
    endpoint = decode_endpoint(manifest, ACPEndpoint)
    auth_headers = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    uri = check_uri(manifest, endpoint.uri)
    api = JSONAPIClient(context.http, uri, {**auth_headers, **endpoint.headers}, context.reply_bytes)
    return ACPRuntime(manifest, endpoint, ACPClient(api))


plugin = RuntimePlugin(build=build)
