"""Which agents may hand work to which: what the cards of the calling and of the called agent say.

The last entry of a delegation chain says which agent of this node makes the call. If its card has `dependencies`, it
may call only the agents in `dependencies.agents`; with `coordination.canDelegate: false` it may call none. An agent
with `coordination.acceptsSubtasks: false` is not called by other agents. Built-in tools are no agents, so all may use
them.

As everything about chains, this can only cause a refusal: an agent that does not pass its chain on is not recognised as
the caller, and is limited by its credentials alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import DelegationRefused
from a2a_fabric.core.propagation import make_chain_entry


class CoordinationGuard:
    """`list_agents` gives the agents in force now, the same object as long as nothing changes."""

    def __init__(self, node: str, list_agents: Callable[[], Sequence[Manifest]]) -> None:
        self._node = node
        self._list_agents = list_agents
        self._agents: Sequence[Manifest] = ()
        self._callers: Mapping[str, Manifest] = {}  # agents whose cards limit them, by their entries in chains

    def check(self, chain: Sequence[str], target: Manifest) -> None:
        """Raises DelegationRefused."""
        if target.is_tool or not chain[-1].startswith(f"{self._node}/"):
            return
        if target.coordination is not None and not target.coordination.accepts_subtasks:
            raise _refuse(f"Agent '{target.agent_id}' accepts no work from other agents", chain)
        caller = self._find_caller(chain[-1])
        if caller is None:
            return
        if caller.coordination is not None and not caller.coordination.can_delegate:
            raise _refuse(f"Agent '{caller.agent_id}' may not hand work to other agents", chain)
        if caller.dependencies is not None and target.agent_id not in caller.dependencies.agents:
            raise _refuse(
                f"Agent '{caller.agent_id}' may not call '{target.agent_id}': it is not in its dependencies", chain
            )

    def _find_caller(self, entry: str) -> Manifest | None:
        agents = self._list_agents()
        if agents is not self._agents:
            limited = (each for each in agents if each.dependencies is not None or each.coordination is not None)
            self._callers = {make_chain_entry(self._node, each.agent_id): each for each in limited}
            self._agents = agents
        return self._callers.get(entry)


def _refuse(reason: str, chain: Sequence[str]) -> DelegationRefused:
    return DelegationRefused(reason, "COORDINATION", chain)
