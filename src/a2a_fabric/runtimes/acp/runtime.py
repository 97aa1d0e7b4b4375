"""Runtime for a server of the Agent Communication Protocol: each of its agents is a capability.

A call is a run (`run_follower`). Calls of one conversation share a session at the server. The server's
list of agents completes the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Capability, Manifest, Modality, Status, normalize_name
from a2a_fabric.core.call import Call, derive_conversation_id
from a2a_fabric.core.delegation import make_propagation_headers
from a2a_fabric.core.errors import CapabilityNotFound, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.pipeline import Emit, ignore_event
from a2a_fabric.core.plugin import RuntimePlugin
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.acp.client import (
    RUNS_PATH,
    ACPAgentUnknown,
    ACPClient,
    ACPRunRequest,
    error_from_acp,
    run_path,
)
from a2a_fabric.runtimes.acp.content import (
    message_from_call,
    read_run_id,
    render_resume,
    result_from_output,
    result_from_question,
)
from a2a_fabric.runtimes.acp.models import ACPAgent, ACPError, ACPRun
from a2a_fabric.runtimes.acp.run_follower import ACPRunMode, RunFollower, RunProgress
from a2a_fabric.runtimes.context import RuntimeContext, complete_manifest, decode_endpoint
from a2a_fabric.runtimes.probe import check_probe_status
from a2a_fabric.runtimes.prompt import find_answer
from a2a_fabric.runtimes.remote_work import BackgroundCancels
from a2a_fabric.runtimes.upstream import JSONAPIClient, check_uri

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
