"""Runtime: a server of the Agent Communication Protocol. Each of its agents is a capability, or just one of them.

A call is a run (`following`). Calls of one conversation share a session at the server. A run
whose caller leaves is cancelled there; a run that waits for a message is a question of ours.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from a2a_fabric.core.agent import Capability, Manifest, Status, fold
from a2a_fabric.core.call import Call
from a2a_fabric.core.conversation import agent_conversation_id
from a2a_fabric.core.delegation import journey_headers
from a2a_fabric.core.errors import CapabilityNotFound, UpstreamFailed, UpstreamRefused
from a2a_fabric.core.pipeline import Emit, ignore
from a2a_fabric.core.question import Answers
from a2a_fabric.core.result import Result
from a2a_fabric.runtimes.acp.content import message_for, result_of
from a2a_fabric.runtimes.acp.description import described
from a2a_fabric.runtimes.acp.following import Following, Mode
from a2a_fabric.runtimes.acp.hearing import Hearing
from a2a_fabric.runtimes.acp.questions import asked_by, resuming, run_asked
from a2a_fabric.runtimes.acp.runs import NEW, AgentUnknown, Runs, Start, failure, path_of
from a2a_fabric.runtimes.acp.wire import Error, RemoteAgent, Run
from a2a_fabric.runtimes.context import RuntimeContext, decode_endpoint
from a2a_fabric.runtimes.farewells import Farewells
from a2a_fabric.runtimes.http_probe import judge
from a2a_fabric.runtimes.json_api import JSONAPI, checked_uri
from a2a_fabric.runtimes.one_question import answer_in
from a2a_fabric.runtimes.published import complete

_SESSIONS = UUID("0d1c2f0e-5f0b-4f4b-9d4c-6f6f1f3a8a11")  # the namespace of session ids made from conversations


class ACPEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server listens, which of its agents is meant, how its runs are followed."""

    uri: Annotated[str, Meta(pattern="^https?://", max_length=4096)]
    transport: str = "http"
    agent: str | None = None  # unset: the agent is chosen by the capability's name
    mode: Mode = "stream"
    token: str | None = None  # sent as `Authorization: Bearer`
    headers: dict[str, str] = {}


class ACPRuntime:
    def __init__(self, manifest: Manifest, endpoint: ACPEndpoint, runs: Runs) -> None:
        self._manifest = manifest
        self._endpoint = endpoint
        self._runs = runs
        self._farewells = Farewells(manifest.agent_id)
        self._following = Following(runs, endpoint.mode, self._farewells)
        self._names: dict[str, str] = {}  # of the server's agents, by their folded form

    async def __call__(self, call: Call, emit: Emit) -> Result:
        hearing = Hearing(emit if call.response.stream else ignore)
        if call.answers:
            return self._outcome(await self._resumed(call, call.answers, hearing))
        return self._outcome(await self._begun(call, hearing))

    async def health(self) -> Status:
        """The agent's own entry on the server, or the list of all of them where none is named."""
        return judge(await self._runs.status_of(self._endpoint.agent), self._runs.api.upstream)

    async def describe(self) -> Manifest:
        return complete(self._manifest, described(self._manifest, await self._look_around()))

    async def aclose(self) -> None:
        await self._farewells.aclose()

    async def _look_around(self) -> list[RemoteAgent]:
        name = self._endpoint.agent
        found = await self._runs.agents() if name is None else [await self._runs.agent(name)]
        self._names = {fold(agent.name): agent.name for agent in found}
        return found

    async def _begun(self, call: Call, hearing: Hearing) -> Run:
        """A name that is written differently here is found by asking the server for its agents."""
        name = self._name(call.target.capability)
        try:
            return await self._run(call, name, hearing)
        except AgentUnknown:
            await self._look_around()
        if (other := self._name(call.target.capability)) == name:
            raise CapabilityNotFound(self._manifest.agent_id, name, self._names.values())
        try:
            return await self._run(call, other, hearing)
        except AgentUnknown as exc:
            raise CapabilityNotFound(self._manifest.agent_id, name, self._names.values()) from exc

    def _name(self, capability: str) -> str:
        return self._endpoint.agent or self._names.get(fold(capability), capability)

    async def _run(self, call: Call, name: str, hearing: Hearing) -> Run:
        body: dict[str, Any] = {
            "agent_name": name,
            "input": [message_for(call, self._capability(call))],
            **_session(call),
        }
        hearing.heard = 0 if call.response.stream else None
        return await self._following.to_rest(_start(call, NEW, body), hearing)

    def _capability(self, call: Call) -> Capability | None:
        return self._manifest.capability(call.target.capability)

    async def _resumed(self, call: Call, answers: Answers, hearing: Hearing) -> Run:
        run_id, answer = run_asked(answers), answer_in(answers)
        if answer.action != "accept":
            await self._runs.cancel(run_id)
            raise UpstreamRefused("The agent's question was not answered, so its run was cancelled")
        if self._endpoint.mode == "async" and call.response.stream:
            hearing.heard = await self._runs.said_so_far(run_id)
        hearing.name(run_id)
        start = _start(call, path_of(run_id), {"run_id": run_id, "await_resume": resuming(answer)})
        return await self._following.to_rest(start, hearing)

    def _outcome(self, run: Run) -> Result:
        match run.status:
            case "completed":
                return result_of(run.output)
            case "awaiting":
                return asked_by(run)
            case "failed":
                raise failure(run.error or Error(), upstream=self._runs.api.upstream)
            case "cancelled":
                raise UpstreamRefused("The run was cancelled at the agent's server", upstream=self._runs.api.upstream)
        raise UpstreamFailed(f"The agent's run is in a state that ACP does not know: {run.status[:100]!r}")


def _start(call: Call, path: str, body: dict[str, Any]) -> Start:
    return Start(path=path, body=body, timeout=call.target.timeout_ms / 1000, headers=journey_headers(call))


def _session(call: Call) -> dict[str, str]:
    """Sessions are UUIDs. The same conversation of the same caller makes the same one, on any node, at any time."""
    conversation_id = agent_conversation_id(call)
    return {} if conversation_id is None else {"session_id": str(uuid5(_SESSIONS, conversation_id))}


def build(manifest: Manifest, context: RuntimeContext) -> ACPRuntime:
    endpoint = decode_endpoint(manifest, ACPEndpoint)
    key = {"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
    uri = checked_uri(manifest, endpoint.uri)
    api = JSONAPI(context.http, uri, {**key, **endpoint.headers}, context.reply_bytes)
    return ACPRuntime(manifest, endpoint, Runs(api))
