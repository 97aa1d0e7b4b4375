"""Agents, principals and calls, as short as a test wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from a2a_fabric.core.agent import Capability, Health, Manifest
from a2a_fabric.core.call import Call, Input, Principal, ResponseForm, Target
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.events import Event
from a2a_fabric.core.trace import new_trace

LOCAL = Principal(mode="psk", principal_id="alice", trust="local")


def agent(agent_id: str, *capabilities: str | Capability, **about: Any) -> Manifest:
    offered = tuple(Capability(name=c) if isinstance(c, str) else c for c in capabilities)
    about.setdefault("endpoint", {"transport": "local", "uri": f"test:{agent_id}"})
    return Manifest(agent_id=agent_id, capabilities=offered, **about)


def call(
    agent_id: str = "percy",
    capability: str = "reason",
    *,
    task: str = "think",
    context: dict[str, Any] | None = None,
    stream: bool = False,
    timeout_ms: int = 5000,
    auth: Principal = LOCAL,
) -> Call:
    return Call(
        trace=new_trace(),
        auth=auth,
        target=Target(agent_id=agent_id, capability=capability, timeout_ms=timeout_ms),
        input=Input(task=task, context=context or {}),
        response=ResponseForm(stream=stream),
    )


class Heard:
    """An emitter that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]


class States:
    """A book of health that says what the test wrote in it."""

    def __init__(self, **known: Health) -> None:
        self.known = known
        self.good: list[str] = []
        self.bad: list[tuple[str, str]] = []

    def of(self, agent_id: str) -> Health:
        return self.known.get(agent_id, Health())

    def succeeded(self, agent_id: str, latency: float) -> None:
        self.good.append(agent_id)

    def failed(self, agent_id: str, error: FabricError) -> None:
        self.bad.append((agent_id, error.reason))


class Listed:
    """A source that gives what it holds, or raises what it holds."""

    def __init__(self, name: str, held: Sequence[Manifest] | FabricError = ()) -> None:
        self.name = name
        self.held = held

    async def load(self) -> Sequence[Manifest]:
        if isinstance(self.held, FabricError):
            raise self.held
        return self.held

    async def watch(self, changed: object) -> None:
        """Tests change it by hand."""


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
