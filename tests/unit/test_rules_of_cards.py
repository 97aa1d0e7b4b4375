"""What an action of a coordination rule means, and what the prompt says of rules."""

from __future__ import annotations

import pytest

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.coordination import (
    RuleTarget,
    describe_rules,
    find_refusal_of_delegation,
    find_rule_target,
)
from a2a_fabric.core.federation import Coordination, CoordinationRule, Dependencies, Observability
from tests.marks import requirement


@pytest.mark.parametrize(
    ("action", "target"),
    [
        ("delegate to rosa", RuleTarget("rosa", is_forbidden=False)),
        ("Hand this over", None),
        ("Hand over to the agent 'rosa'.", RuleTarget("rosa", is_forbidden=False)),
        ("ask calendar", RuleTarget("calendar", is_forbidden=False)),
        ("call far/percy.2", RuleTarget("far/percy.2", is_forbidden=False)),
        ("Never delegate to bank", RuleTarget("bank", is_forbidden=True)),
        ("do not call bank!", RuleTarget("bank", is_forbidden=True)),
        ("ask calendar for a slot", None),
        ("answer in one sentence", None),
        ("delegate to " + "a" * 1900 + " !", None),
    ],
)
def test_an_action_that_names_one_agent_is_understood(action: str, target: RuleTarget | None) -> None:
    assert find_rule_target(CoordinationRule(condition="x", action=action)) == target


def agent(agent_id: str, *actions: str, agents: tuple[str, ...] | None = None, **coordination: bool) -> Manifest:
    rules = tuple(CoordinationRule(condition="c", action=action) for action in actions)
    return Manifest(
        agent_id=agent_id,
        endpoint={},
        dependencies=None if agents is None else Dependencies(agents=agents),
        coordination=Coordination(rules=rules, **coordination),
    )


@requirement("003-24", "003-41")
def test_delegation_follows_dependencies_and_rules() -> None:
    rosa = agent("rosa")
    assert find_refusal_of_delegation(agent("a"), rosa) is None
    assert find_refusal_of_delegation(agent("a"), rosa, is_declared=True) is not None
    assert find_refusal_of_delegation(agent("a", agents=()), rosa) is not None
    assert find_refusal_of_delegation(agent("a", "delegate to rosa", agents=()), rosa, is_declared=True) is None
    assert find_refusal_of_delegation(agent("a", "never delegate to rosa", agents=("rosa",)), rosa) is not None
    assert find_refusal_of_delegation(agent("a", agents=("rosa",), can_delegate=False), rosa) is not None
    assert find_refusal_of_delegation(None, agent("rosa", accepts_subtasks=False)) is not None


@requirement("003-41")
def test_the_prompt_has_the_rules_and_the_agents_and_spans_have_names() -> None:
    told = describe_rules(agent("a", "answer briefly", agents=("rosa",)))
    assert told == "- If c: answer briefly\n- You may hand work to these agents only: rosa."
    assert describe_rules(Manifest(agent_id="a", endpoint={})) == ""
    assert "Do not hand work" in describe_rules(agent("a", can_delegate=False))
    card = Observability(span_name="{operation} of {agent}", attributes={"agent.name": "Ada"})
    span = Manifest(agent_id="a", endpoint={}, role="Cook", observability=card).describe_span("cook")
    assert span == ("cook of a", {"agent.name": "Ada", "agent.role": "Cook"})
    silent = Manifest(agent_id="a", endpoint={}, observability=Observability(trace_enabled=False))
    assert silent.describe_span("cook") is None
