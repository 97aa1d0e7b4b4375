"""What agents hold besides their capabilities: prompts, resources, templates of resources, in MCP's own words.

A runtime that has such things has an attribute `library`; a door reads and asks all of
them through `Libraries`, so neither knows the other. Lists are what was last learnt:
to read them asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from a2a_fabric.core.delegation import MaybeChain
from a2a_fabric.core.pipeline import Emit
from a2a_fabric.core.trace import Trace

Entries = tuple[dict[str, Any], ...]


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """As the agent lists them."""

    prompts: Entries = ()
    resources: Entries = ()
    templates: Entries = ()


NOTHING = Holdings()


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """`client` is what the asking client says it can do; `patience` is for an agent that is still starting.

    `owner` is on whose behalf it is asked: nobody else can answer what the agent wants to know first.
    """

    method: Literal["prompts/get", "resources/read", "completion/complete"]
    params: dict[str, Any]
    trace: Trace
    timeout: float
    patience: float
    client: dict[str, Any] = {}
    owner: tuple[str, str | None] = ("none", None)
    delegation_chain: MaybeChain = msgspec.UNSET


class Library(Protocol):
    """One agent's."""

    @property
    def holdings(self) -> Holdings:
        """As last learnt, also while the agent is away."""
        ...

    async def ask(self, query: Query, emit: Emit | None = None) -> dict[str, Any]:
        """The agent's result, or what it wants to know first (`resultType` is `input_required`).

        What happens meanwhile is emitted. Raises FabricError; cancelling it tells the agent.
        """
        ...

    async def watch(
        self, uri: str, told: Callable[[], None], lost: Callable[[], None], patience: float
    ) -> Callable[[], None]:
        """Call `told` whenever this resource of the agent changes, until what is returned is called.

        `lost` is called if the library ends before that. Raises FabricError if the agent cannot be asked to tell.
        """
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
