"""The operations `fabric.admin.*`: what viewers may read of a node, and what operators may change.

They are no tools: no model is shown them. Each handler first checks the caller's role (`core.policy`), so a viewer that
sends an operator's request by hand is refused with 403. Viewers see every agent, call and job, but addresses, reasons
and private metadata as any caller sees them, and neither the log nor what callers and agents said to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from a2a_fabric.admin.agent_changes import AddArguments, PlanArguments
from a2a_fabric.admin.keys import CallerKeys, KeyRequest
from a2a_fabric.admin.log_lines import LineFilter
from a2a_fabric.admin.node import Node
from a2a_fabric.admin.settings_view import list_settings
from a2a_fabric.core.agent import TrustTier
from a2a_fabric.core.call import Emit, Principal
from a2a_fabric.core.disclosure import OPERATOR_PRINCIPAL
from a2a_fabric.core.errors import BadInput
from a2a_fabric.core.job import JobState
from a2a_fabric.core.policy import ConsoleRole, check_console_role, find_console_role
from a2a_fabric.core.result import Answer, Result
from a2a_fabric.operations.agents import NoArguments
from a2a_fabric.operations.operation import ADMIN_PREFIX, Operation, OperationRequest, TracedArguments

A = TypeVar("A", bound=TracedArguments)
Handler = Callable[[Any, Principal], Awaitable[dict[str, Any]]]

WaitMs = Annotated[int, Meta(ge=0, le=20_000, description="Wait so long if there is nothing new.")]


class AgentsArguments(TracedArguments, frozen=True, kw_only=True):
    known: Annotated[str | None, Meta(description="`stamp` from before: if nothing changed, nothing is listed.")] = None


class AgentRowsArguments(TracedArguments, frozen=True, kw_only=True):
    agent_ids: Annotated[tuple[str, ...], Meta(max_length=200, description="Which agents.")]


class AgentArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(max_length=256, description="Which agent.")]
    hours: Annotated[float, Meta(gt=0, le=168, description="How far back health is shown.")] = 24.0


class SwitchArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(max_length=256, description="Which agent.")]
    on: Annotated[bool, Meta(description="Whether it is to be on.")]
    tool: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="One of its tools, or a pattern with `*` and `?`; unset: the whole agent."),
    ] = None


class JobsArguments(TracedArguments, frozen=True, kw_only=True):
    states: Annotated[
        tuple[JobState, ...], Meta(max_length=10, description="Only jobs in these states; none: all.")
    ] = ()
    agent_id: Annotated[str | None, Meta(description="Only jobs of this agent.")] = None
    cursor: Annotated[str | None, Meta(description="From the page before.")] = None
    limit: Annotated[int, Meta(ge=1, le=500, description="How many at most.")] = 100


class JobArguments(TracedArguments, frozen=True, kw_only=True):
    job_id: Annotated[str, Meta(max_length=128, description="Which job.")]


class JobEventsArguments(JobArguments, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, description="Begin after this event.")] = 0
    wait_ms: WaitMs = 0


class AdminAnswerArguments(JobArguments, frozen=True, kw_only=True):
    answers: Annotated[dict[str, Answer], Meta(description="Under each question's key.")]


class CreateKeyArguments(TracedArguments, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=64, description="The caller's name in logs, envelopes and policies.")]
    scopes: Annotated[tuple[str, ...], Meta(max_length=100, description="What the key may do, as in `auth.keys`.")]
    trust: Annotated[TrustTier, Meta(description="Which trust tiers its holder reaches.")] = "local"
    view: Annotated[str | None, Meta(description="A view beyond which its holder sees nothing.")] = None
    days: Annotated[
        Annotated[float, Meta(gt=0, le=36_500)] | None, Meta(description="How long it is valid; unset: until revoked.")
    ] = None


class RotateKeyArguments(TracedArguments, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=64, description="Whose key is replaced, with the same rights.")]
    overlap_seconds: Annotated[
        float, Meta(ge=0, le=31_536_000, description="How long the old key can still be used.")
    ] = 86_400.0
    days: Annotated[
        Annotated[float, Meta(gt=0, le=36_500)] | None,
        Meta(description="How long the new key is valid; unset: as long as the old one was."),
    ] = None


class RevokeKeyArguments(TracedArguments, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=128, description="All keys of a name, or the one key with this id.")]


class LogArguments(TracedArguments, frozen=True, kw_only=True):
    after: Annotated[
        Annotated[int, Meta(ge=0)] | Annotated[str, Meta(max_length=8192)] | None,
        Meta(description="`next` of the reply before, as it is; unset: the newest lines."),
    ] = None
    last: Annotated[int, Meta(ge=0, le=2000, description="How many lines at most.")] = 200
    calls: Annotated[bool, Meta(description="Only calls, jobs, and requests that were refused.")] = False
    agent_id: Annotated[Annotated[str, Meta(max_length=256)] | None, Meta(description="Only calls of this agent.")] = (
        None
    )
    failed: Annotated[bool, Meta(description="Only calls that failed.")] = False
    wait_ms: WaitMs = 0

    @property
    def filter(self) -> LineFilter:
        return LineFilter(calls=self.calls, agent_id=self.agent_id, failed=self.failed)


class ToolChangesArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[
        Annotated[str, Meta(max_length=256)] | None, Meta(description="Only this agent; unset: all that changed.")
    ] = None


class ApproveToolsArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: Annotated[str, Meta(max_length=256, description="Which agent.")]
    tools: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...],
        Meta(max_length=1000, description="Names or patterns; none: all of its tools that changed."),
    ] = ()


class MessagesArguments(TracedArguments, frozen=True, kw_only=True):
    conversation_id: Annotated[
        Annotated[str, Meta(max_length=256)] | None, Meta(description="Show the messages of this conversation.")
    ] = None
    inbox: Annotated[
        Annotated[str, Meta(max_length=128)] | None, Meta(description="Show how much waits in this inbox.")
    ] = None


class AdminOperations:
    def __init__(self, node: Node) -> None:
        self._node = node

    def all(self) -> list[Operation[Any]]:
        node = self._node
        return [
            self._view("overview", "Show the node, its store, its agents by status, its calls, and its problems.",
                       NoArguments, self._overview),
            self._view("agents", "List all agents in short, those that are switched off included.", AgentsArguments,
                       lambda arguments, reader: node.list_agents(reader, arguments.known)),
            self._view("agents.live", "Show health, latency and breaker of some agents.", AgentRowsArguments,
                       lambda arguments, reader: node.show_live(reader, arguments.agent_ids)),
            self._view("agent", "Show everything about one agent: manifest, health of the last day, tools that are "
                       "off.", AgentArguments,
                       lambda arguments, reader: node.show_agent(reader, arguments.agent_id, arguments.hours)),
            self._operate("agent.switch", "Switch an agent or one of its tools on or off, in agents.yaml.",
                          SwitchArguments, self._switch),
            self._operate("agent.plan", "Show what adding an address, a command or an mcp.json would do.",
                          PlanArguments, self._plan),
            self._operate("agent.add", "Add agents to agents.yaml.", AddArguments, self._add),
            self._operate("agent.probe", "Probe an agent now, instead of at the next interval.", AgentArguments,
                          lambda arguments, _: node.probe(arguments.agent_id)),
            self._view("jobs", "List the jobs of all callers, newest first.", JobsArguments,
                       lambda arguments, reader: node.list_jobs(reader, arguments.states, arguments.agent_id,
                                                                arguments.cursor, arguments.limit)),
            self._view("job", "Show one job of any caller, and its events.", JobEventsArguments,
                       lambda arguments, reader: node.show_job(reader, arguments.job_id, arguments.after,
                                                               arguments.wait_ms / 1000)),
            self._operate("job.cancel", "Cancel a job of any caller.", JobArguments,
                          lambda arguments, _: node.cancel_job(arguments.job_id)),
            self._operate("job.retry", "Run an ended job's call again, for the same caller.", JobArguments,
                          lambda arguments, _: node.retry_job(arguments.job_id)),
            self._operate("job.answer", "Answer what a job's agent wants to know.", AdminAnswerArguments, self._answer),
            self._view("keys", "List the keys of callers; never their secrets.", NoArguments, self._list_keys),
            self._operate("key.create", "Make a key for a caller. It is shown only now.", CreateKeyArguments,
                          self._create_key),
            self._operate("key.rotate", "Replace the key of a caller by a new one with the same rights. It is shown "
                          "only now.", RotateKeyArguments, self._rotate_key),
            self._operate("key.revoke", "Revoke keys at once, on all nodes of the store.", RevokeKeyArguments,
                          self._revoke_key),
            self._view("views", "List the views, and what each includes.", NoArguments,
                       lambda _, __: node.list_views()),
            self._view("settings", "Show the settings as loaded, with secrets masked.", NoArguments, self._settings),
            self._make("log", "Read the newest lines of the log, and wait for more.", LogArguments, self._log,
                       "operator", read_only=True),
            self._make("tools.changed", "Show how tools changed since they were approved.", ToolChangesArguments,
                       lambda arguments, _: node.list_tool_changes(arguments.agent_id), "operator", read_only=True),
            self._operate("tools.approve", "Accept what changed tools of an agent say now.", ApproveToolsArguments,
                          lambda arguments, _: node.approve_tools(arguments.agent_id, arguments.tools)),
            self._view("messages", "Show topics and inboxes, or one conversation.", MessagesArguments,
                       lambda arguments, reader: node.show_messages(reader, arguments.conversation_id,
                                                                    arguments.inbox)),
        ]  # fmt: skip

    def _view(self, name: str, description: str, arguments: type[Any], handler: Handler) -> Operation[Any]:
        return self._make(name, description, arguments, handler, "viewer")

    def _operate(self, name: str, description: str, arguments: type[Any], handler: Handler) -> Operation[Any]:
        return self._make(name, description, arguments, handler, "operator")

    def _make(
        self,
        name: str,
        description: str,
        arguments_type: type[Any],
        handler: Handler,
        role: ConsoleRole,
        *,
        read_only: bool = False,
    ) -> Operation[Any]:
        async def handle(arguments: Any, request: OperationRequest, emit: Emit) -> Result:
            check_console_role(request.principal, role)
            return Result(data=await handler(arguments, _make_reader(request.principal)))

        return Operation(
            ADMIN_PREFIX + name,
            description,
            arguments_type,
            handle,
            scopes=(),
            read_only=read_only or role == "viewer",
        )

    async def _overview(self, arguments: NoArguments, reader: Principal) -> dict[str, Any]:
        role = "operator" if reader is OPERATOR_PRINCIPAL else "viewer"
        return {**await self._node.show_overview(reader), "role": role}

    async def _switch(self, arguments: SwitchArguments, reader: Principal) -> dict[str, Any]:
        node, agent_id = self._node, arguments.agent_id
        done: dict[str, Any] = {"agent_id": agent_id, "tool": arguments.tool, "on": arguments.on}
        if arguments.tool is None:
            path = str(await node.files.switch_agent(agent_id, on=arguments.on))
        else:
            switched = await node.files.switch_tool(
                agent_id, arguments.tool, on=arguments.on, known=node.list_known_tools(agent_id)
            )
            path = switched.path
            done |= {"matched": switched.matched, "changed": switched.is_changed, "remarks": switched.remarks}
        await node.reload_agents(Path(path))
        return {**done, "path": path}

    async def _plan(self, arguments: PlanArguments, reader: Principal) -> dict[str, Any]:
        return dict(msgspec.to_builtins(await self._node.files.plan(arguments)))

    async def _add(self, arguments: AddArguments, reader: Principal) -> dict[str, Any]:
        path = await self._node.files.add(arguments.entries, arguments.path)
        await self._node.reload_agents(path)
        return {"agent_ids": [entry.get("agent_id") for entry in arguments.entries], "path": str(path)}

    async def _answer(self, arguments: AdminAnswerArguments, reader: Principal) -> dict[str, Any]:
        if not arguments.answers:
            raise BadInput("answers: none given", field="answers")
        return await self._node.answer_job(arguments.job_id, arguments.answers)

    @property
    def _keys(self) -> CallerKeys:
        return CallerKeys(self._node.keys, self._node.config)

    async def _list_keys(self, arguments: NoArguments, reader: Principal) -> dict[str, Any]:
        configured = [
            {"name": key.id, "scopes": None if key.scopes is None else list(key.scopes), "trust": key.trust,
             "view": key.view, "state": "configured"}
            for key in self._node.config.auth.keys
        ]  # fmt: skip
        return {"keys": await self._keys.list_all(), "configured": configured}

    async def _create_key(self, arguments: CreateKeyArguments, reader: Principal) -> dict[str, Any]:
        return await self._keys.create(
            KeyRequest(
                name=arguments.name,
                scopes=arguments.scopes,
                trust=arguments.trust,
                view=arguments.view,
                lifetime=_days_to_seconds(arguments.days),
            )
        )

    async def _rotate_key(self, arguments: RotateKeyArguments, reader: Principal) -> dict[str, Any]:
        return await self._keys.rotate(arguments.name, arguments.overlap_seconds, _days_to_seconds(arguments.days))

    async def _revoke_key(self, arguments: RevokeKeyArguments, reader: Principal) -> dict[str, Any]:
        return {"revoked": await self._keys.revoke(arguments.name)}

    async def _settings(self, arguments: NoArguments, reader: Principal) -> dict[str, Any]:
        rows = list_settings(self._node.config, self._node.secrets)
        return {"settings": msgspec.to_builtins(rows), "count": len(rows)}

    async def _log(self, arguments: LogArguments, reader: Principal) -> dict[str, Any]:
        page = await self._node.log.read(arguments.after, arguments.last, arguments.filter, arguments.wait_ms / 1000)
        return {"node": page.node, "next": page.next, "lines": page.lines, "missing": page.missing}


def _days_to_seconds(days: float | None) -> float | None:
    return None if days is None else days * 86_400


def _make_reader(principal: Principal) -> Principal:
    """As whom the handler reads: viewers see all agents, but not what only the operator sees of each."""
    if find_console_role(principal) == "operator":
        return OPERATOR_PRINCIPAL
    return Principal(mode="psk", principal_id=principal.principal_id, trust="local")
