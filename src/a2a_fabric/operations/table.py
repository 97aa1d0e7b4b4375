"""All operations by name; turns a name and raw arguments into a prepared operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from a2a_fabric.core.call import Principal
from a2a_fabric.core.errors import UnknownOperation
from a2a_fabric.core.registration import Registration
from a2a_fabric.gateway import Gateway
from a2a_fabric.jobs.jobs import Jobs
from a2a_fabric.messages.inboxes import Inboxes
from a2a_fabric.messages.messages import Messages
from a2a_fabric.operations.agents import AgentOperations, RegistrationOperations
from a2a_fabric.operations.calls import CallOperations
from a2a_fabric.operations.health import HealthOperations
from a2a_fabric.operations.jobs import JobOperations
from a2a_fabric.operations.messages import MessageOperations
from a2a_fabric.operations.operation import Operation, PreparedOperation
from a2a_fabric.operations.search import SearchOperations
from a2a_fabric.operations.tools import PREFIX, ToolOperations
from a2a_fabric.registry.registration import Registrar


class Operations:
    def __init__(
        self, gateway: Gateway, jobs: Jobs, registrar: Registrar, inboxes: Inboxes, messages: Messages
    ) -> None:
        calls = CallOperations(gateway, jobs)
        self._registrar = registrar
        self._tools = ToolOperations(gateway, calls)
        groups = (
            AgentOperations(gateway, registrar, jobs.waiting_requests),
            calls,
            SearchOperations(gateway),
            RegistrationOperations(gateway, registrar),
            JobOperations(jobs),
            MessageOperations(inboxes, messages),
            HealthOperations(gateway),
            self._tools,
        )
        self.prepare_tool = self._tools.prepare_tool  # for doors that list tools under their own names
        self._by_name: dict[str, Operation[Any]] = {op.name: op for group in groups for op in group.all()}

    def __iter__(self) -> Iterator[Operation[Any]]:
        return iter(self._by_name.values())

    def find_registration(self, agent_id: str) -> Registration | None:
        """The registration of an agent as this node has cached it, without asking the store."""
        return self._registrar.find_local_registration(agent_id)

    def prepare(self, name: str, raw: msgspec.Raw, principal: Principal) -> PreparedOperation:
        """Check a request without running it. Raises UnknownOperation, BadInput, Forbidden."""
        operation = self._by_name.get(name)
        if operation is not None:
            return operation.prepare(raw, principal)
        if name.startswith(PREFIX):
            return self._tools.prepare_direct(name, raw, principal)
        raise UnknownOperation(name, (op.name for op in self if op.is_open_to(principal)))
