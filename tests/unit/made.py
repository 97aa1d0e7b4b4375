"""Agents, principals and calls, as short as a test wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from a2a_fabric.core.agent import Health, Manifest
from a2a_fabric.core.call import Call, Emit, Handler, Step, bind_arguments
from a2a_fabric.core.errors import FabricError
from a2a_fabric.core.result import Event, Result
from a2a_fabric.registry.catalog import Catalog
from a2a_fabric.steps.route import ArgumentValidator, ProcessValidator
from a2a_fabric.testing import values

LOCAL = values.LOCAL_CALLER
agent = values.make_manifest
call = values.make_call


class Known:
    """A registry with nothing but its catalog."""

    def __init__(self, *agents: Manifest) -> None:
        self.catalog = Catalog(agents)


def validate(find_agent: Callable[[str], Manifest | None], beside: ProcessValidator | None = None) -> Step:
    """The check that routing makes, alone and as a step."""
    validator = ArgumentValidator(beside)

    def step(inner: Handler) -> Handler:
        async def handle(call: Call, emit: Emit) -> Result:
            manifest = find_agent(call.target.agent_id)
            capability = None if manifest is None else manifest.find_capability(call.target.capability)
            if manifest is not None and capability is not None and capability.input_schema:
                pending = validator.check(call, manifest, capability, bind_arguments(capability, call.input))
                if pending is not None:
                    await pending
            return await inner(call, emit)

        return handle

    return step


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

    def get(self, agent_id: str) -> Health:
        return self.known.get(agent_id, Health())

    def record_success(self, agent_id: str, latency: float) -> None:
        self.good.append(agent_id)

    def record_failure(self, agent_id: str, error: FabricError) -> None:
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
    """Wait for something that has no event."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
