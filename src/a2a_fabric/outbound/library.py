"""What agents hold besides their capabilities: prompts, resources, templates of resources, in MCP's own words.

A runtime that has such things has an attribute `library`; a door reads and asks all of
them through `Libraries`, so neither knows the other. Lists are what was last learnt:
to read them asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from a2a_fabric.core.trace import Trace

Entries = tuple[dict[str, Any], ...]


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """As the agent lists them."""

    prompts: Entries = ()
    resources: Entries = ()
    templates: Entries = ()


NOTHING = Holdings()


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """`client` is what the asking client says it can do; `patience` is for an agent that is still starting."""

    method: Literal["prompts/get", "resources/read", "completion/complete"]
    params: dict[str, Any]
    trace: Trace
    timeout: float
    patience: float
    client: dict[str, Any] = {}


class Library(Protocol):
    """One agent's."""

    @property
    def holdings(self) -> Holdings:
        """As last learnt, also while the agent is away."""
        ...

    async def ask(self, query: Query) -> dict[str, Any]:
        """The agent's result. Raises FabricError; cancelling it tells the agent."""
        ...


def _nobody(agent_id: str) -> Library | None:
    return None


class Libraries:
    """Those of all agents of a node. `version` grows with each change; `of` finds one without starting anything."""

    def __init__(self, of: Callable[[str], Library | None] = _nobody) -> None:
        self.of = of
        self.version = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Be called after every change of any holdings."""
        self._listeners.append(listener)

    def changed(self) -> None:
        self.version += 1
        for listener in self._listeners:
            listener()
