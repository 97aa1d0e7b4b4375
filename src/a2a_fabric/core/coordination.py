"""Which agents may hand work to which: what the cards of the calling and of the called agent say.

The last entry of a delegation chain says which agent of this node makes the call. If its card has `dependencies`, it
may call only the agents in `dependencies.agents` and those to which one of its rules delegates; with
`coordination.canDelegate: false` it may call none. An agent with `coordination.acceptsSubtasks: false` is not called by
other agents. Built-in tools are no agents, so all may use them.

A rule whose action names an agent has these effects: `delegate to rosa` allows that, and lets routing hand a request
with the words of its condition over to Rosa; `never delegate to rosa` refuses it. Every rule, whatever it says, is part
of the prompt of an agent that is a prompt (`describe_rules`).

As everything about chains, this can only cause a refusal: an agent that does not pass its chain on is not recognised as
the caller, and is limited by its credentials alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.errors import DelegationRefused
from a2a_fabric.core.federation import CoordinationRule
from a2a_fabric.core.propagation import make_chain_entry

_ACTION = re.compile(  # of a text with single spaces
    r"(?P<never>(?:never|do not|don't) )?(?:(?:delegate|hand ?over|hand ?off)(?: it| this)? to|ask|call) "
    r"(?:the agent )?['\"@]?(?P<agent>[a-z0-9][a-z0-9._/-]{0,255}?)['\"]? ?[.!]?",
    re.IGNORECASE,
)


class RuleTarget(NamedTuple):
    """The agent that the action of a rule names, and whether the rule forbids work to be handed to it."""

    agent_id: str
    is_forbidden: bool


def find_rule_target(rule: CoordinationRule) -> RuleTarget | None:
    """None for an action that is a sentence for people and models."""
    return _parse_action(rule.action)


@lru_cache(maxsize=4096)
def _parse_action(action: str) -> RuleTarget | None:
    match = _ACTION.fullmatch(" ".join(action.split()))
    return None if match is None else RuleTarget(match["agent"], match["never"] is not None)


def list_rules(manifest: Manifest) -> tuple[CoordinationRule, ...]:
    return () if manifest.coordination is None else manifest.coordination.rules


def find_refusal_of_delegation(caller: Manifest | None, target: Manifest, *, is_declared: bool = False) -> str | None:
    """Why one agent may not hand work to another, as their cards say; None if it may.

    `caller` is None for an agent whose card limits nothing. `is_declared`: the card of the calling agent has to name
    the other one; without it, a card that says nothing about other agents limits nothing.
    """
    if target.coordination is not None and not target.coordination.accepts_subtasks:
        return f"Agent '{target.agent_id}' accepts no work from other agents"
    if caller is None:
        return None
    if caller.coordination is not None and not caller.coordination.can_delegate:
        return f"Agent '{caller.agent_id}' may not hand work to other agents"
    named = [each for each in map(find_rule_target, list_rules(caller)) if each is not None]
    if any(each.is_forbidden and each.agent_id == target.agent_id for each in named):
        return f"Agent '{caller.agent_id}' may not call '{target.agent_id}': a rule of its card forbids it"
    is_named = any(not each.is_forbidden and each.agent_id == target.agent_id for each in named)
    declared = () if caller.dependencies is None else caller.dependencies.agents
    if (caller.dependencies is not None or is_declared) and not is_named and target.agent_id not in declared:
        return f"Agent '{caller.agent_id}' may not call '{target.agent_id}': it is not in its dependencies"
    return None


def describe_rules(manifest: Manifest) -> str:
    """What the prompt of an agent says about its work with others; empty if its card says nothing."""
    lines = [f"- If {rule.condition.strip().rstrip('.')}: {rule.action.strip()}" for rule in list_rules(manifest)]
    if manifest.coordination is not None and not manifest.coordination.can_delegate:
        lines.append("- Do not hand work to other agents.")
    elif manifest.dependencies is not None and manifest.dependencies.agents:
        lines.append(f"- You may hand work to these agents only: {', '.join(manifest.dependencies.agents)}.")
    return "\n".join(lines)


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
        caller = self._find_caller(chain[-1])
        reason = find_refusal_of_delegation(caller, target)
        if reason is not None:
            raise DelegationRefused(reason, "COORDINATION", chain)

    def _find_caller(self, entry: str) -> Manifest | None:
        agents = self._list_agents()
        if agents is not self._agents:
            limited = (each for each in agents if each.dependencies is not None or each.coordination is not None)
            self._callers = {make_chain_entry(self._node, each.agent_id): each for each in limited}
            self._agents = agents
        return self._callers.get(entry)
