"""`fabric.task.*` and `fabric.signal.send`: standard tasks for agents, and signals between agents."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from a2a_fabric.coordination.signals import AgentSignal, SignalExchange, SignalType
from a2a_fabric.coordination.task_format import TaskId
from a2a_fabric.coordination.tasks import StandardTasks, result_from_response
from a2a_fabric.core.agent import AGENT_ID_PATTERN
from a2a_fabric.core.call import Emit
from a2a_fabric.core.message import Party
from a2a_fabric.core.propagation import WireChain, pick_longer_chain
from a2a_fabric.core.result import AnyJSON, Result
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments

_DEFAULT_WAIT_MS = 30_000
_RESPONSE: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "status": {"type": "string"}},
    "required": ["id", "status"],
}

AgentName = Annotated[str, Meta(max_length=128, pattern=AGENT_ID_PATTERN)]
WaitMilliseconds = Annotated[
    int, Meta(ge=0, le=300_000, description="Wait so long for its end; 0: answer at once, and ask later.")
]


class TaskSendArguments(TracedArguments, frozen=True, kw_only=True):
    request: Annotated[
        dict[str, Any],
        Meta(
            description="A standard task request: id, type (a capability), payload (its arguments), and optionally "
            "context, routing (target: the agent), observability, retryPolicy."
        ),
    ]
    wait_ms: WaitMilliseconds = _DEFAULT_WAIT_MS
    delegation_chain: WireChain | msgspec.UnsetType = msgspec.UNSET


class TaskGetArguments(TracedArguments, frozen=True, kw_only=True):
    id: TaskId
    wait_ms: WaitMilliseconds = 0


class TaskUpdateArguments(TracedArguments, frozen=True, kw_only=True):
    id: TaskId
    payload: Annotated[AnyJSON, Meta(description="The answer to its question, or answers by the questions' keys.")]
    wait_ms: WaitMilliseconds = _DEFAULT_WAIT_MS


class TaskCancelArguments(TracedArguments, frozen=True, kw_only=True):
    id: TaskId


class SignalArguments(TracedArguments, frozen=True, kw_only=True):
    type: Annotated[SignalType, Meta(description="What the agent says.")]
    sender: Annotated[AgentName, Meta(description="The agent that says it: you, or an agent of yours.")] = (
        msgspec.field(name="from")
    )
    to: Annotated[AgentName | None, Meta(description="Which agent is told. Unset: only the conversation.")] = None
    payload: Annotated[dict[str, Any], Meta(description="Details; `reason` is shown to people.")] = msgspec.field(
        default_factory=dict
    )
    signal_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    conversation_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="A conversation of yours, which a hand-over moves to the other agent."),
    ] = None


class CoordinationOperations:
    def __init__(self, tasks: StandardTasks, signals: SignalExchange, inboxes: Inboxes) -> None:
        self._tasks = tasks
        self._signals = signals
        self._inboxes = inboxes

    def all(self) -> list[Operation[Any]]:
        return [
            Operation("fabric.task.send", "Give an agent a standard task; the response has its status and result.",
                      TaskSendArguments, self.send, scopes=(), output=_RESPONSE, read_only=False),
            Operation("fabric.task.get", "Show what became of a standard task.", TaskGetArguments, self.get, scopes=(),
                      output=_RESPONSE),
            Operation("fabric.task.update", "Answer the question of a standard task that needs input.",
                      TaskUpdateArguments, self.update, scopes=(), output=_RESPONSE, read_only=False),
            Operation("fabric.task.cancel", "Cancel a standard task.", TaskCancelArguments, self.cancel, scopes=(),
                      output=_RESPONSE, read_only=False),
            Operation("fabric.signal.send", "Send a signal from one agent to another: hand-over, done, blocked, error.",
                      SignalArguments, self.signal, scopes=("message", "agent"), read_only=False),
        ]  # fmt: skip

    async def send(self, arguments: TaskSendArguments, request: OperationRequest, emit: Emit) -> Result:
        chain = pick_longer_chain(arguments.delegation_chain, request.delegation_chain)
        wait = arguments.wait_ms / 1000
        response = await self._tasks.send(request.principal, arguments.request, request.trace, chain, wait)
        return result_from_response(response)

    async def get(self, arguments: TaskGetArguments, request: OperationRequest, emit: Emit) -> Result:
        """Raises JobNotFound."""
        response = await self._tasks.get(request.principal, arguments.id, arguments.wait_ms / 1000)
        return result_from_response(response)

    async def update(self, arguments: TaskUpdateArguments, request: OperationRequest, emit: Emit) -> Result:
        """Raises JobNotFound, Conflict, BadInput."""
        wait = arguments.wait_ms / 1000
        response = await self._tasks.update(request.principal, arguments.id, arguments.payload, wait)
        return result_from_response(response)

    async def cancel(self, arguments: TaskCancelArguments, request: OperationRequest, emit: Emit) -> Result:
        """Raises JobNotFound."""
        return result_from_response(await self._tasks.cancel(request.principal, arguments.id))

    async def signal(self, arguments: SignalArguments, request: OperationRequest, emit: Emit) -> Result:
        """Raises Forbidden if the caller may not speak for the sender, and RateLimited for a full inbox."""
        self._inboxes.check_sender(request.principal, Party(id=arguments.sender))
        signal = AgentSignal(
            type=arguments.type, to=arguments.to, payload=arguments.payload, signal_id=arguments.signal_id
        )
        outcome = await self._signals.send(request.principal, arguments.sender, signal, arguments.conversation_id)
        return Result(data=msgspec.to_builtins(outcome))
