"""All operations by name; turns a name and raw arguments into a prepared operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from a2a_fabric.coordination.signals import SignalExchange
from a2a_fabric.coordination.tasks import StandardTasks, TaskTranslator
from a2a_fabric.core.call import Principal, ignore_event
from a2a_fabric.core.errors import UnknownOperation
from a2a_fabric.core.ports import MeaningMatcher
from a2a_fabric.core.propagation import Trace
from a2a_fabric.core.registration import Registration
from a2a_fabric.core.result import Result
from a2a_fabric.core.spans import CallHistoryPort
from a2a_fabric.gateway import Gateway
from a2a_fabric.graphs.runner import Graphs
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.logins.logins import Logins
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.messages.messages import Messages
from a2a_fabric.messages.requests import RequestConversations
from a2a_fabric.operations.agents import AgentOperations, HealthOperations, RegistrationOperations
from a2a_fabric.operations.calls import CallOperations
from a2a_fabric.operations.coordination import CoordinationOperations
from a2a_fabric.operations.graphs import GraphOperations
from a2a_fabric.operations.history import HistoryOperations
from a2a_fabric.operations.jobs import JobOperations
from a2a_fabric.operations.logins import LoginOperations
from a2a_fabric.operations.messages import MessageOperations
from a2a_fabric.operations.operation import Operation, OperationRequest, PreparedOperation
from a2a_fabric.operations.routing import RequestRouting, RouteOperations
from a2a_fabric.operations.search import SearchOperations
from a2a_fabric.operations.tools import PREFIX, ToolOperations
from a2a_fabric.registry.registration import Registrar


class Operations:
    def __init__(
        self,
        gateway: Gateway,
        jobs: Jobs,
        registrar: Registrar,
        inboxes: Inboxes,
        messages: Messages,
        logins: Logins,
        translator: TaskTranslator,
        signals: SignalExchange,
        history: CallHistoryPort | None = None,
        matcher: MeaningMatcher | None = None,
    ) -> None:
        calls = CallOperations(gateway, jobs)
        search = SearchOperations(gateway)
        conversations = RequestConversations(messages)
        self.routing = RequestRouting(gateway, search, conversations, matcher)
        self.graphs = Graphs(jobs)
        self.graph_operations = graph_operations = GraphOperations(gateway, jobs, self.graphs)
        self._registrar = registrar
        self._tools = ToolOperations(gateway, calls)
        health = HealthOperations(gateway)
        groups = (
            AgentOperations(gateway, registrar, jobs.waiting_requests),
            calls,
            search,
            RouteOperations(gateway, calls, graph_operations, self.routing, conversations),
            RegistrationOperations(gateway, registrar),
            JobOperations(jobs),
            graph_operations,
            CoordinationOperations(StandardTasks(translator, gateway.registry, jobs), signals, inboxes),
            MessageOperations(inboxes, messages),
            health,
            self._tools,
        )
        # For doors that list tools under their own names.
        self.prepare_tool, self.plan_plain_calls = self._tools.prepare_tool, self._tools.plan_plain_calls
        self._listed: list[Operation[Any]] = [op for group in groups for op in group.all()]
        # For people at a command line or a console. They are no tools: each would cost every model's context.
        by_people = (
            *LoginOperations(gateway, logins).all(),
            *health.by_people(),
            *HistoryOperations(history, jobs.waiting_requests, gateway).all(),
        )
        self._by_name: dict[str, Operation[Any]] = {op.name: op for op in (*self._listed, *by_people)}

    def add_unlisted(self, operations: Iterable[Operation[Any]]) -> None:
        """Operations that can be called by name and are no tools."""
        self._by_name |= {operation.name: operation for operation in operations}

    def list_named(self, prefix: str) -> list[Operation[Any]]:
        """Those whose name begins so, whether they are listed or not."""
        return [operation for name, operation in self._by_name.items() if name.startswith(prefix)]

    def __iter__(self) -> Iterator[Operation[Any]]:
        """The operations that are listed as tools."""
        return iter(self._listed)

    def find_registration(self, agent_id: str) -> Registration | None:
        """The registration of an agent as this node has cached it, without asking the store."""
        return self._registrar.find_local_registration(agent_id)

    async def run(self, name: str, arguments: dict[str, Any], principal: Principal, trace: Trace) -> Result:
        """Run an operation that is not a call. Raises the errors of `prepare`, and those of the operation."""
        prepared = self.prepare(name, msgspec.Raw(msgspec.json.encode(arguments)), principal)
        return await prepared.run(OperationRequest(trace=trace, principal=principal), ignore_event)

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """Check a request without running it. Raises UnknownOperation, BadInput, Forbidden."""
        operation = self._by_name.get(name)
        if operation is not None:
            return operation.prepare(raw, principal)
        if name.startswith(PREFIX):
            return self._tools.prepare_direct(name, raw, principal)
        raise UnknownOperation(name, (op.name for op in self if op.is_open_to(principal)))
