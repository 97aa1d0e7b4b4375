"""The few things that one says to an A2A agent, over whichever binding it has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import msgspec

from a2a_fabric.a2a_wire.parts import Dialect
from a2a_fabric.core.agent import Status
from a2a_fabric.runtimes.a2a.outgoing import Manner, Outgoing
from a2a_fabric.runtimes.a2a.pushes import PushPlace
from a2a_fabric.runtimes.a2a.said import Said, TaskSaid


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf something is said: under which trace, and how long an answer is waited for at most."""

    headers: Mapping[str, str] = {}
    timeout: float


class Line(Protocol):
    """A connection to one interface of an agent, shared by all calls. Every method raises FabricError only.

    AgentOffline means that the agent surely did not hear us, UpstreamInterrupted that it may have;
    UpstreamRefused and BadInput are its own words, with its reason in the details (`refusals.reason_of`).
    """

    dialect: Dialect

    async def send(self, message: Outgoing, manner: Manner, errand: Errand) -> Said: ...

    def stream(self, message: Outgoing, manner: Manner, errand: Errand) -> AsyncGenerator[Said, None]: ...

    async def get(self, task_id: str, errand: Errand, *, with_history: bool = False) -> Said: ...

    def subscribe(self, task_id: str, errand: Errand) -> AsyncGenerator[Said, None]: ...

    async def cancel(self, task_id: str, errand: Errand) -> None: ...

    async def push_to(self, place: PushPlace, task_id: str, errand: Errand) -> None:
        """Ask the agent to send there whatever becomes of the task from now on."""
        ...

    async def tasks(self, context_id: str, errand: Errand) -> list[TaskSaid]:
        """The newest tasks, of this context if one is given; version 0.3 cannot tell."""
        ...

    async def probe(self) -> Status:
        """A cheap look at whether the agent is there. Raises FabricError."""
        ...

    async def aclose(self) -> None: ...
